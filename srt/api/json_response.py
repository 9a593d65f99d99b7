"""JSON answers, encoded fast."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


def json_response(payload: Any) -> Response:
    """Return payload as a 200 JSON response."""
    return Response(orjson.dumps(payload), media_type="application/json")
