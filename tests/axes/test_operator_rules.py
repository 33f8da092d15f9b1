"""Every operator rule is proved by arithmetic (see `prover` and `cases`), and no rule is without a proof."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.nn import functional
from torch.utils import _pytree as pytree

from autotp.axes.operators import CODE
from autotp.axes.rules import operator_rules
from tests.axes.cases import MODELS, OPERATORS, PARTS, Case, Subject, numbers
from tests.axes.prover import Proof, capture, check_claims, is_differentiable, prove, prove_partial

CASES = [*OPERATORS, *MODELS]
each_case = pytest.mark.parametrize("case", CASES, ids=str)

# Proved in `test_opaque_rules.py`, reading in `tests/capture`.
OPAQUE = {
    "opaque.update",
    "opaque.read",
    "opaque.attention",
    "opaque.attention_of_whole_groups",
    "opaque.update_conv_state",
    "opaque.update_recurrent_state",
    "opaque.set_linear_cache",
    "opaque.__setattr__",
    "opaque.__setitem__",
    "function.causal_conv1d_update",
    "function.mamba_selective_state_update",
    "function.mamba2_selective_state_update",
}


def test_every_rule_has_a_case() -> None:
    apart = {*OPAQUE, "getitem", "collect"}  # have tests of their own below
    without = sorted(operator_rules().keys() - {case.name for case in OPERATORS} - apart)
    assert not without, f"rules without a proof: {', '.join(without)}"


def test_every_case_is_of_a_rule() -> None:
    assert {case.name for case in OPERATORS} <= operator_rules().keys()
    assert operator_rules().keys() >= CODE.keys()


def test_every_row_is_an_operator() -> None:
    names = [name.removeprefix("aten.") for name in operator_rules() if name.startswith("aten.")]
    assert [name for name in names if not hasattr(torch.ops.aten, name)] == []


@pytest.mark.sample(200)
@each_case
def test_a_cut_operator_is_the_whole_one(case: Case, sweep: bool) -> None:
    for seed in range(4 if sweep else 1):
        assert_whole(case, case.subject(seed))


def assert_whole(case: Case, subject: Subject) -> None:
    proof = prove(subject.function, subject.operands, sums_together=case.joined)
    assert case in MODELS or case.name in proof.captured.operators
    for i, wanted in enumerate(subject.wanted):
        for ranks in (2, 3):
            assert_cuttable(
                proof, i, [[size for size in dim if case.padded or size % ranks == 0] for dim in wanted], ranks
            )


def assert_cuttable(proof: Proof, operand: int, wanted: list[list[int]], ranks: int) -> None:
    """Every axis that is wanted, by its size and in its dim, was proved."""
    for found, sizes in zip(proof.sizes(operand, ranks), wanted, strict=True):
        missing = Counter(sizes) - Counter(found)
        assert not missing, (
            f"operand {operand}, {ranks} ranks: {wanted} is not all in {found}; refused: {proof.refused}"
        )


@pytest.mark.sample(40)
@pytest.mark.parametrize("case", [case for case in CASES if "," in case.text and not case.joined], ids=str)
def test_whole_operands_meet_cut_ones(case: Case) -> None:
    subject = case.subject(2)
    for i in subject.free:
        proof = prove(subject.function, subject.operands, [2], inputs=[i])
        for other in set(range(len(subject.operands))) - {i}:
            assert_cuttable(proof, other, subject.wanted[other], 2)


@pytest.mark.sample(100)
@each_case
def test_partial_sums_pass_or_are_reduced(case: Case) -> None:
    subject = case.subject(2)
    groups = {frozenset([i]) for i in subject.free} | {frozenset(subject.free)}
    for group in groups:
        prove_partial(subject.function, subject.operands, group, [3])


@pytest.mark.sample(60)
@each_case
def test_padding_is_not_summed(case: Case) -> None:
    subject = case.subject(2)

    def total(*operands: torch.Tensor) -> list[torch.Tensor]:
        results = pytree.tree_leaves(subject.function(*operands))
        return [result.sum() for result in results if is_differentiable(result)]

    prove(total, subject.operands, [3], sums_together=case.joined)


@pytest.mark.sample(60)
@each_case
def test_padding_stays_finite(case: Case) -> None:
    """A number that is not finite would survive the zeros it is multiplied with, forward and backward."""
    subject, generator = case.subject(2), torch.Generator().manual_seed(0)
    count, results = len(subject.operands), pytree.tree_leaves(subject.function(*subject.operands))
    weighed = [i for i, result in enumerate(results) if is_differentiable(result)]
    weights = [torch.randn(results[i].shape, generator=generator, dtype=results[i].dtype) for i in weighed]

    def total(scale: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        operands = [value * scale if i in subject.free else value for i, value in enumerate(values[:count])]
        results = pytree.tree_leaves(subject.function(*operands))
        return [(results[i] * weight).sum() for i, weight in zip(weighed, values[count:], strict=True)]

    scale = torch.ones((), dtype=torch.float64)
    proof = prove(total, [scale, *subject.operands, *weights], [3], sums_together=case.joined)
    for i, wanted in enumerate(subject.wanted if weighed and case.padded else [], start=1):
        assert_cuttable(proof, i, wanted, 3)


@pytest.mark.sample(200)
@each_case
def test_claims_hold(case: Case) -> None:
    subject = case.subject(2)
    check_claims(capture(subject.function, subject.operands))


def test_items_of_several_results_are_proved_with_their_operator() -> None:
    names = {name for case in PARTS for name in capture(case.subject(0).function, case.subject(0).operands).operators}
    assert "getitem" in names


def test_what_is_collected_is_whole_behind_its_operator() -> None:
    def normalised(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, w).softmax(-1) @ v

    subject = Case("collect", "A I, o i, P c", normalised, sizes={"I": 4, "i": 4, "o": 5, "P": 5}).subject(0)
    proof = prove(normalised, subject.operands, inputs=[0], marked=[1])
    assert "collect" in proof.captured.operators
    for i, wanted in enumerate(subject.wanted):
        assert_cuttable(proof, i, wanted, 2)
        assert_cuttable(proof, i, wanted, 3)


@pytest.mark.parametrize("case", [case for case in MODELS if " S x," in case.text or " s x," in case.text], ids=str)
def test_one_program_serves_all_sizes_of_its_inputs(case: Case) -> None:
    subject = case.subject(0)
    x = subject.operands[0]
    larger = torch.cat([x, x.flip(0), x * 2])
    larger = torch.cat([larger, larger.flip(1)], 1)
    proof = prove(subject.function, subject.operands, inputs=[0], sizes=[larger, *subject.operands[1:]])
    for i, wanted in enumerate(subject.wanted[1:], start=1):
        assert_cuttable(proof, i, wanted, 2)
        assert_cuttable(proof, i, wanted, 3)


SEGMENTS = [
    Case("a whole segment", "a b, a c", lambda *x: torch.cat(x, -1)),
    Case("a segment of one", "a b, a 1", lambda *x: torch.cat(x, -1)),
    Case("halves that change places", "a [b b]", lambda x, *, b: torch.cat((-x[:, b:], x[:, :b]), -1)),
    Case("a segment written", "a [b c d], a c", lambda x, y, *, b, c: torch.ops.aten.slice_scatter(x, y, 1, b, b + c)),
    Case("segments summed", "a B, a C, (2 C) d", lambda x, y, w: torch.cat((x, y), -1) @ w, sizes={"B": 4, "C": 4}),
    Case("written in place", "a b, b", lambda x, y: (x * 2).copy_(y) * x),
    Case("a table that is a sum", "a, v w", functional.embedding, [numbers(2)]),
    Case(
        "a table that is a view",
        "a, (w V)",
        lambda i, x, *, w: functional.embedding(i, x.view(w, -1).t()),
        [numbers(2)],
    ),
]


@pytest.mark.parametrize("case", SEGMENTS, ids=str)
def test_parts_that_are_whole_beside_cut_ones(case: Case) -> None:
    subject = case.subject(0)
    proof = prove(subject.function, subject.operands)
    for i, wanted in enumerate(subject.wanted):
        assert_cuttable(proof, i, wanted, 2)
    for i in subject.free:
        prove(subject.function, subject.operands, [2], inputs=[i])
        prove_partial(subject.function, subject.operands, [i], [3])
