"""The one owner of "free": slots, tree and request rows as one account.

Every usable slot is at any time in one of four places, counted in tokens: available (free),
evictable or protected (owned by the tree, unlocked or locked), held (in the row of an open lease
and not in the tree). The scheduler opens a lease per running request, grows it, commits what was
computed and closes it; it never frees a slot itself. Knows nothing of tensors or devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..messages import KvStats
from .path_walk import path_slots
from .prefix_watch import PrefixWatch
from .radix_node import RadixNode
from .radix_tree import RadixTree
from .request_table import RequestTable
from .retention_pins import RetentionPin, RetentionPins
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
    priority: int = 0
    is_hit_counted: bool = False
    is_open: bool = True


class KvMemory:
    """total_tokens usable slots (rounded down to pages) and num_rows rows of max_context positions.

    The KV pool needs num_pool_slots slots: the first page is a dummy. With enable_cache False the
    tree stays empty and a closed lease frees all it had. Pins hold at most pinned_share of it all.
    """

    def __init__(
        self,
        total_tokens: int,
        page_size: int,
        num_rows: int,
        max_context: int,
        enable_cache: bool = True,
        eviction_policy: str = "lru",
        pinned_share: float = 0.25,
    ) -> None:
        self.page_size = page_size
        self.total_tokens = total_tokens // page_size * page_size
        self.enable_cache = enable_cache
        self.allocator = SlotAllocator(self.total_tokens, page_size)
        self.tree = RadixTree(page_size, self.allocator.free, eviction_policy)
        self.pins = RetentionPins(self.tree, int(self.total_tokens * pinned_share))
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
        """Slots of the tree that an open lease or a pin has locked."""
        return self.tree.protected_tokens

    @property
    def pinned_tokens(self) -> int:
        """Slots of the tree that a pin has locked; part of protected_tokens."""
        return self.pins.pinned_tokens

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
        """Return the four figures and their total, and what pins hold."""
        return KvStats(
            total=self.total_tokens,
            available=self.available_tokens,
            evictable=self.evictable_tokens,
            protected=self.protected_tokens,
            held=self.held_tokens,
            pinned=self.pinned_tokens,
        )

    def peek_prefix_length(self, token_ids: TokenIds, namespace: str | None) -> int:
        """Return how many leading tokens are cached, in whole pages; changes nothing.

        Cheap for an int32 array; a list is converted at each call.
        """
        tokens = as_token_array(token_ids, 0, len(token_ids))
        return self.tree.peek_prefix_length(tokens, namespace)

    def watch(
        self,
        token_ids: NDArray[np.int32],
        namespace: str | None,
        match_limit: int,
        on_change: Callable[[PrefixWatch], None],
    ) -> PrefixWatch:
        """Keep num_matched and group of a watch on token_ids[:match_limit] right from now on.

        on_change is called at the end of the operation that changed them, once. token_ids is not
        copied: it must not change below match_limit. See PrefixWatch; unwatch() ends it.
        """
        limit = match_limit if self.enable_cache else 0
        return self.tree.watches.add(as_token_array(token_ids, 0, limit), namespace, on_change)

    def unwatch(self, watch: PrefixWatch) -> None:
        """Stop keeping watch."""
        self.tree.watches.remove(watch)

    def group_of(self, lease: KvLease, token_ids: TokenIds) -> Hashable | None:
        """Return the group of watches that share the lease's next page that is not cached.

        None when token_ids, the lease's sequence, has no whole page left. Whoever is in that group
        will find at least one page more once the lease has committed it.
        """
        if not self.enable_cache:
            return None
        rest = as_token_array(token_ids, lease.num_tree_owned, len(token_ids))
        return self.tree.watches.group_below(lease.node, rest, lease.namespace)

    def pin(
        self, token_ids: TokenIds, namespace: str | None, expiry_seconds: float
    ) -> RetentionPin:
        """Keep what is cached of token_ids now until expiry_seconds on the caller's clock.

        What is computed later is not covered: pin again then, which counts shared tokens once.
        Raises BadRequest when all pins together would exceed the pinned share of the pool.
        """
        tokens = as_token_array(token_ids, 0, len(token_ids))
        return self.pins.add(self.tree.match_prefix(tokens, namespace), expiry_seconds)

    def check_pin(self, token_ids: TokenIds, namespace: str | None) -> None:
        """Raise BadRequest if pin() would, were all of token_ids cached: before computing them."""
        tokens = as_token_array(token_ids, 0, len(token_ids))
        whole = len(tokens) // self.page_size * self.page_size
        self.pins.check_room(self.tree.match_prefix(tokens, namespace), whole)

    def unpin(self, pin: RetentionPin) -> None:
        """End a pin before its time."""
        self.pins.release(pin)

    def release_expired_pins(self, now_seconds: float) -> None:
        """End the pins whose expiry has come; for every step, costs nothing when there is none."""
        self.pins.release_expired(now_seconds)

    def open(
        self, token_ids: TokenIds, namespace: str | None, match_limit: int, priority: int = 0
    ) -> KvLease | None:
        """Take a row and lock the longest cached prefix of token_ids[:match_limit] into it.

        None when no row is free. The lease must be closed. priority counts for what it commits,
        under the eviction policy of that name.
        """
        row = self.table.take_row()
        if row is None:
            return None
        num_matched, node = 0, self.tree.root
        if self.enable_cache and match_limit >= self.page_size:
            match = self.tree.match_prefix(as_token_array(token_ids, 0, match_limit), namespace)
            num_matched, node = match.num_tokens, match.node
            self.tree.lock(node)
            self._table[row, :num_matched] = path_slots(node, num_matched)
        lease = KvLease(row, namespace, num_matched, num_matched, num_matched, node, priority)
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
        self._tell_watches()
        return True

    def grow_many(self, leases: Sequence[KvLease], num_tokens: Sequence[int]) -> bool:
        """grow() each lease to its number of tokens: all of them, or none and False.

        No lease may appear twice.
        """
        page_size = self.page_size
        growing, pages = [], []
        for lease, wanted in zip(leases, num_tokens, strict=True):
            missing = wanted - lease.num_allocated
            if missing > 0:
                growing.append(lease)
                pages.append(-(-missing // page_size))
        if not growing:
            return True
        slots = self._allocate(sum(pages))
        if slots is None:
            return False
        if len(slots) == len(growing):  # a decode step with pages of one token: one scatter
            self._append_one_each(growing, slots)
        else:
            start = 0
            for lease, num_pages in zip(growing, pages, strict=True):
                end = start + num_pages * page_size
                self._append(lease, slots[start:end])
                start = end
        self._tell_watches()
        return True

    def commit(self, lease: KvLease, token_ids: TokenIds, num_computed: int) -> None:
        """Tell that the KV of token_ids[:num_computed] is valid in the lease's row.

        Its whole pages go into the tree, locked by the lease. Where the tree had them already
        (another request computed the same), the lease's copies are freed and the row points to the
        tree's. token_ids is the whole sequence so far, the matched prefix included.
        Costs the part the tree does not own yet. Does nothing without the cache.
        """
        self._commit(lease, token_ids, num_computed)
        self._tell_watches()

    def _commit(self, lease: KvLease, token_ids: TokenIds, num_computed: int) -> None:
        assert lease.is_open, f"commit of a closed lease, row {lease.row}"
        assert num_computed <= lease.num_allocated and num_computed <= len(token_ids), (
            f"{num_computed} tokens computed, {lease.num_allocated} allocated, "
            f"{len(token_ids)} known"
        )
        if num_computed > lease.num_matched and not lease.is_hit_counted:
            # Not at open(): a request that does not fit yet is opened and closed again and again.
            lease.is_hit_counted = True
            self.tree.count_hit(lease.node)
        start, stop = lease.num_tree_owned, num_computed // self.page_size * self.page_size
        if stop <= start or not self.enable_cache:
            return
        slots = self._table[lease.row, start:stop]
        tokens = as_token_array(token_ids, start, stop)
        result = self.tree.insert_below(lease.node, tokens, slots, lease.namespace, lease.priority)
        # Lock before freeing and re-pointing: from here on the whole part is the tree's.
        self.tree.extend_lock(lease.node, result.node)
        if result.num_already_cached:
            self.allocator.free(slots[: result.num_already_cached])
            slots[:] = path_slots(result.node, stop - start)
        lease.node = result.node
        lease.num_tree_owned = stop
        self._held_tokens -= stop - start

    def close(self, lease: KvLease, token_ids: TokenIds, num_computed: int) -> None:
        """Commit what was computed, free the rest, unlock the prefix and give the row back.

        For requests that finish, are retracted or aborted alike: their KV stays, evictable.
        """
        self._commit(lease, token_ids, num_computed)
        own = self._table[lease.row, lease.num_tree_owned : lease.num_allocated]
        self.allocator.free(own)
        self._held_tokens -= len(own)
        self.tree.unlock(lease.node)
        del self._leases[lease.row]
        self.table.release_row(lease.row)
        lease.is_open = False
        self._tell_watches()

    def open_leases(self) -> list[KvLease]:
        """All leases that are not closed."""
        return list(self._leases.values())

    def slots(self, lease: KvLease, start: int, stop: int) -> NDArray[np.int32]:
        """Return a view of the row: the slots of positions [start, stop)."""
        return self._table[lease.row, start:stop]

    def flush(self) -> bool:
        """Empty the tree, pins included; False, with nothing changed, while a lease is open."""
        if self._leases:
            return False
        self.pins.release_all()
        self.tree.flush()
        self._tell_watches()
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

    def _tell_watches(self) -> None:
        if self.tree.watches.has_news:
            self.tree.watches.fire()

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
