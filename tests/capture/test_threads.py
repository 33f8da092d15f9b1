"""Several threads of a process capture, and call models, at once: each finds what it finds alone."""

from __future__ import annotations

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import autotp
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import survey
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.session.arguments import rule_folders
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


class MlpOfPositions(Mlp):
    """Makes tensors of its own by the length."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])[:, None]
        scores = torch.zeros(1, 4, x.shape[0], x.shape[1])
        return super().forward(x) * torch.min(places, torch.full_like(places, 3)) + scores.sum()


def test_a_trace_is_the_same_while_somebody_holds_the_frames_that_it_runs_in() -> None:
    def traced() -> list[str]:
        net = twins(MlpOfPositions, 2)
        found = survey(net, examples_for(net, (values(2, 5, HIDDEN),)), rule_folders(()))
        return [str(trace.graph) + str(list(trace.constants)) for trace in found.traced.values()]

    frames: list[Any] = []
    alone = traced()
    sys.setprofile(lambda frame, event, arg: frames.append(frame))  # as a profiler does
    try:
        held = traced()
    finally:
        sys.setprofile(None)
    assert frames
    assert held == alone


def test_functions_are_compiled_while_another_thread_captures() -> None:
    def compiled(place: int) -> float:
        def scaled(x: torch.Tensor) -> torch.Tensor:
            kind = isinstance(x, torch.Tensor)  # what a trace has something else for
            torch._dynamo.graph_break()  # what compiles, and what runs between the parts, asks so as well
            return x * 2 if kind and isinstance(place, int) else x

        return float(torch.compile(scaled, backend="eager")(torch.ones(3)).sum())

    with ThreadPoolExecutor(2) as pool:
        plans = [pool.submit(autotp.plan, twins(Mlp, 2), tp=2, example=(values(2, 5, HIDDEN),)) for _ in range(4)]
        found = []
        for place in range(6):
            torch._dynamo.reset()
            found.append(compiled(place))
    assert found == [6.0] * 6
    assert len({plan.result() for plan in plans}) == 1
