"""Engine: the same processes without HTTP, from plain Python, threads and event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from runtime import Engine
from runtime.srt.errors import BadRequest, EngineDied, ModelLoadError

GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12}
LONG: dict[str, Any] = {"temperature": 0, "max_new_tokens": 2000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(max_total_tokens=8192, threads=1, skip_server_warmup=True) as running:
        yield running


def test_generate_gives_text_ids_and_meta_info(engine: Engine) -> None:
    reply = engine.generate("The capital of France is", GREEDY)

    assert isinstance(reply, dict)
    assert reply["text"].startswith(" Paris")
    assert engine.tokenizer.decode(reply["output_ids"]) == reply["text"]
    assert reply["meta_info"]["completion_tokens"] == len(reply["output_ids"]) == 12
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 12}


def test_a_batch_of_ids_answers_in_order_and_equals_single_calls(engine: Engine) -> None:
    prompts = ["One, two, three,", "The sky is", "Water is made of"]
    ids = [engine.tokenizer.encode(prompt) for prompt in prompts]

    batch = engine.generate(input_ids=ids, sampling_params=GREEDY)
    singles = [engine.generate(prompt, GREEDY) for prompt in prompts]

    assert isinstance(batch, list)
    assert [one["text"] for one in batch] == [one["text"] for one in singles]


def test_streamed_text_grows_to_the_whole_text(engine: Engine) -> None:
    whole = engine.generate("Once upon a time", GREEDY)
    pieces = list(engine.generate("Once upon a time", GREEDY, stream=True))

    texts = [piece["text"] for piece in pieces]
    assert len(texts) > 3
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:], strict=False))
    assert texts[-1] == whole["text"]


def test_a_stream_that_is_left_aborts_its_request(engine: Engine) -> None:
    stream = engine.generate("Once upon a time", LONG, stream=True)
    next(stream)
    assert engine.server_info()["num_running"] == 1

    stream.close()

    assert engine.flush_cache(timeout_seconds=5)
    assert engine.server_info()["num_running"] == 0


def test_async_calls_run_side_by_side_on_the_callers_loop(engine: Engine) -> None:
    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(
            engine.async_generate("Hello", GREEDY), engine.async_generate("The sky is", GREEDY)
        )

    async def streamed() -> list[str]:
        pieces = await engine.async_generate("Hello", GREEDY, stream=True)
        return [piece["text"] async for piece in pieces]

    first, second = asyncio.run(both())
    texts = asyncio.run(streamed())

    assert first["text"] == texts[-1]
    assert second["text"] == engine.generate("The sky is", GREEDY)["text"]


def test_a_cancelled_async_call_aborts_its_request(engine: Engine) -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.async_generate("Once upon a time", LONG), 0.5)

    asyncio.run(cancelled())

    assert engine.flush_cache(timeout_seconds=5)


def test_many_threads_may_call_at_once(engine: Engine) -> None:
    replies: dict[int, Any] = {}

    def call(index: int) -> None:
        replies[index] = engine.generate("The sky is", GREEDY)

    threads = [threading.Thread(target=call, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len({replies[index]["text"] for index in range(6)}) == 1


def test_mistakes_raise_errors_that_name_the_field(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="temperature"):
        engine.generate("Hello", {"temperature": -1})
    with pytest.raises(BadRequest, match="no_such_field"):
        engine.generate("Hello", no_such_field=1)
    with pytest.raises(BadRequest, match="prompt"):
        engine.generate()


def test_shutdown_ends_open_requests_and_may_be_repeated() -> None:
    engine = Engine(max_total_tokens=2048, threads=1, skip_server_warmup=True)
    children = psutil.Process().children()
    stream = engine.generate("Once upon a time", LONG, stream=True)
    next(stream)

    engine.shutdown()
    engine.shutdown()

    with pytest.raises(EngineDied):
        list(stream)
    with pytest.raises(EngineDied):
        engine.generate("Hello", GREEDY)
    _, alive = psutil.wait_procs([one for one in children if _is_of(one, engine)], timeout=5)
    assert not alive


def test_a_dead_child_raises_in_open_and_later_calls() -> None:
    with Engine(max_total_tokens=2048, threads=1, skip_server_warmup=True) as engine:
        stream = engine.generate("Once upon a time", LONG, stream=True)
        next(stream)

        psutil.Process(engine.child_pids["scheduler"]).kill()

        with pytest.raises(EngineDied, match="scheduler process was killed by SIGKILL"):
            list(stream)
        with pytest.raises(EngineDied, match="ended"):
            engine.generate("Hello", GREEDY)


def test_a_model_that_cannot_be_found_raises_and_leaves_no_process() -> None:
    before = {one.pid for one in psutil.Process().children()}

    with pytest.raises(ModelLoadError, match="no-such-model"):
        Engine(model_path="no-such-model")

    assert {one.pid for one in psutil.Process().children()} <= before


def test_a_script_needs_no_main_guard_and_no_shutdown(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from runtime import Engine

            sampling = {"temperature": 0, "max_new_tokens": 2}
            engine = Engine(max_total_tokens=2048, threads=1, skip_server_warmup=True)
            print(engine.generate("The capital of France is", sampling)["text"])
            """
        )
    )

    result = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100
    )

    assert result.stderr == ""
    assert result.stdout.strip() == "Paris."
    assert result.returncode == 0


def _is_of(process: psutil.Process, engine: Engine) -> bool:
    return process.pid in engine.child_pids.values()


def test_numbers_that_json_cannot_carry_are_refused_by_name(engine: Engine) -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(BadRequest, match="temperature"):
            engine.generate("a", {"temperature": value})
    biased = engine.generate("a", {"logit_bias": {100: 5}, "max_new_tokens": 1})
    assert biased["meta_info"]["completion_tokens"] == 1


def test_a_pinned_prefix_is_kept_for_its_time_or_until_it_is_unpinned(engine: Engine) -> None:
    text = "You are the keeper of a lighthouse. Answer in one short sentence. "
    pin = engine.pin_prefix(text, ttl_seconds=600)
    info = engine.server_info()
    reply = engine.generate(text + "Is it late?", GREEDY)

    assert info["num_pins"] == 1
    assert info["kv"]["pinned"] == pin["num_tokens"] > 10
    assert reply["meta_info"]["cached_tokens"] >= pin["num_tokens"] - 1
    assert engine.unpin_prefix(pin["pin_id"])
    assert not engine.unpin_prefix(pin["pin_id"])
    assert engine.server_info()["num_pins"] == 0
    with pytest.raises(BadRequest, match="ttl_seconds is 0"):
        engine.pin_prefix(text, ttl_seconds=0)
    with pytest.raises(BadRequest, match="argument 'ttl'"):
        engine.pin_prefix(text, ttl=5)


def test_streamed_replies_with_many_logprobs_come_less_often_as_they_grow(engine: Engine) -> None:
    params = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
    replies = list(
        engine.generate("Once", params, stream=True, return_logprob=True, top_logprobs_num=100)
    )

    lengths = [len(one["meta_info"]["output_token_logprobs"]) for one in replies]
    assert lengths == sorted(lengths) and lengths[-1] == 200
    # One a token up to 2000 values, then one for each sixteenth more: 19 + ln(200 / 19) * 17.
    assert len(replies) < 80
    assert sum(lengths) < 20 * 200, "what is repeated stays a small multiple of what is told"
