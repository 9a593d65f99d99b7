"""Writes a conversation out as a prompt, with the model's chat template."""

from __future__ import annotations

from typing import Any

from ..errors import BadRequest
from ..processes.engine_client import EngineClient
from .chat_messages import ChatMessage, template_messages


def chat_prompt(
    client: EngineClient,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_fields: dict[str, Any] | None,
) -> str:
    """Return the prompt text, special tokens included; raises BadRequest.

    By default the prompt ends where the assistant's turn begins; with continue_final_message it
    ends inside the last message, which must be the assistant's.
    """
    if client.chat_template is None:
        raise BadRequest(
            "the model has no chat template; use /v1/completions, or start the server with "
            "--chat-template",
            param="messages",
        )
    if continue_final_message:
        if add_generation_prompt:
            raise BadRequest(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        if messages[-1].role != "assistant":
            raise BadRequest(
                "continue_final_message needs the last message to be the assistant's",
                param="continue_final_message",
            )
        add_generation_prompt = False
    return client.chat_template.render(
        template_messages(messages),
        add_generation_prompt=add_generation_prompt is not False,
        continue_final_message=bool(continue_final_message),
        extra=template_fields or {},
    )
