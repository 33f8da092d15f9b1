"""Lazy tensors: what is done to them comes out as if it had been done at once, and only what is kept is read."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from autotp.axes.layout_text import parse_layout
from autotp.checkpoint.lazy import Lazy, Meter, read, sources
from autotp.runtime.collectives.slices import take


@dataclass
class Counted:
    """A source that counts how often it is opened."""

    tensor: torch.Tensor
    opened: int = 0

    def open(self) -> torch.Tensor:
        self.opened += 1
        return self.tensor


def lazy(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Lazy, Counted]:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
    source = Counted(tensor)
    return tensor, Lazy.of(source, shape, dtype), source


MOVES = {
    "view": lambda x: x.view(2, 3, 8),
    "transpose": lambda x: x.t().contiguous().view(4, 12),
    "stack": lambda x: torch.stack([x, x + 0 if not isinstance(x, Lazy) else x]),
    "cat": lambda x: torch.cat([x, x[1:3]], 1 - 1),
    "chunk": lambda x: x.chunk(3, dim=0)[1].contiguous(),
    "split": lambda x: x.split([2, 4], 0)[1],
    "unbind": lambda x: x.unbind(0)[4],
    "reshape": lambda x: x.view(2, 3, 8).permute(1, 0, 2).reshape(6, 8),
    "slice": lambda x: x[..., ::2],
    "cast": lambda x: x.to(torch.bfloat16).t(),
    "cast_and_stack": lambda x: torch.stack([x.half(), x.half()]).flatten(0, 1),
    "rounded": lambda x: x.to(torch.bfloat16).to(torch.float32),
    "parameter": lambda x: nn.Parameter(x[...].to(device="cpu", dtype=torch.float32)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moving_data_is_put_off_and_comes_out_right(name: str) -> None:
    tensor, value, source = lazy(6, 8)
    expected, result = MOVES[name](tensor), MOVES[name](value)
    assert isinstance(result, Lazy)
    assert (result.shape, result.dtype, result.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert source.opened == 0
    assert torch.equal(read(result), expected)
    assert read(result).is_contiguous()
    assert set(map(id, sources(result))) == {id(source)}


@pytest.mark.parametrize("name", ["view", "stack", "cat", "cast", "cast_and_stack"])
def test_a_rank_reads_its_part(name: str) -> None:
    tensor, value, _ = lazy(6, 8)
    expected, result = MOVES[name](tensor), MOVES[name](value)
    layouts = [parse_layout(str(size)) for size in expected.shape[:-1]]
    layouts.append(parse_layout(f"{expected.shape[-1]}/2@1"))
    for rank in range(2):
        assert torch.equal(read(result, layouts, rank), take(expected, layouts, rank))


def test_only_what_a_rank_keeps_is_counted_as_read() -> None:
    _, value, _ = lazy(6, 8)
    layouts, heard, counts = [parse_layout("6>8/4@1"), parse_layout("8")], [], []
    for rank in range(4):
        meter = Meter(tell=heard.append)
        read(value.to(torch.float64), layouts, rank, meter)
        counts.append(meter.count)
    assert counts == [64, 64, 64, 0]
    assert heard == counts
    meter = Meter()
    read(torch.cat([value, value]), [parse_layout("12/2@1"), parse_layout("8")], 0, meter)
    assert meter.count == 6 * 8 * 4  # the second is not in the part
    meter = Meter()
    read(torch.stack([value, value]), [parse_layout("2"), parse_layout("6"), parse_layout("8/2@1")], 0, meter)
    assert meter.count == 2 * 6 * 4 * 4  # half of each


def test_what_computes_is_computed_whole_when_it_is_read() -> None:
    tensor, value, source = lazy(6, 8)
    doubled = (value.to(torch.float64) * torch.arange(8)).reshape(8, 6)
    assert isinstance(doubled, Lazy)
    assert source.opened == 0
    meter = Meter()
    part = read(doubled, [parse_layout("8/2@1"), parse_layout("6")], 1, meter)
    assert torch.equal(part, (tensor.double() * torch.arange(8)).reshape(8, 6)[4:])
    assert meter.count == tensor.nbytes


def test_what_needs_numbers_now_reads_them() -> None:
    tensor, value, _ = lazy(6, 8)
    assert torch.equal(value, value.clone())
    assert float(value[1, 2]) == float(tensor[1, 2])
    into = torch.zeros(6, 8)
    into[:, 1:] = value[:, 1:]
    assert torch.equal(into[:, 1:], tensor[:, 1:])


def test_a_strided_part_has_memory_of_its_own() -> None:
    tensor, value, _ = lazy(6, 8)
    part = read(value, [parse_layout("6"), parse_layout("8/2@1")], 0)
    part.zero_()
    assert bool(tensor.all())
