"""One call of a model, dense or parallel: its outputs, the buffers that it changes, and every gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.grouped import GroupedProducts
from ..capture.opaque import copy_opaque, tensors_of
from ..errors import UsageError
from ..planner.survey import Example
from .calls import Call, WithoutDropout
from .counts import Called
from .float64 import Float64

MSG_NO_GRADIENT = (
    "{kind} gives nothing that has a gradient, so its gradients cannot be compared; give what makes it return floating tensors"
    " as example, or verify the module within it that does"
)


@dataclass(frozen=True)
class Run:
    """What the dense model gave in one call, and the calls of its units."""

    call: Call
    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    calls: Sequence[Called]


def called(
    model: nn.Module, call: Call, seed: int, units: Sequence[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """One call of the model in the call's mode: outputs, buffers that it has changed among them, and gradients."""
    model.train(call.training)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs, gradients = run(model, call.inputs, seed, units)
    for name, buffer in model.named_buffers():
        if name not in before or not _is_equal(before[name], buffer):
            outputs[f"buffer {name}"] = buffer.detach().clone()
    return outputs, gradients


def wanting_gradients(call: Example) -> Example:
    """The call with floating inputs that want gradients, as what blocks hand on to each other does."""

    def wanting(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().requires_grad_() if floating else leaf

    args, kwargs = pytree.tree_map(wanting, call)
    return tuple(args), kwargs


def run(
    model: nn.Module, call: Example, seed: int, units: Sequence[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Outputs by name, and the gradients that a random weighting of them gives to parameters and to the results of units.

    The result of the embedding's unit is what the first block reads: its gradient is that of the input embeddings.
    """
    model.zero_grad()
    # A call may change its arguments, and every run is to see the same ones.
    args, kwargs = copy_opaque(call, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad).clone())
    with Float64(), WithoutDropout(), GroupedProducts(), _unit_results(model, units) as results:
        outputs = _outputs(model(*args, **kwargs))
        weights = torch.Generator().manual_seed(seed)
        loss: Any = sum(
            (output * torch.randn(output.shape, generator=weights, dtype=output.dtype)).sum()
            for output in outputs.values()
            if output.is_floating_point() and output.requires_grad
        )
        if not isinstance(loss, torch.Tensor):
            raise UsageError(MSG_NO_GRADIENT.format(kind=type(model).__name__))
        loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}
    gradients |= {f"result of {path}": r.grad for path, r in results.items() if r.grad is not None}
    return {name: output.detach() for name, output in outputs.items()}, gradients


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _outputs(result: Any) -> dict[str, torch.Tensor]:
    """The tensors that a model returns, also those in dataclasses and in an object of a class of its own, by name."""
    found = {}
    for i, leaf in enumerate(pytree.tree_leaves(result)):
        if isinstance(leaf, torch.Tensor):
            found[f"output {i}"] = leaf
        elif leaf is result or dataclasses.is_dataclass(leaf):
            found |= {f"output {i}.{j}": tensor for j, tensor in enumerate(tensors_of(leaf))}
    return found


@contextmanager
def _unit_results(model: nn.Module, units: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Collects the first tensor that each unit gives, so that its gradient is kept."""
    results: dict[str, torch.Tensor] = {}

    def keep(path: str, given: Any, result: Any) -> None:
        first = next((leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)), None)
        transformed = torch._C._are_functorch_transforms_active()  # whose tensors keep no gradients
        if first is not None and first.requires_grad and path not in results and not transformed:
            first.retain_grad()
            results[path] = first

    with _hooked(model, units, keep):
        yield results


@contextmanager
def _hooked(model: nn.Module, units: Sequence[str], tell: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Tells of every call of a unit its path, what it is given, and its result."""

    def hook_for(path: str) -> Any:
        return lambda module, args, kwargs, result: tell(path, (args, kwargs), result)

    hooks = [model.get_submodule(path).register_forward_hook(hook_for(path), with_kwargs=True) for path in units]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
