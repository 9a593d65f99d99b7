"""JSON calls over kept connections; every failure becomes a BackendError that names the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

from ..errors import BackendError

CONNECT_TIMEOUT_SECONDS = 5.0
CONNECT_PAUSES_SECONDS = (0.05, 0.2)  # before the second and the third try


class HttpClient:
    """Calls of one server, on one event loop.

    A connection that cannot be made is tried three times in all. Nothing that may have reached the
    server is sent twice.
    """

    def __init__(
        self, base_url: str, api_key: str | None, timeout_seconds: float, max_connections: int
    ) -> None:
        self._base_url = base_url
        headers = {"Content-Type": "application/json"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        self._client = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            # Without TLS there is nothing to verify, and reading the certificates takes a while.
            verify=base_url.startswith("https:"),
            timeout=httpx.Timeout(timeout_seconds, connect=CONNECT_TIMEOUT_SECONDS, pool=None),
            limits=httpx.Limits(
                max_connections=max_connections, max_keepalive_connections=max_connections
            ),
        )
        # The client's own queue for connections takes time that grows with its length.
        self._places = asyncio.Semaphore(max_connections)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON answer; raises BackendError for any status but 200."""
        async with self._open(method, path, body) as response:
            content = await self._read(response)
            if response.status_code != 200:
                raise self._refusal(response.status_code, content)
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            raise BackendError(f"{self._base_url}{path} answered with no JSON") from None

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each server-sent event up to [DONE]; an error among them is raised."""
        async with self._open("POST", path, body) as response:
            if response.status_code != 200:
                raise self._refusal(response.status_code, await self._read(response))
            try:
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[len("data:") :].strip()
                    if data == "[DONE]":
                        return
                    event = self._event(path, data)
                    if "error" in event:
                        raise self._refusal(None, data.encode())
                    yield event
            except httpx.HTTPError as error:
                raise self._broken(error) from error
        raise BackendError(f"{self._base_url} ended a stream before its end")

    def _event(self, path: str, data: str) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            raise BackendError(f"{self._base_url}{path} streamed what is no JSON") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def _open(self, method: str, path: str, body: Any) -> AsyncIterator[httpx.Response]:
        content = None if body is None else orjson.dumps(body)
        async with self._places:
            response = await self._send(self._client.build_request(method, path, content=content))
            try:
                yield response
            finally:
                await response.aclose()

    async def _send(self, request: httpx.Request) -> httpx.Response:
        for pause in (*CONNECT_PAUSES_SECONDS, None):
            try:
                return await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if pause is None:
                    raise BackendError(f"{self._base_url} cannot be reached: {error}") from error
                await asyncio.sleep(pause)
            except httpx.HTTPError as error:
                raise self._broken(error) from error
        raise AssertionError("the last try returns or raises")

    async def _read(self, response: httpx.Response) -> bytes:
        try:
            return await response.aread()
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    def _broken(self, error: httpx.HTTPError) -> BackendError:
        kind = type(error).__name__
        return BackendError(f"the connection to {self._base_url} broke: {kind} {error}".strip())

    def _refusal(self, status_code: int | None, content: bytes) -> BackendError:
        try:
            error = orjson.loads(content)["error"]
            message, param = str(error["message"]), error.get("param")
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            text = " ".join(content[:400].decode("utf-8", "replace").split())  # a page, perhaps
            message, param = text[:200], None
        answer = "an error in its stream" if status_code is None else f"status {status_code}"
        return BackendError(
            f"{self._base_url} answered with {answer}: {message}",
            status_code=status_code,
            param=param,
        )
