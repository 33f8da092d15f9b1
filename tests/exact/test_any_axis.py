"""Plans for the least time cut along any axis that pays, the hidden one of all blocks too: they are exact, also on real ranks.

Memory is bound so tightly that the plan has the least of the whole space.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import autotp
from autotp.checkpoint.full import state_of
from autotp.planner.cost import hardware
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.session.calibrate import write_node
from autotp.verify import Float64
from tests.exact.test_gloo import difference, first, model_and_inputs
from tests.families import FAMILIES, MIXTURES

NAMES = ("deepseek_v2", "phi3", "llama", "mixtral", "bert", "vit", "mpt", "cohere", "gpt2", "gpt_oss", "bloom", "olmo2")
LEAST_GIB = 1e-6


def wishes(folder: Path, work: str) -> dict[str, Any]:
    """What is asked for: the least time, with links so fast that every cut may pay."""
    fast = replace(hardware("h100-nvlink-8"), name="fast", latency_us=0.001, hop_us=0.0, link_gbps=4500.0)
    write_node(fast, folder)
    return {"objective": "time", "workload": work, "memory_gib": LEAST_GIB, "hardware": "fast", "rules": [folder]}


def by_axis(plan: Plan) -> list[str]:
    return [parameter.name for unit in plan.units for parameter in unit.parameters if parameter.rule == "axis"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_it_is_exact(name: str, tp: int, tmp_path: Path) -> None:
    asked, config = wishes(tmp_path, "training"), (FAMILIES | MIXTURES)[name].config()
    assert (
        by_axis(autotp.plan(config, tp, **asked)) or name == "bloom"
    )  # whose table is tied, and whose norms come first
    autotp.verify(config, tp, **asked).raise_for_failure()


def compare(name: str, plan: Plan, rules: Path, folder: Path) -> list[float]:
    """The largest differences on a rank: of results and gradients, twice with a step between, of the state, and once saved."""
    torch.manual_seed(0)
    dense, args, kwargs = model_and_inputs(name)
    parallel, found = copy.deepcopy(dense), []
    with Float64():
        autotp.parallelize(parallel, plan=plan, rules=[rules])
        assert state_of(parallel).layouts
        optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in (dense, parallel)]
        for _ in range(2):
            results = [first(model(*args, **kwargs)) for model in (dense, parallel)]
            found.append(float((results[1] - results[0]).detach().abs().max() / results[0].detach().abs().max()))
            for result in results:
                result.square().mean().backward()
            gradients = autotp.full_gradients(parallel)
            true = {n: p.grad for n, p in dense.named_parameters(remove_duplicate=False) if p.grad is not None}
            largest = max(float(g.abs().max()) for g in true.values())
            found.append(max(difference(gradients[n], g, largest) for n, g in true.items()))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        whole = autotp.full_state_dict(parallel)
        found.append(
            max(float((whole[n] - t).abs().max()) for n, t in dense.state_dict().items() if t.is_floating_point())
        )
        autotp.save_pretrained(parallel, folder)
        again = autotp.from_pretrained(folder, plan=plan, rules=[rules], dtype=torch.float64)
        again_result = first(again(*args, **kwargs))
        expected = first(dense(*args, **kwargs))
        found.append(float((again_result - expected).detach().abs().max() / expected.detach().abs().max()))
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["phi3", "deepseek_v2", "llama", "vit", "mixtral", "gpt2"])
def test_on_real_ranks(name: str, tmp_path: Path) -> None:
    plan = autotp.plan((FAMILIES | MIXTURES)[name].config(), 2, **wishes(tmp_path, "training"))
    assert by_axis(plan)
    for found in run_ranks(compare, 2, name, plan, tmp_path, tmp_path / "saved"):
        assert max(found) < 1e-9, found
