"""A program's calls as those of the native API, the same over HTTP and in process.

Messages become token ids by the model's own chat template, which the backend renders; what is
written in an open message is tokenised by itself, as the model has seen it when it wrote it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from ..choices import ChoiceScore
from ..errors import ProgramError
from ..expressions import LogprobRequest
from ..sampling import FIELDS, Sampling
from ..transcript import Message, Prompt
from .protocol import Abilities, Output

MAX_KEPT_HEADERS = 256  # conversations whose token ids are kept
MIN_TAIL_CHARS = 128  # of a prompt, tokenised again with each choice
ABILITIES = Abilities(sampling_fields=frozenset(FIELDS))

Reply = dict[str, Any]  # JSON of one completion: {"text", "output_ids", "meta_info"}


class NativeTransport(Protocol):
    """Carries native requests; raises BackendError."""

    async def generate(self, body: dict[str, Any]) -> list[Reply]:
        """Return the answers to /generate, also if it is one."""

    def stream(self, body: dict[str, Any]) -> AsyncGenerator[Reply, None]:
        """Return the answers to /generate for one prompt, each with all text so far."""

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Return the token ids of texts."""

    async def encode_messages(
        self, messages: list[dict[str, str]], add_generation_prompt: bool
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
        replies = await self._transport.generate(await self._body(prompt, sampling, logprobs))
        return [_output(reply) for reply in replies]

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        """See Backend."""
        body = await self._body(prompt, sampling, logprobs)
        async with aclosing(self._transport.stream(body)) as replies:
            async for reply in replies:
                yield _output(reply)

    async def commit(self, prompt: Prompt) -> None:
        """See Backend."""
        place = await self._place(prompt)
        await self._transport.generate({**place, "sampling_params": {"max_new_tokens": 0}})

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], with_unconditional: bool
    ) -> list[ChoiceScore]:
        """See Backend. One call for all choices, in which only their own tokens are computed.

        A choice's tokens are those in which prompt plus choice differs from prompt: where the two
        merge, the last token of the prompt is scored anew as part of the choice.
        """
        base, *full = await self._choice_ids(prompt, choices)
        starts = [_num_equal(base, ids) for ids in full]
        for choice, ids, start in zip(choices, full, starts, strict=True):
            if start == len(ids) or (start == 0 and len(ids) == 1):
                raise ProgramError(
                    f"choice {choice!r} has no token of its own here; select needs text before it"
                )
        alone = [ids[start:] for ids, start in zip(full, starts, strict=True)]
        first = [max(start, 1) for start in starts]  # the first token of all follows nothing
        body = {
            "input_ids": full + (alone if with_unconditional else []),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": first + ([0] * len(alone) if with_unconditional else []),
        }
        replies = await self._transport.generate(body)
        scored = [reply["meta_info"]["input_token_logprobs"] for reply in replies]
        return [
            ChoiceScore(
                token_ids=tuple(full[i][first[i] :]),
                logprobs=tuple(one[0] for one in scored[i]),
                unconditional=_unconditional(scored[len(full) + i], starts[i] < first[i])
                if with_unconditional
                else None,
            )
            for i in range(len(full))
        ]

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

    async def _choice_ids(self, prompt: Prompt, choices: tuple[str, ...]) -> list[list[int]]:
        """Token ids of prompt alone and before each choice."""
        tail = _tail(prompt.text)
        if prompt.open_role is None and tail != prompt.text:
            # A long prompt is tokenised once; only its last words may become other tokens.
            whole, parts = await asyncio.gather(
                self._transport.encode([prompt.text], True),
                self._transport.encode([tail + one for one in ("", *choices)], False),
            )
            num_kept = len(whole[0]) - len(parts[0])
            if whole[0][num_kept:] == parts[0]:
                return [whole[0][:num_kept] + part for part in parts]
        return await self._ids_with([prompt.text + one for one in ("", *choices)], prompt)

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
        plain = [{"role": one.role, "content": one.content} for one in messages]
        if role == "assistant" and plain:
            return await self._transport.encode_messages(plain, True)
        # Templates have a generation prompt for the assistant only, after another message; for
        # others the beginning is what two messages with different contents have in common.
        first, second = [
            await self._transport.encode_messages([*plain, {"role": role, "content": text}], False)
            for text in ("0", "x")
        ]
        return first[: _num_equal(first, second)]


def _tail(text: str) -> str:
    """The last words of a long text, from a space between two words on; a short text whole.

    What stands before such a space does not change the tokens after it in any tokenizer that splits
    text into words; the caller makes sure for the one at hand.
    """
    for place in range(len(text) - MIN_TAIL_CHARS, 1, -1):
        if text[place] == " " and not text[place - 1].isspace() and not text[place + 1].isspace():
            return text[place:]
    return text


def _output(reply: Reply) -> Output:
    return Output(reply["text"], reply["meta_info"])


def _num_equal(one: list[int], other: list[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def _unconditional(triples: list[list[Any]], drops_first: bool) -> tuple[float, ...]:
    values = [0.0 if one[0] is None else float(one[0]) for one in triples]
    return tuple(values[1:] if drops_first else values)
