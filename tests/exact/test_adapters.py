"""Adapters of peft, added before a model is made parallel and after: in float64 they are those of the dense model."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import autotp
from autotp.checkpoint.full import state_of
from autotp.errors import PlacementError
from autotp.huggingface.models import build_model
from autotp.planner.plan import Plan, UnitPlan
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import FAMILIES

pytest.importorskip("peft", reason="adapters are peft's, which is not installed")

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks for it


def plain_model(name: str) -> Any:
    torch.manual_seed(0)
    config = FAMILIES[name].config()
    config.update({key: 0.0 for key in ("resid_pdrop", "embd_pdrop", "attn_pdrop") if hasattr(config, key)})
    return build_model(config, meta=False).double().train()


def adapted(model: Any) -> Any:
    """Adapters on every linear layer of the blocks, none of whose factors is zero."""
    import peft

    torch.manual_seed(1)
    found = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear", fan_in_fan_out=_is_gpt(model)))
    for name, parameter in found.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return found.double()


def _is_gpt(model: Any) -> bool:
    return bool(model.config.model_type == "gpt2")


def loss_of(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(0))
    loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    return loss


def largest(found: dict[str, Any], true: dict[str, Any]) -> float:
    """The largest difference; infinite where one is missing and the other not."""
    pairs = [(found[name], tensor) for name, tensor in true.items()]
    if any((own is None) != (tensor is None) for own, tensor in pairs):
        return float("inf")
    return max(float((own - tensor).detach().abs().max()) for own, tensor in pairs if tensor is not None)


def counted(model: Any) -> Counter[str]:
    """The collectives of a step."""
    model.zero_grad()
    with state_of(model).ranks.logging() as log:
        loss_of(model).backward()
    return Counter(f"{c.phase} {c.of}" for c in log.calls if c.phase in ("forward", "backward"))


def trained_sums(unit: UnitPlan) -> int:
    """How many sums of a parameter's gradient a unit plans for its adapters."""
    return sum(c.of == "parameter" and any("lora" in node for node in c.nodes) for c in unit.collectives)


def outcomes(model: Any, dense: Any) -> dict[str, float]:
    """How far a parallel model with adapters is from the dense one, in everything that people do with them."""
    model.zero_grad()
    dense.zero_grad()
    expected, found = loss_of(dense), loss_of(model)
    expected.backward()
    found.backward()
    far = {"loss": abs(float((found - expected).detach()))}
    expected = expected.detach()
    true = {name: parameter.grad for name, parameter in dense.named_parameters()}
    far["gradients"] = largest(autotp.full_gradients(model), true)
    with model.disable_adapter(), dense.disable_adapter():
        plain = loss_of(dense)
        far["disabled"] = abs(float(loss_of(model) - plain))
    assert abs(float(plain - expected)) > 1e-3  # they matter
    far["enabled"] = abs(float(loss_of(model) - expected))
    model.merge_adapter()
    far["merged"] = abs(float(loss_of(model) - expected))
    return far


def unloaded(model: Any, dense: Any) -> dict[str, float]:
    """The same for a model that keeps what its adapters have learned, and not the adapters."""
    expected = loss_of(dense)
    merged, plain = copy.deepcopy(dense).merge_and_unload(), autotp.parallelize(model.merge_and_unload())
    return {
        "merged weights": largest(autotp.full_state_dict(plain), merged.state_dict()),
        "unloaded": abs(float(loss_of(plain) - expected)),
    }


def refusals(changed: Any, rank: int) -> None:
    """Adapters that nobody has cut are whole, and said to be; those that differ between ranks are refused."""
    with pytest.warns(UserWarning, match=r"parallelize\(model\) is called again"):
        loss_of(changed)
    first = next(parameter for name, parameter in changed.named_parameters() if "lora" in name)
    with torch.no_grad():
        first.add_(rank)
    with pytest.raises(PlacementError, match="different adapters"):
        autotp.parallelize(changed)
    with torch.no_grad():
        first.sub_(rank)


def before_and_after(name: str, folder: Path) -> tuple[Any, ...]:
    """Runs on a rank."""
    with Float64():
        plain = plain_model(name)
        dense = adapted(copy.deepcopy(plain))
        rank = torch.distributed.get_rank()
        if rank == 0:
            dense.save_pretrained(folder / "dense")
        before = autotp.parallelize(adapted(copy.deepcopy(plain)))
        after = autotp.parallelize(copy.deepcopy(plain))
        changed = adapted(after)
        refusals(changed, rank)
        after = autotp.parallelize(changed)
        counts = [counted(before), counted(after)]
        after.gradient_checkpointing_enable({"use_reentrant": False})
        counts.append(counted(after))
        after.gradient_checkpointing_disable()
        plans = state_of(before).plan, state_of(after).plan
        for model, target in ((before, "before"), (after, "after")):
            autotp.save_pretrained(model, folder / target)
        far = [outcomes(model, dense) for model in (before, after)]
        return [*far, unloaded(after, dense)], counts, plans


def check_placements(plan: Plan) -> None:
    """What is added to a layer's outputs is cut with them, what reads its inputs with those, and the rest is whole."""
    unit = max(plan.units, key=lambda unit: len(unit.parameters))
    placed = {parameter.name: parameter.placement for parameter in unit.parameters}
    for name, placement in placed.items():
        if name.endswith("base_layer.weight"):
            first, second = (placed[name.replace("base_layer", f"lora_{factor}.default")] for factor in "AB")
            assert placement in ("column", "row")
            assert (first, second) == (("replicated", "column") if placement == "column" else ("row", "replicated"))


# GPT-2's layers keep their weights as (in, out); Llama's two key/value heads on three ranks are padded.
ALL = [("gpt2", 2), ("llama", 3), ("phi3", 4)]


@pytest.mark.parametrize(
    ("name", "tp"), [pytest.param(*each, marks=pytest.mark.sweep if each[1] == 2 else pytest.mark.long) for each in ALL]
)
def test_adapters_before_and_after(tmp_path: Path, name: str, tp: int) -> None:
    compare(name, tp, tmp_path / name)


def compare(name: str, tp: int, tmp_path: Path) -> None:
    for far, (first, second, again), plans in run_ranks(before_and_after, tp, name, tmp_path):
        assert max(max(each.values()) for each in far) < 1e-12, far
        for plan in plans:
            check_placements(plan)
        blocks = [unit for unit in plans[0].units if any("lora" in parameter.name for parameter in unit.parameters)]
        assert first == second
        assert first["backward parameter"] == sum(len(unit.instances) * trained_sums(unit) for unit in blocks)
        # Nothing before the first block wants a gradient, so the sum that would give it one is not made, unless its call sends
        # a factor's too, as in GPT-2. With checkpointing, transformers lets the embedding's results want one.
        planned = sum(len(unit.instances) * unit.count("backward") for unit in plans[0].units)
        begin = next(c for c in blocks[0].collectives if (c.phase, c.of) == ("backward", "activation"))
        saved = int(len(begin.nodes) == 1)
        assert saved == (name != "gpt2")
        assert (first["backward activation"], again["backward activation"]) == (planned - saved, planned)
        assert first["backward parameter"] == again["backward parameter"]
    true = load_file(tmp_path / "dense" / "adapter_model.safetensors")
    for target in ("before", "after"):
        assert largest(load_file(tmp_path / target / "adapter_model.safetensors"), true) < 1e-12
        assert (tmp_path / target / "adapter_config.json").is_file()


def test_adapters_of_row_layers_cost_no_sum_of_their_own() -> None:
    plain = autotp.plan(plain_model("llama"), 2).unit_of("model.layers.0")
    block = autotp.plan(adapted(plain_model("llama")).get_base_model(), 2).unit_of("model.layers.0")
    assert plain is not None
    assert block is not None
    for phase in ("forward", "backward"):
        assert block.count(phase) == plain.count(phase) == 2
    (sums,) = [c for c in block.collectives if c.of == "parameter"]  # all in one call
    assert len(sums.nodes) == 7


def on_positions(name: str) -> tuple[Any, ...]:
    """Runs on a rank: adapters of a model whose blocks hand on what is cut over positions."""
    with Float64():
        plain = plain_model(name)
        dense = adapted(copy.deepcopy(plain))
        before = autotp.parallelize(adapted(copy.deepcopy(plain)), sequence_parallel=True)
        after = autotp.parallelize(copy.deepcopy(plain), sequence_parallel=True)
        after = autotp.parallelize(adapted(after))
        far = [far_from(dense, model) for model in (before, after)]
        after.gradient_checkpointing_enable({"use_reentrant": False})
        far.append(far_from(dense, after))
        after.gradient_checkpointing_disable()
        for model in (dense, before, after):
            model.requires_grad_()  # what a plan counts
        far += [far_from(dense, model) for model in (before, after)]
        plans = state_of(before).plan, state_of(after).plan
        return far, [of_logits(model) for model in (before, after)], plans


def far_from(dense: Any, model: Any) -> float:
    """How far the gradients of a step are from the dense model's, and the loss."""
    losses = []
    for own in (dense, model):
        own.zero_grad()
        losses.append(loss_of(own))
        losses[-1].backward()
    true = {name: parameter.grad for name, parameter in dense.named_parameters()}
    return max(float((losses[0] - losses[1]).detach().abs()), largest(autotp.full_gradients(model), true))


def of_logits(model: Any) -> Counter[tuple[str, str, str]]:
    """The collectives of a step whose loss reads whole logits. Of two texts, as the plan's: the rows of one that a layer
    flattens are positions, and then GPT-2's sums may be scattered where those of several are not."""
    with state_of(model).ranks.logging() as log:
        model(input_ids=torch.arange(3, 25).view(2, 11), use_cache=False).logits.sum().backward()
    return Counter((c.kind, c.phase, c.of) for c in log.calls)


@pytest.mark.long
def test_adapters_of_blocks_that_are_cut_over_positions() -> None:
    for name, tp in ALL:
        for far, ran, plans in run_ranks(on_positions, tp, name):
            assert max(far) < 1e-12, far
            for counted, plan in zip(ran, plans, strict=True):
                assert any("lora" in p.name for unit in plan.units if unit.sequence for p in unit.parameters)
                assert counted == Counter((c.kind, c.phase, c.of) for c in plan.step())
                check_placements(plan)
            assert plans[0].around == plans[1].around
            assert ran[0] == ran[1]
