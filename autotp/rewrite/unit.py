"""A unit at run time: a call finds its program and runs it, or runs whole where there is none."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.settings import Settings
from ..capture.signature import CallSite, call_site, first_parameter
from ..capture.trace import Traced
from ..capture.units import Unit
from ..errors import TraceError, UnsoundPlanError, UsageError
from ..runtime.again import gathering_again
from ..runtime.cut.origin import parts_only
from ..runtime.logits import CutLogits, closed
from ..runtime.ranks import Ranks
from ..runtime.sequence import DIM, as_taken
from .build import Program
from .compiler import Compiler
from .dynamo import call_in_dynamo
from .entry import OTHER, Entry, EntryCode
from .whole import run_whole
from .within import Within, within

MSG_CHANGED = (
    "modules within {path} were added, taken out or replaced since the model was made parallel; call"
    " autotp.parallelize(model) again, so that they are cut with the rest, and make the optimizer after that"
)
_WHOLE = (
    "{path} computes some calls with whole weights, gathered every time: {reason}; leave it whole in the plan"
    " if such calls are frequent"
)


class UnitForward:
    """Takes the place of a unit's `forward`."""

    def __init__(
        self,
        module: nn.Module,
        unit: Unit,
        dense: nn.Module,
        compiler: Compiler,
        ranks: Ranks,
        first: str | None = None,
    ) -> None:
        self.module, self.unit, self.dense, self.compiler, self.ranks = module, unit, dense, compiler, ranks
        self.positions = unit.position_values(dense)
        self.first = first
        self.agreed: list[Program] = []  # programs that are known to be the same on all ranks
        self.refused = False  # whether a call has run whole
        self.entry: Entry | None = None  # for calls that are like the last one

    def __deepcopy__(self, memo: dict[int, Any]) -> UnitForward:
        """For a copy of the module; programs are shared."""
        module = copy.deepcopy(self.module, memo)
        first = self.settings.first
        copied = memo[id(self)] = UnitForward(module, self.unit, self.dense, self.compiler, self.ranks, first)
        copied.agreed, copied.refused = list(self.agreed), self.refused
        return copied

    @functools.cached_property
    def settings(self) -> Settings:
        """The settings of the module, which a copy does not have before it is complete."""
        return Settings(self.module, self.dense, self.unit.positions, self.first)

    @functools.cached_property
    def parts(self) -> nn.Module | Within:
        """The module as programs take it, whose modules are the same as long as `settings` say so."""
        return within(self.module)

    def is_refused(self, site: CallSite) -> bool:
        """Returns if a call is to run whole: its kind has no program, or its objects hold what whole runs have put there.

        Raises TraceError if they may hold slices as well.
        """
        reason = self.compiler.refused.get(site.key)
        if reason is None and not (self.refused and site.handles):
            return False
        if self.compiler.holds_slices(site):
            raise TraceError(
                f"{self.unit.path or 'the model'}: {reason or 'it has run whole before'}; its objects hold slices"
            )
        self.refused = True
        return True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return call_in_dynamo(self, args, kwargs)
        result = OTHER if self.entry is None else self.entry(self, args, kwargs)
        return self._find_and_run(args, kwargs) if result is OTHER else result

    def _find_and_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = self.site(args, kwargs)
        if any(type(tensor) is CutLogits for tensor in site.tensors):
            args, kwargs = pytree.tree_map_only(CutLogits, closed, (args, kwargs))
            return self(*args, **kwargs)
        if self.is_refused(site):
            return run_whole(self, args, kwargs)
        try:
            traced, program = self._program(site)
        except (TraceError, UnsoundPlanError) as error:
            self.compiler.refuse(site, error)
            if not self.refused:
                warnings.warn(_WHOLE.format(path=self.unit.path or "the model", reason=error), stacklevel=2)
            self.refused = True
            return run_whole(self, args, kwargs)
        self.entry = self._entry(site, traced, program, args, kwargs)
        numbers, given = traced.numbers(site, self.positions), as_taken(site.tensors, program.cut, self.ranks)
        with nullcontext() if program.cut is None else gathering_again(), parts_only():
            tensors = program.run(
                self.parts, self.ranks, *given, *numbers, *site.handles, *self.positions, *program.constants
            )
        return traced.result(tensors, site.handles)

    def _entry(
        self, site: CallSite, traced: Traced, program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Entry | None:
        """The entry for calls like this one, which finds the program without looking for it; None if there is none.

        Where blocks are cut over positions, which program a call has depends on more.
        """
        if self.refused or (self.compiler.sequence and torch.is_grad_enabled()):
            return None
        known = self.compiler.eager_entries
        if program not in known:
            known[program] = EntryCode(site, traced, program).eager(args, kwargs, self)
        return known[program]

    def first_parameter(self) -> nn.Parameter | None:
        """The first of the module's parameters, by whose dtype and device calls are told apart."""
        return None if self._first is None else self._first[0][self._first[1]]

    @functools.cached_property
    def _first(self) -> tuple[dict[str, nn.Parameter | None], str] | None:
        return first_parameter(self.module)

    def _program(self, site: CallSite) -> tuple[Traced, Program]:
        """The program for a call. It is cut over positions where something is kept for a backward, and every rank gets one."""
        if self.compiler.sequence and torch.is_grad_enabled():
            found = self.compiler.program(self, site, self.positions, cut=True)
            cut = found[1].cut
            if cut is None or site.tensors[cut].shape[DIM] >= self.ranks.size:
                return found
        return self.compiler.program(self, site, self.positions)

    def site(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSite:
        """What a call looks like, with what is otherwise than it was when the model was made parallel.

        Raises UsageError if the unit has other modules than then.
        """
        if not self.settings.same_modules():
            raise UsageError(MSG_CHANGED.format(path=self.unit.path or "the model"))
        site, variant = call_site(self.module, args, kwargs), self.settings.variant()
        return replace(site, key=(*site.key, variant)) if variant else site

    def current_structure(self) -> nn.Module:
        """The dense structure in the live module's present mode, settings and dtype."""
        self.settings.give(self.dense)
        for dense, live in zip(self.dense.modules(), self.module.modules(), strict=True):
            dense.training = live.training
            for mine, theirs in ((dense._parameters, live._parameters), (dense._buffers, live._buffers)):
                for name, tensor in mine.items():
                    present = theirs.get(name)
                    if tensor is not None and present is not None and tensor.dtype != present.dtype:
                        tensor.data = torch.empty(tensor.shape, dtype=present.dtype, device="meta")
        return self.dense
