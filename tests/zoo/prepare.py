"""A family's model with two calls that it can run: known for a causal one and for one of a library, found by trying for a base
model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from transformers import PretrainedConfig, PreTrainedModel

from autotp.capture.grouped import GroupedProducts
from autotp.huggingface.examples import examples_for
from autotp.verify import Float64, run
from autotp.verify.calls import real_call
from autotp.verify.copies import copied

from .inputs import calls
from .kinds import CAUSAL, Kind
from .libraries import LIBRARIES, cases
from .models import config_of, model_from, model_of, set_in, with_noise
from .settings import SMALL_TOWER
from .sizes import smaller, with_sections

Example: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
TEXT = {"input_ids", "decoder_input_ids", "use_cache"}


def prepared(kind: Kind) -> tuple[nn.Module, list[Example]]:
    """The model, and two calls of different sizes. Raises what a model does that cannot be built or run."""
    if kind.head in LIBRARIES:
        return _of_library(kind)
    if kind.head == CAUSAL:
        model = model_of(kind)
        examples = examples_for(model, None)
        _check(model, examples[0])
        return model, examples
    first: Exception | None = None
    for config in _configs(kind):
        try:
            return _with_calls(kind, config)
        except ImportError:
            raise
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _of_library(kind: Kind) -> tuple[nn.Module, list[Example]]:
    torch.manual_seed(0)
    with _Zeros():
        given = cases(kind.head)[kind.name]()
    model = with_noise(given.model.eval())
    for example in given.calls:
        _check(model, example)
    return model, given.calls


class _Zeros(TorchFunctionMode):
    """What is made without values is zero: some weights stay as they were made, and memory may hold anything."""

    EMPTY = frozenset({torch.empty, torch.empty_like, torch.Tensor.new_empty})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in self.EMPTY else made


def _configs(kind: Kind) -> Iterator[PretrainedConfig]:
    """The configurations to try, small ones first."""
    config = config_of(kind)
    small = smaller(config)
    yield small
    yield smaller(config, images=False)
    yield config
    yield from with_sections(small)


def _with_calls(kind: Kind, config: PretrainedConfig) -> tuple[PreTrainedModel, list[Example]]:
    model = model_from(config, kind)
    examples = _examples(model)
    if "text_config" in config.sub_configs and examples[0][1].keys() <= TEXT:
        try:
            small = model_from(_without_towers(config), kind)
            return small, _examples(small)
        except Exception:
            pass  # sizes that must agree with those of the text
    return model, examples


def _without_towers(config: PretrainedConfig) -> PretrainedConfig:
    """A copy whose parts for images and sounds, which a call with text alone leaves out, are so small that they do not count."""
    made = type(config).from_dict(config.to_dict())
    for name in made.sub_configs:
        if name != "text_config" and isinstance(inner := getattr(made, name, None), PretrainedConfig):
            set_in(inner, {key: value for key, value in SMALL_TOWER.items() if hasattr(inner, key)})
    return made


def _examples(model: PreTrainedModel) -> list[Example]:
    """The first calls that the model can run. Raises what it says about the first of those it cannot."""
    double, first = copied(model).double(), None
    for both in calls(model):
        examples: list[Example] = [((), call) for call in both]
        try:
            for _, call in examples:
                with Float64(), GroupedProducts(), torch.no_grad():
                    double(**pytree.tree_map(_double, call))
            _check(model, examples[0])
            return examples
        except Exception as error:
            first = first or error
    raise first or TypeError(f"{type(model).__name__} takes nothing that is known here")


def _double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _check(model: nn.Module, example: Example) -> None:
    """Raises whatever the model raises in one forward and backward, and for results that are random or no numbers."""
    double = copied(model).double().requires_grad_()
    args, kwargs = pytree.tree_map(_double, example)
    call = real_call(double, (args, kwargs))
    outputs, gradients = run(copied(double), call, 0, ())
    again, _ = run(double, call, 0, ())
    if any(not torch.equal(output.nan_to_num(), again[name].nan_to_num()) for name, output in outputs.items()):
        raise ValueError("the dense model draws random numbers in its forward")
    for name, tensor in (*outputs.items(), *gradients.items()):
        if tensor.is_floating_point() and tensor.isnan().any():
            raise ValueError(f"{name} of the dense model is not a number")
