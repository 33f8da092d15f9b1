"""Verification: a parallel model against the dense one, all ranks simulated in one process."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..checkpoint.full import full_gradients
from ..dispatch.apply import apply_plan
from ..dispatch.compiler import Compiler, tensors_in
from ..errors import AutotpError, UsageError, in_one_line
from ..huggingface import models
from ..huggingface.examples import examples_for
from ..outside.progress import doing
from ..planner.plan import CollectivePlan, Counts, Plan, UnitPlan
from ..planner.survey import Example, Survey
from ..runtime.groups.log import CollectiveCall
from ..runtime.groups.ranks import Ranks
from ..runtime.groups.simulate import simulate
from ..runtime.results.logits import OPERAND
from ..runtime.results.tensor import closed
from ..session.arguments import Source, Wishes, check_simulated
from ..session.pipeline import Session
from .calls import Call, UnsuitableError, drawing_nothing, larger_call, real_call, three_calls
from .copies import OnlyCopies, copied
from .float64 import Float64
from .report import CallReport, Report, compare, worst_of
from .runs import Run, called, counted_units, wanting_gradients

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
        with quiet, counted_units(dense, self._nodes()) as counts, self.only_copies:
            outputs, gradients = called(dense, call, self.seed, self.paths)
        if call.inputs is not self.call and any(bool(output.isnan().any()) for output in outputs.values()):
            raise UnsuitableError("its results are no numbers")
        return Run(call, outputs, gradients, counts)

    def _nodes(self) -> dict[str, dict[str, str]]:
        """The nodes of the tensors that units are called with, by unit and place in the call."""
        found, nodes = self.session.found, dict[str, dict[str, str]]()
        for unit in found.units:
            traced = found.traced.get(unit.shape)
            given = traced.site.paths("tensor") if traced is not None else ()
            named = tensors_in(traced.graph, traced.site) if traced is not None else ()
            nodes[unit.path] = {place: place for place in given} | {place: str(node.target) for node, place in named}
        return nodes

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

        def rank_run(ranks: Ranks) -> list[Any]:
            parallel = apply_plan(copied(self.dense), plan, ranks, compilers)
            return [self._parallel_run(parallel, run.call, ranks) for run in self.runs]

        with doing(f"comparing {tp} simulated ranks with the dense model"):
            ranks = simulate(tp, rank_run)
        calls = tuple(
            _call_report(run, plan if self._is_planned(run) else None, found, self._heads(plan))
            for run, *found in zip(self.runs, *ranks, strict=True)
        )
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

    def _heads(self, plan: Plan) -> tuple[UnitPlan, ...]:
        """The units whose results may leave them cut."""
        found = self.session.found
        heads = {
            unit.path for unit in found.units if unit.shape in found.problems and found.problems[unit.shape].is_head
        }
        return tuple(unit for unit in plan.units if unit.instances[0] in heads)

    def _is_planned(self, run: Run) -> bool:
        """Returns if the plan says what a call sends: of a dim of size one it holds for that size only, as it does where there is
        a loop, and of norms that change their statistics it knows how they use them."""
        if run.call.training and any(name.startswith("buffer ") for name in run.outputs):
            return False
        first, other = (pytree.tree_leaves(each.inputs) for each in (self.runs[0].call, run.call))
        pairs = [(a.shape, b.shape) for a, b in zip(first, other, strict=True) if isinstance(a, torch.Tensor)]
        if self.session.found.sizes and any(a != b for a, b in pairs):
            return False
        return all(1 not in (x, y) for a, b in pairs for x, y in zip(a, b, strict=True) if x != y)

    def _parallel_run(self, parallel: nn.Module, call: Call, ranks: Ranks) -> tuple[Any, Any, Any, bool]:
        with ranks.logging() as log, OnlyCopies(*self.only_copies.models):
            outputs, gradients = called(parallel, call, self.seed, self.paths)
        with torch.no_grad():  # a plan may keep them cut, and only ranks that are at it together make them whole
            outputs = {name: closed(output) for name, output in outputs.items()}
        gradients = {name: closed(gradient) for name, gradient in gradients.items()}
        sent = [c for c in log.calls if c.phase not in ("checkpoint", LOSS) and c.of not in ("buffer", OPERAND)]
        has_loss = any(c.phase == LOSS for c in log.calls)
        return outputs, gradients | full_gradients(parallel), Counter(map(_name, sent)), has_loss


def _call_report(
    run: Run, plan: Plan | None, ranks: Sequence[tuple[Any, Any, Any, bool]], heads: Sequence[UnitPlan]
) -> CallReport:
    """One call of the dense model beside that of every rank: outputs, gradients, collectives, if a plan says which."""
    return CallReport(
        name=run.call.name,
        outputs=compare(run.outputs, [rank[0] for rank in ranks], {}, run.call.name),
        gradients=compare(run.gradients, [rank[1] for rank in ranks], run.gradients, run.call.name),
        planned=dict(ranks[0][2]) if plan is None else planned_collectives(plan, run.counts),
        counted=dict(ranks[0][2]),
        joined={} if plan is None else _joined(plan, run.counts, heads, ranks[0][3]),
    )


GATHERS, LOSS = "all_gather forward activation", "loss"


def _joined(plan: Plan, counts: Counts, heads: Sequence[UnitPlan], has_loss: bool) -> dict[str, int]:
    """By name, how many fewer collectives may run than are planned: a result's gather may be one with others, and so may any that
    a unit has which is called otherwise than it is planned for, with no mask for one, or without gradients. A loss needs no
    gather at all."""
    ran = {path: _ran(unit, path, counts) for unit in plan.units for path in unit.instances}
    gathers = sum(ran[path][GATHERS] for unit in heads for path in unit.instances)
    joined = Counter({GATHERS: gathers if has_loss else max(gathers - 1, 0)})
    for path in ran.keys() & counts.otherwise:
        joined.update({name: number - 1 for name, number in ran[path].items()})
    return dict(+joined)


def _ran(unit: UnitPlan, path: str, counts: Counts) -> Counter[str]:
    """How often the collectives of a unit ran, by name."""
    return sum((Counter({_name(c): counts.of(path, c)}) for c in unit.collectives), Counter[str]())


def planned_collectives(plan: Plan, counts: Counts | None = None) -> dict[str, int]:
    """Collectives of one training step of the whole model by "kind phase of", for what units did in it if that is given: data
    may choose which experts are called, some units are called twice, some get no gradient, and some are given data, which want
    none. What buffers are given is left out: it is sent in training only, and a plan knows one mode."""
    sent = [c for c in plan.step(counts) if c.of != "buffer"]
    return dict(Counter(map(_name, sent)))


def _name(collective: CollectivePlan | CollectiveCall) -> str:
    return f"{collective.kind} {collective.phase} {collective.of}"


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
