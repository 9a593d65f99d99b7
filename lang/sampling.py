"""How a gen draws its tokens, under the names of the native API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Any

import msgspec

from .errors import ProgramError
from .value_types import type_of_schema


class Sampling(msgspec.Struct, frozen=True):
    """None means "not set": the run's value holds, then the backend's own default.

    A struct, because every gen makes one: a frozen dataclass takes 3 us for as many fields.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: str | Sequence[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    json_whitespace: str | None = None

    def explicit(self) -> dict[str, Any]:
        """The fields that are set, as JSON types."""
        values = zip(FIELDS, _values_of(self), strict=True)
        return {name: _plain(value) for name, value in values if value is not None}

    def names(self) -> list[str]:
        """The names of the fields that are set."""
        values = zip(FIELDS, _values_of(self), strict=True)
        return [name for name, value in values if value is not None]

    def over(self, defaults: Sampling) -> Sampling:
        """These fields, with those of defaults where they are not set.

        A grammar of this one takes the place of any grammar of the defaults.
        """
        if defaults is NOTHING_SET:
            return self
        values = defaults.explicit()
        own = self.explicit()
        if own.keys() & GRAMMAR_FIELDS:
            values = {name: one for name, one in values.items() if name not in GRAMMAR_FIELDS}
        return Sampling(**{**values, **own})


FIELDS = Sampling.__struct_fields__
_values_of = attrgetter(*FIELDS)  # every gen asks for all of them
NOTHING_SET = Sampling()
NAMES_IN_GEN = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
GRAMMAR_FIELDS = frozenset(("regex", "json_schema", "ebnf"))


def sampling_from(values: Mapping[str, Any], what: str) -> Sampling:
    """Read fields given by name; raises ProgramError for one that does not exist.

    max_tokens and min_tokens are what gen calls two of them. json_schema is as in gen, but only
    constrains: variables stay text.
    """
    values = {NAMES_IN_GEN.get(name, name): value for name, value in values.items()}
    for name in values:
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            if name == "num_threads":  # which SGLang's programs give
                hint = "; run_batch has concurrency for it"
            raise ProgramError(f"{what} takes no field {name!r}{hint}")
    if values.get("json_schema") is not None:
        values["json_schema"] = type_of_schema(values["json_schema"]).json_schema
    return Sampling(**values) if values else NOTHING_SET


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, Sequence):
        return list(value)
    return value
