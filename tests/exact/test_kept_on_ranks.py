"""A later start of a program on two real ranks traces nothing, and computes what the dense model does, in float64."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import autotp
from autotp.dispatch.compiler import Compiler
from autotp.huggingface.models import build_model
from autotp.runtime.groups.launch import run_ranks
from autotp.verify import Float64
from tests.families import MIXERS, MIXTURES, WRITERS

IDS = torch.randint(3, 250, (2, 11), generator=torch.Generator().manual_seed(1))
# Experts, two kinds of blocks, a function with a derivative of its own, two stacks, objects that are changed.
NAMES = ("llama", "mixtral", "gemma3_text", "bloom", "t5", "gpt2", "phi3", "mamba", "qwen3_next")


def numbers(model: Any) -> dict[str, Any]:
    """Tokens, also of a longer prompt, and logits of a call whose gradients are kept."""
    model.eval()
    with Float64():
        settings = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        written = [model.generate(ids, **settings).tolist() for ids in (IDS, IDS[:1].repeat(1, 2))]
        given = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
        logits = model(input_ids=IDS, use_cache=False, **given).logits
        logits.square().mean().backward()
    return {"tokens": written, "logits": logits.detach().clone()}


def start(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor | None], int]:
    """What a rank computes, all gradients, and how many traces that took."""
    traces, traced = itertools.count(), Compiler._traced

    def counted(self: Compiler, *args: Any) -> Any:
        next(traces)
        return traced(self, *args)

    Compiler._traced = counted  # type: ignore[method-assign]
    model = autotp.from_pretrained(folder)
    return numbers(model), autotp.full_gradients(model), next(traces)


def written(name: str, folder: Path) -> nn.Module:
    """A model with random weights in float64 that was saved there."""
    torch.manual_seed(0)
    model = build_model({**WRITERS, **MIXERS, **MIXTURES}[name].config(), meta=False).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    given = {"experts_implementation": "eager"} if name in MIXTURES else {}  # the others have no kernel for float64
    return type(model).from_pretrained(folder, **given).eval()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_later_start_traces_nothing(name: str, tmp_path: Path) -> None:
    dense = written(name, tmp_path)
    true = numbers(dense)
    for traces_some in (True, False):
        for found, gradients, traces in run_ranks(start, 2, tmp_path, limit_s=300):
            assert found["tokens"] == true["tokens"]
            torch.testing.assert_close(found["logits"], true["logits"], rtol=1e-9, atol=1e-9)
            for path, parameter in dense.named_parameters():
                largest = float(parameter.grad.abs().max())
                torch.testing.assert_close(gradients[path], parameter.grad, rtol=1e-9, atol=1e-9 * largest)
            assert (traces > 0) is traces_some
