"""Traces: what they are valid for, what falls back, what writes in place, and Python objects that a block calls.

Every module here is run on simulated ranks as well, at several sizes, and compared with the whole one.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections import UserDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.dispatch.compiler import Compiler
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.arguments import rule_folders

pytestmark = pytest.mark.matrix

HIDDEN, INNER, HEADS = 16, 24, 4
EXACT = 1e-12


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    """An input that wants a gradient, as what a block is given does: the first block is called like the others then."""
    return values(*shape, seed=seed).requires_grad_()


class Block(nn.Module):
    """A residual MLP; the variants put something into it."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.inner(self.up(x)))

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu()


class Stack(nn.Module):
    def __init__(self, kind: Callable[[int], nn.Module], count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(i) for i in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Cut:
    """A model, its plan for some ranks, and the programs that its units needed."""

    def __init__(self, model: nn.Module, example: Any, tp: int = 2, rules: Sequence[str] = ()) -> None:
        torch.manual_seed(0)
        self.model, folders = model.double(), rule_folders(rules)
        found = survey(self.model, examples_for(self.model, example), folders)
        self.failures, self.traced = found.failures, found.traced
        self.plan: Plan = make_plan(self.model, found, tp)
        self.compilers: dict[Any, Compiler] = dict(make_compilers(self.plan, found, folders))

    def programs(self) -> int:
        return sum(len(programs) for compiler in self.compilers.values() for programs in compiler.programs.values())

    def cut(self) -> set[str]:
        """Full names of the parameters of which a rank holds a part."""
        return {
            f"{path}.{name}".lstrip(".")
            for unit in self.plan.units
            for path in unit.instances
            for name in unit.layouts()
        }

    def assert_same(self, run: Callable[[nn.Module], Iterable[torch.Tensor]]) -> None:
        """Running something gives the same tensors and gradients on every rank as on the whole model."""

        def both(model: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            results = list(run(model))
            sum(((r * values(*r.shape, seed=7)).sum() for r in results), start=torch.zeros(())).backward()
            return [r.detach() for r in results], []

        whole = copy.deepcopy(self.model)
        results, _ = both(whole)
        gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}

        def on_rank(ranks: Ranks) -> tuple[list[torch.Tensor], dict[str, Any]]:
            parallel = apply_plan(copy.deepcopy(self.model), self.plan, ranks, self.compilers)
            return both(parallel)[0], autotp.full_gradients(parallel)

        for own, own_gradients in simulate(self.plan.tp, on_rank):
            for found, true in zip(own, results, strict=True):
                torch.testing.assert_close(found, true, rtol=EXACT, atol=EXACT)
            for name, gradient in gradients.items():
                torch.testing.assert_close(own_gradients[name], gradient, rtol=EXACT, atol=EXACT)


def weights(count: int, *names: str) -> set[str]:
    return {f"blocks.{i}.{name}" for i in range(count) for name in names}


MLP = ("up.weight", "up.bias", "down.weight")
ATTENTION = (*(f"{name}.{kind}" for name in "qkv" for kind in ("weight", "bias")), "o.weight")


# -- one trace for many --------------------------------------------------------------------------------------------


def test_equal_blocks_and_sizes_share_one_program() -> None:
    cut = Cut(Stack(Block, 4), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(leaf(b, 3, HIDDEN)) for b in (2, 5, 3)])
    assert cut.cut() == weights(4, *MLP)
    assert cut.programs() == 1


def test_a_block_whose_input_wants_no_gradient_has_a_program_of_its_own() -> None:
    cut = Cut(Stack(Block, 4), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN))])
    assert cut.programs() == 2


def test_a_size_that_turns_out_to_vary_is_traced_once_more() -> None:
    cut = Cut(Stack(Block), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(leaf(2, s, HIDDEN)) for s in (3, 5, 9, 4)])
    assert cut.programs() == 2


class ScaledByPlace(Block):
    """Uses its index in arithmetic: the trace of one block is no trace of the other."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() / (self.index + 1)


class BranchesByPlace(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() if self.index % 2 == 0 else y.tanh()


@pytest.mark.parametrize("kind", [ScaledByPlace, BranchesByPlace])
def test_a_block_that_computes_with_its_place_is_traced_for_each_place(kind: Callable[[int], nn.Module]) -> None:
    cut = Cut(Stack(kind, 3), values(2, 3, HIDDEN))
    assert [traced.positions is None for traced in cut.traced.values()] == [False]
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN))])
    assert cut.cut() == weights(3, *MLP)
    assert cut.programs() == 3


def test_a_block_that_does_not_use_its_place_is_traced_once() -> None:
    cut = Cut(Stack(Block, 3), values(2, 3, HIDDEN))
    assert [traced.positions is None for traced in cut.traced.values()] == [True]


# -- guards --------------------------------------------------------------------------------------------------------


class BranchesByLength(Block):
    """A different function of short and of long sequences."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() if y.shape[1] > 4 else y.tanh() * 2


class PoolsFours(Block):
    """Adds to every place what four in a row have in common, of as many fours as there are, which may be none."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        fours = y.shape[1] // 4
        pooled = y[:, : 4 * fours].view(y.shape[0], fours, 4, y.shape[2]).exp().mean(2, keepdim=True)
        more = torch.zeros_like(y)
        more[:, : 4 * fours] = (pooled * pooled.neg().exp().expand(-1, -1, 4, -1)).reshape(
            y.shape[0], 4 * fours, y.shape[2]
        )
        return y.relu() + more


def test_sizes_that_may_be_none_are_traced_for_any() -> None:
    cut = Cut(Stack(PoolsFours), values(2, 13, HIDDEN))
    sizes = ((2, 13), (2, 9), (2, 8), (3, 12), (2, 17), (4, 14), (2, 3), (3, 2))
    cut.assert_same(lambda model: [model(leaf(batch, size, HIDDEN)) for batch, size in sizes])
    assert cut.cut() == weights(2, *MLP)
    # Of the example's size, of others, of those in which the part is all, and of those that have none.
    assert cut.programs() == 4


def test_a_call_that_breaks_a_guard_is_traced_anew() -> None:
    cut = Cut(Stack(BranchesByLength), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(values(2, s, HIDDEN)) for s in (3, 6, 4, 5, 2, 8)])
    assert cut.cut() == weights(2, *MLP)


class Crosses(nn.Module):
    """Attention to another sequence, whose heads are taken apart by the first one's batch: so both have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        batch, width = x.shape[0], HIDDEN // HEADS
        q, k, v = (
            y.transpose(0, 1).reshape(y.shape[1], batch * HEADS, width).transpose(0, 1)
            for y in (self.q(x), self.k(other), self.v(other))
        )
        found = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return x + self.o(found.transpose(0, 1).reshape(x.shape[1], batch, HIDDEN).transpose(0, 1))


def test_sizes_that_a_view_makes_equal_are_one() -> None:
    torch.manual_seed(0)
    model, sizes = Crosses().double(), ((2, 3, 5), (4, 6, 7), (3, 9, 2))
    calls = [(leaf(b, t, HIDDEN), leaf(b, s, HIDDEN, seed=1)) for b, t, s in sizes]
    found = survey(model, [(calls[0], {}), (calls[1], {})])
    plan = make_plan(model, found, 2)
    assert {name for unit in plan.units for name in unit.layouts()} == set(ATTENTION)
    compilers = dict(make_compilers(plan, found))
    true = [model(*call) for call in calls]
    for own in simulate(2, lambda ranks: [apply_plan(copy.deepcopy(model), plan, ranks, compilers)(*c) for c in calls]):
        for part, whole in zip(own, true, strict=True):
            torch.testing.assert_close(part, whole, rtol=EXACT, atol=EXACT)
    assert sum(len(programs) for compiler in compilers.values() for programs in compiler.programs.values()) == 1


class BranchesByMode(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() if self.training else y.tanh()


def test_training_and_evaluation_have_programs_of_their_own() -> None:
    cut = Cut(Stack(BranchesByMode).eval(), values(2, 3, HIDDEN))
    x = leaf(2, 3, HIDDEN)
    cut.assert_same(lambda model: [model.eval()(x), model.train()(x), model.eval()(x)])
    assert cut.programs() == 2


class WithOptional(Block):
    """An argument that may be absent, and a flag."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, twice: bool = False) -> torch.Tensor:
        y = self.up(x)
        y = (y if bias is None else y + bias).relu()
        return x + self.down(y + y if twice else y)


def test_every_kind_of_call_has_a_program_of_its_own() -> None:
    cut = Cut(WithOptional(), values(2, 3, HIDDEN))
    x, bias = values(2, 3, HIDDEN), values(INNER, seed=3)
    cut.assert_same(lambda model: [model(x), model(x, bias), model(x, twice=True), model(x, bias=bias, twice=True)])
    assert cut.programs() == 4


class Counts(Block):
    """It takes numbers, of which a later one is a constant, and the first two may come as a shape."""

    def forward(self, x: torch.Tensor, shape: tuple[int, int], first: int) -> torch.Tensor:
        places = torch.arange(first, first + shape[1], dtype=x.dtype)
        return super().forward(x) + places[:, None] * shape[0]


class Counting(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, x.shape[:-1], 0)
        return x


def test_numbers_of_a_call_arrive_in_their_order() -> None:
    cut = Cut(Counting(Counts), values(2, 3, HIDDEN))
    assert cut.cut() == weights(2, *MLP)
    cut.assert_same(lambda model: [model(values(n, n + 1, HIDDEN)) for n in (2, 3, 5)])


# -- fallback ------------------------------------------------------------------------------------------------------


class BranchesByValue(Block):
    """Its Python looks at a number of a tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum().item() > 0 else -x)


def planned(model: nn.Module) -> Plan:
    return make_plan(model, survey(model, examples_for(model, torch.empty(2, 3, HIDDEN))), 2)


def test_the_parts_of_a_block_that_looks_at_a_value_are_cut() -> None:
    cut = Cut(Stack(BranchesByValue), values(2, 3, HIDDEN))
    assert cut.cut() == weights(2, "up.weight", "up.bias")
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN)), model(-values(2, 3, HIDDEN))])
    without_weights = [unit.layouts() for unit in planned(Stack(BranchesByValue).to("meta")).units]
    assert without_weights == [unit.layouts() for unit in planned(Stack(BranchesByValue)).units] != []


class Choosing(Stack):
    """Its outer Python goes one of two ways, as the data say; one of them may read a weight by itself."""

    def __init__(self, reads: bool) -> None:
        super().__init__(Block, 3)
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.blocks
        if x.sum().item() > 0:
            return first(second(x))
        return third(x) + (second.up.weight.sum() if self.reads else 0)


@pytest.mark.parametrize("reads", [False, True])
def test_both_ways_of_a_condition_on_data_are_looked_at_without_weights(reads: bool) -> None:
    (unit,) = planned(Choosing(reads).to("meta")).units
    assert unit.instances == ("blocks.0", "blocks.1", "blocks.2")
    assert unit.layouts().keys() == (set() if reads else {"up.weight", "up.bias", "down.weight"})
    (up,) = [parameter for parameter in unit.parameters if parameter.name == "up.weight"]
    assert ("outside of its module" in up.reason) == reads


class SizedByValue(Block):
    """Its Python makes as many rows as a tensor says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.repeat(1, int(x.sum().item()), 1))


def test_a_size_that_a_value_says_leaves_all_whole_without_weights_and_the_plan_says_why() -> None:
    model = Stack(SizedByValue).to("meta")
    plan = planned(model)
    assert not any(unit.layouts() for unit in plan.units)
    reasons = {parameter.name: parameter.reason for parameter in plan.outside}
    assert reasons.keys() == {name for name, _ in model.named_parameters()}
    assert all("cannot run on fake tensors: GuardOnDataDependentSymNode" in reason for reason in reasons.values())


class Rows(nn.Module):
    """A table of which a call reads the first rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, HIDDEN))

    def forward(self, count: int) -> torch.Tensor:
        return self.weight[:count] * 1


class TwoLengths(Stack):
    """Calls two equal modules with numbers alone."""

    def __init__(self) -> None:
        super().__init__(Block)
        self.first, self.second = Rows(), Rows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.first(x.shape[1]))[:, :2] + self.second(2)


def test_calls_that_differ_in_a_number_have_results_of_their_own() -> None:
    plan = planned(TwoLengths().to("meta"))
    assert plan.units[0].layouts().keys() == {"up.weight", "up.bias", "down.weight"}


def test_the_blocks_beside_it_are_cut_all_the_same() -> None:
    model = Stack(Block)
    model.blocks[0] = BranchesByValue()
    cut = Cut(model, values(2, 3, HIDDEN))
    assert cut.cut() == {f"blocks.1.{name}" for name in MLP} | {"blocks.0.up.weight", "blocks.0.up.bias"}
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN)), model(-values(2, 3, HIDDEN))])


class Guarded(nn.Module):
    """A block whose own Python runs, around an MLP that `part` makes look at a value."""

    def __init__(self, index: int = 0, part: Callable[[int], nn.Module] = BranchesByValue) -> None:
        super().__init__()
        self.index, self.plain, self.part = index, Block(index), part(index)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.part(self.plain(x))


def test_a_block_that_looks_at_a_value_in_a_part_falls_to_its_parts() -> None:
    cut = Cut(Stack(Guarded), values(2, 3, HIDDEN))
    assert cut.cut() == weights(2, *(f"plain.{name}" for name in MLP), "part.up.weight", "part.up.bias")
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN)), model(-values(2, 3, HIDDEN))])


class Counted:
    """Something that a block marks."""

    def __init__(self) -> None:
        self.count, self.by = 0, dict[str, str]()


class Box:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


class Boxes(nn.Module):
    """What it returns is an object of its own, so it cannot be traced; the MLP inside of it can."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.mlp, self.gate = index, Block(index), nn.Parameter(torch.randn(HIDDEN, HIDDEN) / 4)

    def forward(self, x: torch.Tensor) -> Box:
        return Box(self.mlp(x @ self.gate))


class Boxing(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).value
        return x


class MarksItsArgument(nn.Module):
    """It changes an argument, and reads what it changed."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.mlp = index, Block(index)

    def forward(self, x: torch.Tensor, marked: Counted) -> torch.Tensor:
        marked.count += 1
        marked.by["last"] = "mlp"
        return self.mlp(x) * marked.count


class Marking(Stack):
    def forward(self, x: torch.Tensor, marked: Counted | None = None) -> torch.Tensor:
        marked = marked or Counted()
        for block in self.blocks:
            x = block(x, marked)
        return x


def test_a_block_that_cannot_be_traced_falls_to_its_children() -> None:
    cut = Cut(Boxing(Boxes), values(2, 3, HIDDEN))
    assert cut.failures.keys() == {"blocks.0", "blocks.1"}
    assert cut.cut() == weights(2, *(f"mlp.{name}" for name in MLP))
    reason = "it returns a Box, which is neither a tensor nor an argument"
    outside = {parameter.name: parameter.reason for parameter in cut.plan.outside}
    assert outside == {"blocks.0.gate": reason, "blocks.1.gate": reason}
    cut.assert_same(lambda model: [model(values(2, n, HIDDEN)) for n in (3, 5)])


def test_a_block_may_change_an_argument_and_read_what_it_changed() -> None:
    cut = Cut(Marking(MarksItsArgument), (values(2, 3, HIDDEN), Counted()))
    assert not cut.failures

    def run(model: nn.Module) -> list[torch.Tensor]:
        marked = Counted()
        results = [model(values(2, n, HIDDEN, seed=n), marked) for n in (3, 5, 4)]
        assert (marked.count, marked.by) == (6, {"last": "mlp"})
        return results

    cut.assert_same(run)


class OuterReadsAValue(Stack):
    """The Python around the blocks looks at a value: no call of a block can be recorded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum().item() > 0 else -x)


def test_a_model_whose_outer_python_needs_values_is_recorded_with_them() -> None:
    cut = Cut(OuterReadsAValue(Block), values(2, 3, HIDDEN))
    assert cut.cut() == weights(2, *MLP)
    cut.assert_same(lambda model: [model(values(2, 3, HIDDEN)), model(-values(2, 3, HIDDEN))])


class FailsOutside(Stack):
    """The Python around the blocks fails for the example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            raise ValueError("not such ones")
        return super().forward(x)


def test_a_model_that_fails_for_the_example_stays_whole_and_right() -> None:
    cut = Cut(FailsOutside(Block), values(2, 3, HIDDEN).abs())
    assert not cut.cut()
    assert {parameter.name for parameter in cut.plan.outside} == {name for name, _ in cut.model.named_parameters()}
    assert all("fake tensors" in parameter.reason for parameter in cut.plan.outside)
    cut.assert_same(lambda model: [model(-values(2, 3, HIDDEN).abs())])


class NeverCalled(Stack):
    def __init__(self) -> None:
        super().__init__(Block)
        self.spare = nn.Linear(HIDDEN, HIDDEN)


def test_what_the_example_never_calls_stays_whole_and_the_plan_says_so() -> None:
    cut = Cut(NeverCalled(), values(2, 3, HIDDEN))
    outside = {parameter.name: parameter.reason for parameter in cut.plan.outside}
    assert outside == dict.fromkeys(("spare.weight", "spare.bias"), "the example inputs never call it")
    assert cut.cut() == weights(2, *MLP)


# -- writing in place ----------------------------------------------------------------------------------------------


class AddsInPlace(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        z = y * 3
        z += y.tanh()
        z.mul_(2)
        return z


class AddsToTheResidual(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.up(x).relu())
        y += x
        return y


class WritesASlice(Block):
    """Some positions of the sequence are replaced."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        z = torch.zeros_like(y)
        z[:, :2] = y[:, 1:3]
        return z + y


class CopiesIntoASlice(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        z[:, 1:].copy_(y[:, :-1].relu())
        return z


class WritesHalfOfTheWidth(Block):
    """The slice is of the dimension that would be cut."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        z = y.clone()
        z[..., : INNER // 2] = y[..., INNER // 2 :].relu()
        return z


class WritesThroughAView(Block):
    """What is written is read through another view made before."""

    def inner(self, y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        heads = z.view(*z.shape[:-1], HEADS, -1)
        z.mul_(3)
        return heads.flatten(-2) + z


class WritesASum(Block):
    """What is written through a view of it is a sum over all ranks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.down(self.up(x.tanh()).relu()) * 1
        heads = z.view(*z.shape[:-1], HEADS, -1)
        z.mul_(3)
        return (heads.flatten(-2) + z).tanh()


class WritesWhatIsReadAgain(nn.Module):
    """What is written is the input of another chain."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.norm, self.one, self.other = index, nn.LayerNorm(HIDDEN), Block(), Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.one.down(self.one.up(self.norm(x)).relu()) * 1
        heads = z.view(*z.shape[:-1], HEADS, -1)
        z.mul_(3)
        return self.norm(self.other(z)) + heads.flatten(-2)


class FillsAMask(Block):
    def inner(self, y: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(y.shape[1], y.shape[1], dtype=y.dtype).tril_()
        mask[:, :1] = 0.5
        return torch.einsum("st,bti->bsi", mask, y.relu())


IN_PLACE = [
    AddsInPlace, AddsToTheResidual, WritesASlice, CopiesIntoASlice, WritesHalfOfTheWidth, WritesThroughAView, WritesASum,
    WritesWhatIsReadAgain, FillsAMask,
]  # fmt: skip


@pytest.mark.parametrize("kind", IN_PLACE)
def test_what_writes_in_place_gives_the_same_numbers(kind: Callable[[int], nn.Module]) -> None:
    cut = Cut(Stack(kind), values(2, 4, HIDDEN))
    cut.assert_same(lambda model: [model(values(2, 4, HIDDEN)), model(values(3, 4, HIDDEN, seed=1))])


@pytest.mark.parametrize("kind", [AddsInPlace, AddsToTheResidual, WritesASlice, CopiesIntoASlice, FillsAMask])
def test_what_writes_in_place_can_be_cut_where_nobody_sees_the_write(kind: Callable[[int], nn.Module]) -> None:
    assert Cut(Stack(kind), values(2, 4, HIDDEN)).cut() == weights(2, *MLP)


class WritesItsInput(Block):
    """The caller sees this write."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[:, :1] = 0
        return x + self.down(self.up(x).relu())


class ReadsItAfterwards(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        return self.blocks[0](x) + x


def test_a_write_into_an_argument_reaches_the_caller() -> None:
    cut = Cut(ReadsItAfterwards(WritesItsInput, 1), values(2, 4, HIDDEN))
    with torch.no_grad():
        x = values(2, 4, HIDDEN)
        true = copy.deepcopy(cut.model)(x)

        def run(ranks: Ranks) -> torch.Tensor:
            return apply_plan(copy.deepcopy(cut.model), cut.plan, ranks, cut.compilers)(x)

        for found in simulate(2, run):
            torch.testing.assert_close(found, true, rtol=EXACT, atol=EXACT)


# -- objects -------------------------------------------------------------------------------------------------------


class Store:
    """Keeps keys and values of all calls so far."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None
        self.notes: dict[str, bool] = {}
        self.calls = 0

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 2)
        self.values = values if self.values is None else torch.cat([self.values, values], 2)
        self.calls += 1
        return self.keys, self.values

    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]


class Attention(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index, self.norm = index, nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = store.update(k, v)
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention(i) for i in range(2))

    def forward(self, x: torch.Tensor, stores: list[Store]) -> torch.Tensor:
        for block, store in zip(self.blocks, stores, strict=True):
            x = block(x, store)
        return x


def steps(model: nn.Module) -> tuple[list[torch.Tensor], list[Store]]:
    stores = [Store(), Store()]
    return [model(values(2, n, HIDDEN, seed=n), stores) for n in (5, 1, 1, 3)], stores


def test_a_method_of_an_object_runs_for_real_on_what_the_rank_holds() -> None:
    cut = Cut(Decoder(), (values(2, 3, HIDDEN), [Store(), Store()]))
    assert cut.cut() == weights(2, *ATTENTION)
    cut.assert_same(lambda model: steps(model)[0])

    def held(ranks: Ranks) -> list[torch.Tensor]:
        parallel = apply_plan(copy.deepcopy(cut.model), cut.plan, ranks, cut.compilers)
        return [store.keys for store in steps(parallel)[1] if store.keys is not None]

    whole = [store.keys for store in steps(copy.deepcopy(cut.model))[1]]
    for ranks in zip(*simulate(2, held), whole, strict=True):
        *parts, true = ranks
        assert all(part.shape == (2, HEADS // 2, 10, HIDDEN // HEADS) for part in parts)
        torch.testing.assert_close(torch.cat(parts, 1), true, rtol=EXACT, atol=EXACT)


def test_planning_leaves_the_example_s_objects_as_they_were() -> None:
    stores = [Store(), Store()]
    keys, own = values(2, HEADS, 4, HIDDEN // HEADS), values(2, HEADS, 4, HIDDEN // HEADS, seed=1)
    stores[0].update(keys, own)
    stores[1].update(own, keys)
    autotp.plan(Decoder().double(), 2, example=((values(2, 3, HIDDEN), stores), {}))
    assert stores[0].keys is keys
    assert stores[0].values is own
    assert stores[1].keys is own


def test_verifying_gives_every_rank_objects_of_its_own() -> None:
    report = autotp.verify(Decoder(), 4, example=(values(2, 3, HIDDEN), [Store(), Store()]))
    report.raise_for_failure()
    assert report.counted["all_reduce forward activation"] == 2


class BranchesByStore(Attention):
    """Reads a number from the object: the program holds while it stays the same."""

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        return super().forward(x if store.length() == 0 else -x, store)


class BranchingDecoder(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(BranchesByStore(i) for i in range(2))


def test_what_a_block_reads_from_an_object_is_a_guard() -> None:
    cut = Cut(BranchingDecoder(), (values(2, 3, HIDDEN), [Store(), Store()]))
    cut.assert_same(lambda model: steps(model)[0])
    assert cut.cut()


def assert_same_steps(kind: Callable[[int], nn.Module], lengths: tuple[int, ...]) -> Cut:
    """Steps with objects that keep their state, without gradients, are the whole model's."""
    model = Decoder()
    model.blocks = nn.ModuleList(kind(i) for i in range(2))
    cut = Cut(model, (values(2, 3, HIDDEN), [Store(), Store()]))

    @torch.no_grad()
    def run(model: nn.Module) -> list[torch.Tensor]:
        stores = [Store(), Store()]
        return [model(values(2, n, HIDDEN, seed=i), stores) for i, n in enumerate(lengths)]

    expected = run(copy.deepcopy(cut.model))
    for found in simulate(2, lambda ranks: run(apply_plan(copy.deepcopy(cut.model), cut.plan, ranks, cut.compilers))):
        for mine, true in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, true, rtol=EXACT, atol=EXACT)
    assert "blocks.0.q.weight" in cut.cut()
    return cut


def test_a_first_step_of_one_position_looks_like_later_ones() -> None:
    cut = assert_same_steps(Attention, (1, 1, 1, 2))
    assert cut.programs() == 2


class FillsOnce(Attention):
    """Keys and values of the first call are read again later, and an item says that they are there."""

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if store.notes.get("filled"):
            k, v = store.keys, store.values
        else:
            k, v = store.update(k, v)
            store.notes["filled"] = True
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def test_a_block_may_set_items_in_an_object_and_read_its_tensors() -> None:
    cut = assert_same_steps(FillsOnce, (5, 5, 3, 5))
    assert 2 <= cut.programs() <= 3


class Kept(UserDict[str, tuple[torch.Tensor, ...]]):
    """What blocks keep for later ones."""


class KeepsOrReads(nn.Module):
    """Two query heads share a key and a value; those of the first block serve the second one too."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.norm, self.q, self.o = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.k = self.v = None
        if index == 0:
            self.k, self.v = nn.Linear(HIDDEN, HIDDEN // 2), nn.Linear(HIDDEN, HIDDEN // 2)

    def forward(self, x: torch.Tensor, kept: Kept) -> torch.Tensor:
        y, width = self.norm(x), HIDDEN // HEADS
        q = self.q(y).unflatten(-1, (HEADS, width)).transpose(1, 2)
        if self.k is not None and self.v is not None:
            k, v = (part(y).unflatten(-1, (-1, width)).transpose(1, 2) for part in (self.k, self.v))
            kept["both"] = k, v
        else:
            k, v = kept["both"]
        return x + self.o(functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(KeepsOrReads(i) for i in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = Kept()
        for block in self.blocks:
            x = block(x, kept)
        return x


@pytest.mark.parametrize("tp", [2, 4])
def test_what_one_block_keeps_and_another_reads_has_the_gradient_of_both(tp: int) -> None:
    report = autotp.verify(Sharing(), tp, example=values(2, 3, HIDDEN))
    assert report.elements[1] < 0.6 * report.elements[0]
    report.raise_for_failure()


class CountsAfterwards(Attention):
    """Reads a number that its own call has changed."""

    def forward(self, x: torch.Tensor, store: Store) -> torch.Tensor:
        return super().forward(x, store) * store.calls


def test_what_a_block_reads_after_its_own_change_holds_for_that_call_only() -> None:
    assert_same_steps(CountsAfterwards, (2, 2, 2, 2))


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_a_tensor_that_is_read_may_want_a_gradient(tp: int) -> None:
    """Each of its numbers is on one rank, so that its gradient there is no part of a sum."""
    model = Decoder()
    model.blocks = nn.ModuleList(FillsOnce(i) for i in range(2))
    cut = Cut(model, (values(2, 3, HIDDEN), [Store(), Store()]), tp)

    def thrice(own: nn.Module) -> list[torch.Tensor]:
        stores = [Store(), Store()]
        return [own(values(2, 3, HIDDEN, seed=seed), stores) for seed in range(3)]

    cut.assert_same(thrice)


def test_what_fails_while_capturing_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cat([x, x[:, :, :1]], 0))

    logger = "torch._subclasses.fake_tensor"
    plan = planned(Stack(Broken).to("meta"))
    assert any("cannot run on fake tensors: RuntimeError" in parameter.reason for parameter in plan.outside)
    assert not [record for record in caplog.records if record.name == logger]
    logging.getLogger(logger).error("a failure elsewhere")
    assert [record.message for record in caplog.records if record.name == logger] == ["a failure elsewhere"]


# -- what code says of its own object --------------------------------------------------------------------------------


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a library does that gives arguments new names, and says whose they are."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        assert f"{args[0].__class__.__name__}.{function.__name__}" == "Named.forward"
        return function(*args, **kwargs)

    return wrapper


class Named(Block):
    forward = named(Block.forward)


def test_a_block_whose_class_is_named_is_cut() -> None:
    cut = Cut(Stack(Named), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(leaf(b, 3, HIDDEN)) for b in (2, 5)])
    assert cut.cut() == weights(2, *MLP)
    assert not cut.failures


class WithBuffer(Block):
    """Reads a buffer, and has a parameter that was frozen: nothing here asks which parameters want gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("scale", torch.full((HIDDEN,), 0.5, dtype=torch.float64))
        self.up.bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def test_a_block_that_reads_a_buffer_and_has_frozen_parameters_is_cut() -> None:
    cut = Cut(Stack(WithBuffer), values(2, 3, HIDDEN))
    cut.assert_same(lambda model: [model(leaf(b, 3, HIDDEN)) for b in (2, 5)])
    assert cut.cut() == weights(2, *MLP)
    assert not cut.failures


# -- inputs with gaps ------------------------------------------------------------------------------------------------


class Flattening(Block):
    """Gives a view of its input where that lies in memory so that there is one."""

    def forward(self, x: torch.Tensor) -> Any:
        flat = x.reshape(-1, HIDDEN)
        return x + self.down(self.inner(self.up(flat))).view(x.shape), flat


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(values(2, 6, HIDDEN)[:, ::2], id="every second"),
        pytest.param(values(2, 6, 2 * HIDDEN)[..., :HIDDEN], id="first half"),
        pytest.param(values(2, 1, HIDDEN).expand(2, 6, HIDDEN), id="repeated"),
    ],
)
def test_slices_of_tensors_have_programs(given: torch.Tensor) -> None:
    dense = given.contiguous()
    cut = Cut(Flattening(), dense, tp=3)

    def calls(model: nn.Module) -> Iterable[torch.Tensor]:
        for x in (dense, given, given + 1.0, given):
            y, flat = model(x)
            yield from (y, flat, torch.tensor([float(flat._is_view())]))

    cut.assert_same(calls)
    assert cut.programs() == 2  # for what has no gaps, and for what lies as the given
