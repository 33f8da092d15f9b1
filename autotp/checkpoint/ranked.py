"""A checkpoint that is cut already: one folder a rank, a plan, and what the ordinary checkpoint looked like.

config.json, tokenizer.json, ..   as in the ordinary checkpoint
plan.json                         how it is cut
autotp.json                       the number of ranks; names, dtypes and shapes of the ordinary checkpoint's tensors
rank-0-of-4/model.safetensors     what rank 0 holds, under the model's own names, padding included
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..axes.layout import Layout
from ..errors import CheckpointError
from .boxes import boxes
from .folder import WEIGHTS, Entries
from .lazy import Lazy
from .stored import DTYPES, read_safetensors

MANIFEST, PLAN, COMPUTED = "autotp.json", "plan.json", "computed.safetensors"
VERSION = 1
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Manifest:
    """What `autotp.json` says: the number of ranks, and `{name: (dtype, shape)}` of the ordinary checkpoint."""

    tp: int
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    version: int = VERSION

    @staticmethod
    def of(tp: int, stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> Manifest:
        """The manifest of a checkpoint with these tensors that is cut for `tp` ranks."""
        return Manifest(tp, {name: (_NAMES[dtype], shape) for name, (dtype, shape) in stored.items()})

    def save(self, folder: Path) -> None:
        """Write it."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Read it. Raises CheckpointError if it cannot be understood."""
        file = folder / MANIFEST
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            if data["version"] != VERSION:
                raise CheckpointError(f"{file} has version {data['version']}, this autotp reads {VERSION}; cut it anew")
            return Manifest(int(data["tp"]), {n: (d, tuple(s)) for n, (d, s) in data["tensors"].items()})
        except OSError as error:
            raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} is no file of autotp shard ({error!r})") from error

    def tensors_of(self, folder: Path) -> dict[str, Lazy]:
        """The ordinary checkpoint's tensors, most without their data: enough to build the model."""
        kept = read_safetensors(folder / COMPUTED) if (folder / COMPUTED).is_file() else {}
        return {
            name: Lazy.of(kept.get(name, _Ghost(name)), shape, DTYPES[dtype])
            for name, (dtype, shape) in self.tensors.items()
        }


@dataclass(frozen=True)
class _Ghost:
    name: str

    def open(self) -> torch.Tensor:
        raise CheckpointError(
            f"this transformers looks at tensor {self.name!r} while it builds the model, the one that was there when the"
            " checkpoint was cut did not; merge and cut it anew with that one"
        )


def is_ranked(folder: Path) -> bool:
    """Returns if a folder is a checkpoint that is cut already."""
    return (folder / MANIFEST).is_file()


def rank_folder(folder: Path, rank: int, tp: int) -> Path:
    """Where a rank's part lies."""
    return folder / f"rank-{rank}-of-{tp}"


def part_of(entries: Entries, folder: Path, name: str, layouts: Sequence[Layout] | None, like: torch.Tensor) -> Lazy:
    """One rank's part of a tensor, in the dtype of `like`. Raises CheckpointError if it is not there or of a wrong shape."""
    if name not in entries:
        raise CheckpointError(f"{folder / WEIGHTS} lacks tensor {name!r}; cut the checkpoint anew")
    entry = entries[name]
    wanted = tuple(layout.local_size for layout in layouts) if layouts else tuple(like.shape)
    if tuple(entry.shape) != wanted:
        raise CheckpointError(
            f"tensor {name!r} of {folder / WEIGHTS} has the shape {tuple(entry.shape)}, the plan needs {wanted};"
            " cut the checkpoint anew"
        )
    return Lazy.of(entry, entry.shape, entry.dtype).to(like.dtype)  # type: ignore[return-value]


@dataclass(frozen=True)
class Assembled:
    """A whole tensor of which every rank's folder has a part."""

    parts: tuple[Lazy, ...]
    layouts: tuple[Layout, ...]

    def open(self) -> torch.Tensor:
        """The parts put together, padding left out."""
        whole = torch.empty([layout.size for layout in self.layouts], dtype=self.parts[0].dtype)
        for rank, part in enumerate(self.parts):
            source = part._made_by.open()  # type: ignore[union-attr]
            for box in boxes(self.layouts, rank):
                box.in_whole(whole).copy_(box.of(source))
        return whole
