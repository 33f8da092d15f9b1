"""Values cut over positions between blocks: the dense model's numbers at any length, the planned collectives, less kept."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.api import join_ranks
from autotp.dispatch.apply import apply_plan, make_compilers
from autotp.huggingface.examples import examples_for
from autotp.huggingface.models import build_model
from autotp.planner.make import make_plan
from autotp.planner.plan import Plan
from autotp.planner.survey import survey
from autotp.report.diff import GraphDiff, make_diff
from autotp.runtime.groups.launch import run_ranks
from autotp.runtime.groups.log import CollectiveLog
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.runtime.results.tensor import CutResult
from autotp.session.study import Study
from autotp.verify import Float64, Verifier
from benchmarks.kept import bytes_kept
from tests.families import FAMILIES

# 13 positions: on 2, 3 and 4 ranks none has as many as all others.
SAMPLE = (("llama", 2), ("llama", 3), ("llama", 4), ("gpt2", 4), ("qwen3", 3), ("gemma2", 4), ("gptj", 3), ("phi", 2))


@functools.lru_cache(maxsize=1)
def verifier(name: str) -> Verifier:
    return Verifier(FAMILIES[name].config(), sequence_parallel=True)


@pytest.mark.sample(2, sweep=4, others="long")
@pytest.mark.parametrize(("name", "tp"), [*SAMPLE, ("bert", 3), ("vit", 2)])
def test_equals_the_dense_model_at_the_planned_collectives(name: str, tp: int) -> None:
    plan = verifier(name).plan(tp)
    assert any(unit.sequence for unit in plan.units)
    assert Plan.from_json(plan.to_json()) == plan
    verifier(name).verify(tp, plan).raise_for_failure()


@pytest.mark.sweep
def test_every_fourth_family() -> None:
    for name in list(FAMILIES)[::4]:
        test_equals_the_dense_model_at_the_planned_collectives(name, 3)


def test_a_sequential_block_reduces_scatters_and_gathers() -> None:
    """In place of two sums each way; what the chains read is gathered once more backward, where it was not kept."""
    plan = verifier("llama").plan(2)
    (block,) = [unit for unit in plan.units if unit.sequence]
    counts = Counter((c.kind, c.phase, c.of) for c in block.collectives)
    assert counts == {
        ("reduce_scatter", "forward", "activation"): 2,
        ("all_gather", "forward", "activation"): 2,
        ("reduce_scatter", "backward", "activation"): 2,
        ("all_gather", "backward", "activation"): 4,
        ("all_reduce", "backward", "parameter"): 1,
    }
    assert Counter((c.kind, c.phase, *c.nodes) for c in plan.around) == {
        ("all_gather", "backward", "model.layers.0"): 1,
        ("all_gather", "forward", "model.layers.1"): 1,
    }


class Trained:
    """A small dense model in float64 and its parallel form, whose blocks hand on what is cut over positions."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.dense: Any = build_model(FAMILIES[name].config(), meta=False).double()
        with Float64():
            self.found = survey(self.dense, examples_for(self.dense, None))
        self.made: dict[int, tuple[Plan, Any]] = {}

    def on_ranks(self, tp: int, run: Callable[[Any, Ranks], Any]) -> list[Any]:
        if tp not in self.made:
            plan = make_plan(self.dense, self.found, tp, sequence_parallel=True)
            self.made[tp] = plan, make_compilers(plan, self.found)
        plan, compilers = self.made[tp]

        def on_rank(ranks: Ranks) -> Any:
            with Float64():
                model = apply_plan(copy.deepcopy(self.dense), plan, ranks, compilers)
                join_ranks(model, ranks)
                return run(model, ranks)

        return simulate(tp, on_rank)


@functools.cache
def trained(name: str) -> Trained:
    return Trained(name)


def step(model: Any, length: int, batch: int = 2, **settings: Any) -> dict[str, torch.Tensor]:
    """The loss of one call, and every parameter's gradient as a whole."""
    ids = torch.randint(3, 250, (batch, length), generator=torch.Generator().manual_seed(length))
    with Float64():
        loss = model(input_ids=ids, labels=ids, use_cache=False, **settings).loss
        loss.backward()
    if hasattr(model, "_autotp"):
        return {"loss": loss.detach(), **autotp.full_gradients(model)}
    return {"loss": loss.detach(), **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


def assert_equal(found: dict[str, torch.Tensor], true: dict[str, torch.Tensor]) -> None:
    assert found.keys() >= true.keys()
    for name, value in true.items():
        assert torch.allclose(found[name], value, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("length", [3, 4, 7])
def test_any_length_that_every_rank_has_a_position_of(length: int) -> None:
    true = step(copy.deepcopy(trained("llama").dense), length)
    for found in trained("llama").on_ranks(3, lambda model, ranks: step(model, length)):
        assert_equal(found, true)


def kinds(log: CollectiveLog) -> set[str]:
    return {call.kind for call in log.calls if call.phase in ("forward", "backward")}


def test_a_shorter_sequence_and_a_call_without_gradients_are_not_cut() -> None:
    def run(model: Any, ranks: Ranks) -> Any:
        with ranks.logging() as short:
            gradients = step(model, 2)
        with ranks.logging() as silent, torch.no_grad():
            model(torch.arange(3, 15)[None])
        return gradients, kinds(short), kinds(silent)

    true = step(copy.deepcopy(trained("llama").dense), 2)
    for found, short, silent in trained("llama").on_ranks(3, run):
        assert_equal(found, true)
        assert "reduce_scatter" not in short | silent


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks(reentrant: bool) -> None:
    """What is computed again keeps its input whole, and stops before the last sum. Reentrant checkpointing runs blocks without
    gradients first, which are not cut, and then as if there were no checkpointing."""

    def run(model: Any, ranks: Ranks) -> Any:
        model.train().gradient_checkpointing_enable({"use_reentrant": reentrant})
        with ranks.logging() as log:
            found = step(model, 7)
        return found, Counter((c.kind, c.phase) for c in log.calls)

    true = step(copy.deepcopy(trained("llama").dense), 7)
    for found, counts in trained("llama").on_ranks(3, run):
        assert_equal(found, true)
        assert counts["reduce_scatter", "forward"] == (4 if reentrant else 6)
        assert counts["reduce_scatter", "backward"] == 4
        assert counts["all_gather", "backward"] == (10 if reentrant else 5)


def test_generation_is_the_dense_model_s() -> None:
    prompt = torch.arange(5, 12)[None]

    def run(model: Any, ranks: Ranks) -> torch.Tensor:
        step(model, 5)
        return model.eval().generate(prompt, max_new_tokens=6, do_sample=False)

    with Float64():
        true = trained("llama").dense.eval().generate(prompt, max_new_tokens=6, do_sample=False)
    assert all(torch.equal(found, true) for found in trained("llama").on_ranks(2, run))


def test_hidden_states_are_whole_to_who_asks_for_them() -> None:
    """Read by a loss, too: a value that a block handed on has the gradients of both."""

    def run(model: Any, ranks: Any = None) -> dict[str, torch.Tensor]:
        with Float64():
            out = model(torch.arange(3, 14)[None], output_hidden_states=True, use_cache=False)
            (out.logits.pow(2).sum() + out.hidden_states[1].pow(3).sum()).backward()
        assert not any(isinstance(state, CutResult) for state in out.hidden_states)
        gradients = autotp.full_gradients(model) if ranks else {n: p.grad for n, p in model.named_parameters()}
        return {**gradients, **{f"state {i}": state.detach() for i, state in enumerate(out.hidden_states)}}

    true = run(copy.deepcopy(trained("llama").dense))
    for found in trained("llama").on_ranks(3, run):
        assert_equal(found, true)


def test_frozen_parameters_have_no_collectives() -> None:
    def run(model: Any, ranks: Ranks) -> Any:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("layers.1.mlp" in name)
        with ranks.logging() as log:
            return step(model, 7), log.count("backward", "parameter"), log.count("backward")

    dense = copy.deepcopy(trained("llama").dense)
    for name, parameter in dense.named_parameters():
        parameter.requires_grad_("layers.1.mlp" in name)
    true = step(dense, 7)
    for found, of_parameters, of_activations in trained("llama").on_ranks(3, run):
        assert_equal({name: found[name] for name in true}, true)
        assert of_parameters == 0
        # What gate and up read is gathered again, the gradient of down's sum is gathered, that of the head's input summed.
        assert of_activations == 3


def test_every_second_parameter_frozen() -> None:
    """Embeddings, and one norm of each block: what is planned for their gradients is not run."""

    def run(model: Any, ranks: Ranks | None = None) -> Any:
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number % 2 == 1)
        with Float64(), ranks.logging() if ranks else nullcontext(CollectiveLog()) as log:
            model(torch.arange(3, 10)[None], use_cache=False).logits.pow(2).sum().backward()
        ran = Counter((c.kind, c.phase, c.of) for c in log.calls)
        gradients = autotp.full_gradients(model) if ranks else {n: p.grad for n, p in model.named_parameters()}
        return {n: gradient for n, gradient in gradients.items() if gradient is not None}, ran

    true, _ = run(copy.deepcopy(trained("llama").dense))
    results = trained("llama").on_ranks(3, run)
    plan, _ = trained("llama").made[3]
    planned = Counter((c.kind, c.phase, c.of) for c in plan.step())
    for found, ran in results:
        assert found.keys() == true.keys()
        assert_equal(found, true)
        assert ran - planned == {("all_gather", "forward", "activation"): 1}  # behind the last block
        # Nothing before the first block wants a gradient: what q, k and v read there has none. One norm of each block is
        # frozen, and the gradient of the other one is summed by itself.
        assert planned - ran == {("reduce_scatter", "backward", "activation"): 1}


# -- modules ---------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Norm, chain, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(self.up(self.mixed(self.norm(x))).relu()))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Blocks(nn.Module):
    """Blocks, and Python between them."""

    kind: type[Block] = Block

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.kind() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = self.between(block(x), number)
        return x

    def between(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return x


class Rolling(Blocks):
    """What one block hands on is moved along before the next one."""

    def between(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return x + x.roll(1, 1) if number == 1 else x


class Writing(Blocks):
    """What one block hands on is changed in place before the next one."""

    def between(self, x: torch.Tensor, number: int) -> torch.Tensor:
        return x.mul_(x.roll(1, 1).detach()) if number == 1 else x


class MixedBlock(Block):
    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.cumsum(1)


class Mixed(Blocks):
    """An operator inside of each block mixes positions."""

    kind = MixedBlock


class ForkedBlock(Block):
    """One value is read by two functions, each with a chain behind it: its gradient is summed before the functions."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(self.up(y.tanh()) * self.other(y.sigmoid()))


class Forked(Blocks):
    """Where gradients already differ between ranks nothing is computed on positions."""

    kind = ForkedBlock


class FoldedBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.view(x.shape[0], -1, 2, 16)).view(x.shape)


class Folded(Blocks):
    """Positions are taken apart by pairs."""

    kind = FoldedBlock


@pytest.mark.parametrize(("kind", "begins", "ends"), [(Blocks, 0, 1), (Rolling, 1, 2), (Mixed, 0, 1), (Forked, 0, 1)])
def test_whoever_reads_a_cut_value_reads_the_whole(kind: type[Blocks], begins: int, ends: int) -> None:
    """In Python between blocks and in operators that mix positions; where a value begins and ends to be cut is planned. The
    example's input wants no gradient, so that nothing is gathered for it."""
    found = Verifier(kind(), example=torch.randn(2, 7, 16), sequence_parallel=True)
    plan = found.plan(3)
    assert Counter(c.phase for c in plan.around) == Counter(backward=begins, forward=ends)
    found.verify(3, plan).raise_for_failure()


def test_a_cut_value_that_is_written_in_place_is_what_was_written() -> None:
    """Its gradient, of which a rank has its positions, is gathered for what wrote."""
    found = Verifier(Writing(), example=torch.randn(2, 7, 16), sequence_parallel=True)
    assert found.verify(3, found.plan(3)).exact


def test_what_cannot_be_cut_says_why() -> None:
    found = Verifier(Folded(), example=torch.randn(2, 6, 16), sequence_parallel=True)
    plan = found.plan(2)
    (unit,) = plan.units
    assert not unit.sequence
    assert not plan.around
    assert any(reason.startswith("positions: its positions are taken apart") for reason in unit.not_cut), unit.not_cut
    found.verify(2, plan).raise_for_failure()


# -- memory ----------------------------------------------------------------------------------------------------------


def kept_config() -> Any:
    config = FAMILIES["llama"].config()
    config.update({"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 256})
    return config


def kept_on_a_rank(sequence_parallel: bool) -> int:
    model: Any = autotp.parallelize(build_model(kept_config(), meta=False), sequence_parallel=sequence_parallel)
    ids = torch.arange(128)[None] % 200 + 3
    model(ids, use_cache=False)  # traced
    return bytes_kept(lambda: model.model(ids, use_cache=False).last_hidden_state)


@pytest.mark.sweep
def test_less_is_kept_as_predicted() -> None:
    """What a forward keeps, on four ranks, less what norms and heads keep outside."""

    def predicted(sequence_parallel: bool) -> float:
        study = Study(kept_config(), tokens=128, sequence_parallel=sequence_parallel)
        return study.estimate(study.plan(4)).memory.activations

    kept, cut = (run_ranks(kept_on_a_rank, 4, sequence_parallel) for sequence_parallel in (False, True))
    # The estimate is of two bytes a number, most of the model's have four.
    saved = (predicted(False) - predicted(True)) * 2
    assert max(cut) < 0.6 * min(kept)
    assert kept[0] - cut[0] == pytest.approx(saved, rel=0.3)


# -- reports ---------------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_reports_show_positions() -> None:
    """Shapes on a rank, what is gathered and when; an edited plan gets the collectives that it needs."""
    study = Study(FAMILIES["llama"].config(), sequence_parallel=True)
    plan = study.plan(2)
    assert study.read(dataclasses.replace(plan, around=())) == plan
    uncut = study.read(
        dataclasses.replace(plan, units=tuple(dataclasses.replace(unit, sequence=False) for unit in plan.units))
    )
    assert not uncut.around
    assert uncut.units[1].count("forward", kind="all_reduce") == 2
    text = GraphDiff((make_diff(study.module, study.found, plan),)).text()
    assert "b × s/2 × 64" in text
    assert "reduce-scatter" in text
    cut, whole = study.estimate(plan), study.estimate(uncut)
    assert cut.token == whole.token
    assert cut.memory.activations < whole.memory.activations
