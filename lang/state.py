"""The state that a program writes: `s`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .errors import ProgramError
from .expressions import Expression, Gen, Role, Select, Text, ToolResult, as_expression, flattened
from .interpreter import Interpreter
from .loop_thread import wait, wait_async
from .outline import Outline
from .promise import Promise
from .run import Run
from .steps import (
    AddText,
    Adopt,
    Call,
    CloseRole,
    CloseScope,
    OpenRole,
    OpenScope,
    ScopeMark,
    Split,
)
from .text_feed import Piece
from .tools import ToolCall
from .transcript import Transcript
from .variables import Variable, VariableTable

if TYPE_CHECKING:
    from .branches import Branches

running_program: ContextVar[object] = ContextVar("running_program", default=None)
"""The Run whose program is executing here: it knows which variables it has written."""


class ProgramState:
    """Text that grows by what is added to it, and the variables in it.

    Adding returns at once; what needs the model is computed in the background, in order. Reading a
    variable or the text waits for it, and raises the error that left it unset. Methods that begin
    with `a` are for async programs. For one thread or task at a time, except for reading.
    """

    def __init__(self, run: Run) -> None:
        self.ret_value: Any = None
        self._run = run
        self._interpreter = _new_interpreter(run)
        self._outline = Outline()
        self._variables = VariableTable(is_open=run.streams)
        self._body: Promise[None] | None = None  # of a streamed program: done when it has returned

    # Writing

    def __iadd__(self, value: object) -> ProgramState:
        self._add(as_expression(value))
        return self

    def system(self, content: object = None) -> Any:
        """A message of the system: `s.system("...")`, or `with s.system():`."""
        return self._role("system", content)

    def user(self, content: object = None) -> Any:
        """A message of the user."""
        return self._role("user", content)

    def assistant(self, content: object = None) -> Any:
        """A message of the assistant."""
        return self._role("assistant", content)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Make the text that is added inside the variable `name`, which exists from its end on."""
        mark, variable = ScopeMark(), Variable(name)
        self._interpreter.submit(OpenScope(mark))
        try:
            yield
        except BaseException as error:
            self._variables.declare(variable)
            variable.fail(error)
            raise
        # Declared also if the state has failed: reading it then tells why.
        self._variables.declare(variable)
        self._interpreter.submit(CloseScope(mark, variable))

    def set_var(self, name: str, value: Any) -> None:
        """Make value the variable `name`; the text stays as it is."""
        variable = Variable(name)
        variable.set(value)
        self._variables.declare(variable)

    def fork(self, num_branches: int = 1) -> Branches:
        """States that begin as this one is now, and go on apart from it and each other.

        With several, what this one has so far is computed once, before they go on.
        """
        from .branches import Branches

        if type(num_branches) is not int or num_branches < 1:
            raise ProgramError(
                f"a fork into {num_branches!r} branches; it must be an integer, at least 1"
            )
        shared: Promise[Transcript] = Promise()
        self._interpreter.submit(Split(shared, num_branches))
        known = self._variables.snapshot()
        return Branches(self, [self._branch(shared, known) for _ in range(num_branches)], known)

    def copy(self) -> ProgramState:
        """One state that begins as this one is now."""
        return self.fork(1)[0]

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing ends with the block; `with s.copy() as c:` is for reading only."""

    # Reading

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: str) -> bool:
        return name in self._variables.snapshot()

    def get_var(self, name: str, timeout_seconds: float | None = None) -> Any:
        """Wait for a variable; raises the error that left it unset, KeyError, or DeadlinePassed."""
        try:
            variable = self._variables.known(name)
            if variable is None:
                variable = wait(self._find(name), self._patience(timeout_seconds))
            return wait(variable.future, self._patience(timeout_seconds))
        except BaseException as error:
            self._told(error)
            raise

    async def aget(self, name: str, timeout_seconds: float | None = None) -> Any:
        """The same in an async program."""
        try:
            variable = self._variables.known(name)
            if variable is None:
                variable = await self._afind(name, timeout_seconds)
            return await wait_async(variable.future, self._patience(timeout_seconds))
        except BaseException as error:
            self._told(error)
            raise

    def get_meta_info(self, name: str) -> Any:
        """Wait for a variable; return what the backend said about the call that made it.

        For a select: the scores. With n above 1: a list. None for what no call made.
        """
        self.get_var(name)
        return wait(self._find(name)).meta

    async def aget_meta_info(self, name: str) -> Any:
        """The same in an async program."""
        await self.aget(name)
        return (await self._afind(name)).meta

    def tool_calls(self, name: str) -> list[ToolCall]:
        """Wait for the variable of a gen with tools; return what the model has called.

        With n above 1 these are the calls of the first output, with which the text goes on.
        """
        return _calls(name, self.get_meta_info(name))

    async def atool_calls(self, name: str) -> list[ToolCall]:
        """The same in an async program."""
        return _calls(name, await self.aget_meta_info(name))

    def variables(self) -> dict[str, Any]:
        """Wait for all variables that the program has written so far."""
        return {name: self.get_var(name) for name in self._variables.snapshot()}

    def text(self) -> str:
        """Wait until all that was added is there; return the text, without marks of roles."""
        self.sync()
        return self._interpreter.transcript.text

    async def atext(self) -> str:
        """The same in an async program."""
        await self.async_sync()
        return self._interpreter.transcript.text

    def messages(self) -> list[dict[str, Any]]:
        """Wait as text() does; return the messages in OpenAI's form."""
        self.sync()
        return self._messages()

    async def amessages(self) -> list[dict[str, Any]]:
        """The same in an async program."""
        await self.async_sync()
        return self._messages()

    def sync(self) -> None:
        """Wait until all that was added is there; raises the error that stopped it."""
        with self._telling():
            if self._body is not None and not self._is_inside():
                wait(self._body, self._patience())
            wait(self._interpreter.idle(), self._patience())

    async def async_sync(self) -> None:
        """The same in an async program."""
        with self._telling():
            if self._body is not None and not self._is_inside():
                await wait_async(self._body, self._patience())
            await wait_async(self._interpreter.idle(), self._patience())

    def error(self) -> BaseException | None:
        """What stopped this state, None if nothing has so far; who asks has been told."""
        error = self._interpreter.error
        if error is not None:
            self._interpreter.seen(error)
        return error

    def cancel(self) -> None:
        """End the whole run that this state belongs to; nobody waits for its function any more."""
        self._run.cancel()
        if self._body is not None:
            self.end_body(self._run.stop_error)

    def text_iter(self, name: str | None = None, sample: int = 0) -> Iterator[str]:
        """The text of a variable, or all text, in pieces as they come.

        With stream=True these are the tokens; else outputs come whole, as does what a var_scope
        spans. sample: which of a gen's n outputs is followed. Raises what stopped it.
        """
        with self._telling():
            variable = None if name is None else wait(self._find(name), self._patience())
            place, is_silent = 0, True
            while True:
                change = self._interpreter.feed.change()
                is_last = self._is_complete(variable)
                pieces = self._interpreter.feed.pieces_from(place)
                place += len(pieces)
                for text in _texts(pieces, variable, sample):
                    is_silent = False
                    yield text
                if is_last:
                    break
                wait(change, self._patience())
        self._raise_if_failed(variable)
        if is_silent and (text := _whole(variable)):
            yield text

    async def text_async_iter(
        self, name: str | None = None, sample: int = 0
    ) -> AsyncGenerator[str, None]:
        """The same for `async for`, on any event loop."""
        with self._telling():
            variable = None if name is None else await self._afind(name)
            place, is_silent = 0, True
            while True:
                change = self._interpreter.feed.change()
                is_last = self._is_complete(variable)
                pieces = self._interpreter.feed.pieces_from(place)
                place += len(pieces)
                for text in _texts(pieces, variable, sample):
                    is_silent = False
                    yield text
                if is_last:
                    break
                await wait_async(change, self._patience())
        self._raise_if_failed(variable)
        if is_silent and (text := _whole(variable)):
            yield text

    # For programs and branches

    @property
    def run(self) -> Run:
        """The run that this state works for."""
        return self._run

    @property
    def has_failed(self) -> bool:
        """Whether something has stopped this state; asking tells nobody of it."""
        return self._interpreter.error is not None

    def idle(self) -> Promise[None]:
        """Done when no step is left; fails with what stopped the state."""
        return self._interpreter.idle()

    def unseen_error(self) -> BaseException | None:
        """What stopped this state, or a branch of its run that the program was not told of."""
        error = self._interpreter.error
        return self._run.unseen_error() if error is None else error

    def names_since(self, known: dict[str, Variable]) -> list[str]:
        """Names of the variables that are not, or not any more, those of known."""
        now = self._variables.snapshot()
        return [name for name, variable in now.items() if known.get(name) is not variable]

    def begin_body(self) -> None:
        """The program runs beside its readers from now on; end_body must follow."""
        self._body = Promise()

    def end_body(self, error: BaseException | None = None) -> None:
        """The program has returned, or raised error: no variables will be written any more."""
        self._variables.close(error)
        if self._body is not None and not self._body.done():
            if error is None:
                self._body.set_result(None)
            else:
                self._body.set_exception(error)
        self._interpreter.feed.wake()

    def _branch(self, shared: Promise[Transcript], known: dict[str, Variable]) -> ProgramState:
        branch = ProgramState.__new__(ProgramState)
        branch.ret_value = None
        branch._run = self._run
        branch._interpreter = _new_interpreter(self._run)
        branch._outline = self._outline.copy()
        branch._variables = VariableTable(known)
        branch._body = None
        branch._interpreter.submit(Adopt(shared))
        return branch

    def _add(self, expression: Expression) -> None:
        for one in flattened(expression):
            if isinstance(one, Text):
                self._outline.add_text(one.text)
                self._interpreter.submit(AddText(one.text))
            elif isinstance(one, Gen | Select):
                self._call(one)
            elif isinstance(one, Role):
                with self._role(one.role, None):
                    self._add(one.body)
            elif isinstance(one, ToolResult):
                with self._message("tool", one.call.id):
                    self._add(Text(one.text))
            else:
                raise ProgramError(f"{type(one).__name__} cannot be added to a state")

    def _call(self, op: Gen | Select) -> None:
        self._outline.add_output(op, self._run.defaults, self._run.backend)
        variable = Variable(op.name)
        # Declared also if the state has failed: reading it then tells why.
        self._variables.declare(variable)
        self._interpreter.submit(Call(op, variable))

    def _role(self, role: str, content: object) -> Any:
        if content is not None:
            self._add(Role(role, as_expression(content)))
            return self
        return self._message(role)

    @contextmanager
    def _message(self, role: str, call_id: str | None = None) -> Iterator[None]:
        self._outline.open(role)
        self._interpreter.submit(OpenRole(role, call_id))
        try:
            yield
        finally:
            self._outline.close()
            if self._interpreter.error is None:
                self._interpreter.submit(CloseRole())

    def _find(self, name: str) -> Promise[Variable]:
        # A name that a run did not come to, because it was stopped, tells what stopped it.
        error = self._interpreter.error or self._run.stop_error
        return self._variables.find(name, not self._is_inside(), error)

    async def _afind(self, name: str, timeout_seconds: float | None = None) -> Variable:
        return await wait_async(self._find(name), self._patience(timeout_seconds))

    def _patience(self, timeout_seconds: float | None = None) -> float | None:
        return self._run.seconds_left() if timeout_seconds is None else timeout_seconds

    def _is_inside(self) -> bool:
        return running_program.get() is self._run

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What is raised to the program inside is an error that it has been told of."""
        try:
            yield
        except BaseException as error:
            self._told(error)
            raise

    def _told(self, error: BaseException) -> None:
        """error is about to be raised to a reader; inside, the program has been told of it."""
        if self._is_inside() and error is self._interpreter.error:
            self._interpreter.seen(error)

    def _messages(self) -> list[dict[str, Any]]:
        return [one.wire() for one in self._interpreter.transcript.messages]

    def _is_complete(self, variable: Variable | None) -> bool:
        if variable is not None:
            return variable.future.done()
        is_ended = self._body is None or self._body.done() or self._is_inside()
        return is_ended and self._interpreter.is_idle

    def _raise_if_failed(self, variable: Variable | None) -> None:
        if variable is not None:
            with self._telling():
                wait(variable.future)
        elif self._interpreter.error is not None:
            raise self._interpreter.seen(self._interpreter.error)
        elif self._body is not None and self._body.done():
            self._body.result()


def _new_interpreter(run: Run) -> Interpreter:
    return Interpreter(run) if run.new_recorder is None else run.new_recorder()


def _texts(pieces: list[Piece], variable: Variable | None, sample: int) -> Iterator[str]:
    if variable is None:
        return (one.text for one in pieces if one.sample == 0)
    return (one.text for one in pieces if one.variable is variable and one.sample == sample)


def _whole(variable: Variable | None) -> str:
    """The text of a variable that is set and came in no pieces: of a var_scope, or by set_var."""
    value = None if variable is None else variable.future.result()
    return value if isinstance(value, str) else ""


def _calls(name: str, meta: Any) -> list[ToolCall]:
    first = meta[0] if isinstance(meta, list) else meta
    if not isinstance(first, dict) or "tool_calls" not in first:
        raise ProgramError(f"{name!r} has no tool calls; its gen was given no tools")
    calls: list[ToolCall] = first["tool_calls"]
    return calls
