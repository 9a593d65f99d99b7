"""OpenAIBackend: any service with OpenAI's API, by way of the openai package."""

from __future__ import annotations

import atexit
import json
from collections.abc import AsyncGenerator
from typing import Any, Literal

from ..caller import caller_fields
from ..choices import ChoiceScore, ChoicesMethod
from ..errors import BackendError, ProgramError, Unsupported
from ..expressions import LogprobRequest
from ..loop_thread import LoopThread, shared_loop, wait
from ..sampling import Sampling
from ..tools import ToolOffer
from ..transcript import Prompt
from .openai_answers import Sample, counts_of, echoed_scores, outputs_of
from .protocol import Abilities, Output
from .server_address import check_api_key, check_limits, checked_base_url

CLOSE_SECONDS = 5.0

_SHARED = frozenset(
    (
        "max_new_tokens",
        "n",
        "stop",
        "temperature",
        "top_p",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "seed",
    )
)
# What compatible servers take beside OpenAI's own fields, this project's among them.
_EXTRA = frozenset(
    (
        "min_new_tokens",
        "stop_token_ids",
        "top_k",
        "min_p",
        "repetition_penalty",
        "ignore_eos",
        "regex",
        "ebnf",
        "json_whitespace",
    )
)
_NO_SCORES_IN_CHAT = "; the chat API scores no given text"
_SCORES_BY_ECHO = "; if the service gives log-probabilities with echo, say echo_logprobs=True"
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


class OpenAIBackend:
    """A model of an OpenAI-compatible service.

    api "chat" takes programs of roles, whose gens are whole messages of the assistant;
    "completions" takes programs of plain text. extra_fields: the service also takes top_k, min_p,
    regex and other fields that OpenAI itself refuses, among them those that go on in a message of
    the assistant. echo_logprobs: its completions give the log-probabilities of the prompt with
    echo, which select needs. program_ids: say with each call which run and branch makes it, as a
    server of this project reads it; other services may refuse such fields.

    base_url and api_key None are what the openai package finds in OPENAI_BASE_URL and
    OPENAI_API_KEY. The package wants some key, also for a server that asks for none. Raises
    ProgramError where there is none, and without the package.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "completions"] = "chat",
        extra_fields: bool = False,
        echo_logprobs: bool = False,
        program_ids: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ProgramError(f"model is {model!r}; it must be a name that the service knows")
        if api not in ("chat", "completions"):
            raise ProgramError(f"api is {api!r}; it must be 'chat' or 'completions'")
        is_chat = api == "chat"
        if is_chat and echo_logprobs:
            raise ProgramError("echo_logprobs needs api='completions'; chat has no echo")
        base_url = None if base_url is None else checked_base_url(base_url)
        check_api_key(api_key)
        check_limits(timeout_seconds)
        self.name = f"the OpenAI API ({api}) with model {model}"
        self.timeout_seconds = timeout_seconds
        fields = _SHARED | (_EXTRA if extra_fields else frozenset())
        self.abilities = Abilities(
            sampling_fields=fields | {"json_schema"} if is_chat else fields,
            goes_on_from_text=not is_chat,
            takes_messages=is_chat,
            goes_on_in_messages=False,
            goes_on_in_assistant=is_chat and extra_fields,
            scores_choices=echo_logprobs,
            scoring_hint=_NO_SCORES_IN_CHAT if is_chat else _SCORES_BY_ECHO,
            scores_unconditionally=False,
            gives_prompt_logprobs=False,
            keeps_prefixes=False,
            pins_prefixes=False,
            calls_tools=is_chat,
        )
        self._model = model
        self._is_chat = is_chat
        self._settings = {"base_url": base_url, "api_key": api_key, "timeout": timeout_seconds}
        self._sends_ids = program_ids
        self._client: Any = None
        self._loop: LoopThread | None = None
        self._connected()  # a missing key or package is told here, not by the first call
        atexit.register(self.close)

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        """See Backend."""
        return outputs_of(await self._ask(prompt, sampling, logprobs))

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        """See Backend."""
        import openai

        chunks = await self._ask(prompt, sampling, logprobs, stream=True)
        samples: dict[int, Sample] = {}
        try:
            async for chunk in chunks:
                for choice in chunk.choices:
                    sample = samples.setdefault(choice.index, Sample(choice.index))
                    sample.add(choice)
                    yield sample.output(chunk.id, counts_of(chunk))
        except openai.OpenAIError as error:
            raise _backend_error(self.name, error) from error
        finally:
            await chunks.close()

    async def call_tools(
        self, prompt: Prompt, sampling: Sampling, offer: ToolOffer
    ) -> list[Output]:
        """See Backend."""
        return outputs_of(await self._ask(prompt, sampling, None, **offer.fields()))

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], method: ChoicesMethod, early_exit: bool
    ) -> list[ChoiceScore]:
        """See Backend. One call: the prompt comes back alone, and before each choice."""
        if not prompt.text:
            raise ProgramError(f"{self.name} scores choices after a text only; write some before")
        texts = [prompt.text, *(prompt.text + one for one in choices)]
        # One token is asked for, and left out: several servers take 0 for "no limit".
        answer = await self._create(
            "completions", prompt=texts, echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        if any(one.logprobs is None or not one.logprobs.tokens for one in answer.choices):
            raise BackendError(
                f"{self.name} gives no log-probabilities with echo; leave echo_logprobs out, and "
                "select with it"
            )
        return echoed_scores(answer, prompt.text, choices)

    async def commit(self, prompt: Prompt) -> None:
        """Nothing: what such a service keeps is its own affair."""

    async def pin(self, prompt: Prompt, seconds: float) -> None:
        """The API has no such call; programs are refused before it comes to this."""
        raise Unsupported(f"{self.name} cannot pin prefixes")

    def close(self) -> None:
        """End all connections. Safe to call again; a later call makes new ones."""
        atexit.unregister(self.close)
        client, self._client = self._client, None
        if client is not None:
            wait(shared_loop().submit(client.close()), CLOSE_SECONDS)

    async def _ask(
        self,
        prompt: Prompt,
        sampling: Sampling,
        logprobs: LogprobRequest | None,
        **more: Any,
    ) -> Any:  # an answer, or with stream its chunks
        fields = {**_fields(sampling), **more}
        if not self._is_chat:
            if logprobs is not None:
                fields["logprobs"] = logprobs.num_top
            return await self._create("completions", prompt=prompt.text, **fields)
        if logprobs is not None:
            fields["logprobs"] = True
            if logprobs.num_top:
                fields["top_logprobs"] = logprobs.num_top
        messages = [one.wire() for one in prompt.messages]
        if prompt.text:
            messages.append({"role": "assistant", "content": prompt.text})
            going_on = {"continue_final_message": True, "add_generation_prompt": False}
            fields["extra_body"] = {**fields.get("extra_body", {}), **going_on}
        return await self._create("chat.completions", messages=messages, **fields)

    async def _create(self, resource: str, **fields: Any) -> Any:  # as above
        import openai

        client = self._connected()
        calls = client.completions if resource == "completions" else client.chat.completions
        if self._sends_ids:
            fields["extra_body"] = {**fields.get("extra_body", {}), **caller_fields()}
        try:
            return await calls.create(model=self._model, **fields)
        except openai.OpenAIError as error:
            raise _backend_error(self.name, error) from error

    def _connected(self) -> Any:  # an AsyncOpenAI
        if self._client is None or self._loop is not shared_loop():
            # Its own retries would send again what may have begun.
            self._client = _new_client(**self._settings, max_retries=0)
            self._loop = shared_loop()
        return self._client


def _new_client(**settings: Any) -> Any:  # an AsyncOpenAI
    try:
        import openai
    except ImportError:
        raise ProgramError("OpenAIBackend needs the openai package: pip install openai") from None
    try:
        return openai.AsyncOpenAI(**settings)
    except openai.OpenAIError as error:
        if settings["api_key"] is None and not isinstance(error, openai.APIError):
            raise ProgramError(
                "api_key is not given and OPENAI_API_KEY is not set; the openai package wants one, "
                "for a server that asks for none any text: api_key='none'"
            ) from error
        raise ProgramError(f"the openai package makes no client: {error}") from error


def _fields(sampling: Sampling) -> dict[str, Any]:
    explicit = sampling.explicit()
    schema = explicit.pop("json_schema", None)
    named = {_NAMES.get(name, name): value for name, value in explicit.items()}
    extra_names = {_NAMES.get(name, name) for name in _EXTRA}
    fields = {name: value for name, value in named.items() if name not in extra_names}
    extra = {name: value for name, value in named.items() if name in extra_names}
    if extra:
        fields["extra_body"] = extra
    if schema is not None:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": json.loads(schema)},
        }
    return fields


def _backend_error(name: str, error: Exception) -> BackendError:
    return BackendError(
        f"{name} refused or failed: {error}",
        status_code=getattr(error, "status_code", None),
        param=getattr(error, "param", None),
    )
