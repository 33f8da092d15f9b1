"""Rules of what runs for real behind Python, proved by arithmetic: methods of objects, and functions of a table."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.nn import functional

from autotp.capture.functions import FunctionTable, register_table
from tests.axes import cases
from tests.axes.cases import Case, scores
from tests.axes.prover import prove
from tests.axes.test_operator_rules import assert_cuttable


class Memory:
    """A cache of keys and values."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.kept.append((keys, values))
        return tuple(torch.cat(parts, 2) for parts in zip(*self.kept, strict=True))


def test_a_method_of_an_object_runs_on_slices() -> None:
    def remembered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, memory: Memory) -> tuple[torch.Tensor, ...]:
        first, _ = memory.update(k, v)
        return scores(q, *memory.update(2 * k, v - 1)), first

    subject = Case("opaque.update", "b h s D, b h T D, b h T E", remembered).subject(0)
    proof = prove(remembered, subject.operands, handles=lambda: {"memory": Memory()})
    assert "opaque.update" in proof.captured.operators
    for i, wanted in enumerate(subject.wanted):
        assert_cuttable(proof, i, wanted, 2)
        assert_cuttable(proof, i, wanted, 3)


class States:
    """A cache of what a window and a recurrence carry on."""

    def __init__(self) -> None:
        self.layers: dict[int, torch.Tensor] = {}
        self.linear: torch.Tensor | None = None

    def update_conv_state(self, given: torch.Tensor, layer: int) -> torch.Tensor:
        past = self.layers.get(layer)
        self.layers[layer] = given[..., -2:].detach().clone()
        return given if past is None else torch.cat([past, given], -1)

    def update_recurrent_state(self, given: torch.Tensor, layer: int) -> torch.Tensor:
        self.layers[layer] = given.detach().clone()
        return given

    def get(self, layer: int) -> torch.Tensor:
        return self.layers[layer]

    def set_linear_cache(self, layer: int, given: torch.Tensor) -> None:
        self.layers[layer] = given.detach().clone()


@torch.no_grad()
def windowed(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, states: States) -> Any:
    """A window over a text, then over one more token and another, each written into the state."""
    states.update_conv_state(x, 0)
    return [cases.causal_conv1d_update(token, states.get(0), w, b, "silu") for token in (y, y + x[..., :1])]


@torch.no_grad()
def recurred(*operands: torch.Tensor, states: States) -> Any:
    """Two steps of a state per channel that is kept."""
    before, x, dt, a, b, c, d, bias = operands
    states.update_recurrent_state(before, 1)
    step = functools.partial(cases.mamba_selective_state_update, A=a, B=b, C=c, D=d, dt_bias=bias, dt_softplus=True)
    states.linear = 2 * before
    states.layers[2] = 3 * before
    later = [step(states.linear, x, dt), step(states.layers[2], x, dt)]
    return [*later, *(step(states.get(1), token, dt) for token in (x, x + before.softmax(-1)[..., 0]))]


@torch.no_grad()
def recurred_by_heads(*operands: torch.Tensor, states: States) -> Any:
    """The same per head, on a part of what is kept."""
    before, x, dt, a, b, c = operands
    states.set_linear_cache(1, torch.stack([before, 2 * before], 1))
    step = functools.partial(cases.mamba2_selective_state_update, A=a, B=b, C=c, dt_softplus=True)
    return [step(states.get(1)[:, 1], token, dt) for token in (x, x + before.softmax(-1)[..., 0])]


@torch.no_grad()
def weighed_by_heads(x: torch.Tensor, w: torch.Tensor, states: States) -> Any:
    """What the state gives back, taken as heads."""
    kept = [states.update_conv_state(x, 0), states.update_conv_state(x[..., :1], 0)]
    return [(each.unflatten(1, (len(w), -1)) * w[:, None, None]).sum(-1) for each in kept]


STEPS = [
    Case("opaque.update_conv_state", "b (g r) T, g", weighed_by_heads),
    Case("function.causal_conv1d_update", "b c T, b c 1, c K, c", windowed),
    Case("function.mamba_selective_state_update", "b c N, b c, b c, c N, b N, b N, c, c", recurred),
    Case(
        "function.mamba2_selective_state_update",
        "b (g r) p N, b (g r) p, b (g r) p, (g r) p N, b g N, b g N",
        recurred_by_heads,
    ),
]


@pytest.mark.parametrize("case", STEPS, ids=str)
def test_a_function_writes_into_a_ranks_slice_of_a_state(case: Case) -> None:
    subject = case.subject(0)
    proof = prove(case.function, subject.operands, handles=lambda: {"states": States()})
    assert case.name in proof.captured.operators
    assert proof.captured.operators & {
        "opaque.update_conv_state",
        "opaque.update_recurrent_state",
        "opaque.set_linear_cache",
    }
    for i, wanted in enumerate(subject.wanted):
        assert_cuttable(proof, i, wanted, 2)
        assert_cuttable(proof, i, wanted, 3)


def kernel(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, None]:
    """Attention as a kernel behind Python offers it: values are read, and heads come last but one."""
    assert bool(torch.isfinite(query).all())
    bias, sink = options.get("bias"), options.get("sink")
    mask = bias if sink is None else sink[:, None, None] + (0 if bias is None else bias)
    attended = functional.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
    return attended.transpose(1, 2), None


def shapes(_: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, None]:
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


TABLE = {"attention": kernel, "attention_of_whole_groups": lambda *args, **options: kernel(*args, **options)}
register_table(
    FunctionTable(TABLE, lambda f: (f"opaque.{'attention' if f is kernel else 'attention_of_whole_groups'}", shapes))
)


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("attention", "b (h g) S D, b h T D, b h T E", ()),
        ("attention", "b h S D, b h T D, b h T E, h S T", ("bias",)),
        ("attention", "b h S D, b h T D, b h T E, h", ("sink",)),
        ("attention_of_whole_groups", "b (h G) S D, b h T D, b h T E", ()),
        ("attention_of_whole_groups", "b h S D, b h T D, b h T E", ()),
    ],
    ids=str,
)
def test_an_attention_function_runs_on_heads(name: str, text: str, options: tuple[str, ...]) -> None:
    def attended(*operands: torch.Tensor) -> torch.Tensor:
        given = dict(zip(options, operands[3:], strict=True))
        if "bias" in given:
            given["bias"] = given["bias"][None]
        result: torch.Tensor = TABLE[name](None, *operands[:3], **given)[0]
        return result

    subject = Case(f"opaque.{name}", text, attended).subject(0)
    proof = prove(attended, subject.operands)
    assert f"opaque.{name}" in proof.captured.operators
    for i, wanted in enumerate(subject.wanted):
        assert_cuttable(proof, i, wanted, 2)
        assert_cuttable(proof, i, wanted, 3)


class Mean:
    """Has a method of a name that a rule knows, for something else."""

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None

    def update(self, rows: torch.Tensor) -> torch.Tensor:
        self.rows = rows if self.rows is None else (self.rows + rows) / 2
        return self.rows


def averaged(x: torch.Tensor, weight: torch.Tensor, mean: Mean) -> torch.Tensor:
    return mean.update(x @ weight)


def test_a_method_that_a_rule_does_not_fit_has_none() -> None:
    operands = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    proof = prove(averaged, operands, handles=lambda: {"mean": Mean()})
    assert "opaque.update" in proof.captured.operators
    (inner,), (outputs,) = proof.captured.terms(1)
    assert proof.proved == {(inner, 2), (inner, 3)}
    assert [pin.reason for pin in outputs.pins] == ["there is no rule for this operator"]
