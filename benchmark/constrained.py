"""What answers under a grammar cost and gain, each figure beside what is to be reached.

    python benchmark/constrained.py [--data DIR] [--parts compile,tokens,...] [--json] [--quick]

compile, tokens, jumps, rows, answers: the grammars by themselves, in this process, on the real
schemas of DIR/maskbench-sample (default DIR: the folder that RUNTIME_TEST_DATA names) and on own
small cases. hostile, gain: a server of its own. A part that lacks its data runs on the own cases
alone, and says so. --quick is a short run whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from conformance_suites.matching import bundled_vocabulary
from constrained_bench.figures import Section
from constrained_bench.grammar_times import compile_section, jump_section, token_section
from constrained_bench.hostile import hostile_section
from constrained_bench.jump_gain import jump_gain_section
from constrained_bench.random_answers import BUDGETS, random_answer_section
from constrained_bench.row_steps import row_section
from constrained_bench.schemas import Case, own_cases, sample_cases
from constrained_bench.server import running_server
from constrained_bench.walks import CompiledCases, compile_cases

from runtime.grammars.spec import JsonWhitespace
from runtime.grammars.vocabulary import Vocabulary

_QUICK_CASES = 6  # of each set
_JUMP_POLICIES = (JsonWhitespace.BOUNDED, JsonWhitespace.COMPACT, JsonWhitespace.SPACED)


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    parts: list[str]
    data: Path | None
    threads: int
    quick: bool


class Bench:
    """Runs the parts; cases and grammars are made when the first part needs them."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.left_out: list[str] = []

    def sections(self) -> Iterator[Section]:
        """The sections of all parts, one by one as they are measured."""
        for name in self._options.parts:
            yield from PARTS[name](self)

    def compile(self) -> Iterator[Section]:
        for cases, about, is_sample in self._sets:
            compiled = self._compiled(cases, JsonWhitespace.BOUNDED)
            yield compile_section(compiled, about, is_sample=is_sample)

    def tokens(self) -> Iterator[Section]:
        for cases, about, is_sample in self._sets:
            compiled = self._compiled(cases, JsonWhitespace.BOUNDED)
            yield token_section(compiled, self._vocabulary, about, is_sample=is_sample)

    def jumps(self) -> Iterator[Section]:
        for cases, about, is_sample in self._sets:
            for policy in _JUMP_POLICIES:
                yield jump_section(self._compiled(cases, policy), about, is_sample=is_sample)

    def rows(self) -> Iterator[Section]:
        for cases, about, _ in self._sets:
            walks = self._compiled(cases, JsonWhitespace.BOUNDED).walks
            yield row_section(walks, self._vocabulary, about, 5 if self._options.quick else 60)

    def answers(self) -> Iterator[Section]:
        cases, about, _ = self._sets[0]
        grammars = list(self._compiled(cases, JsonWhitespace.BOUNDED).grammars.items())
        Random(0).shuffle(grammars)
        for budget in BUDGETS:
            seconds = 1.0 if self._options.quick else 20.0
            yield random_answer_section(grammars, self._vocabulary, about, budget, seconds)

    def hostile(self) -> Iterator[Section]:
        quick, threads = self._options.quick, self._options.threads
        with running_server(threads) as server:
            about = f"a server with {threads} threads, two streams beside"
            yield hostile_section(
                server,
                about,
                num_repeats=1 if quick else 3,
                pause_seconds=0.02 if quick else 0.7,
                size=0.02 if quick else 1.0,
            )

    def gain(self) -> Iterator[Section]:
        quick, threads = self._options.quick, self._options.threads
        requests, rounds = (2, 1) if quick else (16, 5)
        about = f"{requests} requests at once, {rounds} rounds, {threads} threads"
        with (
            running_server(threads) as jumping,
            running_server(threads, ["--disable-jump-forward"]) as drawing,
        ):
            yield jump_gain_section(
                jumping, drawing, about, num_requests=requests, num_rounds=rounds
            )

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return bundled_vocabulary()

    @cached_property
    def _sets(self) -> list[tuple[list[Case], str, bool]]:
        """The sample first, if it is there, then the own cases: with a name, and whether sample."""
        sets = []
        most = _QUICK_CASES if self._options.quick else None
        try:
            sample = sample_cases(self._options.data)[:most]
            sets.append((sample, f"maskbench sample, {len(sample)} schemas", True))
        except FileNotFoundError as error:
            self.left_out.append(f"maskbench sample: {error}")
        own = own_cases()[:most]
        return [*sets, (own, f"own cases, {len(own)} schemas", False)]

    def _compiled(self, cases: list[Case], policy: JsonWhitespace) -> CompiledCases:
        key = cases[0].name, policy
        if key not in self._kept:
            self._kept[key] = compile_cases(cases, self._vocabulary, policy)
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[tuple[str, JsonWhitespace], CompiledCases]:
        return {}


PARTS: dict[str, Callable[[Bench], Iterator[Section]]] = {
    "compile": Bench.compile,
    "tokens": Bench.tokens,
    "jumps": Bench.jumps,
    "rows": Bench.rows,
    "answers": Bench.answers,
    "hostile": Bench.hostile,
    "gain": Bench.gain,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its figures; the exit status is 0 whatever they are."""
    options, as_json = _parse(arguments)
    bench = Bench(options)
    sections: dict[str, object] = {}
    for section in bench.sections():
        sections[f"{section.name}; {section.about}"] = section.as_json()
        if not as_json:
            print(section.as_text() + "\n", flush=True)
    if as_json:
        found = {"quick": options.quick, "left_out": bench.left_out, "sections": sections}
        print(json.dumps(found))
    for line in bench.left_out:
        print(f"left out: {line}", file=sys.stderr)
    return 0


def _parse(arguments: list[str] | None) -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the suites ($RUNTIME_TEST_DATA)")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help=f"comma-separated ({','.join(PARTS)})"
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=cores, help="of the servers (all cores)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="short, to see that it works")
    found = parser.parse_args(arguments)
    parts = [part.strip() for part in found.parts.split(",")]
    for part in parts:
        if part not in PARTS:
            parser.error(f"--parts names {part!r}; there are {', '.join(PARTS)}")
    if found.threads < 1:
        parser.error(f"--threads is {found.threads}, must be at least 1")
    default = os.environ.get("RUNTIME_TEST_DATA")
    data = found.data or (Path(default) if default else None)
    return Options(parts, data, found.threads, found.quick), found.json


if __name__ == "__main__":
    sys.exit(main())
