"""64 rows of a step: their masks in one call, and the draw that heeds them in another."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.grammars.batch_fill import fill_batch
from runtime.grammars.matcher import Matcher
from runtime.grammars.vocabulary import Vocabulary
from runtime.kernels.cpu.library import CpuModel, CpuModelConfig
from runtime.srt.execution.forward_batch import SampleRow
from runtime.srt.execution.native_sampler import NativeSampler
from runtime.srt.sampling_params import SamplingParams

from .figures import Section
from .walks import Walk

NUM_ROWS = 64
FILL_AND_APPLY_MS = 2.0  # reach
_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=0.8, top_p=0.95)


@dataclass(slots=True)
class _Place:
    """A row on its walk."""

    walk: Walk
    matcher: Matcher
    index: int  # of the next token


def row_section(walks: list[Walk], vocabulary: Vocabulary, about: str, num_steps: int) -> Section:
    """Wall times of steps in which every row follows a grammar, at a place of its own in it."""
    section = Section("64 rows", f"{about}; {os.cpu_count()} cores, {vocabulary.size} tokens")
    sampler = NativeSampler(CpuModel(_config(vocabulary.size)))  # draws need no weights
    random_logits = np.random.default_rng(0).standard_normal((NUM_ROWS, vocabulary.size))
    logits = np.ascontiguousarray(random_logits * 3, dtype=np.float32)
    masks = np.zeros((NUM_ROWS, vocabulary.bitmask_words), np.uint32)
    places = _random_places(walks, random.Random(0))
    times: dict[str, list[float]] = {}
    num_legal: list[int] = []
    for step in range(num_steps + 3):
        started = time.perf_counter()
        broken = fill_batch([place.matcher for place in places], masks)
        seconds = {"fill": time.perf_counter() - started}
        assert not broken, f"rows {broken} became too costly"
        for name, params in (("greedy", _GREEDY), ("drawn", _DRAWN)):
            for kind, legal in (("", masks), (", no grammar", [None] * NUM_ROWS)):
                rows = [_row(i, params, mask) for i, mask in enumerate(legal)]
                started = time.perf_counter()
                sampler.sample(logits, rows)
                seconds[name + kind] = time.perf_counter() - started
        if step >= 3:  # the first ones warm up
            for name, value in seconds.items():
                times.setdefault(name, []).append(value * 1e3)
            num_legal += np.bitwise_count(masks).sum(axis=1).tolist()
        _move_on(places)
    both = [a + b for a, b in zip(times["fill"], times["greedy"], strict=True)]
    section.add_spread("fill and greedy draw", both, "ms", {"p50": FILL_AND_APPLY_MS})
    section.add_spread("fill", times.pop("fill"), "ms")
    for name, values in times.items():
        section.add_spread(f"draw: {name}", values, "ms")
    few = sum(count < 1024 for count in num_legal) / len(num_legal)
    section.add("share of rows with under 1,024 legal tokens", few, "")
    section.add("steps", num_steps, "")
    return section


def _config(vocab_size: int) -> CpuModelConfig:
    return CpuModelConfig(
        num_layers=1,
        hidden_size=64,
        intermediate_size=64,
        num_heads=1,
        num_kv_heads=1,
        head_dim=64,
        vocab_size=vocab_size,
        max_positions=64,
        rms_eps=1e-5,
        tied_embeddings=True,
        num_threads=os.cpu_count() or 1,
    )


def _row(index: int, params: SamplingParams, mask: npt.NDArray[np.uint32] | None) -> SampleRow:
    return SampleRow(index, params, index, index, (), (), allowed_ids=mask)


def _random_places(walks: list[Walk], draws: random.Random) -> list[_Place]:
    places = []
    for _ in range(NUM_ROWS):
        walk = draws.choice(walks)
        place = _Place(walk, walk.grammar.matcher(), draws.randrange(len(walk.token_ids)))
        place.matcher.accept(walk.token_ids[: place.index])
        places.append(place)
    return places


def _move_on(places: list[_Place]) -> None:
    for place in places:
        ids = place.walk.token_ids
        place.matcher.accept(ids[place.index : place.index + 1])
        place.index += 1
        if place.index == len(ids):
            place.matcher, place.index = place.walk.grammar.matcher(), 0
