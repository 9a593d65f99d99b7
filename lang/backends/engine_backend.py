"""An Engine of this process as a backend: the one file of the language that knows the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from runtime.srt.engine import Engine
from runtime.srt.errors import ServingError

from ..caller import caller_fields
from ..errors import BackendError
from .native_calls import ABILITIES, Joined, NativeCalls, Reply
from .protocol import Abilities
from .server_address import check_limits


class EngineBackend(NativeCalls):
    """Calls engine, which the caller shuts down. timeout_seconds is the longest time for a call."""

    abilities: Abilities = ABILITIES
    name = "the engine"

    def __init__(self, engine: Engine, *, timeout_seconds: float = 600.0) -> None:
        check_limits(timeout_seconds)
        self.timeout_seconds = timeout_seconds
        super().__init__(_EngineTransport(engine))


class _EngineTransport:
    """Native requests to an Engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def generate(self, body: dict[str, Any]) -> list[Reply]:
        try:
            answer = await self._engine.async_generate(**_arguments(body))
        except ServingError as error:
            raise _backend_error(error) from error
        return answer if isinstance(answer, list) else [answer]

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Reply, None]:
        joined = Joined(self._engine.args.incremental_streaming_output)
        try:
            replies = await self._engine.async_generate(**_arguments(body), stream=True)
            async with aclosing(replies):
                async for reply in replies:
                    yield joined.reply(reply)
        except ServingError as error:
            raise _backend_error(error) from error

    async def score(self, body: dict[str, Any]) -> Reply:
        arguments = body | caller_fields()
        try:
            return await self._engine.async_score_choices(**arguments)
        except ServingError as error:
            raise _backend_error(error) from error

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        arguments = body | caller_fields()
        try:
            return await self._engine.async_chat(**arguments)
        except ServingError as error:
            raise _backend_error(error) from error

    async def pin(self, body: dict[str, Any]) -> None:
        # It waits for the engine, which must not hold up the loop of all other calls.
        try:
            await asyncio.to_thread(self._engine.pin_prefix, **body)
        except ServingError as error:
            raise _backend_error(error) from error

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        tokenizer = self._engine.tokenizer
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    async def encode_messages(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool
    ) -> list[int]:
        try:
            return self._engine.encode_messages(
                messages, add_generation_prompt=add_generation_prompt
            )
        except ServingError as error:
            raise _backend_error(error) from error


def _arguments(body: dict[str, Any]) -> dict[str, Any]:
    """The native body as arguments of generate, where the text is the prompt."""
    rest = {name: value for name, value in body.items() if name != "text"} | caller_fields()
    return {"prompt": body["text"], **rest} if "text" in body else rest


def _backend_error(error: ServingError) -> BackendError:
    return BackendError(
        f"the engine refused or failed: {error.message}",
        status_code=error.status_code,
        param=error.param,
    )
