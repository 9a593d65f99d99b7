"""What holds for all tests of grammars."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _no_long_collections() -> None:
    """Leave what is there out of garbage collections, as the serving processes do at their start.

    One over all that a test run holds takes 0.4 s, which a search that is bounded in time has not.
    """
    gc.freeze()
