"""A model out as an ordinary checkpoint: one whole tensor after the other is put together on rank 0 and written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from huggingface_hub.serialization._base import parse_size_to_int
from torch import nn

from ..axes.layout import Layout
from ..errors import CheckpointError, UsageError
from ..outside.data import brief
from ..runtime.cut.origin import parts_only
from ..runtime.groups.ranks import Ranks
from .agree import together
from .boxes import Box, boxes
from .folder import INDEX, PICKLED, PICKLED_INDEX, WEIGHTS
from .full import state_of, undivided
from .lazy import Lazy, read, sources
from .progress import bar
from .target import Target
from .write import Writer

PATIENCE_S = 60.0
_NUMBERED = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)")


@dataclass
class Gathered:
    """A tensor of a parallel model as a lazy one's source: put together on rank 0 when `gather` is called on all ranks."""

    name: str
    part: torch.Tensor
    layouts: tuple[Layout, ...] | None
    ranks: Ranks
    whole: torch.Tensor | None = field(default=None, repr=False)

    def open(self) -> torch.Tensor:
        """The whole tensor, on rank 0 and after `gather`."""
        assert self.whole is not None, self.name
        return self.whole

    def gather(self) -> None:
        """Put the tensor together on rank 0. All ranks must call it."""
        part = undivided(self.part)
        if self.layouts is None:
            self.whole = part
            return
        rank = self.ranks.rank
        found = {r: boxes(self.layouts, r) for r in range(self.ranks.size)}
        senders = _different(found)
        if rank == 0:
            shape = [layout.size for layout in self.layouts]
            self.whole = torch.empty(shape, dtype=part.dtype)
        for sent, sender in zip(self.ranks.to_first(part, senders), senders, strict=False):  # nothing but on rank 0
            assert self.whole is not None
            for box in found[sender]:
                box.in_whole(self.whole).copy_(box.of(sent))

    def drop(self) -> None:
        """Free the whole tensor."""
        self.whole = None


def _different(found: Mapping[int, list[Box]]) -> list[int]:
    """The ranks that hold something no rank before them holds."""
    seen: set[tuple[int, ...]] = set()
    senders = []
    for rank, held in found.items():
        places = {box.whole for box in held}
        if places - seen:
            senders.append(rank)
            seen |= places
    return senders


def gathered(model: nn.Module) -> dict[str, Lazy]:
    """Every tensor of a parallel model as a whole, lazy one."""
    state = state_of(model)
    found = {}
    for name, value in _plain_state(model).items():
        layouts = state.layouts.get(name)
        shape = state.shapes.get(name, tuple(value.shape))
        with parts_only():
            found[name] = Lazy.of(Gathered(name, value.detach(), layouts, state.ranks), shape, value.dtype)
    return found


def _plain_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {n: t for n, t in model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}


def save(
    tensors: Mapping[str, Lazy],
    target: Target,
    ranks: Ranks,
    max_shard_size: int | str,
    metadata: Mapping[str, object],
    write_configs: Callable[[Path], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write a checkpoint; every rank calls it, rank 0 of the first group writes. `tensors` are those of the files, made from
    whole ones; `check` says at the end if they were what they seemed to be.

    Raises CheckpointError, the same on all ranks, and then the folder is what it was before. UsageError if some rank
    does not call it.
    """
    first, what = ranks.rank == 0 and ranks.replica == 0, target.written_by
    ranks.exchange("", what, PATIENCE_S)
    with ExitStack() as stack:
        writers: dict[str, Writer] = {}

        def begin() -> None:
            if first:
                new = stack.enter_context(target.written())
                write_configs(new)
                writers.update(open_files(tensors, new, max_shard_size, metadata, stack))

        def write() -> None:
            with bar("saving", _bytes(tensors.values()), ranks.rank) as tell:
                stream(tensors, writers, first, tell)
            check()

        together(ranks, what, begin)
        together(ranks, what, write)
        together(ranks, what, stack.close)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def is_weights(name: str) -> bool:
    """Returns if a file of a checkpoint folder holds or lists weights, so that new ones take its place."""
    return name in (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX) or _NUMBERED.fullmatch(name) is not None


def open_files(
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    max_shard_size: int | str,
    metadata: Mapping[str, object],
    stack: ExitStack,
) -> dict[str, Writer]:
    """The files of a checkpoint, their space reserved, and the index if there are several; the file of every tensor."""
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.numel() * tensor.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=check_shard_size(max_shard_size),
    )
    if split.is_sharded:
        text = json.dumps(
            {"metadata": {**metadata, **split.metadata}, "weight_map": split.tensor_to_filename},
            indent=2,
            sort_keys=True,
        )
        (folder / INDEX).write_text(text + "\n", encoding="utf-8")
    writers = {}
    for file, names in split.filename_to_tensors.items():
        writer = Writer(folder / file, {name: (tensors[name].dtype, tuple(tensors[name].shape)) for name in names})
        writers.update(dict.fromkeys(names, stack.enter_context(writer)))
    return writers


def check_shard_size(size: int | str) -> int:
    """A size of files in bytes. Raises UsageError for one that is none."""
    try:
        found = parse_size_to_int(size) if isinstance(size, str) else int(size)
    except (ValueError, TypeError):
        found = 0
    if found < 1:
        raise UsageError(f"max_shard_size is {brief(size)}; write a size of files such as '5GB', or a number of bytes")
    return found


def stream(
    tensors: Mapping[str, Lazy], writers: Mapping[str, Writer], first: bool, tell: Callable[[int], None]
) -> None:
    """Gather, convert and write tensor by tensor; what a tensor is made from is freed after the last one that needs it.

    A failure to write is raised at the end: the other ranks are gathering meanwhile and must not wait for ever.
    """
    made_from = _in_order_of_sources(tensors)
    last = {id(source): name for name, found in made_from.items() for source in found}
    failed: CheckpointError | None = None
    there: set[int] = set()
    for name, found in made_from.items():
        for source in found:
            if id(source) not in there:
                there.add(id(source))
                source.gather()
        if first and failed is None:
            try:
                writers[name].write(name, read(tensors[name]))
                tell(_bytes([tensors[name]]))
            except CheckpointError as error:
                failed = error
        for source in found:
            if last[id(source)] == name:
                source.drop()
    if failed is not None:
        raise failed


def _in_order_of_sources(tensors: Mapping[str, Lazy]) -> dict[str, list[Gathered]]:
    """What every tensor is made from; those made from the same follow each other."""
    made_from = {name: [s for s in sources(tensor) if isinstance(s, Gathered)] for name, tensor in tensors.items()}
    numbers: dict[int, int] = {}
    for found in made_from.values():
        for source in found:
            numbers.setdefault(id(source), len(numbers))
    order = sorted(made_from, key=lambda name: min((numbers[id(source)] for source in made_from[name]), default=-1))
    return {name: made_from[name] for name in order}
