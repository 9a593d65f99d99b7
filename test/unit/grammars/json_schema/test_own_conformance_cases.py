"""The benchmark's own cases: a schema each with instances it takes and instances it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.schema_rig import accepted, schema_grammar

_CASES = Path(__file__).parents[4] / "benchmark" / "conformance_suites" / "selfmade.json"
GROUPS: list[dict[str, Any]] = json.loads(_CASES.read_text("utf-8"))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["id"])
def test_exactly_the_valid_instances_are_written(group: dict[str, Any]) -> None:
    grammar = schema_grammar(group["schema"])

    for test in group["tests"]:
        texts = [
            json.dumps(test["data"], ensure_ascii=False),
            json.dumps(test["data"], ensure_ascii=False, indent=1),
        ]
        assert accepted(grammar, *texts) == (texts if test["valid"] else [])
