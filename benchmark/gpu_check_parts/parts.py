"""The parts by name, and one of them run to its end in this process."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from .outcome import Outcome

# Name -> what is printed above its rows, in the order of their runs.
PARTS = {
    "peaks": "Peaks of the device, measured",
    "kernels": "Kernels against their references",
    "equality": "Greedy answers against the CPU's",
    "bundled": "Bundled model (SmolLM2-135M)",
    "llama8b": "Llama-3.1-8B, random weights",
    "attention": "Decode attention alone",
    "sampling": "Fused sampling",
}


@dataclass(frozen=True, slots=True)
class Task:
    """One part, or one of num_shards shares of its cases."""

    part: str
    out: Path
    is_interpreted: bool = False
    model: Path | None = None
    shard: int = 0
    num_shards: int = 1

    @property
    def file(self) -> Path:
        """Where its Outcome goes."""
        return self.out / f"{self.part}-{self.shard}.json"


def run_part(task: Task) -> Outcome:
    """Run it and write its outcome after each row that cost much; errors end the part alone."""
    from .stand_ins import install_stand_ins

    outcome = Outcome(task.part, left_out=install_stand_ins())
    began = time.monotonic()
    try:
        _run(task, outcome)
    except Exception as error:  # reported with the part's name; the other parts go on
        traceback.print_exc()
        outcome.error = f"{type(error).__name__}: {error}"[:600]
    outcome.seconds = time.monotonic() - began
    outcome.write(task.file)
    return outcome


def _run(task: Task, outcome: Outcome) -> None:
    from .bench import Bench

    bench = Bench(task.is_interpreted)
    if task.part == "peaks":
        from . import peaks

        outcome.rows += peaks.run(bench)
    elif task.part == "kernels":
        from . import kernels

        for row in kernels.run(bench, task.shard, task.num_shards):
            outcome.rows.append(row)
            outcome.write(task.file)
    elif task.part == "equality":
        from . import equality

        outcome.rows += equality.run(bench, task.model)
    elif task.part in ("bundled", "llama8b"):
        from . import model_speed

        is_bundled = task.part == "bundled"
        shape, folder = ("SmolLM2-135M", task.model) if is_bundled else ("Llama-3.1-8B", None)
        outcome.rows += model_speed.run(bench, shape, folder, has_goals=not is_bundled)
    elif task.part == "attention":
        from . import attention_speed

        rows, left_out = attention_speed.run(bench)
        outcome.rows += rows
        outcome.left_out += left_out
    else:
        from . import sampling_speed

        outcome.rows += sampling_speed.run(bench)
