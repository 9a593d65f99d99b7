"""Which family a chat template shows, and that the command line knows them all."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.srt.errors import ConfigError
from runtime.srt.reasoning.styles import STYLES
from runtime.srt.server_args import ServerArgs
from runtime.srt.tool_calls.families import FAMILY_NAMES, family_of


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "smollm2"),
        ("{{ messages }}", "smollm2"),
        ("{% for tool in tools %}{% endfor %}<tool_call>", "hermes"),
        ("{{ tools }} [TOOL_CALLS]", "mistral"),
        ('{{ tools }} {"name": .., "parameters": ..}', "llama3"),
        ("{{ tools }} [func_name1(params_name1=params_value1)]", "pythonic"),
        ("{{ tools }}", "hermes"),
    ],
)
def test_the_template_shows_the_family(template: str | None, name: str) -> None:
    assert family_of("auto", template).name == name


def test_a_named_family_needs_no_template() -> None:
    assert family_of("mistral", None).name == "mistral"
    assert family_of("qwen", "[TOOL_CALLS] tools").name == "hermes"


def _choices(flag: str) -> set[str]:
    (found,) = [one for one in dataclasses.fields(ServerArgs) if one.name == flag]
    return set(found.metadata["choices"])


def test_the_flags_offer_what_there_is() -> None:
    assert _choices("tool_call_parser") == {"auto", *FAMILY_NAMES}
    assert _choices("reasoning_parser") == set(STYLES)


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_a_start_error_that_lists_the_known(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} is 'nope'; choose from"):
        ServerArgs(**{flag: "nope"})
