"""Verification: a parallel model against the dense one, all ranks simulated in one process."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .api import Source, check_size, examples_for, rule_folders
from .boundaries import with_boundaries
from .capture.grouped import GroupedProducts
from .capture.opaque import copy_opaque, tensors_of
from .checkpoint.full import full_gradients
from .errors import AutotpError, UsageError, VerificationError, in_one_line
from .gate import accept
from .huggingface import models
from .planner.make import make_plan
from .planner.plan import Plan
from .planner.survey import Example, survey
from .rewrite.apply import apply_plan, make_compilers
from .runtime.ranks import Ranks
from .runtime.sequence import made_whole
from .runtime.simulate import simulate

TOLERANCE = 1e-9
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
class Difference:
    """The largest difference found in one tensor, relative to its largest entry (see `verify`)."""

    name: str
    error: float


@dataclass(frozen=True)
class Report:
    """What verification found. `planned` and `counted` are collectives by "kind phase of" over one training step, the former for
    the calls that the dense model made of its units; `elements` the numbers of parameters of the whole model and of one rank."""

    model: str
    tp: int
    outputs: tuple[Difference, ...]
    gradients: tuple[Difference, ...]
    planned: Mapping[str, int]
    counted: Mapping[str, int]
    elements: tuple[int, int]
    tolerance: float = TOLERANCE

    @property
    def exact(self) -> bool:
        """Returns if every output and gradient is within the tolerance."""
        return all(difference.error <= self.tolerance for difference in (*self.outputs, *self.gradients))

    @property
    def counts_agree(self) -> bool:
        """Returns if exactly the planned collectives ran."""
        return dict(self.planned) == dict(self.counted)

    @property
    def ok(self) -> bool:
        """Returns if the parallel model is the dense one, at the planned collectives."""
        return self.exact and self.counts_agree

    def worst(self) -> tuple[Difference, ...]:
        """The worst output and the worst gradient."""
        groups = [group for group in (self.outputs, self.gradients) if group]
        return tuple(max(group, key=lambda difference: difference.error) for group in groups)

    def raise_for_failure(self) -> None:
        """Raises VerificationError naming the worst tensor, or the collectives that differ from the plan."""
        if not self.exact:
            worst = max(self.worst(), key=lambda difference: difference.error)
            raise VerificationError(f"{self.model} at tp {self.tp}: {worst.name} differs by {worst.error:.1e}")
        if not self.counts_agree:
            raise VerificationError(
                f"{self.model} at tp {self.tp}: planned {dict(self.planned)}, counted {dict(self.counted)} collectives"
            )

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**dataclasses.asdict(self), "ok": self.ok}, indent=2) + "\n"


class Float64(TorchFunctionMode):
    """Every cast to a smaller floating type becomes one to float64, so that only arithmetic order is left to differ."""

    SMALLER = frozenset({torch.float32, torch.float16, torch.bfloat16})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widen(value: Any) -> Any:
            return torch.float64 if isinstance(value, torch.dtype) and value in self.SMALLER else value

        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        if func in (torch.tensor, torch.full) and any(isinstance(leaf, float) for leaf in pytree.tree_leaves(args)):
            kwargs = {"dtype": torch.float64, **(kwargs or {})}
        if any(isinstance(leaf, torch.dtype) for leaf in pytree.tree_leaves((args, kwargs))):
            args, kwargs = pytree.tree_map(widen, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


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
        self.call = _real_call(self.dense, self.examples[0])
        # What a head gives may be read as slices, so that it has no gradient of its own.
        inner = {shape for shape, problem in self.found.problems.items() if not problem.is_head}
        self.paths = [unit.path for unit in self.found.units if unit.shape in inner]
        self._run_dense()

    def _run_dense(self) -> None:
        # A copy runs, since a model may keep something of a call, and every run is to begin with the same one.
        dense = copy.deepcopy(self.dense)
        with _calls(dense, [unit.path for unit in self.found.units]) as self.calls:
            try:
                self.outputs, self.gradients = _run(dense, self.call, self.seed, self.paths)
            except AutotpError:
                raise
            except Exception as error:  # whatever the model's own code says to its inputs
                raise UsageError(MSG_DENSE.format(kind=type(dense).__name__, error=in_one_line(error))) from error

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
            wanting._run_dense()
            again = wanting._report(tp, plan)
            return again if again.ok else report
        return report

    def _report(self, tp: int, plan: Plan) -> Report:
        compilers = make_compilers(plan, self.found, self.folders)

        def rank_run(ranks: Ranks) -> Any:
            parallel = apply_plan(copy.deepcopy(self.dense), plan, ranks, compilers)
            with ranks.logging() as log:
                results, gradients = _run(parallel, self.call, self.seed, self.paths)
            gradients = {name: made_whole(gradient) for name, gradient in gradients.items()}
            return results, gradients | full_gradients(parallel), log

        runs = simulate(tp, rank_run)
        counted = Counter(f"{c.kind} {c.phase} {c.of}" for c in runs[0][2].calls if c.phase != "checkpoint")
        return Report(
            model=type(self.dense).__name__,
            tp=tp,
            outputs=_compare(self.outputs, [run[0] for run in runs], {}),
            gradients=_compare(self.gradients, [run[1] for run in runs], self.gradients),
            planned=planned_collectives(plan, self.calls),
            elements=plan.elements(),
            counted=dict(counted),
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


def _real_call(model: nn.Module, example: Example) -> Example:
    """The example with real inputs in place of those without data."""
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None) or 100

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.is_floating_point():
            return torch.randn(leaf.shape, dtype=leaf.dtype) if leaf.is_meta else leaf
        return torch.randint(0, vocabulary, leaf.shape) if leaf.is_meta else leaf

    args, kwargs = pytree.tree_map(real, example)
    return tuple(args), kwargs


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
    with Float64(), GroupedProducts(), _unit_results(model, units) as results:
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


def _largest(true: torch.Tensor, found: Sequence[torch.Tensor | None]) -> float:
    """The largest absolute difference; infinite where a tensor is missing or is not a number where the true one is."""
    if any(tensor is None for tensor in found):
        return float("inf")
    true = _numbers(true)
    differences = [_difference(true, _numbers(tensor)) for tensor in found if tensor is not None]
    return max(differences, default=0.0)


def _difference(true: torch.Tensor, found: torch.Tensor) -> float:
    difference = (found - true).abs().masked_fill(found == true, 0)  # infinities that are equal differ by none
    return float(difference.nan_to_num(nan=float("inf")).max()) if difference.numel() else 0.0


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.int() if tensor.dtype == torch.bool else tensor


def _size(tensor: torch.Tensor) -> float:
    """The largest absolute entry, infinities aside."""
    sizes = _numbers(tensor).abs()
    return float(sizes.masked_fill(sizes.isinf(), 0).max()) if sizes.numel() else 0.0


def _compare(
    true: Mapping[str, torch.Tensor],
    ranks: Sequence[Mapping[str, torch.Tensor | None]],
    scale: Mapping[str, torch.Tensor],
) -> tuple[Difference, ...]:
    largest = max(map(_size, scale.values()), default=0.0)
    found = []
    for name, tensor in true.items():
        own = _size(tensor)
        unit = own if own > TOLERANCE * largest else largest
        found.append(Difference(name, _largest(tensor, [rank[name] for rank in ranks]) / (unit or 1.0)))
    return tuple(found)
