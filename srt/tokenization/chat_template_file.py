"""load_chat_template: the file of --chat-template, tried out before any client depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import BadRequest, ConfigError, ModelLoadError
from .chat_template import ChatTemplate, TemplateFailed

MAX_FILE_BYTES = 1 << 20

_CONVERSATION = [
    {"role": "user", "content": "How far is the moon?"},
    {"role": "assistant", "content": "It is far."},
]


def load_chat_template(file: Path, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Return the template in file; raises ConfigError for a file that can write no conversation.

    A template may refuse the conversation it is tried with, through raise_exception.
    """
    try:
        num_bytes = file.stat().st_size
        if num_bytes > MAX_FILE_BYTES:
            raise _error(file, f"has {num_bytes} bytes; at most {MAX_FILE_BYTES} are read")
        template = ChatTemplate(file.read_text(encoding="utf-8"), special_tokens)
        prompt = template.render(_CONVERSATION, add_generation_prompt=False)
    except OSError as error:
        raise _error(file, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _error(file, f"is not text in UTF-8: byte {error.start} is no part of it") from None
    except (ModelLoadError, TemplateFailed) as error:
        raise _error(file, f"is no Jinja chat template: {error.message}") from None
    except BadRequest:
        return template
    if _CONVERSATION[0]["content"] not in prompt:
        raise _error(file, "is no chat template: it leaves the messages out of the prompt")
    return template


def _error(file: Path, problem: str) -> ConfigError:
    return ConfigError(f"--chat-template names {str(file)!r}, which {problem}")
