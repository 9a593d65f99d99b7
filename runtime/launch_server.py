"""`python -m runtime.launch_server`: serve a model over HTTP; --help lists the settings."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Serve until stopped; return the exit code."""
    from runtime.srt.server_args import from_command_line

    args = from_command_line(argv)
    from runtime.srt.api.serve import run_server

    return run_server(args)


if __name__ == "__main__":
    import logging
    import os
    import sys

    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is released by now; a thread that still tokenises must not hold the exit up.
    os._exit(code)
