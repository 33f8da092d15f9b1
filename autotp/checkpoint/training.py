"""A training run's state for `torch.distributed.checkpoint`: model and optimizer, by names, at any number of ranks."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful

from ..errors import CheckpointError
from ..runtime.cut.origin import IsCut, Origin
from ..runtime.cut.tensor import CutTensor
from .full import state_of
from .part import Part
from .resume import load_state, save_state

KEY = "training"


class TrainingState(Stateful):
    """A parallel model and its optimizer as one entry of a distributed checkpoint.

        state, others = autotp.TrainingState(model, optimizer), {"step": step}
        state.save(folder, others)
        state.load(folder, others)  # at any number of ranks

    `torch.distributed.checkpoint.save({"training": state, **others}, checkpoint_id=folder)` writes the same files, over the
    old ones. `save` writes a new folder, which replaces the old one when it is complete.

    Everything is stored under the parameter names of the dense model and in its shapes. Loading works in place: a new
    optimizer first gets its state, without a step and without a change of any parameter.

    Raises CheckpointError for an optimizer with parameters that the model does not have.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.parallel = state_of(model)

    def state_dict(self) -> dict[str, Any]:
        """Parts and tensors that share their data with the model and the optimizer."""
        state: dict[str, Any] = {"model": self.model.state_dict()}
        if self.optimizer is not None:
            complete(self.optimizer)
            names = self._names()
            slots = {
                names[id(p)]: {slot: self._shared(v) for slot, v in self.optimizer.state[p].items()}
                for p in parameters(self.optimizer)
                if self.optimizer.state.get(p)
            }
            groups = [
                {**group, "params": [names[id(p)] for p in group["params"]]} for group in self.optimizer.param_groups
            ]
            state["optimizer"] = {"state": slots, "param_groups": groups}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Use a state from `state_dict` into which a checkpoint was loaded."""
        _clear_paddings(state["model"])
        self.model.load_state_dict(state["model"])
        if self.optimizer is None:
            return
        names, loaded = self._names(), state["optimizer"]
        here = [[names[id(p)] for p in group["params"]] for group in self.optimizer.param_groups]
        there = [list(group["params"]) for group in loaded["param_groups"]]
        if here != there:
            raise CheckpointError("the optimizer's groups of parameters differ from those of the checkpoint")
        numbers = {name: i for i, name in enumerate(name for group in here for name in group)}
        count = iter(range(len(numbers)))
        self.optimizer.load_state_dict(
            {
                "state": {numbers[name]: self._taken(name, slots) for name, slots in loaded["state"].items()},
                "param_groups": [
                    {**group, "params": [next(count) for _ in group["params"]]} for group in loaded["param_groups"]
                ],
            }
        )

    def save(self, folder: str | Path, others: Mapping[str, Any] | None = None, *, overwrite: bool = True) -> None:
        """Write the state, and other entries of a distributed checkpoint; every process calls it.

        It replaces only what an earlier call wrote, and nothing if `overwrite` is False. The old folder stays until the new one
        is complete, so a killed run leaves the old one. All processes must see the same folder. Raises CheckpointError, the
        same on all.
        """
        save_state({**(others or {}), KEY: self}, Path(folder), overwrite=overwrite)

    def load(self, folder: str | Path, others: MutableMapping[str, Any] | None = None) -> None:
        """Load a state that was saved on any number of ranks, and the other entries, in place; every process calls it.

        The folder is trusted: torch unpickles a part of it. Raises CheckpointError, the same on all.
        """
        entries = {**(others or {}), KEY: self}
        load_state(entries, Path(folder))
        if others is not None:
            others.update({name: entries[name] for name in others})

    def _names(self) -> dict[int, str]:
        assert self.optimizer is not None
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        if not all(id(parameter) in names for parameter in parameters(self.optimizer)):
            raise CheckpointError(
                "the optimizer has parameters that the model has not; make the optimizer after autotp.parallelize(model)"
            )
        return names

    def _shared(self, value: Any) -> Any:
        """What was made of a cut parameter by element is cut as it is; any other state is whole on every rank."""
        return (
            Part.of(value.local(), value.autotp_origin.layouts, self.parallel.ranks.rank)
            if isinstance(value, IsCut)
            else value
        )

    def _taken(self, name: str, slots: dict[str, Any]) -> dict[str, Any]:
        _clear_paddings(slots)
        ranks = self.parallel.ranks
        return {
            slot: CutTensor.of(value.local, Origin(value.layouts, ranks, name)) if isinstance(value, Part) else value
            for slot, value in slots.items()
        }


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """All parameters of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _clear_paddings(state: dict[str, Any]) -> None:
    for value in state.values():
        if isinstance(value, Part):
            value.clear_padding()


def complete(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter the state an optimizer makes at its first step, as it is before that step.

    The step is done by a copy of the optimizer, on a parameter of zeros with a gradient of zeros, at rate zero.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad or optimizer.state.get(parameter):
                continue
            scratch = nn.Parameter(torch.zeros_like(parameter))
            scratch.grad = torch.zeros_like(parameter)
            twin = copy.copy(optimizer)
            rate = {"lr": group["lr"] * 0} if "lr" in group else {}
            twin.__dict__.update(
                state=defaultdict(dict),
                param_groups=[{**group, **rate, "params": [scratch]}],
                _optimizer_step_pre_hooks=OrderedDict(),
                _optimizer_step_post_hooks=OrderedDict(),
            )
            type(optimizer).step(twin)
            for slot, value in twin.state[scratch].items():
                fresh = value * 0 if slot == "step" else value
                optimizer.state[parameter][slot] = fresh
