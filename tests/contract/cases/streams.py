"""Two streams that attend to each other, the last of which nobody reads."""

import torch
from torch import nn
from torch.nn import functional

from tests.contract.parts import HIDDEN, INNER, case, linear

HEADS, WIDTH = 3, 8  # on two ranks one has a head of padding


class Joint(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN, dtype=torch.float64) for _ in range(2))
        self.inputs = nn.ModuleList(linear(HIDDEN, 3 * HEADS * WIDTH) for _ in range(2))
        self.outputs = nn.ModuleList(linear(HEADS * WIDTH, HIDDEN) for _ in range(2))
        self.ups = nn.ModuleList(linear(HIDDEN, INNER) for _ in range(2))
        self.downs = nn.ModuleList(linear(INNER, HIDDEN) for _ in range(2))

    def forward(self, streams):
        fused = [layer(norm(x)) for layer, norm, x in zip(self.inputs, self.norms, streams, strict=True)]
        heads = torch.cat(fused, 1).unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        apart = mixed.split([x.shape[1] for x in streams], 1)
        streams = [x + layer(y) for x, layer, y in zip(streams, self.outputs, apart, strict=True)]
        return [x + down(functional.gelu(up(x))) for x, up, down in zip(streams, self.ups, self.downs, strict=True)]


class Streams(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = linear(HIDDEN, HIDDEN)
        self.blocks = nn.ModuleList(Joint() for _ in range(2))

    def forward(self, x):
        streams = [x, self.embed(x[:, :2])]
        for block in self.blocks:
            streams = block(streams)
        return streams[0]


@case()
def a_stream_that_nobody_reads():
    """What the last block makes of it has no gradient on any rank, padded or not."""
    yield Streams()
    for _ in range(4):
        yield
