"""The states that a fork makes, together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, overload

from .errors import ProgramError
from .loop_thread import wait, wait_async
from .promise import Promise
from .state import ProgramState
from .variables import Variable


def fork(state: ProgramState, num_branches: int = 1) -> Branches:
    """The same as state.fork(num_branches)."""
    return state.fork(num_branches)


class Branches(Sequence[ProgramState]):
    """Branches in order; `+=` adds to all: one value, a list with one for each, or a function of
    the index.
    """

    def __init__(
        self, parent: ProgramState, states: list[ProgramState], known: dict[str, Variable]
    ) -> None:
        self._parent = parent
        self._states = states
        self._known = known

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> list[ProgramState]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | list[ProgramState]:
        return self._states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        """Only what `branches[i] += ...` writes back: the same state."""
        if self._states[index] is not state:
            raise ProgramError("a branch cannot be replaced; add to it with +=")

    def __iadd__(self, value: Any) -> Branches:  # a value, a list, or a function that gives one
        if isinstance(value, list | tuple) and len(value) != len(self):
            raise ProgramError(f"{len(value)} values are added to {len(self)} branches")
        for index, state in enumerate(self._states):
            state += _value_for(value, index)
        return self

    def __enter__(self) -> Branches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.join()

    def join(self) -> None:
        """Wait for all branches; each new variable becomes a list in the parent, by branch.

        A branch without the variable has None there. Raises the error of the branch that fails
        first, without waiting for the others.
        """
        wait(self._all_idle(), self._parent.run.seconds_left())
        for state in self._failed_first():
            state.sync()
        values = [
            {name: state[name] for name in state.names_since(self._known)} for state in self._states
        ]
        self._gather(values)

    async def ajoin(self) -> None:
        """The same in an async program."""
        await wait_async(self._all_idle(), self._parent.run.seconds_left())
        for state in self._failed_first():
            await state.async_sync()
        values = [
            {name: await state.aget(name) for name in state.names_since(self._known)}
            for state in self._states
        ]
        self._gather(values)

    def _all_idle(self) -> Promise[None]:
        """Done when no branch has anything left to execute, or one has failed; never fails."""
        done: Promise[None] = Promise()
        lock = threading.Lock()
        left = len(self._states)

        def ended(one: Promise[None]) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not done.done() and (left == 0 or one.exception() is not None)
                if is_last:
                    done.set_result(None)

        for state in self._states:
            state.idle().add_done_callback(ended)
        return done

    def _failed_first(self) -> list[ProgramState]:
        return sorted(self._states, key=lambda state: not state.has_failed)

    def _gather(self, values: list[dict[str, Any]]) -> None:
        for name in dict.fromkeys(name for one in values for name in one):
            self._parent.set_var(name, [one.get(name) for one in values])


def _value_for(value: Any, index: int) -> Any:
    if isinstance(value, list | tuple):
        return value[index]
    if callable(value):
        return value(index)
    return value
