"""Reference kernels: slow, obvious, the meaning of the others."""
