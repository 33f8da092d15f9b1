"""Checkpoints of quantized weights: transformers undoes the quantization as it loads, and what is cut is the result."""

from __future__ import annotations

import copy
from pathlib import Path

from transformers import PretrainedConfig
from transformers.quantizers.auto import AutoQuantizationConfig

from ..errors import UsageError


def dequantizing(config: PretrainedConfig, folder: Path) -> PretrainedConfig:
    """A configuration that asks for whole numbers of the weights; the one given if they are not quantized.

    Raises UsageError for a method that transformers cannot undo while it loads.
    """
    given = getattr(config, "quantization_config", None)
    if given is None:
        return config
    settings = given if isinstance(given, dict) else given.to_dict()
    method = settings.get("quant_method")
    try:
        undone = hasattr(AutoQuantizationConfig.from_dict(settings), "dequantize")
    except (ImportError, ValueError) as error:
        raise UsageError(f"the weights of {folder} are quantized by {method!r}: {error}") from error
    if not undone:
        raise UsageError(
            f"the weights of {folder} are quantized by {method!r}, which transformers cannot undo while loading; save the"
            " model with its weights dequantized first"
        )
    result = copy.deepcopy(config)
    result.quantization_config = {**settings, "dequantize": True}
    return result
