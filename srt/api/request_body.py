"""Request bodies: bytes become a checked pydantic model, mistakes a 400 that names the field."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from ..errors import BadRequest, PayloadTooLarge

# Parsing holds the event loop: 500,000 values take up to 0.4 s, 10 MB of text 10 ms.
MAX_BODY_VALUES = 500_000
_LARGE_BYTES = 32_768
_MAX_SHOWN_CHARS = 200

B = TypeVar("B", bound="Body")


class Body(BaseModel):
    """A JSON object: unknown fields are ignored, types are not bent ("1" and true are not 1)."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @property
    def unknown(self) -> dict[str, Any]:
        """The unknown fields, of a kind that keeps them (extra="allow") to look at their names."""
        return self.model_extra or {}


async def read_body(request: Request, kind: type[B]) -> B:
    """Read the whole body as a kind.

    The content type is not looked at: many clients leave it out. Raises BadRequest.
    """
    return parse_body(await request.body(), kind)


def parse_body(raw: bytes, kind: type[B]) -> B:
    """Parse raw as a kind; raises BadRequest naming the field that is wrong.

    Raises PayloadTooLarge for more than about MAX_BODY_VALUES values (commas are counted).
    """
    if (num_commas := raw.count(b",")) > MAX_BODY_VALUES:
        raise PayloadTooLarge(
            f"the body has {num_commas} commas; at most {MAX_BODY_VALUES} values are taken in one "
            "body, send it in parts"
        )
    try:
        return _parsed(raw, kind)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
    # A field that may have several forms gives one error for each: the deepest fits the body best.
    first = max(
        (one for one in found if one["loc"][:1] == found[0]["loc"][:1]),
        key=lambda one: len(one["loc"]),
    )
    if first["type"] == "json_invalid":
        raise BadRequest(f"the body is not JSON: {_shown(first['msg'])}", code="invalid_json")
    param = _param(first["loc"])
    if param is None:
        raise BadRequest("the body must be a JSON object")
    if first["type"] == "missing":
        raise BadRequest(f"{param} is missing", param=param)
    raise BadRequest(f"{param}: {_shown(first['msg'])}", param=param)


def _parsed(raw: bytes, kind: type[B]) -> B:
    """raw as a kind; raises ValidationError.

    A large body is read before it is looked at: a schema of 20,000 properties takes 7 ms so, and up
    to 55 ms by the model. What is then refused is read once more, for what the model says of it.
    """
    if len(raw) >= _LARGE_BYTES:
        with contextlib.suppress(ValueError):  # of which ValidationError is one
            return kind.model_validate(from_json(raw))
    return kind.model_validate_json(raw)


def _param(loc: tuple[int | str, ...]) -> str | None:
    """Return a path such as messages.0.role, without the names of union branches in loc."""
    if not loc:
        return None
    kept = [str(loc[0])]
    for part in loc[1:]:
        is_branch = isinstance(part, str) and (
            part in _BRANCHES or part[:1].isupper() or not part.isidentifier()
        )
        if not is_branch:
            kept.append(str(part))
    return _shown(".".join(kept))


_BRANCHES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "any"})


def _shown(text: str) -> str:
    text = text.removeprefix("Invalid JSON: ").removeprefix("Value error, ")
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
