"""The files of a checkpoint folder: one of weights, or several with an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from ..errors import CheckpointError
from ..outside.data import brief, is_name_inside, parse_json, read_text
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
    file = inside(folder, name)
    return _indexed(folder, file) if name.endswith(".json") else read_file(file)


def read_weights(path: Path) -> Entries:
    """Where every tensor lies that a file, or a folder of whatever library's names, has. Raises CheckpointError as `read_folder`
    does, and for a folder with several checkpoints in it."""
    if path.is_file():
        return read_file(path)
    if any((path / name).is_file() for name in CANDIDATES):
        return read_folder(path)
    for ending in (".safetensors.index.json", ".safetensors"):
        found = sorted(file.name for file in path.glob(f"*{ending}"))
        if len(found) > 1:
            raise CheckpointError(f"{path} has the weights of several models or dtypes: {brief(found)}; give one file")
        if found:
            file = inside(path, found[0])
            return _indexed(path, file) if ending.endswith(".json") else read_file(file)
    return read_folder(path)


def inside(folder: Path, name: str) -> Path:
    """A file of a folder by its name. Raises CheckpointError if the name, or a link on the way, leads out of the folder.

    The folder of a model in the cache of huggingface_hub has links to the blobs beside it; to those they may lead.
    """
    if not is_name_inside(name):
        raise CheckpointError(
            f"{folder} names {brief(name)}, which is no file in it, but outside or nowhere; copy it there"
        )
    try:
        real, root = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise CheckpointError(f"cannot read {folder / name}: its links lead nowhere") from error
    roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    if not any(real.is_relative_to(allowed) for allowed in roots):
        raise CheckpointError(
            f"{folder / name} is a link to {real}, outside of its folder; copy the file into the folder"
        )
    return folder / name


def read_file(file: Path) -> Entries:
    """Where the tensors of one file lie."""
    return read_safetensors(file) if file.suffix == ".safetensors" else read_pickled(file)


def _indexed(folder: Path, index: Path) -> Entries:
    """The tensors by an index, and those that its files have and it does not name."""
    files = weight_map(index)
    paths = {file: inside(folder, file) for file in sorted(set(files.values()))}
    missing = sorted(file for file, path in paths.items() if not path.is_file())
    if missing:
        tensors = [name for name, file in files.items() if file == missing[0]]
        raise CheckpointError(
            f"the checkpoint {folder} lacks the file {missing[0]} that {index.name} names for tensor {brief(tensors[0])}"
            f" and {len(tensors) - 1} more; copy or download it"
        )
    there = {file: read_file(path) for file, path in paths.items()}
    entries = {name: entry for found in there.values() for name, entry in found.items()}
    for name, file in files.items():
        if name not in there[file]:
            raise CheckpointError(f"{paths[file]} lacks tensor {brief(name)}, which {index.name} says it has")
        entries[name] = there[file][name]
    return entries


def weight_map(index: Path) -> dict[str, str]:
    """The file of every tensor by an index. Raises CheckpointError if it cannot be understood."""
    data = parse_json(read_text(index, CheckpointError), str(index), CheckpointError)
    files = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise CheckpointError(f"{index} is no index of a checkpoint: it has no 'weight_map' of names to files")
    return files
