"""BPE merges of a sentencepiece vocabulary, recovered from its scores.

Sentencepiece joins the neighbours whose joint piece scores highest; a merge list joins the pair
that stands first. So every way to cut a piece in two known ones becomes a merge, best pieces first.
"""

from __future__ import annotations

from collections.abc import Sequence


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], usable: Sequence[bool]
) -> list[tuple[str, str]]:
    """Merges in the order of falling score; only tokens marked usable take part.

    Cuts of one piece: the longer left part first, as in the conversion that published models went
    through, which keeps ids equal to theirs.
    """
    ids = {token: i for i, token in enumerate(tokens) if usable[i]}
    merges: list[tuple[float, int, int, int, str, str]] = []
    for order, (token, token_id) in enumerate(ids.items()):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                key = (-scores[token_id], -len(left), -len(right), order)
                merges.append((*key, left, right))
    merges.sort(key=lambda merge: merge[:4])
    return [(left, right) for *_, left, right in merges]
