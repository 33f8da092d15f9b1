"""Verification: a parallel model against the dense one, all ranks simulated in one process."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..capture.traced import Traced
from ..checkpoint.full import full_gradients
from ..dispatch.apply import apply_plan
from ..dispatch.compiler import Compiler
from ..errors import AutotpError, UsageError, in_one_line
from ..huggingface import models
from ..huggingface.examples import examples_for
from ..outside.progress import doing
from ..planner.plan import Plan, UnitPlan
from ..planner.survey import Example, Survey
from ..runtime.groups.log import CollectiveLog
from ..runtime.groups.ranks import Ranks
from ..runtime.groups.simulate import simulate
from ..runtime.results.tensor import closed
from ..session.arguments import Source, Wishes, check_simulated
from ..session.pipeline import Session
from .calls import Call, UnsuitableError, drawing_nothing, larger_call, real_call, three_calls
from .copies import OnlyCopies, copied
from .counts import Expected, called_units, name_of
from .float64 import Float64
from .report import CallReport, Difference, Report, compare, worst_of
from .runs import Run, called, wanting_gradients

MSG_DENSE = "{kind} itself, not cut, fails on the inputs it is verified with ({error}); give others as example"


class _Float64Session(Session):
    """A session for a model in float64, with grouped products, which have no such kernel, group by group."""

    @cached_property
    def examples(self) -> list[Example]:
        return [_widened(call) for call in examples_for(self.module, self.example)]

    @cached_property
    def found(self) -> Survey:
        with Float64():
            return super().found

    def bounded(self, plan: Plan) -> Plan:
        with Float64():
            return super().bounded(plan)


class Verifier:
    """One model verified at several sizes or under several plans: it is surveyed, and the dense one run, only once.

    The arguments are those of `verify`.
    """

    def __init__(self, model: Source, *, example: object = None, seed: int = 0, **wishes: Unpack[Wishes]) -> None:
        torch.manual_seed(seed)
        given = models.resolve(model)
        self.dense, self.seed = _dense(given), seed
        self.only_copies = OnlyCopies(given, self.dense)
        self.session = _Float64Session(self.dense, example=example, **wishes)
        self.call = real_call(self.dense, self.session.examples[0])
        # What a head gives may be read as slices, so that it has no gradient of its own.
        inner = {shape for shape, problem in self.session.found.problems.items() if not problem.is_head}
        self.paths = [unit.path for unit in self.session.found.units if unit.shape in inner]
        self._compilers: tuple[Plan, dict[UnitPlan, Compiler]] | None = None
        self.runs = self._dense_runs()
        self.outputs, self.gradients = self.runs[0].outputs, self.runs[0].gradients

    def _dense_runs(self, *, wanting: bool = False) -> list[Run]:
        """The dense model's three calls, the first of those that it can make, with inputs that want gradients if these are
        `wanting`. A copy runs, since a model may keep something of a call, and every run is to begin with the same one."""
        other = larger_call(self.dense, self.session.examples[0], self.call, self.session.examples[-1])
        if wanting:
            other = wanting_gradients(other)
        problem: Exception | None = None
        for calls in three_calls(self.call, other):
            dense, runs = copied(self.dense), list[Run]()
            try:
                for call in calls:
                    runs.append(self._dense_run(dense, call))
            except AutotpError:
                raise
            except Exception as error:  # whatever the model's own code says to its inputs
                problem = error
                if not runs:
                    break
                continue
            return runs
        assert problem is not None
        raise UsageError(MSG_DENSE.format(kind=type(self.dense).__name__, error=in_one_line(problem))) from problem

    def _dense_run(self, dense: nn.Module, call: Call) -> Run:
        quiet = drawing_nothing() if call.training else nullcontext()
        units = [unit.path for unit in self.session.found.units]
        with quiet, called_units(dense, units) as units_called, self.only_copies:
            outputs, gradients = called(dense, call, self.seed, self.paths)
        if call.inputs is not self.call and any(bool(output.isnan().any()) for output in outputs.values()):
            raise UnsuitableError("its results are no numbers")
        return Run(call, outputs, gradients, units_called)

    def plan(self, tp: int) -> Plan:
        """The best plan of the model for so many ranks."""
        return self.session.plan(tp)

    def verify(self, tp: int, plan: Plan | None = None) -> Report:
        """Compare the model's parallel form on `tp` simulated ranks, under a plan or the best one, with the dense one."""
        check_simulated(tp)
        plan = self.plan(tp) if plan is None else self.session.accepted(plan, tp)
        report = self._report(tp, plan)
        if report.exact and not report.counts_agree:
            # Equal blocks have one placement; the first of them, where it is given data that want no gradient, sums less.
            wanting = copy.copy(self)
            wanting.call = wanting_gradients(self.call)
            wanting.runs = wanting._dense_runs(wanting=True)
            again = wanting._report(tp, plan)
            return again if again.ok else report
        return report

    def compilers(self, plan: Plan) -> dict[UnitPlan, Compiler]:
        """What makes the programs under a plan: one for all runs under it, since equal calls have one program."""
        if self._compilers is None or self._compilers[0] != plan:
            self._compilers = plan, self.session.compilers(plan)
        return self._compilers[1]

    def _report(self, tp: int, plan: Plan) -> Report:
        compilers = self.compilers(plan)

        def rank_run(ranks: Ranks) -> list[Compared]:
            parallel = apply_plan(copied(self.dense), plan, ranks, compilers)
            # Compared at once: the whole gradients of every call and rank together may be far larger than the model.
            return [_compared(run, self.parallel_run(parallel, run.call, ranks)) for run in self.runs]

        with doing(f"comparing {tp} simulated ranks with the dense model"):
            ranks = simulate(tp, rank_run)
        expected = Expected(plan, self._traced())
        calls = tuple(_call_report(run, expected, found) for run, *found in zip(self.runs, *ranks, strict=True))
        counts = next((call for call in calls if not call.counts_agree), calls[0])
        return Report(
            model=type(self.dense).__name__,
            tp=tp,
            outputs=worst_of([call.outputs for call in calls]),
            gradients=worst_of([call.gradients for call in calls]),
            planned=counts.planned,
            counted=counts.counted,
            elements=plan.elements(),
            calls=calls,
            joined=counts.joined,
        )

    def _traced(self) -> dict[str, Traced]:
        """The traces that plans are made from, by the paths of units."""
        found = self.session.found
        return {unit.path: found.traced[unit.shape] for unit in found.units if unit.shape in found.traced}

    def parallel_run(self, parallel: nn.Module, call: Call, ranks: Ranks) -> RankRun:
        """One call of a rank's part of the model, and its backward."""
        with ranks.logging() as log, OnlyCopies(*self.only_copies.models):
            outputs, gradients = called(parallel, call, self.seed, self.paths)
        with torch.no_grad():  # a plan may keep them cut, and only ranks that are at it together make them whole
            outputs = {name: closed(output) for name, output in outputs.items()}
        gradients = {name: closed(gradient) for name, gradient in gradients.items()}
        return RankRun(outputs, gradients | full_gradients(parallel), log)


@dataclass(frozen=True)
class RankRun:
    """What one rank had in one call."""

    outputs: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor | None]
    log: CollectiveLog


@dataclass(frozen=True)
class Compared:
    """How far one rank is from the dense model in one call, and the collectives that it ran."""

    outputs: tuple[Difference, ...]
    gradients: tuple[Difference, ...]
    log: CollectiveLog


def _compared(run: Run, rank: RankRun) -> Compared:
    return Compared(
        outputs=compare(run.outputs, rank.outputs, {}, run.call.name),
        gradients=compare(run.gradients, rank.gradients, run.gradients, run.call.name),
        log=rank.log,
    )


def _call_report(run: Run, expected: Expected, ranks: Sequence[Compared]) -> CallReport:
    """One call of the dense model beside that of every rank: outputs, gradients, and the collectives of the first one."""
    counts = expected.of(run.calls, ranks[0].log)
    return CallReport(
        name=run.call.name,
        outputs=worst_of([rank.outputs for rank in ranks]),
        gradients=worst_of([rank.gradients for rank in ranks]),
        planned=counts.planned,
        counted=counts.counted,
        joined=counts.joined,
        whole=counts.whole,
    )


def planned_collectives(plan: Plan) -> dict[str, int]:
    """Collectives of one training step of the whole model in which every unit is called once, by "kind phase of". What buffers
    are given is left out: it is sent in training only, and a plan knows one mode."""
    return dict(Counter(name_of(c) for c in plan.step() if c.of != "buffer"))


def _dense(model: nn.Module) -> nn.Module:
    """A float64 copy on the CPU in eval mode, with random weights where there are none; nothing is frozen, as in a plan."""
    if any(tensor.is_meta for tensor in model.parameters()):
        model = (
            models.build_model(model.config, meta=False)
            if models.is_transformers_model(model)
            else model.to_empty(device="cpu")
        )
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
    model = copied(model).to("cpu", torch.float64).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    return model


def _widened(example: Example) -> Example:
    """The example with floating inputs in float64, as the model's weights are."""

    def widen(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    args, kwargs = pytree.tree_map(widen, example)
    return tuple(args), kwargs
