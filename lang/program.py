"""Programs: plain Python functions whose first argument is the state."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

from .backends.default import backend_for
from .batch import ErrorPolicy, run_batch, run_batch_async
from .body_threads import BodyThreads
from .errors import LanguageError, ProgramCancelled, ProgramError
from .loop_thread import shared_loop, wait, wait_async
from .prefix_gate import PrefixGate
from .recorder import Placeholder, Recording
from .run import Run
from .sampling import FIELDS, NAMES_IN_GEN, Sampling, sampling_from
from .state import ProgramState, running_program
from .trace import Trace

_NAMES_OF_RUN = ("backend", "stream", "timeout_seconds", "pin_prefix_seconds")


def function(body: Callable[..., Any]) -> Program:
    """Make a program of a function, plain or async, that takes the state first.

    Raises ProgramError for a function without arguments, or with one of a name that run takes.
    """
    if not callable(body):
        raise ProgramError(f"function takes a function, not a {type(body).__name__}")
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
        for name in self._signature.parameters:
            if name in _NAMES_OF_RUN:
                raise ProgramError(
                    f"{body.__name__} has a parameter {name}, which is an argument of run itself; "
                    "call it otherwise"
                )

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
        pin_prefix_seconds: float | None = None,
        **keywords: Any,
    ) -> ProgramState:
        """Execute and wait for everything in it; return the state.

        keywords are the function's own, or sampling fields that hold where a gen sets none. Raises
        what the program raises, or what stopped it or one of its branches. stream: return at once;
        the state's iterators and variables follow the program, which runs in a thread.
        pin_prefix_seconds: keep the prompt of the first call in the backend's cache for so long.
        """
        gate = _own_gate(backend, pin_prefix_seconds)
        state, arguments = self._prepare(args, keywords, backend, stream, timeout_seconds, gate)
        if stream:
            state.begin_body()
            _body_threads().start(lambda: self._run_streamed(state, args, arguments))
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
        pin_prefix_seconds: float | None = None,
        **keywords: Any,
    ) -> ProgramState:
        """The same from a coroutine; cancelling it ends the calls.

        An async program runs on the caller's loop, a plain one in a thread.
        """
        gate = _own_gate(backend, pin_prefix_seconds)
        state, arguments = self._prepare(args, keywords, backend, stream, timeout_seconds, gate)
        if stream:
            state.begin_body()
            if self.is_async:
                task = asyncio.ensure_future(self._await_streamed(state, args, arguments))
                _streamed.add(task)  # the loop itself keeps weak references only
                task.add_done_callback(_streamed.discard)
            else:
                _body_threads().start(lambda: self._run_streamed(state, args, arguments))
            return state
        await self._finish(state, args, arguments, _body_threads())
        return state

    def trace(self, *args: Any, backend: Any = None, **keywords: Any) -> Trace:
        """Call the function without a model, and return what it is made of.

        Arguments that are not given and have no default are placeholders: text whose value is not
        known. So are the variables; a number is 0, a select takes its first choice. With a backend:
        raises Unsupported for what that one cannot do. Raises ProgramError for a function that
        needs more than text of a placeholder.
        """
        own, defaults = self._split_keywords(keywords)
        recording = Recording(None if backend is None else backend_for(backend), defaults)
        state = ProgramState(recording.run)
        try:
            given = self._signature.bind_partial(None, *args, **own).arguments
            arguments = {**self._placeholders(given), **own}
            if self.is_async:
                wait(shared_loop().submit(self._await_body(state, args, arguments)))
            else:
                self._call_body(state, args, arguments)
        except LanguageError:
            raise
        except Exception as error:
            raise ProgramError(
                f"{self._body.__name__} cannot be traced: {type(error).__name__}: {error}; give "
                "trace the arguments that must be more than text"
            ) from error
        return Trace(recording.parts(), state.ret_value)

    def _placeholders(self, given: Mapping[str, Any]) -> dict[str, Placeholder]:
        own = self._signature.parameters.values()
        return {
            one.name: Placeholder("argument", one.name)
            for one in own
            if one.name not in given
            and one.default is one.empty
            and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        }

    def run_batch(
        self,
        arguments: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        backend: Any = None,  # as in run
        concurrency: int = 64,
        progress_bar: bool = False,
        on_error: ErrorPolicy = "raise",
        timeout_seconds: float | None = None,
        pin_prefix_seconds: float | None = None,
        **keywords: Any,
    ) -> list[Any]:
        """Run once for each of arguments, at most concurrency at a time; results in order.

        on_error "raise" ends all at the first error, "return" puts each error in the place of its
        state. timeout_seconds is for each run. What the prompts have in common is computed once,
        and kept for pin_prefix_seconds if that is given.
        """
        items = list(arguments)
        start = self._batch_item(len(items), backend, timeout_seconds, pin_prefix_seconds, keywords)
        return run_batch(start, items, concurrency, progress_bar, on_error)

    async def arun_batch(
        self,
        arguments: Iterable[dict[str, Any] | tuple[Any, ...]],
        *,
        backend: Any = None,  # as in run
        concurrency: int = 64,
        progress_bar: bool = False,
        on_error: ErrorPolicy = "raise",
        timeout_seconds: float | None = None,
        pin_prefix_seconds: float | None = None,
        **keywords: Any,
    ) -> list[Any]:
        """The same from a coroutine."""
        items = list(arguments)
        start = self._batch_item(len(items), backend, timeout_seconds, pin_prefix_seconds, keywords)
        return await run_batch_async(start, items, concurrency, progress_bar, on_error)

    def _batch_item(
        self,
        num_items: int,
        backend: Any,
        timeout_seconds: float | None,
        pin_seconds: float | None,
        keywords: dict[str, Any],
    ) -> Callable[..., Coroutine[Any, Any, ProgramState]]:
        chosen = backend_for(backend)
        gate = PrefixGate(chosen, pin_seconds=pin_seconds, is_alone=num_items == 1)

        async def start(
            item: dict[str, Any] | tuple[Any, ...], threads: BodyThreads, is_alone: bool
        ) -> ProgramState:
            args = () if isinstance(item, dict) else item
            own = item if isinstance(item, dict) else {}
            state, arguments = self._prepare(
                args,
                {**keywords, **own},
                chosen,
                False,
                timeout_seconds,
                None if is_alone and pin_seconds is None else gate,
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
        of_run = (*FIELDS, *NAMES_IN_GEN)
        fields = {k: v for k, v in keywords.items() if k not in own and k in of_run}
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
            body = self._body(state, *args, **arguments)
            state.ret_value = await _within_deadline(state.run, body)
        finally:
            running_program.reset(token)

    async def _finish(
        self,
        state: ProgramState,
        args: tuple[Any, ...],
        arguments: dict[str, Any],
        threads: BodyThreads,
    ) -> None:
        """Execute the whole run on the current loop, its body in threads if it is plain."""
        try:
            if self.is_async:
                await self._await_body(state, args, arguments)
            else:
                work = threads.call(lambda: self._call_body(state, args, arguments))
                await _within_deadline(state.run, work)
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


async def _within_deadline(run: Run, work: Awaitable[Any]) -> Any:
    """Wait for work, also if it waits for something else than the run's own calls."""
    try:
        async with asyncio.timeout(run.seconds_left()) as limit:
            return await work
    except TimeoutError as error:
        if isinstance(error, LanguageError) or not limit.expired():
            raise
        raise run.deadline_error() from None


def _stop(state: ProgramState, error: BaseException) -> None:
    """End what still runs: nobody will read it but through the state, which tells error."""
    if not isinstance(error, Exception):
        error = ProgramCancelled(f"the run was ended by {type(error).__name__}")
    state.run.cancel(error)
    state.end_body(error)


def _own_gate(backend: Any, pin_seconds: float | None) -> PrefixGate | None:
    """What a single run passes first; None if there is nothing to pin."""
    if pin_seconds is None:
        return None
    return PrefixGate(backend_for(backend), pin_seconds=pin_seconds, is_alone=True)


def _raise_unseen(state: ProgramState) -> None:
    error = state.unseen_error()
    if error is not None:
        state.run.cancel(error)  # other branches may still be at work
        state.end_body(error)
        raise error


_streamed: set[asyncio.Future[None]] = set()
_threads_lock = threading.Lock()
_threads: BodyThreads | None = None


def _body_threads() -> BodyThreads:
    global _threads
    with _threads_lock:
        if _threads is None:
            _threads = BodyThreads()
        return _threads
