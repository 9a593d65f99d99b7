"""Walking a path of the radix tree: down by its tokens, up for its slots, with skips on long runs.

Where many prompts leave one text at many places, a path has hundreds of nodes. A skip lets a walk
pass a run of them in one comparison: it holds the run's tokens and slots side by side. Nodes keep
their meaning when they are split, and a node never goes before those below it, so a skip is right
as long as the node where it ends is neither dropped nor cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .radix_node import BYTES_PER_SLOT, RadixNode, slots_array
from .token_span import BYTES_PER_TOKEN

SKIP_NODES = 12  # a walk of so many nodes without a skip leaves one behind


@dataclass(eq=False, slots=True)
class Skip:
    """The tokens and slots from the end of source to the end of target, far below it."""

    source: RadixNode
    target: RadixNode
    span: bytes
    slots: bytes


def descend(
    start: RadixNode, first_edge: bytes, query: bytes, page_bytes: int
) -> tuple[RadixNode, int, RadixNode | None]:
    """Go down as far as whole nodes match query.

    Returns the last one, the bytes matched and, if there is one, the child that goes on with the
    query's next page but not with all of its span.
    """
    node, offset, goes_on_with = start, 0, query.startswith
    run_start, run_offset, run_length = start, 0, 0
    child = start.children.get(first_edge)
    while child is not None and goes_on_with(child.span, offset):
        node = child
        offset += len(node.span)
        run_length += 1
        if run_length == 1:  # never start, which may be the root: its edges carry namespaces
            run_start, run_offset = node, offset
        elif run_length > SKIP_NODES and node.children:
            _add_skip(run_start, node, query[run_offset:offset])
            run_start, run_offset, run_length = node, offset, 1
        skip = node.skip_down
        while skip is not None and goes_on_with(skip.span, offset):
            node = skip.target
            offset += len(skip.span)
            run_start, run_offset, run_length = node, offset, 1
            skip = node.skip_down
        child = node.children.get(query[offset : offset + page_bytes])
    if node is not start:
        # A childless node may have been cut; its span then is longer than what it stands for.
        offset -= len(node.span) - node.num_tokens * BYTES_PER_TOKEN
    return node, offset, child


def path_slots(node: RadixNode, num_tokens: int) -> NDArray[np.int32]:
    """Return the slots of the last num_tokens of the prefix that ends at node; read-only."""
    missing = num_tokens * BYTES_PER_SLOT
    parts: list[bytes] = []
    at: RadixNode | None = node
    while missing > 0:
        assert at is not None, f"the prefix is {missing // BYTES_PER_SLOT} tokens too short"
        skip = at.skip_up
        if skip is not None:
            part, at = skip.slots, skip.source
        else:
            part, at = at.used_slots(), at.parent
        parts.append(part)
        missing -= len(part)
    if missing < 0:
        parts[-1] = parts[-1][-missing:]
    parts.reverse()
    return slots_array(parts)


def drop_skip_to(node: RadixNode) -> None:
    """Remove the skip that ends at node, which is about to be dropped or cut."""
    skip = node.skip_up
    if skip is not None:
        skip.source.skip_down = None
        node.skip_up = None


def _add_skip(source: RadixNode, target: RadixNode, span: bytes) -> None:
    if source.skip_down is not None:
        source.skip_down.target.skip_up = None
    drop_skip_to(target)
    slots = path_slots(target, len(span) // BYTES_PER_TOKEN).tobytes()
    source.skip_down = target.skip_up = Skip(source, target, span, slots)
