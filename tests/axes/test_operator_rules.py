"""Every operator rule is proved by arithmetic (see `prover` and `cases`), and no rule is without a proof."""

from __future__ import annotations

import pytest
import torch
from cases import OPERATORS, Case
from prover import capture, check_claims, prove, prove_partial
from torch.utils import _pytree as pytree

each_case = pytest.mark.parametrize("case", OPERATORS, ids=str)


@each_case
@pytest.mark.parametrize("seed", [0, 1])
def test_a_cut_operator_is_the_whole_one(case: Case, seed: int) -> None:
    subject = case.subject(seed)
    proof = prove(subject.function, subject.operands)
    assert case.name in proof.captured.operators
    for ranks in (2, 3):
        for i, wanted in enumerate(subject.wanted):
            expected = [[size for size in dim if case.padded or size % ranks == 0] for dim in wanted]
            assert proof.sizes(i, ranks) == expected, f"operand {i} over {ranks} ranks; refused: {proof.refused}"


@each_case
def test_whole_operands_meet_cut_ones(case: Case) -> None:
    subject = case.subject(2)
    if len(subject.operands) > 1:
        for i in subject.differentiable:
            prove(subject.function, subject.operands, [2], inputs=[i])


@each_case
def test_partial_sums_pass_or_are_reduced(case: Case) -> None:
    subject = case.subject(2)
    groups = {frozenset([i]) for i in subject.differentiable} | {frozenset(subject.differentiable)}
    for group in groups:
        prove_partial(subject.function, subject.operands, group, [3])


@each_case
def test_padding_is_not_summed(case: Case) -> None:
    subject = case.subject(2)

    def total(*operands: torch.Tensor) -> list[torch.Tensor]:
        results = pytree.tree_leaves(subject.function(*operands))
        return [result.sum() for result in results if result.is_floating_point() or result.is_complex()]

    prove(total, subject.operands, [3])


@each_case
def test_claims_hold(case: Case) -> None:
    subject = case.subject(2)
    check_claims(capture(subject.function, subject.operands))
