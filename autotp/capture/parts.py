"""Modules within the units of a recorded run: one that is called as it was called before gives what it gave then.

Blocks that are called with other sizes each time, as those that look back at all blocks before them are, still call most of what
is in them with the same ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from .description import describe
from .leaves import leaves_of
from .recorded import Recording, is_plain, modes_of, sizes_of, types_of, with_own_containers
from .units import only_holds


class Parts:
    """What the parts of units gave, by what they are: `alike` has it of other runs, and of other units. The weights are on
    `device`, or are meant to be."""

    def __init__(self, alike: dict[Hashable, Recording], device: torch.device) -> None:
        self.alike, self.device, self.known = alike, device, dict[tuple[int, str], Recording]()

    def watch(self, shape: int, twin: nn.Module) -> None:
        """Let the parts of a copy of a unit give what is known, or note what they give. The first one of each shape says what
        they are."""
        for name, part in twin.named_children():
            if only_holds(part):
                continue
            if (shape, name) not in self.known:
                facts = describe(part, by_identity=True)  # of other units an object may say something else
                self.known[shape, name] = self.alike.setdefault(tuple(facts.items()), Recording())
            part.__dict__["forward"] = self._knowing(self.known[shape, name], part.forward)

    def watch_around(self, twin: nn.Module, units: Mapping[int, int], about: Set[int]) -> None:
        """Note what the parts of a copy of a model give that are no units. In a run that is `about` some shapes of units, those
        without any of these in them give what is known of another run, and what is in them does not run. `units` are the shapes
        by the identity of the copies."""
        for name, part in twin.named_children():
            if id(part) not in units and not only_holds(part):
                known = self.alike.setdefault(("around", name), Recording())
                gives = bool(about) and about.isdisjoint(_units_in(part, units))
                part.__dict__["forward"] = self._knowing(known, part.forward, gives=gives, leaving=True)

    def _knowing(
        self, known: Recording, original: Callable[..., Any], *, gives: bool = True, leaving: bool = False
    ) -> Callable[..., Any]:
        @functools.wraps(original)  # whose arguments the block may ask for
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch._C.DisableTorchFunction():  # nobody is told of what is asked here
                leaves = leaves_of((args, kwargs))
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                wanting = [str(leaf.requires_grad) for leaf in tensors]
                sizes = *sizes_of(leaves, kwargs), *wanting, modes_of(self.device)
                call = 0, sizes, torch.is_grad_enabled()
                # What is made of the results that a run is about has another class.
                is_given = gives and (not leaving or all(type(leaf) is FakeTensor for leaf in tensors))
                before = known.result_of(call, leaves, leaving=leaving) if is_given else None
            if before is not None:
                return before
            result = original(*args, **kwargs)
            if leaving and all(map(is_plain, leaves_of(result))):
                # Whoever gets it may put something else into it, whatever container it is.
                known.results[call] = pytree.tree_map(lambda leaf: leaf, result)
            elif not leaving and all(map(is_plain, leaves)):
                known.results[call] = with_own_containers(result)
            known.types[call] = types_of(leaves)
            return result

        return forward


def _units_in(part: nn.Module, units: Mapping[int, int]) -> Iterator[int]:
    """The shapes of the units in a module."""
    for child in part.children():
        if id(child) in units:
            yield units[id(child)]
        else:
            yield from _units_in(child, units)
