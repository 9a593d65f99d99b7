"""EngineProcesses: starts the scheduler and the detokenizer, watches them, and takes them down.

Used by the HTTP server and by Engine alike; knows neither. A child that dies ends the engine: open
requests get an error, the other child is killed, and the owner is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from ..errors import ModelLoadError, ServingError
from ..loading.model_config import ModelConfig
from ..messages import Ready, StartFailed, Stop, ToHost
from ..sampling_params import SamplingParams
from ..server_args import ServerArgs
from ..tokenization.chat_template import ChatTemplate
from ..tokenization.chat_template_file import load_chat_template
from ..tokenization.tokenizer import Tokenizer
from .channels import DETOKENIZER, HOST, SCHEDULER, Inbox, IpcDirectory, Outbox, address
from .child import Child, ChildSpec, Role
from .engine_client import EngineClient
from .generation_spec import GenerationSpec
from .grammar_service import GrammarService, Worker, WorkerEnd
from .grammar_workers import GrammarWorkers
from .resolve_process import ResolvedFolders, folders_at_hand

logger = logging.getLogger(__name__)

_STOP_GRACE_SECONDS = 3.0  # from the Stop message to the kill
_LAST_WORDS_SECONDS = 0.2
_WARMUP_TOKENS = 8
_WARMUP_TEXT = "The capital of France is"
_SECRETS = ("api_key", "admin_api_key")  # children have no use for them


T = TypeVar("T")


class EngineStartFailed(ServingError):
    """A process of the engine could not start; the text says why."""


@dataclass(frozen=True, slots=True)
class _HostParts:
    """What the process with the event loop itself needs of the model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None


class EngineProcesses:
    """The child processes of one engine and the sockets to them.

    Everything runs on the event loop that makes this object, on a thread that lives as long as the
    engine: children die with the thread that started them. on_death is called once, on that loop,
    when a child ends that was not told to; the client is dead by then.
    """

    def __init__(self, args: ServerArgs, on_death: Callable[[str], None]) -> None:
        self._args = args
        self._on_death = on_death
        self._client: EngineClient | None = None
        self._children: list[Child] = []
        self._resolver: Child | None = None
        self._grammar_workers: GrammarWorkers | None = None
        self._stopping = False
        self._released = False
        self._loop = asyncio.get_running_loop()
        self._facts: dict[str, Ready] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        # A failure that comes while start() is busy elsewhere is looked at later, or never.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._all_exited = asyncio.Event()
        self._directory = IpcDirectory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        folder = self._directory.path
        self._inbox: Inbox[ToHost] = Inbox(
            self._context, address(folder, HOST), msgspec.msgpack.Decoder(ToHost)
        )
        self._to_scheduler = Outbox(self._context, address(folder, SCHEDULER))
        self._to_detokenizer = Outbox(self._context, address(folder, DETOKENIZER))

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each child, by role."""
        return {child.role: child.process.pid for child in self._children}

    async def start(self) -> EngineClient:
        """Start everything; return the client, its status still "starting".

        Raises ConfigError, ModelLoadError or EngineStartFailed; the caller calls stop() then, as
        after success.
        """
        self._inbox.attach(self._loop, self._on_message)
        self._start_child("scheduler", self._args.threads)
        self._start_child("detokenizer", 1)
        # The children import what they need while the model is looked for, and load it while this
        # process loads its own parts.
        folders = await self._unless_a_child_ends(self._resolve())
        # Refused here, before a child takes memory, what does not fit the model.
        model_config = ModelConfig.load(Path(folders.folder), self._args.model_overrides)
        model_config.served_context(self._args.context_length)
        model_config.check_generation_config(
            Path(folders.folder), uses_sampling=self._args.sampling_defaults == "model"
        )
        for child in self._children:
            child.tell(self._spec(folders))
        self._grammar_workers = GrammarWorkers(
            lambda name: self._start_grammar_process(folders, name),
            lambda name: Outbox(self._context, address(self._directory.path, name)),
            self._grammar_worker_ended,
        )
        grammars = GrammarService(
            self._grammar_workers.start_worker, self._args.grammar_timeout_seconds
        )
        parts = await self._unless_a_child_ends(
            asyncio.to_thread(_load_host_parts, self._args, folders)
        )
        await asyncio.shield(self._ready)
        self._client = EngineClient(
            self._args,
            parts.tokenizer,
            parts.chat_template,
            model_config,
            self._facts["scheduler"],
            self._to_scheduler,
            grammars,
        )
        for child in self._children:
            if child.process.returncode is not None:  # after it was ready, before now
                raise EngineStartFailed(f"{_describe_end(child)} during the start")
        return self._client

    async def warm_up(self) -> None:
        """Run one short request through all processes, then forget it."""
        assert self._client is not None, "start() comes first"
        sampling = SamplingParams(max_new_tokens=_WARMUP_TOKENS, temperature=0.0)
        spec = GenerationSpec(prompt=_WARMUP_TEXT, sampling=sampling, clamp_max_new_tokens=True)
        for request in await self._client.prepare(spec):
            async for delta in self._client.stream(request):
                finish = delta.progress.finish
                if finish is not None and finish.type == "abort":
                    raise EngineStartFailed(f"the warm-up request failed: {finish.message}")
        await self._client.flush_cache(timeout_seconds=5.0)

    async def stop(self) -> None:
        """End the children, in an orderly way if they follow, and release everything."""
        if self._client is not None and not self._stopping:
            self._stopping = True
            self._to_scheduler.send(Stop())
            self._to_detokenizer.send(Stop())
            try:
                await asyncio.wait_for(self._all_exited.wait(), _STOP_GRACE_SECONDS)
            except TimeoutError:
                logger.warning("a child process did not end when told to; killing it")
        self.kill()

    def kill(self) -> None:
        """End the children at once and release everything. Safe to call again."""
        self._stopping = True
        if self._released:
            return
        self._released = True
        for child in (*self._children, *((self._resolver,) if self._resolver else ())):
            child.kill()
        if self._client is not None:
            self._client.mark_dead("the engine was shut down")
        if self._grammar_workers is not None:
            self._grammar_workers.close()
        self._ready.cancel()
        self._inbox.close()
        self._to_scheduler.close()
        self._to_detokenizer.close()
        self._context.term()
        self._directory.close()

    def _start_child(self, role: Role, num_threads: int | None) -> None:
        child = Child(role, num_threads=num_threads)
        self._children.append(child)

        def wait() -> None:
            child.process.wait()
            # The loop may be closed by now: then nobody is left who wants to know.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._child_ended, child)

        threading.Thread(target=wait, name=f"watch-{role}", daemon=True).start()

    def _start_grammar_process(self, folders: ResolvedFolders, name: str) -> Child:
        child = Child("grammars", num_threads=1, wants_output=True)
        child.tell(msgspec.structs.replace(self._spec(folders), inbox=name))
        return child

    def _grammar_worker_ended(self, worker: Worker, end: WorkerEnd) -> None:
        if self._client is not None and self._client.grammars is not None:
            self._client.grammars.worker_ended(worker, end)

    async def _resolve(self) -> ResolvedFolders:
        folders = folders_at_hand(self._args)
        if folders is not None:
            return folders
        self._resolver = Child("resolve", num_threads=self._args.threads, wants_output=True)
        spec = self._spec(ResolvedFolders())
        answer = await asyncio.to_thread(self._resolver.ask, spec)
        if not answer:
            raise EngineStartFailed(f"{_describe_end(self._resolver)}; see the log above")
        folders = msgspec.json.decode(answer, type=ResolvedFolders)
        if folders.error is not None:
            raise ModelLoadError(folders.error)
        return folders

    def _spec(self, folders: ResolvedFolders) -> ChildSpec:
        settings = dataclasses.asdict(self._args)
        return ChildSpec(
            parent_pid=os.getpid(),
            ipc_directory=str(self._directory.path),
            folder=folders.folder,
            tokenizer_folder=folders.tokenizer_folder,
            server_args={k: v for k, v in settings.items() if k not in _SECRETS},
        )

    async def _unless_a_child_ends(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        try:
            both: list[asyncio.Future[Any]] = [task, self._ready]  # of different results
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._ready.done():
                self._ready.result()
            return await task
        finally:
            task.cancel()

    def _on_message(self, message: ToHost) -> None:
        if self._released:
            return
        try:
            self._receive(message)
        except Exception:
            # The other requests of the same message would wait for ever: better an end that shows.
            logger.exception("a message of type %s could not be handled", type(message).__name__)
            self._die("the process with the event loop failed")

    def _receive(self, message: ToHost) -> None:
        match message:
            case Ready(process="grammars"):
                if self._grammar_workers is not None:
                    self._grammar_workers.worker_is_ready(message.inbox)
                if self._client is not None and self._client.grammars is not None:
                    self._client.grammars.worker_is_ready()
            case Ready():
                self._facts[message.process] = message
                if len(self._facts) == len(self._children) and not self._ready.done():
                    self._ready.set_result(None)
            case StartFailed():
                self._fail_start(message.message)
            case _:
                assert self._client is not None, f"message before start: {type(message).__name__}"
                self._client.receive(message)

    def _child_ended(self, child: Child) -> None:
        if all(one.process.returncode is not None for one in self._children):
            self._all_exited.set()
        if self._stopping:
            return
        what = _describe_end(child)
        if self._client is None:
            # Its own account of the failure may still be on the way, and says more.
            text = f"{what} before it was ready; see the log above"
            self._loop.call_later(_LAST_WORDS_SECONDS, self._fail_start, text)
            return
        self._die(what)

    def _die(self, reason: str) -> None:
        if self._stopping or self._client is None:
            return
        logger.error("%s; ending all processes", reason)
        self._client.mark_dead(f"{reason}; the engine is going down")
        self.kill()
        self._on_death(reason)

    def _fail_start(self, message: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(EngineStartFailed(message))


def _load_host_parts(args: ServerArgs, folders: ResolvedFolders) -> _HostParts:
    tokenizer = Tokenizer.load(Path(folders.tokenizer_folder))
    special_tokens = tokenizer.special_tokens
    if args.chat_template is not None:
        template = load_chat_template(Path(args.chat_template), special_tokens)
    elif tokenizer.chat_template is not None:
        template = ChatTemplate(tokenizer.chat_template, special_tokens)
    else:
        template = None
    return _HostParts(tokenizer, template)


def _describe_end(child: Child) -> str:
    code = child.process.returncode
    if code is not None and code < 0:
        return f"the {child.role} process was killed by {signal.Signals(-code).name}"
    return f"the {child.role} process ended with exit code {code}"
