"""Tenants: clients with keys and token quotas of their own, from a JSON file.

{"tenants": [{"name": "team-a", "api_key": "...", "tokens_per_minute": 60000}]}; tokens_per_minute
may be left out for no limit.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from .errors import ConfigError


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One client; its quota counts prompt tokens not found in the cache, and output tokens."""

    name: str
    api_key: str
    tokens_per_minute: float | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: list[Tenant]


def load_tenants(path: str) -> list[Tenant]:
    """Read and check the file at path; raises ConfigError, which never shows a key."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"--tenants-file {path!r} cannot be read: {error.strerror}") from None
    try:
        tenants = msgspec.json.decode(text, type=_File).tenants
    except (msgspec.DecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"--tenants-file {path!r}: {error}") from None
    if not tenants:
        raise ConfigError(f"--tenants-file {path!r} names no tenant; leave the flag out")
    for place, tenant in enumerate(tenants):
        where = f"--tenants-file {path!r}: tenants[{place}]"
        rate = tenant.tokens_per_minute
        if not tenant.name or not tenant.name.isprintable():
            raise ConfigError(f"{where}.name is {tenant.name!r}; it must be printable text")
        if not tenant.api_key or tenant.api_key.split() != [tenant.api_key]:
            raise ConfigError(f"{where}.api_key is empty or contains white space")
        if rate is not None and not 0 < rate <= 1e12:
            raise ConfigError(f"{where}.tokens_per_minute is {rate}; it must be above 0")
    for field, values in (
        ("name", [one.name for one in tenants]),
        ("api_key", [one.api_key for one in tenants]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"--tenants-file {path!r}: two tenants have the same {field}")
    return tenants
