"""A real EngineClient over a fake engine: no process, no weights, tokens that the test chooses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from fastapi import FastAPI
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from runtime.grammars.matcher import GrammarError
from runtime.grammars.prepare import prepare
from runtime.srt.api.app import create_app
from runtime.srt.loading.model_config import ModelConfig, RopeConfig
from runtime.srt.messages import (
    AbortRequest,
    CheckGrammar,
    DecodeOptions,
    FinishReason,
    FlushCache,
    FlushDone,
    GenerateRequest,
    GrammarChecked,
    KvStats,
    PositionLogprobs,
    PrefixPin,
    Progress,
    Ready,
    SchedulerCounters,
    SchedulerReply,
    SchedulerState,
    StateQuery,
    TextBatch,
    TextDelta,
    ToScheduler,
    UnpinDone,
    UnpinPrefix,
)
from runtime.srt.processes.engine_client import EngineClient
from runtime.srt.processes.grammar_service import GrammarService
from runtime.srt.server_args import ServerArgs
from runtime.srt.tokenization.chat_template import ChatTemplate
from runtime.srt.tokenization.text_assembler import TextAssembler
from runtime.srt.tokenization.tokenizer import Tokenizer

VOCAB_SIZE = 258  # 256 bytes, <|start|> and <|end|>
END_ID = 257
CONTEXT_LENGTH = 512
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token per byte, of the same number."""
    vocabulary = {char: byte for byte, char in _byte_characters().items()}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>"), AddedToken("<|end|>")])
    return Tokenizer(backend, {"eos_token": "<|end|>"}, TEMPLATE)


class FakeEngine:
    """Answers like a scheduler and a detokenizer, one token per turn of the event loop.

    output gives a request's tokens (default: "abcdef..." up to max_new_tokens), finish its reason.
    While hold is True nothing is generated. With answers_queries False it is silent about its
    state, as one that is stopped. received has every message sent to the scheduler.
    """

    def __init__(self) -> None:
        self.received: list[ToScheduler] = []
        self.output: Callable[[GenerateRequest], list[int]] = _alphabet
        self.finish: Callable[[GenerateRequest], FinishReason] = _stop_or_length
        self.hold = False
        self.flush_succeeds = True
        self.answers_queries = True
        self.cached_tokens = 0
        self.client: EngineClient | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._pins: dict[str, int] = {}

    def send(self, message: ToScheduler) -> None:
        """Take a message from the client."""
        self.received.append(message)
        match message:
            case GenerateRequest():
                self._running[message.rid] = asyncio.ensure_future(self._generate(message))
            case AbortRequest():
                for rid in list(self._running) if message.rid is None else [message.rid]:
                    self._abort(rid)
            case FlushCache():
                text = "flushed" if self.flush_succeeds else "requests are running"
                self._reply(FlushDone(message.call_id, self.flush_succeeds, text))
            case UnpinPrefix():
                num_tokens = self._pins.pop(message.pin_id, None)
                self._reply(UnpinDone(message.call_id, num_tokens))
            case StateQuery():
                if not self.answers_queries:
                    return
                self._reply(self._state(message.call_id))
            case _:
                raise AssertionError(f"unexpected {message}")

    @property
    def requests(self) -> list[GenerateRequest]:
        """The requests that reached the scheduler."""
        return [one for one in self.received if isinstance(one, GenerateRequest)]

    @property
    def aborted(self) -> list[str | None]:
        """The ids that the client asked to abort."""
        return [one.rid for one in self.received if isinstance(one, AbortRequest)]

    async def _generate(self, request: GenerateRequest) -> None:
        ids = self.output(request)
        assembler = TextAssembler(byte_tokenizer(), DecodeOptions())
        for index, token_id in enumerate(ids or [None]):
            await asyncio.sleep(0)
            while self.hold:
                await asyncio.sleep(0.001)
            is_last = index >= len(ids) - 1
            new_ids = [] if token_id is None else [token_id]
            finish = self.finish(request) if is_last else None
            progress = self._progress(request, new_ids, index == 0, index + len(new_ids), finish)
            if finish is not None and finish.type != "abort" and request.pin_seconds is not None:
                pin = PrefixPin(len(request.input_ids), time.monotonic() + request.pin_seconds)
                progress = msgspec.structs.replace(progress, pin=pin)
                self._pins[request.rid] = pin.num_tokens
            self._deliver(TextDelta(assembler.push(new_ids, finish), progress))
        del self._running[request.rid]

    def _progress(
        self,
        request: GenerateRequest,
        ids: list[int],
        is_first: bool,
        num_done: int,
        finish: FinishReason | None,
    ) -> Progress:
        options = request.logprobs
        prompt_logprobs = output_logprobs = None
        if options is not None:
            output_logprobs = [_logprobs(request, token_id, 1) for token_id in ids]
            if is_first and options.prompt_start is not None:
                start = options.prompt_start
                prompt_logprobs = [
                    _logprobs(request, token_id, position)
                    for position, token_id in enumerate(request.input_ids[start:], start)
                ]
        return Progress(
            rid=request.rid,
            token_ids=ids,
            prompt_tokens=len(request.input_ids),
            completion_tokens=num_done,
            cached_tokens=self.cached_tokens,
            finish=finish,
            prompt_logprobs=prompt_logprobs,
            output_logprobs=output_logprobs,
            queue_seconds=0.001 if is_first else None,
        )

    def _abort(self, rid: str) -> None:
        task = self._running.pop(rid, None)
        if task is None:
            return
        task.cancel()
        progress = Progress(
            rid=rid,
            token_ids=[],
            prompt_tokens=1,
            completion_tokens=0,
            cached_tokens=0,
            finish=FinishReason(type="abort"),
        )
        asyncio.get_running_loop().call_soon(self._deliver, TextDelta("", progress))

    def _deliver(self, delta: TextDelta) -> None:
        assert self.client is not None
        self.client.receive(TextBatch([delta]))

    def _reply(self, message: SchedulerReply) -> None:
        assert self.client is not None
        asyncio.get_running_loop().call_soon(self.client.receive, message)

    def _state(self, call_id: int) -> SchedulerState:
        return SchedulerState(
            call_id=call_id,
            kv=KvStats(4096, 4000, 96, 0, 0),
            num_running=len(self._running),
            num_waiting=0,
            new_token_ratio=0.5,
            generated_tokens_per_second=0.0,
            counters=SchedulerCounters(requests=len(self.requests), cached_prompt_tokens=7),
        )


class FakeGrammarWorker:
    """Checks grammars as the worker process does, but compiles nothing."""

    is_ready = True
    hold = False  # do not answer

    def __init__(self, receive: Callable[[GrammarChecked], None]) -> None:
        self._receive = receive

    def send(self, message: CheckGrammar) -> None:
        if self.hold:
            return
        try:
            answer = GrammarChecked(message.call_id, prepare(message.spec))
        except GrammarError as error:
            answer = GrammarChecked(message.call_id, error=str(error))
        asyncio.get_running_loop().call_soon(self._receive, answer)

    def kill(self) -> None:
        pass


class FakeServer:
    """An app over a fake engine, called without sockets."""

    def __init__(self, **settings: Any) -> None:
        generation_defaults = settings.pop("generation_defaults", {})
        pool_tokens = settings.pop("pool_tokens", 4096)
        context_length = settings.pop("context_length", CONTEXT_LENGTH)
        tokenizer = byte_tokenizer()
        args = ServerArgs(**{"model_path": "some/tiny-model", **settings})
        facts = Ready(
            process="scheduler",
            max_total_tokens=pool_tokens,
            context_length=context_length,
            dtype="float32",
            device="cpu",
            threads=3,
        )
        self.engine = FakeEngine()
        self.client = EngineClient(
            args,
            tokenizer,
            ChatTemplate(TEMPLATE, tokenizer.special_tokens),
            _model_config(generation_defaults),
            facts,
            self.engine,
            GrammarService(self._start_grammar_worker, cpu_seconds=30.0),
        )
        self.client.status = "up"
        self.engine.client = self.client
        self.app: FastAPI = create_app(self.client, args)

    def _start_grammar_worker(self) -> FakeGrammarWorker:
        return FakeGrammarWorker(lambda answer: self.client.receive(answer))

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET path."""
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """POST body as JSON."""
        return self.call("POST", path, json=body, **options)

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make one call on an event loop of its own."""

        async def go() -> httpx.Response:
            async with self.http() as http:
                return await http.request(method, path, **options)

        return asyncio.run(go())

    def http(self) -> httpx.AsyncClient:
        """An HTTP client of the app, for several calls on one event loop."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app), base_url="http://server"
        )


def _byte_characters() -> dict[int, str]:
    """The byte-level alphabet: printable Latin-1 is itself, other bytes are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in characters]
    return characters | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


def _alphabet(request: GenerateRequest) -> list[int]:
    count = min(request.sampling.max_new_tokens or 0, 26)
    return list(range(ord("a"), ord("a") + count))


def _stop_or_length(request: GenerateRequest) -> FinishReason:
    return FinishReason(type="length")


def _logprobs(request: GenerateRequest, token_id: int, position: int) -> PositionLogprobs:
    options = request.logprobs
    assert options is not None
    if position == 0:
        return PositionLogprobs(None, token_id)
    top = tuple((-0.5 * (k + 1), (token_id + k) % 256) for k in range(options.num_top))
    by_id = tuple((-3.0, one) for one in options.token_ids)
    return PositionLogprobs(-0.5, token_id, top or None, by_id or None)


def _model_config(generation_defaults: dict[str, float]) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(10000.0),
        tie_word_embeddings=True,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        context_length=CONTEXT_LENGTH,
        eos_token_ids=(END_ID,),
        dtype="float32",
        generation_defaults=generation_defaults,
    )
