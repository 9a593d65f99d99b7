"""ToolServer: a fake server whose model writes the test's text, and whose grammars all pass."""

from __future__ import annotations

import json
from typing import Any

from runtime.grammars.prepared import GrammarEngine, PreparedForm, PreparedGrammar
from runtime.grammars.spec import GrammarSpec, JsonWhitespace
from runtime.srt.messages import FinishReason, GrammarSource

from .fake_engine import END_ID, FakeServer

HI = [{"role": "user", "content": "hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}},
    "required": ["zeta"],
}
CALL = '<tool_call>[{"name": "get", "arguments": {"zeta": "é", "alpha": 1}}]</tool_call>'


def tool(name: str = "get", **fields: Any) -> dict[str, Any]:
    """A tool of that name, as clients send it."""
    function = {"name": name, "description": f"what {name} does", "parameters": SCHEMA, **fields}
    return {"type": "function", "function": function}


def body(**fields: Any) -> dict[str, Any]:
    """A chat body with one tool."""
    return {"messages": HI, "tools": [tool()], **fields}


class RecordedGrammars:
    """Takes every grammar for a good one, and keeps the specs with the fields they came in."""

    def __init__(self) -> None:
        self.checked: list[tuple[GrammarSpec, str | None]] = []

    async def check(self, spec: GrammarSpec, param: str | None) -> GrammarSource:
        """Return a source with the spec's key."""
        self.checked.append((spec, param))
        prepared = PreparedGrammar(
            GrammarEngine.LLGUIDANCE, PreparedForm.LARK, "", JsonWhitespace.BOUNDED
        )
        return GrammarSource(spec.key, prepared)

    def close(self, reason: str) -> None:
        """Nothing to end."""


class ToolServer(FakeServer):
    """text is what the model writes; ends: "stop" or "length"."""

    def __init__(self, text: str = CALL, ends: str = "stop", **settings: Any) -> None:
        super().__init__(**{"pool_tokens": 200_000, "context_length": 16_384, **settings})
        self.grammars = RecordedGrammars()
        self.client.grammars = self.grammars  # type: ignore[assignment]  # a stand-in
        self.engine.output = lambda request: [*text.encode()] + [END_ID] * (ends == "stop")
        self.engine.finish = lambda request: (
            FinishReason(type="stop", matched=END_ID)
            if ends == "stop"
            else FinishReason(type="length")
        )

    def chat(self, **fields: Any) -> Any:
        """The choice that answers body(**fields)."""
        reply = self.post("/v1/chat/completions", body(**fields))
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]

    def stream(self, **fields: Any) -> list[Any]:
        """The choices of all events of the streamed answer to body(**fields)."""
        reply = self.post("/v1/chat/completions", body(stream=True, **fields))
        assert reply.status_code == 200, reply.text
        events = [line[6:] for line in reply.text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        return [one for event in events[:-1] for one in json.loads(event)["choices"]]

    def prompt(self) -> str:
        """The prompt of the one request that was sent."""
        (request,) = self.engine.requests
        return self.client.tokenizer.decode(request.input_ids, skip_special_tokens=False)
