"""Parameters of classes marked with @remote_memory: in memory only while they are used.

Such a parameter comes for the forward pass of its module, for the backward ops that ask for it, and
for the optimizer's step; in between it is a NaN that takes no memory and refuses to be written to.
The tensor stays the same object. state_dict() and deepcopy of the model see true values, and
load_state_dict() writes through. A parameter that is read outside the forward pass of its module
(by other code, or by a method that torch.utils.checkpoint calls again) is NaN.

Left in memory: parameters that modules without the mark share, and those below 64 KiB.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headrace._moved import MovedTensors
from headrace._remote import remote_of
from headrace.eager._hook import Hook
from headrace.eager._remote import Remote
from headrace.eager._rows import Rows, by_rows
from headrace.eager._saved import SMALLEST_BYTES

if TYPE_CHECKING:
    from headrace.eager._session import Session


def movable(parameter: nn.Parameter) -> bool:
    return (type(parameter) is nn.Parameter and parameter.is_floating_point()
            and parameter.nbytes >= SMALLEST_BYTES
            and parameter.untyped_storage().nbytes() == parameter.nbytes)


class Remotes:
    """All of a session's, and the hooks of their modules."""

    def __init__(self, session: "Session", model: nn.Module) -> None:
        self.session = session
        self.of: dict[int, Remote] = {}  # by the parameter's id
        self._handles: list[Any] = []
        marked = [m for m in model.modules() if remote_of(m) is not None]
        inside = {id(inner) for m in marked for inner in m.modules()}
        elsewhere = {id(p) for m in model.modules() if id(m) not in inside
                     for p in m.parameters(recurse=False)}
        for module in marked:
            rule = {"remote_memory": remote_of(module).rule()}
            mine = [p for p in module.parameters() if id(p) not in elsewhere and movable(p)]
            for p in mine:
                if id(p) not in self.of:
                    kind = Rows if by_rows(module) else Remote
                    self.of[id(p)] = kind(session, f"w{len(self.of)}", p, rule)
            self._hook(module, [self.of[id(p)] for p in mine])

    def _hook(self, module: nn.Module, remotes: list[Remote]) -> None:
        add = self._handles.append
        self._watch(module, remotes)
        for inner in module.modules():
            own = [self.of[id(p)] for p in inner.parameters(recurse=False) if id(p) in self.of]
            if not own:
                continue
            if inner is not module:  # it may be called again alone, to be recomputed
                self._watch(inner, own)
            add(inner.register_state_dict_post_hook(Hook(self._after_state_dict)))
            add(inner.register_load_state_dict_pre_hook(Hook(self._before_load)))
            add(inner.register_load_state_dict_post_hook(Hook(self._after_load)))

    def _watch(self, module: nn.Module, remotes: list[Remote]) -> None:
        for table in (r for r in remotes if isinstance(r, Rows)):
            self._handles += [module.register_forward_pre_hook(Hook(table.enter)),
                              module.register_forward_hook(Hook(table.leave), always_call=True)]
        remotes = [r for r in remotes if not isinstance(r, Rows)]
        self._handles += [
            module.register_forward_pre_hook(Hook(lambda *_: self._enter(remotes))),
            module.register_forward_hook(Hook(lambda *_: self._leave(remotes)), always_call=True)]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        for remote in self.of.values():
            remote.end()
        self.of.clear()

    # Forward and backward.

    def begin_cycle(self) -> None:
        for remote in self.of.values():
            remote.fetches = 0

    def _enter(self, remotes: list[Remote]) -> None:
        for remote in remotes:
            if remote.users == 0 and remote.home != "memory":
                remote.bind(self.session.fetch(remote))
            remote.users += 1

    def _leave(self, remotes: list[Remote]) -> None:
        for remote in remotes:
            remote.users = max(0, remote.users - 1)
            # A graph that is not packed by us (recomputation in backward) has the parameter itself.
            if remote.users == 0 and (self.session.hooked or not torch.is_grad_enabled()):
                if remote.home != "memory":
                    remote.park()

    def find(self, tensor: torch.Tensor) -> Remote | None:
        """Whose bytes a saved tensor shows."""
        storage = tensor.untyped_storage()
        for remote in self.of.values():
            if remote.users and remote.live is not None and remote.live() is storage:
                return remote
        return None

    # The optimizer's step.

    def open(self, parameters: list[torch.Tensor]) -> list[Remote]:
        """Those among the parameters come into ordinary memory, to be stepped there."""
        found = [self.of[id(p)] for p in parameters
                 if p.grad is not None and id(p) in self.of and self.of[id(p)].home != "memory"]
        for remote in found:
            storage = self.session.fetch(remote)
            values = torch.empty_strided(remote.size, remote.stride, dtype=remote.dtype)
            values.copy_(torch.empty(0, dtype=remote.dtype).set_(
                storage, 0, remote.size, remote.stride))
            remote.bind(values.untyped_storage())
        return found

    def close(self, opened: list[Remote]) -> None:
        for remote in opened:
            self.session.keep(remote)
            remote.park()

    # Between cycles.

    def layout(self) -> dict[str, int]:
        return {r.name: r.nbytes for r in self.of.values() if r.home in ("spill", "engine")}

    def rules(self) -> dict[str, dict]:
        return {r.name: r.rule for r in self.of.values() if r.home in ("spill", "engine")}

    def into_engine(self, moved: MovedTensors) -> None:
        for remote in self.of.values():
            remote.into(moved, remote.nbytes)

    def out_of_engine(self, moved: MovedTensors) -> None:
        for remote in self.of.values():
            remote.out_of(moved, remote.nbytes)

    # What others see of them.

    def _after_state_dict(self, module: nn.Module, state: dict, prefix: str, *_: Any) -> None:
        with self.session.lock:
            self.session.deviate("remote parameters are read in the middle of a cycle")
            for name, p in module.named_parameters(recurse=False, remove_duplicate=False):
                remote = self.of.get(id(p))
                if remote is not None and remote.home != "memory" and prefix + name in state:
                    state[prefix + name] = remote.value()

    def _before_load(self, module: nn.Module, *_: Any) -> None:
        with self.session.lock:
            self.session.deviate("remote parameters are loaded in the middle of a cycle")
            for p in module.parameters(recurse=False):
                remote = self.of.get(id(p))
                if remote is not None:
                    with torch.no_grad():
                        p.set_(remote.value())

    def _after_load(self, module: nn.Module, *_: Any) -> None:
        with self.session.lock:
            for p in module.parameters(recurse=False):
                remote = self.of.get(id(p))
                if remote is not None and p.stride() == remote.stride and p.numel() > 1:
                    self.session.replace(remote, p.detach())
                    remote.park()
