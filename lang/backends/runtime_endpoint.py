"""RuntimeEndpoint: a server of this project as a backend."""

from __future__ import annotations

import atexit
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any

from ..caller import caller_fields
from ..loop_thread import LoopThread, shared_loop, wait
from .http_client import HttpClient
from .native_calls import ABILITIES, Joined, NativeCalls, Reply
from .protocol import Abilities
from .server_address import check_api_key, check_limits, checked_base_url

CLOSE_SECONDS = 5.0


class RuntimeEndpoint(NativeCalls):
    """The server at base_url. Use from any thread; close() ends its connections.

    timeout_seconds is the longest time for one call. More calls than max_connections at once wait
    for each other. Raises ProgramError for what is no address; no call is made before the first of
    a program.
    """

    abilities: Abilities = ABILITIES

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = 600.0,
        max_connections: int = 256,
    ) -> None:
        self.base_url = checked_base_url(base_url)
        check_api_key(api_key)
        check_limits(timeout_seconds, max_connections)
        self.name = f"the server at {self.base_url}"
        self.timeout_seconds = timeout_seconds
        self._http = _HttpTransport(self.base_url, api_key, timeout_seconds, max_connections)
        super().__init__(self._http)
        atexit.register(self.close)

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def server_info(self) -> dict[str, Any]:
        """The server's settings and what it holds now."""
        return self._ask("/server_info", method="GET")

    def flush_cache(self) -> None:
        """Empty the server's prefix cache; raises BackendError if it is busy for too long."""
        self._ask("/flush_cache")

    def pin_prefix(
        self,
        text: str | None = None,
        ttl_seconds: float = 3600.0,
        *,
        messages: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Compute a prefix and keep it cached for ttl_seconds; the answer has its pin_id.

        One of text and messages. Needs the server's admin key, if it has one.
        """
        given = {"text": text, "messages": messages, "ttl_seconds": ttl_seconds}
        return self._ask("/pin_prefix", given)

    def unpin_prefix(self, pin_id: str) -> None:
        """End a pin before its time; raises BackendError with status 404 if there is none."""
        self._ask("/unpin_prefix", {"pin_id": pin_id})

    def close(self) -> None:
        """End all connections. Safe to call again; a later call makes new ones."""
        atexit.unregister(self.close)
        wait(shared_loop().submit(self._http.close()), CLOSE_SECONDS)

    def _ask(self, path: str, body: Any = None, method: str = "POST") -> dict[str, Any]:
        answer: dict[str, Any] = wait(shared_loop().submit(self._http.call(method, path, body)))
        return answer


class _HttpTransport:
    """Native requests over HTTP, on the shared loop."""

    def __init__(
        self, base_url: str, api_key: str | None, timeout_seconds: float, max_connections: int
    ) -> None:
        self._settings = (base_url, api_key, timeout_seconds, max_connections)
        self._client: HttpClient | None = None
        self._loop: LoopThread | None = None
        self._is_incremental: bool | None = None

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        return await self._connected().call(method, path, body)

    async def generate(self, body: dict[str, Any]) -> list[Reply]:
        answer = await self.call("POST", "/generate", {**body, **caller_fields()})
        return answer if isinstance(answer, list) else [answer]

    async def stream(self, body: dict[str, Any]) -> AsyncGenerator[Reply, None]:
        if self._is_incremental is None:
            info = await self.call("GET", "/server_info")
            self._is_incremental = bool(info.get("incremental_streaming_output"))
        joined = Joined(self._is_incremental)
        body = {**body, **caller_fields(), "stream": True}
        events = self._connected().events("/generate", body)
        async with aclosing(events):
            async for event in events:
                yield joined.reply(event)

    async def score(self, body: dict[str, Any]) -> Reply:
        answer: Reply = await self.call("POST", "/score_choices", {**body, **caller_fields()})
        return answer

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        path = "/v1/chat/completions"
        answer: dict[str, Any] = await self.call("POST", path, {**body, **caller_fields()})
        return answer

    async def pin(self, body: dict[str, Any]) -> None:
        await self.call("POST", "/pin_prefix", body)

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        body = {"prompt": texts, "add_special_tokens": add_special_tokens}
        ids: list[list[int]] = (await self.call("POST", "/tokenize", body))["tokens"]
        return ids

    async def encode_messages(
        self, messages: list[dict[str, Any]], add_generation_prompt: bool
    ) -> list[int]:
        body = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        ids: list[int] = (await self.call("POST", "/tokenize", body))["tokens"]
        return ids

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connected(self) -> HttpClient:
        # Made on the loop that uses it, which is another one after a fork of the process.
        if self._client is None or self._loop is not shared_loop():
            self._client, self._loop = HttpClient(*self._settings), shared_loop()
        return self._client
