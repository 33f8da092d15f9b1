"""Writing safetensors files tensor by tensor: the places are known before the first one is there."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

import torch

from ..errors import CheckpointError
from .stored import DTYPES

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ORDER = {name: i for i, name in enumerate(DTYPES)}


class Writer:
    """A safetensors file whose tensors may be written in any order, or in parts. Laid out as the library lays it out.

    The space is taken at once, so a disk that is too small says so before anything is computed or gathered.

    Raises CheckpointError naming the file and the tensor.
    """

    def __init__(
        self,
        file: Path,
        tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]],
        metadata: Mapping[str, str] = MappingProxyType({"format": "pt"}),
    ) -> None:
        self.file = file
        header, self.places = _lay_out(file, tensors, metadata)
        self.size = len(header) + sum(length for _, length in self.places.values())
        try:
            self.descriptor = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o666)
        except OSError as error:
            raise CheckpointError(f"cannot write {file}: {error.strerror}") from error
        try:
            _reserve(self.descriptor, self.size)
            _write(self.descriptor, memoryview(header), 0)
        except OSError as error:
            os.close(self.descriptor)
            raise CheckpointError(
                f"cannot write {file}: {error.strerror}; its {len(tensors)} tensors need {self.size:,} bytes"
            ) from error

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one whole tensor."""
        start, length = self.places[name]
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        assert data.numel() == length, (name, tensor.shape)
        try:
            _write(self.descriptor, data.numpy().data, start)
        except OSError as error:
            raise CheckpointError(f"cannot write tensor {name!r} of {self.file}: {error.strerror}") from error

    def close(self) -> None:
        """Bring everything to the disk."""
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise CheckpointError(f"cannot write {self.file}: {error.strerror}") from error
        finally:
            os.close(self.descriptor)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            os.close(self.descriptor)


def _lay_out(
    file: Path, tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header of a file, and where each tensor's bytes start and how many they are."""
    for name, (dtype, _) in tensors.items():
        if dtype not in _NAMES:
            raise CheckpointError(
                f"tensor {name!r} of {file} has the dtype {dtype}, which safetensors files do not have"
            )
    ordered = sorted(tensors, key=lambda name: (-_ORDER[_NAMES[tensors[name][0]]], name.encode()))
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    lengths, offset = {}, 0
    for name in ordered:
        dtype, shape = tensors[name]
        lengths[name] = torch.Size(shape).numel() * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, offset + lengths[name]]}
        offset += lengths[name]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    places, start = {}, 8 + len(text)
    for name in ordered:
        places[name] = (start, lengths[name])
        start += lengths[name]
    return struct.pack("<Q", len(text)) + text, places


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except AttributeError:  # not on this system
        os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(descriptor, size)


def _write(descriptor: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, position)
        data, position = data[count:], position + count
