"""Quantized checkpoints: each rank has its part of the weights that transformers dequantizes, and saves whole ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

import autotp
from autotp.errors import UsageError
from autotp.huggingface.models import build_model
from autotp.huggingface.pretrained import quiet
from autotp.runtime.groups.launch import run_ranks
from tests.families import LLAMA_LIKE

BLOCK = 16  # rows and columns of fp8 that share a scale
GROUP = 32  # numbers of mxfp4 that share an exponent
EXPERTS = {**LLAMA_LIKE, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "head_dim": 16}


def in_blocks(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Eight-bit floats, and one scale for every block."""
    if "proj" not in name:
        return {name: weight}
    rows, columns = (size // BLOCK for size in weight.shape)
    blocks = weight.float().view(rows, BLOCK, columns, BLOCK)
    scales = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    numbers = (blocks / scales[:, None, :, None]).view_as(weight).to(torch.float8_e4m3fn)
    return {name: numbers, f"{name}_scale_inv": scales}


def in_halves_of_bytes(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Four-bit floats of experts, two in a byte, and one exponent for a group: any bytes are some weights."""
    if not name.endswith(("gate_up_proj", "down_proj")):
        return {name: weight}
    experts, inputs, outputs = weight.shape
    shape = (experts, outputs, inputs // GROUP)
    numbers = torch.randint(0, 256, (*shape, GROUP // 2), dtype=torch.uint8)
    return {f"{name}_blocks": numbers, f"{name}_scales": torch.randint(118, 124, shape, dtype=torch.uint8)}


Quantize = Callable[[str, torch.Tensor], dict[str, torch.Tensor]]
FORMATS: dict[str, tuple[PretrainedConfig, Quantize, dict[str, Any]]] = {
    "fp8": (AutoConfig.for_model("llama", **LLAMA_LIKE), in_blocks, {"weight_block_size": [BLOCK, BLOCK]}),
    "mxfp4": (
        AutoConfig.for_model("gpt_oss", **EXPERTS, layer_types=["full_attention", "sliding_attention"]),
        in_halves_of_bytes,
        {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ]
        },
    ),
}


def write_quantized(folder: Path, method: str) -> None:
    torch.manual_seed(0)
    config, quantize, settings = FORMATS[method]
    build_model(config, meta=False).bfloat16().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    stored = {name: part for key, weight in tensors.items() for name, part in quantize(key, weight).items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    say(folder, {"quant_method": method, **settings})


def say(folder: Path, quantization: dict[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": quantization}))


def load(folder: Path, target: Path) -> tuple[dict[str, torch.Tensor], Any]:
    model = autotp.from_pretrained(folder)
    autotp.save_pretrained(model, target)
    return autotp.full_state_dict(model), autotp.loading(model)


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", FORMATS)
def test_weights_are_those_that_transformers_dequantizes(method: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="transformers loads quantized weights with accelerate")
    write_quantized(tmp_path / "a", method)
    with quiet():
        dense = AutoModelForCausalLM.from_pretrained(tmp_path / "a").state_dict()
    for whole, loaded in run_ranks(load, 2, tmp_path / "a", tmp_path / "b"):
        assert whole.keys() == dense.keys()
        assert all(torch.equal(whole[name], weight) for name, weight in dense.items())
        assert loaded.bytes_read < loaded.bytes_of_checkpoint  # what is not quantized is read by slices
    with quiet():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert all(torch.equal(weight, dense[name]) for name, weight in saved.state_dict().items())


def refuse(folder: Path) -> str:
    with pytest.raises(UsageError) as raised:
        autotp.from_pretrained(folder)
    return str(raised.value)


def test_what_cannot_be_undone_is_refused_on_every_rank(tmp_path: Path) -> None:
    build_model(AutoConfig.for_model("llama", **LLAMA_LIKE), meta=False).save_pretrained(tmp_path)
    say(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    for message in run_ranks(refuse, 2, tmp_path):
        assert "quantized by 'bitsandbytes', which transformers cannot undo while loading" in message
