"""Whole steps of the CPU engine against a float64 model, over shapes, levels and batch forms."""

import pytest
import torch
from support.cpu_rig import Server, random_model, relative_error, tiny_config

from runtime.kernels.cpu.abi_types import Level, TensorId, load_library
from runtime.kernels.cpu.build import library_path
from runtime.kernels.cpu.library import EngineError

BEST_LEVEL = load_library(library_path()).rt_best_level()
LEVELS = [level for level in Level if 0 <= level <= BEST_LEVEL]
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 0.02}


def prompt(length: int, seed: int = 0, vocab: int = 203) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (length,), generator=generator).tolist()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_prefill_and_decode_match_the_reference_at_every_level(
    level: Level, dtype: torch.dtype
) -> None:
    model = random_model(tiny_config(compute_dtype=dtype, level=level, num_threads=2))
    server = Server(model.engine())
    ids = prompt(150)
    actual = [*server.extend([(0, ids[:140])]), *(server.extend([(0, [i])])[0] for i in ids[140:])]
    assert relative_error(torch.cat(actual), model.reference_logits(ids)) < TOLERANCE[dtype]


# The reference rounds to 8 bits too. What is left: a value that f32 arithmetic moves across the
# middle between two integers, about one in ten thousand, is a step of 0.8 % of the largest off.
# bfloat16 moves most values that far, so there the rounding to 8 bits counts in full.
KV_TOLERANCE = {
    (torch.float32, torch.float32): 3e-6,
    (torch.float32, torch.bfloat16): 0.02,
    (torch.float32, torch.int8): 1e-3,
    (torch.bfloat16, torch.float32): 0.02,
    (torch.bfloat16, torch.int8): 0.035,
}


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize(("dtype", "kv"), KV_TOLERANCE, ids=str)
def test_every_pool_type_matches_the_reference_at_every_level(
    level: Level, dtype: torch.dtype, kv: torch.dtype
) -> None:
    model = random_model(
        tiny_config(compute_dtype=dtype, kv_dtype=kv, level=level, num_threads=2, head_dim=80)
    )
    server = Server(model.engine())
    ids = prompt(150)
    actual = [*server.extend([(0, ids[:140])]), *(server.extend([(0, [i])])[0] for i in ids[140:])]
    error = relative_error(torch.cat(actual), model.reference_logits(ids))
    assert error < KV_TOLERANCE[dtype, kv]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("head_dim", [2, 24, 50, 130])
def test_head_sizes_that_fill_no_vector(level: Level, head_dim: int) -> None:
    for (dtype, kv), tolerance in KV_TOLERANCE.items():
        if dtype != torch.float32:  # bfloat16 takes multiples of 16 only
            continue
        config = tiny_config(
            compute_dtype=dtype,
            kv_dtype=kv,
            level=level,
            head_dim=head_dim,
            num_layers=1,
        )
        model = random_model(config)
        ids = prompt(133)
        server = Server(model.engine())
        actual = [*server.extend([(0, ids[:131])]), *server.extend([(0, ids[131:])])]
        assert relative_error(torch.cat(actual), model.reference_logits(ids)) < tolerance


def test_a_value_that_is_not_finite_stays_so_in_8_bits() -> None:
    model = random_model(tiny_config(kv_dtype=torch.int8))
    model.weights[TensorId.V, 0][3, :] = float("inf")
    server = Server(model.engine())
    (logits,) = server.extend([(0, prompt(20))])
    assert bool(logits.isnan().all())


def test_a_pool_of_another_type_or_shape_is_refused() -> None:
    engine = random_model(tiny_config(kv_dtype=torch.int8)).engine()
    server = Server(engine)
    batch, last = server.batch([(0, [1])]), torch.zeros(1, dtype=torch.int32)
    for wrong in (server.k.to(torch.uint8), server.k[..., :32].contiguous()):
        with pytest.raises(EngineError, match=r"expected a contiguous I8 KV pool of shape .* got"):
            engine.step(batch, wrong, server.v, last)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (4, 4), (7, 1), (20, 1)], ids=str)
def test_every_head_shape(head_dim: int, heads: tuple[int, int]) -> None:
    config = tiny_config(head_dim=head_dim, num_heads=heads[0], num_kv_heads=heads[1], num_layers=1)
    model = random_model(config)
    server = Server(model.engine())
    ids = prompt(137)
    actual = [*server.extend([(0, ids[:134])]), *(server.extend([(0, [i])])[0] for i in ids[134:])]
    assert relative_error(torch.cat(actual), model.reference_logits(ids)) < 0.02


@pytest.mark.parametrize(
    "changes",
    [
        {"tied_embeddings": False},
        {"hidden_size": 48, "intermediate_size": 72},
        {
            "hidden_size": 96,
            "intermediate_size": 33,
            "head_dim": 16,
            "num_heads": 3,
            "num_kv_heads": 1,
        },
        {"rotary_dim": 16},
        {"num_layers": 1, "vocab_size": 16},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_odd_sizes_and_variants(changes: dict[str, object], dtype: torch.dtype) -> None:
    model = random_model(tiny_config(compute_dtype=dtype, **changes))
    ids = prompt(40, vocab=model.config.vocab_size)
    actual = Server(model.engine()).extend([(0, ids)])[0]
    assert relative_error(actual, model.reference_logits(ids)) < TOLERANCE[dtype]


def test_biases_and_query_key_norms() -> None:
    for biases, qk_norm in ((True, False), (False, True), (True, True)):
        config = tiny_config(compute_dtype=torch.float32)
        model = random_model(config, biases=biases, qk_norm=qk_norm)
        ids = prompt(30)
        actual = Server(model.engine()).extend([(0, ids)])[0]
        assert relative_error(actual, model.reference_logits(ids)) < 3e-6


def test_ragged_batch_of_decode_and_extend_rows() -> None:
    model = random_model(tiny_config(num_threads=2))
    server = Server(model.engine())
    rows = {row: prompt(200, seed=row) for row in range(5)}
    server.extend([(0, rows[0][:130]), (1, rows[1][:1])])
    cuts = {0: (130, 131), 1: (1, 19), 2: (0, 1), 3: (0, 127), 4: (0, 15)}
    outputs = server.extend([(row, rows[row][a:b]) for row, (a, b) in cuts.items()])
    for (row, (a, b)), actual in zip(cuts.items(), outputs, strict=True):
        expected = model.reference_logits(rows[row][:b])[a:]
        assert relative_error(actual, expected) < 0.02


def test_a_prompt_longer_than_one_chunk_of_tokens() -> None:
    model = random_model(tiny_config(num_layers=1, compute_dtype=torch.float32, num_threads=2))
    rows = {row: prompt(length, seed=row) for row, length in enumerate((300, 20, 290))}
    outputs = Server(model.engine()).extend(list(rows.items()))
    for ids, actual in zip(rows.values(), outputs, strict=True):
        assert relative_error(actual, model.reference_logits(ids)) < 3e-6


def test_only_the_asked_tokens_get_logits_and_argmax_agrees() -> None:
    model = random_model(tiny_config(num_threads=2))
    engine = model.engine()
    server = Server(engine)
    batch = server.batch([(0, prompt(60)), (1, prompt(7, seed=1)), (2, prompt(300, seed=2))])
    wanted = torch.tensor([3, 59, 66, 200, 366], dtype=torch.int32)
    logits = torch.full((5, 210), -7.0)  # rows further apart than the vocabulary
    argmax = torch.empty(5, dtype=torch.int32)
    hidden = torch.empty(5, 80)
    engine.step(
        batch, server.k, server.v, wanted, logits=logits[:, :203], argmax=argmax, hidden_out=hidden
    )
    assert torch.equal(argmax.long(), logits[:, :203].argmax(-1))
    assert bool((logits[:, 203:] == -7.0).all())
    head = model.weights[TensorId.EMBEDDING, -1].float()
    assert relative_error(hidden.bfloat16().float() @ head.T, logits[:, :203]) < 1e-5
    alone = torch.empty(5, dtype=torch.int32)
    engine.step(batch, server.k, server.v, wanted, argmax=alone)
    assert torch.equal(alone, argmax)


def test_equal_logits_give_the_lowest_id_and_nan_gives_minus_one() -> None:
    model = random_model(tiny_config(num_threads=2))
    head = model.weights[TensorId.EMBEDDING, -1]
    head[150] = head[20] = head[199] = head[7] * 40  # three equal rows far above the rest
    engine = model.engine()
    server = Server(engine)
    batch = server.batch([(0, [7])])
    argmax, last = torch.empty(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    engine.step(batch, server.k, server.v, last, argmax=argmax)
    assert int(argmax[0]) == 20
    model.weights[TensorId.FINAL_NORM, -1][:] = float("nan")
    model.engine().step(batch, server.k, server.v, last, argmax=argmax)
    assert int(argmax[0]) == -1


def test_a_step_without_tokens_does_nothing() -> None:
    engine = random_model(tiny_config()).engine()
    server = Server(engine)
    empty = torch.empty(0, dtype=torch.int32)
    engine.step(server.batch([]), server.k, server.v, empty)
    assert bool(server.k.isnan().all())


def test_logits_stats_match_torch() -> None:
    engine = random_model(tiny_config(num_threads=2)).engine()
    logits = torch.randn(5, 1003, generator=torch.Generator().manual_seed(0)) * 20
    log_sum_exp, argmax = map(torch.from_numpy, engine.logits_stats(logits[:, :1001]))
    expected = logits[:, :1001].double().logsumexp(-1)
    torch.testing.assert_close(log_sum_exp.double(), expected, rtol=1e-6, atol=1e-5)
    assert torch.equal(argmax.long(), logits[:, :1001].argmax(-1))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("input_ids", 203, "token id"),
        ("input_ids", -1, "token id"),
        ("out_slots", 4096, "slot out of range"),
        ("positions", 4, "positions"),
        ("kv_lens", 2000, "lengths"),
        ("table_rows", 64, "table row"),
        ("cu_query_lens", 2, "cover"),
    ],
)
def test_an_index_out_of_range_is_refused_by_name(field: str, value: int, text: str) -> None:
    engine = random_model(tiny_config()).engine()
    server = Server(engine)
    batch = server.batch([(0, [1, 2, 3])])
    getattr(batch, field)[-1] = value
    with pytest.raises(EngineError, match=text):
        engine.step(batch, server.k, server.v, torch.tensor([0], dtype=torch.int32))


def test_a_missing_tensor_is_named_at_finalize() -> None:
    model = random_model(tiny_config())
    del model.weights[TensorId.DOWN, 1]
    with pytest.raises(EngineError, match="layer 1: a projection is missing"):
        model.engine()
