"""Simulate the scheduler on a big machine and a long trace; see docs/simulator.md.

python benchmark/simulate.py --workload multi-turn --rate 20
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # absent under PYTHONSAFEPATH

from simulation.command import main

if __name__ == "__main__":
    logging.getLogger("runtime").setLevel(logging.ERROR)  # thousands of retractions are no news
    sys.exit(main())
