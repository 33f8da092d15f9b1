"""What somebody writes who uses autotp and checks types strictly. mypy reads it, nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import torch
from torch import nn
from transformers import PreTrainedModel

import autotp
from autotp import Arguments, GraphDiff, Loaded, ParallelTrainer, Plan, Report, Study, TrainingState


class Net(nn.Module):
    """A module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.relu(self.up(x)))
        return out


def plans() -> Plan:
    plan = autotp.plan("llama", 8, hardware="h100-nvlink-8", tokens=4096, settings={"model.layers.*.mlp": "replicate"})
    assert_type(plan, Plan)
    assert_type(plan.tp, int)
    assert_type(Plan.load("plan.json"), Plan)
    assert_type(Study("llama").plan(2), Plan)
    names: list[str] = [parameter.name for unit in plan.units for parameter in unit.parameters]
    return plan if names else autotp.plan(Net(), 2, example=(torch.zeros(1, 8),))


def trains(plan: Plan) -> dict[str, torch.Tensor]:
    model = autotp.parallelize(Net(), plan=plan, example=Arguments(torch.zeros(1, 8)))
    assert_type(model, Net)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState(model, optimizer)
    model(torch.zeros(1, 8)).sum().backward()
    optimizer.step()
    gradients = autotp.full_gradients(model)
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert not missing
    state.save("state")
    return dict(autotp.full_state_dict(model))


def reads(folder: Path) -> nn.Module:
    model: nn.Module = autotp.from_pretrained(folder, dtype="bfloat16")
    loaded = autotp.loading(model)
    assert_type(loaded, Loaded)
    autotp.save_pretrained(model, folder / "out")
    autotp.shard(folder, folder / "cut", 8)
    autotp.merge(folder / "cut", folder / "whole")
    return model


def begins(config: autotp.Plan) -> nn.Module:
    with torch.device("meta"):
        net = Net()
    model = autotp.parallelize(net, plan=config, example=(torch.zeros(1, 8),))
    autotp.initialize(model)
    return model


def trains_by_trainer(model: PreTrainedModel) -> None:
    ParallelTrainer(model).train()


def looks() -> bool:
    report, diff = autotp.verify("llama", 4, seed=1), autotp.diff("llama", 4, compare=(2,))
    assert_type(report, Report)
    assert_type(diff, GraphDiff)
    diff.html("diff.html")
    return report.ok and bool(diff.text())


def catches() -> str:
    try:
        autotp.plan("nosuch", 2)
    except autotp.UnsoundPlanError as error:
        return f"{error.exit_code}"
    except (autotp.PlanError, autotp.TraceError, autotp.RuleError, autotp.PlacementError, autotp.UsageError) as error:
        return str(error)
    except (autotp.CheckpointError, autotp.VerificationError, autotp.RankLostError, autotp.RankError):
        raise
    except autotp.AutotpError:
        return ""
    return autotp.__version__


WRONG = autotp.plan("llama", "8")  # type: ignore[arg-type]
UNKNOWN = autotp.plan("llama", 8, hardwre="l4")  # type: ignore[call-arg]
MISSING = autotp.nosuch  # type: ignore[attr-defined]
