"""Programs: plain Python functions whose first argument is the state."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .backends.default import backend_for
from .batch import ErrorPolicy, run_batch, run_batch_async
from .errors import ProgramCancelled, ProgramError
from .loop_thread import shared_loop, wait, wait_async
from .prefix_gate import PrefixGate
from .run import Run
from .sampling import FIELDS, Sampling, sampling_from
from .state import ProgramState, running_program

# Threads in which plain functions of arun and stream=True run at once; others wait. They are made
# as needed. An async program needs none.
MAX_BODY_THREADS = 256


def function(body: Callable[..., Any]) -> Program:
    """Make a program of a function, plain or async, that takes the state first."""
    return Program(body)


class Program:
    """A function that can be run against any backend, once, in a batch, or as part of another."""

    def __init__(
        self,
        body: Callable[..., Any],
        bound: dict[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, body)
        self._body = body
        self._bound = bound or {}
        self._signature = inspect.signature(body)
        if not self._signature.parameters:
            raise ProgramError(f"{body.__name__} takes no argument; the first must be the state")

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self._body)

    def bind(self, **arguments: Any) -> Program:
        """The same program with some of its arguments given."""
        try:
            self._signature.bind_partial(None, **arguments)
        except TypeError as error:
            raise ProgramError(f"{self._body.__name__}: {error}") from None
        return Program(self._body, {**self._bound, **arguments})

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """With a state first: execute inside the program that it belongs to. Else: run."""
        if args and isinstance(args[0], ProgramState):
            return self._body(*args, **{**self._bound, **keywords})
        return self.run(*args, **keywords)

    def run(
        self,
        *args: Any,
        backend: Any = None,  # a Backend or an Engine; None: the default one
        stream: bool = False,
        timeout_seconds: float | None = None,
        **keywords: Any,
    ) -> ProgramState:
        """Execute and wait for everything in it; return the state.

        keywords are the function's own, or sampling fields that hold where a gen sets none. Raises
        what the program raises, or what stopped it or one of its branches. stream: return at once;
        the state's iterators and variables follow the program, which runs in a thread.
        """
        state, arguments = self._prepare(args, keywords, backend, stream, timeout_seconds)
        if stream:
            state.begin_body()
            context = contextvars.copy_context()
            _body_threads().submit(context.run, self._run_streamed, state, args, arguments)
            return state
        try:
            if self.is_async:
                future = shared_loop().submit(self._await_body(state, args, arguments))
                wait(future)
            else:
                self._call_body(state, args, arguments)
            wait(state.run.settled())
        except BaseException as error:
            _stop(state, error)
            raise
        _raise_unseen(state)
        state.end_body()
        return state

    async def arun(
        self,
        *args: Any,
        backend: Any = None,  # as in run
        stream: bool = False,
        timeout_seconds: float | None = None,
        **keywords: Any,
    ) -> ProgramState:
        """The same from a coroutine; cancelling it ends the calls.

        An async program runs on the caller's loop, a plain one in a thread.
        """
        state, arguments = self._prepare(args, keywords, backend, stream, timeout_seconds)
        if stream:
            state.begin_body()
            if self.is_async:
                task = asyncio.ensure_future(self._await_streamed(state, args, arguments))
                _streamed.add(task)  # the loop itself keeps weak references only
                task.add_done_callback(_streamed.discard)
            else:
                context = contextvars.copy_context()
                _body_threads().submit(context.run, self._run_streamed, state, args, arguments)
            return state
        await self._finish(state, args, arguments, _body_threads())
        return state

    def run_batch(
        self,
        arguments: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        backend: Any = None,  # as in run
        concurrency: int = 64,
        progress_bar: bool = False,
        on_error: ErrorPolicy = "raise",
        timeout_seconds: float | None = None,
        **keywords: Any,
    ) -> list[Any]:
        """Run once for each of arguments, at most concurrency at a time; results in order.

        on_error "raise" ends all at the first error, "return" puts each error in the place of its
        state. timeout_seconds is for each run. What the prompts have in common is computed once.
        """
        start = self._batch_item(backend, timeout_seconds, keywords)
        return run_batch(start, list(arguments), concurrency, progress_bar, on_error)

    async def arun_batch(
        self,
        arguments: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        backend: Any = None,  # as in run
        concurrency: int = 64,
        progress_bar: bool = False,
        on_error: ErrorPolicy = "raise",
        timeout_seconds: float | None = None,
        **keywords: Any,
    ) -> list[Any]:
        """The same from a coroutine."""
        start = self._batch_item(backend, timeout_seconds, keywords)
        return await run_batch_async(start, list(arguments), concurrency, progress_bar, on_error)

    def _batch_item(
        self, backend: Any, timeout_seconds: float | None, keywords: dict[str, Any]
    ) -> Callable[..., Coroutine[Any, Any, ProgramState]]:
        chosen = backend_for(backend)
        gate = PrefixGate(chosen)

        async def start(
            item: dict[str, Any] | tuple[Any, ...], threads: ThreadPoolExecutor, is_alone: bool
        ) -> ProgramState:
            args = () if isinstance(item, dict) else item
            own = item if isinstance(item, dict) else {}
            state, arguments = self._prepare(
                args,
                {**keywords, **own},
                chosen,
                False,
                timeout_seconds,
                None if is_alone else gate,
            )
            await self._finish(state, args, arguments, threads)
            return state

        return start

    def _prepare(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        backend: Any,
        stream: bool,
        timeout_seconds: float | None,
        gate: PrefixGate | None = None,
    ) -> tuple[ProgramState, dict[str, Any]]:
        arguments, defaults = self._split_keywords(keywords)
        try:
            self._signature.bind(None, *args, **arguments)
        except TypeError as error:
            raise ProgramError(f"{self._body.__name__}: {error}") from None
        run = Run(
            backend_for(backend),
            defaults,
            streams=stream,
            timeout_seconds=timeout_seconds,
            gate=gate,
        )
        return ProgramState(run), arguments

    def _split_keywords(self, keywords: dict[str, Any]) -> tuple[dict[str, Any], Sampling]:
        """The function's own arguments, and the sampling fields of the run."""
        own = self._signature.parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in own.values())
        fields = {k: v for k, v in keywords.items() if k not in own and k in FIELDS}
        rest = {k: v for k, v in keywords.items() if k not in fields}
        if not takes_any:
            unknown = {k: v for k, v in rest.items() if k not in own}
            sampling_from(unknown, self._body.__name__)  # raises for the first
        return {**self._bound, **rest}, sampling_from(fields, "run")

    def _call_body(
        self, state: ProgramState, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> None:
        token = running_program.set(state.run)
        try:
            state.ret_value = self._body(state, *args, **arguments)
        finally:
            running_program.reset(token)

    async def _await_body(
        self, state: ProgramState, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> None:
        token = running_program.set(state.run)
        try:
            state.ret_value = await self._body(state, *args, **arguments)
        finally:
            running_program.reset(token)

    async def _finish(
        self,
        state: ProgramState,
        args: tuple[Any, ...],
        arguments: dict[str, Any],
        threads: ThreadPoolExecutor,
    ) -> None:
        """Execute the whole run on the current loop, its body in threads if it is plain."""
        try:
            if self.is_async:
                await self._await_body(state, args, arguments)
            else:
                context = contextvars.copy_context()
                await asyncio.get_running_loop().run_in_executor(
                    threads, context.run, self._call_body, state, args, arguments
                )
            await wait_async(state.run.settled())
        except BaseException as error:
            _stop(state, error)
            raise
        _raise_unseen(state)
        state.end_body()

    def _run_streamed(
        self, state: ProgramState, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> None:
        try:
            if self.is_async:
                wait(shared_loop().submit(self._await_body(state, args, arguments)))
            else:
                self._call_body(state, args, arguments)
            wait(state.run.settled())
            _raise_unseen(state)
        except BaseException as error:  # it reaches the readers of the state
            _stop(state, error)
        else:
            state.end_body()

    async def _await_streamed(
        self, state: ProgramState, args: tuple[Any, ...], arguments: dict[str, Any]
    ) -> None:
        try:
            await self._await_body(state, args, arguments)
            await wait_async(state.run.settled())
            _raise_unseen(state)
        except BaseException as error:  # as above
            _stop(state, error)
        else:
            state.end_body()


def _stop(state: ProgramState, error: BaseException) -> None:
    """End what still runs: nobody will read it but through the state, which tells error."""
    if not isinstance(error, Exception):
        error = ProgramCancelled(f"the run was ended by {type(error).__name__}")
    state.run.cancel(error)
    state.end_body(error)


def _raise_unseen(state: ProgramState) -> None:
    error = state.unseen_error()
    if error is not None:
        state.end_body(error)
        raise error


_streamed: set[asyncio.Future[None]] = set()
_threads_lock = threading.Lock()
_threads: ThreadPoolExecutor | None = None


def _body_threads() -> ThreadPoolExecutor:
    global _threads
    with _threads_lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(MAX_BODY_THREADS, thread_name_prefix="program")
        return _threads
