"""The variables of a state: each is set once, or fails, and may be waited for."""

from __future__ import annotations

import threading
from typing import Any

from .promise import Promise


class Variable:
    """One value to come. future ends with the value or the error that left it unset."""

    __slots__ = ("future", "meta", "name")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.future: Promise[Any] = Promise()
        self.meta: Any = None

    def set(self, value: Any, meta: Any = None) -> None:
        """Give the value, and the meta info of the call that made it."""
        self.meta = meta
        self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """End without a value."""
        if not self.future.done():
            self.future.set_exception(error)


class VariableTable:
    """Variables by name. A name that is written again stands for its newest variable.

    While the program still runs beside its readers (is_open) a name may be yet to come.
    """

    def __init__(self, variables: dict[str, Variable] | None = None, is_open: bool = False) -> None:
        self._lock = threading.Lock()
        self._variables = dict(variables or {})
        self._is_open = is_open
        self._error: BaseException | None = None
        self._waiting: dict[str, list[Promise[Variable]]] = {}

    def declare(self, variable: Variable) -> None:
        """Make variable the one of its name; without a name it is not kept."""
        if variable.name is None:
            return
        with self._lock:
            self._variables[variable.name] = variable
            waiting = self._waiting.pop(variable.name, ())
        for one in waiting:
            one.set_result(variable)

    def known(self, name: str) -> Variable | None:
        """The variable of name, if it has been written by now."""
        return self._variables.get(name)

    def find(
        self, name: str, may_come: bool, error: BaseException | None = None
    ) -> Promise[Variable]:
        """The variable of name; if may_come is false it must have been written by now.

        What is returned fails with error, the program's error or KeyError if there is no such name.
        """
        found: Promise[Variable] = Promise()
        with self._lock:
            if name in self._variables:
                found.set_result(self._variables[name])
            elif self._is_open and may_come:
                self._waiting.setdefault(name, []).append(found)
            else:
                found.set_exception(error or self._error or self._missing(name))
        return found

    def close(self, error: BaseException | None = None) -> None:
        """No names will come any more, because of error if there is one."""
        with self._lock:
            self._is_open = False
            self._error = self._error or error
            waiting, self._waiting = self._waiting, {}
        for name, futures in waiting.items():
            for one in futures:
                one.set_exception(self._error or self._missing(name))

    def snapshot(self) -> dict[str, Variable]:
        """All variables so far, in the order of their first writing."""
        with self._lock:
            return dict(self._variables)

    def _missing(self, name: str) -> KeyError:
        known = ", ".join(self._variables) or "none"
        return KeyError(f"the program has written no variable {name!r}; it has: {known}")
