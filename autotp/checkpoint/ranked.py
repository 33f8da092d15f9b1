"""A checkpoint that is cut already: one folder a rank, a plan, and what the ordinary checkpoint looked like.

config.json, tokenizer.json, ..   as in the ordinary checkpoint
plan.json                         how it is cut
autotp.json                       the number of ranks; names, dtypes and shapes of the ordinary checkpoint's tensors; checksums
rank-0-of-4/model.safetensors     what rank 0 holds, under the model's own names, padding included; says which rank that is
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..axes.layout import Layout
from ..errors import CheckpointError
from ..outside.data import parse_json, read_text
from ..outside.schema import conform
from .boxes import boxes
from .folder import WEIGHTS, Entries
from .lazy import Lazy
from .stored import DTYPES, read_metadata, read_safetensors

MANIFEST, PLAN, COMPUTED = "autotp.json", "plan.json", "computed.safetensors"
VERSION = 2
MSG_CHANGED = (
    "{file} is not what autotp shard wrote: its bytes have changed; copy it again, or cut the checkpoint again"
)
MSG_OTHER_RANK = "{file} is that of {found}, not that of rank {rank} of {tp}; put every rank's folder back in its place"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_SIZE = {"type": "integer", "minimum": 0, "maximum": 2**48, "description": "a size"}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "a SHA-256 checksum"}
_TENSOR = {
    "type": "array",
    "prefixItems": [{"enum": list(DTYPES), "description": "a dtype of safetensors"}, {"type": "array", "items": _SIZE}],
    "minItems": 2,
    "maxItems": 2,
    "description": "a dtype and a shape",
}
_SCHEMA = {
    "type": "object",
    "properties": {
        "version": {"const": VERSION},
        "tp": {"type": "integer", "minimum": 1, "maximum": 2**20, "description": "a number of ranks"},
        "tensors": {"type": "object", "additionalProperties": _TENSOR, "description": "tensors by name"},
        "checksums": {"type": "object", "additionalProperties": _DIGEST, "description": "checksums by file"},
    },
    "required": ["version", "tp", "tensors", "checksums"],
    "additionalProperties": False,
    "description": "what autotp shard wrote",
}


@dataclass(frozen=True)
class Manifest:
    """What `autotp.json` says: the number of ranks, `{name: (dtype, shape)}` of the ordinary checkpoint, and the SHA-256 checksum
    of every file that `shard` made."""

    tp: int
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    checksums: Mapping[str, str]
    version: int = VERSION

    @staticmethod
    def of(tp: int, stored: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], folder: Path) -> Manifest:
        """The manifest of a checkpoint with these tensors, which is cut for `tp` ranks into the files of a folder."""
        made = [PLAN, COMPUTED, *(f"{rank_name(rank, tp)}/{WEIGHTS}" for rank in range(tp))]
        return Manifest(
            tp,
            {name: (_NAMES[dtype], shape) for name, (dtype, shape) in stored.items()},
            {file: checksum(folder / file) for file in made if (folder / file).exists()},
        )

    def save(self, folder: Path) -> None:
        """Write it."""
        (folder / MANIFEST).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Manifest:
        """Read it. Raises CheckpointError if it cannot be understood."""
        file = folder / MANIFEST
        data = parse_json(read_text(file, CheckpointError), str(file), CheckpointError)
        if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] != VERSION:
            raise CheckpointError(f"{file} has version {data['version']}, this autotp reads {VERSION}; cut it again")
        conform(data, _SCHEMA, str(file), CheckpointError)
        return Manifest(data["tp"], {n: (d, tuple(s)) for n, (d, s) in data["tensors"].items()}, data["checksums"])

    def check(self, folder: Path, file: str) -> None:
        """Raises CheckpointError unless a file of the folder has the bytes that `shard` wrote."""
        try:
            found = checksum(folder / file)
        except OSError as error:
            raise CheckpointError(f"cannot read {folder / file}: {error.strerror}") from error
        if found != self.checksums.get(file):
            raise CheckpointError(MSG_CHANGED.format(file=folder / file))

    def tensors_of(self, folder: Path) -> dict[str, Lazy]:
        """The ordinary checkpoint's tensors, most without their data: enough to build the model."""
        if COMPUTED in self.checksums:
            self.check(folder, COMPUTED)
        kept = read_safetensors(folder / COMPUTED) if COMPUTED in self.checksums else {}
        return {
            name: Lazy.of(kept.get(name, _Ghost(name)), shape, DTYPES[dtype])
            for name, (dtype, shape) in self.tensors.items()
        }

    def entries_of(self, folder: Path, rank: int) -> Entries:
        """Where the tensors that a rank holds lie. Raises CheckpointError if its file is another rank's, or has changed."""
        name = f"{rank_name(rank, self.tp)}/{WEIGHTS}"
        file = folder / name
        entries, metadata = read_safetensors(file), read_metadata(file)
        if metadata != metadata_of(rank, self.tp):
            found = f"rank {metadata['rank']} of {metadata['ranks']}" if "rank" in metadata else "no rank"
            raise CheckpointError(MSG_OTHER_RANK.format(file=file, found=found, rank=rank, tp=self.tp))
        self.check(folder, name)
        return entries


@dataclass(frozen=True)
class _Ghost:
    name: str

    def open(self) -> torch.Tensor:
        raise CheckpointError(
            f"this transformers looks at tensor {self.name!r} while it builds the model, the one that was there when the"
            " checkpoint was cut did not; merge and cut it again with that one"
        )


def checksum(file: Path) -> str:
    """The SHA-256 checksum of a file's bytes. Raises OSError."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_ranked(folder: Path) -> bool:
    """Returns if a folder is a checkpoint that is cut already."""
    return (folder / MANIFEST).is_file()


def rank_name(rank: int, tp: int) -> str:
    """What the folder of a rank's part is called."""
    return f"rank-{rank}-of-{tp}"


def metadata_of(rank: int, tp: int) -> dict[str, str]:
    """What a rank's file says of itself."""
    return {"format": "pt", "rank": str(rank), "ranks": str(tp)}


def part_of(entries: Entries, folder: Path, name: str, layouts: Sequence[Layout] | None, like: torch.Tensor) -> Lazy:
    """One rank's part of a tensor, in the dtype of `like`. Raises CheckpointError if it is not there or of a wrong shape."""
    if name not in entries:
        raise CheckpointError(f"{folder / WEIGHTS} lacks tensor {name!r}; cut the checkpoint again")
    entry = entries[name]
    wanted = tuple(layout.local_size for layout in layouts) if layouts else tuple(like.shape)
    if tuple(entry.shape) != wanted:
        raise CheckpointError(
            f"tensor {name!r} of {folder / WEIGHTS} has the shape {tuple(entry.shape)}, the plan needs {wanted};"
            " cut the checkpoint again"
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
