"""ChoiceTrie: the tokens that must be computed to score several choices, each of them once.

A node is a token that stands behind its parent; what choices begin with in common is one path of
nodes. The last token of a choice is scored, never computed: nothing is predicted from it. Nodes are
numbered so that a parent comes before its children, and a path without a branch runs on.
"""

from __future__ import annotations

from typing import NamedTuple

from ..messages import ChoiceSet

AFTER_PROMPT = -1  # the parent of what follows the prompt
AFTER_NOTHING = -2  # the parent of what stands by itself, from position 0 on


class Edge(NamedTuple):
    """token_id, as the node (or AFTER_PROMPT: the prompt's last token) predicts it."""

    source: int
    token_id: int


class ChoiceTrie:
    """Nodes, and for each choice the edges whose log-probabilities make up its score."""

    def __init__(self, choices: ChoiceSet, has_prompt: bool) -> None:
        self.token_ids: list[int] = []  # by node
        self.parents: list[int] = []
        self._nodes: dict[Edge, int] = {}
        self._targets: dict[int, list[int]] = {}
        root = AFTER_PROMPT if has_prompt else AFTER_NOTHING
        self.conditional = [
            self._add(one.token_ids, root, one.num_unscored) for one in choices.paths
        ]
        self.unconditional: list[list[Edge]] | None = None
        if choices.method == "unconditional_likelihood_normalized":
            # Nothing predicts the first token.
            self.unconditional = [
                self._add(one.token_ids[one.num_unscored :], AFTER_NOTHING, 1)
                for one in choices.paths
            ]

    @property
    def num_nodes(self) -> int:
        """Tokens to compute beside the prompt."""
        return len(self.token_ids)

    def path_to(self, node: int) -> list[int]:
        """The nodes from the root to node, node included."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        path.reverse()
        return path

    def follows_prompt(self, node: int) -> bool:
        """Whether the prompt stands before the path to node."""
        while node >= 0:
            node = self.parents[node]
        return node == AFTER_PROMPT

    def targets_of(self, source: int) -> list[int]:
        """The tokens whose log-probabilities after source are wanted, each once."""
        return self._targets.get(source, [])

    def _add(self, token_ids: list[int], root: int, first_scored: int) -> list[Edge]:
        edges: list[Edge] = []
        source = root
        for place, token_id in enumerate(token_ids):
            edge = Edge(source, token_id)
            if place >= first_scored:
                edges.append(edge)
                targets = self._targets.setdefault(source, [])
                if token_id not in targets:
                    targets.append(token_id)
            if place + 1 < len(token_ids):
                source = self._node(edge)
        return edges

    def _node(self, edge: Edge) -> int:
        node = self._nodes.get(edge)
        if node is None:
            node = self._nodes[edge] = len(self.token_ids)
            self.token_ids.append(edge.token_id)
            self.parents.append(edge.source)
        return node
