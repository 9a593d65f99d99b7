"""Bearer keys: who may call which route.

Probes and metrics are open. Routes that touch other people's requests, or the cache of all, need
the admin key if there is one, else the ordinary key. A tenant's key opens the other routes only,
and names the tenant whose quota a request counts against. Keys are compared in constant time and
never logged or sent back.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import Forbidden, ServingError, Unauthorized
from ..tenants import Tenant
from .errors import error_response

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready", "/metrics"})
# Of the request being answered; None for the ordinary key, the admin's or none.
current_tenant: ContextVar[str | None] = ContextVar("current_tenant", default=None)

ADMIN_PATHS = frozenset({"/flush_cache", "/abort_request", "/pin_prefix", "/unpin_prefix"})


class BearerAuth:
    """Refuses requests without the right key, before their body is read."""

    def __init__(
        self,
        app: ASGIApp,
        api_key: str | None,
        admin_api_key: str | None,
        tenants: Sequence[Tenant] = (),
    ) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()
        self._admin_key = None if admin_api_key is None else admin_api_key.encode()
        self._tenants = [(one.name, one.api_key.encode()) for one in tenants]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ServingError | None:
        path = scope["path"]
        if scope["method"] == "OPTIONS" or path in OPEN_PATHS:
            return None
        given = _bearer(scope)
        tenant = self._tenant_of(given)
        if path in ADMIN_PATHS and (self._admin_key is not None or self._tenants):
            if _same(given, self._admin_key):
                return None
            is_ordinary = _same(given, self._api_key)
            if is_ordinary and self._admin_key is None:
                return None
            if is_ordinary or tenant is not None:
                return Forbidden("this route needs the admin key", code="admin_key_required")
            return _unauthorized(given)
        if self._api_key is None and not self._tenants:
            return None
        if tenant is not None:
            current_tenant.set(tenant)  # each request is a task, with a context of its own
            return None
        if _same(given, self._api_key) or _same(given, self._admin_key):
            return None
        return _unauthorized(given)

    def _tenant_of(self, given: bytes | None) -> str | None:
        found = None
        for name, key in self._tenants:  # all of them: the time tells nothing of the place
            if _same(given, key):
                found = name
        return found


def _bearer(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else None
    return None


def _same(given: bytes | None, key: bytes | None) -> bool:
    return given is not None and key is not None and hmac.compare_digest(given, key)


def _unauthorized(given: bytes | None) -> Unauthorized:
    if given is None:
        return Unauthorized(
            "this server needs a key; send it as 'Authorization: Bearer KEY'",
            code="missing_api_key",
        )
    return Unauthorized("the key is not valid for this server", code="invalid_api_key")
