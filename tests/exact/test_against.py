"""Plans beside transformers' own: what its styles send is counted on two gloo ranks, and what ours save is asserted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PretrainedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from autotp.cli import main
from autotp.errors import PlanError, UsageError
from autotp.huggingface.models import build_model
from autotp.huggingface.tp_plan import own_styles
from autotp.planner.cost import wire_bytes
from autotp.planner.formula import evaluate, sizes
from autotp.planner.plan import Plan
from autotp.runtime.groups.launch import run_ranks
from autotp.session.study import Study
from tests.families import FAMILIES, MIXTURES
from tests.zoo.kinds import CAUSAL, Kind
from tests.zoo.models import config_of

COUNTED = ("llama", "phi3", "gpt_neox", "mixtral", "deepseek_v2", "aria_text", "qwen3", "deepseek_v3")
BATCH, SEQUENCE = 2, 11
KINDS = {"all_reduce": "all_reduce", "allreduce_": "all_reduce", "all_gather_into_tensor": "all_gather"}


def config(name: str) -> PretrainedConfig:
    known = FAMILIES | MIXTURES
    return known[name].config() if name in known else config_of(Kind(name, CAUSAL))


class CountSent(TorchDispatchMode):
    """Counts the bytes that this rank sends in a ring, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kind = KINDS.get(func.overloadpacket.__name__) if func.namespace in ("_c10d_functional", "c10d") else None
        if kind is not None:
            value = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            whole = value.numel() * value.element_size() * (2 if kind == "all_gather" else 1)
            self.sent[kind] += round(wire_bytes(kind, whole, 2))
        return func(*args, **(kwargs or {}))


def count(
    names: tuple[str, ...], styles: Mapping[str, str] | None = None
) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
    """Bytes that transformers sends forward and backward; runs on a rank."""
    found = {}
    for name in names:
        model = build_model(config(name), meta=False).eval()
        mesh = init_device_mesh("cpu", (2,))
        model = apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(dict(styles or own_styles(model))))
        with CountSent() as forward:
            logits = model(torch.randint(3, 60, (BATCH, SEQUENCE)), use_cache=False).logits
        with CountSent() as backward:
            logits.square().sum().backward()
        found[name] = dict(forward.sent), dict(backward.sent)
    return found


def predicted(plan: Plan, phase: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for unit in plan.units:
        for c in unit.collectives:
            if c.phase == phase:
                size = evaluate(c.elements, sizes(BATCH, SEQUENCE)) * 4
                found[c.kind] += len(unit.instances) * round(wire_bytes(c.kind, size, 2))
    return dict(found)


@pytest.mark.sweep
def test_what_transformers_sends_is_predicted() -> None:
    for counted in run_ranks(count, 2, COUNTED):
        for name, (forward, backward) in counted.items():
            study = Study(config(name))
            theirs, _ = study.against(study.plan(2), "tp_plan")
            assert forward == predicted(theirs, "forward"), name
            assert backward == predicted(theirs, "backward"), name


def test_the_sum_over_a_whole_module_is_predicted() -> None:
    styles = {"model.layers.*.mlp": "all_reduce"}
    study = Study(config("llama"))
    study.module._tp_plan = styles
    theirs, _ = study.against(study.plan(2), "tp_plan")
    for counted in run_ranks(count, 2, ("llama",), styles):
        assert counted["llama"] == (predicted(theirs, "forward"), predicted(theirs, "backward"))
        assert counted["llama"][0]


def runs_as_dense(name: str) -> bool:
    """Returns if transformers' own cut of a model gives the dense model's logits; runs on a rank."""
    torch.manual_seed(0)
    model = build_model(config(name), meta=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        ids = torch.randint(3, 60, (BATCH, SEQUENCE))
        dense = model(ids, use_cache=False).logits
        styles = model._expand_parallel_plan(dict(own_styles(model)))
        tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - dict(
            model.named_parameters()
        ).keys()
        styles = {
            path: style for path, style in styles.items() if path not in tied
        }  # which have one as a parameter, too
        try:
            cut = apply_tensor_parallelism(model, init_device_mesh("cpu", (2,)), styles)
            logits = cut(ids, use_cache=False).logits
        except (RuntimeError, AssertionError, KeyError):
            return False
    return bool((logits - dense).abs().max() < 1e-3 * dense.abs().max())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("llama", True),
        ("doge", False),
        ("gemma3n_text", False),
        ("gemma4", False),
        ("inkling_text", False),
        ("inkling2_text", False),
    ],
)
def test_plans_of_transformers_that_would_be_faster_than_ours_do_not_hold(name: str, holds: bool) -> None:
    """docs/against.md says so of these; once they hold, the table has to be looked at again."""
    assert run_ranks(runs_as_dense, 2, name) == [holds, holds]


def block(plan: Plan, phase: str) -> float:
    """Bytes of activations that the largest group of blocks sends in one phase, for one block."""
    unit = max(plan.units, key=lambda unit: len(unit.instances))
    return sum(c.wire_bytes for c in unit.collectives if c.phase == phase and c.of == "activation")


# The types' own default sizes: Phi-3 mini, GPT-J 6B, Falcon 7B, Command R.
PARTS = [
    ("phi3", 2, 1 / 3),
    ("phi3", 4, 1 / 3),
    ("gptj", 2, 1 / 2),
    ("falcon", 2, 1 / 2),
    ("cohere", 2, 1 / 2),
    ("cohere", 4, 1 / 2),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("kind", "tp", "part"), PARTS)
def test_a_block_sends_a_part_of_what_others_send(kind: str, tp: int, part: float) -> None:
    study = Study(kind)
    ours = study.plan(tp)
    theirs, name = study.against(ours, "tp_plan")
    assert name == ("transformers" if kind in ("phi3", "cohere") else "layer by layer")
    assert 0 < block(ours, "forward") <= part * block(theirs, "forward") * (1 + 1e-9)
    assert block(ours, "backward") < block(theirs, "backward")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def test_the_command_shows_both(tmp_path: Path) -> None:
    FAMILIES["phi3"].config().save_pretrained(tmp_path)
    text = run("diff", tmp_path, "--tp", 2, "--against", "tp_plan")
    assert text.exit_code == 0
    assert "model.layers.{0..1}, each" in text.stdout
    data = json.loads(run("diff", tmp_path, "--tp", 2, "--against", "tp_plan", "--json").stdout)
    kept = {moved["name"] for moved in data["moved"]}
    assert "model.layers.0.self_attn.qkv_proj.weight" in kept
    assert "model.layers.0.mlp.down_proj.weight" not in kept


def test_a_plan_from_a_file_is_read(tmp_path: Path) -> None:
    FAMILIES["llama"].config().save_pretrained(tmp_path)
    styles = {"model.layers.*.mlp.up_proj": "colwise", "model.layers.*.mlp.down_proj": "rowwise"}
    (tmp_path / "styles.json").write_text(json.dumps(styles))
    data = json.loads(run("diff", tmp_path, "--tp", 2, "--against", tmp_path / "styles.json", "--json").stdout)
    assert "model.layers.0.self_attn.q_proj.weight" in {moved["name"] for moved in data["moved"]}
    (tmp_path / "styles.json").write_text("[]")
    result = run("diff", tmp_path, "--tp", 2, "--against", tmp_path / "styles.json")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "is no tp_plan" in result.stderr


def test_an_unknown_style_is_refused() -> None:
    study = Study(FAMILIES["llama"].config())
    model: nn.Module = study.module
    model._tp_plan = {"model.layers.*.mlp.up_proj": "colwize"}
    with pytest.raises(
        PlanError, match="has the style 'colwize', whose collectives are not known; did you mean 'colwise'"
    ):
        study.against(study.plan(2), "tp_plan")
    for path, style, setting in (
        ("", "moe_tp_experts", "num_experts_per_tok"),
        (".q_proj", "mla_kv_a_proj", "qk_rope_head_dim"),
    ):
        model._tp_plan = {f"model.layers.*.self_attn{path}": style}
        with pytest.raises(PlanError, match=f"{style}.*the model's config has no {setting}"):
            study.against(study.plan(2), "tp_plan")
    with pytest.raises(UsageError, match="cannot read /nowhere: No such file"):
        study.against(study.plan(2), "/nowhere")
