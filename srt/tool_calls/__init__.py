"""Tool calls: what a model writes to call a function, parsed, prompted for and constrained."""
