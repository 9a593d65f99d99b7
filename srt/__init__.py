"""The serving runtime: HTTP, processes, scheduler, memory, execution."""
