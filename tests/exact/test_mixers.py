"""State-space and linear-attention families: equal to the dense model forward, backward and in what they write."""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import Cache, PreTrainedModel

from autotp.dispatch.apply import apply_plan
from autotp.planner.plan import ParameterPlan, UnitPlan
from autotp.runtime.groups.ranks import Ranks
from autotp.runtime.groups.simulate import simulate
from autotp.verify import Verifier
from tests.families import MIXERS

# One size that divides the heads of all and one that divides those of none; a third where ranks share what heads share.
SIZES = dict.fromkeys(MIXERS, (2, 3)) | {"mamba2_one_group": (2, 3, 4), "lfm2": (2, 3, 4)}
CASES = [pytest.param(name, tp, id=f"{name}-tp{tp}") for name, sizes in SIZES.items() for tp in sizes]
NEW = 8
STATES = ("conv_states", "recurrent_states")


@functools.cache
def verifier(name: str) -> Verifier:
    """Cases come family by family, so each model is surveyed and run whole only once."""
    return Verifier(MIXERS[name].config())


def blocks(name: str, tp: int) -> list[UnitPlan]:
    return [unit for unit in verifier(name).plan(tp).units if unit.instances[0].rpartition(".")[2].isdigit()]


def large(name: str, tp: int) -> Iterator[ParameterPlan]:
    for unit in blocks(name, tp):
        yield from (parameter for parameter in unit.parameters if parameter.elements >= 1000)


@pytest.mark.sample(2, sweep=4, others="long")
@pytest.mark.parametrize(("name", "tp"), CASES)
def test_equals_the_dense_model(name: str, tp: int) -> None:
    report = verifier(name).verify(tp)
    report.raise_for_failure()
    assert report.outputs
    assert any(difference.name.startswith("result of") for difference in report.gradients)
    if tp == 2:
        _check_collectives(name)
    for parameter in large(name, tp):
        shared = "_one_group" in name and parameter.name.endswith("in_proj.weight")
        padded = math.prod(layout.padded_size for layout in parameter.parsed())
        assert padded / parameter.local_elements >= (1.75 if shared else tp), parameter


def _check_collectives(name: str) -> None:
    family, unit = MIXERS[name], blocks(name, 2)[0]
    assert Counter(f"{c.kind} {c.phase} {c.of}" for c in unit.collectives) == {
        "all_reduce forward activation": family.forward,
        "all_reduce backward activation": family.backward,
        **family.extra,
    }


def write(model: PreTrainedModel) -> tuple[torch.Tensor, Cache]:
    """Greedy continuations of two prompts, the first padded on the left."""
    ids = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with torch.no_grad():
        written = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            return_dict_in_generate=True,
        )
    return written.sequences, written.past_key_values


def kept(cache: Cache) -> list[tuple[int, ...]]:
    """The shapes of all states in a cache."""
    layers = [vars(layer) for layer in getattr(cache, "layers", [])]
    states = [state for layer in layers for kind in STATES for state in layer.get(kind, {}).values()]
    return [tuple(state.shape) for state in states if state is not None]


# A model of this family has attention in every third block or so; its mixers are those of the others.
WRITERS = [name for name in MIXERS if name != "zamba"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRITERS)
def test_tokens_are_the_dense_models_and_states_are_local(name: str) -> None:
    """Two programs a structure, one for the prompt and one for a token, however long the texts are."""
    found, tp = verifier(name), 2
    plan, dense = found.plan(tp), with_weights(found.dense)
    expected, whole = write(dense)
    compilers = found.session.compilers(plan)

    def on_rank(ranks: Ranks) -> tuple[torch.Tensor, list[tuple[int, ...]]]:
        tokens, cache = write(apply_plan(copy.deepcopy(dense), plan, ranks, compilers))
        return tokens, kept(cache)

    for tokens, shapes in simulate(tp, on_rank):
        assert torch.equal(tokens, expected)
        assert sum(map(math.prod, shapes)) <= 0.6 * sum(map(math.prod, kept(whole)))
    for unit, compiler in compilers.items():
        if unit in blocks(name, tp):
            assert sum(map(len, compiler.programs.values())) == 2


def with_weights(model: nn.Module) -> nn.Module:
    """A copy that writes texts of more than one word."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model


def test_layouts_of_a_block_whose_heads_share_a_group() -> None:
    """The golden plan: gate, channels and steps are cut by heads, what heads share (two of 16) is whole."""
    (unit,) = blocks("mamba2_one_group", 2)
    channels, shared = "(8/2@1 · 16)", "32"
    assert {parameter.name: parameter.layouts for parameter in unit.parameters} == {
        "norm.weight": ("64",),
        "mixer.dt_bias": ("8/2@1",),
        "mixer.A_log": ("8/2@1",),
        "mixer.D": ("8/2@1",),
        "mixer.conv1d.weight": (f"[{channels} + {shared}]", "1", "4"),
        "mixer.conv1d.bias": (f"[{channels} + {shared}]",),
        "mixer.in_proj.weight": (f"[{channels} + {channels} + {shared} + 8/2@1]", "64"),
        "mixer.norm.weight": (channels,),
        "mixer.out_proj.weight": ("64", channels),
    }


def test_one_program_serves_all_lengths() -> None:
    """A loop over time would make a trace hold for one length, and a chunk for its multiples."""
    name = "mamba2"
    found, tp = verifier(name), 2
    plan = found.plan(tp)
    compilers = found.session.compilers(plan)

    def on_rank(ranks: Ranks) -> list[torch.Tensor]:
        model = apply_plan(copy.deepcopy(found.dense), plan, ranks, compilers)
        return [model(ids, use_cache=False).logits.detach() for ids in texts]

    texts = [torch.randint(0, 250, (2, length)) for length in (5, 8, 13, 16, 31)]
    expected = [found.dense(ids, use_cache=False).logits.detach() for ids in texts]
    for logits in simulate(tp, on_rank):
        for one, other in zip(logits, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for unit, compiler in compilers.items():
        if unit in blocks(name, tp):
            assert sum(map(len, compiler.programs.values())) == 1
