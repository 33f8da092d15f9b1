"""What ranks of the test device compute, beside dense models on the CPU; every function here runs on a rank."""

from __future__ import annotations

import copy
import inspect
import os
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import autotp
from autotp.huggingface.models import build_model
from autotp.verify import Float64
from tests.device.module import DEVICE
from tests.families import FAMILIES, MIXERS, MIXTURES, WRITERS

Batch = dict[str, torch.Tensor]
KNOWN = {**WRITERS, **MIXERS, **MIXTURES, **FAMILIES}


def dense_model(name: str, **settings: Any) -> Any:
    """A family's tiny model with the same random weights on every rank, in float64 on the CPU."""
    torch.manual_seed(0)
    config = KNOWN[name].config()
    config.update(settings)
    model = build_model(config, meta=False).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # devices draw other numbers
    return model


def batch(model: nn.Module, step: int = 0, rows: int = 4) -> Batch:
    """Inputs of a step, on the CPU."""
    generator = torch.Generator().manual_seed(step)
    takes = inspect.signature(model.forward).parameters
    if "pixel_values" in takes:
        return {"pixel_values": torch.rand(rows, 3, 32, 32, generator=generator, dtype=torch.float64)}
    ids = torch.randint(3, 250, (rows, 9), generator=generator)
    return {"input_ids": ids, "labels": ids} if "labels" in takes else {"input_ids": ids}


def there(inputs: Batch) -> Batch:
    """Inputs on this rank's device."""
    return {name: value.to(DEVICE) for name, value in inputs.items()}


def run(model: Any, inputs: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs, without those that are cut, and a loss, in float64."""
    with Float64():
        result = model(**inputs)
        if "labels" in inputs:
            return result.logits, result.loss
        return result[0], result[0].square().mean()


def whole(value: torch.Tensor) -> torch.Tensor:
    """A value on the CPU."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far values are apart, beside the largest of those expected."""
    expected = expected.detach()
    return float((whole(found) - expected).abs().max() / expected.abs().max().clamp(min=1e-3))


def is_here(model: nn.Module) -> bool:
    """Returns if all that a model holds is on the device of this rank's number."""
    place = torch.device(DEVICE, int(os.environ["LOCAL_RANK"]))
    return {tensor.device for tensor in [*model.parameters(), *model.buffers()]} == {place}


def step_differs(name: str, settings: dict[str, Any], **options: Any) -> float:
    """How far outputs, loss and gradients of a parallel model are from the dense one's."""
    dense = dense_model(name, **settings)
    inputs = batch(dense)
    parallel: Any = autotp.parallelize(copy.deepcopy(dense), **options)
    assert is_here(parallel)
    expected, found = run(dense, inputs), run(parallel, there(inputs))
    expected[1].backward()
    found[1].backward()
    apart = [distance(a, b) for a, b in zip(found, expected, strict=True)]
    gradients = autotp.full_gradients(parallel)
    for path, parameter in dense.named_parameters():
        mine = gradients[path]
        assert (mine is None) == (parameter.grad is None), path
        if mine is not None and parameter.grad is not None:
            apart.append(distance(mine, parameter.grad))
    return max(apart)
