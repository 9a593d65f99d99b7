"""The reference backend computes softmax(q k^T) v over each row's own slots, and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch

from runtime.srt.attention.tensor_batch import TensorBatch
from runtime.srt.attention.torch_reference import TorchReferenceAttention
from runtime.srt.loading.model_config import ModelConfig, RopeConfig
from runtime.srt.memory.kv_pool import KvPool

HEAD_DIM = 16
MAX_TOKENS = 1200


def config(num_heads: int, num_kv_heads: int) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope=RopeConfig(10000.0),
        tie_word_embeddings=True,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        context_length=MAX_TOKENS,
        eos_token_ids=(),
        dtype="float32",
    )


class Case:
    """Rows of (query_len, kv_len) with random q, k, v and the cached part in the pool already."""

    def __init__(
        self, shapes: list[tuple[int, int]], heads: tuple[int, int], dtype: torch.dtype
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        num_heads, num_kv_heads = heads
        self.shapes = shapes
        num_slots = len(shapes) * MAX_TOKENS
        order = torch.randperm(num_slots, generator=generator)
        self.table = (1 + order).view(len(shapes), MAX_TOKENS).to(torch.int32)
        self.pool = KvPool(config(*heads), num_slots + 1, dtype, torch.device("cpu"))

        def random(tokens: int, count: int) -> torch.Tensor:
            return torch.randn(tokens, count, HEAD_DIM, generator=generator).to(dtype)

        self.q = [random(query_len, num_heads) for query_len, _ in shapes]
        self.k = [random(kv_len, num_kv_heads) for _, kv_len in shapes]
        self.v = [random(kv_len, num_kv_heads) for _, kv_len in shapes]
        for row, (query_len, kv_len) in enumerate(shapes):
            cached = kv_len - query_len
            slots = self.table[row, :cached].long()
            self.pool.write(1, slots, self.k[row][:cached], self.v[row][:cached])

    def run(self, rows: list[int]) -> list[torch.Tensor]:
        """Attention of these rows in one batch, on layer 1."""
        shapes = [self.shapes[row] for row in rows]
        new = [
            self.table[row, kv_len - query_len : kv_len].long()
            for row, (query_len, kv_len) in zip(rows, shapes, strict=True)
        ]
        ends = list(itertools.accumulate((query_len for query_len, _ in shapes), initial=0))
        batch = TensorBatch(
            input_ids=torch.zeros(ends[-1], dtype=torch.int64),
            positions=torch.zeros(ends[-1], dtype=torch.int64),
            out_slots=torch.cat(new),
            cu_query_lens=torch.tensor(ends, dtype=torch.int32),
            kv_lens=torch.tensor([kv_len for _, kv_len in shapes], dtype=torch.int32),
            table_rows=torch.tensor(rows),
            slot_table=self.table,
        )
        k = torch.cat([self.k[row][-self.shapes[row][0] :] for row in rows])
        v = torch.cat([self.v[row][-self.shapes[row][0] :] for row in rows])
        backend = TorchReferenceAttention()
        backend.prepare(batch)
        out = backend.forward(torch.cat([self.q[row] for row in rows]), k, v, 1, self.pool, batch)
        return list(out.split([query_len for query_len, _ in shapes]))

    def expected(self, row: int) -> torch.Tensor:
        """The definition, in float64."""
        query_len, kv_len = self.shapes[row]
        q, k, v = self.q[row].double(), self.k[row].double(), self.v[row].double()
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,lhd->hql", q, k) / HEAD_DIM**0.5
        positions = torch.arange(kv_len - query_len, kv_len).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(kv_len) > positions, float("-inf"))
        return torch.einsum("hql,lhd->qhd", scores.softmax(-1), v)


RAGGED = [(1, 1), (5, 5), (1, 300), (7, 40), (1, 255), (1, 256), (1, 257), (2, 1100), (1, 1150)]


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(
    "shapes",
    [[(1, 1)], [(1, 700)], [(3, 3)], [(3, 600)], [(600, 1000)], RAGGED],
    ids=lambda shapes: f"{len(shapes)}rows-{shapes[0]}",
)
def test_each_row_attends_causally_over_its_own_context(
    shapes: list[tuple[int, int]], heads: tuple[int, int]
) -> None:
    case = Case(shapes, heads, torch.float32)

    results = case.run(list(range(len(shapes))))

    for row, result in enumerate(results):
        # Sums of up to 1,150 float32 terms in another order.
        torch.testing.assert_close(result.double(), case.expected(row), rtol=1e-4, atol=1e-5)


def test_bfloat16_stays_within_its_rounding() -> None:
    case = Case(RAGGED, (6, 2), torch.bfloat16)

    for row, result in enumerate(case.run(list(range(len(RAGGED))))):
        # Weights and result are rounded once each: 2 ulp of values up to about 4.
        torch.testing.assert_close(result.double(), case.expected(row), rtol=2**-7, atol=2**-6)


def test_a_row_gets_the_same_whatever_else_is_in_the_batch() -> None:
    case = Case(RAGGED, (6, 2), torch.float32)
    together = case.run(list(range(len(RAGGED))))

    for row in range(len(RAGGED)):
        (alone,) = case.run([row])
        torch.testing.assert_close(alone, together[row], rtol=1e-5, atol=1e-6)


def test_new_keys_and_values_are_stored_at_their_slots_of_their_layer() -> None:
    case = Case([(4, 10), (1, 6)], (4, 2), torch.float32)

    case.run([0, 1])

    for row, (_, kv_len) in enumerate(case.shapes):
        slots = case.table[row, :kv_len].long()
        assert torch.equal(case.pool.k[1][slots], case.k[row])
        assert torch.equal(case.pool.v[1][slots], case.v[row])
    assert not case.pool.k[0].any() and not case.pool.k[1][0].any()
