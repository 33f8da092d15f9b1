"""Models of torch.nn's own modules."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from .made import Made, Numbers, made

WIDTH, HEADS, LAYERS, WORDS = 48, 8, 2, 64


class Calls(nn.Module):
    """Blocks that are called one after another, each in a way of its own, on what came before."""

    def __init__(self, first: nn.Module, block: Callable[[], nn.Module], call: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.first, self.layers, self.call = first, nn.ModuleList(block() for _ in range(LAYERS)), call
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.call(layer, x)
        return self.head(x)


class Decoding(nn.Module):
    """A decoder over two embedded texts."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.words, self.decoder, self.head = nn.Embedding(WORDS, WIDTH), decoder, nn.Linear(WIDTH, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=self.words.weight.dtype)
        return self.head(self.decoder(self.words(target), self.words(source), tgt_mask=mask))


class Bags(nn.Module):
    """Classifies bags of words."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, WIDTH, mode=mode)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(ids))


class Pairs(nn.Module):
    """A bilinear form of what two texts are embedded as."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.up = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pair, self.head = nn.Bilinear(WIDTH, WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.head(self.pair(self.up(self.words(left)).tanh(), self.words(right)).tanh())


class Unrolled(nn.Module):
    """A cell that is called for each word."""

    def __init__(self, cell: nn.Module, *, two: bool = False) -> None:
        super().__init__()
        self.words, self.cell, self.head, self.two = nn.Embedding(WORDS, WIDTH), cell, nn.Linear(WIDTH, WORDS), two

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, state, found = self.words(ids), None, []
        for word in x.unbind(1):
            state = self.cell(word, state)
            found.append(state[0] if self.two else state)
        return self.head(torch.stack(found, 1))


def _encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **settings)
    return nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, WORDS),
    )


def _decoder(**settings: Any) -> nn.Module:
    return Decoding(
        nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **settings), LAYERS)
    )


class Both(nn.Module):
    """nn.Transformer over two embedded texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.both = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, 2 * WIDTH, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.both(self.words(source), self.words(target)))


def _attending(**settings: Any) -> nn.Module:
    return Calls(
        nn.Embedding(WORDS, WIDTH),
        lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **settings),
        lambda layer, x: x + layer(x, x, x)[0],
    )


def _recurrent(kind: Any, **settings: Any) -> nn.Module:
    return Calls(
        nn.Embedding(WORDS, WIDTH),
        lambda: kind(WIDTH, WIDTH, batch_first=True, **settings),
        lambda layer, x: layer(x)[0],
    )


def _projected() -> nn.Module:
    """An LSTM whose state is wider than what it gives."""
    return Calls(
        nn.Embedding(WORDS, WIDTH),
        lambda: nn.LSTM(WIDTH, 2 * WIDTH, proj_size=WIDTH, batch_first=True),
        lambda layer, x: layer(x)[0],
    )


def _convolutions(dims: int, norm: Callable[[int], nn.Module], **settings: Any) -> nn.Module:
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    pool: Any = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[dims - 1]
    widths = (4, WIDTH, 2 * WIDTH, WIDTH)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [kind(before, after, 3, padding=1, **(settings if before > 4 else {})), norm(after), nn.ReLU()]
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(WIDTH, 4))


def _mirrored() -> nn.Module:
    """Convolutions down and transposed ones up again."""
    return nn.Sequential(
        nn.Conv2d(4, WIDTH, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1),
        nn.GELU(),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1),
        nn.GELU(),
        nn.ConvTranspose2d(WIDTH, 4, 4, stride=2, padding=1),
    )


def _perceptron(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), activation, nn.Linear(2 * WIDTH, WIDTH), nn.LogSoftmax(-1))


def _text(numbers: Numbers) -> torch.Tensor:
    return numbers.ids(numbers.batch, 8 + numbers.more)


def _texts(numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
    return _text(numbers), numbers.ids(numbers.batch, 6 + numbers.more)


def _values(numbers: Numbers) -> torch.Tensor:
    return numbers(numbers.batch, 8 + numbers.more, WIDTH)


def _grid(dims: int) -> Callable[[Numbers], torch.Tensor]:
    return lambda numbers: numbers(numbers.batch, 4, *(8 + numbers.more for _ in range(dims)))


CASES: dict[str, Callable[[], Made]] = {
    "TransformerEncoder": made(lambda: _encoder(), _text),
    "TransformerEncoder: norm first": made(lambda: _encoder(norm_first=True, activation="gelu"), _text),
    "TransformerEncoder: no bias": made(lambda: _encoder(bias=False), _text),
    "TransformerDecoder": made(lambda: _decoder(), _texts),
    "TransformerDecoder: norm first": made(lambda: _decoder(norm_first=True), _texts),
    "Transformer": made(Both, _texts),
    "MultiheadAttention": made(lambda: _attending(), _text),
    "MultiheadAttention: own widths": made(lambda: _attending(kdim=WIDTH, vdim=WIDTH), _text),
    "MultiheadAttention: bias_kv": made(lambda: _attending(add_bias_kv=True), _text),
    "MultiheadAttention: zero": made(lambda: _attending(add_zero_attn=True), _text),
    "RNN": made(lambda: _recurrent(nn.RNN), _text),
    "LSTM": made(lambda: _recurrent(nn.LSTM), _text),
    "LSTM: projection": made(_projected, _text),
    "GRU": made(lambda: _recurrent(nn.GRU), _text),
    "LSTMCell": made(lambda: Unrolled(nn.LSTMCell(WIDTH, WIDTH), two=True), _text),
    "GRUCell": made(lambda: Unrolled(nn.GRUCell(WIDTH, WIDTH)), _text),
    "RNNCell": made(lambda: Unrolled(nn.RNNCell(WIDTH, WIDTH)), _text),
    "EmbeddingBag: mean": made(lambda: Bags("mean"), _text),
    "EmbeddingBag: sum": made(lambda: Bags("sum"), _text),
    "EmbeddingBag: max": made(lambda: Bags("max"), _text),
    "Bilinear": made(Pairs, lambda numbers: (_text(numbers), _text(numbers))),
    "Conv1d: BatchNorm1d": made(lambda: _convolutions(1, nn.BatchNorm1d), _grid(1)),
    "Conv2d: BatchNorm2d": made(lambda: _convolutions(2, nn.BatchNorm2d), _grid(2)),
    "Conv3d: BatchNorm3d": made(lambda: _convolutions(3, nn.BatchNorm3d), _grid(3)),
    "Conv2d: GroupNorm": made(lambda: _convolutions(2, lambda width: nn.GroupNorm(8, width)), _grid(2)),
    "Conv2d: InstanceNorm2d": made(
        lambda: _convolutions(2, lambda width: nn.InstanceNorm2d(width, affine=True)), _grid(2)
    ),
    "Conv2d: LocalResponseNorm": made(lambda: _convolutions(2, lambda width: nn.LocalResponseNorm(3)), _grid(2)),
    "Conv2d: groups": made(lambda: _convolutions(2, nn.BatchNorm2d, groups=8), _grid(2)),
    "Conv2d: reflected": made(lambda: _convolutions(2, nn.BatchNorm2d, padding_mode="reflect"), _grid(2)),
    "ConvTranspose2d": made(_mirrored, _grid(2)),
    "Linear: PReLU": made(lambda: _perceptron(nn.PReLU(2 * WIDTH)), lambda numbers: numbers(numbers.batch, WIDTH)),
    "Linear: GLU": made(
        lambda: nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GLU(), nn.Linear(2 * WIDTH, WIDTH)), _values
    ),
    "Linear: RMSNorm": made(
        lambda: nn.Sequential(
            nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.RMSNorm(2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        ),
        _values,
    ),
    "Linear: Softmax": made(lambda: _perceptron(nn.Softmax(-1)), _values),
    "Linear: Mish": made(lambda: _perceptron(nn.Mish()), _values),
}
