"""Applying a plan: what each rank holds and what comes back from it, what is refused, and what is left alone."""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration

import autotp
from autotp.axes.layout import is_padded
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.dispatch.held import ATTRIBUTE
from autotp.errors import PlanError, UnsoundPlanError
from autotp.huggingface import models
from autotp.huggingface.examples import examples_for
from autotp.planner.make import make_plan
from autotp.planner.plan import ParameterPlan, Plan
from autotp.planner.survey import Survey, survey
from autotp.runtime.collectives.slices import padding
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.layers.parallel import ColumnParallelLinear, RowParallelLinear, layer_of
from tests.families import FAMILIES
from tests.parts import held

NAMES = ("llama", "gpt2", "phi3", "deepseek_v2")
SMALL = {"layers": 2, "attention_heads": 4, "ffn_dim": 128}
TOKENS = torch.randint(0, 250, (2, 5), generator=torch.Generator().manual_seed(0))


def dense_model(name: str, *, meta: bool = False) -> Any:
    torch.manual_seed(0)
    return models.build_model(FAMILIES[name].config(), meta=meta)


@functools.cache
def surveyed(name: str) -> Survey:
    model = dense_model(name, meta=True)
    return survey(model, examples_for(model, None))


def planned(name: str, tp: int) -> Plan:
    return make_plan(dense_model(name, meta=True), surveyed(name), tp)


def on_ranks(model: nn.Module, plan: Plan, run: Callable[[Any], Any], found: Survey | None = None) -> list[Any]:
    """Apply a plan to a copy of a model on every simulated rank, and run something on each."""
    compilers = make_compilers(plan, found)

    def on_rank(ranks: Ranks) -> Any:
        return run(apply_plan(copy.deepcopy(model), plan, ranks, compilers))

    return simulate(plan.tp, on_rank)


def test_a_module_that_shares_a_cut_parameter_and_is_in_no_unit_computes_whole() -> None:
    """The table that an encoder-decoder model offers: its encoder, decoder and head have the same one and are what runs."""
    torch.manual_seed(0)
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in SMALL.items()}
    model = BartForConditionalGeneration(
        BartConfig(d_model=64, vocab_size=250, max_position_embeddings=64, scale_embedding=True, **sizes)
    )
    model = model.double().eval()
    found = survey(model, examples_for(model, None))
    plan = make_plan(model, found, 2)

    def run(model: Any) -> torch.Tensor:
        result = model.get_input_embeddings()(TOKENS)
        result.square().sum().backward()
        return result.detach()

    def on_rank(parallel: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert held(parallel.get_input_embeddings().weight).shape == (125, 64)
        return run(parallel), autotp.full_gradients(parallel)["model.shared.weight"]

    expected = run(model)
    for found_here, gradient in on_ranks(model, plan, on_rank, found):
        torch.testing.assert_close(found_here, expected)
        torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad)


# -- what a rank holds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_state_comes_back_bit_for_bit(name: str, tp: int) -> None:
    model = dense_model(name)
    plan = planned(name, tp)
    true = model.state_dict()
    for state in on_ranks(model, plan, autotp.full_state_dict):
        assert list(state) == list(true)
        for key, tensor in true.items():
            assert state[key].dtype == tensor.dtype
            assert torch.equal(state[key], tensor), key


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_holds_what_the_plan_says(name: str) -> None:
    model = dense_model(name, meta=True)
    plan = planned(name, 4)
    entries = {f"{path}.{p.name}": p for unit in plan.units for path in unit.instances for p in unit.parameters}
    for rank in on_ranks(model, plan, lambda parallel: dict(parallel.named_parameters(remove_duplicate=False))):
        for key, parameter in rank.items():
            assert parameter.is_meta
            assert isinstance(parameter, nn.Parameter)
            if key in entries:
                assert tuple(held(parameter).shape) == entries[key].local_shape, key
        assert sum(held(p).numel() for p in {id(p): p for p in rank.values()}.values()) == plan.elements()[1]


def test_what_does_not_want_a_gradient_still_does_not() -> None:
    model = dense_model("llama")
    frozen = {"model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"}
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key not in frozen)
    plan = planned("llama", 2)
    for rank in on_ranks(model, plan, lambda p: {k for k, v in p.named_parameters() if not v.requires_grad}):
        assert rank == frozen


def test_tied_parameters_stay_tied() -> None:
    model = dense_model("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    for tied in on_ranks(model, planned("gpt2", 2), lambda p: p.lm_head.weight is p.transformer.wte.weight):
        assert tied


def test_it_is_the_same_model_with_parallel_layers() -> None:
    model = dense_model("llama")
    plan = planned("llama", 2)

    def run(ranks: Ranks) -> None:
        own = copy.deepcopy(model)
        parallel: Any = apply_plan(own, plan, ranks, compilers)
        assert parallel is own
        assert isinstance(parallel, type(model))
        block = parallel.model.layers[1]
        assert type(block) is type(model.model.layers[1])
        assert isinstance(layer_of(block.self_attn.q_proj), ColumnParallelLinear)
        assert isinstance(layer_of(block.mlp.down_proj), RowParallelLinear)
        assert layer_of(block.input_layernorm) is None
        assert {type(part) for part in parallel.modules()} == {type(part) for part in model.modules()}
        assert [name for name, _ in parallel.named_modules()] == [name for name, _ in model.named_modules()]

    compilers = make_compilers(plan, surveyed("llama"))
    simulate(2, run)


def test_hooks_of_the_layers_inside_a_unit_see_whole_values() -> None:
    model, seen = dense_model("llama"), list[int]()

    def run(parallel: Any) -> None:
        for block in parallel.model.layers:
            block.mlp.down_proj.register_forward_hook(lambda module, args, result: seen.append(args[0].shape[-1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that such calls run whole, which the tests of a contract look at
            parallel(TOKENS)

    on_ranks(model, planned("llama", 2), run)
    assert seen == [160] * 2 * len(model.model.layers)


# -- what is refused -----------------------------------------------------------------------------------------------


def assert_refused(model: nn.Module, plan: Plan, size: int, message: str) -> None:
    """The plan is refused on every rank, and each rank's model is as it was."""

    def run(ranks: Ranks) -> None:
        own = copy.deepcopy(model)
        before = {key: (id(tensor), tensor.clone()) for key, tensor in own.state_dict(keep_vars=True).items()}
        classes = [type(module) for module in own.modules()]
        attributes = [set(module.__dict__) for module in own.modules()]
        with pytest.raises(PlanError, match=message):
            apply_plan(own, plan, ranks, make_compilers(plan, None))
        after = own.state_dict(keep_vars=True)
        assert list(after) == list(before)
        for key, (identity, tensor) in before.items():
            assert id(after[key]) == identity
            assert torch.equal(after[key], tensor)
        assert [type(module) for module in own.modules()] == classes
        assert [set(module.__dict__) for module in own.modules()] == attributes

    simulate(size, run)


def test_a_plan_for_another_number_of_ranks_is_refused() -> None:
    model = dense_model("llama")
    message = r"the plan is for 4 ranks, the group has 2; make one with autotp\.plan\(model, tp=2\)"
    assert_refused(model, planned("llama", 4), 2, message)


def test_a_plan_for_another_model_is_refused() -> None:
    plan = autotp.plan(FAMILIES["gpt2"].config(), 2)
    assert_refused(dense_model("llama"), plan, 2, r"the plan is for another model \(GPT2LMHeadModel\)")


def test_a_plan_for_other_sizes_is_refused() -> None:
    family = FAMILIES["llama"]
    plan = autotp.plan(type(family)(family.kind, {**family.settings, "intermediate_size": 192}).config(), 2)
    assert_refused(dense_model("llama"), plan, 2, r"parameter names or shapes differ from this LlamaForCausalLM")


def test_a_plan_over_more_ranks_than_there_are_is_refused() -> None:
    model = dense_model("llama")
    plan = edited(planned("llama", 2), {"mlp.gate_proj.weight": ("160/4@1", "64")})
    assert_refused(model, plan, 2, r"do not make up 2 ranks")


def test_a_parallel_model_is_not_made_parallel_again() -> None:
    model = dense_model("llama")
    plan = planned("llama", 2)
    compilers = make_compilers(plan, None)

    def run(ranks: Ranks) -> None:
        parallel = apply_plan(copy.deepcopy(model), plan, ranks, compilers)
        state, shapes = parallel.__dict__[ATTRIBUTE], {k: v.shape for k, v in parallel.state_dict().items()}
        with pytest.raises(PlanError, match="the model is parallel already; start from a dense one"):
            apply_plan(parallel, plan, ranks, compilers)
        assert parallel.__dict__[ATTRIBUTE] is state
        assert {k: v.shape for k, v in parallel.state_dict().items()} == shapes

    simulate(2, run)


def edited(plan: Plan, layouts: Mapping[str, tuple[str, ...]]) -> Plan:
    """A plan in which some parameters of every block have other layouts."""

    def parameter(entry: ParameterPlan) -> ParameterPlan:
        changed = dataclasses.replace(entry, layouts=layouts.get(entry.name, entry.layouts))
        return dataclasses.replace(changed, local_shape=tuple(layout.local_size for layout in changed.parsed()))

    units = [dataclasses.replace(unit, parameters=tuple(map(parameter, unit.parameters))) for unit in plan.units]
    changed = dataclasses.replace(plan, units=tuple(units))
    assert changed != plan
    return changed


GROUPS = "(2/2@1 · 8)"
UNSOUND: dict[str, tuple[dict[str, tuple[str, ...]], str]] = {
    "inside a head": (
        {"self_attn.q_proj.weight": ("(8 · 8/2@1)", "64")},
        r"self_attn\.q_proj\.weight cuts an axis of 8 that the operators take apart into",
    ),
    "queries without keys": (
        {"self_attn.k_proj.weight": ("16", "64")},
        r"self_attn\.k_proj\.weight keeps whole an axis of 2 that another parameter cuts",
    ),
    "up without down": (
        {"mlp.down_proj.weight": ("64", "160")},
        r"mlp\.down_proj\.weight keeps whole an axis of 160 that another parameter cuts",
    ),
    "gate otherwise than up": (
        {"mlp.gate_proj.weight": ("160>162/2@1", "64")},
        r"mlp\.\w+_proj\.weight cuts an axis of 160 differently from another parameter",
    ),
    "a norm's width": (
        {"input_layernorm.weight": ("64/2@1",)},
        r"keeps whole an axis of 64 that another parameter cuts",
    ),
    "the hidden width everywhere": (
        {
            **{f"self_attn.{n}_proj.weight": (GROUPS if n != "q" else "(2/2@1 · 32)", "64/2@1") for n in "qkv"},
            "self_attn.o_proj.weight": ("64/2@1", "(2/2@1 · 32)"),
            "mlp.gate_proj.weight": ("160/2@1", "64/2@1"),
            "mlp.up_proj.weight": ("160/2@1", "64/2@1"),
            "mlp.down_proj.weight": ("64/2@1", "160/2@1"),
            "input_layernorm.weight": ("64/2@1",),
            "post_attention_layernorm.weight": ("64/2@1",),
        },
        r"_proj\.weight' is cut twice over the same ranks",
    ),
}


@pytest.mark.parametrize(("layouts", "message"), UNSOUND.values(), ids=UNSOUND.keys())
def test_an_unsound_plan_is_refused_at_the_first_call(layouts: dict[str, tuple[str, ...]], message: str) -> None:
    model = dense_model("llama")
    plan = edited(planned("llama", 2), layouts)
    with pytest.raises(UnsoundPlanError, match=message):
        on_ranks(model, plan, lambda parallel: parallel(TOKENS))


def test_an_axis_that_must_stay_whole_is_named_with_its_operator() -> None:
    model, example = nn.Sequential(nn.Linear(16, 24), nn.Softmax(-1), nn.Linear(24, 16)), torch.randn(2, 3, 16)
    plan = autotp.plan(model, 2, example=example)
    assert not plan.units[0].layouts()
    cut = {"0.weight": ("24/2@1", "16"), "0.bias": ("24/2@1",), "2.weight": ("16", "24/2@1")}
    message = (
        r"an axis of 24 is cut but must be whole at softmax \(aten\.softmax\): it is normalised along this dimension"
    )
    with pytest.raises(UnsoundPlanError, match=message):
        on_ranks(model, edited(plan, cut), lambda parallel: parallel(example))


def test_an_edit_that_leaves_more_whole_is_sound() -> None:
    model = dense_model("llama").double()
    plan = planned("llama", 2)
    whole = {f"mlp.{n}_proj.weight": ("64", "160") if n == "down" else ("160", "64") for n in ("gate", "up", "down")}
    true = model(TOKENS).logits
    for logits in on_ranks(model, edited(plan, whole), lambda parallel: parallel(TOKENS).logits):
        torch.testing.assert_close(logits, true, rtol=1e-10, atol=1e-10)


# -- modules whose weights are not all there is to them ------------------------------------------------------------


class Scaled(nn.Module):
    """A linear that scales its result with a parameter of its own."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outer, inner) / 4)
        self.bias, self.scale = nn.Parameter(torch.randn(outer)), nn.Parameter(torch.rand(outer) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias) * self.scale


class Apart(nn.Module):
    """A linear whose bias is added later."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outer, inner) / 4), nn.Parameter(torch.randn(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight) * 2 + self.bias


class WithChild(nn.Module):
    """A weight beside a layer."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight, self.beside = nn.Parameter(torch.randn(outer, inner) / 4), nn.Linear(inner, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight) + self.beside(x)


class Activated(nn.Linear):
    """A linear with its activation inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).tanh()


@pytest.mark.parametrize("kind", [Scaled, Apart, WithChild, Activated])
def test_a_module_that_does_more_than_a_product_does_it_once(kind: Callable[[int, int], nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(kind(16, 24), nn.ReLU(), kind(24, 16))
    report = autotp.verify(module, 2, example=torch.randn(2, 3, 16))
    report.raise_for_failure()
    assert report.counted["all_reduce forward activation"] == 1


# -- what is left alone --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_planning_leaves_the_model_as_it_was(name: str) -> None:
    model = dense_model(name).train()
    calls: list[str] = []
    handle = model.get_submodule("lm_head").register_forward_hook(lambda *_: calls.append("forward"))
    model.register_forward_pre_hook(lambda *_: calls.append("before"))
    state = {
        key: (id(tensor), tensor._version, tensor.clone()) for key, tensor in model.state_dict(keep_vars=True).items()
    }
    buffers = {key: id(tensor) for key, tensor in model.named_buffers()}
    attributes = {path: set(vars(module)) for path, module in model.named_modules()}
    hooks = {path: len(module._forward_hooks) for path, module in model.named_modules()}
    config, random, gradient = model.config.to_dict(), torch.get_rng_state(), torch.is_grad_enabled()

    autotp.plan(model, 2)

    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled() is gradient
    assert model.config.to_dict() == config
    assert model.training
    assert not calls
    assert {path: len(module._forward_hooks) for path, module in model.named_modules()} == hooks
    assert {path: set(vars(module)) for path, module in model.named_modules()} == attributes
    assert {key: id(tensor) for key, tensor in model.named_buffers()} == buffers
    for key, tensor in model.state_dict(keep_vars=True).items():
        identity, version, value = state[key]
        assert (id(tensor), tensor._version) == (identity, version), key
        assert torch.equal(tensor, value)
        assert tensor.grad is None
    handle.remove()


# -- padding under training ----------------------------------------------------------------------------------------


class NotZeroAtZero(nn.Module):
    """An MLP whose activation is not zero where its input is, on a width that the ranks do not divide."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.up, self.down = nn.Linear(12, 25), nn.Linear(25, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.function(self.up(x)))


def trained(model: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x, y = (torch.randn(2, 3, 12, generator=generator, dtype=torch.float64) for _ in range(2))
        optimizer.zero_grad()
        functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("function", [torch.exp, torch.sigmoid, torch.cos], ids=["exp", "sigmoid", "cos"])
def test_padding_stays_zero_under_training(function: Callable[[torch.Tensor], torch.Tensor], tp: int) -> None:
    torch.manual_seed(0)
    model = NotZeroAtZero(function).double()
    example = torch.randn(2, 3, 12, dtype=torch.float64)
    found = survey(model, examples_for(model, example))
    plan = make_plan(model, found, tp)
    (unit,) = plan.units
    padded = {name: layouts for name, layouts in unit.layouts().items() if any(map(is_padded, layouts))}
    assert padded.keys() == {"up.weight", "up.bias", "down.weight"}
    compilers = make_compilers(plan, found)

    def run(ranks: Ranks) -> tuple[int, dict[str, torch.Tensor]]:
        parallel = trained(apply_plan(copy.deepcopy(model), plan, ranks, compilers))
        places = 0
        for name, layouts in padded.items():
            for dim, layout in enumerate(layouts):
                where = padding(layout, ranks.rank)
                beyond = held(parallel.get_parameter(name)).index_select(dim, where)
                assert not beyond.count_nonzero()
                places += beyond.numel()
        return places, autotp.full_state_dict(parallel)

    runs = simulate(tp, run)
    assert sum(places for places, _ in runs) == (2 * 12 + 1) * (-25 % tp)
    true = trained(copy.deepcopy(model)).state_dict()
    for _, state in runs:
        for key, tensor in true.items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-11, atol=1e-11)
            assert not torch.equal(tensor, model.state_dict()[key])
