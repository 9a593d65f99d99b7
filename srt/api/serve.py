"""run_server: one HTTP server from start to exit code.

Order of a start: take the port, start the child processes, import the HTTP libraries while they
load, warm up, answer. SIGTERM and SIGINT drain; a second one ends at once. A child's death ends
everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import importlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ServingError
from ..processes.child import settle_memory
from ..processes.engine_client import EngineClient
from ..processes.launcher import EngineProcesses
from ..processes.listener import open_listener, url_of
from ..processes.process_logging import configure_logging
from ..server_args import ServerArgs

if TYPE_CHECKING:
    import uvicorn

AnyFuture: TypeAlias = asyncio.Future[Any]  # only waited for: the result's type does not matter

logger = logging.getLogger(__name__)

_ABORT_WAIT_SECONDS = 2.0  # for requests aborted at the end of the drain to be answered
_LAST_ANSWERS_SECONDS = 1.5  # for clients to get the error of a dead engine
_CLOSE_SECONDS = 1.0  # for the requests of closed connections to end
_KEEP_ALIVE_SECONDS = 30


def run_server(args: ServerArgs) -> int:
    """Serve until told to stop; return the exit code: 0 after a drain, 1 after any failure."""
    import uvloop

    # Nothing of what a start makes is garbage; looking for it takes a tenth of the start.
    gc.disable()
    configure_logging("http", args.log_level)
    try:
        if args.preferred_sampling:
            # Before the model loads; the import is for those who need it.
            from .sampling_defaults import checked_preferred

            checked_preferred(args)
        listener = open_listener(args.host, args.port)
        with contextlib.closing(listener):
            return uvloop.run(_HttpServer(args, listener).run())
    except ServingError as error:
        logger.error("cannot start: %s", error.message)
        return 1


class _HttpServer:
    """One server's life on its event loop."""

    def __init__(self, args: ServerArgs, listener: socket.socket) -> None:
        self._args = args
        self._listener = listener
        self._stop_asked = asyncio.Event()
        self._died = asyncio.Event()
        self._processes: EngineProcesses | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._processes = EngineProcesses(self._args, lambda reason: self._died.set())
        try:
            starting = asyncio.ensure_future(self._start(self._processes))
            await self._first_of(starting, self._stop_asked)
            if not starting.done():
                logger.info("told to stop before the start was complete")
                starting.cancel()
                return 0
            return await self._serve(*starting.result())
        finally:
            await self._processes.stop()

    def _on_signal(self, number: signal.Signals) -> None:
        if not self._stop_asked.is_set():
            self._stop_asked.set()
            return
        logger.warning("second %s: ending at once", number.name)
        if self._processes is not None:
            self._processes.kill()
        os._exit(128 + number)

    async def _start(self, processes: EngineProcesses) -> tuple[EngineClient, uvicorn.Server]:
        client, _ = await asyncio.gather(processes.start(), asyncio.to_thread(_import_http))
        if not self._args.skip_server_warmup:
            await processes.warm_up()
        # What is shown is the port in use, also where the setting is 0.
        args = dataclasses.replace(self._args, port=self._listener.getsockname()[1])
        server = _uvicorn_server(client, args)
        settle_memory()
        return client, server

    async def _serve(self, client: EngineClient, server: uvicorn.Server) -> int:
        serving = asyncio.ensure_future(server.serve(sockets=[self._listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if client.status == "starting":
            client.status = "up"
            logger.info("%s", _facts_line(client))
            logger.info("ready: %s", url_of(self._listener))
        await self._first_of(serving, self._stop_asked, self._died)
        if self._died.is_set():
            await self._end(server, serving, _LAST_ANSWERS_SECONDS)
            return 1
        if not self._stop_asked.is_set():
            serving.result()
            logger.error("the HTTP server ended without being told to")
            return 1
        return await self._drain(client, server, serving)

    async def _drain(
        self, client: EngineClient, server: uvicorn.Server, serving: asyncio.Future[None]
    ) -> int:
        if client.status != "dead":
            client.status = "draining"
        timeout = self._args.drain_timeout_seconds
        logger.info(
            "draining %d open requests, for at most %g s", client.num_open_requests, timeout
        )
        deadline = asyncio.get_running_loop().time() + timeout
        if not await client.wait_until_idle(timeout):
            logger.warning("aborting %d requests after the drain time", client.num_open_requests)
            await client.abort(None, is_shutdown=True)
            if not await client.wait_until_idle(_ABORT_WAIT_SECONDS):
                logger.error(
                    "the engine does not answer; %d requests end with an error",
                    client.num_open_requests,
                )
                client.mark_dead("the server is stopping and its engine does not answer")
        left = max(deadline - asyncio.get_running_loop().time(), _ABORT_WAIT_SECONDS)
        await self._end(server, serving, left)
        logger.info("stopped")
        return 1 if self._died.is_set() else 0

    async def _end(
        self, server: uvicorn.Server, serving: asyncio.Future[None], timeout_seconds: float
    ) -> None:
        """Let answers that are being written get out, then close all connections."""
        server.should_exit = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(serving), timeout_seconds)
        if not serving.done():
            # Clients that do not read their answers; their requests see them as gone.
            for connection in list(server.server_state.connections):
                connection.transport.abort()
            await asyncio.wait({serving}, timeout=_CLOSE_SECONDS)
        if not serving.done():
            logger.warning("leaving requests that do not end")
            logging.getLogger("uvicorn.error").disabled = True  # it shows each one's stack
            server.force_exit = True
            await asyncio.wait({serving}, timeout=_CLOSE_SECONDS)

    async def _first_of(self, work: AnyFuture, *events: asyncio.Event) -> None:
        waits: list[AnyFuture] = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait([work, *waits], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _import_http() -> None:
    for name in (".http_protocol", "uvicorn.lifespan.off", ".app"):
        importlib.import_module(name, __package__)


def _uvicorn_server(client: EngineClient, args: ServerArgs) -> uvicorn.Server:
    import uvicorn

    from .app import create_app
    from .http_protocol import BoundedHttpProtocol

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # run_server has the signals: a drain lasts longer than uvicorn's own stop

    config = uvicorn.Config(
        create_app(client, args),
        http=BoundedHttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=args.log_level == "debug",
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
    )
    return Server(config)


def _facts_line(client: EngineClient) -> str:
    facts = client.facts
    return (
        f"{client.args.model_name}: context {facts.context_length} tokens, KV pool "
        f"{facts.max_total_tokens} tokens ({facts.kv_pool_bytes / 2**20:.0f} MiB), weights "
        f"{facts.weight_bytes / 2**20:.0f} MiB ({facts.weight_form}), {facts.dtype}, "
        f"attention {facts.attention_backend}, "
        f"at most {facts.max_running_requests} running requests"
    )
