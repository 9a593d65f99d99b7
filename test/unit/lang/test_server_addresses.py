"""What a backend is made with: a wrong value is told by name, before any call."""

from __future__ import annotations

from typing import Any

import pytest

from runtime import OpenAIBackend, RuntimeEndpoint
from runtime.lang.errors import ProgramError


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        30000,
        b"http://127.0.0.1:30000",
        "127.0.0.1:30000",
        "localhost:30000",
        "ftp://127.0.0.1",
        "http://",
        "http://:30000",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:30000/?a=1",
        "http://127.0. 0.1",
    ],
)
def test_what_is_no_address_is_refused_with_its_value(given: Any) -> None:
    with pytest.raises(ProgramError) as caught:
        RuntimeEndpoint(given)

    message = str(caught.value)
    assert f"base_url is {given!r}" in message
    assert "it must be the server's address, such as 'http://127.0.0.1:30000'" in message
    if given is not None:
        with pytest.raises(ProgramError, match="base_url is"):
            OpenAIBackend("m", base_url=given, api_key="k")


@pytest.mark.parametrize(
    "given", ["http://127.0.0.1:30000/", "https://example.org/prefix/", "http://[::1]:30000"]
)
def test_an_address_is_taken_without_the_slash_at_its_end(given: str) -> None:
    with RuntimeEndpoint(given) as backend:
        assert backend.base_url == given.rstrip("/")
        assert backend.base_url in backend.name


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"api_key": 7}, "api_key is of type int"),
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "secret\n"}, "such as a line break"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0; it must be above 0"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds is nan"),
        ({"timeout_seconds": "5"}, "timeout_seconds is of type str"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_connections": 2.5}, "max_connections is 2.5"),
    ],
)
def test_a_limit_or_a_key_that_lets_no_call_through_is_refused(
    wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        RuntimeEndpoint("http://127.0.0.1:9", **wrong)

    assert "secret" not in str(caught.value)


def test_a_missing_key_of_the_openai_package_is_told_when_the_backend_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)

    with pytest.raises(ProgramError, match=r"OPENAI_API_KEY is not set; .* api_key='none'"):
        OpenAIBackend("m", base_url="http://127.0.0.1:9/v1")

    monkeypatch.setenv("OPENAI_API_KEY", "k")
    OpenAIBackend("m", base_url="http://127.0.0.1:9/v1").close()


def test_a_model_without_a_name_is_refused() -> None:
    for given in (None, ""):
        with pytest.raises(ProgramError, match="model is"):
            OpenAIBackend(given, api_key="k")  # type: ignore[arg-type]  # a mistake
