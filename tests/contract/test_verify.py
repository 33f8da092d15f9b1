"""`autotp.verify` makes three calls that the dense model can make, and says which of them differed."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import autotp
from autotp.errors import VerificationError
from autotp.runtime.results.tensor import CutResult
from tests.contract.parts import HIDDEN, INNER, Mlp, linear, twins, values

EXAMPLE = (values(2, 5, HIDDEN),)


def second_call(report: autotp.Report) -> str:
    return report.calls[1].name


def test_there_are_three_calls_with_collectives_of_their_own() -> None:
    report = autotp.verify(twins(Mlp), 2, example=EXAMPLE)
    assert report.ok
    names = [call.name for call in report.calls]
    assert names == ["call 1 (eval)", "call 2 (other inputs, training)", "call 3 (call 1 again)"]
    assert all(call.planned and call.exact and call.counts_agree for call in report.calls)
    assert report.differing() == ()


@pytest.mark.parametrize("wrong", [1, 2, 3])
def test_the_call_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    module = importlib.import_module("autotp.verify.verifier")
    apply_plan = module.apply_plan

    def applied(model: nn.Module, *rest: Any) -> nn.Module:
        parallel, calls = apply_plan(model, *rest), iter(range(1, 4))
        parallel.register_forward_hook(lambda own, args, result: result * 2 if next(calls) == wrong else None)
        return parallel

    monkeypatch.setattr(module, "apply_plan", applied)
    report = autotp.verify(twins(Mlp), 2, example=EXAMPLE)
    assert not report.exact
    assert report.differing() == (report.calls[wrong - 1].name,)
    assert {difference.call for difference in report.worst()} == set(report.differing())
    with pytest.raises(VerificationError, match=rf"differs by .* in call {wrong} \("):
        report.raise_for_failure()


class Drops(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(HIDDEN, 4, dropout=0.5, batch_first=True, dtype=torch.float64)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5 if self.training else 0.0)
        return self.attention(x, x, x)[0] + mixed.transpose(1, 2).flatten(2)

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        return functional.alpha_dropout(self.dropout(y.relu()), 0.2, self.training)

    def after(self, z: torch.Tensor) -> torch.Tensor:
        return functional.dropout(z, 0.3, training=self.training) * (2.0 if self.training else 1.0)


def test_dropout_drops_nothing() -> None:
    report = autotp.verify(twins(Drops), 2, example=EXAMPLE)
    report.raise_for_failure()
    assert second_call(report) == "call 2 (other inputs, training)"


class Noisy(Mlp):
    def after(self, z: torch.Tensor) -> torch.Tensor:
        return z + torch.randn_like(z) if self.training else z


class FailsInTraining(Mlp):
    def after(self, z: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise ValueError("only to be used, not to be trained")
        return z


@pytest.mark.parametrize("kind", [Noisy, FailsInTraining])
def test_a_model_that_cannot_be_compared_in_training_is_called_in_eval_mode(kind: type[Mlp]) -> None:
    report = autotp.verify(twins(kind), 2, example=EXAMPLE)
    report.raise_for_failure()
    assert second_call(report) == "call 2 (other inputs, eval)"


class Sorted(nn.Module):
    """Takes intervals whose ends are not before their starts."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths, self.inner = nn.Embedding(9, HIDDEN, dtype=torch.float64), twins(Mlp)

    def forward(self, intervals: torch.Tensor) -> torch.Tensor:
        return self.inner(self.lengths(intervals[..., 1] - intervals[..., 0]))


def test_other_inputs_are_ones_that_the_model_takes() -> None:
    report = autotp.verify(Sorted(), 2, example=(torch.tensor([[[0, 3], [1, 2]], [[2, 7], [1, 9]]]),))
    report.raise_for_failure()
    assert second_call(report) == "call 2 (more rows, training)"


class Normalised(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.batch = nn.BatchNorm1d(HIDDEN, dtype=torch.float64)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.batch(x.transpose(1, 2)).transpose(1, 2)


def test_buffers_that_a_call_changes_are_compared() -> None:
    report = autotp.verify(twins(Normalised), 2, example=EXAMPLE)
    report.raise_for_failure()
    changed = [difference.name for difference in report.calls[1].outputs]
    assert "buffer blocks.0.batch.running_mean" in changed
    assert [difference.name for difference in report.calls[0].outputs] == ["output 0"]


class Holds(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.factor = values(INNER, seed=index)

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        return y.relu() * self.factor


class Counts(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.calls = 0

    def middle(self, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return y.relu() * self.calls


class Averages(Mlp):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.register_buffer("ema", values(HIDDEN, seed=index))

    def after(self, z: torch.Tensor) -> torch.Tensor:
        self.ema = 0.5 * self.ema + 0.5 * z.detach().mean((0, 1))
        return z * self.ema


@pytest.mark.parametrize("kind", [Holds, Counts, Averages])
def test_state_of_a_block_is_verified(kind: type[Mlp]) -> None:
    autotp.verify(twins(kind), 2, example=EXAMPLE).raise_for_failure()


class Routed(Mlp):
    """Rows go to one of three experts each, which are called one by one, and without gradients in eval mode."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.gate, self.experts = linear(HIDDEN, 3), nn.ModuleList(Mlp() for _ in range(3))

    def after(self, z: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.training):
            rows = z.flatten(0, 1)
            chosen, found = self.gate(rows).argmax(-1), torch.zeros_like(rows)
            for i, expert in enumerate(self.experts):
                if len(own := (chosen == i).nonzero().squeeze(-1)):
                    found = found.index_add(0, own, expert(rows[own]))
        return z + found.view_as(z)


def test_sums_of_the_backward_are_those_of_the_calls_that_a_gradient_comes_back_to() -> None:
    report = autotp.verify(twins(Routed), 2, example=EXAMPLE)
    report.raise_for_failure()
    kind = "all_reduce backward activation"
    evaluated, trained, _ = (call.planned[kind] for call in report.calls)
    assert 0 < evaluated < trained


class Around(nn.Module):
    """Blocks, and before them linears that are cut and whose results the Python here puts together."""

    def __init__(self, how: Callable[[Around, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.how = how
        self.narrow, self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 48), nn.Linear(8, 48)
        self.table = nn.Parameter(torch.randn(1, 5, 48))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.how(self, x)
        for block in self.blocks:
            y = y + block(y)
        return y


def views(model: Around, x: torch.Tensor) -> torch.Tensor:
    y = model.one(x)
    return torch.cat([y[:, 3:], y[:, :3], y[:, 1:2]], dim=1)


HOWS = {
    "views": views,
    "a sum": lambda model, x: model.one(x) + model.other(x.cos()),
    "added where it is whole": lambda model, x: (y := model.one(x)) + y.softmax(-1),
    "a table": lambda model, x: model.one(x) + model.table[:, : x.shape[1]],
    "data and what has a gradient": lambda model, x: model.one(x) * model.other(model.narrow(x)).softmax(-1),
}


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("how", HOWS)
def test_what_the_python_outside_does_with_results_is_as_planned(how: str, tp: int) -> None:
    torch.manual_seed(0)
    report = autotp.verify(Around(HOWS[how]), tp, example=(values(2, 5, 8),))
    report.raise_for_failure()
    gathers = [report.planned["all_gather forward activation"], report.counted["all_gather forward activation"]]
    assert gathers == ([2, 1] if how == "a sum" else [report.planned["all_gather forward activation"]] * 2)


class Modulated(nn.Module):
    """A product of two columns, and a sum over them; what modulates it may come in several places, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.shift, self.down = (
            linear(*sizes) for sizes in ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN))
        )

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, by: Any = (), other: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = x if mask is None else x * mask
        y = self.up(x) if other is None else self.up(x) * other.mean()
        return x + self.down(sum((self.shift(each) for each in by), y).tanh())


class CalledOtherwise(nn.Module):
    """Equal blocks of which the first is given data, and less than the others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.embed = linear(HIDDEN, HIDDEN), linear(HIDDEN, HIDDEN)
        self.blocks = nn.ModuleList(Modulated() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = self.blocks
        by, mask = self.embed(x.cos()), torch.ones(x.shape[0], 1, 1, dtype=x.dtype)
        y = self.first(one(x, by=[by, by]).sin())
        return three(two(y, mask, by=[by, by]), by=[by, by], other=y)


def test_sums_are_counted_by_where_a_tensor_is_in_a_call() -> None:
    torch.manual_seed(0)
    autotp.verify(CalledOtherwise().double(), 2, example=(values(2, 5, HIDDEN),)).raise_for_failure()


class ByName(nn.Module):
    """One of two equal blocks is called by the name of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Mlp() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1].forward(self.blocks[0](x))


def test_calls_by_the_name_of_forward_are_counted() -> None:
    torch.manual_seed(0)
    autotp.verify(ByName().double(), 2, example=(values(2, 5, HIDDEN),)).raise_for_failure()


def test_more_gathers_than_planned_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more for every view."""
    monkeypatch.setattr(CutResult, "whole", lambda self: self.policy.gathered(self.local))
    report = autotp.verify(Around(views), 2, example=(values(2, 5, 8),))
    assert report.exact
    assert not report.counts_agree
    with pytest.raises(VerificationError, match=r"planned .* counted"):
        report.raise_for_failure()


NORMED: dict[str, Callable[[nn.Module], object]] = {
    "weight norm": nn.utils.weight_norm,
    "spectral norm": nn.utils.spectral_norm,
    "pruning": lambda module: prune.l1_unstructured(module, "weight", 0.5),
}


@pytest.mark.parametrize("way", NORMED)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weights_that_are_made_before_each_call_are_copied(way: str) -> None:
    """`copy.deepcopy` takes none that has a history."""
    model = twins(Mlp).double().train()
    for block in model.blocks:
        NORMED[way](block.get_submodule("up"))
    model(values(2, 5, HIDDEN)).sum().backward()
    autotp.verify(model, 2, example=(values(2, 5, HIDDEN),)).raise_for_failure()


@dataclasses.dataclass
class Kept:
    hidden: torch.Tensor


class GivesAnObject(Mlp):
    def forward(self, x: torch.Tensor) -> Kept:
        return Kept(super().forward(x))


class ReadsObjects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(GivesAnObject() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).hidden
        return x


class LossInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Mlp() for _ in range(2)), nn.Linear(HIDDEN, 99)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), torch.arange(len(x) * x.shape[1]))


@pytest.mark.parametrize("kind", [ReadsObjects, LossInside])
def test_results_in_objects_and_losses_are_counted(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    report = autotp.verify(kind().double(), 2, example=EXAMPLE)
    assert report.planned["all_reduce backward activation"]
    report.raise_for_failure()


class Scaled(nn.Module):
    """Multiplies cut results with parameters of its own, and calls a block once more without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Mlp() for _ in range(2)), nn.Linear(HIDDEN, 99)
        self.scale = nn.Parameter(values(99))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            with torch.no_grad():
                before = block(x)
            x = block(x) + before
        return self.head(x) * self.scale


@pytest.mark.parametrize("tp", [2, 3])
def test_what_the_python_around_blocks_adds_is_not_compared(tp: int) -> None:
    torch.manual_seed(0)
    autotp.verify(Scaled().double(), tp, example=EXAMPLE).raise_for_failure()
