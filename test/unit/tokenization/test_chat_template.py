"""Chat templates render as transformers renders them; what they refuse is a bad request."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from runtime.srt.errors import BadRequest, ModelLoadError
from runtime.srt.tokenization.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRIMMING = (
    "{{ bos_token }}{%- for m in messages %}\n"
    "    {%- if loop.index0 > 3 %}{% break %}{% endif %}\n"
    "    [{{ m.role }}] {{ m.content | trim }}{{ eos_token }}\n"
    "{%- endfor %}\n"
    "{% generation %}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% endgeneration %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system role here') }}{% endif %}{{ m.content }}{% endfor %}"
)
PARTS = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "<{{ part['type'] }}>{{ part['text'] }}{% endfor %}{% endfor %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <b> \u00fc \U0001f600 "},
    {"role": "assistant", "content": "Yes, "},
]


def theirs(source: str, **options: Any) -> str:
    rendered, _ = render_jinja_template([CHAT], chat_template=source, **options, **TOKENS)
    return str(rendered[0])


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
@pytest.mark.parametrize("generation_prompt", [False, True])
def test_prompts_equal_those_of_transformers(source: str, generation_prompt: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "\u00fc <x> & 'y'"}}]
    expected = theirs(source, add_generation_prompt=generation_prompt, tools=tools)

    prompt = ChatTemplate(source, TOKENS).render(
        CHAT, add_generation_prompt=generation_prompt, tools=tools
    )

    assert prompt == expected


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
def test_the_last_message_can_be_left_open(source: str) -> None:
    prompt = ChatTemplate(source, TOKENS).render(CHAT, continue_final_message=True)

    assert prompt == theirs(source, continue_final_message=True)
    assert prompt.endswith("Yes, " if source is CHATML else "Yes,")


def test_an_open_last_message_may_contain_its_own_end_marker() -> None:
    chat = [{"role": "assistant", "content": "a<|im_end|>\nb"}]

    prompt = ChatTemplate(CHATML, {}).render(chat, continue_final_message=True)

    assert prompt.endswith("assistant\na<|im_end|>\nb")


def test_developer_becomes_system_where_the_template_does_not_know_it() -> None:
    chat = [{"role": "developer", "content": "d"}]

    assert "<|im_start|>system\nd" in ChatTemplate(CHATML, {}).render(chat)
    knows = CHATML + "{# developer #}"
    assert "<|im_start|>developer\nd" in ChatTemplate(knows, {}).render(chat)


def test_text_parts_are_joined_unless_the_template_reads_parts() -> None:
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]

    assert "user\nab<|im_end|>" in ChatTemplate(CHATML, {}).render(chat)
    assert ChatTemplate(PARTS, {}).render(chat) == "<text>a<text>b"
    assert ChatTemplate(PARTS, {}).render([{"role": "user", "content": "ab"}]) == "<text>ab"


def test_missing_content_is_empty_and_absent_fields_stay_absent() -> None:
    source = "{% for m in messages %}[{{ m.content }}]{{ m.name is defined }}{% endfor %}"

    rendered = ChatTemplate(source, {}).render(
        [{"role": "user", "content": None, "name": None}, {"role": "user", "name": "x"}]
    )

    assert rendered == "[]False[]True"


def test_arguments_of_earlier_tool_calls_reach_the_template_as_objects() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": "\u00fc"}'}}

    rendered = ChatTemplate(source, {}).render([{"role": "assistant", "tool_calls": [call]}])

    assert rendered == '{"x": "\u00fc"}'
    assert call["function"]["arguments"] == '{"x": "\u00fc"}'


def test_extra_variables_reach_the_template_but_cannot_replace_the_messages() -> None:
    source = "{{ thinking }}{{ messages[0].content }}{{ bos_token }}"

    rendered = ChatTemplate(source, TOKENS).render(
        [{"role": "user", "content": "m"}],
        extra={"thinking": "off", "messages": [], "bos_token": ""},
    )

    assert rendered == "offm"


@pytest.mark.parametrize(
    ("source", "messages", "cause"),
    [
        (ALTERNATING, [{"role": "system", "content": "x"}], "no system role here"),
        ("{{ messages[0].content + 1 }}", [{"role": "user", "content": "x"}], "TypeError"),
        ("{{ messages[5].content.x }}", [{"role": "user", "content": "x"}], "has no"),
        ("{{ ''.__class__.__mro__ }}", [{"role": "user", "content": "x"}], "unsafe"),
        (CHATML, [{"role": "user", "content": 7}], r"messages\[0\].content is a int"),
        (CHATML, [{"content": "x"}], r"messages\[0\].*role"),
        (
            CHATML,
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[0\].*'image_url'",
        ),
        (CHATML, [{"role": "user", "content": [{"type": "text"}]}], "text must be a string"),
    ],
)
def test_what_the_template_cannot_take_is_a_bad_request_with_the_cause(
    source: str, messages: list[dict[str, Any]], cause: str
) -> None:
    with pytest.raises(BadRequest, match=cause):
        ChatTemplate(source, {}).render(messages)


def test_nothing_to_continue_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="no message"):
        ChatTemplate(CHATML, {}).render([], continue_final_message=True)
    with pytest.raises(BadRequest, match="leaves the last message out"):
        ChatTemplate("fixed", {}).render(CHAT, continue_final_message=True)


def test_a_template_that_does_not_compile_is_a_model_error() -> None:
    with pytest.raises(ModelLoadError, match="line 2"):
        ChatTemplate("x\n{% if %}", {})


def test_rendering_leaves_the_callers_messages_as_they_were() -> None:
    chat = [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]

    ChatTemplate(PARTS, {}).render(chat, continue_final_message=True)

    assert chat == [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]
