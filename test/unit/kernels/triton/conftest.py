"""Kernels run in Triton's interpreter in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.triton_interpreter import interpreted_kernels


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    with interpreted_kernels():
        yield
