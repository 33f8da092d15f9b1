"""Private maps of files: memory that has the bytes of a file, and whose changes no file sees."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from typing import Any

_FAILED = ctypes.c_void_p(-1).value


def private_map(descriptor: int, length: int, offset: int) -> Any:
    """A buffer on `length` bytes of an open file from `offset`, a multiple of the page size. It ends with its last user.

    `mmap.mmap` keeps a file descriptor open for each map, and a model has more tensors than a process may open files: so the
    C function is called where there is one, which keeps none. Raises OSError.
    """
    libc = _libc()
    if libc is None:
        return mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=offset)
    start = libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, offset)
    if start == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    buffer = (ctypes.c_char * length).from_address(start)
    # Not at the end of the process: tensors on the map may live longer than what Python ends there.
    weakref.finalize(buffer, libc.munmap, start, length).atexit = False
    return buffer


@cache
def _libc() -> Any:
    """The C library, None where its `mmap` may take other types than are said here."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != ctypes.sizeof(ctypes.c_long):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    return libc
