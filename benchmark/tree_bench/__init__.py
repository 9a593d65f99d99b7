"""Parts of benchmark/radix_tree.py: workloads, the trees compared, and the timing."""
