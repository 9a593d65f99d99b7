"""The OpenAPI description: request bodies are read by hand, so their schemas are put in here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from .request_body import Body

_REF = "#/components/schemas/{model}"


def takes(kind: type[Body]) -> dict[str, Any]:
    """Return the openapi_extra of a route whose body is a kind."""
    reference = {"$ref": _REF.format(model=kind.__name__)}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}
    }


def describe_bodies(app: FastAPI, kinds: list[type[Body]]) -> None:
    """Make app's /openapi.json define the schemas that takes() refers to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, definitions = models_json_schema(
                [(kind, "validation") for kind in kinds], ref_template=_REF
            )
            components = schema.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions.get("$defs", {}))
            app.openapi_schema = schema
        return app.openapi_schema

    # FastAPI documents replacing this method as the way to change the schema.
    app.openapi = openapi  # type: ignore[method-assign]
