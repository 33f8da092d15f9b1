"""A unit at run time: a call finds its program and runs it, or runs whole where there is none."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.clone import OWN_FORWARD
from ..capture.opaque import tensors_of
from ..capture.signature import CallSite, call_site
from ..capture.traced import CaptureError, Traced
from ..capture.units import Unit
from ..errors import TraceError, UnsoundPlanError, UsageError
from ..rewrite.build import Program
from ..rewrite.put import MSG_WRITES
from ..runtime.collectives.again import gathering_again
from ..runtime.cut.origin import parts_only
from ..runtime.groups.ranks import Ranks
from ..runtime.results.sequence import DIM, as_taken
from ..runtime.results.whole import is_of_parameter, stands_for_whole, taken_whole
from .aside import Aside, check_given, set_aside
from .compiler import Compiler
from .dynamo import call_in_dynamo
from .entry import OTHER, Entry, EntryCode
from .hearing import unheard
from .held import join_path
from .in_place import give_back
from .live import LiveUnit
from .parts import in_place, keeping, parts_of
from .structure import Signature, Structure, check_equal, inner_modules, layouts_in, remove_stale_layers, signature_of

MSG_CHANGED = (
    "modules or parameters within {path} were added, taken out or replaced since the model was made parallel; new parameters"
    " are whole on every rank until autotp.parallelize(model) is called again"
)
MSG_NESTED = (
    "{path} was given a block of the model since the model was made parallel; call autotp.parallelize on the model as it is"
    " to be"
)
_WHOLE = (
    "{path} computes some calls with whole weights, gathered every time, but for modules within it that have a program:"
    " {reason}; leave it whole in the plan if such calls are frequent"
)


class UnitForward(LiveUnit):
    """Takes the place of a unit's `forward`."""

    def __init__(
        self, module: nn.Module, unit: Unit, compiler: Compiler, ranks: Ranks, signature: Signature | None = None
    ) -> None:
        super().__init__(module, unit, ranks)
        self.compiler = compiler
        self.signature = signature  # of the modules that the compiler's programs are for
        self.structure: Structure | None = None  # those that there are; a copy has none before it is complete
        self.refused = False  # whether a call with objects, which may have kept what is whole, has run whole
        self.settled: set[Any] = set()  # kinds of calls, of which the first may write what later ones only read
        self.told = False
        self.entry: Entry | None = None  # for calls that are like the last one
        self.last: tuple[Traced, Program] | None = None  # which ran that one
        self.inner: list[PartForward] | None = None  # what takes the place of modules within, where there is no program

    def enter(self) -> None:
        """Take the place."""
        self.module.forward = self
        self.structure, self.signature = Structure(self.module), signature_of(self.module)
        self.compiler.structures.setdefault(self.signature, self.compiler)

    def leave(self) -> None:
        """Give it back."""
        give_back(self.module, self.own_forward)

    def __deepcopy__(self, memo: dict[int, Any]) -> UnitForward:
        """For a copy of the module; programs are shared."""
        module = copy.deepcopy(self.module, memo)
        copied = memo[id(self)] = UnitForward(module, self.unit, self.compiler, self.ranks, self.signature)
        copied.own_forward = copy.deepcopy(self.own_forward, memo)
        copied.agreed, copied.refused = list(self.agreed), self.refused
        return copied

    def why_whole(self, site: CallSite) -> str | None:
        """Why a call is to run whole: its kind has no program, or its objects hold what whole runs have put there. None where
        it has a program, or may have one."""
        reason = self.compiler.refusal(self, site)
        if reason is None and not (self.refused and site.handles):
            return None
        self.refused |= bool(site.handles)
        return reason or "it has run whole before"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return call_in_dynamo(self, args, kwargs)
        return self._call(args, kwargs)

    def _call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> Any:
        result = OTHER if self.entry is None else self.entry(self, args, kwargs)
        if result is OTHER:
            return self._find_and_run(args, kwargs, given)
        self.ranks.note_unit(self.unit.path, self.last)
        return result

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _find_and_run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
    ) -> Any:
        """Find the program for a call and run it. What runs whole is `given` the caller's own lists and dicts, which it may write
        into, where the arguments are those with whole tensors in the place of cut ones."""
        nested = any(isinstance(leaf, torch.Tensor) and leaf.is_nested for leaf in pytree.tree_leaves((args, kwargs)))
        if nested or torch._C._are_functorch_transforms_active():  # a program's collectives are no part of these
            return self._run_whole(args, kwargs)
        site = self.site(args, kwargs)
        if any(map(stands_for_whole, site.tensors)):
            what = f"a call of {self.unit.path or 'the model'}"
            found = {id(tensor): taken_whole(tensor, what) for tensor in site.tensors}
            wholes = [found[id(tensor)] for tensor in site.tensors]
            given, (args, kwargs) = (args, kwargs), site.rebuild(wholes, site.numbers, site.handles)
            return self._call(args, kwargs, given)
        given = given or (args, kwargs)
        if reason := self.why_whole(site):
            return self._run_beside(site, reason, *given)
        try:
            with unheard():
                traced, program = self._program(site)
        except (TraceError, UnsoundPlanError) as error:
            once = isinstance(error, CaptureError) and bool(error.changes) and site.key not in self.settled
            self.settled.add(site.key)
            self.compiler.refuse(site, error, once)
            if not once:
                self._say(error)
            self.refused |= bool(site.handles)
            return self._run_beside(site, str(error), *given)
        if program.writes_into_objects and any(map(is_of_parameter, tensors_of(list(site.handles)))):
            self._say(MSG_WRITES)
            return self._run_beside(site, MSG_WRITES, *given)
        filled = next(filter(self.compiler.is_filled, site.handles), None)
        if filled is not None:
            self._say(f"a {type(filled).__name__} in the call was filled outside of this model, with whole values")
            return self._run_by_parts(*given)
        self.last, self.entry = (traced, program), self._entry(site, traced, program, args, kwargs)
        numbers, taken = traced.numbers(site, self.positions), as_taken(site.tensors, program.cut, self.ranks)
        constants = self.bounds[traced.contract].constants(program.constants)
        with nullcontext() if program.cut is None else gathering_again(), parts_only():
            tensors = program.run(self.parts, self.ranks, *taken, *numbers, *site.handles, *self.positions, *constants)
        self.ranks.note_unit(self.unit.path, self.last)
        return traced.result(tensors, site.handles)

    def _say(self, error: Exception | str) -> None:
        """Say why there is no program, once."""
        if not self.told:
            self.told = True
            warnings.warn(_WHOLE.format(path=self.unit.path or "the model", reason=error), stacklevel=3)

    def _run_beside(self, site: CallSite, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run whole beside what other units have put into the call's objects. Raises TraceError if slices of it are looked at."""
        if not self.compiler.holds_slices(site):
            return self._run_by_parts(args, kwargs)
        aside = Aside(f"{self.unit.path or 'the model'}: {reason}", self.compiler.widths.whole_or_none)
        with set_aside(site.handles, self.compiler.is_slice, aside):
            return check_given(self._run_by_parts(args, kwargs), aside)

    def _run_by_parts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `_run_whole`, but the modules within compute with their parts in calls for which they have programs."""
        if self.inner is None:
            self.inner = [self._part(path, module) for path, module in parts_of(self.module)]
        for part in self.inner:
            part.kept_as = keeping()
        with in_place(self.inner):
            return self._run_whole(args, kwargs)

    def _part(self, path: str, module: nn.Module) -> PartForward:
        signature, unit = signature_of(module), Unit(join_path(self.unit.path, path), self.unit.shape)
        compiler = self.compiler.for_part(path, signature, layouts_in(module))
        part = PartForward(module, unit, compiler, self.ranks, signature)
        part.structure = Structure(module)
        return part

    def _run_whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the dense unit runs. To its Python the cut parameters are whole, as they are to all Python outside of units."""
        self.ranks.begin_part()
        self.ranks.note_unit(self.unit.path, None)
        return self.dense_forward()(*args, **kwargs)

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

    def _program(self, site: CallSite) -> tuple[Traced, Program]:
        """The program for a call. It is cut over positions where something is kept for a backward, and every rank gets one."""
        if self.compiler.sequence and torch.is_grad_enabled():
            found = self.compiler.program(self, site, self.positions, cut=True)
            cut = found[1].cut
            if cut is None or site.tensors[cut].shape[DIM] >= self.ranks.size:
                return found
        return self.compiler.program(self, site, self.positions)

    def site(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallSite:
        """What a call looks like, to the unit as it is now."""
        if not self.is_as_known():
            self._take_structure()
        return call_site(self.module, args, kwargs)

    def is_as_known(self) -> bool:
        """Returns if the unit has the modules and parameters that its programs were looked for with."""
        return self.structure is not None and self.structure.is_same()

    def _take_structure(self) -> None:
        """Go on with the modules and parameters that the unit has now, and with programs for these.

        Raises UsageError if one of them is a unit itself, PlacementError if ranks were given different parameters.
        """
        path = self.unit.path or "the model"
        if any(hasattr(vars(part).get("forward"), OWN_FORWARD) for part in inner_modules(self.module)):
            raise UsageError(MSG_NESTED.format(path=path))
        remove_stale_layers(self.module)
        before, signature = self.structure, signature_of(self.module)
        self.structure = Structure(self.module)
        self.forget()
        self.entry = self.inner = None
        if before is not None and (before.modules != self.structure.modules or signature != self.signature):
            check_equal(self.module, self.ranks, path)
        if signature != self.signature:
            warnings.warn(MSG_CHANGED.format(path=path), stacklevel=2)
            self.signature, self.compiler = signature, self.compiler.for_structure(signature, layouts_in(self.module))


class PartForward(UnitForward):
    """Takes the place of the `forward` of a module within a unit that has no program, during a call of that unit.

    What is checkpointed may be computed again after the unit's call, when this is not in place: so it runs whole both times.
    Calls with objects have no programs here either: what these keep is whole, as the unit's own Python may read it.
    """

    kept_as: tuple[Any, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) if self.kept_as == keeping() else self._run_whole(args, kwargs)

    def why_whole(self, site: CallSite) -> str | None:
        return "it is called with objects" if site.handles else super().why_whole(site)

    def _say(self, error: Exception | str) -> None:
        """The unit has said it."""
