"""Tensors in files: where each lies, and a view of its bytes. Nothing is read before it is touched."""

from __future__ import annotations

import bisect
import ctypes
import errno
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch._subclasses.fake_tensor import FakeTensorMode

from ..errors import CheckpointError, in_one_line
from ..outside.data import brief, parse_json
from .maps import private_map

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
_MOST_DIMS = 64
MSG_HEADER = "{file} is no safetensors file: its header cannot be understood ({error})"
MSG_UNSOUND = "{file} is damaged: safetensors refuses its header ({error}); copy or download it again"
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
                    data: Any = bytearray(file.read(length))
                    before = 0
                else:
                    data = private_map(file.fileno(), before + length, self.offset - before)
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
        f"{file} is truncated: tensor {brief(name)} ends at byte {needed:,}, the file at {size:,}; copy or download it again"
    )


def read_safetensors(file: Path) -> dict[str, Stored]:
    """Where the tensors of a safetensors file lie. Raises CheckpointError if the file is not whole, not one, or not sound by the
    safetensors library's own check: every byte belongs to one tensor."""
    entries, start, size = _header(file)
    try:
        found = {
            name: _stored(file, name, entry, start, size) for name, entry in entries.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(MSG_HEADER.format(file=file, error=brief(str(error)))) from error
    try:
        with safe_open(file, framework="pt") as opened:
            known = set(opened.keys())
    except Exception as error:
        raise CheckpointError(MSG_UNSOUND.format(file=file, error=in_one_line(error))) from error
    if known != found.keys():
        raise CheckpointError(MSG_UNSOUND.format(file=file, error="it names other tensors"))
    return found


def read_metadata(file: Path) -> Mapping[str, Any]:
    """What a safetensors file says of itself. Raises CheckpointError."""
    return _header(file)[0].get("__metadata__", {})


def _header(file: Path) -> tuple[dict[str, Any], int, int]:
    """The header of a safetensors file, where the data start, and the size of the file."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            prefix = opened.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LONGEST_HEADER
            header = opened.read(length) if length < min(_LONGEST_HEADER, size) else b""
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    if len(header) < length:
        raise CheckpointError(
            f"{file} is truncated or no safetensors file: its header is not whole, so no tensor of it can be read;"
            " copy or download it again"
        )
    try:
        text = header.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(MSG_HEADER.format(file=file, error=error.reason)) from error
    entries = parse_json(text, f"{file} is no safetensors file: its header", CheckpointError)
    if not isinstance(entries, dict) or not isinstance(entries.get("__metadata__", {}), dict):
        raise CheckpointError(MSG_HEADER.format(file=file, error="it is no object"))
    return entries, 8 + length, size


def _stored(file: Path, name: str, entry: Mapping[str, Any], start: int, size: int) -> Stored:
    kind, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
    first, last = map(int, entry["data_offsets"])
    if kind not in DTYPES:
        raise CheckpointError(
            f"tensor {brief(name)} of {file} has the dtype {brief(kind)}, which this torch does not have"
        )
    if len(shape) > _MOST_DIMS or min(shape, default=0) < 0:
        raise CheckpointError(f"tensor {brief(name)} of {file} has the shape {brief(shape)}, which no tensor has")
    stored = Stored(file, name, DTYPES[kind], shape, start + first, dense_stride(shape))
    if start + last > size:
        raise truncated(file, name, start + last, size)
    if last - first != stored.nbytes:
        raise CheckpointError(
            f"tensor {brief(name)} of {file} has {brief(last - first)} bytes, its shape {brief(shape)} needs"
            f" {brief(stored.nbytes)}"
        )
    return stored


def dense_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Steps of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def read_pickled(file: Path) -> dict[str, Stored | InMemory]:
    """Where the tensors of a file written by `torch.save` lie. Nothing but tensors is unpickled. Raises CheckpointError.

    Files in the format of torch before 1.6 give no places: those are read whole.
    """
    try:
        with file.open("rb") as opened, FakeTensorMode():
            fakes = torch.load(opened, map_location="cpu", weights_only=True)
        tensors = _tensors(file, fakes)
        if any(tensor.untyped_storage()._checkpoint_offset is None for tensor in tensors.values()):
            whole = torch.load(file, map_location="cpu", weights_only=True)
            return {name: InMemory(file, name, tensor) for name, tensor in _tensors(file, whole).items()}
        records = _records(file)
        return {name: _in_record(file, name, tensor, records) for name, tensor in tensors.items()}
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    except Exception as error:  # whatever an unpickler says to bytes that are not what it was made for
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(
            f"{file} is truncated or no file of torch.save: {brief(reason)}; copy or download it again"
        ) from error


def _records(file: Path) -> list[tuple[int, int]]:
    """Where the records of a zipped file may start, by their headers, and how many bytes each has; packed ones have none."""
    with zipfile.ZipFile(file) as archive:
        return sorted(
            (info.header_offset, info.file_size if info.compress_type == zipfile.ZIP_STORED else 0)
            for info in archive.infolist()
        )


def _in_record(file: Path, name: str, tensor: torch.Tensor, records: list[tuple[int, int]]) -> Stored:
    """A tensor as a view of one record. Raises CheckpointError if it is larger than that."""
    start, shape, stride = tensor.untyped_storage()._checkpoint_offset, tuple(tensor.shape), tuple(tensor.stride())
    assert start is not None
    place = bisect.bisect_left(records, (start, 0)) - 1
    held = records[place][1] if place >= 0 else 0
    span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    last = (int(tensor.storage_offset()) + span) * tensor.itemsize
    if last > held or tensor.storage_offset() < 0 or min((*shape, *stride), default=0) < 0:
        raise CheckpointError(
            f"tensor {brief(name)} of {file} has {last:,} bytes, the file {held:,} for it; copy it again"
        )
    return Stored(file, name, tensor.dtype, shape, start + int(tensor.storage_offset()) * tensor.itemsize, stride)


def _tensors(file: Path, loaded: object) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file} holds a {type(loaded).__name__}, not a dictionary of tensors")
    found = {name: value.detach() for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    for name, value in found.items():
        if not isinstance(name, str) or value.layout is not torch.strided or value.is_quantized:
            raise CheckpointError(f"{file} has an entry {brief(name)} that is no plain tensor with a name")
    return found
