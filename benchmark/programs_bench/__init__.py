"""Programs of the frontend language, timed; see benchmark/programs.py."""
