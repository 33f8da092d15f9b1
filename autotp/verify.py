"""Verification: a parallel model against the dense one, all ranks simulated in one process."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .api import Source, check_size, examples_for, rule_folders
from .boundaries import with_boundaries
from .capture.grouped import GroupedProducts
from .capture.opaque import copy_opaque, tensors_of
from .checkpoint.full import full_gradients
from .differences import CallReport, Report, compare, worst_of
from .errors import AutotpError, UsageError, in_one_line
from .gate import accept
from .huggingface import models
from .planner.make import make_plan
from .planner.plan import Plan
from .planner.survey import Example, survey
from .rewrite.apply import apply_plan, make_compilers
from .runtime.ranks import Ranks
from .runtime.sequence import made_whole
from .runtime.simulate import simulate
from .three_calls import Call, UnsuitableError, WithoutDropout, drawing_nothing, larger_call, real_call, three_calls

MOST_RANKS = 64
MSG_TOO_MANY = (
    "verify runs all {tp} ranks in this process, and at most {most}; verify at a smaller tp that divides it, or run real"
    " ranks"
)
MSG_NO_GRADIENT = (
    "{kind} gives nothing that has a gradient, so its gradients cannot be compared; give what makes it return floating tensors"
    " as example, or verify the module within it that does"
)
MSG_DENSE = "{kind} itself, not cut, fails on the inputs it is verified with ({error}); give others as example"


@dataclass(frozen=True)
class Run:
    """What the dense model gave in one call, and how often it called each unit."""

    call: Call
    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    units: Mapping[str, int]


class Float64(TorchFunctionMode):
    """Every cast to a smaller floating type becomes one to float64, so that only arithmetic order is left to differ."""

    SMALLER = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.backward:
            with self:  # torch puts a mode aside in its functions, and a checkpoint runs the model again in this one
                return _backward(*args, **(kwargs or {}))

        def widen(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in self.SMALLER else value

        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        if func in (torch.tensor, torch.full) and any(isinstance(leaf, float) for leaf in pytree.tree_leaves(args)):
            kwargs = {"dtype": torch.float64, **(kwargs or {})}
        if any(isinstance(leaf, torch.dtype) for leaf in pytree.tree_leaves((args, kwargs))):
            args, kwargs = pytree.tree_map(widen, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _backward(loss: torch.Tensor, gradient: torch.Tensor | None = None, **settings: Any) -> None:
    """`loss.backward(...)` from its edge of the graph: of what is no tensor torch puts no mode aside."""
    gradient = torch.ones_like(loss) if gradient is None else gradient
    torch.autograd.backward(get_gradient_edge(loss), gradient, **settings)


def verify(
    model: Source,
    tp: int,
    *,
    plan: Plan | None = None,
    example: Any = None,
    sequence_parallel: bool = False,
    rules: Sequence[str | Path] = (),
    seed: int = 0,
) -> Report:
    """Compare a model's parallel form with the dense one in float64: outputs, every gradient, collectives.

    Both are called three times: in eval mode, with other inputs in training mode, and as the first time; so what a call leaves
    for the next one shows, and buffers that calls change are compared too. Dropout drops nothing. Where the dense model fails in
    the second call, or draws random numbers in training, that call is one that it can make; the report names it.

    All ranks are simulated in this process, so it works without GPUs or a launcher, for up to 64 ranks. The model is copied, and
    computes entirely in float64: grouped products, which have no such kernel, group by group, in the dense model too. A
    difference is relative to the tensor's largest entry, or to the model's largest gradient where the true one vanishes
    (as a key bias's does).

    Args:
        model: as for `autotp.plan`; without weights it gets random ones.
        tp: number of ranks.
        plan: the plan to verify; the best one unless given.
        example: for a module not from transformers the arguments of one forward, on real tensors.
        sequence_parallel, rules: as for `autotp.plan`; a given plan says the first itself.
        seed: of random weights, inputs and output weights.

    Raises:
        UsageError: the dense model fails on the example inputs, or an argument is wrong.
        PlanError: the plan is for another model or another number of ranks.
    """
    check_simulated(tp)
    verifier = Verifier(model, example=example, rules=rules, seed=seed)
    if plan is None and sequence_parallel:
        plan = verifier.plan(tp, sequence_parallel=True)
    return verifier.verify(tp, plan)


def check_simulated(tp: object) -> None:
    """Raises UsageError unless tp is a number of ranks that one process can simulate."""
    check_size(tp)
    if isinstance(tp, int) and tp > MOST_RANKS:
        raise UsageError(MSG_TOO_MANY.format(tp=tp, most=MOST_RANKS))


class Verifier:
    """One model verified at several sizes or under several plans: it is surveyed, and the dense one run, only once.

    The arguments are those of `verify`.
    """

    def __init__(self, model: Source, *, example: Any = None, rules: Sequence[str | Path] = (), seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.dense = _dense(models.resolve(model))
        self.folders, self.seed = rule_folders(rules), seed
        self.examples = [_widened(call) for call in examples_for(self.dense, example)]
        with Float64():
            self.found = survey(self.dense, self.examples, self.folders)
        self.call = real_call(self.dense, self.examples[0])
        # What a head gives may be read as slices, so that it has no gradient of its own.
        inner = {shape for shape, problem in self.found.problems.items() if not problem.is_head}
        self.paths = [unit.path for unit in self.found.units if unit.shape in inner]
        self.runs = self._dense_runs()
        self.outputs, self.gradients = self.runs[0].outputs, self.runs[0].gradients

    def _dense_runs(self, *, wanting: bool = False) -> list[Run]:
        """The dense model's three calls, the first of those that it can make, with inputs that want gradients if these are
        `wanting`. A copy runs, since a model may keep something of a call, and every run is to begin with the same one."""
        other = larger_call(self.dense, self.examples[0], self.call, self.examples[-1])
        if wanting:
            other = _wanting_gradients(other)
        problem: Exception | None = None
        for calls in three_calls(self.call, other):
            dense, runs = copy.deepcopy(self.dense), list[Run]()
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
        with quiet, _calls(dense, [unit.path for unit in self.found.units]) as units:
            outputs, gradients = _called(dense, call, self.seed, self.paths)
        if call.inputs is not self.call and any(bool(output.isnan().any()) for output in outputs.values()):
            raise UnsuitableError("its results are no numbers")
        return Run(call, outputs, gradients, units)

    def plan(self, tp: int, *, sequence_parallel: bool = False) -> Plan:
        """The best plan of the model for so many ranks."""
        made = make_plan(self.dense, self.found, tp, sequence_parallel=sequence_parallel)
        with Float64():
            return with_boundaries(self.dense, self.found, made, self.examples[0], self.folders)

    def verify(self, tp: int, plan: Plan | None = None) -> Report:
        """Compare the model's parallel form on `tp` simulated ranks, under a plan or the best one, with the dense one."""
        check_simulated(tp)
        plan = self.plan(tp) if plan is None else accept(self.dense, plan, tp, self.found, self.folders)
        report = self._report(tp, plan)
        if report.exact and not report.counts_agree:
            # Equal blocks have one placement; the first of them, where it is given data that want no gradient, sums less.
            wanting = copy.copy(self)
            wanting.call = _wanting_gradients(self.call)
            wanting.runs = wanting._dense_runs(wanting=True)
            again = wanting._report(tp, plan)
            return again if again.ok else report
        return report

    def _report(self, tp: int, plan: Plan) -> Report:
        compilers = make_compilers(plan, self.found, self.folders)

        def rank_run(ranks: Ranks) -> list[Any]:
            parallel = apply_plan(copy.deepcopy(self.dense), plan, ranks, compilers)
            return [self._parallel_run(parallel, run.call, ranks) for run in self.runs]

        ranks = simulate(tp, rank_run)
        calls = tuple(
            _call_report(run, planned_collectives(plan, run.units) if self._is_planned(run.call) else None, found)
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
        )

    def _is_planned(self, call: Call) -> bool:
        """Returns if the plan says what a call sends: of a dim of size one it holds for that size only."""
        first, other = (pytree.tree_leaves(each.inputs) for each in (self.runs[0].call, call))
        pairs = [(a.shape, b.shape) for a, b in zip(first, other, strict=True) if isinstance(a, torch.Tensor)]
        return all(1 not in (x, y) for a, b in pairs for x, y in zip(a, b, strict=True) if x != y)

    def _parallel_run(self, parallel: nn.Module, call: Call, ranks: Ranks) -> tuple[Any, Any, Any]:
        with ranks.logging() as log:
            outputs, gradients = _called(parallel, call, self.seed, self.paths)
        gradients = {name: made_whole(gradient) for name, gradient in gradients.items()}
        counted = Counter(f"{c.kind} {c.phase} {c.of}" for c in log.calls if c.phase != "checkpoint")
        return outputs, gradients | full_gradients(parallel), counted


def _call_report(run: Run, planned: Mapping[str, int] | None, ranks: Sequence[tuple[Any, Any, Any]]) -> CallReport:
    """One call of the dense model beside that of every rank: outputs, gradients, collectives, if a plan says which."""
    return CallReport(
        name=run.call.name,
        outputs=compare(run.outputs, [rank[0] for rank in ranks], {}, run.call.name),
        gradients=compare(run.gradients, [rank[1] for rank in ranks], run.gradients, run.call.name),
        planned=dict(ranks[0][2]) if planned is None else planned,
        counted=dict(ranks[0][2]),
    )


def planned_collectives(plan: Plan, calls: Mapping[str, int] | None = None) -> dict[str, int]:
    """Collectives of one training step of the whole model by "kind phase of", for so many calls of the units if they are given:
    data may choose which experts are called, and some units are called twice."""
    return dict(Counter(f"{c.kind} {c.phase} {c.of}" for c in plan.step(calls)))


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
    model = copy.deepcopy(model).to("cpu", torch.float64).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    return model


def _widened(example: Example) -> Example:
    """The example with floating inputs in float64, as the model's weights are."""

    def widen(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    args, kwargs = pytree.tree_map(widen, example)
    return tuple(args), kwargs


def _called(
    model: nn.Module, call: Call, seed: int, units: Sequence[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """One call of the model in the call's mode: outputs, buffers that it has changed among them, and gradients."""
    model.train(call.training)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs, gradients = _run(model, call.inputs, seed, units)
    for name, buffer in model.named_buffers():
        if name not in before or not _is_equal(before[name], buffer):
            outputs[f"buffer {name}"] = buffer.detach().clone()
    return outputs, gradients


def _wanting_gradients(call: Example) -> Example:
    """The call with floating inputs that want gradients, as what blocks hand on to each other does."""

    def wanting(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().requires_grad_() if floating else leaf

    args, kwargs = pytree.tree_map(wanting, call)
    return tuple(args), kwargs


def _run(
    model: nn.Module, call: Example, seed: int, units: Sequence[str]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Outputs by name, and the gradients that a random weighting of them gives to parameters and to the results of units.

    The result of the embedding's unit is what the first block reads: its gradient is that of the input embeddings.
    """
    model.zero_grad()
    # A call may change its arguments, and every run is to see the same ones.
    args, kwargs = copy_opaque(call, lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad).clone())
    with Float64(), WithoutDropout(), GroupedProducts(), _unit_results(model, units) as results:
        outputs = _outputs(model(*args, **kwargs))
        weights = torch.Generator().manual_seed(seed)
        loss: Any = sum(
            (output * torch.randn(output.shape, generator=weights, dtype=output.dtype)).sum()
            for output in outputs.values()
            if output.is_floating_point() and output.requires_grad
        )
        if not isinstance(loss, torch.Tensor):
            raise UsageError(MSG_NO_GRADIENT.format(kind=type(model).__name__))
        loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters(remove_duplicate=False) if p.grad is not None}
    gradients |= {f"result of {path}": r.grad for path, r in results.items() if r.grad is not None}
    return {name: output.detach() for name, output in outputs.items()}, gradients


def _is_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _outputs(result: Any) -> dict[str, torch.Tensor]:
    """The tensors that a model returns, also those in dataclasses and in an object of a class of its own, by name."""
    found = {}
    for i, leaf in enumerate(pytree.tree_leaves(result)):
        if isinstance(leaf, torch.Tensor):
            found[f"output {i}"] = leaf
        elif leaf is result or dataclasses.is_dataclass(leaf):
            found |= {f"output {i}.{j}": tensor for j, tensor in enumerate(tensors_of(leaf))}
    return found


@contextmanager
def _calls(model: nn.Module, units: Sequence[str]) -> Iterator[Counter[str]]:
    """Counts the calls of each unit."""
    calls: Counter[str] = Counter()
    with _hooked(model, units, lambda path, result: calls.update([path])):
        yield calls


@contextmanager
def _unit_results(model: nn.Module, units: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Collects the first tensor that each unit gives, so that its gradient is kept."""
    results: dict[str, torch.Tensor] = {}

    def keep(path: str, result: Any) -> None:
        first = next((leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)), None)
        if first is not None and first.requires_grad and path not in results:
            first.retain_grad()
            results[path] = first

    with _hooked(model, units, keep):
        yield results


@contextmanager
def _hooked(model: nn.Module, units: Sequence[str], tell: Callable[[str, Any], None]) -> Iterator[None]:
    """Tells of every call of a unit its path and its result."""

    def hook_for(path: str) -> Any:
        return lambda module, args, result: tell(path, result)

    hooks = [model.get_submodule(path).register_forward_hook(hook_for(path)) for path in units]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
