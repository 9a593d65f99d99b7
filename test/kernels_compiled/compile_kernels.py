"""Compiles every kernel for GPUs that need not be there, and holds what it takes to a table.

    make test-kernels ARGS="--only decode --capability 90"
    make test-kernels TRITON=FOLDER        with the Triton release installed in that folder

Fails if a kernel does not compile, takes more of a multiprocessor than is good for it (LIMITS), or
takes anything else than the table of this Triton release says. --write writes the table instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import triton
from attention_launches import ATTENTION_LAUNCHES
from step_launches import STEP_LAUNCHES
from support.kernel_compiler import CompiledKernel, KernelLaunch, compile_launches

LAUNCHES: list[KernelLaunch] = [*ATTENTION_LAUNCHES, *STEP_LAUNCHES]
CAPABILITIES = (80, 90, 100)
MOST_REGISTERS = 254  # at 255 the compiler ran out of them
MOST_SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}

Table = dict[str, dict[str, Any]]


def main() -> int:
    """Compile, check, compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--only", default="", help="launches whose name holds this text")
    parser.add_argument("--capability", type=int, choices=CAPABILITIES, help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()

    started = time.monotonic()
    names = [launch.name for launch in LAUNCHES]
    assert len(set(names)) == len(names), f"two launches share a name: {sorted(names)}"
    capabilities = (arguments.capability,) if arguments.capability else CAPABILITIES
    work = [
        (index, capability)
        for index, launch in enumerate(LAUNCHES)
        if arguments.only in launch.name
        for capability in capabilities
    ]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(_compile, *zip(*work, strict=True)))

    table: Table = {}
    problems: list[str] = []
    for (index, capability), kernels in zip(work, results, strict=True):
        for kernel in kernels:
            key = f"{LAUNCHES[index].name}, {kernel.kernel}, sm_{capability}"
            table[key] = _entry(kernel)
            problems += _broken_limits(key, LAUNCHES[index], kernel, capability)
    path = _table_path()
    if arguments.write:
        _write(path, table, keep_others=len(work) < len(LAUNCHES) * len(CAPABILITIES))
    elif path.exists():
        problems += _differences(json.loads(path.read_text()), table, is_whole=not arguments.only)
    else:
        print(f"no {path.name}: only the limits were checked")

    for problem in problems:
        print(problem, file=sys.stderr)
    print(
        f"{len(table)} kernels compiled by Triton {triton.__version__} in "
        f"{time.monotonic() - started:.0f} s, {len(problems)} problems"
    )
    return 1 if problems else 0


def _compile(index: int, capability: int) -> list[CompiledKernel]:
    return compile_launches(LAUNCHES[index].call, capability)


def _entry(kernel: CompiledKernel) -> dict[str, Any]:
    fields = dataclasses.asdict(kernel)
    del fields["kernel"]
    return fields


def _broken_limits(
    key: str, launch: KernelLaunch, kernel: CompiledKernel, capability: int
) -> list[str]:
    problems = []
    if kernel.stack_bytes or kernel.local_bytes:
        problems.append(f"{kernel.stack_bytes} B of stack, {kernel.local_bytes} B of local memory")
    if kernel.registers > MOST_REGISTERS:
        problems.append(f"{kernel.registers} registers, more than {MOST_REGISTERS}")
    if kernel.shared_bytes > MOST_SHARED_BYTES[capability]:
        problems.append(
            f"{kernel.shared_bytes} B of shared memory, more than {MOST_SHARED_BYTES[capability]}"
        )
    if capability == 90 and launch.on_hopper not in (None, kernel.matrix_unit):
        problems.append(f'matrix unit is "{kernel.matrix_unit}", not {launch.on_hopper}')
    return [f"{key}: {problem}" for problem in problems]


def _table_path() -> Path:
    release = ".".join(triton.__version__.split(".")[:2])
    return Path(__file__).parent / f"triton-{release}.json"


def _write(path: Path, table: Table, keep_others: bool) -> None:
    if keep_others and path.exists():
        table = json.loads(path.read_text()) | table
    lines = [f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _differences(expected: Table, found: Table, is_whole: bool) -> list[str]:
    problems = [
        f"{key}: table {expected[key]}, now {found[key]}"
        for key in sorted(expected.keys() & found.keys())
        if expected[key] != found[key]
    ]
    problems += [f"{key}: not in the table" for key in sorted(found.keys() - expected.keys())]
    if is_whole:
        problems += [f"{key}: only in the table" for key in sorted(expected.keys() - found.keys())]
    if problems:
        problems.append("if the change is meant: make test-kernels ARGS=--write")
    return problems


if __name__ == "__main__":
    raise SystemExit(main())
