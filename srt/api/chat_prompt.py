"""Writes a conversation out as a prompt, with the model's chat template."""

from __future__ import annotations

from typing import Any

from ..errors import BadRequest
from ..processes.engine_client import EngineClient
from ..tool_calls.families import ToolFamily, family_of, writes_tools
from ..tool_calls.plain_prompt import with_plain_tools
from ..tool_calls.tool import ToolUse
from .chat_history import check_history
from .chat_messages import ChatMessage, template_messages


def chat_prompt(
    client: EngineClient,
    messages: list[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    template_fields: dict[str, Any] | None,
    tools: ToolUse | None = None,
) -> str:
    """Return the prompt text, special tokens included; raises BadRequest.

    Tools that may be called are told to the model by its template, or in a system message where the
    template knows none. By default the prompt ends where the assistant's turn begins; with
    continue_final_message it ends inside the last message, which must be the assistant's.
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
    check_history(messages)
    plain = template_messages(messages)
    wire = None
    if not writes_tools(client.chat_template.source):
        plain = with_plain_tools(plain, tools, tool_family(client))
    elif tools is not None:
        wire = [one.wire for one in tools.callable_tools] or None
    return client.chat_template.render(
        plain,
        add_generation_prompt=add_generation_prompt is not False,
        continue_final_message=bool(continue_final_message),
        tools=wire,
        extra=template_fields or {},
    )


def tool_family(client: EngineClient) -> ToolFamily:
    """How the model writes calls."""
    template = client.chat_template
    return family_of(client.args.tool_call_parser, None if template is None else template.source)
