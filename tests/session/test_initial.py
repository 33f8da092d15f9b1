"""Initial values of a model that was built on the meta device: those of the dense model, the same at every number of ranks."""

from __future__ import annotations

import copy
import functools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PretrainedConfig

import autotp
from autotp.api import join_ranks
from autotp.checkpoint.full import state_of
from autotp.checkpoint.tape import Tape
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.errors import UsageError
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model, model_class
from autotp.huggingface.pretrained import quiet
from autotp.planner.make import make_plan
from autotp.planner.survey import Survey, survey
from autotp.runtime.collectives.slices import padding
from autotp.runtime.devices.randomness import seeded
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Float64
from examples.nano_gpt import NanoGPT
from tests.families import FAMILIES, MIXERS, MIXTURES
from tests.parts import held

# Fewer key/value heads than ranks; a scaled residual, transposed weights; fused weights; experts; values computed from data;
# padding rows of a table; draws that are repeated until they are within bounds.
SIZES = {
    "llama": (1, 2, 3, 4),
    "gpt2": (3,),
    "phi3": (4,),
    "mixtral": (2,),
    "mamba": (3,),
    "bert": (4,),
    "vit": (2,),
    "nano_gpt": (3,),
}
TOKENS = torch.arange(3, 25).reshape(2, 11)


class Drawn(TorchDispatchMode):
    """The same draws as `autotp.initialize` makes, by code that runs on real tensors."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.draws = seed, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: None if name == "generator" else value for name, value in (kwargs or {}).items()}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.draws += 1
        with seeded(self.seed, self.draws - 1):
            return func(*args, **kwargs)


@dataclass(frozen=True)
class Subject:
    """How a dense model is built, and what planning needs to know of it."""

    build: Callable[[], nn.Module]
    given: bool
    on_meta: nn.Module
    found: Survey

    def dense(self, seed: int) -> nn.Module:
        """The dense model with the initial values of a seed, as its own code computes them."""
        with quiet(), Drawn(seed):
            return self.build().eval()

    def on_ranks(
        self, tp: int, run: Callable[[Any], Any], seed: int = 0, dtype: torch.dtype | None = None
    ) -> list[Any]:
        plan = make_plan(self.on_meta, self.found, tp)
        compilers = make_compilers(plan, self.found)
        models = [copy.deepcopy(self.on_meta).to(dtype) for _ in range(tp)]

        def on_rank(ranks: Ranks) -> Any:
            model = apply_plan(models[ranks.rank], plan, ranks, compilers)
            join_ranks(model, ranks)
            assert autotp.initialize(model, seed, build=self.build if self.given else None) is model
            return run(model)

        with quiet():
            return simulate(tp, on_rank)


@functools.cache
def subject(name: str) -> Subject:
    if name == "nano_gpt":
        with torch.device("meta"):
            model: nn.Module = NanoGPT()
        return Subject(NanoGPT, True, model, survey(model, examples_for(model, (TOKENS,))))
    config: PretrainedConfig = {**FAMILIES, **MIXTURES, **MIXERS}[name].config()
    model = build_model(config)
    return Subject(lambda: model_class(config)(config), False, model, survey(model, examples_for(model, None)))


def all_values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Whole parameters and all buffers, those that are not saved too."""
    return {**autotp.full_state_dict(model), **dict(model.named_buffers())}


def padded(model: nn.Module) -> list[torch.Tensor]:
    state, own = state_of(model), dict(model.named_parameters(remove_duplicate=False))
    return [
        held(own[name]).detach().index_select(dim, padding(layout, state.ranks.rank))
        for name, layouts in state.layouts.items()
        for dim, layout in enumerate(layouts)
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SIZES)
def test_values_are_those_of_the_dense_models_own_code_at_every_number_of_ranks(name: str, sweep: bool) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    dense = subject(name).dense(0)
    expected = {**dense.state_dict(), **dict(dense.named_buffers())}
    assert any(float(value.float().std()) > 0.01 for value in expected.values() if value.numel() > 1000)

    def run(model: nn.Module) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        return all_values(model), padded(model)

    paddings = 0
    for tp in SIZES["llama"] if sweep else SIZES[name]:
        for found, zeros in subject(name).on_ranks(tp, run):
            assert found.keys() == expected.keys()
            assert all(torch.equal(found[key], value) for key, value in expected.items())
            assert all(not part.any() for part in zeros)
            paddings += sum(part.numel() for part in zeros)
    assert paddings > 0 or name != "llama"
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["llama", "gpt2", "nano_gpt"])
def test_it_runs_as_the_dense_model(name: str) -> None:
    dense = subject(name).dense(3).double()

    def run(model: nn.Module) -> torch.Tensor:
        assert all(parameter.requires_grad for parameter in model.parameters())
        with Float64(), torch.no_grad():
            return logits(model)

    with Float64(), torch.no_grad():
        expected = logits(dense)
    for tp in (2, 3):
        for found in subject(name).on_ranks(tp, run, 3, torch.float64):
            assert found.dtype == torch.float64
            assert (found - expected).abs().max() < 1e-9 * expected.abs().max()


def logits(model: nn.Module) -> torch.Tensor:
    found = model(TOKENS)
    return found if isinstance(found, torch.Tensor) else found.logits


def test_another_seed_gives_other_weights_and_what_is_tied_stays_so() -> None:
    def run(model: Any) -> dict[str, torch.Tensor]:
        assert model.head.weight is model.tokens.weight
        return all_values(model)

    one, other = (subject("nano_gpt").on_ranks(2, run, seed)[0] for seed in (0, 1))
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert {name for name in one if one[name].dim() == 2} <= differ
    assert not any("norm" in name for name in differ)


def test_small_dtypes_and_only_one_whole_tensor_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: dict[Tape, list[StorageWeakRef]] = defaultdict(list)
    compute = Tape.compute

    def watched(tape: Tape, place: Any) -> torch.Tensor:
        assert sum(not storage.expired() for storage in computed[tape]) <= small  # those are what the rank keeps
        whole = compute(tape, place)
        if whole.dim() > 1:
            computed[tape].append(StorageWeakRef(whole.untyped_storage()))
        return whole

    small = 0
    monkeypatch.setattr(Tape, "compute", watched)

    def run(model: nn.Module) -> tuple[int, dict[str, torch.Tensor]]:
        return sum(parameter.untyped_storage().nbytes() for parameter in model.parameters()), all_values(model)

    for kept, values in subject("llama").on_ranks(2, run, 0, torch.bfloat16):
        assert kept < 0.6 * sum(value.nbytes for value in values.values())
        dense = subject("llama").dense(0).bfloat16().state_dict()
        assert all(torch.equal(values[name], value) for name, value in dense.items())
    assert len(computed) == 2
    assert all(len(storages) > 10 for storages in computed.values())


# Code that builds models in ways of its own


class Own(nn.Module):
    """Values that are looked at, written by parts, computed from each other, made of data, and replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        drops = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
        nn.init.constant_(self.first.bias, sum(drops))
        with torch.no_grad():
            self.second.weight[:, ::2].copy_(self.first.weight[:8].t())
            self.first.weight.mul_(3)
            while (large := self.first.weight.abs() > 1).any():
                self.first.weight[large] = torch.randn(int(large.sum()))
        self.second.bias.data = torch.randn(8, generator=torch.Generator().manual_seed(0))
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.turned = nn.Parameter(torch.empty(8, 8))
        nn.init.orthogonal_(self.turned.data)
        self.register_buffer("mask", torch.ones(4, 4).triu())
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("ranks", torch.from_numpy(_NUMBERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()) * self.scale.sum() @ self.turned


_NUMBERS = torch.arange(4.0).numpy()


def on_two(model: nn.Module, run: Callable[[nn.Module], Any]) -> list[Any]:
    found = survey(model, examples_for(model, (torch.empty(3, 8, device="meta"),)))
    plan = make_plan(model, found, 2)
    models = [copy.deepcopy(model) for _ in range(2)]
    return simulate(2, lambda ranks: run(apply_plan(models[ranks.rank], plan, ranks, make_compilers(plan, found))))


def plain(kind: Callable[[], nn.Module] = Own) -> nn.Module:
    """The structure of a model on the meta device."""
    return kind().to("meta")


def test_code_that_looks_at_values_and_computes_from_them() -> None:
    with Drawn(7):
        expected = Own().state_dict()
    for found in on_two(plain(), lambda model: all_values(autotp.initialize(model, 7, build=Own))):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert expected["first.weight"].abs().max() <= 1


# Errors


def two_layers(change: Callable[[Any], object] = lambda model: None) -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    change(model)
    return model


def leave_out(model: Any) -> None:
    model[2].weight = nn.Parameter(torch.empty(8, 16))


def half(model: Any) -> None:
    leave_out(model)
    with torch.no_grad():
        model[2].weight[0].zero_()


def by_python(model: Any) -> None:
    nn.init.constant_(model[0].bias, random.random())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no build": ({}, r"give the function that builds the dense model, as build=lambda: Sequential\(\.\.\.\)"),
    "a seed that is none": ({"seed": 0.5, "build": two_layers}, "seed must be a whole number, not 0.5"),
    "nothing written": ({"build": lambda: two_layers(leave_out)}, r"gives 2\.weight no initial values"),
    "half written": ({"build": lambda: two_layers(half)}, r"gives 2\.weight no initial values"),
    "another model": (
        {"build": lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))},
        r"2\.weight is 4 x 16 there and 8 x 16 here",
    ),
    "less of a model": ({"build": lambda: nn.Sequential(nn.Linear(8, 16))}, r"2\.weight is nothing there and 8 x 16"),
    "a build that fails": ({"build": lambda: 1 / 0}, "fails on tensors without data: ZeroDivisionError"),
    "other draws on every rank": ({"build": lambda: two_layers(by_python)}, "the ranks' models draw different"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_leave_the_model_as_it_was(name: str) -> None:
    arguments, message = WRONG[name]

    def run(model: nn.Module) -> str:
        with pytest.raises(UsageError, match=message) as error:
            autotp.initialize(model, **arguments)
        assert all(parameter.is_meta for parameter in model.parameters())
        return str(error.value)

    assert len(set(on_two(plain(two_layers), run))) == 1


def test_only_parallel_models_without_values_are_taken() -> None:
    with pytest.raises(UsageError, match="not parallel"):
        autotp.initialize(plain(two_layers), build=two_layers)

    def run(model: nn.Module) -> None:
        with pytest.raises(UsageError, match=r"0\.weight has values already"):
            autotp.initialize(model, build=two_layers)

    on_two(two_layers(), run)


# Real ranks


def pretrain(folder: Path) -> tuple[float, dict[str, torch.Tensor]]:
    config = FAMILIES["llama"].config()
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = autotp.initialize(autotp.parallelize(model), 11)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss = model(TOKENS, labels=TOKENS).loss
    loss.backward()
    optimizer.step()
    autotp.save_pretrained(model, folder)
    return loss.item(), autotp.full_state_dict(model)


def test_real_ranks_train_from_scratch_and_save(tmp_path: Path) -> None:
    dense: Any = subject("llama").dense(11)
    expected = dense(TOKENS, labels=TOKENS).loss.item()
    with quiet():
        results = run_ranks(pretrain, 2, tmp_path / "out")
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for loss, weights in results:
        assert loss == pytest.approx(expected, rel=1e-5)
        assert all(torch.equal(saved[name], value) for name, value in weights.items())
    assert not any(torch.equal(saved[name], value) for name, value in dense.state_dict().items())
