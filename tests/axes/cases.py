"""What the operator rules are proved on: one line a case.

A case writes its operands as text, one group of dims per operand: `(a b)` is a product, `[a b]` a sum, a number a fixed
size. Small letters must be proved to be cuttable, capitals need not. A function may ask for the sizes of letters
by keyword.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.nn import functional
from transformers.models.bloom import modeling_bloom
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2
from transformers.models.qwen3_next import modeling_qwen3_next
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import SqrtBoundDerivative
from transformers.models.rwkv import modeling_rwkv
from transformers.models.xlstm import modeling_xlstm

from autotp.verify import Float64
from tests.axes.prover import Function, is_differentiable

importlib.import_module("transformers.integrations.moe")  # has an operator of its own
aten = torch.ops.aten
Values: TypeAlias = Callable[[Sequence[int], torch.Generator], torch.Tensor]
# A letter or number, or the kind of bracket and what is inside.
Part: TypeAlias = "str | tuple[str, list[Part]]"


def normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def positive(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


def fraction(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64) * 0.8 + 0.1


def complexes(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.complex128)


def flags(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) < 0.5


def zeros_and_ones(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return flags(shape, generator).double()


def ones(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def numbers(below: int) -> Values:
    return lambda shape, generator: torch.randint(0, below, shape, generator=generator)


def order(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(shape[0], generator=generator)


def ends(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Where groups of ROWS_IN_GROUPS rows end; the first one has none."""
    bounds = torch.randint(0, ROWS_IN_GROUPS, [shape[0] - 2], generator=generator).sort().values
    return torch.cat([torch.zeros(1), bounds, torch.full([1], ROWS_IN_GROUPS)]).to(torch.int32)


ROWS_IN_GROUPS = 7


@dataclass(frozen=True)
class Subject:
    """A case with concrete operands, and the sizes of the axes of every dim that must be proved to be cuttable.

    `free` are the operands that may also be whole inputs or partial sums.
    """

    function: Function
    operands: list[torch.Tensor]
    free: list[int]
    wanted: list[list[list[int]]]


@dataclass(frozen=True)
class Case:
    """An operator, the text of its operands, a call of it, what the operands hold, and the sizes of some letters.

    `padded` says that the small letters are cuttable also over ranks that do not divide their sizes, `joined` that
    the segments of a sum are cut together, `tables` are operands that must be parameters.
    """

    name: str
    text: str
    function: Function
    values: Sequence[Values] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    padded: bool = True
    joined: bool = False
    tables: Collection[int] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"

    def subject(self, seed: int) -> Subject:
        """Random operands, the same ones for the same seed."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self} {seed}".encode()))
        letters = sorted(set(re.findall("[A-Za-z]", self.text)))
        drawn = torch.randint(2, 6, [len(letters)], generator=generator).tolist()
        sizes = dict(zip(letters, drawn, strict=True)) | dict(self.sizes)
        dims = [_parse(operand) for operand in self.text.split(",")]
        makers = [*self.values, *[normal] * (len(dims) - len(self.values))]
        operands = [make([_size(dim, sizes) for dim in own], generator) for own, make in zip(dims, makers, strict=True)]
        wanted = [[[sizes[a] for a in _atoms(dim) if a.islower() and sizes[a] > 1] for dim in own] for own in dims]
        parameters = inspect.signature(self.function).parameters.values() if inspect.isfunction(self.function) else ()
        keywords = {p.name: sizes[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY and p.name in sizes}
        free = [i for i, operand in enumerate(operands) if is_differentiable(operand) and i not in self.tables]
        return Subject(lambda *values: self.function(*values, **keywords), operands, free, wanted)


def _parse(text: str) -> list[Part]:
    tokens = iter(re.findall(r"[A-Za-z]|\d+|[()\[\]]", text))

    def parts(closing: str) -> Iterator[Part]:
        for token in tokens:
            if token == closing:
                return
            yield (token, list(parts({"(": ")", "[": "]"}[token]))) if token in "([" else token

    return list(parts(""))


def _size(part: Part, sizes: Mapping[str, int]) -> int:
    if isinstance(part, str):
        return int(part) if part.isdigit() else sizes[part]
    kind, inner = part[0], [_size(p, sizes) for p in part[1]]
    return math.prod(inner) if kind == "(" else sum(inner)


def _atoms(part: Part) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for inner in part[1]:
            yield from _atoms(inner)


def each(names: str, texts: Sequence[str], *values: Values) -> list[Case]:
    """The same cases for several operators that are called with their operands alone."""
    return [Case(f"aten.{name}", text, getattr(aten, name), values) for name in names.split() for text in texts]


ONE = ("a b",)
TWO = ("a b, a b", "a b, b", "a 1, c a b", "1 b, a 1")

POINTWISE = [
    *each("add sub mul div maximum minimum", TWO, positive, positive),
    *each("multiply divide true_divide rsub pow atan2 remainder fmod", TWO[:2], positive, positive),
    *each("eq ne lt le gt ge", TWO[:2], numbers(3), numbers(3)),
    *each("logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor", TWO[:2], flags, flags),
    *each("__and__ __or__ __xor__", TWO[:2], flags, flags),
    *each("neg positive clone detach contiguous zeros_like ones_like", ONE),
    *each("relu relu6 silu gelu tanh sin sign abs square erf expm1 mish hardswish leaky_relu elu selu celu", ONE),
    *each("floor ceil round softshrink hardshrink hardtanh tan atan exp sigmoid cos softplus", ONE),
    *each("log_sigmoid hardsigmoid exp2 nan_to_num isnan isinf isfinite logical_not", ONE),
    *each("sqrt log1p log rsqrt reciprocal logit asin log2 log10", ONE, fraction),
    *each("bitwise_not", ONE, flags),
    *each("conj real _conj imag", ONE, complexes),
    *each("bernoulli", ONE, zeros_and_ones),
    *each("addcmul addcdiv lerp", ("a b, a b, a b", "a b, b, a 1"), positive, positive, positive),
    Case("aten.add", "a b", lambda x: x + 1),
    Case("aten.add", "a b, a b", lambda x, y: aten.add(x, y, alpha=3)),
    Case("aten.sub", "a b", lambda x: x - 1),
    Case("aten.rsub", "a b", lambda x: 1 - x),
    Case("aten.mul", "a b", lambda x: x * 3),
    Case("aten.div", "a b", lambda x: x / 3),
    Case("aten.div", "a b, a b", lambda x, y: aten.div(x, y, rounding_mode="floor"), [positive, positive]),
    Case("aten.div", "a b", lambda x: aten.div(x, 0.1, rounding_mode="trunc"), [positive]),
    Case("aten.to", "a b", lambda x: x.to(torch.complex128)),
    Case("aten.to", "a b", lambda x: x.mul(9).to(torch.int64)),
    Case("aten.to", "a b", lambda x: x.to(torch.bool), [zeros_and_ones]),
    Case("aten._to_copy", "a b", lambda x: aten._to_copy(x, dtype=torch.complex128)),
    Case("aten.copy", "a b, a b", lambda x, y: aten.copy(x.detach(), y.detach())),
    Case("aten.copy", "a b, b", lambda x, y: aten.copy(x.detach(), y.detach())),
    Case("aten.fill", "a b", lambda x: torch.empty_like(x).fill_(2.5) * x),
    Case("aten.fill", "a b, ", lambda x, y: aten.fill(x, y)),
    Case("aten.zero", "a b", lambda x: torch.empty_like(x).zero_() + x),
    Case("aten.pow", "a b", lambda x: x**3),
    Case("aten.pow", "a b", lambda x: x**0),
    Case("aten.pow", "a b", lambda x: x**-1.5, [positive]),
    Case("aten.pow", "a b", lambda x: x**0.5, [positive]),
    Case("aten.pow", "a b", lambda x: 2**x),
    Case("aten.floor_divide", "a b, a b", lambda x, y: x.detach() // y.detach(), [positive, positive]),
    Case("aten.floor_divide", "a b, b", lambda x, y: x // (y + 1), [numbers(9), numbers(3)]),
    Case("aten.floor_divide", "a b", lambda x: x.detach() // 0.3),
    Case("aten.dropout", "a b", lambda x: functional.dropout(x, 1.0)),
    Case("aten.alpha_dropout", "a b", lambda x: functional.alpha_dropout(x, 1.0, training=True)),
    Case("aten.threshold", "a b", lambda x: functional.threshold(x, 0.1, 5.0)),
    Case("aten.hardtanh", "a b", lambda x: functional.hardtanh(x, 0.5, 1.0)),
    Case("aten.where", "a b, a b, a b", aten.where, [flags]),
    Case("aten.where", "a b, b, a 1", aten.where, [flags]),
    Case("aten.where", "a b, a b", lambda c, x: torch.where(c, x, 0.0), [flags]),
    Case("aten.where", "a b, a b", lambda c, x: torch.where(c, 0.0, x), [flags]),
    Case("aten.where", "a b, a b", lambda c, x: torch.where(c, 2.0, x), [flags]),
    Case("aten.masked_fill", "a b, a b", lambda x, c: x.masked_fill(c, -1.0), [normal, flags]),
    Case("aten.masked_fill", "a b, b", lambda x, c: x.masked_fill(c, 0.0), [normal, flags]),
    Case("aten.masked_fill", "a b, a b, ", lambda x, c, y: x.masked_fill(c, y), [normal, flags]),
    Case("aten.complex", "a b, a b", torch.complex),
    Case("aten.polar", "a b, b", lambda x, y: torch.polar(x, y.expand_as(x))),
    Case("aten.masked_fill", "a b, b", lambda x, c: x.masked_fill(c, -1.0), [normal, flags]),
    Case("aten.clamp", "a b", lambda x: x.clamp(-0.5, 0.5)),
    Case("aten.clamp", "a b, a 1", lambda x, low: x.clamp(min=low)),
    *(
        Case(f"aten.{name}", "a b", lambda x, name=name: getattr(aten, name)(x, 0.1))
        for name in ("clamp_min", "clamp_max")
    ),
    *(
        Case(f"aten.{name}", "a b", lambda x, name=name: getattr(aten, name)(x, 1))
        for name in "eq ne lt le gt ge".split()
    ),
    Case("aten.remainder", "a b", lambda x: x % 0.3),
    Case("aten.full_like", "a b", lambda x: torch.full_like(x, 2.5)),
    Case("aten.empty_like", "a b", lambda x: torch.empty_like(x).fill_(2.5) * x),
]

VIEWS = [
    Case("aten.view", "(a b) c", lambda x, *, a, b, c: x.view(a, b, c)),
    Case("aten.view", "a (b c d) e", lambda x, *, a, b, c, d, e: x.view(a, b, c, d, e)),
    Case("aten.view", "a b (c d) e", lambda x, *, a, b, c, d, e: x.view(a * b, c, d * e)),
    Case("aten.view", "(a b) c", lambda x, *, a: x.view(a, -1)),
    Case("aten.view", "a b", lambda x: x.view(-1)),
    Case("aten.view", "A B", lambda x: x.view(4, 3), sizes={"A": 3, "B": 4}),
    Case("aten.view", "a b", lambda x: x.view(torch.int64)),
    Case("aten.reshape", "(a b) c", lambda x, *, a, b, c: x.reshape(a, b, c)),
    Case("aten.reshape", "a b c", lambda x, *, a, b, c: x.transpose(0, 1).reshape(b, a * c)),
    Case("aten._unsafe_view", "(a b) c", lambda x, *, a, b, c: aten._unsafe_view(x, [a, b * c])),
    Case("aten.flatten", "a b c d", lambda x: x.flatten(1, 2)),
    Case("aten.unflatten", "a (b c) d", lambda x, *, b, c: x.unflatten(1, (b, c))),
    Case("aten.unflatten", "a b (c d)", lambda x, *, c: x.unflatten(-1, (c, -1))),
    Case("aten.view_as", "(a b) c, a (b c)", lambda x, y: aten.view_as(x, y)),
    Case("aten.reshape_as", "(a b) c, a (b c)", lambda x, y: aten.reshape_as(x, y) * y),
    Case("aten.transpose", "a b c", lambda x: x.transpose(0, -1)),
    Case("aten.t", "a b", lambda x: x.t() * 2),
    Case("aten.t", "a", lambda x: x.t() * 2),
    Case("aten.numpy_T", "a b", lambda x: x.T * 2),
    Case("aten.permute", "a b c d", lambda x: x.permute(2, 0, -1, 1)),
    Case("aten.unsqueeze", "a b", lambda x: x.unsqueeze(1)),
    Case("aten.unsqueeze", "a b", lambda x: x.unsqueeze(-1)),
    Case("aten.unfold", "a B c", lambda x: x.unfold(1, 2, 1)),
    Case("aten.unfold", "a B c", lambda x: x.unfold(-2, 2, 3) * 2),
    Case("aten.diagonal", "A b A", lambda x: x.diagonal(0, 0, 2)),
    Case("aten.diagonal", "a B B", lambda x: x.diagonal(1, -1, -2)),
    Case("aten.diag_embed", "a B", lambda x: x.diag_embed()),
    Case("aten.diag_embed", "a b C", lambda x: torch.diag_embed(x, 1, 0, 2)),
    Case("aten.squeeze", "a 1 b 1", lambda x: x.squeeze()),
    Case("aten.squeeze", "a 1 b", lambda x: x.squeeze(1)),
    Case("aten.squeeze", "a 1 b", lambda x: x.squeeze(-1)),
    Case("aten.squeeze", "1 a 1 b 1", lambda x: x.squeeze((0, -1))),
    Case("aten.squeeze", "a 1 b", lambda x: x.squeeze(())),
    Case("aten.expand", "a 1", lambda x: x.expand(3, -1, 4)),
    Case("aten.expand", "a 1, c a b", lambda x, y, *, a, b, c: x.expand(c, a, b) * y),
    Case("aten.broadcast_to", "a 1, a b", lambda x, y, *, a, b: torch.broadcast_to(x, (a, b)) * y),
    Case("aten.expand_as", "a 1, c a b", lambda x, y: x.expand_as(y)),
    Case("aten.repeat_interleave", "a b", lambda x: x.repeat_interleave(3, 0)),
    Case("aten.repeat_interleave", "a b, (a r) b", lambda x, y, *, r: x.repeat_interleave(r, 0) * y),
    Case(
        "aten.repeat_interleave", "a b, (a r) b", lambda x, y, *, a, r: x.repeat_interleave(r, 0, output_size=a * r) * y
    ),
    Case("aten.repeat_interleave", "A B", lambda x: x.repeat_interleave(2)),
    Case(
        "aten.repeat_interleave",
        "A B, A",
        lambda x, n, *, A: x.repeat_interleave(n + 1, 0, output_size=A),
        [normal, numbers(1)],
    ),
    Case("aten.repeat_interleave", "A", lambda n, *, A: torch.repeat_interleave(n, output_size=A), [ones]),
    Case("aten.repeat", "a b", lambda x: x.repeat(3, 1, 2)),
    Case("aten.repeat", "a b, c (d a) b", lambda x, y, *, c, d: x.repeat(c, d, 1) * y),
    Case("aten.tile", "a b", lambda x: x.tile(3)),
    Case("aten.tile", "a b, a (c b)", lambda x, y, *, c: x.tile(c) * y),
    Case("aten.tile", "a b, c (d a) b", lambda x, y, *, c, d: x.tile(c, d, 1) * y),
    Case("aten.view_as_complex", "a b 2", lambda x: torch.view_as_complex(x)),
    Case("aten.view_as_real", "a b", lambda x: torch.view_as_real(x), [complexes]),
    Case("aten.flip", "a B c", lambda x: x.flip(1)),
    Case("aten.tril", "a B C", lambda x: x.tril(1)),
    Case("aten.triu", "a b C D", lambda x: x.triu()),
    Case("aten.roll", "a B c", lambda x: x.roll(1, 1)),
    Case("aten.roll", "A B", lambda x: x.roll(1)),
]

PARTS = [
    Case("aten.split", "a [b c d]", lambda x, *, b: x.split(b, 1), sizes={"b": 3, "c": 3, "d": 2}),
    Case("aten.split", "[a b] c", lambda x, *, a: x.split(a)[1], sizes={"a": 3, "b": 2}),
    Case("aten.split_with_sizes", "a [b c d]", lambda x, *, b, c, d: x.split([b, c, d], -1)),
    Case("aten.split_with_sizes", "a [b c] d", lambda x, *, b, c: x.split([b, 0, c], 1)),
    Case("aten.split_with_sizes", "a ([b c] d)", lambda x, *, b, c, d: x.unflatten(1, (-1, d)).split([b, c], 1)),
    Case("aten.split_with_sizes", "a (b [c d])", lambda x, *, b, c, d: x.unflatten(1, (b, -1)).split([c, d], -1)),
    Case("aten.chunk", "a [b c]", lambda x: x.chunk(2, -1), sizes={"b": 3, "c": 2}),
    Case("aten.chunk", "a [b b b]", lambda x: x.chunk(3, -1)),
    Case("aten.unsafe_split", "a [b b b]", lambda x, *, b: x.unsafe_split(b, -1)),
    Case("aten.unsafe_split_with_sizes", "a [b c]", lambda x, *, b, c: x.unsafe_split_with_sizes([b, c], -1)),
    Case("aten.glu", "a [b b]", functional.glu),
    Case("aten.glu", "a [b b] c", lambda x: functional.glu(x, 1)),
    Case("aten.tensor_split", "[a b c] d", lambda x: x.tensor_split(3), sizes={"a": 3, "b": 3, "c": 2}),
    Case("aten.tensor_split", "a [b c d]", lambda x, *, b, c: x.tensor_split((b, b + c), -1)),
    Case("aten.slice", "a [b c d]", lambda x, *, b, c: x[:, b : b + c]),
    Case("aten.slice", "[a b] c", lambda x, *, b: x[-b:]),
    Case("aten.slice", "[a b] c", lambda x, *, b: x[:-b]),
    Case("aten.slice", "a [b c]", lambda x, *, b: (x[:, :b], x[:, b:] * 2)),
    Case(
        "aten.slice",
        "a [b c]",
        lambda x, *, b: torch.cat((-x[:, b:], x[:, :b]), -1),
        sizes={"b": 3, "c": 3},
        joined=True,
    ),
    Case("aten.slice", "a (b 2)", lambda x: (x[:, ::2], x[:, 1::2])),
    Case("aten.slice", "a (b 3)", lambda x: x[:, 2::3] * 2),
    Case("aten.slice", "a B", lambda x: x[:, ::2], sizes={"B": 5}),
    Case("aten.slice", "a B", lambda x: x[:, 3::2], sizes={"B": 8}),
    Case("aten.slice", "a b", lambda x: aten.slice(x, 1, 0, 100) * 2),
    Case(
        "aten.slice_scatter", "a [b c d], a c", lambda x, y, *, b, c: aten.slice_scatter(x, y, 1, b, b + c), joined=True
    ),
    Case("aten.slice_scatter", "[b c] a, c a", lambda x, y, *, c: aten.slice_scatter(x, y, 0, -c), joined=True),
    Case("aten.slice_scatter", "a 4, a 2", lambda x, y: aten.slice_scatter(x, y, 1, 0, 4, 2)),
    Case("aten.select", "a B c", lambda x: x[:, 1]),
    Case("aten.select", "a B", lambda x: x.select(-1, -1)),
    Case("aten.unbind", "a B c", lambda x: x.unbind(1)),
    Case("aten.cat", "a b, a c, a d", lambda *x: torch.cat(x, -1), joined=True),
    Case("aten.cat", "a 1, a 1", lambda *x: torch.cat(x, -1)),
    Case("aten.cat", "a b", lambda x: torch.cat((x, x), -1)),
    Case("aten.cat", "a 4", lambda x: torch.cat((x, x[:, :0]), -1)),
    Case("aten.cat", "a 4", lambda x: torch.cat((x[:, :0], x, x.new_zeros(0)), 1)),
    Case("aten.concat", "a b, c b", lambda *x: torch.concat(x), joined=True),
    Case("aten.concatenate", "a b, c b", lambda *x: torch.concatenate(x), joined=True),
    Case("aten.stack", "a b, a b", lambda *x: torch.stack(x, 1)),
    Case("aten.stack", "a b, a b, a b", lambda *x: torch.stack(x, -1)),
    Case("aten.pad", "a B c", lambda x: functional.pad(x, (0, 0, 1, 2))),
    Case("aten.pad", "a B c", lambda x: functional.pad(x, (0, 0, 1, -1))),
    Case("aten.pad", "a b C", lambda x: functional.pad(x, (1, 1), mode="reflect")),
    Case("aten.constant_pad_nd", "a B c", lambda x: aten.constant_pad_nd(x, [0, 0, -1, 1], 2.5)),
]

REDUCTIONS = [
    *(
        Case(f"aten.{name}", text, lambda x, name=name, options=options: getattr(torch, name)(x, **options))
        for name in ("sum", "mean")
        for text, options in (
            ("a b c", {"dim": 1}),
            ("a b c", {"dim": (0, -1), "keepdim": True}),
            ("a b c", {"dim": -1, "keepdim": True}),
            ("a b", {}),
        )
    ),
    *(
        Case(f"aten.{name}", "a B c", lambda x, name=name, keep=keep: getattr(torch, name)(x, dim=1, keepdim=keep))
        for name in (
            "var std amax amin max min argmax argmin prod logsumexp median nanmedian mode nansum var_mean std_mean".split()
        )
        for keep in (False, True)
    ),
    *(
        Case(f"aten.{name}", "A B", lambda x, name=name: getattr(torch, name)(x))
        for name in "var std max min argmax argmin prod median".split()
    ),
    *(
        Case(f"aten.{name}", "a B", lambda x, name=name: getattr(torch, name)(x, -1), [flags])
        for name in ("any", "all")
    ),
    Case("aten.amax", "a B C", lambda x: x.amax((-1, 1))),
    Case("aten.aminmax", "a B c", lambda x: torch.aminmax(x, dim=1, keepdim=True)),
    Case("aten.kthvalue", "a B c", lambda x: x.kthvalue(2, 1)),
    Case("aten.count_nonzero", "a B", lambda x: torch.count_nonzero(x, 1), [flags]),
    Case("aten.max", "a b, a b", lambda x, y: aten.max.other(x, y)),
    Case("aten.min", "a b, b", lambda x, y: aten.min.other(x, y)),
    Case("aten.norm", "A B", lambda x: aten.norm(x)),
    Case("aten.norm", "a B c", lambda x: aten.norm(x, 2, [1])),
    Case("aten.norm", "a B c", lambda x: aten.norm(x, 1, [1], True)),
    Case("aten.linalg_vector_norm", "a b", lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    Case("aten.linalg_vector_norm", "a b c", lambda x: torch.linalg.vector_norm(x, dim=(0, 2))),
    Case("aten.linalg_vector_norm", "a b", lambda x: torch.linalg.vector_norm(x)),
    Case("aten.linalg_vector_norm", "a B", lambda x: torch.linalg.vector_norm(x, 1, dim=-1)),
    Case("aten.linalg_vector_norm", "a B", lambda x: torch.linalg.vector_norm(torch.complex(x, x + 1), dim=-1)),
    Case("aten.softmax", "a b C", lambda x: x.softmax(-1)),
    Case("aten.softmax", "a B c", lambda x: x.softmax(1)),
    Case("aten._softmax", "a B c", lambda x: aten._softmax(x, 1, False)),
    Case("aten.log_softmax", "a B c", lambda x: x.log_softmax(1)),
    Case("aten._log_softmax", "a B c", lambda x: aten._log_softmax(x, 1, False)),
    *(
        Case(f"aten.{name}", "a B c", lambda x, name=name: getattr(torch, name)(x, 1))
        for name in "cumsum cumprod sort argsort logcumsumexp cummax cummin".split()
    ),
    Case("aten.sort", "a B", lambda x: x.sort(stable=True, descending=True)),
    *(
        Case(f"aten.fft_{name}", "a B c", lambda x, name=name: getattr(torch.fft, name)(x, dim=1))
        for name in "fft ifft rfft irfft hfft ihfft".split()
    ),
    *(
        Case(f"aten.fft_{name}", "A B c", lambda x, name=name: getattr(torch.fft, name)(x, dim=(0, 1)))
        for name in "fft2 ifft2 rfft2 irfft2 fftn ifftn rfftn irfftn".split()
    ),
    Case("aten.fft_fft", "a B", lambda x: torch.fft.fft(x, n=5).real),
    Case("aten.fft_fftn", "a B C", lambda x: torch.fft.fftn(x, s=(3, 4)).abs()),
    Case("aten.topk", "a B c", lambda x: x.topk(2, 1)),
    Case("aten.topk", "a B", lambda x: x.topk(1)),
    Case("aten.histc", "A B", lambda x: x.histc(3, -1, 1)),
    Case("aten.layer_norm", "a b c, c, c", lambda x, w, b: functional.layer_norm(x, w.shape, w, b)),
    Case("aten.layer_norm", "a b c", lambda x: functional.layer_norm(x, x.shape[1:])),
    Case("aten.layer_norm", "a b, b", lambda x, b: functional.layer_norm(x, b.shape, bias=b)),
    Case("aten.rms_norm", "a b c, c", lambda x, w: functional.rms_norm(x, w.shape, w)),
    Case("aten.rms_norm", "a b c", lambda x: functional.rms_norm(x, x.shape[2:])),
    Case("aten.group_norm", "a (g c) D, (g c), (g c)", lambda x, w, b, *, g: functional.group_norm(x, g, w, b)),
    Case("aten.group_norm", "a (g c) D", lambda x, *, g: functional.group_norm(x, g)),
    Case(
        "aten.group_norm",
        "a c, c, c",
        lambda x, w, b, *, c: functional.group_norm(x.unsqueeze(-1).expand(-1, -1, 1), c, w, b),
    ),
    Case("aten.batch_norm", "A c D, c, c", lambda x, w, b: functional.batch_norm(x, None, None, w, b, True)),
    Case("aten.batch_norm", "A c", lambda x: functional.batch_norm(x, None, None, training=True)),
    Case(
        "aten.batch_norm",
        "a c d, c, c, c, c",
        lambda x, m, v, w, b: functional.batch_norm(x, m.detach(), v.detach(), w, b),
        [normal, normal, positive],
    ),
    Case(
        "aten.batch_norm",
        "a c, c, c",
        lambda x, m, v: functional.batch_norm(x, m.detach(), v.detach()),
        [normal, normal, positive],
    ),
    Case(
        "aten.batch_norm",
        "A c D, C, C",
        lambda x, m, v: functional.batch_norm(x, m.detach().clone(), v.detach().clone(), training=True),
        sizes={"c": 6, "C": 6},
    ),
    Case("aten.instance_norm", "a c D, c, c", lambda x, w, b: functional.instance_norm(x, weight=w, bias=b)),
    Case("aten.instance_norm", "a c D", lambda x: functional.instance_norm(x)),
]

TABLE: dict[str, Any] = {"tables": [1]}
ROWS = {"a": 9, "v": 5}
LOOKUPS = [
    Case("aten.embedding", "a b, v w", functional.embedding, [numbers(2)], **TABLE),
    Case("aten.embedding", "a, v w", functional.embedding, [numbers(5)], ROWS, **TABLE),
    *(
        Case(
            "aten.embedding",
            "a, v w",
            lambda i, t, row=row: functional.embedding(i, t, row),
            [numbers(5)],
            {"a": 9, "v": 5},
            **TABLE,
        )
        for row in (0, 3, -1)
    ),
    Case(
        "aten.embedding",
        "A, V w",
        lambda i, t: functional.embedding(i, t, scale_grad_by_freq=True),
        [numbers(5)],
        {"A": 9, "V": 5},
        **TABLE,
    ),
    Case("aten.index", "A b, c", lambda x, i: x[i], [normal, numbers(2)]),
    Case("aten.index", "v b c, d", lambda x, i: x[i], [normal, numbers(5)], {"v": 5, "d": 9}, tables=[0]),
    Case("aten.index", "v, d", lambda x, i: x[i - 2].exp(), [normal, numbers(5)], {"v": 5, "d": 9}, tables=[0]),
    Case("aten.index", "a B c, d e", lambda x, i: x[:, i], [normal, numbers(2)]),
    Case("aten.index", "A B c, d, d", lambda x, i, j: x[i, j], [normal, numbers(2), numbers(2)]),
    Case("aten.index", "A B C, D, D", lambda x, i, j: x[i, :, j], [normal, numbers(2), numbers(2)]),
    Case("aten.index_put", "A b, A, A b", lambda x, i, y: aten.index_put(x, [i], y), [normal, order]),
    Case("aten.index_put", "a B c, B, c", lambda x, i, y: aten.index_put(x, [None, i], y), [normal, order]),
    Case("aten.index_put", "A B, A B, 1", lambda x, i, y: aten.index_put(x, [i], y), [normal, flags]),
    Case("aten.gather", "a B, a C", lambda x, i: x.gather(1, i), [normal, numbers(2)]),
    Case("aten.gather", "5 B, 3 C", lambda x, i: x.gather(1, i), [normal, numbers(2)]),
    Case("aten.scatter", "a B, a 1, a 1", lambda x, i, y: x.scatter(1, i, y), [normal, numbers(2)]),
    Case("aten.scatter", "a B, a 1", lambda x, i: x.scatter(-1, i, 1.0), [normal, numbers(2)]),
    Case("aten.scatter_add", "a B, a C, a C", lambda x, i, y: x.scatter_add(1, i, y), [normal, numbers(2)]),
    Case("aten.index_add", "A b, C, C b", lambda x, i, y: x.index_add(0, i, y), [normal, numbers(2)]),
    Case("aten.index_add", "a B c, D, a D c", lambda x, i, y: x.index_add(-2, i, y, alpha=3), [normal, numbers(2)]),
    Case("aten.bucketize", "a b, D", lambda x, limits: torch.bucketize(x, limits.sort().values, right=True)),
    Case("aten.isin", "a b, C", torch.isin, [numbers(4), numbers(2)]),
    Case("aten.isin", "a b", lambda x: torch.isin(x, 1), [numbers(4)]),
    Case("aten.isin", "A", lambda x: torch.isin(1, x), [numbers(4)]),
    Case("aten.index_add", "C, C b", lambda i, y: y.new_zeros(4, y.shape[1]).index_add(0, i, y), [numbers(4)]),
    Case("aten.index_copy", "a B c, B, a B c", lambda x, i, y: x.index_copy(1, i, y), [normal, order]),
    Case("aten.index_fill", "a B c, D", lambda x, i: x.index_fill(1, i, 2.5), [normal, numbers(2)]),
    Case(
        "aten.scatter_reduce", "a B, a C, a C", lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), [normal, numbers(2)]
    ),
    Case("aten.searchsorted", "D, a b", lambda limits, x: torch.searchsorted(limits.sort().values, x)),
    Case("aten.searchsorted", "A B, A C", lambda limits, x: torch.searchsorted(limits.sort().values, x)),
    Case("aten.index_select", "a B c, D", lambda x, i: x.index_select(1, i), [normal, numbers(2)]),
    Case("aten.one_hot", "a b", lambda i: functional.one_hot(i, 3), [numbers(3)]),
]

CONTRACTIONS = [
    Case("aten.linear", "a b i, o i", functional.linear),
    Case("aten.linear", "a b i, o i, o", functional.linear),
    Case("aten.linear", "i, o i", functional.linear),
    *(
        Case(operator, "N k, e k m, G", product, [normal, normal, ends], {"N": ROWS_IN_GROUPS, "e": 4, "G": 4})
        for operator, product in (
            ("autotp.grouped_mm", torch.ops.autotp.grouped_mm),
            ("transformers.grouped_mm_fallback", torch.ops.transformers.grouped_mm_fallback),
        )
    ),
    Case("aten.mm", "a b, b c", torch.mm),
    Case("aten.bmm", "a b c, a c d", torch.bmm),
    Case("aten.mv", "a b, b", torch.mv),
    Case("aten.dot", "a, a", torch.dot),
    Case("aten.outer", "a, b", torch.outer),
    Case("aten.bilinear", "a i, a j, o i j, o", functional.bilinear),
    Case("aten.matmul", "a b, b c", torch.matmul),
    Case("aten.matmul", "a b c, c d", torch.matmul),
    Case("aten.matmul", "a 1 b c, d c e", torch.matmul),
    Case("aten.matmul", "a b, b", torch.matmul),
    Case("aten.matmul", "b, a b c", torch.matmul),
    Case("aten.matmul", "b, b", torch.matmul),
    Case("aten.matmul", "A b", lambda x: x @ x.t().contiguous()),
    Case("aten.addmm", "c, a b, b c", torch.addmm),
    Case("aten.addmm", "a 1, a b, b c", torch.addmm),
    Case("aten.addmm", "c, a B, B c", lambda x, y, z: torch.addmm(x, y, z, beta=2, alpha=3)),
    Case("aten._cdist_forward", "a b C, a d C", lambda x, y: torch.cdist(x, y)),
    Case("aten._cdist_forward", "b C, d C", lambda x, y: torch.cdist(x, y, p=1.0)),
    Case("aten.linalg_cross", "a 3 b, a 3 b", lambda x, y: torch.linalg.cross(x, y, dim=1)),
    Case("aten.baddbmm", "d, a b C, a C d", torch.baddbmm),
    Case("aten.baddbmm", "a b d, a b C, a C d", lambda x, y, z: torch.baddbmm(x, y, z, beta=0.5, alpha=2)),
    *(
        Case("aten.einsum", text, lambda *x, equation=equation: torch.einsum(equation, *x))
        for text, equation in (
            ("a b, b c", "ab,bc->ac"),
            ("a b, b c", "ij,jk"),
            ("b s h d, b t h d", "bshd,bthd->bhst"),
            ("b h s t, b t h d", "bhst, bthd -> bshd"),
            ("b h c k, b h c v, c", "bhck,bhcv,c->bhkv"),
            ("a b c", "abc->ca"),
            ("a b c", "abc->cab"),
            ("a b", "ij->"),
            ("a, b", "i,j->ij"),
            ("a b c, c d", "...i,ij->...j"),
            ("a b c, b d", "a...c,...d->a...d"),
            ("a b", "i...->i"),
            ("A A", "ii->i"),
            ("a B B", "aii->a"),
        )
    ),
    Case("aten.einsum", "A", lambda x: torch.einsum("i,j->i", x, x)),
    Case("aten.conv1d", "b i T, o i 2", lambda x, w: functional.conv1d(x, w)),
    Case("aten.conv1d", "b i T, o i 2, o", lambda x, w, b: functional.conv1d(x, w, b, padding=1)),
    Case("aten.conv1d", "b c T, c 1 2, c", lambda x, w, b, *, c: functional.conv1d(x, w, b, padding=1, groups=c)),
    Case("aten.conv1d", "b c T, (c o) 1 2", lambda x, w, *, c: functional.conv1d(x, w, groups=c)),
    Case("aten.conv1d", "b (g i) T, (g o) i 2, (g o)", lambda x, w, b, *, g: functional.conv1d(x, w, b, groups=g)),
    Case(
        "aten.conv1d",
        "b C T, C I 2, C",
        lambda x, w, b, *, C: functional.conv1d(x, w, b, groups=2),
        sizes={"C": 4, "I": 2},
    ),
    Case("aten.conv1d", "i T, o i 3", lambda x, w: functional.conv1d(x, w, padding="same")),
    Case("aten.conv1d", "i T, o i 3, o", lambda x, w, b: functional.conv1d(x, w, b, padding="same")),
    Case("aten.conv1d", "b 1 T, o 1 2", lambda x, w: functional.conv1d(x, w)),
    Case("aten.conv2d", "b i T U, o i 2 2", lambda x, w: functional.conv2d(x, w)),
    Case("aten.conv2d", "b i T U, o i 2 2, o", lambda x, w, b: functional.conv2d(x, w, b)),
    Case("aten.conv2d", "i T U, o i 2 2, o", lambda x, w, b: functional.conv2d(x, w, b)),
    Case("aten.conv2d", "b c T U, c 1 2 2", lambda x, w, *, c: functional.conv2d(x, w, groups=c)),
    Case("aten.conv3d", "b i T U V, o i 2 2 2", lambda x, w: functional.conv3d(x, w)),
    Case("aten.conv3d", "b c T U V, c 1 2 2 2, c", lambda x, w, b, *, c: functional.conv3d(x, w, b, groups=c)),
    Case("aten.conv_transpose1d", "b i T, i o 2, o", lambda x, w, b: functional.conv_transpose1d(x, w, b, stride=2)),
    Case(
        "aten.conv_transpose1d",
        "b (g i) T, (g i) o 2, (g o)",
        lambda x, w, b, *, g: functional.conv_transpose1d(x, w, b, groups=g),
    ),
    Case("aten.conv_transpose2d", "b i T U, i o 2 2, o", lambda x, w, b: functional.conv_transpose2d(x, w, b)),
    Case("aten.conv_transpose2d", "b c T U, c 1 2 2", lambda x, w, *, c: functional.conv_transpose2d(x, w, groups=c)),
    Case("aten.conv_transpose3d", "b i T U V, i o 2 2 2", lambda x, w: functional.conv_transpose3d(x, w)),
    *(
        Case(
            f"aten.{kind}_pool{n}d",
            "a b" + " 4" * n,
            lambda x, name=f"{kind}_pool{n}d": getattr(functional, name)(x, 2),
        )
        for kind in ("avg", "max", "adaptive_avg")
        for n in (1, 2, 3)
    ),
    Case("aten.adaptive_avg_pool2d", "a b T 3", lambda x: functional.adaptive_avg_pool2d(x, (1, 2))),
    *(
        Case(
            f"aten.{name}", "a b" + " 4" * n, lambda x, call=call: getattr(functional, call)(x, 2, return_indices=True)
        )
        for n in (1, 2, 3)
        for name, call in (
            (f"adaptive_max_pool{n}d", f"adaptive_max_pool{n}d"),
            (f"max_pool{n}d_with_indices", f"max_pool{n}d"),
        )
    ),
    *(
        Case(
            f"aten.{name}", "a b" + " 3" * n, lambda x, mode=mode: functional.interpolate(x, scale_factor=2, mode=mode)
        )
        for name, mode, n in (
            *((f"upsample_nearest{n}d", "nearest", n) for n in (1, 2, 3)),
            *((f"_upsample_nearest_exact{n}d", "nearest-exact", n) for n in (1, 2, 3)),
            ("upsample_linear1d", "linear", 1),
            ("upsample_bilinear2d", "bilinear", 2),
            ("upsample_bicubic2d", "bicubic", 2),
            ("upsample_trilinear3d", "trilinear", 3),
        )
    ),
    *(
        Case(
            f"aten._upsample_{mode}2d_aa",
            "a b 4 4",
            lambda x, mode=mode: functional.interpolate(x, size=(2, 3), mode=mode, antialias=True),
        )
        for mode in ("bilinear", "bicubic")
    ),
    Case("aten.channel_shuffle", "a (g c) D", lambda x, *, g: functional.channel_shuffle(x, g)),
    Case("aten.prelu", "a c d, c", functional.prelu),
    Case("aten.prelu", "a b c, 1", functional.prelu),
    Case("aten.prelu", "a, 1", functional.prelu),
    Case("aten.im2col", "a c D E", lambda x: functional.unfold(x, (2, 3), padding=1, stride=2)),
    Case("aten.grid_sampler_2d", "a c D E, a d e 2", lambda x, g: functional.grid_sample(x, g, align_corners=False)),
    Case(
        "aten.grid_sampler_3d",
        "a c D E F, a d e f 3",
        lambda x, g: functional.grid_sample(x, g, "nearest", "border", True),
    ),
    Case("aten.im2col", "c D E", lambda x: functional.unfold(x, 2, padding=1)),
    Case("aten.col2im", "a (c 4) 20", lambda x: functional.fold(x, (5, 6), 2)),
    Case("aten.col2im", "(c 4) 5", lambda x: functional.fold(x, (2, 6), 2)),
    Case("aten.pixel_shuffle", "a (c D E) t u", lambda x: functional.pixel_shuffle(x, 2), sizes={"D": 2, "E": 2}),
    Case("aten.pixel_unshuffle", "a c (t D) (u E)", lambda x: functional.pixel_unshuffle(x, 2), sizes={"D": 2, "E": 2}),
]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(q, k, v, mask, **options)


GROUPED = "b (g r) s D, b g T D, b g T e"
ATTENTION = [
    Case("aten.scaled_dot_product_attention", text, lambda *x, options=options: attend(*x, **options), values)
    for text, options, values in (
        ("b h s D, b h T D, b h T e", {}, ()),
        ("h s D, h T D, h T e", {}, ()),
        ("b h T D, b h T D, b h T e", {"is_causal": True, "scale": 0.3}, ()),
        ("b h s D, b h T D, b h T e, s T", {}, ()),
        ("b h s D, b h T D, b h T e, b 1 s T", {}, ()),
        ("b h s D, b h T D, b h T e, 1 h 1 T", {}, ()),
        ("b h s D, b 1 T D, b 1 T e", {}, ()),
        (GROUPED, {"enable_gqa": True}, ()),
        ("b (g r) s D, b g T D, b (g r) T e", {"enable_gqa": True}, ()),
        ("b (g r) T D, b g T D, b g T e", {"enable_gqa": True, "is_causal": True}, ()),
        (f"{GROUPED}, b 1 s T", {"enable_gqa": True}, ()),
        (f"{GROUPED}, (g r) s T", {"enable_gqa": True}, ()),
    )
]

CREATIONS = [
    *(
        Case(f"aten.{name}", "a b", lambda x, *, a, b, make=make: x + make(a, b))
        for name, make in (
            ("zeros", lambda a, b: torch.zeros(a, b, dtype=torch.float64)),
            ("ones", lambda a, b: torch.ones(b, dtype=torch.float64)),
            ("full", lambda a, b: torch.full((a, 1), 2.5, dtype=torch.float64)),
            ("empty", lambda a, b: torch.empty(a, b, dtype=torch.float64).fill_(2.5)),
            ("scalar_tensor", lambda a, b: aten.scalar_tensor(2.5, dtype=torch.float64)),
            ("arange", lambda a, b: torch.arange(b, dtype=torch.float64)),
            ("eye", lambda a, b: torch.eye(a, b, dtype=torch.float64)),
            ("linspace", lambda a, b: torch.linspace(0, 1, b, dtype=torch.float64)),
        )
    ),
    *(
        Case(f"aten.{name}", "a b", lambda x, *, a, b, make=make: x * make(x, a, b))
        for name, make in (
            ("new_zeros", lambda x, a, b: x.new_zeros(a, b)),
            ("new_ones", lambda x, a, b: x.new_ones(b)),
            ("new_full", lambda x, a, b: x.new_full((a, b), 2.5)),
            ("new_empty", lambda x, a, b: x.new_empty((a, b)).fill_(2.5)),
        )
    ),
]


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same name and arguments whose casts to float32 are casts to float64."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with Float64():
            return function(*args, **kwargs)

    run.__dict__.pop("__wrapped__")
    run.__dict__["__signature__"] = inspect.signature(function)
    return run


# Kernels of transformers, each run as the PyTorch code that is its reference.
causal_conv1d_fn = in_float64(modeling_mamba.causal_conv1d_fn)
causal_conv1d_update = in_float64(modeling_mamba.causal_conv1d_update)
mamba_selective_state_update = in_float64(modeling_mamba.mamba_selective_state_update)
mamba2_selective_state_update = in_float64(modeling_mamba2.mamba2_selective_state_update)
mamba_selective_scan = in_float64(modeling_mamba.mamba_selective_scan)
mamba2_chunk_scan = in_float64(modeling_mamba2.mamba2_chunk_scan)
torch_chunk_gated_delta_rule = in_float64(modeling_qwen3_next.torch_chunk_gated_delta_rule)
torch_recurrent_gated_delta_rule = in_float64(modeling_qwen3_next.torch_recurrent_gated_delta_rule)
chunk_kimi_delta_attention = in_float64(modeling_kimi_linear.chunk_kimi_delta_attention)
recurrent_kimi_delta_attention = in_float64(modeling_kimi_linear.recurrent_kimi_delta_attention)
rwkv_linear_attention = in_float64(modeling_rwkv.rwkv_linear_attention)
mlstm_chunkwise_native_autograd = in_float64(modeling_xlstm.mlstm_chunkwise_native_autograd)
wrap_chunkwise_pad_zeros = in_float64(modeling_xlstm.wrap_chunkwise_pad_zeros)
wrap_chunkwise_arbitrary_sequence_length = in_float64(modeling_xlstm.wrap_chunkwise_arbitrary_sequence_length)

DELTA = "b T g K, b T g K, b T (g r) v, b T (g r), b T (g r)"
DELTA_BY_CHANNEL = "b T h K, b T h K, b T h v, b T h K, b T h"
CELL = "b h T K, b h T K, b h T v, b h T, b h T"
CELL_STATES = "b h K v, b h K, b h 1"
LINEAR_STATES = "c, c, b T c, b T c, b c, b c, b c"


def cell(function: Callable[..., Any], *values: torch.Tensor, **options: Any) -> Any:
    """A matrix memory, with the states it begins with where they are given."""
    names = ("query", "key", "value", "igate", "fgate", "c_initial", "n_initial", "m_initial")
    return function(**dict(zip(names, values, strict=False)), **options)


def in_any_length(*values: torch.Tensor) -> Any:
    kernels = {
        "mlstm_chunkwise_kernel": modeling_xlstm.mlstm_chunkwise_native_autograd,
        "mlstm_sequence_kernel": modeling_xlstm.mlstm_recurrent_sequence_native,
        "mlstm_step_kernel": modeling_xlstm.mlstm_recurrent_step_native,
    }
    return cell(wrap_chunkwise_arbitrary_sequence_length, *values, **kernels, chunk_size=4)


FUNCTIONS = [
    Case("function.GeLUFunction", "a b", lambda x: modeling_bloom.GeLUFunction.apply(x), [fraction]),
    Case("function.SqrtBoundDerivative", "a b", lambda x: SqrtBoundDerivative.apply(x), [positive]),
    *(
        Case(
            "function.causal_conv1d_fn",
            "b c T, c K, c",
            lambda x, w, b, activation=activation: causal_conv1d_fn(x, w, b, activation=activation),
        )
        for activation in (None, "silu", "sigmoid")
    ),
    Case("function.causal_conv1d_fn", "b c T, c K", lambda x, w: causal_conv1d_fn(x, w, activation="silu")),
    Case(
        "function.mamba_selective_scan",
        "b c T, b c T, c N, b N T, b N T, c, b c T, c",
        lambda x, dt, a, b, c, d, z, bias: mamba_selective_scan(
            x, dt, a, b, c, D=d, z=z, delta_bias=bias, delta_softplus=True
        ),
    ),
    Case(
        "function.mamba_selective_scan",
        "b c T, b c T, c N, b N T, b N T",
        lambda x, dt, a, b, c: mamba_selective_scan(x, dt, a, b, c, delta_softplus=True, return_last_state=True),
    ),
    Case(
        "function.mamba2_chunk_scan",
        "b T (g r) p, b T (g r), (g r), b T g N, b T g N, (g r), (g r)",
        lambda x, dt, a, b, c, d, bias: mamba2_chunk_scan(
            x, dt, -a.exp(), b, c, 2, D=d, dt_bias=bias, dt_softplus=True, return_final_states=True
        ),
    ),
    Case(
        "function.mamba2_chunk_scan",
        "b T (g r) p, b T (g r), (g r), b T g N, b T g N, b (g r) p N",
        lambda x, dt, a, b, c, s: mamba2_chunk_scan(x, dt, -a.exp(), b, c, 3, initial_states=s, dt_softplus=True),
    ),
    Case(
        "function.mamba2_chunk_scan",
        "b T h p, b T h, h, b T 1 N, b T 1 N",
        lambda x, dt, a, b, c: mamba2_chunk_scan(x, dt, -a.exp(), b, c, 3, dt_softplus=True),
    ),
    Case(
        "function.torch_chunk_gated_delta_rule",
        DELTA,
        lambda q, k, v, g, beta: torch_chunk_gated_delta_rule(
            q, k, v, -g.exp(), beta, initial_state=None, output_final_state=False, chunk_size=2
        )[0],
    ),
    Case(
        "function.torch_recurrent_gated_delta_rule",
        DELTA,
        lambda q, k, v, g, beta: torch_recurrent_gated_delta_rule(
            q, k, v, -g.exp(), beta, initial_state=None, output_final_state=False
        )[0],
    ),
    Case(
        "function.chunk_kimi_delta_attention",
        DELTA_BY_CHANNEL,
        lambda q, k, v, g, beta: chunk_kimi_delta_attention(
            q, k, v, -g.exp(), beta, initial_state=None, output_final_state=False, chunk_size=2
        )[0],
    ),
    Case(
        "function.recurrent_kimi_delta_attention",
        DELTA_BY_CHANNEL,
        lambda q, k, v, g, beta: recurrent_kimi_delta_attention(
            q, k, v, -g.exp(), beta, initial_state=None, output_final_state=False
        )[0],
    ),
    Case(
        "function.torch_chunk_gated_delta_rule",
        f"{DELTA}, b (g r) K v",
        lambda q, k, v, g, beta, s: torch_chunk_gated_delta_rule(
            q,
            k,
            v,
            -g.exp(),
            beta,
            initial_state=s,
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            chunk_size=3,
        ),
    ),
    Case(
        "function.recurrent_kimi_delta_attention",
        f"{DELTA_BY_CHANNEL}, b h K v",
        lambda q, k, v, g, beta, s: recurrent_kimi_delta_attention(
            q, k, v, -g.exp(), beta, initial_state=s, output_final_state=True, use_qk_l2norm_in_kernel=True
        ),
    ),
    Case("function.rwkv_linear_attention", "c, c, b T c, b T c", lambda *x: rwkv_linear_attention(*x)[0]),
    Case(
        "function.rwkv_linear_attention",
        LINEAR_STATES,
        lambda w, u, k, v, a, b, c: rwkv_linear_attention(w, u, k, v, [a, b.exp(), c], True),
    ),
    Case(
        "function.mlstm_chunkwise_native_autograd",
        f"{CELL}, {CELL_STATES}",
        lambda *x, T: cell(mlstm_chunkwise_native_autograd, *x, chunk_size=T, return_last_states=True),
    ),
    Case(
        "function.wrap_chunkwise_pad_zeros",
        CELL,
        lambda *x: cell(
            wrap_chunkwise_pad_zeros,
            *x,
            mlstm_chunkwise_kernel=modeling_xlstm.mlstm_chunkwise_native_autograd,
            chunk_size=4,
        ),
    ),
    Case("function.wrap_chunkwise_arbitrary_sequence_length", f"{CELL}, {CELL_STATES}", in_any_length, sizes={"T": 6}),
]

OPERATORS = [*POINTWISE, *VIEWS, *PARTS, *REDUCTIONS, *LOOKUPS, *CONTRACTIONS, *ATTENTION, *CREATIONS, *FUNCTIONS]


# -- what models do with several operators -------------------------------------------------------------------------


def gated(x: torch.Tensor, fused: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A gated MLP with a fused gate and up projection."""
    gate, up = functional.linear(x, fused).chunk(2, -1)
    return functional.linear(functional.silu(gate) * up, down)


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    """Key heads for grouped attention, by expand and reshape."""
    b, g, t, d = x.shape
    return x[:, :, None].expand(b, g, times, t, d).reshape(b, g * times, t, d)


def scores(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention by hand."""
    weights = (q @ k.transpose(-1, -2) / 2).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def rotated_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rotated_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Interleaved: even and odd elements are rotated against each other."""
    even, odd = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack((-odd, even), -1).flatten(-2) * sin


def attended(x: torch.Tensor, fused: torch.Tensor, out: torch.Tensor, *, h: int, D: int) -> torch.Tensor:
    """Heads from a fused projection, q behind k behind v, back through a row of weights."""
    q, k, v = (part.unflatten(-1, (h, D)).transpose(1, 2) for part in functional.linear(x, fused).split(h * D, -1))
    return functional.linear(attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2), out)


def attended_by_head(x: torch.Tensor, fused: torch.Tensor, out: torch.Tensor, *, h: int, D: int) -> torch.Tensor:
    """The same with q, k and v of every head side by side."""
    q, k, v = functional.linear(x, fused).unflatten(-1, (h, 3 * D)).transpose(1, 2).chunk(3, -1)
    return functional.linear(attend(q, k, v).transpose(1, 2).flatten(2), out)


def attended_in_groups(
    x: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor, out: torch.Tensor, *, r: int, d: int
) -> torch.Tensor:
    """Grouped attention: r query heads share a key head."""
    q, k, v = (functional.linear(x, w).unflatten(-1, (-1, d)).transpose(1, 2) for w in (wq, wk, wv))
    return functional.linear(scores_in_groups(q, k, v, r=r), out)


def scanned(x: torch.Tensor, kernel: torch.Tensor, decay: torch.Tensor, out: torch.Tensor, *, c: int) -> torch.Tensor:
    """A depthwise window and a state per channel."""
    x = functional.silu(functional.conv1d(x, kernel, padding=1, groups=c))[..., : x.shape[-1]]
    states = (x[:, :, None] * torch.exp(-torch.exp(decay))[None, :, :, None]).cumsum(-1)
    return functional.linear(states.sum(2).transpose(1, 2), out)


def transformed(
    x: torch.Tensor, up: torch.Tensor, a: torch.Tensor, down: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return functional.linear(functional.linear(x, up, a).relu(), down, b)


def scores_in_groups(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, r: int) -> torch.Tensor:
    return scores(q, repeated(k, r), repeated(v, r))


def normalised_heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhd,hdo->bo", x / (x * x).sum(-1, keepdim=True).sqrt(), w)


def experts(
    x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor, ends: torch.Tensor, which: torch.Tensor
) -> torch.Tensor:
    """Gate and up projection side by side, every row with the matrices of its group."""
    one, other = (torch.ops.autotp.grouped_mm(x, up, ends) + bias[which]).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.ops.autotp.grouped_mm(functional.silu(one) * other, down.transpose(1, 2), ends)


def counted(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """A number of elements is that of the whole value, wherever it is cut."""
    y = functional.linear(x, up)
    return functional.linear(y / y.numel(), down) + torch.arange(y.numel()).sum()


MODELS = [
    Case("a number of elements", "b S x, i x, o i", counted),
    Case("gated MLP", "b s x, [i i] x, o i", gated),
    Case(
        "experts",
        "N x, E x (i 2), E (i 2), E o i, E, N",
        experts,
        [*[normal] * 4, ends, numbers(4)],
        {"N": ROWS_IN_GROUPS, "E": 4},
    ),
    Case(
        "MLP with biases",
        "b x, i x, i, o i, o",
        transformed,
    ),
    Case("two matrices as given", "b x, x i, i o", lambda x, up, down: functional.gelu(x @ up) @ down),
    Case("exponent before a sum", "a", lambda x: x.exp().sum(-1), padded=False),
    Case("logarithm before a matrix", "a b, b c", lambda x, w: x.log() @ w, [positive]),
    Case("heads of length one", "b h d, h d o", normalised_heads),
    Case("mean of squares", "a b, b", lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6) * w),
    Case("attention by hand", "b h s d, b h T d, b h T e", scores),
    Case(
        "grouped attention by hand",
        "b (g r) s d, b g T d, b g T e",
        scores_in_groups,
    ),
    Case("rotary halves", "b h s [d d], s [d d], s [d d]", rotated_halves),
    Case("rotary pairs", "b h s (d 2), s (d 2), s (d 2)", rotated_pairs),
    Case("heads behind each other", "b S x, [(h D) (h D) (h d)] x, o (h d)", attended, sizes={"D": 3, "d": 3}),
    Case("heads side by side", "b S x, (h [D D d]) x, o (h d)", attended_by_head, sizes={"D": 2, "d": 2}),
    Case(
        "heads in groups",
        "b S x, (g r d) x, (g d) x, (g e) x, o (g r e)",
        attended_in_groups,
        sizes={"d": 2, "e": 2},
    ),
    Case("depthwise scan", "b c T, c 1 3, c n, o c", scanned, sizes={"n": 6}),
    Case("a matrix by itself", "A B", lambda x: x.softmax(-1) @ x.t()),
    Case("an outer difference", "A", lambda x: (x[:, None] - x[None, :]).exp()),
    Case("a flattened outer product", "A", lambda x: (x[:, None] * x[None, :]).view(-1)),
]
