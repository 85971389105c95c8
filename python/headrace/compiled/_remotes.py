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
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)

from .. import _core
from .._remote import RemoteMemory, marked_modules, remote_of
from ..eager._hook import Hook
from ..eager._remotes import movable
from ..eager._saved import CHANGED, check_version
from ._region import Region, pages
from ._step import Step, refuse, storage_key, tensors_of

BLOCK_BYTES = 8 << 20       # what the spill copies at once
ROW_BLOCK_BYTES = 64 << 10  # rows are read in blocks of about this size

_at_storage: "weakref.WeakValueDictionary[int, Remote]" = weakref.WeakValueDictionary()
_wanted: dict[int, tuple["weakref.ref[nn.Parameter]", RemoteMemory]] = {}  # by the parameter's id
_hooked: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
_stepping: "weakref.WeakKeyDictionary[Any, list[Remote]]" = weakref.WeakKeyDictionary()
_threads = threading.local()


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
            if self.users == 0 and parameter is not None and parameter._version != self.version:
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


def remote_at(tensor: Any) -> Optional[Remote]:
    """Whose bytes a tensor shows."""
    if not _at_storage or not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" \
            or tensor.layout is not torch.strided:
        return None
    return _at_storage.get(storage_key(tensor))


# ---- which parameters, and how they get there ----

def watch_modules() -> None:
    """torch.compile was called: marked modules get the hooks that they need besides graphs."""
    for module in marked_modules():
        if not isinstance(module, nn.Module):
            continue
        for inner in module.modules():
            for parameter in inner._parameters.values():
                if parameter is not None and id(parameter) not in _wanted:
                    _want(parameter, remote_of(module))
            if inner not in _hooked:
                _hooked.add(inner)
                _hook(inner)


def _want(parameter: nn.Parameter, asked: RemoteMemory) -> None:
    key = id(parameter)
    _wanted[key] = (weakref.ref(parameter, lambda _: _wanted.pop(key, None)), asked)


def _hook(module: nn.Module) -> None:
    module.register_forward_pre_hook(_OutsideGraphs(_enter_module), prepend=True)
    module.register_forward_hook(_OutsideGraphs(_leave_module), always_call=True)
    module.register_state_dict_post_hook(Hook(_after_state_dict))
    module.register_load_state_dict_pre_hook(Hook(_before_load))
    module.register_load_state_dict_post_hook(Hook(_after_load))


def refuse_unknown(gm: fx.GraphModule) -> None:
    """Modules from before their class was marked have no hooks."""
    known = {type(module) for module in marked_modules()}
    for node in gm.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if getattr(kind, "__headrace_remote__", None) is not None and kind not in known:
                raise refuse(f"module {path} was made before its class was marked @remote_memory")


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


# ---- graphs ----

def enter(tensor: torch.Tensor, rows: Optional[torch.Tensor] = None) -> None:
    """In a graph: the op that comes next reads the tensor."""
    remote = remote_at(tensor)
    if remote is not None:
        remote.enter(rows)
        _held().append(remote)


def leave(tensor: torch.Tensor) -> None:
    remote = remote_at(tensor)
    if remote is not None:
        _held().remove(remote)
        remote.leave()


def _held() -> list[Remote]:
    """What graphs that run in this thread have entered."""
    if not hasattr(_threads, "held"):
        _threads.held = []
    return _threads.held


def around_uses(graph: fx.Graph, primals: Iterable[fx.Node]) -> None:
    """Puts enter and leave around each op that reads one of these inputs, itself or by a view."""
    keys = {storage_key(p.meta["val"]) for p in primals}
    for node in list(graph.nodes) if keys else ():
        if node.op != "call_function" or keys & _keys(node) or node.target in (enter, leave):
            continue  # views read nothing
        used = {key: a for a in node.all_input_nodes for key in keys & _keys(a)}
        table = node.args[0] if node.target is torch.ops.aten.embedding.default else None
        for a in used.values():
            with graph.inserting_before(node):
                graph.call_function(enter, (a, node.args[1]) if a is table else (a,))
            with graph.inserting_after(node):
                graph.call_function(leave, (a,))


def _keys(node: fx.Node) -> set[int]:
    return {storage_key(t) for t in tensors_of(node.meta.get("val"))}


class Using:
    """A graph that enters remote parameters. When an op of it raises they leave again."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module

    def __call__(self, args: list[Any]) -> Any:
        depth = len(_held())
        try:
            return self.module.forward(args)
        except BaseException:
            while len(_held()) > depth:
                _held().pop().leave()
            raise


class UsingInference(Using):
    """A graph without a backward pass, whose inputs are looked at when they come."""

    def __call__(self, args: list[Any]) -> Any:
        inputs = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        output = next(n for n in reversed(self.module.graph.nodes) if n.op == "output")
        found = look_for(inputs, args, tensors_meta(output.args[0]))
        known = self.__dict__.setdefault("known", set())
        if not found.keys() <= known:
            around_uses(self.module.graph, found.keys() - known)
            known |= found.keys()
            self.module.recompile()
        return super().__call__(args)


def tensors_meta(outputs: Iterable[Any]) -> list[torch.Tensor]:
    return [t for n in outputs if isinstance(n, fx.Node) for t in tensors_of(n.meta.get("val"))]


def look_for(inputs: list[fx.Node], args: list[Any],
             outputs: list[torch.Tensor]) -> dict[fx.Node, Remote]:
    """The inputs that are remote now. Those that the graph returns, or views, stay from now on."""
    escaping = {storage_key(t) for t in outputs}
    found = {}
    for node, arg in zip(inputs, args):
        remote = remote_at(arg)
        if remote is not None and storage_key(node.meta["val"]) in escaping:
            remote.stay()
        elif remote is not None:
            found[node] = remote
    return found


def note_remote(step: Step, args: list[Any]) -> bool:
    """Looks at the arguments of a forward pass. True when its plans did not know some of them."""
    if not _at_storage:
        return False
    outputs = tensors_meta((*step.forward_outputs, *step.backward_outputs))
    found = look_for(step.primals, args, outputs)
    if found.keys() <= step.remote:
        return False
    step.remote |= found.keys()
    for op in step.ops:
        op.remote += sum(found[p].room(op.node) for p in op.primals & found.keys())
    return True


# ---- modules outside graphs ----

class _OutsideGraphs(Hook):
    """Dynamo traces hooks of modules: in its graphs these do nothing."""

    def __call__(self, *args: Any) -> Any:
        return None if torch.compiler.is_compiling() else super().__call__(*args)


def _calls() -> list[tuple[nn.Module, list[Remote], Any]]:
    """Modules that are being called in this thread."""
    if not hasattr(_threads, "calls"):
        _threads.calls = []
    return _threads.calls


def _enter_module(module: nn.Module, args: tuple) -> None:
    held = [r for r in map(remote_at, module.parameters()) if r is not None]
    lookup = (type(module).forward is nn.Embedding.forward and module.max_norm is None
              and len(args) == 1)
    for remote in held:
        remote.enter(args[0] if lookup else None)
    hooks = None
    if held and torch.is_grad_enabled():
        hooks = torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)
        hooks.__enter__()
    _calls().append((module, held, hooks))


def _leave_module(module: nn.Module, *_: Any) -> None:
    # What is above it was left by an exception for which torch calls no hook.
    while any(called is module for called, _, _ in _calls()):
        called, held, hooks = _calls().pop()
        if hooks is not None:
            hooks.__exit__(None, None, None)
        for remote in held:
            remote.leave()
        if called is module:
            return


def _pack(tensor: torch.Tensor) -> tuple:
    remote = remote_at(tensor)
    if remote is None:
        return None, tensor.detach(), tensor._version
    return remote, remote.parameter()._version, (tensor.size(), tensor.stride(),
                                                 tensor.storage_offset())


def _unpack(packed: tuple) -> torch.Tensor:
    remote, version, where = packed
    if remote is None:
        check_version(version, where)
        return version
    parameter = remote.parameter()
    if parameter is not None and parameter._version != version:
        raise RuntimeError(f"{CHANGED}: a remote parameter of shape {list(parameter.shape)}")
    return remote.value().as_strided(*where)


def _own(module: nn.Module) -> list[Remote]:
    return [r for r in map(remote_at, module._parameters.values()) if r is not None]


def _after_state_dict(module: nn.Module, state: dict, prefix: str, *_: Any) -> None:
    for name, parameter in module._parameters.items():
        remote = remote_at(parameter)
        if remote is not None and prefix + name in state:
            state[prefix + name] = remote.value()


def _before_load(module: nn.Module, *_: Any) -> None:
    _calls().append((module, _own(module), None))
    for remote in _own(module):
        remote.enter()
        remote.changed = True


def _after_load(module: nn.Module, *_: Any) -> None:
    _leave_module(module)
    watch_modules()  # assign=True: other parameters


# ---- the optimizer's step ----

def _before_step(optimizer: Any, *_: Any) -> None:
    _after_step(optimizer)  # of a step that raised
    if not _at_storage:
        return
    stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    opened = _stepping.setdefault(optimizer, [])
    for remote in filter(None, map(remote_at, stepped)):
        remote.enter()
        remote.changed = True
        opened.append(remote)


def _after_step(optimizer: Any, *_: Any) -> None:
    for remote in _stepping.pop(optimizer, ()):
        remote.leave()


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
