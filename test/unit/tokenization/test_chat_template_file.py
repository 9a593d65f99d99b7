"""--chat-template: a file that can write no conversation is refused before any client needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.srt.errors import ConfigError
from runtime.srt.tokenization.chat_template_file import MAX_FILE_BYTES, load_chat_template

GOOD = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def load(folder: Path, content: str | bytes) -> None:
    file = folder / "template.jinja"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    load_chat_template(file, {"bos_token": "<s>"})


def test_a_template_is_taken(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    load(tmp_path, "{{ bos_token }}" + GOOD + "{{ '\\n' }}")


def test_a_template_may_refuse_conversations_itself(tmp_path: Path) -> None:
    load(tmp_path, "{{ raise_exception('one message only') }}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            "{% for m in messages %}",
            "is no Jinja chat template: the chat template does not compile",
        ),
        ("{{ messages | no_such_filter }}", "does not compile"),
        ("{{ messages[0].no.such.field }}" + GOOD, "UndefinedError"),
        ("{{ 1 / 0 }}" + GOOD, "ZeroDivisionError"),
        ("{{ messages + 1 }}", "TypeError"),
        ("{% include 'other' %}" + GOOD, "fails on the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}" + GOOD, "RecursionError"),
        ("{{ [].__class__.__mro__ }}" + GOOD, "SecurityError"),
        ("root:x:0:0:root:/root:/bin/bash\n", "leaves the messages out"),
        ("", "leaves the messages out"),
        (b"\x00\xff\xfe", "is not text in UTF-8"),
        ("{# #}" * (MAX_FILE_BYTES // 5 + 1), "at most 1048576 are read"),
    ],
)
def test_any_other_file_is_refused_by_flag_and_name(
    content: str | bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, content)

    assert f"--chat-template names '{tmp_path / 'template.jinja'}', which" in raised.value.message
    assert problem in raised.value.message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--chat-template names .*cannot be read: No such file"):
        load_chat_template(tmp_path / "gone", {})
