"""Makes benchmark/ importable: it is no part of the package, so that `serving` is not either."""

from __future__ import annotations

import sys
from pathlib import Path

BENCHMARK = str(Path(__file__).resolve().parents[3] / "benchmark")
if BENCHMARK not in sys.path:
    sys.path.append(BENCHMARK)
