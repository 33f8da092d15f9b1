"""Every operator rule is proved by arithmetic (see `prover` and `cases`), and no rule is without a proof."""

from __future__ import annotations

import pytest
import torch
from cases import OPERATORS, Case
from prover import capture, check_claims, is_differentiable, prove, prove_partial
from torch.utils import _pytree as pytree

each_case = pytest.mark.parametrize("case", OPERATORS, ids=str)


@each_case
@pytest.mark.parametrize("seed", [0, 1])
def test_a_cut_operator_is_the_whole_one(case: Case, seed: int) -> None:
    subject = case.subject(seed)
    proof = prove(subject.function, subject.operands, sums_together=case.joined)
    assert case.name in proof.captured.operators
    for ranks in (2, 3):
        for i, wanted in enumerate(subject.wanted):
            expected = [[size for size in dim if case.padded or size % ranks == 0] for dim in wanted]
            assert proof.sizes(i, ranks) == expected, f"operand {i} over {ranks} ranks; refused: {proof.refused}"


@each_case
def test_whole_operands_meet_cut_ones(case: Case) -> None:
    subject = case.subject(2)
    if len(subject.operands) > 1:
        for i in subject.free:
            prove(subject.function, subject.operands, [2], inputs=[i], sums_together=case.joined)


@each_case
def test_partial_sums_pass_or_are_reduced(case: Case) -> None:
    subject = case.subject(2)
    groups = {frozenset([i]) for i in subject.free} | {frozenset(subject.free)}
    for group in groups:
        prove_partial(subject.function, subject.operands, group, [3])


@each_case
def test_padding_is_not_summed(case: Case) -> None:
    subject = case.subject(2)

    def total(*operands: torch.Tensor) -> list[torch.Tensor]:
        results = pytree.tree_leaves(subject.function(*operands))
        return [result.sum() for result in results if is_differentiable(result)]

    prove(total, subject.operands, [3], sums_together=case.joined)


@each_case
def test_padding_stays_finite(case: Case) -> None:
    """A number that is not finite would survive the zeros it is multiplied with, forward and backward."""
    subject, generator = case.subject(2), torch.Generator().manual_seed(0)
    count, results = len(subject.operands), pytree.tree_leaves(subject.function(*subject.operands))
    weighed = [i for i, result in enumerate(results) if is_differentiable(result)]
    weights = [torch.randn(results[i].shape, generator=generator, dtype=results[i].dtype) for i in weighed]

    def total(scale: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        operands = [value * scale if i in subject.differentiable else value for i, value in enumerate(values[:count])]
        results = pytree.tree_leaves(subject.function(*operands))
        return [(results[i] * weight).sum() for i, weight in zip(weighed, values[count:], strict=True)]

    prove(total, [torch.ones((), dtype=torch.float64), *subject.operands, *weights], [3], sums_together=case.joined)


@each_case
def test_claims_hold(case: Case) -> None:
    subject = case.subject(2)
    check_claims(capture(subject.function, subject.operands))
