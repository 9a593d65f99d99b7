"""Rows whose bitmask leaves few ids get those logits alone, in the bits of the whole head."""

import numpy as np
import pytest
import torch
from support.cpu_rig import Server, random_model, tiny_config

from runtime.kernels.cpu.abi_types import DType, Level, TensorId, WeightFormat, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import CpuModel, EngineError

BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
HEADS = ("F32", "BF16", "W8A8", "W8A16", "Q8_0", "Q4_1")
VOCAB_SIZE = 8202  # its last panel is not full
NARROW = 4000  # ids below it touch less than half of the panels
BLOCK_BYTES = {"Q8_0": 34, "Q4_1": 20}


def engine(head: str, level: Level = Level.AUTO, threads: int = 2) -> CpuModel:
    config = tiny_config(
        hidden_size=96,
        vocab_size=VOCAB_SIZE,
        tied_embeddings=False,
        compute_dtype=DType.F32 if head == "F32" else DType.BF16,
        level=level,
        num_threads=threads,
    )
    rig = random_model(config)
    model = CpuModel(config)
    for (tensor, layer), data in rig.weights.items():
        is_head = tensor == TensorId.LM_HEAD
        form = WeightFormat[head] if is_head and head.startswith("W8") else WeightFormat.KEEP
        model.set_tensor(tensor, data, layer, form)
    if head in BLOCK_BYTES:
        # Bytes below 60 make small positive scales.
        size = (VOCAB_SIZE, 3 * BLOCK_BYTES[head])
        blocks = np.random.default_rng(0).integers(0, 60, size, dtype=np.uint8)
        model.set_blocks(TensorId.LM_HEAD, blocks, DType[head], 96)
    model.finalize()
    return model


def mask_of(ids: list[int]) -> torch.Tensor:
    bits = np.zeros(-(-VOCAB_SIZE // 32) * 32, dtype=np.uint8)
    bits[ids] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.uint32))


def random_ids(rows: int, seed: int = 0) -> list[list[int] | None]:
    """Legal ids of each row: none said, several hundred, a handful, very many, or a single one."""
    rng = np.random.default_rng(seed)
    counts = [None, 300, 7, 1500, 1, 2, 1024, 1025]
    ids: list[list[int] | None] = []
    for row in range(rows):
        count = counts[row % len(counts)]
        ids.append(None if count is None else rng.permutation(NARROW)[:count].tolist())
    return ids


def check(model: CpuModel, lengths: list[int], legal: list[list[int] | None]) -> None:
    """One step of prompts, of which the last tokens are wanted, with bitmasks and without."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]
    server = Server(model)
    batch = server.batch(list(enumerate(prompts)))
    last = (torch.as_tensor(batch.cu_query_lens[1:]) - 1).contiguous()
    expected = torch.empty(len(lengths), VOCAB_SIZE)
    model.step(batch, server.k, server.v, last, logits=expected)

    logits = torch.full_like(expected, float("nan"))
    rows = torch.empty(len(lengths), dtype=torch.int32)
    masks = [None if ids is None else mask_of(ids) for ids in legal]
    model.step(batch, server.k, server.v, last, logits=logits, allowed_ids=masks, logit_rows=rows)

    assert sorted(rows.tolist()) == list(range(len(lengths)))
    for i, ids in enumerate(legal):
        actual = logits[rows[i]]
        if ids is None or len(ids) > 1024:
            assert torch.equal(actual, expected[i])
            continue
        assert actual.isnan().sum() == VOCAB_SIZE - len(ids), "other logits were written"
        if len(ids) > 1:  # a single one is chosen whatever its logit
            assert torch.equal(actual[ids], expected[i][ids])


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("head", HEADS)
def test_the_logits_of_legal_ids_have_the_bits_of_the_whole_head(head: str, level: Level) -> None:
    model = engine(head, level)

    check(model, [1 + row % 3 for row in range(37)], random_ids(37))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_may_hold_only_rows_with_few_legal_ids(threads: int) -> None:
    check(engine("BF16", threads=threads), [1, 2], [[5, 8201], [7]])
    check(engine("BF16", threads=threads), [1], [[0]])


def test_rows_that_touch_most_of_the_head_get_all_of_it() -> None:
    model = engine("BF16")
    server = Server(model)
    batch = server.batch([(0, [1]), (1, [2])])
    last = torch.tensor([0, 1], dtype=torch.int32)
    rows = torch.empty(2, dtype=torch.int32)
    logits = torch.full((2, VOCAB_SIZE), float("nan"))
    masks = [mask_of(list(range(0, VOCAB_SIZE, 16))), mask_of([3, 4])]

    model.step(batch, server.k, server.v, last, logits=logits, allowed_ids=masks, logit_rows=rows)

    assert rows.tolist() == [0, 1]
    assert not logits[0].isnan().any()
    assert (~logits[1].isnan()).nonzero().flatten().tolist() == [3, 4]


def test_rows_of_several_chunks_keep_their_places() -> None:
    check(engine("BF16"), [200] * 9, random_ids(9))


def test_a_bitmask_of_another_length_is_refused() -> None:
    model = engine("BF16")

    with pytest.raises(EngineError, match=r"bitmask has shape \[3\], expected \[257\]"):
        server = Server(model)
        model.step(
            server.batch([(0, [1])]),
            server.k,
            server.v,
            torch.zeros(1, dtype=torch.int32),
            logits=torch.empty(1, VOCAB_SIZE),
            allowed_ids=[torch.zeros(3, dtype=torch.uint32)],
            logit_rows=torch.empty(1, dtype=torch.int32),
        )
