"""Networks as people write them for images and sound: equal to the dense ones, and cut, convolutions over their channels."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import autotp
from autotp.checkpoint.full import state_of
from autotp.runtime.groups.launch import run_ranks


def conv(inner: int, outer: int, size: int = 3, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, size, padding=size // 2, **options)


class Residual(nn.Module):
    """A block of Stable Diffusion's UNet: norms over groups, and a shift for every channel that is made of the time."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.before, self.first = nn.GroupNorm(4, inner), conv(inner, outer)
        self.time = nn.Linear(16, outer)
        self.between, self.second = nn.GroupNorm(4, outer), conv(outer, outer)
        self.aside = conv(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(functional.silu(self.before(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.aside(x) + self.second(functional.silu(self.between(y)))


class Attention(nn.Module):
    """Attention between places, with convolutions of size one in place of linears."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(4, channels),
            conv(channels, 3 * channels, 1),
            conv(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        query, key, value = self.qkv(self.norm(x)).reshape(b, 3, 4, c // 4, h * w).transpose(-1, -2).unbind(1)
        y = functional.scaled_dot_product_attention(query, key, value).transpose(-1, -2).reshape(b, c, h, w)
        return x + self.out(y)


class Unet(nn.Module):
    """Down, attention in the middle, up, with what was there on the way down beside what comes up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = conv(3, 16), Residual(16, 16), Residual(16, 32)
        self.down, self.middle = conv(32, 32, 3, stride=2), nn.ModuleList([Residual(32, 32), Residual(32, 32)])
        self.attention, self.up = Attention(32), nn.ConvTranspose2d(32, 32, 2, stride=2)
        self.three, self.four, self.last = Residual(64, 32), Residual(48, 16), conv(16, 3)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        one = self.one(self.first(x), time)
        two = self.two(one, time)
        y = self.down(two)
        for block in self.middle:
            y = block(y, time)
        y = self.three(torch.cat([self.up(self.attention(y)), two], 1), time)
        return self.last(self.four(torch.cat([y, one], 1), time))


class Squeezed(nn.Module):
    """MobileNet's and EfficientNet's: wide, each channel by itself, weighed by what all places say together, and narrow again."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.each = conv(8, 48, 1), conv(48, 48, groups=48)
        self.reduce, self.expand, self.narrow = conv(48, 4, 1), conv(4, 48, 1), conv(48, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.each(functional.silu(self.wide(x))))
        weights = self.expand(functional.silu(self.reduce(functional.adaptive_avg_pool2d(y, 1))))
        return x + self.narrow(y * weights.sigmoid())


class Bottleneck(nn.Module):
    """ResNet's: every convolution is followed by a norm over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.each, self.narrow = conv(8, 48, 1), conv(48, 48, groups=12), conv(48, 8, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(48), nn.BatchNorm2d(48, momentum=0.3), nn.BatchNorm2d(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, last = self.norms
        y = second(self.each(functional.channel_shuffle(first(self.wide(x)).relu(), 4))).relu()
        return (x + last(self.narrow(y))).relu()


class Gated(nn.Module):
    """Half of the channels opens the other half; the norm between is over all of them, at one small sum."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.narrow, self.bent = (
            nn.Linear(32, 192),
            nn.LayerNorm(96),
            nn.Linear(96, 32),
            nn.PReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(self.norm(self.bent(functional.glu(self.wide(x)))))


class Windows(nn.Module):
    """Windows of every channel side by side, weighed, and laid over each other again."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.bent = conv(8, 32), conv(32, 8), nn.PReLU(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = functional.unfold(self.bent(self.wide(x)), 3, padding=1)
        return x + self.narrow(functional.fold(windows.softmax(-1) * windows, x.shape[2:], 3, padding=1))


class Grouped(nn.Module):
    """ResNeXt's: channels in groups, of which each is made of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.groups, self.narrow = conv(8, 48, 1), conv(48, 48, groups=6), conv(48, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(functional.max_pool2d(self.groups(self.wide(x).relu()).relu(), 3, 1, 1))


class Upwards(nn.Module):
    """A step of an image autoencoder's decoder (AutoencoderKL): larger between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.norm = conv(8, 32), conv(32, 8), nn.InstanceNorm2d(32, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.interpolate(self.norm(self.wide(x)), scale_factor=2.0, mode="bilinear")
        return functional.avg_pool2d(x + self.narrow(functional.silu(y))[..., ::2, ::2], 1)


class Sound(nn.Module):
    """As autoencoders of sound have it, over time: a transposed convolution makes more of it, a strided one less."""

    def __init__(self) -> None:
        super().__init__()
        self.more, self.less = (
            nn.ConvTranspose1d(8, 32, 4, stride=2, padding=1),
            nn.Conv1d(32, 8, 4, stride=2, padding=1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.less(functional.leaky_relu(self.more(x)))


class Modulated(nn.Module):
    """DiT's block: six numbers a channel say how each sample is normed and weighed."""

    def __init__(self) -> None:
        super().__init__()
        self.modulation = nn.Linear(32, 192)
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(32, 96),
            nn.Linear(32, 32),
            nn.Linear(32, 128),
            nn.Linear(128, 32),
        )

    def forward(self, x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, shift_2, scale_2, gate_2 = self.modulation(functional.silu(sample))[:, None].chunk(6, -1)
        y = functional.layer_norm(x, (32,)) * (1 + scale) + shift
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        y = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + gate * self.out(y)
        y = functional.layer_norm(x, (32,)) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(functional.gelu(self.up(y)))


class Single(nn.Module):
    """Flux's single block: attention and a feed-forward side by side, and one product that sums over both."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.up, self.out = nn.Linear(32, 96), nn.Linear(32, 128), nn.Linear(160, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.layer_norm(x, (32,))
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(y).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.out(torch.cat([attended, functional.gelu(self.up(y))], -1))


class Swapped(nn.Module):
    """Two halves of what one product gives, each with something else done to it, and the other way round in the next."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 96), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = self.up(x).chunk(3, -1)
        return x + self.down(torch.cat([three.tanh(), functional.silu(one) * two], -1))


class Normed(nn.Module):
    """Wan's attention: queries and keys are normed over all heads at once, by their size, and by mean and size."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.by_size, self.by_both = nn.RMSNorm(32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.by_size(self.query(x)), self.by_both(self.key(x)), self.value(x)
        heads = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in (query, key, value)]
        return x + self.out(functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Between(nn.Module):
    """A norm over all channels between two equally wide convolutions."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.second = conv(24, 24), norm, conv(24, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(functional.silu(self.norm(self.first(x))))


class Frames(nn.Module):
    """Frames of a clip, some at a time, between two convolutions: one after the other in the batch, and then apart again."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.narrow = nn.Conv3d(8, 32, 1), nn.GroupNorm(4, 32), nn.Conv3d(32, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(x).transpose(1, 2).flatten(0, 1)
        y = torch.cat([self.norm(part) for part in y.split(4)])
        return x + self.narrow(functional.silu(y.unflatten(0, (x.shape[0], -1)).transpose(1, 2)))


class Modulations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Modulated(), Modulated()])

    def forward(self, x: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, sample)
        return x


IMAGE, WIDER = torch.randn(2, 8, 6, 6), torch.randn(2, 24, 5, 5)
NETWORKS = {
    "unet": (lambda: Unet(), (torch.randn(2, 3, 8, 8), torch.randn(2, 16)), 0.62),
    "squeezed": (lambda: nn.Sequential(Squeezed(), Squeezed()), (IMAGE,), 0.53),
    "bottleneck": (lambda: nn.Sequential(Bottleneck(), Bottleneck()), (IMAGE,), 0.53),
    "gated": (lambda: nn.Sequential(Gated(), Gated()), (torch.randn(2, 9, 32),), 0.51),
    "windows": (lambda: nn.Sequential(Windows(), Windows()), (IMAGE,), 0.52),
    "grouped": (lambda: nn.Sequential(Grouped(), Grouped()), (IMAGE,), 0.52),
    "upwards": (lambda: nn.Sequential(Upwards(), Upwards()), (IMAGE,), 0.52),
    "sound": (lambda: nn.Sequential(Sound(), Sound()), (torch.randn(2, 8, 10),), 0.52),
    "single": (lambda: nn.Sequential(Single(), Single()), (torch.randn(2, 9, 32),), 0.51),
    "swapped": (lambda: nn.Sequential(Swapped(), Swapped()), (torch.randn(2, 9, 32),), 0.51),
    "normed": (lambda: nn.Sequential(Normed(), Normed()), (torch.randn(2, 9, 32),), 0.51),
    "one group": (lambda: nn.Sequential(Between(nn.GroupNorm(1, 24)), Between(nn.GroupNorm(1, 24))), (WIDER,), 0.52),
    "length": (lambda: nn.Sequential(Between(functional.normalize), Between(functional.normalize)), (WIDER,), 0.52),
    "frames": (lambda: nn.Sequential(Frames(), Frames()), (torch.randn(2, 8, 3, 4, 4),), 0.52),
    "modulated": (lambda: Modulations(), (torch.randn(2, 9, 32), torch.randn(2, 32)), 0.51),
}


@pytest.mark.sample(15)
@pytest.mark.parametrize(("name", "tp"), [(name, tp) for name in NETWORKS for tp in (2, 3)])
def test_equals_the_dense_network_and_is_cut(name: str, tp: int) -> None:
    make, inputs, share = NETWORKS[name]
    torch.manual_seed(0)
    report = autotp.verify(make(), tp=tp, example=inputs)
    report.raise_for_failure()
    parameters = [
        (p, len(unit.instances)) for unit in autotp.plan(make(), tp=2, example=inputs).units for p in unit.parameters
    ]
    whole = sum(math.prod(p.shape) * count for p, count in parameters)
    assert sum(p.local_elements * count for p, count in parameters) <= share * whole


def steps_of(net: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    """Training, a norm that no longer learns its statistics, more of it, then none of it."""
    found, optimizer = [], torch.optim.SGD(net.parameters(), 0.1)
    for step in range(6):
        if step == 3:
            net[0].norms[1].eval()
        net.train(step != 5) if step in (0, 5) else None
        optimizer.zero_grad()
        loss = net(image + step).square().mean()
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(buffer.clone() for buffer in net.buffers())]
    return found


def on_rank(net: nn.Module, image: torch.Tensor) -> tuple[list[torch.Tensor], bool]:
    """Runs on a rank: the steps, and whether a step in training sends what the plan says."""
    parallel = autotp.parallelize(net, example=(image,))
    found = steps_of(parallel, image)
    state = state_of(parallel)
    with state.ranks.logging() as log:
        parallel.train()(image).sum().backward()
    counted = sum(call.of == "buffer" for call in log.calls)
    planned = sum(c.of == "buffer" for c in state.plan.step())
    return found, counted == planned > 0


def test_running_statistics_are_the_dense_ones() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Bottleneck(), Bottleneck()).double()
    true = steps_of(copy.deepcopy(net), IMAGE.double())
    for found, agree in run_ranks(on_rank, 3, net, IMAGE.double()):
        torch.testing.assert_close(found, true, rtol=0, atol=1e-9)
        assert agree
