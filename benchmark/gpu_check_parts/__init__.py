"""Parts of gpu_check.py: what one GPU computes, how right and how fast."""
