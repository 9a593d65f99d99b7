"""End to end: greedy answers on the device are those of the torch reference on the CPU.

In float32, where only the order of sums differs. Where two tokens were so close on the CPU that a
rounding decides between them, another token ends the comparison of that row and is no error. With
keys and values in fp8 the device is told the answers, and its log-probabilities of them compared.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from runtime.srt.execution.cuda_executor import CudaExecutor
from runtime.srt.execution.cuda_loading import load_device_executor
from runtime.srt.execution.forward_batch import SampledToken
from runtime.srt.execution.gpu_parts import gpu_parts
from runtime.srt.execution.torch_executor import TorchExecutor, load_torch_executor
from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.sampling_params import LogprobOptions
from runtime.srt.server_args import ServerArgs

from .bench import Bench
from .models import write_model
from .outcome import Row
from .sequences import Sequences, decode_overlapped, decode_serially

# Between the log-probabilities of the two likeliest tokens on the CPU.
_TIE = 2e-3
# That fp8, with three bits after the first, may move a token's log-probability on average.
_FP8_SHIFT = 0.1
_CHUNK_TOKENS = 64


class _Answer(NamedTuple):
    token_ids: list[int]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]  # how far each token is ahead of the second likeliest


def run(bench: Bench, model_folder: Path | None) -> list[Row]:
    """The model in the folder, or one of random weights; with and without graphs and overlap."""
    if model_folder is not None:
        return _compare(bench, model_folder, ModelConfig.load(model_folder, {}))
    with tempfile.TemporaryDirectory() as folder:
        config = write_model(Path(folder), bench.pick("tiny", "SmolLM2-135M"))
        return _compare(bench, Path(folder), config)


def _compare(bench: Bench, folder: Path, config: ModelConfig) -> list[Row]:
    lengths, num_tokens = bench.pick(([3, 14], 3), ([5, 17, 64, 300, 700], 48))
    random = np.random.default_rng(3)
    prompts = [random.integers(3, config.vocab_size, length).tolist() for length in lengths]
    columns = max(lengths) + num_tokens + 1
    args = ServerArgs(
        max_total_tokens=columns * len(prompts),
        max_running_requests=len(prompts),
        context_length=columns,
        chunked_prefill_size=_CHUNK_TOKENS,
        cuda_graph_max_rows=len(prompts),
    )
    reference = load_torch_executor(folder, config, args, "float32", columns * len(prompts) + 1)
    expected = _answers_on_cpu(reference, prompts, num_tokens, columns)
    parts = gpu_parts(bench.device, config, args, "float32")
    device = load_device_executor(bench.device, parts, folder, config, args, "float32", "float32")
    rows = []
    graphs = device.graphs
    for name, has_graphs, overlaps in (
        ("without graphs, serial", False, False),
        ("graphs, overlapped", True, True),
    ):
        device.graphs = graphs if has_graphs else None
        found = _answers_on_device(device, prompts, num_tokens, columns, overlaps)
        rows.append(_row(name, found, expected))
    del device, graphs
    rows.append(_fp8_row(bench, folder, config, args, prompts, expected))
    return rows


def _fp8_row(
    bench: Bench,
    folder: Path,
    config: ModelConfig,
    args: ServerArgs,
    prompts: list[list[int]],
    expected: list[_Answer],
) -> Row:
    fp8 = "float8_e4m3fn"
    parts = gpu_parts(bench.device, config, args, fp8)
    executor = load_device_executor(bench.device, parts, folder, config, args, "float32", fp8)
    sequences = Sequences(len(prompts), args.context_length or 0)
    new_tokens, steps = prompts, []
    for told in zip(*(one.token_ids for one in expected), strict=True):
        batch = sequences.step(new_tokens)
        asked = [LogprobOptions(token_ids=(token,)) for token in told]
        steps.append(executor.execute(batch, sequences.sample_rows(asked), []).sampled)
        new_tokens = [[token] for token in told]
    found = [
        abs(_logprob_by_id(one) - logprob)
        for answer, row in zip(expected, zip(*steps, strict=True), strict=True)
        for one, logprob in zip(row, answer.logprobs, strict=True)
    ]
    shift = statistics.mean(found)
    return Row(
        "fp8 keys and values",
        shift,
        "mean shift of log-probabilities",
        is_right=shift <= _FP8_SHIFT,
        note=f"at most {max(found):.3g}",
    )


def _logprob_by_id(token: SampledToken) -> float:
    assert token.logprobs is not None and token.logprobs.by_id is not None
    return token.logprobs.by_id[0][0]


def _answers_on_cpu(
    executor: TorchExecutor, prompts: list[list[int]], num_tokens: int, columns: int
) -> list[_Answer]:
    sequences = Sequences(len(prompts), columns)
    asked = [LogprobOptions(num_top=2)] * len(prompts)
    new_tokens, steps = prompts, []
    for _ in range(num_tokens):
        batch = sequences.step(new_tokens)
        steps.append(executor.execute(batch, sequences.sample_rows(asked), []).sampled)
        new_tokens = [[one.token_id] for one in steps[-1]]
    return [
        _Answer([one.token_id for one in row], *zip(*(_likeliest(one) for one in row), strict=True))
        for row in zip(*steps, strict=True)
    ]


def _likeliest(token: SampledToken) -> tuple[float, float]:
    """The log-probability of the likeliest token, and how far it is ahead of the second."""
    assert token.logprobs is not None and token.logprobs.top is not None
    (first, _), (second, _) = token.logprobs.top
    return first, first - second


def _answers_on_device(
    executor: CudaExecutor, prompts: list[list[int]], num_tokens: int, columns: int, overlaps: bool
) -> list[list[int]]:
    sequences = Sequences(len(prompts), columns)
    first = executor.execute(sequences.step(prompts), sequences.sample_rows(), []).sampled
    last = [one.token_id for one in first]
    decode = decode_overlapped if overlaps else decode_serially
    steps = [last, *decode(executor, sequences, last, num_tokens - 1)]
    return [list(row) for row in zip(*steps, strict=True)]


def _row(name: str, found: list[list[int]], expected: list[_Answer]) -> Row:
    num_equal, ties, wrong = 0, 0, []
    for index, (ours, answer) in enumerate(zip(found, expected, strict=True)):
        pairs = zip(ours, answer.token_ids, strict=True)
        differs = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        num_equal += len(ours) if differs is None else differs
        if differs is not None and answer.margins[differs] <= _TIE:
            ties += 1
        elif differs is not None:
            wrong.append(
                f"row {index} differs at token {differs}: {ours[differs]}, on the CPU "
                f"{answer.token_ids[differs]}, ahead by {answer.margins[differs]:.3g}"
            )
    note = "; ".join(wrong) or (f"{ties} rows ended by a tie" if ties else "")
    return Row(name, num_equal, "tokens as on the CPU", is_right=not wrong, note=note)
