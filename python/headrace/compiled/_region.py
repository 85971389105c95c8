"""Memory of a fixed address whose bytes can be given up: it then shows NaN and takes no room."""
from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import torch

from .._errors import HeadraceError

# All ones are NaN in every float format. The system allows 65,530 mappings a process: with 2 MiB
# of NaN mapped again and again that is 128 GiB.
NAN_BYTES = 2 << 20
_MAP_FIXED = 0x10  # not in Python's mmap
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_nan_file: list[int] = []  # its descriptor, once it is needed


def _nan() -> int:
    if not _nan_file:
        file = os.memfd_create("headrace-nan", os.MFD_CLOEXEC)
        os.write(file, b"\xff" * NAN_BYTES)
        _nan_file.append(file)
    return _nan_file[0]


def _checked(result: int | None) -> int:
    if result == _FAILED or result is None:
        code = ctypes.get_errno()
        raise HeadraceError(f"memory for remote parameters: {os.strerror(code)}", "io")
    return result


def pages(nbytes: int) -> int:
    """Bytes of the whole pages that it takes."""
    return (nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE


class Region:
    """`nbytes` bytes, NaN at first. Private copies of the pages of a file of NaN: what is written
    is memory of the process until empty() drops it."""

    def __init__(self, nbytes: int) -> None:
        # A page more: nobody takes its storage for that of one dense tensor.
        size = pages(nbytes) + mmap.PAGESIZE
        access, private = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
        file = _nan()
        self.address = _checked(_libc.mmap(None, size, access, private | mmap.MAP_ANONYMOUS, -1, 0))
        room = (ctypes.c_ubyte * size).from_address(self.address)
        # Not at exit: others' exit hooks may read it yet.
        weakref.finalize(room, _libc.munmap, self.address, size).atexit = False
        for begin in range(0, size, NAN_BYTES):
            _checked(_libc.mmap(self.address + begin, min(NAN_BYTES, size - begin), access,
                                private | _MAP_FIXED, file, 0))
        self.storage = torch.frombuffer(room, dtype=torch.uint8).untyped_storage()

    def empty(self, nbytes: int) -> None:
        """The first `nbytes`, whole pages, are NaN again."""
        if _libc.madvise(self.address, nbytes, mmap.MADV_DONTNEED) != 0:
            _checked(None)
