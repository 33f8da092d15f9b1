"""`autotp.initialize`: the initial values of a parallel model that was built on the meta device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from ..checkpoint.agree import share, together
from ..checkpoint.full import state_of
from ..checkpoint.load import parts_of, put
from ..checkpoint.tape import Place, Tape, record
from ..dispatch.apply import Parallel
from ..errors import UsageError, in_one_line
from ..huggingface import models
from ..runtime.collectives.slices import take

Model = TypeVar("Model", bound=nn.Module)
INITIALIZE = "autotp.initialize"
MSG_BUILD = (
    "how {kind} is built is not known; give the function that builds the dense model, as build=lambda: {kind}(...)"
)
MSG_HAS_DATA = (
    "{name} has values already, and initialize gives values only to models on the meta device; build the model under"
    ' torch.device("meta"), or call torch.manual_seed(seed) on every rank before it is built'
)
MSG_CUT_AGAIN = "{name} is cut by FSDP already; call autotp.initialize(model) before fully_shard"
MSG_UNWRITTEN = (
    "the code that builds the model gives {name} no initial values; give another build=, or load a checkpoint"
)
MSG_OTHER = (
    "build() makes another model: {name} is {found} there and {wanted} here; give the function that built this model"
)
MSG_FAILS = (
    "the code that builds {kind} fails on tensors without data: {error}; give another build=, or initialize the dense model,"
    " save it and load it with autotp.from_pretrained"
)
MSG_DIFFERENT = (
    "the ranks' models draw different initial values; give all the same seed and build, and draw with torch's functions"
)


def initialize(
    model: Model,
    seed: int = 0,
    *,
    build: Callable[[], nn.Module] | None = None,
    device: torch.device | str | None = None,
) -> Model:
    """Give a parallel model on the meta device the initial values of the dense model, each rank its slices, and return it.

    The code that builds the dense model runs on tensors without data. Then one tensor after the other is computed whole, on the
    CPU, and cut. The values depend on the seed alone: for every number of ranks they are parts of the same dense model. The
    global random state is not read and not changed. Every rank must call it; make the optimizer after that.

    Args:
        model: what `parallelize` returned for a model that was built under `torch.device("meta")`.
        seed: another seed, other values; the same on all ranks.
        build: builds the dense model again, with its initial values. Needed for a module that is not from transformers;
            such a one is built from its configuration. Values are drawn in the dtype that it gives them, and become the model's.
        device: where the weights go; unless given, where `parallelize` found that this rank computes.

    Raises:
        UsageError: the model is not parallel, has values already or is cut by FSDP, `build` makes another model or leaves a
            parameter or buffer without values, or ranks draw different ones. The error is the same on all ranks, and the
            model is as it was.
    """
    state = state_of(model)
    where = state.ranks.device if device is None else torch.device(device)
    found: list[_Initial] = []
    parts: dict[int, torch.Tensor] = {}

    def begin() -> str:
        _check(model, seed)
        found.append(_Initial.of(model, state, seed, build))
        return found[0].tape.digest()

    def compute() -> None:
        parts.update(parts_of(model, found[0].places, found[0].part, where))

    if len(set(share(state.ranks, INITIALIZE, begin))) > 1:
        raise UsageError(MSG_DIFFERENT)
    together(state.ranks, INITIALIZE, compute)
    put(model, parts, where)
    return model


def _check(model: nn.Module, seed: object) -> None:
    """Raises UsageError unless the seed is one and every parameter is on the meta device."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed must be a whole number, not {seed!r}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise UsageError(MSG_CUT_AGAIN.format(name=name))
        if not parameter.is_meta:
            raise UsageError(MSG_HAS_DATA.format(name=name))


@dataclass(frozen=True)
class _Initial:
    """The initial values of a parallel model's tensors on the meta device: where they are on the tape."""

    tape: Tape
    places: Mapping[str, Place]
    dtypes: Mapping[str, torch.dtype]
    state: Parallel

    @staticmethod
    def of(model: nn.Module, state: Parallel, seed: int, build: Callable[[], nn.Module] | None) -> _Initial:
        """Record how the dense model is built. Raises UsageError if it is another one, or something has no values."""
        build = build or models.builder(model)
        if build is None:
            raise UsageError(MSG_BUILD.format(kind=type(model).__name__))
        dense, tape = _recorded(build, type(model).__name__, seed)
        own, whole = dict(_tensors(model)), dict(_tensors(dense))
        wanted = {name: tuple(state.shapes.get(name, value.shape)) for name, value in own.items()}
        _compare(_described(own, wanted), _described(whole, {name: tuple(v.shape) for name, v in whole.items()}))
        places = {name: tape.place(whole[name]) for name, value in own.items() if value.is_meta}
        for name, place in places.items():
            if not tape.is_written(place):
                raise UsageError(MSG_UNWRITTEN.format(name=name))
        return _Initial(tape, places, {name: value.dtype for name, value in own.items()}, state)

    def part(self, name: str) -> torch.Tensor:
        """This rank's part of a tensor, in memory of its own."""
        whole = self.tape.compute(self.places[name])
        if whole.is_floating_point() and bool(whole.isnan().any()):
            raise UsageError(MSG_UNWRITTEN.format(name=name))
        part = take(whole, self.state.layouts.get(name, ()), self.state.ranks.rank).to(self.dtypes[name])
        return part.clone() if part.untyped_storage().nbytes() > part.nbytes else part


def _recorded(build: Callable[[], nn.Module], kind: str, seed: int) -> tuple[nn.Module, Tape]:
    try:
        return record(build, seed)
    except Exception as error:
        raise UsageError(MSG_FAILS.format(kind=kind, error=in_one_line(error))) from error


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _described(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Every tensor's shape in words, and which parameter before it is the same one."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in tensors.items():
        same = first.setdefault(id(tensor), name) if isinstance(tensor, nn.Parameter) else name
        shape = " x ".join(map(str, shapes[name])) or "a number"
        found[name] = shape if same == name else f"{shape}, tied to {same}"
    return found


def _compare(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raises UsageError for the first tensor that a newly built model has not, has more, or has otherwise."""
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            found, wanted = there.get(name, "nothing"), here.get(name, "nothing")
            raise UsageError(MSG_OTHER.format(name=name, found=found, wanted=wanted))
