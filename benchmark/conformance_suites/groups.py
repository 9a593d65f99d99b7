"""Groups of labelled instances, one schema each, read from the three suites."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .typed import with_types

SUITES = ("official", "maskbench", "selfmade")
OWN_CASES = Path(__file__).parent / "selfmade.json"

# Annotations only, or about references that lead out of the document or change at run time.
_LEFT_OUT = frozenset("refRemote vocabulary dynamicRef anchor format content default".split())
_DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One JSON value and whether the schema takes it."""

    value: Any  # any JSON value
    is_valid: bool
    about: str


@dataclass(frozen=True, slots=True)
class Group:
    """A schema with its instances."""

    name: str
    schema: Any  # an object or a boolean
    instances: tuple[Instance, ...]


def load_groups(suite: str, data: Path | None) -> list[Group]:
    """All groups of a suite. Raises FileNotFoundError if data lacks it."""
    if suite == "selfmade":
        return list(_selfmade(data))
    if data is None:
        raise FileNotFoundError(f"--data or RUNTIME_TEST_DATA must name the folder of {suite}")
    folder = data / ("json-schema-test-suite/tests" if suite == "official" else "maskbench-sample")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there")
    return list(_official(folder) if suite == "official" else _maskbench(folder))


def _official(folder: Path) -> Iterator[Group]:
    """The core files of both drafts, with the types written in that a careful user would write;
    labels follow the schema as changed."""
    for draft, address in _DRAFTS.items():
        for file in sorted((folder / draft).glob("*.json")):
            if file.stem in _LEFT_OUT:
                continue
            for index, group in enumerate(json.loads(file.read_text("utf-8"))):
                schema, tests = with_types(group["schema"], group["tests"], draft)
                if isinstance(schema, dict):
                    schema.setdefault("$schema", address)
                name = f"{draft}/{file.stem}#{index} {group['description']}"
                yield Group(name, schema, _instances(tests))


def _maskbench(folder: Path) -> Iterator[Group]:
    for file in sorted(folder.glob("*.json")):
        group = json.loads(file.read_text("utf-8"))
        yield Group(file.stem, group["schema"], _instances(group.get("tests", [])))


def _selfmade(data: Path | None) -> Iterator[Group]:
    other = None if data is None else data / "selfmade.json"
    file = other if other is not None and other.is_file() else OWN_CASES
    for group in json.loads(file.read_text("utf-8")):
        yield Group(group["id"], group["schema"], _instances(group["tests"]))


def _instances(tests: list[dict[str, Any]]) -> tuple[Instance, ...]:
    return tuple(
        Instance(test["data"], test["valid"], test.get("description", "")) for test in tests
    )
