"""Several threads of a process capture, and call models, at once: each finds what it finds alone."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import torch

import autotp
from autotp.runtime.ranks import Ranks
from autotp.runtime.simulate import simulate
from tests.contract.parts import HIDDEN, Mlp, twins, values
from tests.contract.play import cut


def test_plans_made_at_once_are_those_made_one_by_one() -> None:
    models = [twins(Mlp, 2) for _ in range(6)]
    alone = autotp.plan(models[0], tp=2, example=(values(2, 5, HIDDEN),))
    with ThreadPoolExecutor(len(models)) as pool:
        plans = list(pool.map(lambda model: autotp.plan(model, tp=2, example=(values(2, 5, HIDDEN),)), models))
    assert plans == [alone] * len(models)
    assert all(unit.collectives for unit in alone.units)


def test_ranks_capture_and_call_the_same_classes_at_once() -> None:
    dense = twins(Mlp, 2)

    def differs(ranks: Ranks) -> float:
        net = copy.deepcopy(dense)
        with torch.inference_mode():
            cut(ranks, net, (values(2, 5, HIDDEN),), {})
            found = [float((net(values(2, 5, HIDDEN)) - dense(values(2, 5, HIDDEN))).abs().max())]
        for rows in (2, 3):
            given = values(rows, 5, HIDDEN).requires_grad_()
            true, own = torch.autograd.grad(dense(given).sum(), given), torch.autograd.grad(net(given).sum(), given)
            found.append(float((true[0] - own[0]).abs().max()))
        return max(found)

    for _ in range(4):
        assert max(simulate(2, differs)) < 1e-9
