"""Remote parameters in graphs: each op that reads one is between enter() and leave()."""
from __future__ import annotations

import threading
from typing import Any, Iterable, Optional

import torch
from torch import fx

from ._remotes import Remote, remote_at, remotes_exist, rows_asked
from ._step import Step, storage_key, tensors_of

_threads = threading.local()


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
    primal_of = {storage_key(p.meta["val"]): p for p in primals}
    keys = primal_of.keys()
    for node in list(graph.nodes) if keys else ():
        if node.op != "call_function" or keys & _keys(node) or node.target in (enter, leave):
            continue  # views read nothing
        used = {key: a for a in node.all_input_nodes for key in keys & _keys(a)}
        for key, a in used.items():
            rows = rows_asked(node, primal_of[key])
            with graph.inserting_before(node):
                graph.call_function(enter, (a,) if rows is None else (a, rows))
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

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        nodes = list(module.graph.nodes)
        self.inputs = [n for n in nodes if n.op == "placeholder"]
        self.outputs = tensors_meta(next(n for n in nodes if n.op == "output").args[0])
        self.known: set[fx.Node] = set()  # inputs whose readers are between enter and leave

    def __call__(self, args: list[Any]) -> Any:
        new = look_for(self.inputs, args, self.outputs).keys() - self.known
        if new:
            around_uses(self.module.graph, new)
            self.known |= new
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
    if not remotes_exist():
        return False
    outputs = tensors_meta((*step.forward_outputs, *step.backward_outputs))
    found = look_for(step.primals, args, outputs)
    new = found.keys() - step.remote
    if not new:
        return False
    step.remote |= new
    for op in step.ops:
        op.remote += sum(found[p].room(op.node, p) for p in op.primals & new)
    return True
