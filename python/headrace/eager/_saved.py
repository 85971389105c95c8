"""Saved tensors of autograd: what leaves memory between forward and backward.

One Saved stands for the bytes of one storage at one version, however many views of it autograd
saves. It lives as long as the graph can ask for it. Its bytes are
    in the engine   while its cycle follows a Program, and after a deviation, until it dies
    in the spill    when its cycle is recorded, when the plan says so, or after a deviation
    and once more in ordinary memory or in the arena while a backward op uses them (`live`).
"""
from __future__ import annotations

import mmap
import weakref
from typing import TYPE_CHECKING, Any, Iterable

import torch

from headrace._moved import MovedTensors

if TYPE_CHECKING:
    from headrace.eager._session import Session

# Below this the bookkeeping costs more than the memory: such tensors stay where they are.
SMALLEST_BYTES = 64 << 10

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Saved:
    """Bytes of one storage at one version."""

    __slots__ = ("session", "key", "nbytes", "cycle", "moved", "spilled", "live", "unpacks",
                 "__weakref__")

    def __init__(self, session: "Session", key: str, nbytes: int, cycle: int) -> None:
        self.session, self.key, self.nbytes, self.cycle = session, key, nbytes, cycle
        self.moved: MovedTensors | None = None  # the engine that has it
        self.spilled: int | None = None  # its number in the spill
        self.live: weakref.ref[torch.UntypedStorage] | None = None
        self.unpacks = 0

    def read(self, address: int, nbytes: int) -> None:
        """Copies its bytes from where they are."""
        if self.spilled is not None:
            self.session.spill.get(self.spilled, address, nbytes)
        else:
            self.moved.read(self.key, address, nbytes)

    def __del__(self) -> None:
        self.session.forget(self)


def ordinary_storage(nbytes: int, released: Any = None) -> tuple[torch.UntypedStorage, Any]:
    """Memory of the system that goes back to it at the moment in which nobody has the storage any
    more; `released`, when given, is called then, just before. Returns the weak reference as
    well."""
    room = mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def freed(_: Any) -> None:
        if released is not None:
            released(lambda: room.madvise(mmap.MADV_DONTNEED))

    storage = torch.frombuffer(room, dtype=torch.uint8).untyped_storage()
    return storage, weakref.ref(storage, freed)


Residents = dict[int, "weakref.ref[torch.UntypedStorage]"]


def residents(tensors: Iterable[torch.Tensor]) -> Residents:
    """Their storages. Weak: an address alone may soon be another storage's."""
    storages = [t.untyped_storage() for t in tensors]
    return {s._cdata: weakref.ref(s) for s in storages}


def moves(tensor: torch.Tensor, resident: Residents) -> bool:
    """Whether this saved tensor is one that leaves memory. resident: storages that stay anyway."""
    if (type(tensor) not in _PLAIN or tensor.device.type != "cpu"
            or tensor.layout is not torch.strided or tensor.is_quantized
            or tensor.is_conj() or tensor.is_neg()
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)):
        return False
    storage = tensor.untyped_storage()
    if storage.nbytes() < SMALLEST_BYTES:
        return False
    known = resident.get(storage._cdata)
    return known is None or known() is not storage


def counts_for_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor's version is that of its whole storage: it, or what it is a view of,
    covers it. Parts that are not views (of unsafe_chunk, unsafe_split: GRU and LSTM cells) have
    versions of their own, which do not say whether bytes beside them or the same ones were
    changed."""
    base = tensor._base if tensor._is_view() else tensor
    return base.numel() * base.element_size() == tensor.untyped_storage().nbytes()


def fingerprint(storage: torch.UntypedStorage) -> int:
    """Sum of all words: shows changes of bytes that versions do not count (through .data, by
    numpy), but for words that change places. Measured: 20 GB/s by one thread."""
    words, rest = divmod(storage.nbytes(), 8)
    sum_of = torch.empty(0, dtype=torch.int64).set_(storage, 0, (words,)).sum().item()
    tail = torch.empty(0, dtype=torch.uint8).set_(storage, 8 * words, (rest,))
    return hash((sum_of, *tail.tolist()))


def own_region(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides on a storage of their own: a copy of the bytes from the
    first element to the last. Not for tensors without elements."""
    item = tensor.element_size()
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride()))
    region = torch.empty(0, dtype=torch.uint8).set_(
        tensor.untyped_storage(), tensor.storage_offset() * item, (span * item,)).clone()
    return torch.empty(0, dtype=tensor.dtype).set_(region.untyped_storage(), 0, tensor.size(),
                                                   tensor.stride())


CHANGED = ("one of the variables needed for gradient computation has been modified by an inplace "
           "operation")


def check_version(tensor: torch.Tensor, version: int) -> None:
    """What autograd does for tensors without hooks: those that changed meanwhile are refused."""
    if tensor._version != version:
        raise RuntimeError(f"{CHANGED}: [{tensor.type()} {list(tensor.shape)}] is at version "
                           f"{tensor._version}; expected version {version} instead.")
