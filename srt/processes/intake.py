"""Intake: from a GenerationSpec to requests that the scheduler may trust.

Tokenises, and checks every id, range and length against the vocabulary, the context and the KV
pool: nothing behind this file checks them again.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from ..errors import BadRequest, ContextTooLong
from ..messages import ChoiceSet, GenerateRequest
from ..sampling_params import MAX_SAMPLES, LogprobOptions, SamplingParams, checked
from ..scheduling.choice_trie import ChoiceTrie
from .generation_spec import GenerationSpec

MAX_TOP_LOGPROBS = 128
MAX_LOGPROB_TOKEN_IDS = 1024
MAX_NAME_CHARS = 512  # of a rid, a namespace, a program or a branch
MAX_TIMEOUT_SECONDS = 1e6
MAX_PRIORITY = 2**31 - 1

_THREAD_ABOVE_CHARS = 8192  # about 2 ms of tokenising: as long as the event loop may stall
_SEED_BITS = 63


class PromptTokenizer(Protocol):
    """What intake needs of a tokenizer; min_num_tokens is a cheap lower bound of len(encode)."""

    @property
    def vocab_size(self) -> int: ...

    def min_num_tokens(self, text: str) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class Intake:
    """Prepares requests for one model. max_total_tokens is the size of the KV pool."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        vocab_size: int,
        context_length: int,
        max_total_tokens: int,
        page_size: int = 1,
        allow_auto_truncate: bool = False,
        random_seed: int | None = None,
        request_timeout_seconds: float | None = None,
        is_open: Callable[[str], bool] = lambda rid: False,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._pool_tokens = max_total_tokens // page_size * page_size
        self._allow_auto_truncate = allow_auto_truncate
        self._seeds = random.Random(random_seed)
        self._request_timeout_seconds = request_timeout_seconds
        self._is_open = is_open
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")

    def prepare(self, spec: GenerationSpec) -> list[GenerateRequest]:
        """Return spec's requests, one per sample, or raise BadRequest or ContextTooLong.

        With several samples request i has the rid "<rid>-<i>". Sample 0 draws with the given seed
        itself, sample i with a seed derived from it and i.
        """
        arrival_seconds = time.monotonic()
        rid = self._checked_rid(spec)
        if spec.namespace is not None:
            _check_encodable("namespace", spec.namespace)
        check_name("program_id", spec.program_id)
        check_name("branch_id", spec.branch_id)
        if abs(spec.priority) > MAX_PRIORITY:
            raise BadRequest(
                f"priority is {spec.priority}, beyond {MAX_PRIORITY}", param="priority"
            )
        timeout = self._timeout_seconds(spec)
        sampling = self._checked_sampling(spec)
        prompt_ids = self._prompt_ids(spec, sampling.max_new_tokens)
        if spec.choices is None:
            prompt_ids, max_new_tokens = self._fit(spec, prompt_ids, sampling.max_new_tokens)
        else:
            prompt_ids, max_new_tokens = self._fit_choices(spec, spec.choices, prompt_ids), 0
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min(sampling.min_new_tokens, max_new_tokens),
        )
        logprobs = self._checked_logprobs(spec, len(prompt_ids))
        if sampling.sampling_seed is not None:
            seed = sampling.sampling_seed
        else:
            seed = self._seeds.getrandbits(_SEED_BITS)
        return [
            GenerateRequest(
                rid=rid if sampling.n == 1 else f"{rid}-{index}",
                input_ids=prompt_ids,
                sampling=sampling,
                logprobs=logprobs,
                stream=spec.stream,
                namespace=spec.namespace,
                priority=spec.priority,
                seed=seed if index == 0 else _mix(seed, index),
                arrival_seconds=arrival_seconds,
                deadline_seconds=None if timeout is None else arrival_seconds + timeout,
                tenant=spec.tenant,
                program_id=spec.program_id,
                branch_id=spec.branch_id,
                pin_seconds=spec.pin_seconds,
                choices=spec.choices,
            )
            for index in range(sampling.n)
        ]

    async def prepare_async(self, spec: GenerationSpec) -> list[GenerateRequest]:
        """Do the same without stalling the event loop: a long text is tokenised in a thread."""
        if isinstance(spec.prompt, str) and len(spec.prompt) <= _THREAD_ABOVE_CHARS:
            return self.prepare(spec)
        if not isinstance(spec.prompt, str) and len(spec.prompt) <= 4 * _THREAD_ABOVE_CHARS:
            return self.prepare(spec)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.prepare, spec)

    def close(self) -> None:
        """Release the threads; texts being tokenised are given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def _longest(self) -> int:
        """Most tokens one request can have, prompt and output together."""
        return min(self._context_length, self._pool_tokens)

    def _checked_rid(self, spec: GenerationSpec) -> str:
        if spec.rid is None:
            return uuid.uuid4().hex
        check_name("rid", spec.rid)
        num_samples = min(spec.sampling.n, MAX_SAMPLES)
        for rid in (spec.rid, *(f"{spec.rid}-{index}" for index in range(num_samples))):
            if self._is_open(rid):
                raise BadRequest(
                    f"a request with rid {rid!r} is still open; choose another or leave it out",
                    param="rid",
                )
        return spec.rid

    def _timeout_seconds(self, spec: GenerationSpec) -> float | None:
        asked, longest = spec.timeout_seconds, self._request_timeout_seconds
        if asked is None:
            return longest
        if not 0 < asked <= (longest or MAX_TIMEOUT_SECONDS):
            raise BadRequest(
                f"timeout_seconds is {asked}; it must be above 0 and at most "
                f"{longest or MAX_TIMEOUT_SECONDS:g}",
                param="timeout_seconds",
            )
        return asked

    def _checked_sampling(self, spec: GenerationSpec) -> SamplingParams:
        sampling = spec.sampling
        default = sampling.max_new_tokens
        if spec.clamp_max_new_tokens and default is not None and sampling.min_new_tokens > default:
            sampling = msgspec.structs.replace(sampling, max_new_tokens=sampling.min_new_tokens)
        for name, texts in (("stop", sampling.stop), ("stop_regex", sampling.stop_regex)):
            for text in texts:
                _check_encodable(name, text)
        return checked(sampling, self._vocab_size)

    def _prompt_ids(self, spec: GenerationSpec, max_new_tokens: int | None) -> list[int]:
        prompt, name = spec.prompt, spec.prompt_field
        if isinstance(prompt, str):
            _check_encodable(name, prompt)
            fewest = self._tokenizer.min_num_tokens(prompt)
            if fewest > self._longest and not self._allow_auto_truncate:
                self._refuse(spec, f"at least {fewest}", 0)
            prompt_ids = self._tokenizer.encode(prompt, add_special_tokens=spec.add_special_tokens)
        else:
            prompt_ids = prompt
            if len(prompt) > self._longest and not self._allow_auto_truncate:
                # Before each id is looked at: there may be any number of them.
                self._refuse(spec, str(len(prompt)), 0)
        self._check_ids(name, prompt_ids)
        if not prompt_ids and spec.choices is None:
            raise BadRequest(f"{name} has an empty prompt; send at least one token", param=name)
        return prompt_ids

    def _check_ids(self, name: str, ids: list[int]) -> None:
        vocab_size = self._vocab_size
        for index, token_id in enumerate(ids):
            if type(token_id) is not int:
                raise BadRequest(
                    f"{name}: id {index} is of type {type(token_id).__name__}; ids are integers",
                    param=name,
                )
            if not 0 <= token_id < vocab_size:
                raise BadRequest(
                    f"{name}: id {index} is {token_id}; ids go from 0 to {vocab_size - 1}",
                    param=name,
                )

    def _fit(
        self, spec: GenerationSpec, prompt_ids: list[int], max_new_tokens: int | None
    ) -> tuple[list[int], int]:
        """Make prompt and output fit context and pool; return the prompt and the output limit."""
        longest = self._longest
        may_clamp = max_new_tokens is None or spec.clamp_max_new_tokens
        if may_clamp:
            # A default is worth cutting a prompt for by half the context at most.
            wanted = 1 if max_new_tokens is None else max_new_tokens
            least = min(wanted, 1)
            spare = min(wanted, max(least, longest // 2))
        else:
            assert max_new_tokens is not None
            least = spare = max_new_tokens
        if len(prompt_ids) + least > longest:
            if not self._allow_auto_truncate or spare >= longest:
                self._refuse(spec, str(len(prompt_ids)), least)
            prompt_ids = prompt_ids[len(prompt_ids) - (longest - spare) :]
        room = longest - len(prompt_ids)
        return prompt_ids, room if max_new_tokens is None else min(max_new_tokens, room)

    def _fit_choices(
        self, spec: GenerationSpec, choices: ChoiceSet, prompt_ids: list[int]
    ) -> list[int]:
        """Return the prompt, cut from its front if that is allowed and needed to fit."""
        for path in choices.paths:
            self._check_ids("choices", path.token_ids)
        num_tokens = ChoiceTrie(choices, has_prompt=bool(prompt_ids)).num_nodes
        longest = self._longest
        if len(prompt_ids) + num_tokens <= longest:
            return prompt_ids
        if self._allow_auto_truncate and 0 < num_tokens < longest:
            return prompt_ids[len(prompt_ids) - (longest - num_tokens) :]
        limit = "the KV pool holds" if longest < self._context_length else "the context has"
        raise ContextTooLong(
            f"the prompt has {len(prompt_ids)} tokens and the choices take {num_tokens} more, but "
            f"{limit} {longest}; shorten {spec.prompt_field} or score fewer choices in one request",
            param="choices" if num_tokens > longest // 2 else spec.prompt_field,
            code="context_length_exceeded",
        )

    def _refuse(self, spec: GenerationSpec, num_prompt_tokens: str, num_new_tokens: int) -> None:
        longest = self._longest
        asked = f"the prompt has {num_prompt_tokens} tokens"
        if num_new_tokens > 1:
            asked += f" and {num_new_tokens} new ones are asked for"
        elif num_new_tokens == 1:
            asked += " and at least one new one is needed"
        if longest < self._context_length:
            limit = f"the KV pool holds {longest} (--max-total-tokens)"
        else:
            limit = f"the model takes {longest} in all (maximum context length)"
        remedy = f"shorten {spec.prompt_field}"
        if num_new_tokens > 1:  # asked for: a default is lowered by itself
            remedy += " or lower max_new_tokens"
        raise ContextTooLong(
            f"{asked}, but {limit}; {remedy}",
            # Where no prompt would do, the other field is the one that is wrong.
            param=spec.prompt_field if num_new_tokens < longest else "max_new_tokens",
            code="context_length_exceeded",
        )

    def _checked_logprobs(
        self, spec: GenerationSpec, num_prompt_tokens: int
    ) -> LogprobOptions | None:
        options = spec.logprobs
        if options is None:
            return None
        most = min(self._vocab_size, MAX_TOP_LOGPROBS)
        if not 0 <= options.num_top <= most:
            name = spec.top_logprobs_field
            raise BadRequest(
                f"{name} is {options.num_top}; it must be from 0 to {most}", param=name
            )
        start = options.prompt_start
        if start is not None and not 0 <= start <= num_prompt_tokens:
            if start < 0 or not self._allow_auto_truncate:
                raise BadRequest(
                    f"logprob_start_len is {start}; the prompt has {num_prompt_tokens} tokens",
                    param="logprob_start_len",
                )
            options = msgspec.structs.replace(options, prompt_start=num_prompt_tokens)
        if len(options.token_ids) > MAX_LOGPROB_TOKEN_IDS:
            raise BadRequest(
                f"token_ids_logprob has {len(options.token_ids)} entries; "
                f"at most {MAX_LOGPROB_TOKEN_IDS} are taken",
                param="token_ids_logprob",
            )
        for token_id in options.token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise BadRequest(
                    f"token_ids_logprob contains {token_id}; ids go from 0 to "
                    f"{self._vocab_size - 1}",
                    param="token_ids_logprob",
                )
        return options


def check_name(param: str, text: str | None) -> None:
    """Raise BadRequest unless text, the value of param, is a short printable name or None."""
    if text is None:
        return
    _check_encodable(param, text)
    if not 1 <= len(text) <= MAX_NAME_CHARS:
        raise BadRequest(
            f"{param} has {len(text)} characters; it must have from 1 to {MAX_NAME_CHARS}",
            param=param,
        )
    if not text.isprintable():  # it appears in log lines
        raise BadRequest(f"{param} contains an unprintable character", param=param)


def _check_encodable(param: str, text: str) -> int:
    """Return the number of UTF-8 bytes; half a surrogate pair has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{param} contains half a surrogate pair at character {error.start}; "
            "send whole characters",
            param=param,
        ) from None


def _mix(seed: int, index: int) -> int:
    """Return a seed for sample `index`: the finaliser of splitmix64 over both numbers."""
    mask = 2**64 - 1
    value = (seed + index * 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1
