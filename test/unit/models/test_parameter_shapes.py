"""The shapes known without torch are those of the model that torch builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiny_models import VARIANTS, save_tiny_model

from runtime.srt.loading.model_config import ModelConfig
from runtime.srt.models.parameter_shapes import parameter_shapes
from runtime.srt.models.registry import build_model


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_equal_those_of_the_built_model(variant: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, variant)
    config = ModelConfig.load(tmp_path, {})

    built = build_model(config, torch.float32).parameters()

    assert parameter_shapes(config) == {name: tuple(t.shape) for name, t in built.items()}
