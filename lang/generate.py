"""gen, select and their typed forms: what programs write where the model shall go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex as regex_dialect

from .choices import ChoicesMethod
from .errors import ProgramError
from .expressions import Gen, LogprobRequest, Select
from .sampling import Sampling
from .tools import ToolOffer, tool_offer
from .value_types import TEXT, ValueType, type_of_dtype, type_of_schema


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[str, float] | None = None,
    ignore_eos: bool | None = None,
    skip_special_tokens: bool | None = None,
    spaces_between_special_tokens: bool | None = None,
    no_stop_trim: bool | None = None,
    seed: int | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | str = ChoicesMethod.TOKEN_LENGTH_NORMALIZED,
    regex: str | None = None,
    json_schema: Any = None,  # a dict, its text, a pydantic model or a dataclass
    json_whitespace: str | None = None,
    ebnf: str | None = None,
    tools: Sequence[Callable[..., Any] | Mapping[str, Any]] | None = None,
    tool_choice: str | None = None,
    parallel_tool_calls: bool | None = None,
) -> Gen | Select:
    """What the model writes next; its text joins the state's, its value becomes s[name].

    The value is text, or of dtype (int, float, bool, str), or an instance of the class given as
    json_schema. json_whitespace says where such JSON may have whitespace: "compact" (nowhere),
    "spaced", "bounded" or "unbounded"; None is the server's --json-whitespace. With n above 1 the
    value is a list, and the text goes on with the first. choices makes it a select. tools are
    functions or dicts in OpenAI's form that the model may call instead of writing text:
    s.tool_calls(name) has the calls; tool_choice is "auto", "none", "required" or a tool's name.
    Raises ProgramError for more than one of dtype, choices, regex, json_schema, ebnf and tools.
    """
    _check_one_form(
        dtype=dtype, choices=choices, regex=regex, json_schema=json_schema, ebnf=ebnf, tools=tools
    )
    _check_name(name)
    if choices is not None:
        if n not in (None, 1):
            raise ProgramError(
                f"{name!r} has choices and n = {n}; one choice is taken: leave n out"
            )
        return select(name, choices, temperature or 0.0, choices_method)
    if regex is not None:
        _check_regex(regex)
    value_type = _value_type(dtype, json_schema)
    sampling = Sampling(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        n=n,
        stop=_with_stops(stop, value_type.stop),
        stop_token_ids=stop_token_ids,
        stop_regex=stop_regex,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=logit_bias,
        ignore_eos=ignore_eos,
        skip_special_tokens=skip_special_tokens,
        spaces_between_special_tokens=spaces_between_special_tokens,
        no_stop_trim=no_stop_trim,
        seed=seed,
        regex=regex if value_type.regex is None else value_type.regex,
        json_schema=value_type.json_schema,
        ebnf=ebnf,
        json_whitespace=json_whitespace,
    )
    wants_logprobs = bool(return_logprob or top_logprobs_num) or logprob_start_len is not None
    logprobs = None
    if wants_logprobs:
        with_text = bool(return_text_in_logprobs)
        logprobs = LogprobRequest(top_logprobs_num or 0, logprob_start_len, with_text)
    return Gen(
        name,
        sampling,
        value_type,
        logprobs,
        _offer(name, tools, tool_choice, parallel_tool_calls, wants_logprobs),
    )


def gen_int(name: str | None = None, max_tokens: int | None = None, **fields: Any) -> Gen | Select:
    """A gen whose variable is an int; fields are those of gen."""
    return gen(name, max_tokens, dtype=int, **fields)


def gen_string(
    name: str | None = None, max_tokens: int | None = None, **fields: Any
) -> Gen | Select:
    """A gen of a quoted string, whose variable is the str without quotes; fields are gen's."""
    return gen(name, max_tokens, dtype=str, **fields)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str = ChoicesMethod.TOKEN_LENGTH_NORMALIZED,
    *,
    early_exit: bool = False,
) -> Select:
    """The most likely of choices here; it joins the text and becomes s[name].

    All choices are scored in one call. early_exit: scores of choices that cannot win any more may
    be left out, and are None in the meta info; worth it with many choices, and with
    greedy_token_selection, which the first token often decides. Raises ProgramError for choices
    that are no list of different, non-empty texts, and for a temperature: nothing is drawn.
    """
    _check_name(name)
    if choices is None or isinstance(choices, str) or not choices:
        raise ProgramError(f"choices of {name!r} must be a list with at least one text")
    for one in choices:
        if not isinstance(one, str) or not one:
            raise ProgramError(f"choices of {name!r} has {one!r}; each must be a non-empty text")
    if len(set(choices)) != len(choices):
        raise ProgramError(f"choices of {name!r} has the same text twice")
    if temperature > 1e-5:
        raise ProgramError(f"temperature of {name!r} is {temperature}; select takes the best: 0")
    return Select(name, tuple(choices), _method(choices_method), early_exit)


def _check_one_form(**forms: object) -> None:
    given = [name for name, value in forms.items() if value is not None]
    if len(given) > 1:
        raise ProgramError(f"gen has {' and '.join(given)}; an output follows one of them")


def _check_name(name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise ProgramError(
            f"the first argument is {name!r}; it is the name of the variable, a text: "
            "gen('answer', max_tokens=...)"
        )


def _check_regex(pattern: str) -> None:
    """Refuse what is none in any dialect; what a server does not know of the rest it says."""
    try:
        regex_dialect.compile(pattern)
    except regex_dialect.error as error:
        raise ProgramError(f"regex {pattern[:80]!r} is none: {error}") from None


def _offer(
    name: str | None,
    tools: Sequence[Callable[..., Any] | Mapping[str, Any]] | None,
    choice: str | None,
    parallel: bool | None,
    wants_logprobs: bool,
) -> ToolOffer | None:
    if tools is None:
        for field, value in (("tool_choice", choice), ("parallel_tool_calls", parallel)):
            if value is not None:
                raise ProgramError(f"{name!r} has {field} without tools")
        return None
    if wants_logprobs:
        raise ProgramError(f"{name!r} has tools and log-probabilities; ask for one of them")
    return tool_offer(tools, choice, parallel)


def _value_type(dtype: type | None, json_schema: Any) -> ValueType:
    if dtype is not None:
        return type_of_dtype(dtype)
    return TEXT if json_schema is None else type_of_schema(json_schema)


def _with_stops(
    stop: str | Sequence[str] | None, more: tuple[str, ...]
) -> str | Sequence[str] | None:
    if not more:
        return stop
    own = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
    return [*own, *(one for one in more if one not in own)]


def _method(given: ChoicesMethod | str) -> ChoicesMethod:
    try:
        return ChoicesMethod(given)
    except ValueError:
        known = ", ".join(one.value for one in ChoicesMethod)
        raise ProgramError(f"choices_method is {given!r}; it must be one of {known}") from None
