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
is an error when it is used next; what is written through .data or a detached view is lost, and
nobody notices.

Left in memory, for good: parameters below 64 KiB; those that a graph returns, or views of them;
those that a module without the mark owns too (when a graph first gets them); those in memory that
processes share; and those of which a graph gets another view as an input.
"""
from __future__ import annotations

import atexit
import gc
import mmap
import threading
import weakref
from collections import Counter
from typing import Any, Iterable, Optional

import torch
from torch import fx, nn

from .. import _core
from .._errors import HeadraceError
from .._remote import RemoteMemory
from ..eager._remotes import movable
from ._region import Region, pages
from ._step import refuse, storage_key

BLOCK_BYTES = 8 << 20       # what the spill copies at once
ROW_BLOCK_BYTES = 64 << 10  # rows are read in blocks of about this size

_at_storage: "weakref.WeakValueDictionary[int, Remote]" = weakref.WeakValueDictionary()
# By the parameter's id. None: it stays in memory for good.
_wanted: dict[int, tuple["weakref.ref[nn.Parameter]", Optional[RemoteMemory]]] = {}


class Remote:
    """One parameter. It lives as long as the parameter, which holds it."""

    def __init__(self, folder: Optional[str], parameter: nn.Parameter, asked: RemoteMemory,
                 rows: bool) -> None:
        """rows: it is a table, of which some rows are often enough."""
        self._blocks: list[int] = []
        self.folder, self.spill, self.lock = folder, _spill(folder), threading.RLock()
        self.parameter = weakref.ref(parameter)
        self.nbytes, self.users, self.whole, self.changed = parameter.nbytes, 0, False, False
        self.row_bytes = 0
        block = BLOCK_BYTES
        if rows and parameter.dim() == 2 and parameter.is_contiguous():
            self.row_bytes = self.nbytes // len(parameter)
            block = max(1, ROW_BLOCK_BYTES // self.row_bytes) * self.row_bytes
        self.away = _away(self.nbytes, asked)
        # What is stored goes on to the end of a block, so of a row.
        self._ranges = [(begin, min(block, self.nbytes - begin))
                        for begin in range(0, min(self.away, self.nbytes), block)]
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
        for begin, size in self._ranges:
            self._blocks.append(self._disk().put(address + begin, size))

    def _disk(self) -> Any:
        if self.spill is None:
            raise HeadraceError("a remote parameter was used while the process ends: its values "
                                "are gone", "usage")
        return self.spill

    def _load(self, address: int) -> None:
        self._disk()
        for block, (begin, size) in zip(self._blocks, self._ranges):
            self.spill.get(block, address + begin, size)

    def _load_rows(self, rows: torch.Tensor) -> None:
        """These rows, and no page of others."""
        self._disk()
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
                raise self._lost(parameter)
            if not self.whole:
                if rows is not None and self.row_bytes:
                    self._load_rows(rows)
                else:
                    self._load(self.region.address)
                    self.whole = True
            self.users += 1

    @staticmethod
    def _lost(parameter: nn.Parameter) -> HeadraceError:
        return refuse(f"a parameter of shape {list(parameter.shape)} that is marked "
                      "@remote_memory was written to while it was away; torch.optim and "
                      "load_state_dict() may change it")

    def leave(self) -> None:
        with self.lock:
            self.users -= 1
            if self.users:
                return
            parameter = self.parameter()
            version = self.version if parameter is None else parameter._version
            if not self.whole and version != self.version:  # only rows of it were there
                self.region.empty(self.away)
                raise self._lost(parameter)
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
            _stay(parameter)
            for name in ("__deepcopy__", "__reduce_ex__"):
                parameter.__dict__.pop(name, None)
            self._drop()

    def room(self, node: fx.Node, primal: fx.Node) -> int:
        """Bytes that it, this input of the graph, takes while the op of this node runs."""
        rows = rows_asked(node, primal)
        if self.row_bytes and rows is not None:
            row = pages(self.row_bytes) + mmap.PAGESIZE
            return min(self.away, rows.meta["val"].numel() * row) + self._ranges[0][1]
        return self.away

    def _copied(self, memo: dict) -> nn.Parameter:
        parameter = self.parameter()
        if remote_at(parameter) is not self:  # .data is something else by now
            return nn.Parameter.__deepcopy__(parameter, memo)
        if id(parameter) not in memo:
            memo[id(parameter)] = nn.Parameter(self.value(), parameter.requires_grad)
        return memo[id(parameter)]


def rows_asked(node: fx.Node, primal: fx.Node) -> Optional[fx.Node]:
    """Which rows, when all that the op reads of this input are rows of it. Rows of a view of it
    have other numbers."""
    if node.target is not torch.ops.aten.embedding.default:
        return None
    table, whole = node.args[0].meta["val"], primal.meta["val"]
    same = (storage_key(table) == storage_key(whole) and table.shape == whole.shape
            and table.stride() == whole.stride()
            and table.storage_offset() == whole.storage_offset())
    return node.args[1] if same else None


def _away(nbytes: int, asked: RemoteMemory) -> int:
    """Bytes of a parameter that leave memory: whole pages."""
    if asked.max_size_bytes and asked.max_size_bytes < nbytes:
        return asked.max_size_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    return pages(nbytes)


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
    if id(parameter) not in _wanted:
        _note(parameter, asked)


def _stay(parameter: nn.Parameter) -> None:
    _note(parameter, None)


def _note(parameter: nn.Parameter, asked: Optional[RemoteMemory]) -> None:
    key = id(parameter)
    _wanted[key] = (weakref.ref(parameter, lambda _: _wanted.pop(key, None)), asked)


def _owned_by_others(inside: Iterable[nn.Module]) -> set[int]:
    """Ids of the parameters that modules own which are not `inside` a marked one. Nobody tells
    which models there are, so all modules of the process are looked at."""
    if gc.get_freeze_count():
        raise refuse("gc.freeze() hides which modules own parameters that are marked "
                     "@remote_memory: call gc.unfreeze() before the model's first call")
    known = {id(m) for m in inside}
    # By the type: proxies may run anything for isinstance().
    others = [m for m in gc.get_objects() if issubclass(type(m), nn.Module) and id(m) not in known]
    return {id(p) for m in others for p in tuple((m.__dict__.get("_parameters") or {}).values())}


class Adopter:
    """Moves the marked parameters among a graph's inputs out of memory, when they first come."""

    def __init__(self, gm: fx.GraphModule, folder: Optional[str],
                 inside: Iterable[nn.Module]) -> None:
        """inside: the marked modules and those in them."""
        self.folder, self.inside = folder, inside
        lookup = (torch.nn.functional.embedding, torch.embedding)
        tables = {a for n in gm.graph.nodes if n.target in lookup for a in n.all_input_nodes}
        inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._tables = {at for at, node in enumerate(inputs) if node in tables}

    def look(self, args: Iterable[Any]) -> None:
        args = tuple(args)
        found = [(at, arg, asked) for at, arg in enumerate(args)
                 if (asked := self._asked(arg)) is not None]
        if not found:
            return
        others = _owned_by_others(self.inside)
        keys = Counter(storage_key(a) for a in {id(a): a for a in args}.values()
                       if isinstance(a, torch.Tensor) and a.layout is torch.strided)
        for at, arg, asked in found:
            if id(arg) in others or keys[storage_key(arg)] > 1 or arg.is_shared():
                _stay(arg)
            else:
                Remote(self.folder, arg, asked, at in self._tables)

    @staticmethod
    def _asked(arg: Any) -> Optional[RemoteMemory]:
        parameter, asked = _wanted.get(id(arg), (None, None))
        if asked is None or parameter() is not arg or remote_at(arg) is not None:
            return None
        can = arg.device.type == "cpu" and movable(arg) and _away(arg.nbytes, asked) > 0
        return asked if can else None


def _spill(folder: Optional[str]) -> Any:
    """One a folder: each has buffers of 8 MiB."""
    spill = next((r.spill for r in _at_storage.values() if r.folder == folder), None)
    return _core.Spill(folder) if spill is None else spill
