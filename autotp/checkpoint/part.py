"""A rank's part of a tensor as tools see it: it has the whole tensor's shape, and says which boxes of it are here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.utils import _pytree as pytree

from ..axes.layout import Layout
from ..axes.layout_text import parse_layout
from ..errors import UsageError
from ..runtime.collectives.slices import padding
from .boxes import Box, boxes

aten = torch.ops.aten
# What may be done to a part: it happens to the local data and gives a part again.
_KEPT = frozenset(
    getattr(aten, name) for name in "alias clone copy_ detach empty_like _pin_memory _to_copy zero_ zeros_like".split()
)
MSG_NOT_WHOLE = (
    "this rank holds only a part of the tensor, so {name} cannot be computed on it; use autotp.full_state_dict(model) for"
    " whole tensors, autotp.save_pretrained(model, folder) for a checkpoint, torch.distributed.checkpoint to resume training"
)


class Part(torch.Tensor):
    """A rank's part of a tensor that is cut; shares its data with the model.

    `torch.distributed.checkpoint` saves and loads it at any number of ranks: what several ranks hold is written once,
    padding never. `local` is the plain local tensor.
    """

    local: torch.Tensor
    layouts: tuple[Layout, ...]
    rank: int

    @staticmethod
    def of(local: torch.Tensor, layouts: Sequence[Layout], rank: int) -> Part:
        """The part that a local tensor is."""
        shape = tuple(layout.size for layout in layouts)
        value = torch.Tensor._make_wrapper_subclass(Part, shape, dtype=local.dtype, device=local.device)
        value.__dict__.update(local=local, layouts=tuple(layouts), rank=rank)
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A part as files have it, of what `torch.load` reads with `weights_only` too."""
        return part_of_file, (self.local.detach(), [str(layout) for layout in self.layouts], self.rank)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        layouts = ", ".join(map(str, self.layouts))
        return f"Part(rank {self.rank} of [{layouts}], local {tuple(self.local.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        parts = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Part)]
        alike = all(part.layouts == parts[0].layouts and part.rank == parts[0].rank for part in parts)
        if func is aten.new_empty.default and list(args[1]) == list(args[0].shape):
            func, args = aten.empty_like.default, args[:1]
        if func.overloadpacket not in _KEPT or not alike or not isinstance(args[0], Part):
            raise UsageError(MSG_NOT_WHOLE.format(name=func))
        args, kwargs = pytree.tree_map(lambda v: v.local if isinstance(v, Part) else v, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if any(result is part.local for part in parts):
            return next(part for part in parts if result is part.local)
        return Part.of(result, parts[0].layouts, parts[0].rank)

    def untyped_storage(self) -> torch.UntypedStorage:
        """Raises UsageError: there is no memory that holds the whole tensor."""
        raise UsageError(MSG_NOT_WHOLE.format(name="its address"))

    def clear_padding(self) -> None:
        """Set the padding to zero, which no checkpoint has."""
        with torch.no_grad():
            for dim, layout in enumerate(self.layouts):
                self.local.index_fill_(dim, padding(layout, self.rank).to(self.local.device), 0)

    # The protocol of torch.distributed.checkpoint.

    def _boxes(self) -> list[Box]:
        return boxes(self.layouts, self.rank)

    def __create_write_items__(self, name: str, part: object) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.local)
        return [
            WriteItem(
                index=MetadataIndex(name, torch.Size(box.whole)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=_chunk(box), properties=properties, size=self.size()),
            )
            for box in self._boxes()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [_chunk(box) for box in self._boxes()]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return next(box for box in self._boxes() if box.whole == tuple(index.offset or ())).of(self.local)


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.whole), sizes=torch.Size(box.sizes))


def part_of_file(local: torch.Tensor, layouts: list[str], rank: int) -> Part:
    """The part that a file of `torch.save` has."""
    return Part.of(local, [parse_layout(layout) for layout in layouts], rank)


torch.serialization.add_safe_globals([part_of_file])
