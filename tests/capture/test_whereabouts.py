"""Traced nodes know the module they run in, and a traced model keeps no hooks."""

import pytest
import torch
from torch import nn
from torch.fx import traceback

from autotp.axes.annotation import annotation
from autotp.capture.whereabouts import noting_modules
from autotp.huggingface.examples import examples_for
from autotp.planner.survey import survey


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Inner(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))) * 2


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not today")


class Catching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fragile, self.linear = Failing(), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.fragile(x)
        except ValueError:
            return self.linear(x)


def test_a_module_that_fails_is_left() -> None:
    model = Catching()
    found = survey(model, examples_for(model, torch.zeros(3, 8)))
    (traced,) = found.traced.values()
    (linear,) = (node for node in traced.graph.nodes if node.op == "call_function")
    assert annotation(linear).module == "linear"
    broken = nn.Sequential(Failing())
    with pytest.raises(ValueError, match="not today"), noting_modules(broken):
        broken(torch.zeros(1))
    assert "custom" not in traceback.get_current_meta()


def test_what_another_left_to_mark_nodes_with_marks_none() -> None:
    traceback.get_current_meta()["custom"] = {"module": "elsewhere"}
    try:
        model = nn.Linear(8, 8)
        (traced,) = survey(model, examples_for(model, torch.zeros(3, 8))).traced.values()
        assert traceback.get_current_meta()["custom"] == {"module": "elsewhere"}
    finally:
        del traceback.get_current_meta()["custom"]
    assert [annotation(node).module for node in traced.graph.nodes if node.op == "call_function"] == [""]


def test_nodes_are_marked_with_the_innermost_module() -> None:
    model = Outer()
    found = survey(model, examples_for(model, torch.zeros(3, 8)))
    (traced,) = found.traced.values()
    modules = [(node.name, annotation(node).module) for node in traced.graph.nodes if node.op == "call_function"]
    assert modules == [
        ("linear", "first.linear"),
        ("relu", "first"),
        ("add", "first"),
        ("tanh", ""),
        ("linear_1", "second"),
        ("mul", ""),
    ]
    kept = {key for node in traced.graph.nodes for key in node.meta}
    assert not kept & {"custom", "original_aten", "seq_nr"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
