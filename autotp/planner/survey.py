"""Surveying a model: find its units, record how they are called, trace each structure once, propose chains."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from ..axes.annotation import copied
from ..axes.facts import Typing
from ..axes.infer import infer
from ..axes.rules import function_rules, operator_rules
from ..axes.term import Pin, pin
from ..capture.capturing import capturing
from ..capture.contract.memo import left_alone
from ..capture.record import record
from ..capture.recorded import Recording
from ..capture.trace import trace
from ..capture.traced import CaptureError, Traced
from ..capture.units import Unit, find_units
from ..capture.varying import VaryingDims, sized_site
from ..chains.collect import alone, mark_collected, marked_proposals, through
from ..chains.match import NearMiss, Proposal, match_chains, open_misses
from ..chains.rules import chain_rules
from ..chains.single import single_axes
from ..errors import TraceError
from .alike import described
from .apart import strangers
from .choose import UnitProblem
from .traces import Traces

Example: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

ONE_CALL = (
    "it is planned from the example alone: a second call, whose batch is larger by two, fails ({reason}), so programs are made"
    " for each size when it comes"
)
ONE_SIZE = (
    "it is planned for the sizes of the example: {path} has a loop over one of them, so a program is made for each size when"
    " it comes"
)
MSG_NOT_CALLED = "the example inputs never call it"


@dataclass
class Survey:
    """What is known of a model before a tensor-parallel size is chosen. Shapes that failed have a reason instead."""

    units: tuple[Unit, ...]
    traced: dict[int, Traced] = field(default_factory=dict)
    problems: dict[int, UnitProblem] = field(default_factory=dict)
    varying: dict[int, VaryingDims] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    objective: str = "balanced"
    sizes: str = ""
    recorded: Recording | None = None
    seconds: dict[str, float] = field(default_factory=lambda: {"capture": 0.0, "inference": 0.0})


@capturing()
@left_alone()
def survey(
    model: nn.Module, examples: Sequence[Example], rules: tuple[Path, ...] = (), *, objective: str = "balanced"
) -> Survey:
    """Trace every unit structure of a model as the examples (two calls of different sizes) call it.

    For an `objective` of memory or of time a matrix that no chain cuts is cut alone, and what it makes is gathered at once; for
    time so is every axis that may be cut.
    A unit that cannot be traced is tried by its children, unless the Python around those cannot run without it; what cannot
    be traced at all gets a reason, never an error.
    """
    failures: dict[str, str] = {}
    split: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    found: _Surveyor | None = None
    while True:
        found = _Surveyor(model, find_units(model, split), examples, rules, objective, found)
        try:
            failed = found.run(closed | split)
        except TraceError as error:
            if not last:
                found.result.failures |= {unit.path: str(error) for unit in found.result.units}
                return found.result
            split, last, closed = split - last, frozenset(), closed | last
            continue
        failures |= failed
        ran, last = _apart(model, found, failed.keys() - split - closed)
        if not ran | last:
            found.result.failures |= failures
            return found.result
        split |= ran | last


def _apart(model: nn.Module, found: _Surveyor, failed: Set[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The failed units to take apart: all that ran but could not be traced, and one structure of those that did not run.

    What is around the parts of the latter becomes Python outside of units, which may be just what cannot run.
    """
    units = [unit for unit in found.result.units if unit.path in failed and list(unit.module(model).children())]
    ran = frozenset(unit.path for unit in units if unit.shape not in found.broken)
    rest = [unit for unit in units if unit.shape in found.broken]
    return ran, frozenset(unit.path for unit in rest if unit.shape == rest[0].shape)


class _Surveyor:
    def __init__(
        self,
        model: nn.Module,
        units: tuple[Unit, ...],
        examples: Sequence[Example],
        rules: tuple[Path, ...],
        objective: str,
        earlier: _Surveyor | None,
    ) -> None:
        self.model, self.examples, self.units = model, examples, units
        self.like = earlier.recordings_as(units) if earlier is not None else {}
        self.traces: Traces = earlier.traces if earlier is not None else Traces()
        self.recordings: list[Recording] = []
        self.result = Survey(units, objective=objective)
        self.broken: Set[int] = frozenset()
        self.solved: dict[Hashable, UnitProblem] = earlier.solved if earlier is not None else {}
        self.operator_rules, self.chain_rules = operator_rules(rules), chain_rules(rules)
        self.rules, self.functions = rules, function_rules(rules)
        self.settled = ExitStack()  # what is put back at the end

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.result.seconds[stage] += time.perf_counter() - start

    def run(self, known: Set[str]) -> dict[str, str]:
        """Survey all units; returns the paths that failed, with reasons, and is done where some did not even run, unless all of
        these are `known`. Raises TraceError if the Python around them fails."""
        with self.settled:
            return self._run(known)

    def recordings_as(self, units: Sequence[Unit]) -> dict[int, Recording]:
        """What units gave in each of the calls, for another choice of units."""
        shapes, known = {unit.path: unit.shape for unit in units}, {unit.path: unit.shape for unit in self.units}
        both = {known[path]: shapes[path] for path in shapes.keys() & known.keys()}
        made = enumerate(self.recordings)  # what is guessed, or of values, is found anew
        return {number: recording.as_units(both) for number, recording in made if recording.on_fakes}

    def _run(self, known: Set[str]) -> dict[str, str]:
        units, (example, *others) = self.result.units, self.examples
        with self._timed("capture"):
            first = record(self.model, units, *example, self.functions, like=self.like.get(0))
        self.recordings, self.result.recorded = [first], first
        self.broken = first.failed.keys()
        failed = {unit.path: first.failed[unit.shape] for unit in units if unit.shape in first.failed}
        if any(_apart(self.model, self, failed.keys() - known)):
            return failed
        with self._timed("capture"):
            self._record_others(others)
        recordings, done = self.recordings, set[int]()
        waiting = [unit for unit in units if unit.shape in recordings[0].calls and unit.path not in failed]
        while waiting:
            unit = waiting.pop(0)
            if unit.shape in done:
                continue
            done.add(unit.shape)
            try:
                self._trace(unit, recordings)
            except TraceError as error:
                failed |= {other.path: str(error) for other in (unit, *waiting) if other.shape == unit.shape}
                continue
            waiting = self._tell_apart(unit, waiting, recordings)
        for unit in units:
            if unit.path not in recordings[0].called:
                self.result.failures[unit.path] = "; ".join(filter(None, (MSG_NOT_CALLED, recordings[0].guessed)))
        return failed

    def _record_others(self, examples: Sequence[Example]) -> None:
        """What the other examples call: they are made from the first, the user's, and the model may not take them."""
        (first,) = self.recordings
        # Of the others only the first call of each shape matters, unless units of one shape are called with other sizes or
        # numbers. A run on fakes that ends early would not tell that the outer Python needs values.
        differ = first.resized or first.told
        until = first.calls.keys() if first.on_fakes and not differ else ()
        for number, example in enumerate(examples, start=1):
            try:
                given = self.result.units, *example, self.functions
                self.recordings.append(record(self.model, *given, until=until, like=self.like.get(number)))
            except TraceError as error:
                self.result.sizes = ONE_CALL.format(reason=error)

    def _tell_apart(self, unit: Unit, waiting: Sequence[Unit], recordings: Sequence[Recording]) -> list[Unit]:
        """The units that wait; those of the structure of one that was traced, for which its trace does not hold, have a number of
        their own now."""
        like = [each for each in waiting if each.shape == unit.shape]
        other = strangers(self.model, self.result.traced[unit.shape], unit, like, recordings[0])
        if not other:
            return list(waiting)
        new = max(each.shape for each in self.result.units) + 1
        renamed = {each.path: replace(each, shape=new) for each in other}
        self.result.units = tuple(renamed.get(each.path, each) for each in self.result.units)
        for recording in recordings:
            recording.rename(other[0], new)
        return [renamed.get(each.path, each) for each in waiting]

    def _trace(self, unit: Unit, recordings: Sequence[Recording]) -> None:
        module, varying = unit.module(self.model), VaryingDims()
        with self._timed("capture"):
            calls = [r.told.get(unit.path) or r.calls[unit.shape] for r in recordings if unit.shape in r.calls]
            sites = [sized_site(module, *call) for call in calls]
            for site in sites:
                varying.observe(site)
            unread = recordings[0].unread.get(unit.shape, frozenset())  # none is known of a call that ended in an error
            found = self.traces.find(module, unit, sites[0], varying, unread)
            traced = found or self._settled(lambda: trace(module, unit, sites[0], varying, unread, rules=self.rules))
            self.traces.note(unit, traced, varying)
        with self._timed("inference"):
            used_outside = recordings[0].used_outside
            kind = described(traced, unit.path, used_outside)
            if kind not in self.solved:
                self.solved[kind] = self._problem(unit, traced, used_outside)
        if _is_of_one_size(traced, varying):
            self.result.sizes = self.result.sizes or ONE_SIZE.format(path=unit.path or "the model")
        self.result.traced[unit.shape] = traced
        self.result.problems[unit.shape] = self.solved[kind]
        self.result.varying[unit.shape] = varying

    def _settled(self, tracing: Callable[[], Traced]) -> Traced:
        """A trace, of a second call where the first one writes what all later ones only read, in what no unit owns: a library's
        tables, say. These stay written as long as the survey lasts, which then puts them back."""
        try:
            return tracing()
        except CaptureError as error:
            if not error.changes:
                raise
            for change in error.changes:
                change.redo()
                self.settled.callback(change.undo)
            return tracing()

    def _problem(self, unit: Unit, traced: Traced, used_outside: Mapping[str, str]) -> UnitProblem:
        graph = traced.graph
        typing, proposals, misses = self._match(unit, graph, used_outside)
        proposals += alone(graph, typing, self.chain_rules, proposals, few=True)
        if self.result.objective != "balanced":
            proposals += alone(graph, typing, self.chain_rules, proposals, few=False)
        collected = {name: p.rule for p in proposals if p.rule.collect for name in p.parameters}
        whole, is_marked = graph, bool(collected)
        while is_marked:
            graph, _ = copied(whole)
            mark_collected(graph, collected)
            typing, proposals, misses = self._match(unit, graph, used_outside)
            needless = through(graph, typing)
            is_marked = bool(needless)
            collected = {name: rule for name, rule in collected.items() if name not in needless}
        if graph is not whole:
            proposals = [p for p in proposals if not p.rule.collect] + marked_proposals(graph, typing, collected)
            misses = open_misses(proposals, misses)
        if self.result.objective == "time":
            proposals += single_axes(graph, typing, proposals)
        return UnitProblem(graph, typing, tuple(proposals), tuple(misses), traced.unread)

    def _match(
        self, unit: Unit, graph: torch.fx.Graph, used_outside: Mapping[str, str]
    ) -> tuple[Typing, list[Proposal], list[NearMiss]]:
        typing = infer(graph, self.operator_rules)
        for node in graph.nodes:
            operator = used_outside.get(f"{unit.path}.{node.target}" if unit.path else str(node.target))
            if node.op == "get_attr" and operator is not None:
                for term in typing.dims(node):
                    pin(term, Pin(node.name, operator, "the model uses this parameter outside of its module"))
        return typing, *match_chains(graph, typing, self.chain_rules)


def _is_of_one_size(traced: Traced, varying: VaryingDims) -> bool:
    """Returns if a trace has as a number what differs between the calls that are known."""
    inputs = {str(node.target): node.meta.get("val") for node in traced.graph.nodes if node.op == "placeholder"}
    given = zip(traced.site.paths("tensor"), traced.site.tensors, traced.site.same, strict=True)
    return any(
        is_concrete_int(inputs[f"tensor_{number}"].shape[dim])
        for path, tensor, number in given
        for dim in varying.of(path, tensor)
        if f"tensor_{number}" in inputs
    )
