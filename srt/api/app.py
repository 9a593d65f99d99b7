"""create_app: the HTTP application over a running engine."""

from __future__ import annotations

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from ..processes.engine_client import EngineClient
from ..server_args import ServerArgs
from .admin import AbortBody, admin_router
from .auth import BearerAuth
from .body_limit import BodyLimit
from .chat import chat_router
from .chat_job import ChatBody
from .choice_job import ScoreBody
from .choices import choices_router
from .completion_job import CompletionBody
from .completions import completions_router
from .context import ApiContext
from .errors import install_error_handlers
from .health import health_router
from .http_boundary import HttpBoundary
from .metrics import ServerMetrics
from .model_info import model_info_router, server_version
from .native import native_router
from .native_body import GenerateBody
from .openapi import describe_bodies
from .pin_job import PinBody, UnpinBody
from .pins import pins_router
from .request_body import Body
from .sampling_defaults import SamplingDefaults
from .tokenize_routes import DetokenizeBody, TokenizeBody, tokenize_router

_BODIES: list[type[Body]] = [
    GenerateBody,
    CompletionBody,
    ChatBody,
    TokenizeBody,
    DetokenizeBody,
    AbortBody,
    PinBody,
    UnpinBody,
    ScoreBody,
]


def create_app(client: EngineClient, args: ServerArgs) -> FastAPI:
    """Return the application that serves client; it observes the client's requests for its metrics.

    Starts and stops nothing: the client's processes belong to the caller. Raises ConfigError for
    settings that only show to be wrong here.
    """
    config = client.model_config
    defaults = SamplingDefaults(args, config.generation_defaults, config.vocab_size)
    context = ApiContext(client, args, ServerMetrics(args.model_name), defaults)
    client.observers.append(context.metrics)
    app = FastAPI(
        title="radix-runtime",
        version=server_version(),
        description="Serves a large language model: a native and an OpenAI-compatible interface.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in (
        native_router(context),
        completions_router(context),
        chat_router(context),
        tokenize_router(context),
        model_info_router(context),
        health_router(context),
        admin_router(context),
        pins_router(context),
        choices_router(context),
    ):
        app.include_router(router)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics; open to scrapers without a key."""
        return Response(await context.metrics.scrape(client), media_type=CONTENT_TYPE_LATEST)

    describe_bodies(app, _BODIES)
    install_error_handlers(app)
    _add_layers(app, args)
    return app


def _add_layers(app: FastAPI, args: ServerArgs) -> None:
    """Wrap app; the last layer added is the outermost."""
    app.add_middleware(BodyLimit, limit_bytes=args.max_request_body_bytes)
    app.add_middleware(
        BearerAuth,
        api_key=args.api_key,
        admin_api_key=args.admin_api_key,
        tenants=args.tenants,
    )
    origins = [origin.strip() for origin in args.cors_allow_origins.split(",") if origin.strip()]
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(HttpBoundary)
