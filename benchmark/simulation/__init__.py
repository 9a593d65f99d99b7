"""The scheduler on a virtual clock over a cost model; see docs/simulator.md."""
