"""The files of a checkpoint folder: one of weights, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from ..errors import CheckpointError
from .stored import InMemory, Stored, read_pickled, read_safetensors

Entries: TypeAlias = Mapping[str, Stored | InMemory]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
# The first of these that a folder has is what it is read from.
CANDIDATES = (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX)


def read_folder(folder: Path) -> Entries:
    """Where every tensor of a checkpoint lies. Raises CheckpointError naming the file and tensor that are not there."""
    name = next((name for name in CANDIDATES if (folder / name).is_file()), None)
    if name is None:
        there = "does not exist" if not folder.is_dir() else f"has no weights: none of {', '.join(CANDIDATES)}"
        raise CheckpointError(f"the folder {folder} {there}")
    return _indexed(folder, name) if name.endswith(".json") else read_file(folder / name)


def read_file(file: Path) -> Entries:
    """Where the tensors of one file lie."""
    return read_safetensors(file) if file.suffix == ".safetensors" else read_pickled(file)


def _indexed(folder: Path, index: str) -> Entries:
    files = weight_map(folder / index)
    missing = sorted({file for file in files.values() if not (folder / file).is_file()})
    if missing:
        tensors = [name for name, file in files.items() if file == missing[0]]
        raise CheckpointError(
            f"the checkpoint {folder} lacks the file {missing[0]} that {index} names for tensor {tensors[0]!r}"
            f" and {len(tensors) - 1} more; copy or download it"
        )
    entries = {name: entry for file in sorted(set(files.values())) for name, entry in read_file(folder / file).items()}
    for name, file in files.items():
        if name not in entries:
            raise CheckpointError(f"{folder / file} lacks tensor {name!r}, which {index} says it has")
    return entries


def weight_map(index: Path) -> dict[str, str]:
    """The file of every tensor by an index. Raises CheckpointError if it cannot be understood."""
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in files.items()}
    except OSError as error:
        raise CheckpointError(f"cannot read {index}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} is no index of a checkpoint: it has no 'weight_map' of names to files"
        ) from error
