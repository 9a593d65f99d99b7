"""Who computes what programs ask for: one file for each kind."""
