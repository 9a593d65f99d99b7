"""Log lines of one process: to stderr, with time, level and the process's name."""

from __future__ import annotations

import logging
import sys

# Libraries that tell their own life at info level; ours is told by our own lines.
_QUIET = ("uvicorn", "uvicorn.error", "httpx", "httpcore", "asyncio", "filelock", "urllib3")


def configure_logging(process_name: str, level: str) -> None:
    """Send this process's log lines at `level` and above to stderr, replacing earlier settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(asctime)s %(levelname)-7s {process_name}: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel("DEBUG" if level == "debug" else "WARNING")
