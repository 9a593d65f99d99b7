"""What a part of the check found: rows of figures and verdicts, as JSON between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Peak = Literal["bandwidth", "flops"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure or one comparison.

    is_right None: nothing was compared. value None with a unit: not measured. rate is what was
    read or computed per second, to be set against the device's measured peak; share_goal is the
    share that is hoped for. meets_goal is that of figures which are no share. Rows of one group
    become one line of the table.
    """

    name: str
    value: float | None = None
    unit: str = ""
    is_right: bool | None = None
    rate: float | None = None
    peak: Peak | None = None
    share_goal: float | None = None
    meets_goal: bool | None = None
    note: str = ""
    group: str = ""


@dataclass(slots=True)
class Outcome:
    """A part that came to its end or did not; left_out says by name what it could not do."""

    part: str
    seconds: float = 0.0
    error: str | None = None
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether it ended and no comparison failed."""
        return self.error is None and all(row.is_right is not False for row in self.rows)

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(json.dumps(asdict(self), indent=1))

    @staticmethod
    def read(file: Path) -> Outcome:
        """What write() wrote."""
        fields = json.loads(file.read_text())
        return Outcome(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})
