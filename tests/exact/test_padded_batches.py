"""Encoders of torch that write, without gradients, zeros where a batch is padded: they compute on nested tensors then."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autotp
from autotp.runtime.groups.launch import run_ranks

WIDTH, LENGTH = 24, 9


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 6, 36, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(WIDTH)).double().eval()


def values() -> torch.Tensor:
    return torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def uses(model: nn.TransformerEncoder) -> list[torch.Tensor]:
    x, padded = values(), torch.arange(LENGTH) >= torch.tensor([[6], [LENGTH]])
    nested = torch.nested.nested_tensor([x[0, :6], x[1]])
    found = [model(x, src_key_padding_mask=padded).detach()]
    for around in (torch.no_grad, torch.inference_mode, torch.no_grad):
        with around():
            found += [model(x), model(x, src_key_padding_mask=padded), model(nested).to_padded_tensor(0.0)]
            found += [model.layers[0](nested).to_padded_tensor(0.0), model.layers[1].self_attn(x, x, x)[0]]
    model.zero_grad()
    jagged = torch.nested.nested_tensor([x[0, :6], x[1]], layout=torch.jagged)
    ahead = model.layers[0].linear2(model.layers[0].linear1(jagged).relu())  # whose class computes with parts by itself
    ahead.values().square().sum().backward()
    found += [ahead.values().detach()]
    model(x, src_key_padding_mask=padded).square().mean().backward()
    found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [tensor.clone() for tensor in found]


def on_rank() -> tuple[float, float]:
    dense, parallel = encoder(), autotp.parallelize(encoder(), example=(values(),))
    apart = [float((a - b).abs().max()) for a, b in zip(uses(parallel), uses(dense), strict=True)]
    compiled = torch.compile(dense, fullgraph=True, backend="aot_eager")  # beside a parallel one
    with torch.no_grad():
        return max(apart), float((compiled(values()) - dense(values())).abs().max())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_padded_is_zero_where_the_dense_encoder_s_is() -> None:
    for apart, beside in run_ranks(on_rank, 3):
        assert apart < 1e-10
        assert beside < 1e-10
