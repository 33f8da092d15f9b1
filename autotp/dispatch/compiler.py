"""The programs of all units of one structure: made when a kind of call first needs one, kept for those like it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from ..axes.annotation import annotate, annotation, copied
from ..axes.infer import infer
from ..axes.layout import Layout
from ..axes.rules import operator_rules
from ..capture.capturing import capturing
from ..capture.contract.guards import Contract
from ..capture.opaque import Widths, tensors_of
from ..capture.signature import CallSite
from ..capture.trace import trace
from ..capture.traced import CaptureError, Traced
from ..capture.varying import VaryingDims
from ..chains.collect import mark_collected
from ..errors import TraceError, UnsoundPlanError
from ..outside.progress import doing
from ..placement.backward import Price
from ..placement.impose import impose
from ..placement.place import Placement, place
from ..rewrite.build import Program, build
from ..rewrite.layers import parallel_layers
from ..rewrite.opaque import slices_given
from ..runtime.cut.origin import sending_nothing
from ..runtime.transport.alarm import unseen
from .aside import is_filled
from .entry import Entry
from .kept import KeptTraces
from .live import LiveUnit
from .structure import Signature

# How many programs, or reasons for none, there are for calls that differ in the unit's state alone.
MOST_STATES = 8


def tensors_in(graph: torch.fx.Graph, site: CallSite) -> Iterator[tuple[torch.fx.Node, str]]:
    """The tensors that a traced unit is called with, and the places of these in the call."""
    places = site.paths("tensor")
    for node in graph.find_nodes(op="placeholder"):
        kind, _, number = str(node.target).partition("_")
        if kind == "tensor":
            yield node, places[int(number)]


@contextmanager
def _unsaved() -> Iterator[None]:
    """Keeps what a trace saves from whoever counts it, as a checkpoint does; hooks may be forbidden, and then there are none."""
    if torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is not None:
        yield
        return
    saved: list[torch.Tensor] = []  # and not by the hooks themselves: what saves its own result would keep itself alive

    def pack(tensor: torch.Tensor) -> int:
        saved.append(tensor)
        return len(saved) - 1

    try:
        with saved_tensors_hooks(pack, saved.__getitem__):
            yield
    finally:
        saved.clear()


@dataclass
class Compiler:
    """Makes and keeps the programs of all units of one structure. Programs do not depend on the rank.

    The trace that the plan was made from, `surveyed`, serves the first call that is like it. `planned` are the parameters
    that the plan knows; another one, which only some calls read, stays whole and is sliced where it meets what is cut. Where
    one of `wanting` tensors, by its place in the call, wants no gradient, the program is the one for calls where it does: one
    placement for all units, also for the first, which may be given data.
    Why there is no program for a kind of call stands in `refused`. `structures` has the compilers for those of the units whose
    modules were `changed` later, which the plan says nothing of. A plan that `is_proved` holds for some call. With `sequence`
    ranks, calls that a backward may follow hand on what is cut over positions. One that `keeps` traces writes them to disk, and
    reads those that another process has written.
    """

    layouts: Mapping[str, tuple[Layout, ...]]
    price: Price
    collected: tuple[str, ...] = ()
    varying: VaryingDims = field(default_factory=VaryingDims)
    unread: frozenset[int] = frozenset()
    rules: tuple[Path, ...] = ()
    surveyed: Traced | None = None
    planned: frozenset[str] | None = None
    wanting: frozenset[str] = frozenset()
    widths: Widths = field(default_factory=Widths)
    keep: bool = False
    sequence: int = 0
    programs: dict[Any, list[tuple[Traced, Program]]] = field(default_factory=dict)
    entries: dict[Any, str] = field(default_factory=dict)
    eager_entries: dict[Program, Entry | None] = field(default_factory=dict)
    refused: dict[Any, list[tuple[Contract, str]]] = field(default_factory=dict)
    gives_slices: bool = False
    structures: dict[Signature, Compiler] = field(default_factory=dict)
    changed: bool = False
    is_proved: bool = False
    keeps: bool = False
    inner: dict[tuple[str, Signature], Compiler] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def program(
        self,
        call: LiveUnit,
        site: CallSite,
        positions: tuple[int, ...],
        varying: frozenset[tuple[int, int]] = frozenset(),
        *,
        cut: bool = False,
    ) -> tuple[Traced, Program]:
        """The program for a call: a known one whose guards hold, or a new one; dims (tensor, dim) in `varying` are no
        constants in it. With `cut` it is cut over positions if it can be."""
        found = self._known(call, site, positions, varying, cut)
        if found is None:
            # Simulated ranks share a compiler. Whoever compiles a call has its turn to capture, and then asks for this lock.
            with capturing(), self.lock:
                self.varying.mark(site, varying)
                found = self._known(call, site, positions, varying, cut) or self._new(call, site, cut)
        if found[1] not in call.agreed:
            call.ranks.check_agreement(found[1].describe(), f"programs for {call.unit.path}")
            device = next((tensor.device for tensor in site.tensors), call.ranks.device)
            call.ranks.prepare(found[1].groups(), device)
            call.agreed.append(found[1])
        return found

    def for_structure(self, signature: Signature, layouts: Mapping[str, tuple[Layout, ...]]) -> Compiler:
        """The compiler for a unit of this structure whose modules have been changed since, and for those like it."""
        with self.lock:
            if signature not in self.structures:
                planned = None if self.planned is None else (self.planned - self.layouts.keys()) | layouts.keys()
                self.structures[signature] = replace(
                    self,
                    layouts=layouts,
                    surveyed=None,
                    changed=True,
                    planned=planned,
                    programs={},
                    entries={},
                    eager_entries={},
                    refused={},
                    inner={},
                    lock=threading.Lock(),
                )
            return self.structures[signature]

    def for_part(self, path: str, signature: Signature, layouts: Mapping[str, tuple[Layout, ...]]) -> Compiler:
        """The compiler for the module at a path within a unit of this structure, which is called by itself."""
        with self.lock:
            if (path, signature) not in self.inner:
                self.inner[path, signature] = Compiler(
                    layouts, self.price, rules=self.rules, changed=True, keeps=self.keeps
                )
            return self.inner[path, signature]

    def _known(
        self,
        call: LiveUnit,
        site: CallSite,
        positions: tuple[int, ...],
        varying: frozenset[tuple[int, int]],
        cut: bool,
    ) -> tuple[Traced, Program] | None:
        for traced, program in self.programs.get((site.key, cut), ()):
            fits = not varying & traced.guards.constants.keys() and traced.valid_for(site, positions)
            if fits and call.holds(traced.contract, site.tensors):
                return traced, program
        return None

    def _surveyed_for(self, call: LiveUnit, site: CallSite) -> Traced | None:
        known = self.surveyed
        if known is None or known.positions is not None or known.site.key != site.key:
            return None
        if not (known.valid_for(site, call.positions) and call.holds(known.contract, site.tensors)):
            return None
        self.surveyed = None
        return known

    def _trace(self, call: LiveUnit, site: CallSite) -> Traced:
        self.varying.observe(site, call.positions)
        told = self.varying, self.unread, self.widths, self.rules
        kept = KeptTraces.of(call, site, *told) if self.keeps else None
        found = kept and kept.find(call, site)
        traced = replace(found, unread=self.unread) if found else self._traced(call, site)
        if kept and not found:
            kept.keep(traced, call)
        self.varying.observe_reads(traced.handle_guards)
        return traced

    def _traced(self, call: LiveUnit, site: CallSite) -> Traced:
        structure = call.current_structure()
        unsaved = _unsaved()
        with doing(f"tracing {call.unit.path or 'the model'}"), unsaved, unseen(), sending_nothing():
            told = self.varying, self.unread, self.widths, self.rules
            traced = trace(structure, call.unit, site, *told, call.module)
        if not call.holds(traced.contract):
            raise TraceError("what its Python reads is not what it was before it was traced")
        return traced

    def _new(self, call: LiveUnit, site: CallSite, cut: bool) -> tuple[Traced, Program]:
        self._check_changes(site, call.positions, cut)
        other = self._known(call, site, call.positions, frozenset(), not cut) if self.sequence else None
        traced = (other[0] if other else None) or self._surveyed_for(call, site) or self._trace(call, site)
        placement = self._placed(traced, cut)
        for local, whole in slices_given(placement):
            self.gives_slices |= local != whole
            self.widths.note(local, whole)
        program = build(placement, traced.constants, call.unit.path, parallel_layers(call.module))
        self.programs.setdefault((site.key, cut), []).append((traced, program))
        return traced, program

    def _check_changes(self, site: CallSite, positions: tuple[int, ...], cut: bool) -> None:
        """Raises TraceError if there are many programs for calls like this one, each for another state."""
        programs = self.programs.get((site.key, cut), ())
        if sum(traced.valid_for(site, positions) for traced, _ in programs) >= MOST_STATES:
            raise TraceError("what its Python reads is otherwise at almost every call")

    def _placed(self, traced: Traced, cut: bool = False) -> Placement:
        graph, _ = copied(traced.graph)
        mark_collected(graph, self.collected)
        for node in graph.nodes:
            if node.op == "get_attr" and self.planned is not None and node.target not in self.planned:
                annotate(node, parameter=False)
        backward = torch.is_grad_enabled()
        if backward:
            for node, place_in_call in tensors_in(graph, traced.site):
                annotate(node, gradient=annotation(node).gradient or place_in_call in self.wanting)
        typing = infer(graph, operator_rules(self.rules))
        cuts = impose(graph, typing, self.layouts)
        return place(
            graph,
            typing,
            cuts,
            self.price,
            traced.unread,
            keep=self.keep,
            backward=backward,
            sequence=self.sequence if cut else 0,
        )

    def refuse(self, site: CallSite, error: TraceError | UnsoundPlanError, once: bool = False) -> None:
        """Note that calls of this kind have no program, unless it is so this `once`. Raises the error if a plan is sound for no
        call at all."""
        with capturing(), self.lock:
            if isinstance(error, UnsoundPlanError) and not self._is_sound():
                raise error
            if once:
                return
            reasons = self.refused.setdefault(site.key, [])
            contract = error.contract if isinstance(error, CaptureError) and len(reasons) < MOST_STATES else Contract()
            reasons.append((contract, str(error)))

    def refusal(self, call: LiveUnit, site: CallSite) -> str | None:
        """Why a call of a unit has no program as the unit is now, None if that is not known."""
        found = (reason for contract, reason in self.refused.get(site.key, ()) if call.holds(contract))
        return next(found, None)

    def holds_slices(self, site: CallSite) -> bool:
        """Returns if objects in a call may hold a rank's slices, which a whole run would take for whole."""
        return any(map(self.is_slice, tensors_of(list(site.handles)) if self.gives_slices else ()))

    def is_slice(self, held: torch.Tensor) -> bool:
        """Returns if a tensor that an object holds may be a rank's slice. A counter is none, nor what stands for a whole."""
        if getattr(held, "autotp_is_whole", False):
            return False
        counts = not held.dim() and not held.is_floating_point()
        return bool(held.numel()) and not counts and not self.widths.is_whole(tuple(held.shape))

    def is_filled(self, handle: Any) -> bool:
        """Returns if an object has whole values where programs put slices: not from them, but from a dense model for example."""
        return self.gives_slices and is_filled(handle, self.widths)

    def _is_sound(self) -> bool:
        """Returns if the plan holds for the call that it was made from, or for another one, or is not for these modules."""
        if self.programs or self.surveyed is None:
            return bool(self.programs) or self.changed or self.is_proved
        try:
            self._placed(self.surveyed)
        except UnsoundPlanError:
            return False
        return True
