"""Kernels compile for a GPU that is not there, in the process that interprets them too."""

from __future__ import annotations

import torch
from support.kernel_compiler import compile_launches

from runtime.kernels.triton.store_kv import store_kv


def test_an_interpreted_kernel_compiles_afterwards() -> None:
    k, pool = torch.randn(2, 1, 64), torch.zeros(4, 1, 64)
    store_kv(k, k, pool, pool, torch.tensor([1, 2]))
    meta = (k.to("meta"), k.to("meta"), pool.to("meta"), pool.to("meta"))
    slots = torch.empty(2, dtype=torch.int64, device="meta")

    compiled = compile_launches(lambda: store_kv(*meta, slots), 90)

    assert [kernel.kernel for kernel in compiled] == ["_store_kv_kernel"]
    assert 0 < compiled[0].registers < 255
    assert compiled[0].matrix_unit == ""
