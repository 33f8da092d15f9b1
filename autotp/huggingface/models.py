"""Models and example inputs from what a user names: a model, a configuration, a folder, a file or a type name."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ..capture.suitable import check_suitable
from ..errors import AutotpError, UsageError, in_one_line, nearest
from ..outside.data import brief, parse_json, read_text
from . import attention as attention  # its table is known from here on
from . import experts as experts  # and this one
from .names import MOST_NAMED, unknown_type

VERSION: str = transformers.__version__

# Two sizes of batch and sequence: what differs between the two runs varies, everything else is a constant.
EXAMPLE_SIZES = ((3, 13), (5, 17))

# Heads in the order they are looked for: a type with an encoder and a decoder is taken with both.
_TWO_STACKS = (
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING,
)
_HEADS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
)


def type_names() -> list[str]:
    """Every type of model that transformers has a configuration for."""
    return sorted(CONFIG_MAPPING.keys())


def config_of(source: str | Path) -> PretrainedConfig:
    """The configuration of a folder, a config.json, a model id in the local cache, or a type name such as `gpt2`.

    Raises UsageError naming what was tried.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _config_from_file(path)
    name = str(source)
    if name in CONFIG_MAPPING:
        return AutoConfig.for_model(name)
    if "/" in name:
        try:
            return AutoConfig.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise UsageError(f"{name!r} is no folder, and no model of that id can be read: {error}") from error
    raise unknown_type(name, frozenset(CONFIG_MAPPING))


def _config_from_file(path: Path) -> PretrainedConfig:
    data = parse_json(read_text(path, UsageError), str(path), UsageError, strict=False)
    if not isinstance(data, dict):
        raise UsageError(f"{path} is {brief(data)}; expected an object with the settings of a model")
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise UsageError(f"{path} has the model_type {brief(kind)}{nearest(str(kind), CONFIG_MAPPING, MOST_NAMED)}")
    try:
        return CONFIG_MAPPING[kind].from_dict(data)
    except Exception as error:  # whatever transformers says to the settings
        raise UsageError(f"{path} is no configuration of a {kind}: {in_one_line(error)}") from error


def model_class(config: PretrainedConfig) -> Any:
    """The class a configuration names, else the first head its type has (sequence-to-sequence where there are two stacks,
    causal, masked, image)."""
    named = getattr(config, "architectures", None)
    for name in named if isinstance(named, (list, tuple)) else ():
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel):
            return kind
    for mapping in (*(_TWO_STACKS if config.is_encoder_decoder else ()), *_HEADS):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    return AutoModel._model_mapping[type(config)]  # the one place that lists base models


def build_model(config: Any, *, meta: bool = True) -> PreTrainedModel:
    """A model of a configuration in eval mode: without weights on the meta device, or with random ones."""
    kind = model_class(config)
    part = next((name for name, part in config.sub_configs.items() if part is kind.config_class), None)
    if part is not None and not isinstance(config, kind.config_class):
        config = getattr(config, part)  # a type of several modalities whose head is that of its text part
    with torch.device("meta" if meta else "cpu"):
        model: PreTrainedModel = kind(config)
    return model.eval()


def builder(model: nn.Module) -> Callable[[], nn.Module] | None:
    """What builds a new transformers model, with initial values, from its configuration; None for other modules."""
    if not isinstance(model, PreTrainedModel):
        return None
    kind: Any = type(model)
    config = copy.deepcopy(model.config)
    return lambda: kind(config)


def resolve(source: Any) -> nn.Module:
    """The module a user means; one without weights for anything that is not a module. Raises UsageError for nothing known."""
    if isinstance(source, nn.Module):
        check_suitable(source)
        return source
    if isinstance(source, (str, Path)):
        source = config_of(source)
    if not isinstance(source, PretrainedConfig):
        raise UsageError(f"a model is a module, a configuration, a folder or a type name, not {type(source).__name__}")
    try:
        return build_model(source)
    except AutotpError:
        raise
    except Exception as error:  # whatever the model's own code says to the configuration
        raise UsageError(
            f"transformers cannot build a model of this {type(source).__name__}: {in_one_line(error)}"
        ) from error


def is_transformers_model(model: object) -> bool:
    """Returns if a module is a transformers model, whose inputs are known."""
    return isinstance(model, PreTrainedModel)


def can_generate(model: object) -> TypeGuard[PreTrainedModel]:
    """Returns if a module is a transformers model that writes text."""
    return isinstance(model, PreTrainedModel) and model.can_generate()


def example_inputs(model: nn.Module, batch: int, sequence: int) -> dict[str, Any]:
    """Keyword arguments for one forward of a transformers model; tensors are on the meta device.

    Raises UsageError for a model whose main input is not known here.
    """
    config: Any = model.config
    inputs: dict[str, Any] = {str(model.main_input_name): _main_input(model, batch, sequence)}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.zeros(batch, sequence + 2, dtype=torch.long, device="meta")
    if _takes_cache(model):
        inputs["use_cache"] = False
    return inputs


def cached_inputs(model: nn.Module) -> list[dict[str, Any]]:
    """The example inputs of calls that keep a cache, for a model that takes one."""
    calls = [example_inputs(model, *sizes) for sizes in EXAMPLE_SIZES]
    return [{**call, "use_cache": True} if "use_cache" in call else call for call in calls]


def _main_input(model: Any, batch: int, sequence: int) -> torch.Tensor:
    name, config = model.main_input_name, model.config
    if name == "input_ids":
        codebooks = getattr(config, "num_codebooks", None) or 1  # some read a row for each, and none minds more rows
        return torch.zeros(batch * codebooks, sequence, dtype=torch.long, device="meta")
    if name == "pixel_values" and (size := getattr(config, "image_size", None)):
        size = size if isinstance(size, (list, tuple)) else (size, size)
        return torch.zeros(batch, getattr(config, "num_channels", 3), *size, dtype=model.dtype, device="meta")
    if name == "input_features" and hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):
        # Frames of a spectrogram; two convolutions, the second of stride two, make the positions of them.
        return torch.zeros(
            batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=model.dtype, device="meta"
        )
    raise UsageError(f"no example inputs are known for the input {name!r}; give them as example=(args, kwargs)")


def _takes_cache(model: nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return "use_cache" in parameters or (hands_on and hasattr(model.config, "use_cache"))
