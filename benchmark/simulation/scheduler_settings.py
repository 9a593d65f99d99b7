"""Settings of the scheduler by name: one set of SchedulerConfig overrides for each run.

Names and values are those of the scheduling package: what it takes, the simulator takes.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.srt.scheduling.admission import RULES
from runtime.srt.scheduling.config import SchedulerConfig
from runtime.srt.scheduling.queue_order import POLICIES

_CHOICES: Mapping[str, Sequence[str]] = {"policy": list(POLICIES), "admission": list(RULES)}
_OWN = ("context_length", "max_running_requests", "eos_token_ids")  # set by the simulator's flags
_WORDS = {"none": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How one run of a comparison differs: labels for the table, overrides for the scheduler."""

    labels: dict[str, str]
    overrides: dict[str, Any]
    queue_depth: int | None


def every_combination(
    fixed: Sequence[str],
    varied: Sequence[str],
    named: Sequence[str],
    queue_depths: Sequence[int | None],
) -> list[RunSettings]:
    """Return a RunSettings for each combination of the values.

    fixed: texts FIELD=VALUE; varied: texts FIELD=VALUE,VALUE,...; named: texts
    NAME:FIELD=VALUE,FIELD=VALUE,..., which are alternatives to each other. Raises ValueError naming
    a field or value that the scheduler does not have.
    """
    base = dict(_setting(text) for text in fixed)
    axes = [_axis(text) for text in varied]
    if named:
        axes.append([_named(text) for text in named])
    runs = []
    for values in itertools.product(*axes):
        for depth in queue_depths:
            labels = {name: text for name, text, _ in values}
            if depth is not None:
                labels["queue depth"] = str(depth)
            overrides = dict(base)
            for _, _, changes in values:
                overrides.update(changes)
            runs.append(RunSettings(labels, overrides, depth))
    return runs


def setting_names() -> list[str]:
    """Return the fields that can be set."""
    return [field.name for field in dataclasses.fields(SchedulerConfig) if field.name not in _OWN]


def choices(name: str) -> list[str]:
    """Return the values that a field can have, as far as they can be listed."""
    return list(_CHOICES.get(name, ()))


_Choice = tuple[str, str, dict[str, Any]]  # column of the table, cell, overrides


def _axis(text: str) -> list[_Choice]:
    name, _, values = text.partition("=")
    return [(name, value, dict([_setting(f"{name}={value}")])) for value in values.split(",")]


def _named(text: str) -> _Choice:
    name, separator, settings = text.partition(":")
    if not separator:
        raise ValueError(f"{text!r} is not NAME:FIELD=VALUE,...")
    return "run", name, dict(_setting(one) for one in settings.split(","))


def _setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator or name not in setting_names():
        raise ValueError(f"{text!r} does not set one of {', '.join(setting_names())}")
    if (known := _CHOICES.get(name)) is not None and value not in known:
        raise ValueError(f"{name} {value!r} is none of {', '.join(known)}")
    return name, _parsed(name, value)


def _parsed(name: str, text: str) -> Any:
    hint = typing.get_type_hints(SchedulerConfig)[name]
    accepted = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    word = text.lower()
    if word in _WORDS and type(_WORDS[word]) in accepted:
        return _WORDS[word]
    for kind in (int, float, str):
        if kind in accepted:
            try:
                return kind(text)
            except ValueError:
                continue
    names = ", ".join("none" if kind is type(None) else kind.__name__ for kind in accepted)
    raise ValueError(f"{name} {text!r} is not one of these: {names}")
