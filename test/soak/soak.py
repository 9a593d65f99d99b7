"""Thousands of mixed requests against a server whose KV pool is a tenth of the demand.

    .venv/bin/python test/soak/soak.py --requests 5000 --concurrency 24 --seed 1

Chats with a growing history, completions, native requests, streams, batches, samples, logprobs and
stop strings; clients that hang up, aborts by id, and requests that must be refused. At the end: no
error but those asked for, exact accounting of the pool, memory as after the warm-up. Prints one
JSON object; exits with 1 if any of that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.server import Server, start_server

MAX_TOKENS = 16
PROMPT_WORDS = 60
CALL_TIMEOUT_SECONDS = 600.0
WARM_UP_SHARE = 0.2  # of the requests: caches of every kind fill before memory is first read
MEMORY_GROWTH_LIMIT = 1.05
SAMPLE_EVERY = 100  # requests between two readings of memory
WORDS = "river mill town family bread stone winter letter road garden silver evening".split()

Job = Callable[["Soak", random.Random], Awaitable[str]]


@dataclass
class Soak:
    """One run: its client, what came back, and what should not have."""

    http: httpx.AsyncClient
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON answer to a request that must succeed."""
        response = await self.http.post(path, json=body)
        if response.status_code != 200:
            raise AssertionError(f"{path} answered {response.status_code}: {response.text[:200]}")
        return response.json()

    def count_openai(self, usage: dict[str, Any]) -> None:
        """Add up an OpenAI usage object."""
        self.prompt_tokens += usage["prompt_tokens"]
        self.completion_tokens += usage["completion_tokens"]
        self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]

    def count_native(self, info: dict[str, Any]) -> None:
        """Add up a native meta_info."""
        self.prompt_tokens += info["prompt_tokens"]
        self.completion_tokens += info["completion_tokens"]
        self.cached_tokens += info["cached_tokens"]


def _text(rng: random.Random) -> str:
    """A prompt that begins with one of a few shared prefixes, or is unique."""
    shared = rng.random() < 0.6
    prefix = random.Random(rng.randrange(24)) if shared else rng
    words = prefix.choices(WORDS, k=rng.choice((10, 30, PROMPT_WORDS)) if shared else PROMPT_WORDS)
    return " ".join(words + rng.choices(WORDS, k=rng.randrange(1, 12))) + f" {rng.random():.6f}"


def _sampling(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": rng.choice((0, 0.7, 1.0))}
    if rng.random() < 0.3:
        fields["stop"] = rng.sample(("the", ".", "\n", "e a", "zq"), k=rng.randrange(1, 4))
    if rng.random() < 0.2:
        fields |= {"top_p": 0.9, "top_k": 40, "min_p": 0.01}
    if rng.random() < 0.2:
        fields |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
    if rng.random() < 0.3:
        fields["ignore_eos"] = True
    return fields


async def chat(soak: Soak, rng: random.Random) -> str:
    """A conversation of one to three turns."""
    messages = [{"role": "user", "content": _text(rng)}]
    for _ in range(rng.randrange(1, 4)):
        body = {"messages": messages, "max_tokens": rng.randrange(1, MAX_TOKENS)}
        answer = await soak.post("/v1/chat/completions", {**body, **_sampling(rng)})
        soak.count_openai(answer["usage"])
        messages.append(answer["choices"][0]["message"])
        messages.append({"role": "user", "content": "And then?"})
    return "chat"


async def completion(soak: Soak, rng: random.Random) -> str:
    """One or more prompts, some with samples, scores and an echo."""
    prompts = [_text(rng) for _ in range(rng.randrange(1, 4))]
    body: dict[str, Any] = {"prompt": prompts, "max_tokens": rng.randrange(0, MAX_TOKENS)}
    body |= {"n": rng.randrange(1, 4), **_sampling(rng)}
    if rng.random() < 0.4:
        body |= {"logprobs": rng.randrange(0, 5), "echo": rng.random() < 0.5}
    answer = await soak.post("/v1/completions", body)
    assert len(answer["choices"]) == len(prompts) * body["n"], "choices are missing"
    soak.count_openai(answer["usage"])
    return "completion"


async def native(soak: Soak, rng: random.Random) -> str:
    """A native request, some with logprobs of the prompt or a namespace."""
    sampling = {**_sampling(rng), "max_new_tokens": rng.randrange(0, MAX_TOKENS)}
    body: dict[str, Any] = {"text": _text(rng), "sampling_params": sampling}
    if rng.random() < 0.3:
        body |= {"return_logprob": True, "logprob_start_len": rng.randrange(0, 8)}
        body |= {"top_logprobs_num": rng.randrange(0, 4)}
    if rng.random() < 0.2:
        body["cache_salt"] = rng.choice("abc")
    soak.count_native((await soak.post("/generate", body))["meta_info"])
    return "native"


async def stream(soak: Soak, rng: random.Random) -> str:
    """A stream read to its end, which must come once per choice."""
    num_choices = rng.randrange(1, 3)
    body = {"prompt": _text(rng), "max_tokens": MAX_TOKENS, "n": num_choices, "stream": True}
    body |= {"stream_options": {"include_usage": True}, **_sampling(rng)}
    num_finished, ended = 0, False
    async with soak.http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, f"a stream began with {response.status_code}"
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                ended = True
            elif line:
                payload = json.loads(line.removeprefix("data: "))
                assert "error" not in payload, payload
                num_finished += sum(one["finish_reason"] is not None for one in payload["choices"])
                if payload["usage"] is not None:
                    soak.count_openai(payload["usage"])
    assert ended and num_finished == num_choices, f"{num_finished} of {num_choices} ended"
    return "stream"


async def long_answer(soak: Soak, rng: random.Random) -> str:
    """An answer longer than admission expects: in a small pool somebody must give way."""
    limit = rng.randrange(40, 120)
    sampling = {"max_new_tokens": limit, "temperature": 1.0, "logit_bias": {"0": -100, "2": -100}}
    answer = await soak.post("/generate", {"text": _text(rng), "sampling_params": sampling})
    assert answer["meta_info"]["completion_tokens"] == limit, "a long answer was cut"
    soak.count_native(answer["meta_info"])
    return "long answer"


async def leaving_stream(soak: Soak, rng: random.Random) -> str:
    """A stream whose client hangs up after a few events."""
    sampling = {"max_new_tokens": 200, "ignore_eos": True}
    body = {"text": _text(rng), "sampling_params": sampling, "stream": True}
    num_wanted = rng.randrange(0, 5)
    async with soak.http.stream("POST", "/generate", json=body) as response:
        assert response.status_code == 200, f"a stream began with {response.status_code}"
        num_seen = 0
        async for _ in response.aiter_lines():
            num_seen += 1
            if num_seen > num_wanted:
                break
    return "left a stream"


async def leaving_wait(soak: Soak, rng: random.Random) -> str:
    """A request whose client gives up waiting, at any moment of its life."""
    sampling = {"max_new_tokens": 200, "ignore_eos": True, "n": rng.randrange(1, 3)}
    body = {"text": _text(rng), "sampling_params": sampling}
    try:
        await asyncio.wait_for(soak.http.post("/generate", json=body), rng.random())
    except TimeoutError:
        return "gave up waiting"
    return "native"


async def aborted(soak: Soak, rng: random.Random) -> str:
    """A request that is aborted by its id, at any moment of its life."""
    rid = f"abort-{rng.getrandbits(64):x}"
    sampling = {"max_new_tokens": 200, "ignore_eos": True}
    body = {"text": _text(rng), "sampling_params": sampling, "rid": rid}
    answer = asyncio.ensure_future(soak.post("/generate", body))
    await asyncio.sleep(rng.random())
    await soak.post("/abort_request", {"rid": rid})
    reason = (await answer)["meta_info"]["finish_reason"]["type"]
    assert reason in ("abort", "length"), reason
    return f"ended by {reason} after an abort"


async def refused(soak: Soak, rng: random.Random) -> str:
    """A request that must get a 400."""
    wrong: dict[str, Any] = rng.choice(
        ({"temperature": -1}, {"n": 0}, {"prompt": [-1]}, {"prompt": ""}, {"max_tokens": 10**7})
    )
    response = await soak.http.post("/v1/completions", json={"prompt": "x", **wrong})
    assert response.status_code == 400, f"{wrong} was answered with {response.status_code}"
    return "refused"


JOBS: dict[Job, int] = {
    chat: 22,
    completion: 18,
    native: 15,
    stream: 15,
    long_answer: 8,
    leaving_stream: 7,
    leaving_wait: 5,
    aborted: 5,
    refused: 5,
}


async def run_jobs(soak: Soak, args: argparse.Namespace, server: Server) -> list[int]:
    """Run all jobs, --concurrency at once; return memory readings in bytes, in order."""
    numbers = iter(range(args.requests))
    memory: list[int] = []

    async def worker() -> None:
        for number in numbers:
            rng = random.Random(args.seed * 1_000_003 + number)
            (job,) = rng.choices(list(JOBS), weights=list(JOBS.values()))
            try:
                soak.outcomes[await job(soak, rng)] += 1
            except Exception as error:  # any kind is a finding: it is counted and shown
                soak.failures.append(f"request {number}, {job.__name__}: {error!r}")
            if number % SAMPLE_EVERY == 0:
                memory.append(_memory_bytes(server))
                print(f"{number} of {args.requests}", file=sys.stderr, flush=True)

    await asyncio.gather(*(worker() for _ in range(args.concurrency)))
    return memory


async def settle(soak: Soak) -> dict[str, int]:
    """Wait until nothing is open; return the pool's accounting."""
    deadline = time.monotonic() + 60
    while True:
        state = (await soak.http.get("/server_info")).json()["internal_states"][0]
        kv: dict[str, int] = (await soak.http.get("/kv_stats")).json()
        is_idle = state["num_running_reqs"] == state["num_queue_reqs"] == 0
        if is_idle or time.monotonic() > deadline:
            return {**kv, "running": state["num_running_reqs"], "queued": state["num_queue_reqs"]}
        await asyncio.sleep(0.1)


def _memory_bytes(server: Server) -> int:
    """Resident bytes of all the server's processes, shared pages counted once."""
    root = psutil.Process(server.process.pid)
    return sum(one.memory_full_info().pss for one in (root, *root.children(recursive=True)))


def _flatness(memory: list[int]) -> dict[str, float]:
    """Compare the quarter after the warm-up with the last one, by their medians."""
    settled = memory[int(len(memory) * WARM_UP_SHARE) :]
    quarter = max(1, len(settled) // 4)

    def median_mib(values: list[int]) -> float:
        return round(sorted(values)[len(values) // 2] / 2**20, 1)

    before, after = median_mib(settled[:quarter]), median_mib(settled[-quarter:])
    return {"before_mib": before, "after_mib": after, "growth": round(after / before, 4)}


def problems_of(summary: dict[str, Any]) -> list[str]:
    """Return what is wrong with a run, in words; empty if nothing is."""
    kv, found = summary["kv"], []
    if summary["num_failures"]:
        found.append(f"{summary['num_failures']} requests failed")
    if kv["available"] + kv["evictable"] != kv["total"] or kv["protected"] or kv["held"]:
        found.append(f"the pool's accounting is off: {kv}")
    if kv["running"] or kv["queued"]:
        found.append("requests are still open")
    if summary["memory"]["growth"] > MEMORY_GROWTH_LIMIT:
        found.append(f"memory grew: {summary['memory']}")
    return found


async def soak_server(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """Run all requests against server and return what came of it."""
    limits = httpx.Limits(max_connections=4 * args.concurrency)
    started = time.monotonic()
    async with httpx.AsyncClient(
        base_url=server.base_url, timeout=CALL_TIMEOUT_SECONDS, limits=limits
    ) as http:
        soak = Soak(http)
        memory = await run_jobs(soak, args, server)
        kv = await settle(soak)
        counters = (await http.get("/server_info")).json()["internal_states"][0]["counters"]
    memory.append(_memory_bytes(server))
    return {
        "requests": args.requests,
        "seconds": round(time.monotonic() - started, 1),
        "outcomes": dict(soak.outcomes),
        "num_failures": len(soak.failures),
        "failures": soak.failures[:10],
        "prompt_tokens": soak.prompt_tokens,
        "completion_tokens": soak.completion_tokens,
        "cached_tokens": soak.cached_tokens,
        "counters": counters,
        "kv": kv,
        "memory": _flatness(memory),
    }


def main() -> int:
    """Start a server, run the soak, print its summary; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=5000, help="jobs to run (default: 5000)")
    parser.add_argument("--concurrency", type=int, default=24, help="jobs at once (default: 24)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the jobs (default: 1)")
    args = parser.parse_args()
    # What all jobs at once would need: two requests each, about 120 prompt tokens and an output.
    demand_tokens = args.concurrency * 2 * (2 * PROMPT_WORDS + MAX_TOKENS)
    pool_tokens = max(demand_tokens // 10, 512)
    flags = ("--max-total-tokens", str(pool_tokens), "--random-seed", str(args.seed))
    with start_server(*flags, env={"OMP_WAIT_POLICY": "passive"}) as server:
        summary = asyncio.run(soak_server(server, args))
    summary["problems"] = problems_of(summary)
    print(json.dumps(summary, indent=2))
    return 1 if summary["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
