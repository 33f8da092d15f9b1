"""Functions that stay opaque: derivatives of their own, functions and partial functions with a rule, loops over time."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.axes.annotation import annotation
from autotp.dispatch.apply import apply_plan
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.survey import survey
from autotp.runtime.groups.simulate import simulate
from tests.capture.test_trace import HIDDEN, INNER, MLP, Block, Cut, Stack, leaf, values, weights

pytestmark = pytest.mark.matrix


class Steeper(torch.autograd.Function):
    """Its derivative is not that of what it computes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 3 * gradient


class IsSteeper(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return Steeper.apply(y)  # type: ignore[no-any-return, no-untyped-call]


def folder(path: Path, text: str) -> list[str]:
    (path / "ops").mkdir()
    (path / "ops" / "functions.toml").write_text(text, encoding="utf-8")
    return [str(path)]


def rows(plan: autotp.Plan) -> int:
    """How much of the inner dimension a rank holds."""
    return next(p.local_shape[0] for unit in plan.units for p in unit.parameters if p.name == "up.weight")


def test_a_derivative_of_its_own_is_kept(tmp_path: Path) -> None:
    model, x = Stack(IsSteeper).double(), leaf(2, 3, HIDDEN)
    autotp.verify(model, 2, example=(x,)).raise_for_failure()
    rules = folder(tmp_path, 'of = "tests"\n[function.Steeper]\nsignature = "x: ... -> ..."\nzeros = "x"')
    assert rows(autotp.plan(model, 3, example=(x,))) == INNER
    assert rows(autotp.plan(model, 3, example=(x,), rules=rules)) == INNER // 3
    autotp.verify(model, 3, example=(x,), rules=rules).raise_for_failure()


def recurrence(x: torch.Tensor, decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop over time; gives all states and the last."""
    states = [torch.zeros_like(x[:, 0])]
    for step in range(x.shape[1]):
        states.append(decay.sigmoid() * states[-1] + x[:, step])
    return torch.stack(states[1:], 1), states[-1]


class Recurrent(Block):
    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.decay = nn.Parameter(torch.zeros(INNER))

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return recurrence(y, self.decay)[0]


class PartlyRecurrent(Recurrent):
    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.scan = functools.partial(recurrence, decay=torch.linspace(-1, 1, INNER, dtype=torch.float64))

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return self.scan(y)[0] * self.decay  # type: ignore[no-any-return]


RULE = 'of = "tests"\n[function.recurrence]\nsignature = "x: b t c, decay: c -> b t c, b c"\nwhole = "t"\nzeros = "x"'


@pytest.mark.parametrize("kind", [Recurrent, PartlyRecurrent])
def test_a_loop_over_time_with_a_rule_is_one_operator_for_every_length(kind: Any, tmp_path: Path) -> None:
    lengths, rules = (3, 5, 2, 7), folder(tmp_path, RULE)
    counts = []
    for known in (rules, []):
        cut = Cut(Stack(kind, 1), leaf(2, 3, HIDDEN), rules=known)
        cut.assert_same(lambda model: [model(leaf(2, length, HIDDEN)) for length in lengths])
        counts.append(cut.programs())
    assert counts == [2, len(lengths)]  # the first one takes the example's length as a constant


class Gated(torch.autograd.Function):
    """It keeps a parameter for its derivative, which is computed with what a rank holds of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, gate)
        ctx.kept = gate
        return x * gate.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, gate = ctx.saved_tensors
        slope = ctx.kept.sigmoid() * (1 - gate.sigmoid())
        return gradient * gate.sigmoid(), (gradient * x).flatten(0, -2).sum(0) * slope


def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As the functions of kernels do it, whose derivative nobody can trace."""
    return Gated.apply(x, gate)  # type: ignore[no-any-return, no-untyped-call]


class IsGated(Recurrent):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return gated(y, self.decay)


@pytest.mark.parametrize("size", [2, 3])
def test_a_derivative_of_its_own_is_computed_with_the_part_of_a_parameter_that_it_keeps(
    size: int, tmp_path: Path
) -> None:
    rules = folder(tmp_path, 'of = "tests"\n[function.gated]\nsignature = "x: b t c, gate: c -> b t c"\nzeros = "x"')
    model, x = Stack(IsGated).double(), leaf(2, 3, HIDDEN)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    assert rows(autotp.plan(model, size, example=(x,), rules=rules)) == -(-INNER // size)
    autotp.verify(model, size, example=(x,), rules=rules).raise_for_failure()


def recurrence_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return recurrence(x + y, y[0, 0])[0]


class OtherwiseRecurrent(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return recurrence_of_two(y, y)


@pytest.mark.parametrize("signature", ["x: b t c -> b t c", "x: b t c, y: b c -> b t c"])
def test_a_call_that_a_rule_does_not_describe_is_not_cut(signature: str, tmp_path: Path) -> None:
    rules = folder(tmp_path, f'of = "tests"\n[function.recurrence_of_two]\nsignature = "{signature}"\nwhole = "t"')
    model, x = Stack(OtherwiseRecurrent).double(), leaf(2, 3, HIDDEN)
    assert rows(autotp.plan(model, 2, example=(x,), rules=rules)) == INNER
    autotp.verify(model, 2, example=(x,), rules=rules).raise_for_failure()


def test_a_rule_whose_result_has_other_dims_is_named(tmp_path: Path) -> None:
    text = 'of = "tests"\n[function.recurrence_of_two]\nsignature = "x: b t c, y: b t c -> b c"\nwhole = "t"'
    cut = Cut(Stack(OtherwiseRecurrent), leaf(2, 3, HIDDEN), rules=folder(tmp_path, text))
    assert "the rule of a function gives a result of 2 dims where it has 3" in cut.failures["blocks.0"]


class Remembers(Block):
    """It keeps a tensor from one call to the next, which a program would not."""

    kept: torch.Tensor | None = None

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        before, self.kept = self.kept, y.detach().sum(1, keepdim=True)
        return y.relu() if before is None else y.relu() + before


def test_a_block_that_keeps_a_tensor_stays_as_it_is() -> None:
    cut = Cut(Stack(Remembers), values(2, 3, HIDDEN))
    reason = "it changes the block.kept, which the next call reads"
    assert cut.failures["blocks.0"] == f"{reason}"
    assert not any("down" in name for name in cut.cut())
    cut.assert_same(lambda model: [model(values(2, length, HIDDEN)) for length in (3, 5)])


FACTORS = {5: 2.0, 7: 3.0, 9: -1.0}


class LooksUp(Block):
    """Its argument is a key of a table."""

    def forward(self, x: torch.Tensor, key: int) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x) * FACTORS[key]


class AsksTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([LooksUp()])

    def forward(self, x: torch.Tensor, keys: tuple[int, ...]) -> torch.Tensor:
        for key in keys:
            x = self.blocks[0](x, key)
        return x


def test_a_number_that_is_looked_up_has_a_program_of_its_own() -> None:
    cut = Cut(AsksTwice(), (leaf(2, 3, HIDDEN), (5,)))
    cut.assert_same(lambda model: [model(leaf(2, 3, HIDDEN), (5, 7, 9, 7))])
    assert cut.cut() == weights(1, *MLP)


class HandsOn(Block):
    """It reads a state that all blocks share, and writes its own part of it: the width of its inside."""

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        inner = self.up(x).relu() * (1 + state[:, None, :, self.index])
        state[:, :, self.index] = inner[:, -1]
        return x + self.down(inner)


class HandsDown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(HandsOn(i) for i in range(2))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for block in self.blocks:
            x = block(x, state)
        return x, state


@pytest.mark.parametrize("tp", [2, 5])
def test_a_state_that_blocks_are_given_and_write_into_is_whole(tp: int) -> None:
    """Each rank reads its part of it, and what it writes there is collected: the caller and all ranks see the same."""
    cut = Cut(HandsDown(), (values(2, 3, HIDDEN), values(2, INNER, 2, seed=1)), tp=tp)
    assert cut.cut() >= {"blocks.0.up.weight", "blocks.1.down.weight"}

    def twice(model: nn.Module) -> list[torch.Tensor]:
        state = values(2, INNER, 2, seed=1)
        with torch.no_grad():
            results = [model(values(2, 3, HIDDEN, seed=seed), state)[0] for seed in (2, 3)]
        return [*results, state]

    whole = twice(cut.model)
    for own in simulate(tp, lambda ranks: twice(apply_plan(copy.deepcopy(cut.model), cut.plan, ranks, cut.compilers))):
        for found, true in zip(own, whole, strict=True):
            torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-12)


class Rescaled(Stack):
    """Its own Python scales the weights of its blocks, or shifts them."""

    shifts = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for block in self.blocks:
                weight: torch.Tensor = block.down.weight  # type: ignore[assignment, union-attr]
                weight.add_(weight.mean()) if self.shifts else weight.div_(2)
        return super().forward(x)


def test_a_parameter_that_is_scaled_from_outside_is_cut() -> None:
    """Every slice of it is scaled alike; what else the model does with a parameter keeps that whole."""
    model, x = Rescaled(Block).double(), leaf(2, 3, HIDDEN)
    assert rows(autotp.plan(model, 2, example=(x,))) == INNER // 2
    autotp.verify(model, 2, example=(x,)).raise_for_failure()
    model.shifts = True
    assert rows(autotp.plan(model, 2, example=(x,))) == INNER


def test_a_long_text_is_planned_as_fast_as_a_short_one() -> None:
    """What is planned for is a graph of one scan, not one of as many steps as the example has."""
    from tests.families import MIXERS

    model = build_model(MIXERS["mamba"].config())
    found = survey(model, examples_for(model, None))
    (block,) = [
        traced for traced in found.traced.values() if "function.mamba_selective_scan" in operators(traced.graph)
    ]
    assert len(block.graph.nodes) < 80
    assert make_plan(model, found, 2).elements()[1] < 0.52 * make_plan(model, found, 2).elements()[0]


def operators(graph: torch.fx.Graph) -> set[str]:
    return {str(annotation(node).opaque) for node in graph.nodes if annotation(node).opaque is not None}
