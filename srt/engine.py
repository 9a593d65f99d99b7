"""Engine: the processes of a server without HTTP, for use inside a Python program.

Takes and gives what the native /generate route does, through the same code. Its event loop runs on
a thread of its own, so that it may be called from any thread, and from any event loop with
async_generate.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import dataclasses
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import uvloop

from .api.chat_prompt import chat_prompt
from .api.choice_job import ScoreBody, score_choices
from .api.generation import Completion, collect, follow_all, prepare_all
from .api.logprob_volume import CumulativePace
from .api.native_body import GenerateBody, NativeJob, native_job
from .api.native_reply import native_delta, native_reply
from .api.native_sampling import NativeSampling
from .api.pin_job import PinBody, pin_prefix, unpin_prefix
from .api.request_body import parse_body
from .api.sampling_defaults import SamplingDefaults, check_names, checked_preferred
from .api.tokenize_routes import TokenizeBody
from .errors import BadRequest, ConfigError, EngineDied, NotFound, did_you_mean
from .messages import GenerateRequest
from .processes.engine_client import EngineClient
from .processes.launcher import EngineProcesses
from .server_args import ServerArgs

if TYPE_CHECKING:
    from .api.chat_job import ChatBody
T = TypeVar("T")
Reply = dict[str, Any]  # JSON: {"text", "output_ids", "meta_info"}
SamplingFields = dict[str, Any]  # JSON: the fields of sampling_params

_SHUTDOWN_SECONDS = 10.0


class Engine:
    """A model in processes of its own; use as a context manager, or call shutdown().

    Takes ServerArgs' fields by keyword (those about HTTP have no effect), and model as another name
    of model_path. Raises ConfigError, ModelLoadError or EngineStartFailed if it cannot start. Call
    its methods from any thread.
    """

    def __init__(self, **settings: Any) -> None:  # one keyword per ServerArgs field, checked there
        self.args = ServerArgs(**{"log_level": "warning", **_known_settings(settings)})
        checked_preferred(self.args)
        self._loop = uvloop.new_event_loop()
        self._processes: EngineProcesses | None = None
        self._is_shut_down = False
        self._shutdown_lock = threading.Lock()
        # Started by hand, not by an executor: children die with the thread that starts them.
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)
        try:
            self._client: EngineClient = self._call(self._start())
            config = self._client.model_config
            self._defaults = SamplingDefaults(
                self.args, config.generation_defaults, config.vocab_size
            )
        except BaseException:
            self.shutdown()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, with encode and decode."""
        return self._client.tokenizer

    @property
    def child_pids(self) -> dict[str, int]:
        """Process ids of the scheduler and the detokenizer, by name."""
        return {} if self._processes is None else self._processes.pids

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: SamplingFields | list[SamplingFields] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:  # by the arguments a Reply, a list of them, or an iterator
        """Continue one prompt or a batch; return what /generate would: a dict, or a list of them.

        fields are the other fields of its body (return_logprob, top_logprobs_num, rid, cache_salt,
        ...). stream: an iterator whose items hold all text so far, as the server's chunks do;
        closing it aborts the request. Raises the ServingError of a refused or failed request.
        """
        job, body = self._job(prompt, sampling_params, input_ids, stream, fields)
        if stream:
            return self._iterate(job, body)
        return self._call(self._answer(job, body))

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: SamplingFields | list[SamplingFields] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        stream: bool = False,
        **fields: Any,
    ) -> Any:  # as above; the iterator is an async one
        """Do the same on the caller's event loop; cancelling aborts the request."""
        job, body = self._job(prompt, sampling_params, input_ids, stream, fields)
        if stream:
            return self._iterate_async(job, body)
        return await asyncio.wrap_future(self._submit(self._answer(job, body)))

    def score_choices(
        self,
        text: str | None = None,
        choices: list[str] | None = None,
        *,
        input_ids: list[int] | None = None,
        **fields: Any,
    ) -> Reply:
        """Score choices after a prompt in one request; return what /score_choices would.

        fields are the other fields of its body (choices_method, early_exit, cache_salt, ...).
        Raises the ServingError of a refused or failed request.
        """
        return self._call(self._scores(text, choices, input_ids, fields))

    async def async_score_choices(
        self,
        text: str | None = None,
        choices: list[str] | None = None,
        *,
        input_ids: list[int] | None = None,
        **fields: Any,
    ) -> Reply:
        """Do the same on the caller's event loop; cancelling aborts the request."""
        work = self._scores(text, choices, input_ids, fields)
        return await asyncio.wrap_future(self._submit(work))

    async def async_chat(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        """Answer a conversation, on the caller's event loop; cancelling aborts the request.

        Takes and returns what /v1/chat/completions does, but no stream: fields are the other fields
        of its body (max_tokens, tools, ...). Raises the ServingError of a refused request.
        """
        # Late: most engines are asked for no chat.
        from .api.chat_job import ChatBody

        check_names("async_chat's argument", fields, ChatBody)
        if fields.get("stream"):
            raise BadRequest(
                "async_chat gives whole answers only; leave stream out", param="stream"
            )
        _check_finite(fields)
        body = parse_body(_json({"messages": messages, **fields}), ChatBody)
        return await asyncio.wrap_future(self._submit(self._chat(body)))

    def encode_messages(
        self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Return the token ids of a conversation in the model's chat template, as /tokenize would.

        Raises BadRequest, also if the model has no template.
        """
        body = parse_body(_json({"messages": messages}), TokenizeBody)
        text = chat_prompt(
            self._client,
            body.messages or [],
            add_generation_prompt=add_generation_prompt,
            continue_final_message=None,
            template_fields=None,
        )
        return self._client.tokenizer.encode(text, add_special_tokens=False)

    def flush_cache(self, timeout_seconds: float = 30.0) -> bool:
        """Empty the prefix cache as soon as the engine is idle; return whether it came to that."""
        return self._call(self._client.flush_cache(timeout_seconds)).success

    def pin_prefix(
        self,
        text: str | None = None,
        ttl_seconds: float = 3600.0,
        *,
        input_ids: list[int] | None = None,
        messages: list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Reply:
        """Compute a prefix and keep it cached for ttl_seconds; return what /pin_prefix would.

        One of text, input_ids and messages; fields are the other fields of its body (cache_salt,
        extra_key, ...). Raises BadRequest when the share of the pool for pins has no room for it.
        """
        check_names("pin_prefix's argument", fields, PinBody)
        values = {
            "text": text,
            "input_ids": input_ids,
            "messages": messages,
            "ttl_seconds": ttl_seconds,
            **fields,
        }
        _check_finite({"ttl_seconds": ttl_seconds})
        return self._call(pin_prefix(self._client, parse_body(_json(values), PinBody)))

    def unpin_prefix(self, pin_id: str) -> bool:
        """End a pin before its time; return whether there still was one with this id."""
        try:
            self._call(unpin_prefix(self._client, pin_id))
        except NotFound:
            return False
        return True

    def abort(self, rid: str | None = None) -> bool:
        """Abort the request with this id, or all (None); return whether there was any."""
        return self._call(self._client.abort(rid))

    def server_info(self) -> dict[str, Any]:
        """Return settings, the engine's facts, and what the scheduler holds now, as JSON types."""
        client = self._client
        state = self._call(client.state())
        kv, facts = state.kv, client.facts
        return {
            **self.args.public_dict(),
            "max_total_num_tokens": facts.max_total_tokens,
            "max_model_len": facts.context_length,
            "max_running_requests": facts.max_running_requests,
            "kv_pool_bytes": facts.kv_pool_bytes,
            "weight_bytes": facts.weight_bytes,
            "weight_form": facts.weight_form,
            "dtype": facts.dtype,
            "device": facts.device,
            "threads": facts.threads,
            "attention_backend": facts.attention_backend,
            "num_running": state.num_running,
            "num_waiting": state.num_waiting,
            "kv": {
                "total": kv.total,
                "available": kv.available,
                "evictable": kv.evictable,
                "protected": kv.protected,
                "held": kv.held,
                "pinned": kv.pinned,
            },
            "num_pins": state.num_pins,
            "pin_limit_tokens": state.pin_limit_tokens,
            "num_retractions": state.counters.retractions,
            "num_preemptions": state.counters.preemptions,
        }

    def shutdown(self) -> None:
        """End the processes, free everything; open requests get EngineDied. Safe to call again."""
        with self._shutdown_lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
            atexit.unregister(self.shutdown)
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_SHUTDOWN_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_SHUTDOWN_SECONDS)
            self._loop.close()

    async def _start(self) -> EngineClient:
        self._processes = EngineProcesses(self.args, lambda reason: None)
        client = await self._processes.start()
        if not self.args.skip_server_warmup:
            await self._processes.warm_up()
        client.status = "up"
        return client

    async def _stop(self) -> None:
        if self._processes is not None:
            await self._processes.stop()
        # Those who wait for an answer see EngineDied before the loop goes.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=1.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _job(
        self,
        prompt: str | list[str] | None,
        sampling_params: SamplingFields | list[SamplingFields] | None,
        input_ids: list[int] | list[list[int]] | None,
        stream: bool,
        fields: dict[str, Any],
    ) -> tuple[NativeJob, GenerateBody]:
        # Over HTTP fields that look like none of ours are ignored; who calls from Python is told.
        check_names("generate's argument", fields, GenerateBody)
        for one in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
            if isinstance(one, dict):
                check_names("the sampling field", one, NativeSampling)
        values = {
            "text": prompt,
            "sampling_params": sampling_params,
            "input_ids": input_ids,
            "stream": stream,
            **fields,
        }
        _check_finite(sampling_params)
        body = parse_body(_json(values), GenerateBody)
        return native_job(body, self._defaults), body

    async def _prepare(self, job: NativeJob) -> list[GenerateRequest]:
        prepared = await prepare_all(self._client, job.specs)
        return [request for samples in prepared for request in samples]

    async def _answer(self, job: NativeJob, body: GenerateBody) -> Reply | list[Reply]:
        completions = await collect(self._client, await self._prepare(job))
        replies = [self._reply(one, body) for one in completions]
        return replies if job.is_list else replies[0]

    async def _events(self, job: NativeJob, body: GenerateBody) -> AsyncGenerator[Reply, None]:
        requests = await self._prepare(job)
        completions = [Completion(request) for request in requests]
        paces = [CumulativePace() for _ in requests]
        async with aclosing(follow_all(self._client, requests)) as deltas:
            async for index, delta in deltas:
                completion = completions[index]
                completion.add(delta)
                incremental = self.args.incremental_streaming_output
                if not incremental and not paces[index].is_due(completion):
                    continue
                if incremental:
                    reply = native_delta(completion, delta.text, self._token_text(body))
                else:
                    reply = self._reply(completion, body)
                if job.is_list:
                    reply["index"] = index
                yield reply

    async def _chat(self, body: ChatBody) -> Reply:
        from .api.chat_job import chat_job
        from .api.chat_reply import chat_reply
        from .api.context import ApiContext
        from .api.metrics import ServerMetrics

        metrics = ServerMetrics(self.args.model_name)  # observes nothing: it is added to no client
        context = ApiContext(self._client, self.args, metrics, self._defaults)
        job = await chat_job(context, body)
        return chat_reply(context, job, await collect(self._client, job.requests))

    def _reply(self, completion: Completion, body: GenerateBody) -> Reply:
        # A copy: what was handed out must not grow while the request goes on.
        reply = native_reply(completion, self._token_text(body), bool(body.return_prompt_token_ids))
        return {**reply, "output_ids": list(reply["output_ids"])}

    async def _scores(
        self,
        text: str | None,
        choices: list[str] | None,
        input_ids: list[int] | None,
        fields: dict[str, Any],
    ) -> Reply:
        check_names("score_choices' argument", fields, ScoreBody)
        _check_finite(fields)
        values = {"text": text, "choices": choices, "input_ids": input_ids, **fields}
        given = {name: value for name, value in values.items() if value is not None}
        return await score_choices(self._client, parse_body(_json(given), ScoreBody))

    def _token_text(self, body: GenerateBody) -> Any:
        return self._client.tokenizer.token_text if body.return_text_in_logprobs else None

    def _iterate(self, job: NativeJob, body: GenerateBody) -> Iterator[Reply]:
        events = _Replies(self._events(job, body))
        try:
            while (reply := self._call(events.next())) is not None:
                yield reply
        finally:
            if not self._is_shut_down:
                self._call(events.close())

    async def _iterate_async(self, job: NativeJob, body: GenerateBody) -> AsyncIterator[Reply]:
        events = _Replies(self._events(job, body))
        try:
            while True:
                reply = await asyncio.wrap_future(self._submit(events.next()))
                if reply is None:
                    return
                yield reply
        finally:
            if not self._is_shut_down:
                # Shielded: the caller may be cancelling this very task.
                await asyncio.shield(asyncio.wrap_future(self._submit(events.close())))

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._is_shut_down:
            work.close()
            raise EngineDied("the engine was shut down; make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # ctrl-C while waiting ends the request too
            raise


def _known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings with model as model_path; raises ConfigError for a name that is no field."""
    if "model" in settings:
        if "model_path" in settings:
            raise ConfigError("model and model_path are given, and mean the same; leave one out")
        settings = {("model_path" if k == "model" else k): v for k, v in settings.items()}
    known = [one.name for one in dataclasses.fields(ServerArgs)]
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"Engine takes no argument {name!r}{did_you_mean(name, [*known, 'model'])}"
            )
    return settings


class _Replies:
    """A generator of replies whose close() may come while next() is being cancelled."""

    def __init__(self, events: AsyncGenerator[Reply, None]) -> None:
        self._events = events
        self._turn = asyncio.Lock()

    async def next(self) -> Reply | None:
        async with self._turn:
            return await anext(self._events, None)

    async def close(self) -> None:
        async with self._turn:
            await self._events.aclose()


def _json(values: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:
        raise BadRequest(f"a field is not of a JSON type: {error}") from None


def _check_finite(sampling_params: object) -> None:
    """Raise BadRequest for NaN and infinity, which JSON would turn into "not set"."""
    for one in sampling_params if isinstance(sampling_params, list) else [sampling_params]:
        for name, value in one.items() if isinstance(one, dict) else ():
            numbers = value.values() if isinstance(value, dict) else [value]
            for number in numbers:
                if isinstance(number, float) and not math.isfinite(number):
                    raise BadRequest(f"{name} is {number}; it must be a number", param=name)
