"""GenerationSpec: one prompt as a front end (HTTP route, Engine) asks for it, before any check."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.grammars.spec import GrammarSpec

from ..messages import ChoiceSet
from ..sampling_params import LogprobOptions, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSpec:
    """One prompt and how to continue it; Intake turns it into sampling.n requests.

    sampling.max_new_tokens None means to the end of the context. clamp_max_new_tokens True says
    that the value is a default nobody asked for: it is cut to what fits instead of being refused.
    add_special_tokens False is for text that a chat template has completed already. rid None draws
    one. namespace keeps cached prefixes apart (cache_salt, extra_key). timeout_seconds counts from
    arrival, None: the server's limit. tenant is whose quota counts. program_id names the run of a
    program whose calls belong together, branch_id the branch of it that makes this call.
    pin_seconds is how long the prompt stays pinned once it is computed, None: not at all.
    prompt_field and top_logprobs_field are what the front end calls these fields: errors name them
    so, and grammar_field the one that grammar came in. grammar None: the output is free.
    choices are scored after the prompt, which are token ids then, perhaps none; nothing is drawn.
    """

    prompt: str | list[int]
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    stream: bool = False
    rid: str | None = None
    namespace: str | None = None
    priority: int = 0
    add_special_tokens: bool = True
    clamp_max_new_tokens: bool = False
    timeout_seconds: float | None = None
    tenant: str | None = None
    program_id: str | None = None
    branch_id: str | None = None
    pin_seconds: float | None = None
    prompt_field: str = "prompt"
    top_logprobs_field: str = "top_logprobs"
    grammar: GrammarSpec | None = None
    grammar_field: str | None = None
    choices: ChoiceSet | None = None
