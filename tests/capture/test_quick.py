"""What is said at once of an operator's result is what torch finds: sizes, strides, type, place in memory. It adds no guard."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from autotp.capture import quick
from autotp.capture.quick import Quick
from autotp.capture.symbols import Symbols
from autotp.session.study import Study
from tests.capture import comparing
from tests.capture.comparing import look
from tests.families import FAMILIES
from tests.zoo.kinds import CAUSAL, Kind
from tests.zoo.models import model_of


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How often each operator was answered at once. Every answer is compared with torch's."""
    seen, wrong, scope = dict[str, int](), list[str](), dict[str, Any]()
    # What runs in a trace is watched, but for autotp's own.
    exec(compile(Path(str(comparing.__file__)).read_text(), os.path.abspath(quick.__file__), "exec"), scope)
    monkeypatch.setattr(Quick, "__call__", scope["comparing"](Quick.__call__, seen, wrong))
    yield seen
    assert not wrong


Case = Callable[[torch.Tensor, torch.Tensor], Any]
CASES: dict[str, Case] = {
    "view": lambda x, w: x.view(*x.shape[:2], 4, 2),
    "view of -1": lambda x, w: x.view(-1, 8),
    "view of a symbol and -1": lambda x, w: x.view(x.shape[0], -1),
    "view to one": lambda x, w: x.view(*x.shape[:2], 8, 1),
    "view of a part": lambda x, w: (x[..., 2:6].view(*x.shape[:2], 2, 2), x[..., ::2].view(*x.shape[:2], 2, 2)),
    "view of what is turned": lambda x, w: (
        x.transpose(0, 1).view(*x.shape[:2][::-1], 4, 2),
        x.view(*x.shape[:2], 4, 2).transpose(1, 2).transpose(2, 1).view(*x.shape),
        x.permute(2, 0, 1).view(4, 2, *x.shape[:2]),
        x.permute(2, 0, 1).view(8, -1),
        x[:, :, None].expand(-1, -1, 6, -1).view(*x.shape[:2], 2, 3, 8),
    ),
    "views joined in part": lambda x, w: (x[..., 2:6].view(-1, 4), x.permute(2, 0, 1).view(2, 4, -1)),
    "view of what is transposed": lambda x, w: x.transpose(0, 1).reshape(-1, 8),
    "flattened": lambda x, w: x.flatten(),
    "transposed": lambda x, w: x.transpose(-1, 0),
    "permuted": lambda x, w: x.permute(2, 0, 1),
    "a dim more": lambda x, w: (x.unsqueeze(0), x.unsqueeze(-1), x.transpose(0, 1).unsqueeze(1)),
    "expanded": lambda x, w: x[:, None].expand(-1, 3, *x.shape[1:]),
    "expanded before": lambda x, w: x.expand(2, *x.shape),
    "expanded to one": lambda x, w: x.neg().expand(1, *x.shape),
    "a part": lambda x, w: (x[..., 2:6], x[..., -3:], x[..., :100], x[:, 1:], x[..., 3]),
    "every second": lambda x, w: (x[..., ::2], x[..., 1::3], x.transpose(0, 1)[..., 1:7:2], x[..., ::2].neg()),
    "rows": lambda x, w: (w[x[..., 0].long().view(-1)], x[torch.arange(2)], w[:1][torch.zeros(4).long()]),
    "rows of a column": lambda x, w: w[:, 1][x[0, 0].long()],
    "a part of a part": lambda x, w: x[..., 2:][..., 1],
    "copies": lambda x, w: (x.clone(), x.transpose(0, 1).clone(), x.transpose(0, 1).contiguous(), x.to(torch.bfloat16)),
    "of floats": lambda x, w: (x.neg(), functional.gelu(x), functional.gelu(x, approximate="tanh"), x**2, x.clamp(min=0)),
    "of what is permuted": lambda x, w: (x.transpose(0, 1).exp(), x[:, :, None].transpose(0, 1).sigmoid()),
    "of a part": lambda x, w: (x[..., :4].neg(), x.transpose(0, 1)[..., 4:].neg(), x[:, :, :1].neg()),
    "of what is expanded": lambda x, w: x[:, :, None].expand(-1, -1, 3, -1).tanh(),
    "with numbers": lambda x, w: (x * 2, x + 0.5, x - 1, x / 3, torch.add(x, 1, alpha=2)),
    "with a number in a tensor": lambda x, w: (x * w[0, 0], w[0, 0] + x, x.transpose(0, 1) / w[0, 0], w[0, 0] * w[0, 0]),
    "with sizes of one": lambda x, w: (
        x.neg()[:, None] * x.neg()[:1, None], x[:, :, None].neg() * x[:1, :, None].neg(), x[:1].neg() * x[:1, :1].neg(),
    ),
    "with itself": lambda x, w: (x * x, x + x, x.transpose(0, 1) * x.transpose(0, 1)),
    "with fewer dims": lambda x, w: (x * w[0], w[0] * x, x + w[:1], x.transpose(0, 1) * w[0]),
    "with one kept": lambda x, w: (x * x[..., :1], x * x.mean(-1, keepdim=True), x.mean(-1, keepdim=True) * x),
    "with a size of one": lambda x, w: (x.neg()[:, :, None] * w[0], w[0] * x[:, None], x[:, :, None] * w[:1]),
    "both repeated": lambda x, w: x[:, :, :1] * w[0],
    "turned": lambda x, w: x[:, :, None].transpose(1, 2) * x[:, None],
    "of two types": lambda x, w: (x * w[0].double(), x + x.bool(), x.int() * 2, x.int() + x.int()),
    "sums": lambda x, w: (x.sum(-1), x.sum((0, 1), keepdim=True), x.mean(1), x.transpose(0, 1).sum(0), x.sum(0).sum(0)),
    "products": lambda x, w: (functional.linear(x, w), x.view(-1, 8) @ w.t(), x @ x.transpose(1, 2), w @ x.transpose(1, 2)),
    "products with a bias": lambda x, w: (functional.linear(x, w, w[0]), torch.addmm(w[:1], w, w)),
    "looked up": lambda x, w: functional.embedding(x[..., 0].long(), w),
    "softmax": lambda x, w: (x.softmax(-1), x.transpose(0, 1).softmax(-1)),
    "chosen": lambda x, w: (torch.where(x > 0, 0.0, 1.0), torch.where(x > 0, x, w[0])),
    "chosen of several": lambda x, w: (torch.where(x > 0, x, w[0]), torch.where(x[..., :1] > 0, x, -x)),
    "which is larger": lambda x, w: (x > w[0], x.transpose(0, 1) >= w[0], x.int() == x.int(), x[..., :1] < w[0]),
    "whole numbers": lambda x, w: (x.long() // 2, x.transpose(0, 1).long() // 3, x[:, :, None].long() // 2),
    "side by side": lambda x, w: (torch.stack((x, -x), 1), torch.stack((x[..., ::2], x[..., 1::2]), -1)),
    "copied into": lambda x, w: (x.clone().copy_(x), x.clone()[..., 4:].copy_(w[0, 4:]), x.neg().copy_(w[:1])),
    "copies of a part": lambda x, w: (x[..., :4].clone(), x.transpose(0, 1)[..., ::2].clone(), x[:, :, None].clone()),
    "turned and repeated": lambda x, w: (
        x.view(*x.shape[:2], 4, 2).transpose(1, 2) * x.neg()[:, None, :, :2],
        x.view(*x.shape[:2], 4, 2).transpose(1, 2)[:, :, :, :1] * x.neg()[:, None, :, :2],
        x[:, :, None].neg()[..., :4] * w[0, :4],
        x[:, None].transpose(0, 1)[..., :4] * x[:, None].transpose(0, 1)[..., 4:],
    ),
    "batch norm": lambda x, w: (
        functional.batch_norm(x.view(-1, 8), w[0], w[1], w[2], w[3]),
        functional.batch_norm(x.view(x.shape[0], 8, -1), w[0], w[1]),
        functional.batch_norm(x.view(x.shape[0], 8, -1, 1), w[0], w[1], w[2], w[3]),
        functional.batch_norm(x.transpose(1, 2), w[0], w[1], w[2], w[3]),
        functional.batch_norm(x.view(-1, 8).bfloat16(), w[0], w[1], w[2], w[3]),
        functional.hardswish(x.view(-1, 8)),
    ),
    "layer norm": lambda x, w: (
        functional.layer_norm(x, (8,), w[0], w[1]),
        functional.layer_norm(x, (8,)),
        functional.layer_norm(x[..., :1], (1,), None, w[0, :1]),
        functional.layer_norm(x.view(-1, 2, 4), (2, 4), w[0].view(2, 4)),
        functional.layer_norm(x.transpose(0, 1), (8,), w[0], w[1]),
        functional.layer_norm(x.transpose(0, 1), (8,), w[0], w[1]),
        functional.layer_norm(x.bfloat16(), (8,), w[0], w[1]),
        functional.layer_norm(x, (8,), w.t()[0], w[:, 1]),
    ),
    "convolution": lambda x, w: (
        functional.conv1d(x.view(-1, 8, 1), w.view(8, 8, 1)),
        functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), w.view(-1)[:16], stride=2, padding=3),
        functional.conv1d(x.view(-1, 1, 8), w.view(-1)[:24].view(8, 1, 3), dilation=2, padding="same"),
        functional.conv2d(x.view(-1, 4, 2, 1), w.view(16, 4, 1, 1)),
        functional.conv2d(x.view(-1, 4, 2, 1)[:, :, 1:], w.view(16, 4, 1, 1)),
        functional.conv2d(x.view(-1, 1, 4, 2), w.view(4, 1, 4, 4), padding=4, stride=(1, 2), dilation=(1, 2)),
        functional.conv2d(x.view(-1, 4, 2, 1), w.view(16, 1, 4, 1), groups=4, padding=(4, 0)),
        functional.conv2d(x.view(-1, 2, 4, 1).transpose(1, 2), w.view(16, 4, 1, 1)),
        functional.conv2d(x.view(-1, 4, 2, 1), w.view(16, 1, 1, 4).transpose(1, 3)),
        functional.conv2d(x.view(-1, 1, 1, 8).transpose(1, 3), w.view(8, 8, 1, 1)),
        functional.conv3d(x.view(-1, 1, 2, 2, 2), w.view(8, 1, 2, 2, 2), stride=2),
        functional.conv_transpose2d(x.view(-1, 4, 2, 1), w.view(4, 4, 2, 2), stride=2, output_padding=1),
        functional.conv1d(x.view(-1, 1, 8).bfloat16(), w.view(16, 1, 4).bfloat16()),
    ),
    "joined": lambda x, w: (torch.cat((-x[..., 4:], x[..., :4]), -1), torch.cat((x, x)), torch.cat((x[..., :1], x), -1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dynamic", [(), (0,), (0, 1)], ids=str)
def test_a_result_is_the_one_that_torch_finds(compared: dict[str, int], name: str, dynamic: tuple[int, ...]) -> None:
    symbols = Symbols()
    x, w = symbols.tensor(torch.empty(3, 5, 8), set(dynamic)), symbols.tensor(torch.empty(8, 8))
    with symbols.mode, enable_python_dispatcher():
        CASES[name](x, w)
    assert compared


def test_what_is_permuted_stays_so_without_torchs_python_dispatcher() -> None:
    symbols = Symbols()
    x = symbols.tensor(torch.empty(3, 5, 8), {0, 1})
    with symbols.mode:
        assert look(x.transpose(0, 2).exp(), None) == look(x.exp().transpose(0, 2), None)


def test_a_fake_tensor_is_as_torch_makes_one() -> None:
    symbols = Symbols()
    with symbols.mode, enable_python_dispatcher():
        x = symbols.tensor(torch.empty(3, 5, 8), {0, 1})
        for made in [x.exp() for _ in range(3)] + [x.view(-1, 8) for _ in range(3)]:
            assert vars(made) == vars(FakeTensor(symbols.mode, torch.empty(3, 5, 8, device="meta"), made.device))
            assert (type(made), made.device, made.requires_grad) == (FakeTensor, x.device, False)


WRONG: dict[str, Case] = {
    "a step of none": lambda x, w: functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), stride=0),
    "a step too many": lambda x, w: functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), stride=(1, 1)),
    "less than no padding": lambda x, w: functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), padding=-1),
    "wider than what it is for": lambda x, w: functional.conv1d(x.view(-1, 2, 4), w.view(4, 2, 8)),
    "other channels": lambda x, w: functional.conv1d(x.view(-1, 2, 4), w.view(16, 1, 4)),
    "groups of several sizes": lambda x, w: functional.conv1d(x.view(-1, 2, 4), w.view(-1)[:3].view(3, 1, 1), groups=2),
    "a bias of another size": lambda x, w: functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), w[0]),
    "another type": lambda x, w: functional.conv1d(x.view(-1, 1, 8), w.view(16, 1, 4), w.view(-1)[:16].double()),
    "a norm of another size": lambda x, w: functional.layer_norm(x, (4,)),
    "a norm whose weight has another size": lambda x, w: functional.layer_norm(x, (8,), w[0, :4]),
    "a norm of nothing": lambda x, w: torch.native_layer_norm(x, (), None, None, 1e-5),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_torch_refuses_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def error() -> tuple[type[Exception], str]:
        symbols = Symbols()
        x, w = symbols.tensor(torch.empty(3, 5, 8), {0}), symbols.tensor(torch.empty(8, 8))
        with symbols.mode, enable_python_dispatcher(), pytest.raises(Exception) as raised:  # noqa: PT011
            WRONG[name](x, w)
        return raised.type, str(raised.value)

    own = error()
    monkeypatch.setattr(Quick, "__call__", lambda *args: None)
    assert own == error()


def test_elsewhere_than_on_a_cpu_what_depends_on_who_computes_is_left_to_torch() -> None:
    symbols, device, aten = Symbols(), torch.device("cuda"), torch.ops.aten
    x, w, one = (symbols.plain(size, torch.float32, device) for size in ((3, 4, 8), (4, 4, 3), (4,)))
    own = Quick(symbols.mode)
    assert own(aten.mul.Tensor, (x, x), {}) is not None
    assert own(aten.convolution.default, (x, w, None, [1], [0], [1], False, [0], 1), {}) is None
    assert own(aten.native_layer_norm.default, (x, [8], None, None, 1e-5), {}) is None
    assert own(aten.native_batch_norm.default, (x, one, one, one, one, False, 0.1, 1e-5), {}) is None


def test_none_and_sizes_of_data_are_left_to_torch(compared: dict[str, int]) -> None:
    symbols = Symbols()
    with symbols.mode, enable_python_dispatcher():
        torch.empty(5, 8)[torch.empty(5) > 0].exp().view(-1)
        torch.empty(0, 8).exp().view(-1)
    assert not compared.keys() & {"aten.exp.default", "aten.view.default"}


OF_FEWER: dict[str, Case] = {
    "one": lambda x, w: (x.exp(), x**2, x.transpose(0, 1).exp(), x[:, :, None].exp(), x.long() // 2),
    "two": lambda x, w: (x * x, x + w[0], x * x[..., :1], x.mean(-1, keepdim=True) * x, x.transpose(0, 1) * w[0]),
    "views": lambda x, w: (x.view(-1), x.view(x.shape[0], x.shape[1], 4, 2), x[:, None].expand(-1, 3, -1, -1), x[:, :]),
    "products": lambda x, w: (functional.linear(x, w), x @ w.t(), x.softmax(-1), torch.stack((x, x), 1)),
    "norms": lambda x, w: (functional.layer_norm(x, (8,), w[0], w[1]), functional.layer_norm(x.transpose(0, 1), (8,))),
    "copies": lambda x, w: (x.clone(), x[..., :4].clone(), x.neg().copy_(x), x.to(torch.bfloat16)),
}


@pytest.mark.parametrize("fewer", [lambda size: size // 4, lambda size: size - 2, lambda size: size + size // 4])
@pytest.mark.parametrize("name", OF_FEWER)
def test_what_may_be_none_is_laid_out_as_torch_says(
    monkeypatch: pytest.MonkeyPatch, fewer: Callable[[Any], Any], name: str
) -> None:
    """torch asks whether such a size is one, or more, and makes a condition of the answer; nothing depends on it."""
    seen, wrong, scope = dict[str, int](), list[str](), dict[str, Any]()
    exec(compile(Path(str(comparing.__file__)).read_text(), os.path.abspath(quick.__file__), "exec"), scope)
    monkeypatch.setattr(Quick, "__call__", scope["comparing"](Quick.__call__, seen, wrong, conditions=False))
    symbols = Symbols()
    with symbols.mode, enable_python_dispatcher():
        batch, size = symbols.tensor(torch.empty(3, 13), {0, 1}).shape
        OF_FEWER[name](torch.empty(batch, fewer(size), 8), symbols.tensor(torch.empty(8, 8)))
    assert seen
    assert not wrong


@pytest.mark.parametrize("turn", [False, True])
def test_sizes_that_an_operator_makes_equal_are_one_under_torchs_own_condition(
    monkeypatch: pytest.MonkeyPatch, turn: bool
) -> None:
    def conditions() -> tuple[list[str], Any]:
        symbols = Symbols()
        x, y = (symbols.tensor(torch.empty(3, 5, 8), {0, 1}) for _ in range(2))
        with symbols.mode, enable_python_dispatcher():
            both = x.transpose(0, 1) * y.transpose(0, 1) if turn else x * y[:1]
        return [str(guard.expr) for guard in symbols.mode.shape_env.guards], look(both, None)  # type: ignore[union-attr]

    own = conditions()
    assert own[0]
    monkeypatch.setattr(Quick, "__call__", lambda *args: None)
    assert own == conditions()


@pytest.mark.parametrize("name", ["llama", "bigbird_pegasus", "mamba2", "bloom"])
def test_a_models_traces_are_those_that_torch_makes(compared: dict[str, int], name: str) -> None:
    config = FAMILIES[name].config() if name in FAMILIES else model_of(Kind(name, CAUSAL))
    assert not Study(config).found.failures or name == "bigbird_pegasus"
    assert len(compared) > 8
