"""What glibc's allocator keeps of freed memory, given back. Elsewhere these do nothing.

tune_malloc() sends blocks of 64 KiB and more to mmap, so that they go back to the system when they
are freed; but only those for which the heap has no hole. Holes of before fill with tensors, and
stay.
"""
from __future__ import annotations

import ctypes

LARGEST_BYTES = 1 << 30
SMALLEST_BYTES = 64 << 10  # the threshold of tune_malloc()
# The word before a block is its size; this bit says that it was mapped by itself (glibc malloc.c).
_MAPPED = 2


def _glibc() -> ctypes.CDLL | None:
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def give_back_freed() -> None:
    """Pages of freed blocks go back to the system."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(ctypes.c_size_t(0))


def close_holes() -> int:
    """Takes every hole of 64 KiB and more out of use, for good, without touching its pages.

    Returns the bytes: they are addresses, not memory.
    """
    libc = _glibc()
    if libc is None:
        return 0
    give_back_freed()
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    closed, size = 0, LARGEST_BYTES
    while size >= SMALLEST_BYTES:
        block = libc.malloc(size)
        if block and not ctypes.c_size_t.from_address(block - 8).value & _MAPPED:
            closed += size
            continue
        libc.free(block)
        size //= 2
    return closed
