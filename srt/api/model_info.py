"""What the server is: models, model facts, settings and cache accounting."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from ..messages import KvStats, SchedulerState
from .context import ApiContext
from .json_response import json_response

STATE_TIMEOUT_SECONDS = 3.0  # a scheduler that answers no sooner gives a 503


def model_info_router(context: ApiContext) -> APIRouter:
    """Return the router of the read-only descriptions; no key is ever part of an answer."""
    router = APIRouter()

    @router.get("/v1/models")
    async def models() -> Response:
        """The one served model, in OpenAI's form with max_model_len."""
        return json_response({"object": "list", "data": [_model_card(context)]})

    @router.get("/v1/models/{model:path}")
    async def model_by_name(model: str) -> Response:
        """The served model; 404 for another name."""
        context.check_model(model)
        return json_response(_model_card(context))

    @router.get("/model_info")
    async def model_info() -> Response:
        """Facts about the model."""
        return json_response(_model_facts(context))

    @router.get("/get_model_info")
    async def get_model_info() -> Response:
        """The same as /model_info, under its older name."""
        return json_response(_model_facts(context))

    @router.get("/server_info")
    async def server_info() -> Response:
        """All settings but the keys, and what the scheduler holds."""
        return json_response(await _server_facts(context))

    @router.get("/get_server_info")
    async def get_server_info() -> Response:
        """The same as /server_info, under its older name."""
        return json_response(await _server_facts(context))

    @router.get("/kv_stats")
    async def kv_stats() -> Response:
        """Tokens of the KV pool: total = available + evictable + protected + held by requests."""
        state = await context.client.state(STATE_TIMEOUT_SECONDS)
        return json_response(kv_object(state.kv))

    return router


def kv_object(kv: KvStats) -> dict[str, int]:
    """Return kv as JSON shows it, in tokens; pinned is a part of protected."""
    return {
        "total": kv.total,
        "available": kv.available,
        "evictable": kv.evictable,
        "protected": kv.protected,
        "held": kv.held,
        "pinned": kv.pinned,
    }


def server_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("radix-runtime")
    except PackageNotFoundError:
        return "unknown"


def _model_card(context: ApiContext) -> dict[str, Any]:
    return {
        "id": context.model_name,
        "object": "model",
        "created": context.started_unix_seconds,
        "owned_by": "radix-runtime",
        "root": context.args.model_path,
        "parent": None,
        "max_model_len": context.client.facts.context_length,
    }


def _model_facts(context: ApiContext) -> dict[str, Any]:
    args, config = context.args, context.client.model_config
    return {
        "model_path": args.model_path,
        "served_model_name": context.model_name,
        "tokenizer_path": args.tokenizer_path or args.model_path,
        "is_generation": True,
        "preferred_sampling_params": args.preferred_sampling or None,
        "weight_version": "default",
        "model_type": config.architecture.removesuffix("ForCausalLM").lower(),
        "architectures": [config.architecture],
        "vocab_size": config.vocab_size,
        "max_model_len": context.client.facts.context_length,
        "has_chat_template": context.client.chat_template is not None,
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


async def _server_facts(context: ApiContext) -> dict[str, Any]:
    client = context.client
    state = await client.state(STATE_TIMEOUT_SECONDS)
    facts = client.facts
    return {
        **context.args.public_dict(),
        "served_model_name": context.model_name,
        "version": server_version(),
        "status": client.status,
        "startup_time": context.started_unix_seconds,
        "uptime_seconds": int(time.time()) - context.started_unix_seconds,
        "tp_size": 1,
        "dp_size": 1,
        "max_total_num_tokens": facts.max_total_tokens,
        "max_req_input_len": min(facts.context_length, facts.max_total_tokens),
        "max_running_requests": facts.max_running_requests,
        "kv_pool_bytes": facts.kv_pool_bytes,
        "weight_bytes": facts.weight_bytes,
        "weight_form": facts.weight_form,
        "attention_backend": facts.attention_backend,
        "dtype": facts.dtype,
        "device": facts.device,
        "threads": facts.threads,
        "kv_stats": kv_object(state.kv),
        "internal_states": [_internal_state(state)],
    }


def _internal_state(state: SchedulerState) -> dict[str, Any]:
    return {
        "num_running_reqs": state.num_running,
        "num_queue_reqs": state.num_waiting,
        "new_token_ratio": state.new_token_ratio,
        "last_gen_throughput": state.generated_tokens_per_second,
        "kv_stats": kv_object(state.kv),
        "num_pins": state.num_pins,
        "pin_limit_tokens": state.pin_limit_tokens,
        "counters": msgspec.structs.asdict(state.counters),
    }
