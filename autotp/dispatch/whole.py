"""A unit's call that no program is known for: the module itself computes it, as dense as it was, with weights gathered for this
one call. All its Python runs as it stands: hooks, counters, what it keeps from call to call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..axes.layout import Layout, factors_of, ordered
from ..errors import UsageError
from ..runtime.collectives import gather
from ..runtime.cut.origin import parts_only
from ..runtime.ranks import Ranks

MSG_WRITTEN = (
    "{name} is written by the forward of its own module, of whose weights every rank holds a part; leave that module whole"
    " in the plan, or write the weight outside of the forward"
)


@contextmanager
def as_dense(module: nn.Module, layouts: Mapping[str, Sequence[Layout]], ranks: Ranks) -> Iterator[None]:
    """Inside, a module is the dense one, with whole weights. Raises UsageError if these are written."""
    held = {name: _place(module, name) for name in layouts}
    whole: dict[int, torch.Tensor] = {}
    recorded = torch.is_grad_enabled()
    # Tensors that are made in inference mode do not say whether they were written.
    with parts_only(), torch.inference_mode(False), torch.set_grad_enabled(recorded):
        for name, (owner, short) in held.items():
            local = owner[short]
            if id(local) not in whole:
                made = gathered(local, ranks, layouts[name])
                whole[id(local)] = made.clone() if made.is_inference() else made
    versions = {name: whole[id(owner[short])]._version for name, (owner, short) in held.items()}
    locals_ = {name: owner[short] for name, (owner, short) in held.items()}
    try:
        for name, (owner, short) in held.items():
            owner[short] = whole[id(locals_[name])]
        yield
        for name, (owner, short) in held.items():
            own = whole[id(locals_[name])]
            if owner.get(short) is not own or own._version != versions[name]:
                raise UsageError(MSG_WRITTEN.format(name=name))
    finally:
        for name, (owner, short) in held.items():
            owner[short] = locals_[name]


def _place(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, short = name.rpartition(".")
    return module.get_submodule(path)._parameters, short


def gathered(value: torch.Tensor, ranks: Ranks, layouts: Sequence[Layout]) -> torch.Tensor:
    """A whole parameter from every rank's slice."""
    for dim, layout in enumerate(layouts):
        over = ordered(factors_of(layout))
        if over:
            value = gather(value, ranks, over, dim, layout)
    return value
