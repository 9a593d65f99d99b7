"""What a select costs, in generated tokens: both after one prompt that is cached.

    python benchmark/select_cost.py --choices 8 --prompt-tokens 500

Runs a program with one select and a program with a gen of one token in turn, on the same prompt, in
an Engine of its own or on the server at --url. Prints medians in milliseconds, their spread, and
the ratio of the medians; the goal is below 1.5. "shared" choices begin with the same two words, the
others differ from the first word on.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from contextlib import ExitStack
from typing import Any

from runtime import Engine, Program, ProgramState, RuntimeEndpoint, function, gen, select

MODEL = "smollm2-135m-instruct"
# One token each in the bundled model, with the space before them.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book"
).split()
VARIANTS: dict[str, dict[str, Any]] = {
    "select": {},
    "early exit": {"early_exit": True},
    "greedy": {"choices_method": "greedy_token_selection"},
    "greedy, early exit": {"choices_method": "greedy_token_selection", "early_exit": True},
    "unconditional": {"choices_method": "unconditional_likelihood_normalized"},
}


@function
def choose(s: ProgramState, prompt: str, choices: list[str], options: dict[str, Any]) -> None:
    s += prompt + select("choice", choices, **options)


@function
def write_one_token(s: ProgramState, prompt: str) -> None:
    s += prompt + gen("word", max_tokens=1, temperature=0)


def main() -> None:
    args = _parse_arguments()
    rng = random.Random(args.seed)
    prompt = " ".join(rng.choices(WORDS, k=args.prompt_tokens))
    sets = {
        "different": [_words(rng, args.choice_tokens, first) for first in _firsts(args.choices)],
        "shared": [" way of" + _words(rng, args.choice_tokens - 2) for _ in range(args.choices)],
    }
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        backend = _backend(stack, args)
        for kind, choices in sets.items():
            variants = VARIANTS if kind == "different" else {"select": {}}
            for name, options in variants.items():
                work = (prompt, choices, options)
                rows.append({"choices": kind, "variant": name, **_compare(backend, args, work)})
    if args.json:
        print(json.dumps({"settings": vars(args), "rows": rows}, indent=1))
        return
    for row in rows:
        print(
            f"{row['choices']:9} {row['variant']:18} one token {row['generate_ms']:6.1f} ms "
            f"({row['generate_min_ms']:.1f} to {row['generate_max_ms']:.1f})  select "
            f"{row['select_ms']:6.1f} ms ({row['select_min_ms']:.1f} to {row['select_max_ms']:.1f})"
            f"  ratio {row['ratio']:.2f}"
        )


def _compare(
    backend: Any, args: argparse.Namespace, work: tuple[str, list[str], dict[str, Any]]
) -> dict[str, float]:
    """Medians of both programs, which run in turn, after one run each to fill the cache."""
    times: dict[str, list[float]] = {"generate": [], "select": []}
    for _ in range(args.runs + 1):
        times["generate"].append(_milliseconds(write_one_token, backend, "word", work[0]))
        times["select"].append(_milliseconds(choose, backend, "choice", *work))
    found: dict[str, float] = {}
    for name, values in times.items():
        measured = values[1:]
        found[f"{name}_ms"] = statistics.median(measured)
        found[f"{name}_min_ms"], found[f"{name}_max_ms"] = min(measured), max(measured)
    found["ratio"] = found["select_ms"] / found["generate_ms"]
    return found


def _milliseconds(program: Program, backend: Any, variable: str, *arguments: Any) -> float:
    began = time.perf_counter()
    _ = program.run(*arguments, backend=backend)[variable]
    return (time.perf_counter() - began) * 1000


def _words(rng: random.Random, count: int, first: str | None = None) -> str:
    words = rng.choices(WORDS, k=count)
    if first is not None:
        words[0] = first
    return "".join(" " + word for word in words)


def _firsts(count: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(count)]


def _backend(stack: ExitStack, args: argparse.Namespace) -> Any:
    if args.url is not None:
        return stack.enter_context(RuntimeEndpoint(args.url))
    return stack.enter_context(Engine(model=args.model, max_total_tokens=16384))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A select beside the generation of one token.")
    parser.add_argument("--url", help="a running server; else an Engine is started")
    parser.add_argument("--model", default=MODEL, help="of the Engine")
    parser.add_argument("--choices", type=int, default=8)
    parser.add_argument("--choice-tokens", type=int, default=5, help="of each choice, at least 3")
    parser.add_argument("--prompt-tokens", type=int, default=500)
    parser.add_argument(
        "--runs", type=int, default=21, help="of each program, after one to warm up"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
