"""The shape of a program as far as it is written: roles that are open, and what a backend must do.

Known as soon as an expression is added, before anything runs, so that misuse and missing abilities
are told at the line that is wrong, and before any call for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .backends.protocol import Backend
from .choices import ChoicesMethod
from .errors import ProgramError, Unsupported
from .expressions import Gen, Select
from .sampling import Sampling

ROLES = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class Outline:
    """What is open and what was used, by one state."""

    open_role: str | None = None
    open_is_empty: bool = True
    has_roles: bool = False
    has_plain_text: bool = False

    def copy(self) -> Outline:
        """The outline of a branch."""
        return replace(self)

    def add_text(self, text: str) -> None:
        """Text comes; raises ProgramError outside the messages of a conversation."""
        if not text:
            return
        if self.open_role is None:
            if self.has_roles:
                raise ProgramError(
                    f"text {text[:40]!r} stands outside a role in a program with roles; put it in "
                    "user(...), system(...) or assistant(...)"
                )
            self.has_plain_text = True
        self.open_is_empty = False

    def open(self, role: str) -> None:
        """A message begins; raises ProgramError inside another, or after plain text."""
        if role not in ROLES:
            raise ProgramError(f"role is {role!r}; it must be one of {', '.join(ROLES)}")
        if self.open_role is not None:
            raise ProgramError(f"{role} stands inside {self.open_role}; roles do not nest")
        if self.has_plain_text:
            raise ProgramError(
                f"{role} comes after text outside a role; put that text in a role too"
            )
        self.open_role, self.open_is_empty, self.has_roles = role, True, True

    def close(self) -> None:
        """The open message ends."""
        self.open_role, self.open_is_empty = None, True

    def add_output(self, op: Gen | Select, defaults: Sampling, backend: Backend) -> None:
        """The model goes on; raises ProgramError outside a role, Unsupported if backend cannot."""
        if self.has_roles and self.open_role is None:
            raise ProgramError(
                f"the output {op.name!r} stands outside a role in a program with roles; "
                "write assistant(gen(...))"
            )
        self._check_place(backend)
        if isinstance(op, Select):
            _check_select(op, backend)
        else:
            _check_fields(op, defaults, backend)
            if op.tools is not None:
                self._check_tools(op, backend)
        self.has_plain_text = self.open_role is None
        self.open_is_empty = False

    def _check_place(self, backend: Backend) -> None:
        abilities = backend.abilities
        if self.open_role is None:
            if not abilities.goes_on_from_text:
                raise Unsupported(
                    f"{backend.name} takes messages only; put the program's text in roles"
                )
            return
        if not abilities.takes_messages:
            raise Unsupported(f"{backend.name} takes plain text only; leave the roles out")
        if abilities.goes_on_in_messages:
            return
        if self.open_role != "assistant":
            raise Unsupported(
                f"{backend.name} writes messages of the assistant only; this output stands in "
                f"{self.open_role}(...)"
            )
        if not self.open_is_empty and not abilities.goes_on_in_assistant:
            raise Unsupported(
                f"{backend.name} writes whole messages of the assistant only; a gen must be all "
                "that is in an assistant(...)"
            )

    def _check_tools(self, op: Gen, backend: Backend) -> None:
        if not backend.abilities.calls_tools:
            raise Unsupported(f"{backend.name} takes no tools, which {op.name!r} offers")
        if self.open_role != "assistant" or not self.open_is_empty:
            raise ProgramError(
                f"{op.name!r} offers tools; such a gen must be all that is in an assistant(...)"
            )


def _check_select(op: Select, backend: Backend) -> None:
    if not backend.abilities.scores_choices:
        hint = backend.abilities.scoring_hint
        raise Unsupported(f"{backend.name} cannot score choices, as select needs{hint}")
    is_relative = op.method is ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
    if is_relative and not backend.abilities.scores_unconditionally:
        raise Unsupported(
            f"{backend.name} cannot compare choices by {op.method.value}, as {op.name!r} does; "
            "use another choices_method"
        )


def _check_fields(op: Gen, defaults: Sampling, backend: Backend) -> None:
    for name in op.sampling.over(defaults).names():
        if name not in backend.abilities.sampling_fields:
            raise Unsupported(f"{backend.name} has no {name}, which {op.name!r} sets")
    if op.logprobs is not None and not backend.abilities.gives_logprobs:
        raise Unsupported(f"{backend.name} gives no log-probabilities, which {op.name!r} asks for")
    asks_for_prompt = op.logprobs is not None and op.logprobs.prompt_start is not None
    if asks_for_prompt and not backend.abilities.gives_prompt_logprobs:
        raise Unsupported(
            f"{backend.name} gives no log-probabilities of the prompt, which {op.name!r} asks for "
            "by logprob_start_len"
        )
