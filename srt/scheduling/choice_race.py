"""ChoiceRace: which nodes of a trie of choices are computed when, and what they have told so far.

Without early exit all nodes are one stage. With it a large trie is computed in stages, the most
promising choices first, until no other can win any more: a log-probability is at most 0, so what is
known of a choice bounds its score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..messages import ChoiceLogprobs, ChoiceSet
from .choice_trie import ChoiceTrie, Edge

# A step with so many tokens costs about a third more than one with a single token. Each stage may
# have twice as many as the one before: where nothing is decided, few steps compute all.
STAGE_TOKENS = 32
# Sums of equal numbers in another order differ by less.
_ROUNDING = 1e-9


class ChoiceRace:
    """The state of one request that scores choices.

    order holds the nodes in the order in which they take places behind the prompt.
    """

    def __init__(self, choices: ChoiceSet, has_prompt: bool) -> None:
        self.trie = ChoiceTrie(choices, has_prompt)
        self.order: list[int] = []
        self._place: dict[int, int] = {}  # in order, by node
        self._method = choices.method
        self._early_exit = choices.early_exit
        self._logprobs: dict[Edge, float] = {}
        self._stage_tokens = STAGE_TOKENS

    @property
    def num_left(self) -> int:
        """Nodes that no stage has had yet."""
        return self.trie.num_nodes - len(self.order)

    def begin(self) -> list[int]:
        """The tokens of the first stage, in order; there may be none beside the prompt."""
        trie = self.trie
        is_small = trie.num_nodes <= STAGE_TOKENS and not self._is_told_by_first_tokens()
        if not self._early_exit or is_small:
            return self._take_up(range(trie.num_nodes))
        # The first tokens are told by the prompt's last one. What a choice has by itself does not
        # depend on how the race goes.
        first = [edges[0] for edges in trie.conditional]
        alone = [edge for edges in trie.unconditional or () for edge in edges]
        return self._take_up(self._nodes_for([*first, *alone], set()))

    def go_on(self) -> list[int]:
        """The tokens of the next stage; none if all is known that is wanted.

        To be called when the nodes so far have been computed.
        """
        if not self.num_left:
            return []
        self._stage_tokens *= 2
        if self._method == "greedy_token_selection":
            return self._take_up(self._next_columns())
        return self._take_up(self._next_choices())

    def place_of(self, node: int) -> int:
        """How many tokens behind the prompt's end the node has its place."""
        return self._place[node]

    def learn(self, edge: Edge, logprob: float) -> None:
        """Take in what a step has computed."""
        self._logprobs[edge] = logprob

    def results(self) -> list[ChoiceLogprobs]:
        """What is known of each choice, None for what early exit has left out."""
        known = self._logprobs.get
        alone = self.trie.unconditional
        return [
            ChoiceLogprobs(
                [known(edge) for edge in edges],
                None if alone is None else [0.0, *(known(edge) for edge in alone[i])],
            )
            for i, edges in enumerate(self.trie.conditional)
        ]

    # Stages

    def _is_told_by_first_tokens(self) -> bool:
        """Whether the first tokens alone decide, if no two are equally likely."""
        first = {edges[0] for edges in self.trie.conditional}
        return self._method == "greedy_token_selection" and len(first) == len(self.trie.conditional)

    def _take_up(self, nodes: Iterable[int]) -> list[int]:
        first = len(self.order)
        self.order += sorted(node for node in nodes if node not in self._place)
        for place in range(first, len(self.order)):
            self._place[self.order[place]] = place
        return [self.trie.token_ids[node] for node in self.order[first:]]

    def _nodes_for(self, edges: Iterable[Edge], taken: set[int]) -> set[int]:
        """The nodes that must be computed to know edges, and have not been and are not in taken.

        As of what has been computed, all that stands before a node of taken is in it too.
        """
        parents = self.trie.parents
        found: set[int] = set()
        for edge in edges:
            node = edge.source
            while node >= 0 and node not in self._place and node not in taken:
                if node in found:
                    break
                found.add(node)
                node = parents[node]
        return found

    def _next_columns(self) -> set[int]:
        """For the choices that are ahead up to where they are known: about a stage's tokens."""
        ahead, column = self._ahead()
        nodes: set[int] = set()
        if len(ahead) == 1:
            return nodes
        paths = [self.trie.conditional[i] for i in ahead]
        for place in range(column, max(map(len, paths))):
            column_edges = (edges[place] for edges in paths if place < len(edges))
            more = self._nodes_for(column_edges, nodes)
            if nodes and len(nodes) + len(more) > self._stage_tokens:
                break
            nodes |= more
        # The mean of a short choice stands for the tokens it does not have.
        return nodes

    def _ahead(self) -> tuple[list[int], int]:
        """Choices that have the largest log-probability in every known column; how many are."""
        ahead = list(range(len(self.trie.conditional)))
        for column in range(max(map(len, self.trie.conditional))):
            values = [self._greedy_value(i, column) for i in ahead]
            if len(ahead) == 1 or None in values:
                return ahead, column
            best = max(value for value in values if value is not None)
            ahead = [i for i, value in zip(ahead, values, strict=True) if value == best]
        return ahead[:1], 0

    def _greedy_value(self, choice: int, column: int) -> float | None:
        edges = self.trie.conditional[choice]
        if column < len(edges):
            return self._logprobs.get(edges[column])
        values = self._known(edges)  # all: who is still ahead is known up to here
        return sum(values) / len(values) if len(values) == len(edges) else None

    def _next_choices(self) -> set[int]:
        """The rest of the choices that may still win, the best first: about a stage's tokens."""
        bounds = [self._bound(i) for i in range(len(self.trie.conditional))]
        known = [i for i in range(len(bounds)) if self._is_known(i)]
        best = max((bounds[i] for i in known), default=None)
        nodes: set[int] = set()
        for i in sorted(range(len(bounds)), key=lambda i: -bounds[i]):
            if self._is_known(i):
                continue
            if best is not None and bounds[i] < best - _ROUNDING:
                break
            more = self._nodes_for(self.trie.conditional[i], nodes)
            if nodes and len(nodes) + len(more) > self._stage_tokens:
                break
            nodes |= more
        return nodes

    def _is_known(self, choice: int) -> bool:
        return all(edge in self._logprobs for edge in self.trie.conditional[choice])

    def _bound(self, choice: int) -> float:
        """The most that the choice's score can come to."""
        edges = self.trie.conditional[choice]
        total = sum(self._known(edges))
        if self.trie.unconditional is not None:
            total -= sum(self._known(self.trie.unconditional[choice]))
        return total / len(edges)

    def _known(self, edges: Sequence[Edge]) -> list[float]:
        return [self._logprobs[edge] for edge in edges if edge in self._logprobs]
