"""Plans loaded into the systems they are exported to, on two gloo ranks: right logits, or refused with the reason."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from transformers import PretrainedConfig, PreTrainedModel
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from autotp.errors import PlanError, UsageError
from autotp.huggingface.models import build_model
from autotp.report.export.systems import torch_styles
from autotp.runtime.groups.launch import run_ranks
from autotp.session.study import Study
from tests.families import FAMILIES

LOADED = {
    "tp_plan": ("llama", "qwen3", "gpt_neox", "cohere"),
    "torch": ("llama", "gpt_neox", "cohere"),
    "deepspeed": ("llama", "qwen3"),
}
WHOLE = {"tp_plan": {}, "torch": {}, "deepspeed": {"model.embed_tokens": "replicate"}}


def configured(name: str) -> PretrainedConfig:
    """Without a tied head: what is loaded here must find a weight under every name."""
    config = FAMILIES[name].config()
    config.tie_word_embeddings = False
    return config


@functools.cache
def exported(name: str, system: str, tp: int = 2) -> Any:
    study = Study(configured(name), settings=WHOLE[system])
    return study.export(study.plan(tp), system)


def dense(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = build_model(configured(name), meta=False).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def loaded(system: str, plans: dict[str, Any]) -> dict[str, float]:
    """Largest relative differences of the logits; runs on a rank."""
    found = {}
    for name, plan in plans.items():
        torch.manual_seed(1)
        ids = torch.randint(3, 250, (2, 11))
        expected = dense(name)(ids).logits
        with torch.no_grad():
            logits = LOADERS[system](name, plan)(ids).logits
        found[name] = float((logits - expected).abs().max() / expected.abs().max())
    return found


def by_transformers(name: str, plan: Any) -> nn.Module:
    """What `from_pretrained` does with a plan (that function needs accelerate, which is not needed for anything else)."""
    model = dense(name)
    model.tp_plan = plan
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return apply_tensor_parallelism(model, mesh, model._expand_parallel_plan(plan))


def by_torch(name: str, plan: Any) -> nn.Module:
    model = dense(name)
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), torch_styles(plan, model))


def by_deepspeed(name: str, plan: Any) -> nn.Module:
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "tensor_parallel": {"autotp_size": dist.get_world_size(), "partition_config": plan},
        "zero_optimization": {"stage": 0},
    }
    engine, *_ = deepspeed.initialize(model=dense(name), config=settings)
    return engine.module.eval()


LOADERS = {"tp_plan": by_transformers, "torch": by_torch, "deepspeed": by_deepspeed}


@pytest.mark.parametrize("system", LOADED)
def test_an_export_gives_right_logits(system: str) -> None:
    if system == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed, so what is exported for it is only read here, not loaded")
    plans = {name: json.loads(json.dumps(exported(name, system))) for name in LOADED[system]}
    for differences in run_ranks(loaded, 2, system, plans):
        assert differences.keys() == plans.keys()
        assert max(differences.values()) < 1e-4, differences


REFUSED = [
    (
        "phi3",
        "tp_plan",
        "qkv_proj.weight has the layout [(2/2@1 · 32) + (2/2@1 · 8) + (2/2@1 · 8)], and there a rank gets one",
    ),
    ("gpt2", "torch", "transformer.h.0.attn.c_attn.weight belongs to a Conv1D, and only linear layers"),
    (
        "olmo2",
        "tp_plan",
        "model.layers.0.self_attn.q_norm needs an all-reduce at reduce that is not at the end of a layer",
    ),
    ("gptj", "tp_plan", "the model's own code counts on whole sizes, which other systems do not change"),
    ("deepseek_v2", "tp_plan", "self_attn needs an all-reduce of the gradient at enter_3"),
    ("qwen3", "torch", "the gradient of model.layers.*.self_attn.q_norm is summed over the ranks"),
    ("gpt_neox", "deepspeed", "--set 'gpt_neox.embed_in=replicate'"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "system", "reason"), REFUSED)
def test_what_a_system_cannot_express_is_refused_with_the_reason(name: str, system: str, reason: str) -> None:
    settings = WHOLE[system] if name in LOADED[system] else {}
    study = Study(FAMILIES[name].config(), settings=settings)
    with pytest.raises(PlanError, match=re.escape(reason)):
        study.export(study.plan(2), system)


def test_a_gather_whose_gradient_is_scattered_is_refused() -> None:
    """As it is where bytes count more than calls."""
    study = Study(FAMILIES["deepseek_v2"].config(), tokens=10**6)
    with pytest.raises(PlanError, match=r"q_a_proj needs a reduce-scatter of the gradient at gather"):
        study.export(study.plan(2), "tp_plan")


def test_padding_is_refused() -> None:
    with pytest.raises(PlanError, match=r"embed_tokens\.weight has the layout 250>252/4@1"):
        exported("llama", "tp_plan", tp=4)


def test_an_unknown_system_names_the_nearest() -> None:
    study = Study(FAMILIES["llama"].config())
    with pytest.raises(UsageError, match="no exporter for 'deepspead'; did you mean 'deepspeed'"):
        study.export(study.plan(2), "deepspead")


def test_deepspeed_reads_patterns_of_every_layer() -> None:
    plan = exported("llama", "deepspeed")
    assert plan["use_default_specs"] is False
    (query,) = (s for s in plan["layer_specs"] if re.match(s["patterns"][0], "model.layers.1.self_attn.q_proj.weight"))
    assert query == {"patterns": [r"^model\.layers\.\d+\.self_attn\.q_proj\.weight$"], "partition_type": "column"}
    (head,) = (s for s in plan["layer_specs"] if re.match(s["patterns"][0], "lm_head.weight"))
    assert head["gather_output"] is True
