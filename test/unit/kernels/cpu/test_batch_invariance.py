"""Same request, same bits: whatever the batch, the cache, the chunking, the threads."""

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cpu_rig import RandomModel, Server, random_model, tiny_config

from runtime.kernels.cpu.abi_types import Level, WeightFormat, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import CpuModel

BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
# Instruction set, type of activations, type of the KV pool.
MODES = [
    *[
        (level, *types)
        for level in LEVELS
        for types in [
            (torch.float32, torch.float32),
            (torch.bfloat16, torch.bfloat16),
            (torch.bfloat16, torch.int8),
        ]
    ],
    (Level(BEST_LEVEL), torch.float32, torch.int8),
    (Level(BEST_LEVEL), torch.bfloat16, torch.float32),
]
every_mode = pytest.mark.parametrize(
    ("level", "dtype", "kv"), MODES, ids=lambda x: str(getattr(x, "name", x)).removeprefix("torch.")
)


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 203, (length,), generator=generator).tolist()


def small_model(
    dtype: torch.dtype,
    kv: torch.dtype | None = None,
    level: Level = Level.AUTO,
    threads: int = 2,
) -> RandomModel:
    return random_model(
        tiny_config(compute_dtype=dtype, kv_dtype=kv, level=level, num_threads=threads)
    )


@every_mode
def test_a_row_alone_equals_the_row_among_37_neighbours(
    level: Level, dtype: torch.dtype, kv: torch.dtype
) -> None:
    engine = small_model(dtype, kv, level).engine()
    ids = prompt(70)
    alone = Server(engine)
    expected = [alone.extend([(0, ids[:69])])[0], alone.extend([(0, ids[69:])])[0]]
    crowd = Server(engine)
    others = [(row, prompt(1 + row % 9, seed=row)) for row in range(1, 38)]
    first = crowd.extend([*others[:20], (0, ids[:69]), *others[20:]])[20]
    second = crowd.extend([*((row, [row]) for row, _ in others), (0, ids[69:])])[-1]
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])


@every_mode
def test_any_cached_length_and_any_chunking_give_the_same_bits(
    level: Level, dtype: torch.dtype, kv: torch.dtype
) -> None:
    _check_cached_lengths(small_model(dtype, kv, level).engine())


@pytest.mark.parametrize("form", [WeightFormat.W8A8, WeightFormat.W8A16])
def test_any_cached_length_gives_the_same_bits_with_8_bit_weights(form: WeightFormat) -> None:
    _check_cached_lengths(small_model(torch.bfloat16).engine(weight_format=form))


def _check_cached_lengths(engine: CpuModel) -> None:
    ids = prompt(545)
    whole = Server(engine).extend([(0, ids)])[0]
    for cached in (1, 5, 31, 32, 127, 128, 129, 200, 255, 256, 288, 289, 511, 512, 513, 544):
        server = Server(engine)
        first = server.extend([(0, ids[:cached])])[0]
        rest = server.extend([(0, ids[cached:])])[0]
        assert torch.equal(torch.cat([first, rest]), whole), cached
    for size in (7, 16, 100):
        server = Server(engine)
        parts = [server.extend([(0, ids[at : at + size])])[0] for at in range(0, len(ids), size)]
        assert torch.equal(torch.cat(parts), whole), size


@every_mode
def test_threads_do_not_change_bits(level: Level, dtype: torch.dtype, kv: torch.dtype) -> None:
    outputs = []
    for threads in (1, 2, 3):
        server = Server(small_model(dtype, kv, level, threads).engine())
        rows = [(row, prompt(90 + row, seed=row)) for row in range(4)]
        first = server.extend(rows)
        second = server.extend([(row, [row]) for row in range(4)])
        outputs.append(torch.cat([*first, *second]))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


def test_scattered_slots_equal_slots_in_order() -> None:
    engine = small_model(torch.bfloat16).engine()
    free = list(range(1, 4096))
    random.Random(0).shuffle(free)

    def scattered(count: int) -> list[int]:
        return [free.pop() for _ in range(count)]

    work = [[(0, prompt(150)), (1, prompt(20, seed=1))], [(0, [5]), (1, [6])]]
    ordered, mixed = Server(engine), Server(engine, allocate=scattered)
    for step in work:
        for a, b in zip(ordered.extend(step), mixed.extend(step), strict=True):
            assert torch.equal(a, b)


@every_mode
def test_sharing_a_prefix_does_not_change_bits(
    level: Level, dtype: torch.dtype, kv: torch.dtype
) -> None:
    engine = small_model(dtype, kv, level).engine()
    ids = prompt(400)
    outputs = []
    for share in (True, False):
        server = Server(engine, share_prefixes=share)
        server.extend([(0, ids)])
        for row in range(1, 30):
            server.fork(0, row, 390 - row * 5)
        extended = server.extend([(row, prompt(row, seed=row)) for row in range(1, 30)])
        decoded = server.extend([(row, [row]) for row in range(30)])
        outputs.append(torch.cat([*extended, *decoded]))
    assert torch.equal(*outputs)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_trees_of_prefixes_give_each_row_its_own_bits(data: st.DataObject) -> None:
    engine = _tree_engine(*data.draw(st.sampled_from(MODES)))
    server = Server(engine, max_rows=16)
    sequences: dict[int, list[int]] = {0: prompt(300)}
    server.extend([(0, sequences[0])])
    for row in range(1, data.draw(st.integers(2, 8))):
        parent = data.draw(st.integers(0, row - 1))
        cut = data.draw(st.integers(1, len(sequences[parent])))
        tail = prompt(data.draw(st.integers(1, 140)), seed=row)
        server.fork(parent, row, cut)
        server.extend([(row, tail)])
        sequences[row] = sequences[parent][:cut] + tail
    new = {row: prompt(data.draw(st.integers(1, 20)), seed=99 + row) for row in sequences}
    together = server.extend(list(new.items()))
    for row, actual in zip(sequences, together, strict=True):
        own = Server(engine).extend([(0, sequences[row] + new[row])])[0]
        assert torch.equal(actual, own[-len(new[row]) :])


@cache
def _tree_engine(level: Level, dtype: torch.dtype, kv: torch.dtype) -> CpuModel:
    config = tiny_config(
        num_layers=1,
        hidden_size=32,
        intermediate_size=32,
        head_dim=16,
        compute_dtype=dtype,
        kv_dtype=kv,
        level=level,
    )
    return random_model(config).engine()
