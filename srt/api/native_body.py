"""The body of /generate: one prompt or a batch, with fields given once or per item."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, FailFast, Field, WithJsonSchema
from typing_extensions import TypeAliasType

from ..errors import BadRequest
from ..processes.generation_spec import GenerationSpec
from ..processes.intake import check_name
from ..sampling_params import LogprobOptions
from .native_sampling import NativeSampling
from .prompts import MAX_PROMPTS, IdsOrLists, Prompt, TextOrTexts, parse_prompts
from .request_body import Body
from .sampling_defaults import SamplingDefaults
from .sampling_fields import AnyValue
from .unavailable import refuse_if_set
from .unknown_fields import refuse_misplaced_constraints

DEFAULT_MAX_NEW_TOKENS = 128


def _once_or_list(of: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [of, {"type": "array", "items": of}]})


# Named, because a plain annotation with FailFast cannot be part of a union.
SamplingList = TypeAliasType(
    "SamplingList",
    Annotated[list[NativeSampling | None], FailFast(), Field(max_length=MAX_PROMPTS)],
)


class GenerateBody(Body):
    """One of text and input_ids; other fields hold for all items, or list one value per item."""

    model_config = ConfigDict(extra="allow")

    text: TextOrTexts = None
    input_ids: IdsOrLists = None
    sampling_params: NativeSampling | SamplingList | None = None
    rid: TextOrTexts = None
    stream: bool | None = None
    return_logprob: Annotated[Any, _once_or_list({"type": "boolean"})] = None
    logprob_start_len: Annotated[Any, _once_or_list({"type": "integer"})] = None
    top_logprobs_num: Annotated[Any, _once_or_list({"type": "integer"})] = None
    token_ids_logprob: IdsOrLists = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    cache_salt: TextOrTexts = None
    extra_key: TextOrTexts = None
    priority: Annotated[Any, _once_or_list({"type": "integer"})] = None
    timeout_seconds: float | None = None
    program_id: TextOrTexts = None
    branch_id: TextOrTexts = None
    input_embeds: AnyValue = None
    image_data: AnyValue = None
    video_data: AnyValue = None
    audio_data: AnyValue = None
    lora_path: AnyValue = None
    session_params: AnyValue = None
    session_id: AnyValue = None
    custom_logit_processor: AnyValue = None
    return_hidden_states: AnyValue = None
    require_reasoning: AnyValue = None
    max_thinking_tokens: AnyValue = None


@dataclass(frozen=True, slots=True)
class NativeJob:
    """What a GenerateBody asks for. is_list: the answer is a list, one entry per completion."""

    rid: str
    specs: list[GenerationSpec]
    is_list: bool


def native_job(body: GenerateBody, defaults: SamplingDefaults) -> NativeJob:
    """Split body into one spec per prompt; raises BadRequest."""
    refuse_misplaced_constraints(body.unknown)
    _refuse_unavailable(body)
    prompts, is_batch = _prompts(body)
    rid, rids = _request_ids(body.rid, len(prompts) if is_batch else None)
    items = _Items(len(prompts) if is_batch else None)
    specs = [
        _spec(body, items, index, prompt, rids[index], defaults)
        for index, prompt in enumerate(prompts)
    ]
    return NativeJob(rid, specs, is_batch or specs[0].sampling.n > 1)


def namespace_of(cache_salt: str | None, extra_key: str | None) -> str | None:
    """Return the cache namespace of a salt and a key: equal only if both are.

    Raises BadRequest naming the one that is no printable name. An empty one counts as none.
    """
    check_name("cache_salt", cache_salt or None)
    check_name("extra_key", extra_key or None)
    if not cache_salt and not extra_key:
        return None
    salt = cache_salt or ""
    return f"{len(salt)}:{salt}:{extra_key or ''}"


class _Items:
    """Reads fields that may be given once for the batch or once per item."""

    def __init__(self, num_items: int | None) -> None:
        self._num_items = num_items

    def at(self, name: str, value: Any, index: int, kind: type) -> Any:
        if isinstance(value, list):
            value = self._entry(name, value, index)
        if value is not None and type(value) is not kind:
            raise BadRequest(f"{name} must be of type {_JSON_NAMES[kind]}", param=name)
        return value

    def ids_at(self, name: str, value: Any, index: int) -> tuple[int, ...]:
        """Read a list of ids, or a list of such lists with one per item."""
        if isinstance(value, list) and value and (value[0] is None or type(value[0]) is list):
            value = self._entry(name, value, index)
        if value is None:
            return ()
        if not isinstance(value, list) or any(type(one) is not int for one in value):
            raise BadRequest(f"{name} must be a list of token ids", param=name)
        return tuple(value)

    def _entry(self, name: str, value: list[Any], index: int) -> Any:
        if self._num_items is None and len(value) != 1:
            raise BadRequest(f"{name} is a list, but there is only one prompt", param=name)
        if self._num_items is not None and len(value) != self._num_items:
            raise BadRequest(
                f"{name} has {len(value)} entries for {self._num_items} prompts", param=name
            )
        return value[index]


_JSON_NAMES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    NativeSampling: "object",
}


def _prompts(body: GenerateBody) -> tuple[list[Prompt], bool]:
    if body.text is not None and body.input_ids is not None:
        raise BadRequest("text and input_ids are both given; send one of them", param="text")
    if body.text is not None:
        prompts, is_batch = parse_prompts(body.text, "text")
        if not isinstance(prompts[0], str):
            raise BadRequest("text must be a string or a list of strings", param="text")
        return prompts, is_batch
    if body.input_ids is not None:
        prompts, is_batch = parse_prompts(body.input_ids, "input_ids")
        if isinstance(prompts[0], str):
            raise BadRequest("input_ids must be a list of token ids", param="input_ids")
        return prompts, is_batch
    raise BadRequest("the prompt is missing; send text or input_ids", param="text")


def _request_ids(given: Any, num_items: int | None) -> tuple[str, list[str]]:
    """Return the body's id and those of its items."""
    if given is None:
        given = uuid.uuid4().hex
    if isinstance(given, str):
        if num_items is None:
            return given, [given]
        return given, [f"{given}_{index}" for index in range(num_items)]
    if not isinstance(given, list) or any(type(one) is not str for one in given):
        raise BadRequest("rid must be a string or a list of strings", param="rid")
    if len(given) != (num_items or 1):
        raise BadRequest(f"rid has {len(given)} entries for {num_items or 1} prompts", param="rid")
    if len(set(given)) != len(given):
        raise BadRequest("rid contains the same id twice", param="rid")
    return (given[0] if num_items is None else uuid.uuid4().hex), given


def _spec(
    body: GenerateBody,
    items: _Items,
    index: int,
    prompt: Prompt,
    rid: str,
    defaults: SamplingDefaults,
) -> GenerationSpec:
    given = items.at("sampling_params", body.sampling_params, index, NativeSampling)
    explicit = {} if given is None else given.explicit()
    grammar = None if given is None else given.grammar(defaults.json_whitespace)
    sampling = defaults.resolve(explicit, max_new_tokens=DEFAULT_MAX_NEW_TOKENS)
    return GenerationSpec(
        prompt=prompt,
        sampling=sampling,
        logprobs=_logprob_options(body, items, index, sampling.max_new_tokens == 0),
        stream=bool(body.stream),
        rid=rid,
        namespace=namespace_of(
            items.at("cache_salt", body.cache_salt, index, str),
            items.at("extra_key", body.extra_key, index, str),
        ),
        priority=items.at("priority", body.priority, index, int) or 0,
        clamp_max_new_tokens="max_new_tokens" not in explicit,
        timeout_seconds=body.timeout_seconds,
        program_id=items.at("program_id", body.program_id, index, str),
        branch_id=items.at("branch_id", body.branch_id, index, str),
        prompt_field="text" if body.text is not None else "input_ids",
        top_logprobs_field="top_logprobs_num",
        grammar=None if grammar is None else grammar.spec,
        grammar_field=None if grammar is None else grammar.param,
    )


def _logprob_options(
    body: GenerateBody, items: _Items, index: int, is_scoring: bool
) -> LogprobOptions | None:
    start = items.at("logprob_start_len", body.logprob_start_len, index, int)
    num_top = items.at("top_logprobs_num", body.top_logprobs_num, index, int) or 0
    token_ids = items.ids_at("token_ids_logprob", body.token_ids_logprob, index)
    if not items.at("return_logprob", body.return_logprob, index, bool):
        return None
    if start is not None and start < -1:
        raise BadRequest(
            f"logprob_start_len is {start}; it must be -1 (no prompt) or a prompt position",
            param="logprob_start_len",
        )
    if start is None and is_scoring:
        start = 0  # with no output, the prompt's logprobs are all that can be meant
    return LogprobOptions(
        prompt_start=None if start in (None, -1) else start, num_top=num_top, token_ids=token_ids
    )


def _refuse_unavailable(body: GenerateBody) -> None:
    refuse_if_set("input by embeddings", input_embeds=body.input_embeds)
    refuse_if_set(
        "image, video and audio input",
        image_data=body.image_data,
        video_data=body.video_data,
        audio_data=body.audio_data,
    )
    refuse_if_set("LoRA", lora_path=body.lora_path)
    refuse_if_set("sessions", session_params=body.session_params, session_id=body.session_id)
    refuse_if_set("custom code", custom_logit_processor=body.custom_logit_processor)
    refuse_if_set("returning hidden states", return_hidden_states=body.return_hidden_states)
    refuse_if_set(
        "reasoning control",
        require_reasoning=body.require_reasoning,
        max_thinking_tokens=body.max_thinking_tokens,
    )
