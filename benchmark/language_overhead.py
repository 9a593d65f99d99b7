"""What the language itself costs: many states at once on a backend that answers at once.

    python benchmark/language_overhead.py --states 1000 --gens 10

Three forms of the same program: plain without reads (its function returns at once), async with a
read after each output, and plain with such reads (functions that share a few threads). Prints the
median over the runs, and the spread, in microseconds for each gen; the goal is below 200.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import AsyncGenerator

from runtime import Program, ProgramState, function, gen
from runtime.lang.backends.protocol import Abilities, Output
from runtime.lang.choices import ChoiceScore, ChoicesMethod
from runtime.lang.expressions import LogprobRequest
from runtime.lang.sampling import FIELDS, Sampling
from runtime.lang.tools import ToolOffer
from runtime.lang.transcript import Prompt


class InstantBackend:
    """Answers every call with the same letter, without waiting."""

    name = "instant"
    abilities = Abilities(sampling_fields=frozenset(FIELDS), keeps_prefixes=False)
    timeout_seconds = 60.0

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        return [Output("o", {})]

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        yield Output("o", {})

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], method: ChoicesMethod, early_exit: bool
    ) -> list[ChoiceScore]:
        return [ChoiceScore((0,), (0.0,), None) for _ in choices]

    async def call_tools(
        self, prompt: Prompt, sampling: Sampling, offer: ToolOffer
    ) -> list[Output]:
        return [Output("o", {})]

    async def commit(self, prompt: Prompt) -> None:
        """Nothing to keep."""

    async def pin(self, prompt: Prompt, seconds: float) -> None:
        """As above."""


@function
def plain(s: ProgramState, num_gens: int) -> None:
    for _ in range(num_gens):
        s += "x" + gen("a", max_tokens=1)


@function
async def async_with_reads(s: ProgramState, num_gens: int) -> None:
    for _ in range(num_gens):
        s += "x" + gen("a", max_tokens=1)
        await s.aget("a")


@function
def plain_with_reads(s: ProgramState, num_gens: int) -> None:
    for _ in range(num_gens):
        s += "x" + gen("a", max_tokens=1)
        s["a"]


PROGRAMS = {
    "plain": plain,
    "async with reads": async_with_reads,
    "plain with reads": plain_with_reads,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Overhead of the language for each gen.")
    parser.add_argument("--states", type=int, default=1000, help="states at once")
    parser.add_argument("--gens", type=int, default=10, help="gens of each state")
    parser.add_argument("--runs", type=int, default=5, help="runs, after one to warm up")
    args = parser.parse_args()
    for name, program in PROGRAMS.items():
        micros = [_micros_per_gen(program, args.states, args.gens) for _ in range(args.runs + 1)]
        measured = micros[1:]
        print(
            f"{name:17} {args.states} states  {statistics.median(measured):6.1f} us/gen "
            f"({min(measured):.1f} to {max(measured):.1f})"
        )


def _micros_per_gen(program: Program, num_states: int, num_gens: int) -> float:
    started = time.perf_counter()
    program.run_batch([(num_gens,)] * num_states, backend=InstantBackend(), concurrency=num_states)
    return (time.perf_counter() - started) / (num_states * num_gens) * 1e6


if __name__ == "__main__":
    main()
