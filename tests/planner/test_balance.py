"""What whole experts cost: the busiest rank's rows beyond an even share, and what a rank computes of them on average."""

from __future__ import annotations

import math

import pytest
import torch

from autotp.huggingface.examples import examples_for
from autotp.planner.assemble import unit_plan
from autotp.planner.balance import waiting
from autotp.planner.choose import choose
from autotp.planner.cost import DEFAULT_HARDWARE, Workload, hardware
from autotp.planner.counter import Counter
from autotp.planner.extend import imposed_choice
from autotp.planner.settings import apply_settings
from autotp.planner.survey import survey
from autotp.planner.weigh import Weigher
from tests.chains.test_match import HIDDEN, Experts
from tests.placement.test_routed import INNER, NUMBERS, ROWS, WIDTH, Only

RANKS, TOKENS, WIDE = 4, 100, 24
NODE = hardware(DEFAULT_HARDWARE)


def numbers_of(module: torch.nn.Module, *inputs: torch.Tensor, rule: str) -> tuple[float, float]:
    """Operations of the products with stacks on a rank in one forward, and the seconds that the others wait for it."""
    found = survey(module, examples_for(module, inputs))
    (problem,) = apply_settings(module, found, {"*": rule}).problems.values()
    weigher = Weigher(problem.graph, NODE, Workload())
    placement = choose(problem, RANKS, weigher).placement
    counter = Counter(placement, weigher)
    products = [node for node in counter.nodes if "grouped_mm" in node.name or "matmul" in node.name]
    assert len(products) == 2
    return sum(weigher.sizing.number(counter.flops(node)) for node in products), waiting(placement, weigher)


def test_groups_of_rows_are_shared_evenly_but_for_the_busiest_rank() -> None:
    sequences = torch.randn(2, TOKENS, HIDDEN)  # formulas count one of them
    apart, wait = numbers_of(Experts(), sequences, rule="whole_experts")
    inside, none = numbers_of(Experts(), sequences, rule="experts")
    whole = 2 * TOKENS * HIDDEN * 3 * WIDE
    assert apart == inside == whole / RANKS
    assert none == 0
    rows = TOKENS / RANKS
    beyond = math.sqrt(2 * rows * math.log(RANKS)) / rows
    assert wait == pytest.approx(3 * apart * beyond / (NODE.tflops_bf16 * 1e12))


def test_rows_in_no_groups_are_computed_by_every_rank() -> None:
    operations, wait = numbers_of(Only(), ROWS, NUMBERS, rule="whole_experts")
    assert operations == 2 * 2 * WIDTH * INNER * Workload().tokens  # packed rows are the tokens
    assert wait == pytest.approx(3 * operations * (1 - 1 / RANKS) / (NODE.tflops_bf16 * 1e12))


def test_what_is_cut_already_costs_what_it_did_when_it_was_chosen() -> None:
    module = Experts()
    found = survey(module, examples_for(module, torch.randn(2, TOKENS, HIDDEN)))
    (problem,) = apply_settings(module, found, {"*": "whole_experts"}).problems.values()
    weigher = Weigher(problem.graph, NODE, Workload())
    chosen = choose(problem, RANKS, weigher)
    imposed = imposed_choice(problem, unit_plan(("",), problem, chosen, weigher).layouts(), weigher)
    assert imposed.seconds == chosen.seconds > weigher.seconds(chosen.placement)
