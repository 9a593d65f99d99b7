"""Kernels for NVIDIA GPUs in Triton, version 3.6 and later: tensors in, tensors out.

Each file holds one family: the wrapper that callers use and the kernels behind it. Launch
parameters come from launch_table.py. Only ever imported as runtime.kernels.triton: a folder of
this name first on sys.path would hide the package it needs.
"""

import os

# Fused multiply-add stays on: the default up to Triton 3.9, which warns that 3.10 turns it off.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
