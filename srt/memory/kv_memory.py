"""The one owner of "free": slots, tree and request rows as one account.

Every usable slot is at any time in one of four places, counted in tokens: available (free),
evictable or protected (owned by the tree, unlocked or locked), held (in the row of an open lease
and not in the tree). The scheduler opens a lease per running request, grows it, commits what was
computed and closes it; it never frees a slot itself. Knows nothing of tensors or devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..messages import KvStats
from .radix_node import RadixNode, write_path_slots
from .radix_tree import RadixTree
from .request_table import RequestTable
from .slot_allocator import SlotAllocator
from .token_span import TokenIds, as_token_array


@dataclass(eq=False, slots=True)
class KvLease:
    """One running request's share of the KV memory; changed by KvMemory only.

    Positions [0, num_tree_owned) stand in the tree, locked through node; [num_tree_owned,
    num_allocated) are the request's own. num_matched of the first were found in the tree at open.
    """

    row: int
    namespace: str | None
    num_matched: int
    num_allocated: int
    num_tree_owned: int
    node: RadixNode
    is_open: bool = True


class KvMemory:
    """total_tokens usable slots (rounded down to pages) and num_rows rows of max_context positions.

    The KV pool needs num_pool_slots slots: the first page is a dummy. With enable_cache False the
    tree stays empty and a closed lease frees all it had.
    """

    def __init__(
        self,
        total_tokens: int,
        page_size: int,
        num_rows: int,
        max_context: int,
        enable_cache: bool = True,
    ) -> None:
        self.page_size = page_size
        self.total_tokens = total_tokens // page_size * page_size
        self.enable_cache = enable_cache
        self.allocator = SlotAllocator(self.total_tokens, page_size)
        self.tree = RadixTree(page_size, self.allocator.free)
        self.table = RequestTable(num_rows, -(-max_context // page_size) * page_size)
        self._table = self.table.slot_table
        self._held_tokens = 0
        self._leases: dict[int, KvLease] = {}

    @property
    def num_pool_slots(self) -> int:
        """Slots a KV pool must have, the dummy page included."""
        return self.total_tokens + self.page_size

    @property
    def available_tokens(self) -> int:
        """Free slots."""
        return self.allocator.available_tokens

    @property
    def evictable_tokens(self) -> int:
        """Slots of the tree that nobody has locked."""
        return self.tree.evictable_tokens

    @property
    def protected_tokens(self) -> int:
        """Slots of the tree that an open lease has locked."""
        return self.tree.protected_tokens

    @property
    def held_tokens(self) -> int:
        """Slots in rows of open leases that the tree does not own."""
        return self._held_tokens

    @property
    def num_free_or_evictable(self) -> int:
        """What grow() can reach at most."""
        return self.allocator.available_tokens + self.tree.evictable_tokens

    @property
    def evicted_tokens_total(self) -> int:
        """Tokens evicted since start."""
        return self.tree.evicted_tokens_total

    @property
    def free_rows(self) -> int:
        """How many more leases can be open."""
        return self.table.num_free_rows

    def stats(self) -> KvStats:
        """Return the four figures and their total."""
        return KvStats(
            total=self.total_tokens,
            available=self.available_tokens,
            evictable=self.evictable_tokens,
            protected=self.protected_tokens,
            held=self.held_tokens,
        )

    def peek_prefix_length(self, token_ids: TokenIds, namespace: str | None) -> int:
        """Return how many leading tokens are cached, in whole pages; changes nothing.

        Cheap for an int32 array; a list is converted at each call.
        """
        tokens = as_token_array(token_ids, 0, len(token_ids))
        return self.tree.peek_prefix_length(tokens, namespace)

    def open(self, token_ids: TokenIds, namespace: str | None, match_limit: int) -> KvLease | None:
        """Take a row and lock the longest cached prefix of token_ids[:match_limit] into it.

        None when no row is free. The lease must be closed.
        """
        row = self.table.take_row()
        if row is None:
            return None
        num_matched, node = 0, self.tree.root
        if self.enable_cache and match_limit >= self.page_size:
            match = self.tree.match_prefix(as_token_array(token_ids, 0, match_limit), namespace)
            num_matched, node = match.num_tokens, match.node
            self.tree.lock(node)
            write_path_slots(node, self._table[row, :num_matched])
        lease = KvLease(row, namespace, num_matched, num_matched, num_matched, node)
        self._leases[row] = lease
        return lease

    def grow(self, lease: KvLease, num_tokens: int) -> bool:
        """Make the row hold slots for positions [0, num_tokens), evicting from the tree if it must.

        False, with nothing changed, when free and evictable slots together do not suffice.
        """
        missing = num_tokens - lease.num_allocated
        if missing <= 0:
            return True
        slots = self._allocate(-(-missing // self.page_size))
        if slots is None:
            return False
        self._append(lease, slots)
        return True

    def grow_many(self, leases: Sequence[KvLease], num_tokens: Sequence[int]) -> bool:
        """grow() each lease to its number of tokens: all of them, or none and False.

        No lease may appear twice.
        """
        page_size = self.page_size
        growing = [
            (lease, -(-(wanted - lease.num_allocated) // page_size))
            for lease, wanted in zip(leases, num_tokens, strict=True)
            if wanted > lease.num_allocated
        ]
        if not growing:
            return True
        slots = self._allocate(sum(num_pages for _, num_pages in growing))
        if slots is None:
            return False
        if len(slots) == len(growing):  # a decode step with pages of one token: one scatter
            self._append_one_each([lease for lease, _ in growing], slots)
            return True
        start = 0
        for lease, num_pages in growing:
            end = start + num_pages * page_size
            self._append(lease, slots[start:end])
            start = end
        return True

    def commit(self, lease: KvLease, token_ids: TokenIds, num_computed: int) -> None:
        """Tell that the KV of token_ids[:num_computed] is valid in the lease's row.

        Its whole pages go into the tree, locked by the lease. Where the tree had them already
        (another request computed the same), the lease's copies are freed and the row points to the
        tree's. token_ids is the whole sequence so far, the matched prefix included.
        Costs the part the tree does not own yet. Does nothing without the cache.
        """
        assert lease.is_open, f"commit of a closed lease, row {lease.row}"
        assert num_computed <= lease.num_allocated and num_computed <= len(token_ids), (
            f"{num_computed} tokens computed, {lease.num_allocated} allocated, "
            f"{len(token_ids)} known"
        )
        start, stop = lease.num_tree_owned, num_computed // self.page_size * self.page_size
        if stop <= start or not self.enable_cache:
            return
        slots = self._table[lease.row, start:stop]
        tokens = as_token_array(token_ids, start, stop)
        result = self.tree.insert_below(lease.node, tokens, slots, lease.namespace)
        # Lock before freeing and re-pointing: from here on the whole part is the tree's.
        self.tree.extend_lock(lease.node, result.node)
        if result.num_already_cached:
            self.allocator.free(slots[: result.num_already_cached])
            write_path_slots(result.node, slots)
        lease.node = result.node
        lease.num_tree_owned = stop
        self._held_tokens -= stop - start

    def close(self, lease: KvLease, token_ids: TokenIds, num_computed: int) -> None:
        """Commit what was computed, free the rest, unlock the prefix and give the row back.

        For requests that finish, are retracted or aborted alike: their KV stays, evictable.
        """
        self.commit(lease, token_ids, num_computed)
        own = self._table[lease.row, lease.num_tree_owned : lease.num_allocated]
        self.allocator.free(own)
        self._held_tokens -= len(own)
        self.tree.unlock(lease.node)
        del self._leases[lease.row]
        self.table.release_row(lease.row)
        lease.is_open = False

    def slots(self, lease: KvLease, start: int, stop: int) -> NDArray[np.int32]:
        """Return a view of the row: the slots of positions [start, stop)."""
        return self._table[lease.row, start:stop]

    def flush(self) -> bool:
        """Empty the tree; False, with nothing changed, while a lease is open."""
        if self._leases:
            return False
        self.tree.flush()
        return True

    def check_identity(self) -> None:
        """Assert available + evictable + protected + held == total; O(1), for every idle step."""
        found = (
            self.available_tokens + self.evictable_tokens + self.protected_tokens + self.held_tokens
        )
        assert found == self.total_tokens, (
            f"KV accounting: available {self.available_tokens} + evictable {self.evictable_tokens} "
            f"+ protected {self.protected_tokens} + held {self.held_tokens} = {found}, "
            f"not {self.total_tokens}"
        )

    def check_invariants(self) -> None:
        """Assert that each usable slot is in exactly one of its four places; O(pool), for tests."""
        self.check_identity()
        self.tree.check_invariants()
        self.allocator.check_invariants()
        parts = [self.allocator.free_slots(), self.tree.all_slots()]
        for row, lease in self._leases.items():
            assert lease.is_open and lease.row == row, f"lease of row {row} is closed or moved"
            in_tree = self._table[row, : lease.num_tree_owned]
            expected = np.empty_like(in_tree)
            write_path_slots(lease.node, expected)
            assert (in_tree == expected).all(), f"row {row} does not point to the tree's slots"
            parts.append(self._table[row, lease.num_tree_owned : lease.num_allocated])
        held = sum(len(part) for part in parts[2:])
        assert held == self._held_tokens, f"{held} slots held, counted {self._held_tokens}"
        slots = np.sort(np.concatenate(parts))
        everything = np.arange(self.page_size, self.num_pool_slots)
        assert np.array_equal(slots, everything), f"slots lost or owned twice: {slots}"

    def _allocate(self, num_pages: int) -> NDArray[np.int32] | None:
        slots = self.allocator.allocate(num_pages)
        if slots is None:
            missing = num_pages * self.page_size - self.allocator.available_tokens
            if missing > self.tree.evictable_tokens:
                return None
            self.tree.evict(missing)
            slots = self.allocator.allocate(num_pages)
            assert slots is not None, f"no room for {num_pages} pages after evicting {missing}"
        self._held_tokens += len(slots)
        return slots

    def _append(self, lease: KvLease, slots: NDArray[np.int32]) -> None:
        start = lease.num_allocated
        end = start + len(slots)
        assert lease.is_open, f"grow of a closed lease, row {lease.row}"
        assert end <= self.table.num_columns, f"{end} tokens in a row of {self.table.num_columns}"
        self._table[lease.row, start:end] = slots
        lease.num_allocated = end

    def _append_one_each(self, leases: list[KvLease], slots: NDArray[np.int32]) -> None:
        rows = [lease.row for lease in leases]
        self._table[rows, [lease.num_allocated for lease in leases]] = slots
        for lease in leases:
            assert lease.is_open, f"grow of a closed lease, row {lease.row}"
            lease.num_allocated += 1
