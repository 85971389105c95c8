"""Parameters of classes marked with @remote_memory, under torch.compile.

Such a parameter keeps its address: its bytes are a Region, and copies of them lie in a scratch
file. Around each op of our graphs that reads it, in forward and in backward, its bytes come (of a
table that is looked up: the rows asked for); then the region is empty again, and shows NaN. So
whatever holds the tensor, autograd too, needs to know nothing. All of it comes for
    the optimizer's step   and is written back after it,
    load_state_dict()      as well,
    a call of the module that is not compiled: a graph break, or the model as it was. What autograd
                           saves of it there is a reference, read again in backward.
state_dict(), deepcopy and pickle see true values. Whoever else reads it sees NaN, and writing to it
is an error when it is used next.

Left in memory: parameters below 64 KiB, those that a graph returns, or views of them.
"""
from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any, Iterable, Optional

import torch
from torch import fx, nn

from .. import _core
from .._remote import RemoteMemory
from ..eager._remotes import movable
from ._region import Region, pages
from ._step import refuse, storage_key

BLOCK_BYTES = 8 << 20       # what the spill copies at once
ROW_BLOCK_BYTES = 64 << 10  # rows are read in blocks of about this size

_at_storage: "weakref.WeakValueDictionary[int, Remote]" = weakref.WeakValueDictionary()
_wanted: dict[int, tuple["weakref.ref[nn.Parameter]", RemoteMemory]] = {}  # by the parameter's id


class Remote:
    """One parameter. It lives as long as the parameter, which holds it."""

    def __init__(self, folder: Optional[str], parameter: nn.Parameter, asked: RemoteMemory,
                 rows: bool) -> None:
        """rows: it is a table, of which some rows are often enough."""
        self.folder, self.spill, self.lock = folder, _spill(folder), threading.RLock()
        self.parameter = weakref.ref(parameter)
        self.nbytes, self.users, self.whole, self.changed = parameter.nbytes, 0, False, False
        away = min(asked.max_size_bytes or self.nbytes, self.nbytes)
        self.row_bytes = 0
        block = BLOCK_BYTES
        if rows and parameter.dim() == 2 and parameter.is_contiguous():
            self.row_bytes = self.nbytes // len(parameter)
            block = max(1, ROW_BLOCK_BYTES // self.row_bytes) * self.row_bytes
        # Whole pages go away. What is stored goes on to the end of a block, so of a row.
        self.away = pages(away) if away == self.nbytes else away // 4096 * 4096
        self._ranges = [(begin, min(block, self.nbytes - begin))
                        for begin in range(0, min(self.away, self.nbytes), block)]
        self._blocks: list[int] = []
        self.region = Region(self.nbytes)
        self.values = torch.empty(0, dtype=parameter.dtype).set_(
            self.region.storage, 0, parameter.size(), parameter.stride())
        self._move_in(parameter)

    def _move_in(self, parameter: nn.Parameter) -> None:
        old = parameter.detach()
        self._store(old.data_ptr())
        if self.away < self.nbytes:
            _core.copy_in(self.region.address + self.away, old.data_ptr() + self.away,
                          self.nbytes - self.away)
        parameter.data = self.values
        # A graph that has saved it before has the parameter itself.
        torch.autograd.graph.increment_version(parameter)
        self.version = parameter._version
        _at_storage[storage_key(self.values)] = self
        # copy and pickle look these up on the object.
        parameter.__deepcopy__ = self._copied
        parameter.__reduce_ex__ = lambda protocol: self._copied({}).__reduce_ex__(protocol)

    def __del__(self) -> None:
        self._drop()

    def _drop(self) -> None:
        while self._blocks:
            self.spill.drop(self._blocks.pop())

    def _store(self, address: int) -> None:
        self._drop()
        self._blocks = [self.spill.put(address + begin, size) for begin, size in self._ranges]

    def _load(self, address: int) -> None:
        for block, (begin, size) in zip(self._blocks, self._ranges):
            self.spill.get(block, address + begin, size)

    def _load_rows(self, rows: torch.Tensor) -> None:
        """These rows, and no page of others."""
        count = self._ranges[0][1] // self.row_bytes  # rows of a block
        rows = torch.unique(rows)
        rows = rows[(rows >= 0) & (rows < len(self.values))]  # the op itself refuses others
        blocks, counts = torch.unique_consecutive(rows // count, return_counts=True)
        room = torch.empty(count, self.values.shape[1], dtype=self.values.dtype)
        at = 0
        for block, n in zip(blocks.tolist(), counts.tolist()):
            if block < len(self._ranges):
                self.spill.get(self._blocks[block], room.data_ptr(), self._ranges[block][1])
                here = rows[at:at + n]
                self.values[here] = room[here - block * count]
            at += n

    def enter(self, rows: Optional[torch.Tensor] = None) -> None:
        """Its bytes are needed: all, or those of these rows at least."""
        with self.lock, torch.no_grad():
            parameter = self.parameter()
            if self.users == 0 and not self.whole and parameter is not None \
                    and parameter._version != self.version:
                raise refuse(f"a parameter of shape {list(parameter.shape)} that is marked "
                             "@remote_memory was written to while it was away; torch.optim and "
                             "load_state_dict() may change it")
            if not self.whole:
                if rows is not None and self.row_bytes:
                    self._load_rows(rows)
                else:
                    self._load(self.region.address)
                    self.whole = True
            self.users += 1

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users:
                return
            parameter = self.parameter()
            version = self.version if parameter is None else parameter._version
            if self.whole and (self.changed or version != self.version):
                self._store(self.region.address)
            self.changed, self.whole, self.version = False, False, version
            self.region.empty(self.away)

    def value(self) -> torch.Tensor:
        """Its values in ordinary memory."""
        out = torch.empty_strided(self.values.size(), self.values.stride(),
                                  dtype=self.values.dtype)
        with self.lock:
            if self.whole:
                return out.copy_(self.values)
            if self.away < self.nbytes:
                _core.copy_in(out.data_ptr() + self.away, self.region.address + self.away,
                              self.nbytes - self.away)
            self._load(out.data_ptr())
        return out

    def stay(self) -> None:
        """From now on it is an ordinary parameter."""
        with self.lock:
            self.enter()  # for ever
            _at_storage.pop(storage_key(self.values), None)
            parameter = self.parameter()
            _wanted.pop(id(parameter), None)
            for name in ("__deepcopy__", "__reduce_ex__"):
                parameter.__dict__.pop(name, None)
            self._drop()

    def room(self, node: fx.Node) -> int:
        """Bytes that it takes while the op of this node runs."""
        if self.row_bytes and node.target is torch.ops.aten.embedding.default:
            row = pages(self.row_bytes) + 4096
            return min(self.away, node.args[1].meta["val"].numel() * row) + self._ranges[0][1]
        return self.away

    def _copied(self, memo: dict) -> nn.Parameter:
        parameter = self.parameter()
        if id(parameter) not in memo:
            memo[id(parameter)] = nn.Parameter(self.value(), parameter.requires_grad)
        return memo[id(parameter)]


@atexit.register
def _forget() -> None:
    # Dynamo's caches outlive the extension; scratch files must not outlive it in them.
    for remote in list(_at_storage.values()):
        remote._blocks, remote.spill = [], None


def remotes_exist() -> bool:
    return bool(_at_storage)


def away_bytes() -> int:
    """What is out of memory between uses."""
    return sum(remote.away for remote in list(_at_storage.values()))


def remote_at(tensor: Any) -> Optional[Remote]:
    """Whose bytes a tensor shows."""
    if not _at_storage or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" \
            or tensor.layout is not torch.strided:
        return None
    return _at_storage.get(storage_key(tensor))


def want(parameter: nn.Parameter, asked: RemoteMemory) -> None:
    """It shall leave memory when a graph first gets it."""
    key = id(parameter)
    if key in _wanted:
        return
    _wanted[key] = (weakref.ref(parameter, lambda _: _wanted.pop(key, None)), asked)


class Adopter:
    """Moves the marked parameters among a graph's inputs out of memory, when they first come."""

    def __init__(self, gm: fx.GraphModule, folder: Optional[str]) -> None:
        self.folder = folder
        self._inside = list(gm.parameters())  # before torch 2.5 the graph has them
        lookup = (torch.nn.functional.embedding, torch.embedding)
        tables = {a for n in gm.graph.nodes if n.target in lookup for a in n.all_input_nodes}
        inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._tables = {at for at, node in enumerate(inputs) if node in tables}

    def look(self, args: Iterable[Any]) -> None:
        for at, arg in enumerate((*args, *self._inside)):
            wanted = _wanted.get(id(arg))
            if wanted is None or wanted[0]() is not arg or remote_at(arg) is not None:
                continue
            if arg.device.type == "cpu" and movable(arg):
                Remote(self.folder, arg, wanted[1], at in self._tables)


def _spill(folder: Optional[str]) -> Any:
    """One a folder: each has buffers of 8 MiB."""
    spill = next((r.spill for r in _at_storage.values() if r.folder == folder), None)
    return _core.Spill(folder) if spill is None else spill
