"""OpenAIBackend: any service with OpenAI's API, by way of the openai package."""

from __future__ import annotations

import atexit
import json
from collections.abc import AsyncGenerator
from typing import Any, Literal

from ..choices import ChoiceScore
from ..errors import BackendError, Unsupported
from ..expressions import LogprobRequest
from ..loop_thread import LoopThread, shared_loop, wait
from ..sampling import Sampling
from ..transcript import Prompt
from .protocol import Abilities, Output

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
    )
)
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


class OpenAIBackend:
    """A model of an OpenAI-compatible service.

    api "chat" takes programs of roles, whose gens are whole messages of the assistant;
    "completions" takes programs of plain text. extra_fields: the service also takes top_k, min_p,
    regex and other fields that OpenAI itself refuses. No select: the API scores no given text.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        api: Literal["chat", "completions"] = "chat",
        extra_fields: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.name = f"the OpenAI API with model {model}"
        self.timeout_seconds = timeout_seconds
        is_chat = api == "chat"
        fields = _SHARED | (_EXTRA if extra_fields else frozenset())
        self.abilities = Abilities(
            sampling_fields=fields | {"json_schema"} if is_chat else fields,
            goes_on_from_text=not is_chat,
            takes_messages=is_chat,
            goes_on_in_messages=False,
            scores_choices=False,
            gives_logprobs=False,
            keeps_prefixes=False,
        )
        self._model = model
        self._is_chat = is_chat
        self._settings = {"base_url": base_url, "api_key": api_key, "timeout": timeout_seconds}
        self._client: Any = None
        atexit.register(self.close)
        self._loop: LoopThread | None = None

    async def generate(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> list[Output]:
        """See Backend."""
        answer = await self._create(prompt, sampling, stream=False)
        usage = answer.usage
        counts = {} if usage is None else {"prompt_tokens": usage.prompt_tokens}
        if usage is not None:
            counts["completion_tokens"] = usage.completion_tokens
        return [
            Output(
                (one.message.content if self._is_chat else one.text) or "",
                {"id": answer.id, "finish_reason": {"type": one.finish_reason}, **counts},
            )
            for one in answer.choices
        ]

    async def stream(
        self, prompt: Prompt, sampling: Sampling, logprobs: LogprobRequest | None
    ) -> AsyncGenerator[Output, None]:
        """See Backend."""
        import openai

        chunks = await self._create(prompt, sampling, stream=True)
        text, finish, chunk_id = "", None, None
        try:
            async for chunk in chunks:
                chunk_id = chunk.id
                for one in chunk.choices:
                    text += (one.delta.content if self._is_chat else one.text) or ""
                    finish = one.finish_reason or finish
                yield Output(text, {"id": chunk_id, "finish_reason": {"type": finish}})
        except openai.OpenAIError as error:
            raise _backend_error(self.name, error) from error
        finally:
            await chunks.close()

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], with_unconditional: bool
    ) -> list[ChoiceScore]:
        """The API has no such call; programs are refused before it comes to this."""
        raise Unsupported(f"{self.name} cannot score choices")

    async def commit(self, prompt: Prompt) -> None:
        """Nothing: what such a service keeps is its own affair."""

    def close(self) -> None:
        """End all connections. Safe to call again; a later call makes new ones."""
        atexit.unregister(self.close)
        client, self._client = self._client, None
        if client is not None:
            wait(shared_loop().submit(client.close()), CLOSE_SECONDS)

    async def _create(self, prompt: Prompt, sampling: Sampling, stream: bool) -> Any:
        import openai

        client = self._connected()
        fields = _fields(sampling)
        try:
            if not self._is_chat:
                return await client.completions.create(
                    model=self._model, prompt=prompt.text, stream=stream, **fields
                )
            messages = [{"role": one.role, "content": one.content} for one in prompt.messages]
            return await client.chat.completions.create(
                model=self._model, messages=messages, stream=stream, **fields
            )
        except openai.OpenAIError as error:
            raise _backend_error(self.name, error) from error

    def _connected(self) -> Any:  # an AsyncOpenAI
        if self._client is None or self._loop is not shared_loop():
            import openai

            # Its own retries would send again what may have begun.
            self._client = openai.AsyncOpenAI(**self._settings, max_retries=0)  # type: ignore[arg-type]
            self._loop = shared_loop()
        return self._client


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
