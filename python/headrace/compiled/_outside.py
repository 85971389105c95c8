"""Remote parameters outside graphs: modules that are called as they are, state dicts, optimizers.

An optimizer of torch.optim that treats each parameter by itself steps a few of them at a time, and
its other parameters; the others, and those with hooks or a closure, have all of theirs in memory.
"""
from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from typing import Any, Iterator, Optional

import torch
from torch import fx, nn
from torch.optim.optimizer import (register_optimizer_step_post_hook,
                                   register_optimizer_step_pre_hook)

from .._remote import RemoteMemory, marked_modules, remote_of
from ..eager._hook import Hook
from ..eager._saved import CHANGED, check_version
from ..eager._states import CHUNK_BYTES, separable
from ._remotes import Remote, remote_at, want
from ._step import refuse

_hooked: "weakref.WeakKeyDictionary[nn.Module, RemoteMemory]" = weakref.WeakKeyDictionary()
_stepping: "weakref.WeakKeyDictionary[Any, _Step]" = weakref.WeakKeyDictionary()
_threads = threading.local()


def watch_modules() -> None:
    """Marked modules get the hooks that they need besides graphs, if they have none."""
    for module in marked_modules():
        if not isinstance(module, nn.Module):
            continue
        for inner in module.modules():
            if inner not in _hooked:
                _hooked[inner] = remote_of(module)
                _hook(inner)
            _want_own(inner)


def marked_inside() -> "weakref.WeakKeyDictionary[nn.Module, RemoteMemory]":
    """The marked modules that are watched, and those in them."""
    return _hooked


def _want_own(module: nn.Module) -> None:
    for parameter in module._parameters.values():
        if parameter is not None:
            want(parameter, _hooked[module])


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
    _enter_all(held, args[0] if lookup else None)
    hooks = None
    if held and torch.is_grad_enabled():
        hooks = torch.autograd.graph.saved_tensors_hooks(_pack, _unpack)
        hooks.__enter__()
    _calls().append((module, held, hooks))


def _enter_all(remotes: list[Remote], rows: Optional[torch.Tensor] = None) -> None:
    """All of them, or none when it raises."""
    with ExitStack() as entered:
        for remote in remotes:
            remote.enter(rows)
            entered.callback(remote.leave)
        entered.pop_all()


def _leave_all(remotes: list[Remote]) -> None:
    """All of them, also when one cannot be written back."""
    with ExitStack() as leaving:
        while remotes:
            leaving.callback(remotes.pop().leave)


def _leave_module(module: nn.Module, *_: Any) -> None:
    # What is above it was left by an exception for which torch calls no hook.
    while any(called is module for called, _, _ in _calls()):
        called, held, hooks = _calls().pop()
        if hooks is not None:
            hooks.__exit__(None, None, None)
        _leave_all(held)
        if called is module:
            return


def _pack(tensor: torch.Tensor) -> tuple:
    remote = remote_at(tensor)
    if remote is None:
        return None, tensor.detach(), tensor._version
    return remote, remote.parameter()._version, (tensor.size(), tensor.stride(),
                                                 tensor.storage_offset())


def _unpack(packed: tuple) -> torch.Tensor:
    if packed[0] is None:
        _, tensor, version = packed
        check_version(tensor, version)
        return tensor
    remote, version, where = packed
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
    own = _own(module)
    _enter_all(own)
    _calls().append((module, own, None))
    for remote in own:
        remote.changed = True


def _after_load(module: nn.Module, *_: Any) -> None:
    _leave_module(module)
    _want_own(module)  # assign=True: other parameters


# ---- the optimizer's step ----

class _Step:
    """A step that is going on: what it has opened, and gradients that are hidden from it."""

    def __init__(self) -> None:
        self.opened: list[Remote] = []
        self.hidden: list[tuple[torch.Tensor, torch.Tensor]] = []

    def open(self, remotes: list[Remote]) -> None:
        for remote in remotes:
            remote.enter()
            remote.changed = True
            self.opened.append(remote)

    def close(self) -> None:
        _leave_all(self.opened)

    def end(self) -> None:
        for parameter, gradient in self.hidden:
            parameter.grad = gradient
        self.hidden = []
        self.close()


def _before_step(optimizer: Any, args: tuple, kwargs: dict) -> None:
    raised = _stepping.pop(optimizer, None)
    if raised is not None:
        raised.close()
    # args begins with the optimizer. A closure is what makes gradients.
    closure = len(args) > 1 or bool(kwargs)
    stepped = [p for group in optimizer.param_groups for p in group["params"]
               if closure or p.grad is not None]
    held = [remote for p in stepped if (remote := remote_at(p)) is not None]
    if not held:
        return
    step = _stepping[optimizer] = _Step()
    try:
        # Hooks are to see all gradients, before and after the step.
        if separable(optimizer) and not closure and not _has_hooks(optimizer):
            for chunk in _chunks(stepped):
                _step_alone(optimizer, step, chunk)
        else:
            step.open(held)
    except BaseException:
        _stepping.pop(optimizer).end()
        raise


def _chunks(parameters: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """A few remote ones at a time, then the others. The optimizer's own step has nothing left to
    do, so cannot go wrong: of an error in there nobody tells us, and gradients would stay hidden.
    """
    chunk: list[torch.Tensor] = []
    for parameter in parameters:
        if remote_at(parameter) is not None:
            chunk.append(parameter)
            if sum(p.nbytes for p in chunk) >= CHUNK_BYTES:
                yield chunk
                chunk = []
    if chunk:
        yield chunk
    others = [p for p in parameters if remote_at(p) is None]
    if others:
        yield others


def _has_hooks(optimizer: Any) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _step_alone(optimizer: Any, step: _Step, chunk: list[torch.Tensor]) -> None:
    """The optimizer's own step for these parameters, which it then has stepped."""
    mine = {id(p) for p in chunk}
    everyone = [group["params"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) in mine]
    try:
        step.open([remote for p in chunk if (remote := remote_at(p)) is not None])
        type(optimizer).step.__wrapped__(optimizer)
    finally:
        for group, parameters in zip(optimizer.param_groups, everyone):
            group["params"] = parameters
        step.close()
    for parameter in chunk:
        step.hidden.append((parameter, parameter.grad))
        parameter.grad = None


def _after_step(optimizer: Any, *_: Any) -> None:
    step = _stepping.pop(optimizer, None)
    if step is not None:
        step.end()


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
