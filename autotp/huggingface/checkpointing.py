"""Activation checkpointing of blocks: transformers does it inside a block's `forward`, whose place a program has taken."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ..capture.clone import OWN_FORWARD


def keep_checkpointing(model: nn.Module) -> None:
    """Let `gradient_checkpointing_enable()` work on blocks whose `forward` was replaced, before or after this call."""
    for module in model.modules():
        run = module.__dict__.get("forward")
        if isinstance(module, GradientCheckpointingLayer) and run is not None:
            module.forward = CheckpointedForward(module, run)


def leave_checkpointing(model: nn.Module) -> None:
    """Take that back: the blocks run what they ran before."""
    for module in model.modules():
        run = module.__dict__.get("forward")
        if isinstance(run, CheckpointedForward):
            module.forward = run.run


class CheckpointedForward:
    """A block's `forward` that runs something else, checkpointed where the block is to be; `own_forward` is what the block
    itself had under that name, or None."""

    def __init__(self, block: Any, run: Callable[..., Any]) -> None:
        self.block, self.run = block, run
        self.own_forward = getattr(run, OWN_FORWARD, run)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.run)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self.block.gradient_checkpointing and self.block.training):
            return self.run(*args, **kwargs)
        return _StandIn(self.block, self.run).forward(*args, **kwargs)


class _StandIn(GradientCheckpointingLayer):
    """transformers puts checkpointing around the `forward` of every class like this one, and asks the object how."""

    training = True
    gradient_checkpointing = True
    run: Callable[..., Any]

    def __init__(self, block: Any, run: Callable[..., Any]) -> None:
        """No module of its own: the block's settings under the names that are asked for."""
        self.__dict__.update(
            run=run,
            _can_checkpoint_with_cache=block._can_checkpoint_with_cache,
            _gradient_checkpointing_func=block._gradient_checkpointing_func,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)
