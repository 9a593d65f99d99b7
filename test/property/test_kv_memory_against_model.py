"""KvMemory under random leases: what a row points to must be the KV of its own tokens.

The pool is an array that holds, per slot, the prefix whose KV was last written there. A slot freed
too early, freed twice or shared wrongly shows up as the wrong prefix in some row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.prefix_model import PrefixModel

from runtime.srt.errors import BadRequest
from runtime.srt.memory.kv_memory import KvLease, KvMemory
from runtime.srt.memory.memory_checks import check_memory

NUM_OPERATIONS = 4_000
NUM_ROWS = 6
MAX_CONTEXT = 40
NAMESPACES = [None, "tenant"]


@dataclass
class RunningRequest:
    """A request as a scheduler would keep it."""

    lease: KvLease
    tokens: list[int]
    namespace: str | None
    num_computed: int
    owned: list[int] = field(default_factory=list)  # tokens locked in the tree


class MemoryRig:
    """KvMemory, a model of its tree, and a pool of labels."""

    def __init__(self, page_size: int, enable_cache: bool, seed: int) -> None:
        self.random = random.Random(seed)
        self.page_size = page_size
        self.enable_cache = enable_cache
        self.memory = KvMemory(
            total_tokens=24 * page_size + page_size - 1,  # not whole pages: rounded down
            page_size=page_size,
            num_rows=NUM_ROWS,
            max_context=MAX_CONTEXT * page_size,
            enable_cache=enable_cache,
        )
        self.pool: list[object] = [None] * self.memory.num_pool_slots
        self.model = PrefixModel(page_size)
        self.running: list[RunningRequest] = []
        self.pins: list[tuple[float, list[int], str | None]] = []
        self.now = 0.0
        self.num_evictions = self.num_pins = self.num_refused_pins = 0

    def step(self) -> None:
        operations = [self.open, self.grow_one, self.decode, self.commit, self.close, self.flush]
        operations += [self.pin, self.let_time_pass]
        self.random.choices(operations, [5, 4, 5, 4, 3, 0.3, 1.5, 0.5])[0]()
        self.compare()

    def open(self) -> None:
        namespace = self.random.choice(NAMESPACES)
        tokens = [int(self.random.random() < 0.3) for _ in range(self._length())]
        limit = len(tokens) - 1
        expected = self.model.match(tokens[:limit], namespace, touch=False)
        assert self.memory.peek_prefix_length(tokens[:limit], namespace) == expected

        lease = self.memory.open(tokens, namespace, limit)

        assert (lease is None) == (len(self.running) == NUM_ROWS)
        if lease is None:
            return
        assert lease.num_matched == lease.num_allocated == lease.num_tree_owned == expected
        self.model.match(tokens[:limit], namespace)
        self.model.lock(tokens[:expected], namespace)
        self.running.append(
            RunningRequest(lease, tokens, namespace, expected, owned=tokens[:expected])
        )

    def grow_one(self) -> None:
        """Prefill a chunk of one request."""
        if self.running:
            request = self.random.choice(self.running)
            target = min(len(request.tokens), request.num_computed + 1 + self._length() // 2)
            if self._expect_grow([request], [target]):
                assert self.memory.grow(request.lease, target)
                self._compute(request, target)
            else:
                assert not self.memory.grow(request.lease, target)

    def decode(self) -> None:
        """One token more for several requests, all or none."""
        batch = [r for r in self.running if self.random.random() < 0.8]
        batch = [r for r in batch if len(r.tokens) < MAX_CONTEXT * self.page_size]
        targets = [request.num_computed + 1 for request in batch]
        grown = self._expect_grow(batch, targets)

        assert self.memory.grow_many([r.lease for r in batch], targets) == grown

        for request, target in zip(batch, targets, strict=True):
            if not grown:
                break
            if target > len(request.tokens):
                request.tokens.append(self.random.randrange(2))
            self._compute(request, target)

    def commit(self) -> None:
        if self.running:
            request = self.random.choice(self.running)
            self.memory.commit(request.lease, request.tokens, request.num_computed)
            self._commit_in_model(request)

    def close(self) -> None:
        if self.running:
            request = self.running.pop(self.random.randrange(len(self.running)))
            self.memory.close(request.lease, request.tokens, request.num_computed)
            self._commit_in_model(request)
            self.model.unlock(request.owned, request.namespace)

    def flush(self) -> None:
        assert self.memory.flush() == (not self.running)
        if not self.running:
            self.model.pages.clear()
            self.pins.clear()

    def pin(self) -> None:
        if not self.running:
            return
        request = self.random.choice(self.running)
        tokens, namespace = request.tokens, request.namespace
        tokens = tokens[: self.model.match(tokens, namespace)]
        expiry = self.now + self.random.random() * 10
        others = {p for _, pinned, name in self.pins for p in self.model.prefixes(pinned, name)}
        wanted = others | set(self.model.prefixes(tokens, namespace))
        if len(wanted) * self.page_size > self.memory.total_tokens // 4:
            with pytest.raises(BadRequest, match=f"{len(others) * self.page_size} of at most"):
                self.memory.pin(tokens, namespace, expiry)
            self.num_refused_pins += 1
            return
        assert self.memory.pin(tokens, namespace, expiry).num_tokens == len(tokens)
        self.model.lock(tokens, namespace)
        self.pins.append((expiry, tokens, namespace))
        self.num_pins += 1

    def let_time_pass(self) -> None:
        self.now += self.random.random() * 5

        self.memory.release_expired_pins(self.now)

        for expiry, tokens, namespace in sorted(self.pins, key=lambda pin: pin[0]):
            if expiry <= self.now:
                self.model.unlock(tokens, namespace)
        self.pins = [pin for pin in self.pins if pin[0] > self.now]

    def compare(self) -> None:
        check_memory(self.memory)
        assert self.memory.protected_tokens == self.model.tokens_locked()
        assert self.memory.evictable_tokens == self.model.tokens_unlocked()
        pinned = {p for _, tokens, name in self.pins for p in self.model.prefixes(tokens, name)}
        assert self.memory.pinned_tokens == len(pinned) * self.page_size
        assert self.memory.free_rows == NUM_ROWS - len(self.running)
        for request in self.running:
            assert request.lease.num_tree_owned == len(request.owned)
            row = self.memory.slots(request.lease, 0, request.num_computed).tolist()
            for position, slot in enumerate(row):
                expected = (request.namespace, request.tokens[: position + 1])
                assert self.pool[slot] == expected, f"position {position} of {request}"

    def _length(self) -> int:
        return self.random.randrange(2, 10 * self.page_size + 2)

    def _expect_grow(self, batch: list[RunningRequest], targets: list[int]) -> bool:
        """Whether the model has room; evicts from the model what must go."""
        missing_pages = sum(
            max(0, -(-(target - request.lease.num_allocated) // self.page_size))
            for request, target in zip(batch, targets, strict=True)
        )
        missing = missing_pages * self.page_size - self.memory.available_tokens
        if missing > self.model.tokens_unlocked():
            return False
        if missing > 0 and missing_pages:
            self.model.evict(missing)
            self.num_evictions += 1
        return True

    def _compute(self, request: RunningRequest, target: int) -> None:
        """The forward pass: label the slots of the new positions."""
        new = self.memory.slots(request.lease, request.num_computed, target).tolist()
        for position, slot in enumerate(new, request.num_computed):
            self.pool[slot] = (request.namespace, request.tokens[: position + 1])
        request.num_computed = max(request.num_computed, target)

    def _commit_in_model(self, request: RunningRequest) -> None:
        whole = request.num_computed // self.page_size * self.page_size
        if not self.enable_cache or whole <= len(request.owned):
            return
        tokens = request.tokens[:whole]
        # The slots' numbers do not matter here: the labels in the pool say more.
        self.model.insert(tokens, [0] * whole, request.namespace)
        self.model.unlock(request.owned, request.namespace)
        self.model.lock(tokens, request.namespace)
        request.owned = tokens


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_always_point_to_the_kv_of_their_own_tokens(page_size: int, seed: int) -> None:
    rig = MemoryRig(page_size, enable_cache=True, seed=seed)

    for _ in range(NUM_OPERATIONS):
        rig.step()

    assert rig.num_evictions > 50 and rig.num_pins > 50 and rig.num_refused_pins > 5


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_without_cache_nothing_stays_behind(page_size: int) -> None:
    rig = MemoryRig(page_size, enable_cache=False, seed=3)

    for _ in range(NUM_OPERATIONS // 4):
        rig.step()
        assert rig.memory.tree.total_tokens == 0
    while rig.running:
        rig.close()

    assert rig.memory.available_tokens == rig.memory.total_tokens
