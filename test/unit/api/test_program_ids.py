"""program_id and branch_id on OpenAI's routes."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import FakeServer

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["hi", "you"], "max_tokens": 2, "n": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "n": 2},
}


@pytest.mark.parametrize("route", BODIES)
def test_every_request_of_a_body_carries_its_ids(route: str) -> None:
    server = FakeServer()

    reply = server.post(route, {**BODIES[route], "program_id": "p", "branch_id": "3"})

    assert reply.status_code == 200, reply.text
    assert len(server.engine.requests) >= 2
    assert {(one.program_id, one.branch_id) for one in server.engine.requests} == {("p", "3")}


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("wrong", [{"program_id": 7}, {"program_id": ""}, {"branch_id": "a\nb"}])
def test_what_is_no_printable_name_is_refused_by_its_field(
    route: str, wrong: dict[str, Any]
) -> None:
    reply = FakeServer().post(route, {**BODIES[route], **wrong})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == next(iter(wrong))
