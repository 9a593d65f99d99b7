"""Refuses, by name, request fields whose meaning this server cannot honour."""

from __future__ import annotations

from typing import Any

from ..errors import BadRequest


def refuse_if_set(feature: str, **fields: Any) -> None:
    """Raise BadRequest naming the first field that asks for the feature.

    null, false, "" and [] count as not asking: clients send them as defaults.
    """
    for name, value in fields.items():
        if value is None or value is False or value == "" or value == []:
            continue
        raise BadRequest(
            f"{name}: {feature} is not available yet; leave the field out",
            param=name,
            code="unsupported_parameter",
        )
