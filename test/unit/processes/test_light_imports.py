"""What a process imports decides how fast it starts: torch alone takes more than a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "gguf", "pydantic", "fastapi", "huggingface_hub")


@pytest.mark.parametrize("role", ["scheduler", "detokenizer", "resolve"])
def test_a_child_imports_nothing_heavy(role: str) -> None:
    code = (
        f"import sys, runtime.srt.processes.{role}_process; "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_launcher_imports_no_torch_before_the_model_loads() -> None:
    code = "import sys, runtime.srt.api.serve; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
