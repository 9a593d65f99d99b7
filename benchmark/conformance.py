"""Hold grammars to labelled instances: nothing invalid may be written, all that is valid must be.

    python benchmark/conformance.py --suite official|maskbench|selfmade [--data DIR] [--json]

official: the core groups of the JSON Schema test suite, drafts 7 and 2020-12, with types written
in; maskbench: real schemas with instances of theirs; selfmade: own small cases. The first two are
read from DIR (default: the folder that RUNTIME_TEST_DATA names); selfmade is the default. Schemas
go the way of a request's schema; each instance is written in several layouts and key orders, cut by
the bundled model's tokenizer and fed token by token. A group is right if its schema is served and
every instance comes out as labelled. Of refused groups the instances are not counted. compile_ms
includes the check and the rewrite. The exit status is 1 if anything invalid was accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from conformance_suites.groups import SUITES, Group, load_groups
from conformance_suites.matching import SchemaMatching, bundled_vocabulary
from conformance_suites.spellings import texts

from runtime.grammars.matcher import GrammarError
from runtime.grammars.spec import JsonWhitespace


@dataclass(slots=True)
class Counts:
    """What came out. details: a line for each group that is not right."""

    groups: int = 0
    groups_right: int = 0
    refused: int = 0
    invalid_accepted: int = 0
    invalid: int = 0
    valid_rejected: int = 0
    valid: int = 0
    seconds: list[float] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        found = {name: value for name, value in asdict(self).items() if isinstance(value, int)}
        marks = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
        times = self.seconds or [0.0]
        compile_ms = {
            name: round(float(np.percentile(times, mark)) * 1e3, 2) for name, mark in marks.items()
        }
        return {**found, "compile_ms": compile_ms}


def run(groups: list[Group], matching: SchemaMatching) -> Counts:
    counts = Counts()
    for group in groups:
        counts.groups += 1
        try:
            grammar, seconds = matching.compile(group.schema)
        except GrammarError as error:
            counts.refused += 1
            counts.details.append(f"refused         {group.name}: {error}")
            continue
        counts.seconds.append(seconds)
        is_right = True
        for instance in group.instances:
            written = texts(instance.value, group.schema)
            is_taken = any(matching.takes(grammar, text) for text in written)
            is_wrong = is_taken != instance.is_valid
            if instance.is_valid:
                counts.valid += 1
                counts.valid_rejected += is_wrong
            else:
                counts.invalid += 1
                counts.invalid_accepted += is_wrong
            if is_wrong:
                is_right = False
                what = "valid rejected  " if instance.is_valid else "invalid accepted"
                value = json.dumps(instance.value)[:200]
                counts.details.append(f"{what}{group.name} ({instance.about}): {value}")
        counts.groups_right += is_right
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=SUITES, default="selfmade")
    parser.add_argument("--data", type=Path, help="folder of the suites")
    parser.add_argument("--only", default="", help="groups whose name contains this")
    parser.add_argument(
        "--json-whitespace",
        choices=[one.value for one in (JsonWhitespace.BOUNDED, JsonWhitespace.UNBOUNDED)],
        default=JsonWhitespace.BOUNDED.value,
    )
    parser.add_argument("--details", action="store_true", help="name what is not right")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    default = os.environ.get("RUNTIME_TEST_DATA")
    data = args.data or (Path(default) if default else None)
    try:
        groups = [g for g in load_groups(args.suite, data) if args.only in g.name]
        vocabulary = bundled_vocabulary()
    except FileNotFoundError as error:
        parser.error(str(error))
    counts = run(groups, SchemaMatching(vocabulary, JsonWhitespace(args.json_whitespace)))
    if args.details:
        print("\n".join(counts.details), file=sys.stderr)
    if args.json:
        print(json.dumps(counts.summary()))
    else:
        for name, value in counts.summary().items():
            print(f"{name:18}{value}")
    sys.exit(1 if counts.invalid_accepted else 0)


if __name__ == "__main__":
    main()
