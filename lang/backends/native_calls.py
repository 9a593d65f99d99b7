"""A program's calls as those of the native API, the same over HTTP and in process.

Messages become token ids by the model's own chat template, which the backend renders; what is
written in an open message is tokenised by itself, as the model has seen it when it wrote it.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Protocol

from ..choices import ChoiceScore, ChoicesMethod
from ..errors import BackendError
from ..expressions import LogprobRequest
from ..sampling import FIELDS, Sampling
from ..tools import ToolOffer, calls_of
from ..transcript import Message, Prompt
from .protocol import Abilities, Output

MAX_KEPT_HEADERS = 256  # conversations whose token ids are kept
ABILITIES = Abilities(sampling_fields=frozenset(FIELDS))
_CHAT_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
# What a native field's name has beyond its name in gen.
_NATIVE_PART = re.compile(r"\bsampling_params\.|(?<=\bm(?:ax|in)_)new_(?=tokens\b)")

Reply = dict[str, Any]  # JSON of one completion: {"text", "output_ids", "meta_info"}


class NativeTransport(Protocol):
    """Carries native requests; raises BackendError."""

    async def generate(self, body: dict[str, Any]) -> list[Reply]:
        """Return the answers to /generate, also if it is one."""

    def stream(self, body: dict[str, Any]) -> AsyncGenerator[Reply, None]:
        """Return the answers to /generate for one prompt, each with all text so far."""

    async def score(self, body: dict[str, Any]) -> Reply:
        """Return the answer to /score_choices."""

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to /v1/chat/completions."""

    async def pin(self, body: dict[str, Any]) -> None:
        """Ask for what /pin_prefix does."""

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of texts."""

    async def encode_messages(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool
    ) -> list[int]:
        """Return the token ids of a conversation in the model's chat template."""


class NativeCalls:
    """generate, stream, score and commit of a Backend, over a transport."""

    def __init__(self, transport: NativeTransport) -> None:
        self._transport = transport
        self._headers: OrderedDict[tuple[tuple[Message, ...], str], asyncio.Task[list[int]]]
        self._headers = OrderedDict()

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        """See Backend."""
        body = await self._body(prompt, sampling, logprobs)
        with _names_as_in_gen():
            replies = await self._transport.generate(body)
        return [_output(reply) for reply in replies]

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        """See Backend."""
        body = await self._body(prompt, sampling, logprobs)
        async with aclosing(self._transport.stream(body)) as replies:
            with _names_as_in_gen():
                async for reply in replies:
                    yield Output(reply["text"], reply["meta_info"], reply.get("index", 0))

    async def call_tools(
        self, prompt: Prompt, sampling: Sampling, offer: ToolOffer
    ) -> list[Output]:
        """See Backend. By the chat route, which knows how the model writes calls."""
        fields = {_CHAT_NAMES.get(k, k): value for k, value in sampling.explicit().items()}
        messages = [one.wire() for one in prompt.messages]
        body = {"messages": messages, **fields, **offer.fields()}
        return chat_outputs(await self._transport.chat(body))

    async def commit(self, prompt: Prompt) -> None:
        """See Backend."""
        place = await self._place(prompt)
        await self._transport.generate({**place, "sampling_params": {"max_new_tokens": 0}})

    async def pin(self, prompt: Prompt, seconds: float) -> None:
        """See Backend."""
        await self._transport.pin({**await self._place(prompt), "ttl_seconds": seconds})

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], method: ChoicesMethod, early_exit: bool
    ) -> list[ChoiceScore]:
        """See Backend. One call, in which no token is computed twice."""
        body: dict[str, Any] = {
            "text": prompt.text,
            "choices": list(choices),
            "choices_method": method.value,
            "early_exit": early_exit,
        }
        if prompt.open_role is not None:
            body["input_ids"] = await self._header(prompt.messages, prompt.open_role)
        reply = await self._transport.score(body)
        if reply["meta_info"]["finish_reason"]["type"] == "abort":
            raise BackendError("the scores were not computed: their request was aborted")
        return [_choice_score(one) for one in reply["choices"]]

    async def _body(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> dict[str, Any]:
        body = {**await self._place(prompt), "sampling_params": sampling.explicit()}
        if logprobs is not None:
            body["return_logprob"] = True
            body["top_logprobs_num"] = logprobs.num_top
            body["return_text_in_logprobs"] = logprobs.with_text
            if logprobs.prompt_start is not None:
                body["logprob_start_len"] = logprobs.prompt_start
        return body

    async def _place(self, prompt: Prompt) -> dict[str, Any]:
        """The prompt field of /generate."""
        if prompt.open_role is None:
            return {"text": prompt.text}
        return {"input_ids": (await self._ids_with([prompt.text], prompt))[0]}

    async def _ids_with(self, texts: list[str], prompt: Prompt) -> list[list[int]]:
        """Token ids of prompt with each of texts in the place of its text."""
        if prompt.open_role is None:
            return await self._transport.encode(texts, True)
        header = await self._header(prompt.messages, prompt.open_role)
        written = [text for text in texts if text]
        encoded = iter(await self._transport.encode(written, False) if written else [])
        return [header + (next(encoded) if text else []) for text in texts]

    async def _header(self, messages: tuple[Message, ...], role: str) -> list[int]:
        """Token ids up to where the content of the next message, of role, begins."""
        key = (messages, role)
        task = self._headers.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(self._render(messages, role))
            self._headers[key] = task
            while len(self._headers) > MAX_KEPT_HEADERS:
                self._headers.popitem(last=False)
        self._headers.move_to_end(key)
        return await asyncio.shield(task)  # others may wait for it too

    async def _render(self, messages: tuple[Message, ...], role: str) -> list[int]:
        plain = [one.wire() for one in messages]
        if role == "assistant" and plain:
            return await self._transport.encode_messages(plain, True)
        # Templates have a generation prompt for the assistant only, after another message; for
        # others the beginning is what two messages with different contents have in common.
        first, second = [
            await self._transport.encode_messages([*plain, {"role": role, "content": text}], False)
            for text in ("0", "x")
        ]
        return first[: _num_equal(first, second)]


@contextmanager
def _names_as_in_gen() -> Iterator[None]:
    """A refusal inside names fields as a program does: max_tokens, without sampling_params."""
    try:
        yield
    except BackendError as error:
        message = _NATIVE_PART.sub("", error.message)
        param = None if error.param is None else _NATIVE_PART.sub("", error.param)
        raise BackendError(message, status_code=error.status_code, param=param) from error.__cause__


def chat_outputs(answer: Mapping[str, Any]) -> list[Output]:
    """The outputs in an answer of the chat route."""
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    meta = {
        "id": answer.get("id"),
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
    }
    known = {name: value for name, value in meta.items() if value is not None}
    return [
        Output(
            one["message"].get("content") or "",
            {**known, "finish_reason": {"type": one["finish_reason"]}},
            index,
            calls_of(one["message"].get("tool_calls")),
        )
        for index, one in enumerate(answer["choices"])
    ]


def _output(reply: Reply) -> Output:
    return Output(reply["text"], reply["meta_info"])


class Joined:
    """Streamed replies with all text so far, also where each brings only what is new."""

    def __init__(self, is_incremental: bool) -> None:
        self._is_incremental = is_incremental
        self._texts: dict[int, str] = {}  # by sample

    def reply(self, reply: Reply) -> Reply:
        """The next reply, its text whole."""
        if not self._is_incremental:
            return reply
        index = reply.get("index", 0)
        text = self._texts.get(index, "") + reply["text"]
        self._texts[index] = text
        return {**reply, "text": text}


def _num_equal(one: list[int], other: list[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def _choice_score(found: dict[str, Any]) -> ChoiceScore:
    alone = found["unconditional_logprobs"]
    return ChoiceScore(
        token_ids=tuple(found["token_ids"]),
        logprobs=tuple(found["logprobs"]),
        unconditional=None if alone is None else tuple(alone),
    )
