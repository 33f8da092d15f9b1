"""Surveying a model: find its units, record how they are called, trace each structure once, propose chains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int

from ..axes.rules import function_rules
from ..capture.capturing import capturing
from ..capture.contract.memo import left_alone
from ..capture.record import record
from ..capture.recorded import Arguments, Recording
from ..capture.trace import trace
from ..capture.traced import CaptureError, Traced
from ..capture.units import Unit, find_units
from ..capture.varying import UnsizedError, VaryingDims, is_sized, sized_site
from ..errors import TraceError
from .apart import strangers
from .choose import UnitProblem
from .problems import Problems
from .taking_apart import Alone, apart, take_apart
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

    def survey_of(split: frozenset[str], earlier: _Surveyor | None) -> _Surveyor:
        return _Surveyor(model, find_units(model, split), examples, rules, objective, earlier)

    found, _, failures = take_apart(survey_of, foreseeing=True)
    found.result.failures |= failures
    return found.result


class _Surveyor:
    def __init__(
        self,
        model: nn.Module,
        units: tuple[Unit, ...],
        examples: Sequence[Example],
        rules: tuple[Path, ...],
        objective: str,
        earlier: _Surveyor | None,
        runs_only: bool = False,
    ) -> None:
        self.model, self.examples, self.objective = model, examples, objective
        self.like = earlier.recordings_as(units) if earlier is not None and earlier.model is model else {}
        self.traces: Traces = earlier.traces if earlier is not None else Traces()
        self.recordings: list[Recording] = []
        self.within: Recording | None = None  # of what is in a unit that is taken apart, if it cannot run on fakes
        self.result = Survey(units, objective=objective)
        self.broken, self.unsized = frozenset[int](), set[int]()
        self.problems: Problems = earlier.problems if earlier is not None else Problems(rules, objective)
        self.rules, self.functions = rules, function_rules(rules)
        self.runs_only = runs_only  # nothing is traced
        self.settled = ExitStack()  # what is put back at the end

    @property
    def units(self) -> tuple[Unit, ...]:
        return self.result.units

    def foreseen(self, taken: Set[str], split: frozenset[str]) -> dict[str, str]:
        """The paths, with reasons, of what will have to be taken apart in the units that are `taken` so: the first one of each
        structure is surveyed alone, as it was called, with those units in it that there are where `split` is taken apart."""
        siblings = dict[int, list[str]]()
        for unit in self.units:
            if unit.path in taken and unit.path:
                siblings.setdefault(unit.shape, []).append(unit.path)
        return {path: why for paths in siblings.values() for path, why in self._foreseen(paths, split)}

    def _foreseen(self, siblings: Sequence[str], split: frozenset[str]) -> Iterator[tuple[str, str]]:
        unit = next(each for each in self.units if each.path == siblings[0])
        alone, calls, prefix = Alone(self.model, unit), self._calls_of(unit), f"{unit.path}."

        def everywhere(paths: Set[str]) -> Iterator[str]:
            return (other + path.removeprefix(unit.path) for path in paths for other in siblings)

        def survey_of(apart: frozenset[str], earlier: _Surveyor | None) -> _Surveyor:
            units = find_units(self.model, split.union(everywhere(apart)))
            inside = tuple(each for each in units if each.path.startswith(prefix))
            runs_only = unit.shape in self.broken  # and only one call is known
            return _Surveyor(alone, inside, calls, self.rules, self.objective, earlier, runs_only)

        found, apart, failures = take_apart(survey_of, self, frozenset([unit.path]), foreseeing=False)
        self.within = next((each for each in found.recordings if each.ways and each.is_sure), self.within)
        for path in apart - {unit.path}:
            yield from ((each, failures[path]) for each in everywhere({path}))

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
        made = [self.within or recording for recording in self.recordings]
        return {number: recording.as_units(both) for number, recording in enumerate(made)}

    def _run(self, known: Set[str]) -> dict[str, str]:
        units, (example, *others) = self.result.units, self.examples
        with self._timed("capture"):
            first = record(self.model, units, *example, self.functions, like=self.like.get(0))
        self.recordings, self.result.recorded = [first], first
        self.broken = frozenset(first.failed)
        failed = {unit.path: first.failed[unit.shape] for unit in units if unit.shape in first.failed}
        if self.runs_only or any(apart(self, failed.keys() - known)):
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
                self.unsized |= {unit.shape} if isinstance(error, UnsizedError) else set()
                continue
            waiting = self._tell_apart(unit, waiting, recordings)
        for unit in units:
            if unit.path not in recordings[0].called:
                self.result.failures[unit.path] = "; ".join(filter(None, (MSG_NOT_CALLED, recordings[0].guessed)))
        return failed

    def _record_others(self, examples: Sequence[Example]) -> None:
        """What the other examples call: they are made from the first, the user's, and the model may not take them."""
        (first,) = self.recordings
        # Of the others only the first call of each shape that can be traced matters, unless units of one shape are called with
        # other sizes or numbers.
        traceable = {shape for shape, call in first.calls.items() if is_sized(*call)}
        until = traceable if not (first.resized or first.told) else ()
        for number, example in enumerate(examples, start=1):
            like = self.like.get(number) if first.on_fakes else first
            try:
                given = self.result.units, *example, self.functions
                self.recordings.append(record(self.model, *given, until=until, like=like))
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
            sites = [sized_site(module, *call) for call in self._calls_of(unit)]
            for site in sites:
                varying.observe(site)
            unread = recordings[0].unread.get(unit.shape, frozenset())  # none is known of a call that ended in an error
            found = self.traces.find(module, unit, sites[0], varying, unread)
            traced = found or self._settled(lambda: trace(module, unit, sites[0], varying, unread, rules=self.rules))
            self.traces.note(unit, traced, varying)
        with self._timed("inference"):
            problem = self.problems.of(unit, traced, recordings[0].used_outside)
        if _is_of_one_size(traced, varying):
            self.result.sizes = self.result.sizes or ONE_SIZE.format(path=unit.path or "the model")
        self.result.traced[unit.shape] = traced
        self.result.problems[unit.shape] = problem
        self.result.varying[unit.shape] = varying

    def _calls_of(self, unit: Unit) -> list[Arguments]:
        """How a unit is called, in each of the recordings in that it is."""
        known = (r for r in self.recordings if unit.shape in r.calls)
        return [r.told.get(unit.path) or r.calls[unit.shape] for r in known]

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
