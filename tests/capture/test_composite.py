"""Operators without a rule are traced as the operators that they are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.capture.composite import composites
from autotp.dispatch.apply import apply_plan
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.pipeline import Session
from tests.axes.cases import Case, numbers, positive
from tests.axes.prover import capture, prove
from tests.axes.test_operator_rules import assert_cuttable

# By the operator that is called, and must not be in the graph.
CASES = [
    Case("swapaxes", "a b c", lambda x: x.swapaxes(0, 2)),
    Case("swapdims", "a b c", lambda x: x.swapdims(0, 1)),
    Case("movedim", "a b c", lambda x: x.movedim(0, -1)),
    Case("moveaxis", "a b c", lambda x: torch.moveaxis(x, (0, 1), (2, 0))),
    Case("adjoint", "a b c", lambda x: x.adjoint()),
    Case("mH", "a b c", lambda x: x.mH * 2),
    Case("narrow", "a [b c]", lambda x, *, b, c: x.narrow(1, b, c)),
    Case("ravel", "a b", lambda x: x.t().ravel()),
    Case("fliplr", "a B", lambda x: x.fliplr()),
    Case("hstack", "a b, a c", lambda x, y: torch.hstack([x, y])),
    Case("vstack", "a b, c b", lambda x, y: torch.vstack([x, y])),
    Case("dstack", "a b c, a b d", lambda x, y: torch.dstack([x, y])),
    Case("column_stack", "a, a", lambda x, y: torch.column_stack([x, y])),
    Case("hsplit", "a [b c]", lambda x, *, b: x.hsplit([b])),
    Case("vsplit", "[a a] b", lambda x: x.vsplit(2)),
    Case("dsplit", "a b [c c]", lambda x: x.dsplit(2)),
    Case("unsafe_chunk", "a [b b]", lambda x: x.unsafe_chunk(2, 1)),
    Case("atleast_3d", "a b", lambda x: torch.atleast_3d(x)),
    Case("broadcast_tensors", "a b, b", lambda x, y: torch.broadcast_tensors(x, y)),
    Case("tensordot", "a b c, c d", lambda x, y: torch.tensordot(x, y, 1)),
    Case("tensordot", "a b c, b d", lambda x, y: torch.tensordot(x, y, ([1], [0]))),
    Case("inner", "a b, c b", torch.inner),
    Case("kron", "a b, c d", torch.kron),
    Case("absolute", "a b", lambda x: x.absolute()),
    Case("negative", "a b", lambda x: x.negative()),
    Case("subtract", "a b, a b", torch.subtract),
    Case("subtract_", "a b, a b", lambda x, y: x.mul(2).subtract_(y)),
    Case("fix", "a b", lambda x: x.fix()),
    Case("clip", "a b", lambda x: x.clip(-1, 1)),
    Case("arctan", "a b", lambda x: x.arctan()),
    Case("float_power", "a b", lambda x: x.float_power(2), [positive]),
    Case("special_expit", "a b", torch.special.expit),
    Case("diff", "a B", lambda x: x.diff()),
    Case("take_along_dim", "a B, a C", lambda x, i: torch.take_along_dim(x, i, 1), [positive, numbers(2)]),
    Case("cosine_similarity", "a B, a B", functional.cosine_similarity),
    Case("pairwise_distance", "a B, a B", functional.pairwise_distance),
    Case("nanmean", "a B", lambda x: x.nanmean(1)),
    Case("linalg_norm", "a B", lambda x: torch.linalg.norm(x, dim=1)),
    Case("lstm_cell", "a B, a C, a C, (4 C) B, (4 C) C", lambda x, h, c, w, u: torch.lstm_cell(x, (h, c), w, u)[0]),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cut_operator_is_the_whole_one(case: Case) -> None:
    subject = case.subject(0)
    proof = prove(subject.function, subject.operands)
    assert f"aten.{case.name}" not in proof.captured.operators
    for i, wanted in enumerate(subject.wanted):
        for ranks in (2, 3):
            divided = [[size for size in dim if size % ranks == 0] for dim in wanted]
            assert_cuttable(proof, i, divided, ranks)


class Between(nn.Module):
    """Two linears with something between them."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16).double(), nn.Linear(16, 8).double()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.between(self.a(x)))

    def between(self, y: torch.Tensor) -> torch.Tensor:
        return self.function(y)


WRITES = {
    "a part": lambda y, state: y.narrow(1, 0, 2).add_(1),
    "dims in another order": lambda y, state: y.movedim(1, 0)[3].mul_(2),
    "all": lambda y, state: y.subtract_(0.3),
    "one dim": lambda y, state: y.ravel()[5:9].zero_(),
    "state": lambda y, state: state.narrow(0, 0, 1).multiply_(1.5),
}


class Writing(Between):
    """Writes into what it has computed, or into its own state."""

    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
        super().__init__(torch.tanh)
        self.write = write
        self.register_buffer("state", torch.full([1], 1.5).double())

    def between(self, y: torch.Tensor) -> torch.Tensor:
        y = y * 1
        self.write(y, self.state)
        return super().between(y * self.state)


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_through_one_is_written(what: str, tp: int) -> None:
    report = autotp.verify(Writing(WRITES[what]), tp=tp, example=(torch.randn(3, 8),))
    assert report.exact, str(report)


LYING = {
    "ravel": lambda x: x.ravel().view(x.shape),
    "movedim": lambda x: x.movedim(2, 0).movedim(0, 2),
    "tensordot": lambda x: torch.tensordot(x, torch.ones(8, 8).double(), 1),
    "dsplit": lambda x: torch.cat(x.dsplit(2), 2),
}


@pytest.mark.parametrize("what", LYING)
def test_an_input_may_lie_otherwise_than_in_the_trace(what: str) -> None:
    class First(Between):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(self.function(x))

        def between(self, y: torch.Tensor) -> torch.Tensor:
            return y.tanh()

    model, x = First(LYING[what]), torch.randn(3, 5, 8).double()
    session = Session(model, example=(x,))
    plan = session.plan(2)
    compilers = session.compilers(plan)
    calls = [x, x.transpose(0, 1).contiguous().transpose(0, 1), x[:1].expand(3, 5, 8), x.repeat(1, 1, 2)[:, :, ::2]]

    def run(ranks: Ranks) -> list[torch.Tensor]:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        return [parallel(call) for call in calls]

    for results in simulate(2, run):
        for result, call in zip(results, calls, strict=True):
            torch.testing.assert_close(result, model(call), rtol=0, atol=1e-12)


def test_under_autocast_what_it_computes_in_another_type_stays_one_operator() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vecdot(x.swapaxes(0, 1), x.swapaxes(0, 1))

    operands = [torch.randn(3, 4, dtype=torch.float64)]
    assert not capture(function, operands).operators & {"aten.linalg_vecdot", "aten.swapaxes"}
    with torch.autocast("cpu"):
        assert capture(function, operands).operators & {"aten.linalg_vecdot", "aten.swapaxes"} == {"aten.linalg_vecdot"}


def test_under_autocast_a_cut_model_is_the_whole_one() -> None:
    model = Between(lambda y: y * functional.cosine_similarity(y, y.tanh(), dim=1).unsqueeze(1)).float()
    with torch.autocast("cpu"):
        report = autotp.verify(model, tp=2, example=(torch.randn(3, 8),))
    assert report.ok, str(report)


def test_what_draws_stays_one_operator() -> None:
    apart = {operator._schema.name.removeprefix("aten::") for operator in composites()}
    assert not apart & {"rrelu", "feature_dropout", "rand", "type_as", "embedding_bag", "data"}


def test_a_rule_of_the_user_s_own_is_for_the_operator(tmp_path: Any) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "own.toml").write_text('[aten.pointwise]\nzero_to_zero = ["absolute"]\n', encoding="utf-8")
    assert torch.ops.aten.absolute.default in composites()
    assert torch.ops.aten.absolute.default not in composites((tmp_path,))
