"""Results as JSON lines, one for each contestant, round and case, so that a run can resume."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

MACHINE = "machine"  # contestant name of the records that hold the machine's limits
DOES_NOT_START = "does not start"  # how the problem of a failed start begins


@dataclass(frozen=True, slots=True)
class Record:
    """One measured case, or why it was not measured (problem)."""

    contestant: str
    round: int
    case: str
    figures: dict[str, float]
    problem: str | None = None
    when: str = ""


class ResultsFile:
    """Appends records to a file and knows which cases it holds already.

    resume keeps what the file holds, but for failed starts: those are tried again.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = read_records(path) if resume and path.exists() else []
        path.write_text("", encoding="utf-8")
        self.records: list[Record] = []
        for record in kept:
            if not (record.problem or "").startswith(DOES_NOT_START):
                self.append(record)

    def has(self, contestant: str, round_number: int, case: str) -> bool:
        """Return whether this case was measured, or found to be impossible, before."""
        return any(
            one.contestant == contestant and one.round == round_number and one.case == case
            for one in self.records
        )

    def append(self, record: Record) -> None:
        """Keep record and write it at once."""
        self.records.append(record)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(record)) + "\n")


def read_records(path: Path) -> list[Record]:
    """Return the records of a results file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Record(**json.loads(line)) for line in lines if line.strip()]
