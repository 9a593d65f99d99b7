"""The body of /v1/completions and what it becomes: one request per prompt and sample."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..errors import BadRequest
from ..messages import GenerateRequest
from ..processes.generation_spec import GenerationSpec
from ..processes.intake import MAX_TOP_LOGPROBS
from ..sampling_params import LogprobOptions
from .context import ApiContext
from .generation import prepare_all
from .openai_fields import OpenAiFields, new_id, with_openai_names
from .prompts import Prompt, TextsOrIds, parse_prompts, prompt_text
from .unavailable import refuse_if_set

DEFAULT_MAX_TOKENS = 16


class CompletionBody(OpenAiFields):
    """The body of /v1/completions."""

    prompt: TextsOrIds = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """A checked body and its requests, num_samples in a row for each prompt.

    echoes holds what each choice's text begins with.
    """

    rid: str
    body: CompletionBody
    model_name: str
    created_unix_seconds: int
    requests: list[GenerateRequest]
    num_samples: int
    echoes: list[str]


async def completion_job(context: ApiContext, body: CompletionBody) -> CompletionJob:
    """Check body whole and prepare its requests; nothing is sent yet. Raises ServingError."""
    context.check_model(body.model)
    try:
        return await _job(context, body)
    except BadRequest as error:
        raise with_openai_names(error) from None


async def _job(context: ApiContext, body: CompletionBody) -> CompletionJob:
    if body.prompt is None:
        raise BadRequest("prompt is missing", param="prompt")
    prompts, is_batch = parse_prompts(body.prompt, "prompt")
    rid = body.rid if body.rid is not None else new_id("cmpl")
    specs = _specs(context, body, prompts, rid, is_batch)
    with context.open_bodies.preparing(rid, specs):
        prepared = await prepare_all(context.client, specs)
    num_samples = len(prepared[0])
    echoes = [
        prompt_text(context.client, prompt) if body.echo else ""
        for prompt in prompts
        for _ in range(num_samples)
    ]
    return CompletionJob(
        rid=rid,
        body=body,
        model_name=context.model_name,
        created_unix_seconds=int(time.time()),
        requests=[one for samples in prepared for one in samples],
        num_samples=num_samples,
        echoes=echoes,
    )


def _specs(
    context: ApiContext, body: CompletionBody, prompts: list[Prompt], rid: str, is_batch: bool
) -> list[GenerationSpec]:
    refuse_if_set("insertion before a suffix", suffix=body.suffix)
    explicit = body.explicit()
    sampling = context.sampling_defaults.resolve(explicit, max_new_tokens=DEFAULT_MAX_TOKENS)
    if body.best_of not in (None, sampling.n):
        raise BadRequest(
            f"best_of is {body.best_of} and n is {sampling.n}; choosing among more samples than "
            "are returned is not available, leave best_of out",
            param="best_of",
        )
    logprobs = None
    if body.logprobs is not None:
        if not 0 <= body.logprobs <= MAX_TOP_LOGPROBS:
            raise BadRequest(
                f"logprobs is {body.logprobs}; it must be from 0 to {MAX_TOP_LOGPROBS}",
                param="logprobs",
            )
        logprobs = LogprobOptions(prompt_start=0 if body.echo else None, num_top=body.logprobs)
    grammar = body.grammar(context.sampling_defaults.json_whitespace)
    return [
        GenerationSpec(
            prompt=prompt,
            sampling=sampling,
            logprobs=logprobs,
            stream=bool(body.stream),
            rid=f"{rid}_{index}" if is_batch else rid,
            namespace=body.namespace,
            priority=body.priority or 0,
            timeout_seconds=body.timeout_seconds,
            program_id=body.program_id,
            branch_id=body.branch_id,
            clamp_max_new_tokens="max_new_tokens" not in explicit,
            top_logprobs_field="logprobs",
            grammar=None if grammar is None else grammar.spec,
            grammar_field=None if grammar is None else grammar.param,
        )
        for index, prompt in enumerate(prompts)
    ]
