"""Tensors in files: where each lies, and a view of its bytes. Nothing is read before it is touched."""

from __future__ import annotations

import ctypes
import errno
import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import CheckpointError

# What safetensors calls the dtypes, in the order in which it lays tensors out in a file, the last ones first.
DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, torch_name)
    for name, torch_name in (
        ("BOOL", "bool"),
        ("U8", "uint8"),
        ("I8", "int8"),
        ("F8_E5M2", "float8_e5m2"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E8M0", "float8_e8m0fnu"),
        ("I16", "int16"),
        ("U16", "uint16"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
        ("I32", "int32"),
        ("U32", "uint32"),
        ("F32", "float32"),
        ("C64", "complex64"),
        ("F64", "float64"),
        ("I64", "int64"),
        ("U64", "uint64"),
    )
    if hasattr(torch, torch_name)
}
_LONGEST_HEADER = 100_000_000
_POPULATE_READ = 22  # of madvise, in Linux 5.14 and newer; elsewhere the data come when they are touched


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: `offset` is that of its first element, `stride` counts elements."""

    file: Path
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the data."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self) -> torch.Tensor:
        """The tensor on a private map of its bytes, which ends with the last view. Raises CheckpointError."""
        if not math.prod(self.shape):
            return torch.empty(self.shape, dtype=self.dtype)
        span = 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        length, before = span * self.dtype.itemsize, self.offset % mmap.ALLOCATIONGRANULARITY
        try:
            with self.file.open("rb") as file:
                size = file.seek(0, 2)
                if self.offset + length > size:
                    raise truncated(self.file, self.name, self.offset + length, size)
                if self.offset % self.dtype.itemsize:
                    file.seek(self.offset)
                    data: bytearray | mmap.mmap = bytearray(file.read(length))
                    before = 0
                else:
                    data = mmap.mmap(
                        file.fileno(), before + length, access=mmap.ACCESS_COPY, offset=self.offset - before
                    )
        except OSError as error:
            raise CheckpointError(f"cannot read tensor {self.name!r} of {self.file}: {error.strerror}") from error
        return torch.frombuffer(data, dtype=self.dtype, count=span, offset=before).as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class InMemory:
    """A tensor of a file whose format can only be read at once."""

    file: Path
    name: str
    tensor: torch.Tensor

    dtype = property(lambda self: self.tensor.dtype)
    shape = property(lambda self: tuple(self.tensor.shape))
    nbytes = property(lambda self: self.tensor.nbytes)

    def open(self) -> torch.Tensor:
        """The tensor itself."""
        return self.tensor


def fetch(tensor: torch.Tensor) -> None:
    """Bring a tensor that lies on a map of a file into memory, so that a disk that cannot be read says so here.

    Raises OSError.
    """
    start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (AttributeError, OSError):
        return
    length = tensor.data_ptr() + tensor.nbytes - start
    if advise(ctypes.c_void_p(start), ctypes.c_size_t(length), _POPULATE_READ) and ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def truncated(file: Path, name: str, needed: int, size: int) -> CheckpointError:
    return CheckpointError(
        f"{file} is truncated: tensor {name!r} ends at byte {needed:,}, the file at {size:,}; copy or download it again"
    )


def read_safetensors(file: Path) -> dict[str, Stored]:
    """Where the tensors of a safetensors file lie. Raises CheckpointError if the file is not whole or not one."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            prefix = opened.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LONGEST_HEADER
            header = opened.read(length) if length < _LONGEST_HEADER else b""
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    if len(header) < length:
        raise CheckpointError(
            f"{file} is truncated or no safetensors file: its header is not whole, so no tensor of it can be read;"
            " copy or download it again"
        )
    try:
        entries = json.loads(header)
        found = {
            name: _stored(file, name, entry, 8 + length, size)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is no safetensors file: its header cannot be understood ({error!r})") from error
    return found


def _stored(file: Path, name: str, entry: Mapping[str, Any], start: int, size: int) -> Stored:
    kind, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
    first, last = map(int, entry["data_offsets"])
    if kind not in DTYPES:
        raise CheckpointError(f"tensor {name!r} of {file} has the dtype {kind}, which this torch does not have")
    stored = Stored(file, name, DTYPES[kind], shape, start + first, dense_stride(shape))
    if start + last > size:
        raise truncated(file, name, start + last, size)
    if last - first != stored.nbytes:
        raise CheckpointError(
            f"tensor {name!r} of {file} has {last - first} bytes, its shape {shape} needs {stored.nbytes}"
        )
    return stored


def dense_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Steps of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def read_pickled(file: Path) -> dict[str, Stored | InMemory]:
    """Where the tensors of a file written by `torch.save` lie. Raises CheckpointError.

    Files in the format of torch before 1.6 give no places: those are read whole.
    """
    try:
        with file.open("rb") as opened, FakeTensorMode():
            fakes = torch.load(opened, map_location="cpu", weights_only=True)
        found: dict[str, Stored | InMemory] = {}
        for name, tensor in _tensors(file, fakes).items():
            start = tensor.untyped_storage()._checkpoint_offset
            if start is None:
                whole = torch.load(file, map_location="cpu", weights_only=True)
                return {name: InMemory(file, name, tensor) for name, tensor in _tensors(file, whole).items()}
            offset = start + int(tensor.storage_offset()) * tensor.itemsize
            found[name] = Stored(file, name, tensor.dtype, tuple(tensor.shape), offset, tuple(tensor.stride()))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{file} is truncated or no file of torch.save: {reason}; copy or download it again"
        ) from error
    return found


def _tensors(file: Path, loaded: object) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file} holds a {type(loaded).__name__}, not a dictionary of tensors")
    return {name: value.detach() for name, value in loaded.items() if isinstance(value, torch.Tensor)}
