"""The CPU engine: C++ kernels behind one flat interface, built at first use."""
