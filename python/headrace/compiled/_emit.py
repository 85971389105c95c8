"""From a schedule to the two graphs that torch runs.

Each "run" of an op in the schedule becomes a copy of its node; an op that runs again has a second
copy, and from there on its outputs are the new ones. Views are made again wherever they are read.
A value dies with its last reader: the generated code drops each name after its last use.
"""
from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Callable, Optional

import torch
from torch import fx

from . import _ops  # noqa: F401  headrace::store and the others
from ._schedule import Action
from ._step import Op, Step
from ._uses import Using, around_uses

# The strides of a graph come from meta kernels. Where the real kernel's differ (dropout's backward
# pass does with a transposed gradient, torch 2.15), a view may be impossible: then it is a copy.
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


@dataclass
class Emission:
    """`forward` takes the primals and returns forward outputs, then what is saved. `backward` takes
    what was saved, the kept primals and the tangents. Both take one list, and empty it."""

    forward: Callable[[list[Any]], Any]
    backward: Callable[[list[Any]], Any]
    saved: int
    recomputed: int        # ops that run a second time
    moved: list[int]       # values that are stored


@dataclass
class _Held:
    """One incarnation of a value: the new nodes of its carriers, and the graph they are in."""

    nodes: dict[fx.Node, fx.Node]
    graph: fx.Graph
    token: Optional[fx.Node] = None  # once it is stored: what load, then wait, takes


class _Emitter:
    def __init__(self, step: Step, mover: int) -> None:
        self.step = step
        self.mover = mover
        self.forward, self.backward = fx.Graph(), fx.Graph()
        self.graph = self.forward
        self.held: dict[int, _Held] = {}
        self.views: dict[fx.Node, fx.Node] = {}  # of the current graph
        self.by_value: dict[int, list[fx.Node]] = {}  # which views go when a value changes
        self.saved: list[fx.Node] = []  # forward's nodes
        self.entry: dict[fx.Node, fx.Node] = {}  # backward's placeholder by forward's node
        self.primals = {p: self._placeholder(p, self.forward) for p in step.primals}
        self.taken = self.primals  # by the forward graph
        self.stored: list[int] = []
        self.runs = [0] * len(step.ops)

    def _placeholder(self, node: fx.Node, graph: fx.Graph) -> fx.Node:
        made = graph.placeholder(node.name)
        made.meta["val"] = node.meta.get("val")
        return made

    # ---- tensors ----
    def tensor(self, node: fx.Node) -> fx.Node:
        """The new node that stands for `node` now."""
        if node in self.primals:
            return self.primals[node]
        if node in self.taken:
            return self._saved(self.taken[node])  # for an op that runs again
        if node in self.views:
            return self.views[node]
        value = self.step.value_of.get(node)
        if value is not None and node in self.step.values[value].carriers:
            return self._carrier(node, value)
        made = self._copy(node)
        self.views[node] = made
        if value is not None:
            self.by_value.setdefault(value, []).append(node)
        return made

    def _copy(self, node: fx.Node) -> fx.Node:
        made = self.graph.node_copy(node, self.tensor)
        if made.target in VIEWS:
            made.target = torch.ops.aten.reshape.default
        return made

    def _carrier(self, node: fx.Node, value: int) -> fx.Node:
        held = self.held[value]
        if held.graph is not self.graph:
            self._enter(held)
        return held.nodes[node]

    def _enter(self, held: _Held) -> None:
        """A value of the forward pass is read by the backward pass: it is saved."""
        for carrier, node in held.nodes.items():
            held.nodes[carrier] = self._saved(node)
        held.graph = self.graph

    def _saved(self, node: fx.Node) -> fx.Node:
        if node not in self.entry:
            self.saved.append(node)
            self.entry[node] = self._first(f"saved_{len(self.saved)}", node.meta.get("val"))
        return self.entry[node]

    def _first(self, name: str, value: Any) -> fx.Node:
        with self.graph.inserting_before(self.top):
            made = self.graph.placeholder(name)
        made.meta["val"] = value
        return made

    # ---- actions ----
    def _forget_views(self, value: int) -> None:
        for node in self.by_value.pop(value, ()):
            self.views.pop(node, None)

    def run(self, at: int) -> None:
        op: Op = self.step.ops[at]
        self.runs[at] += 1
        made = self._copy(op.node)
        new = {op.node: made}
        for item in op.getitems:
            if item.users:
                new[item] = self.graph.call_function(operator.getitem, (made, item.args[1]))
                new[item].meta = dict(item.meta)
        for value in op.outputs:
            self._forget_views(value)
            carriers = self.step.values[value].carriers
            self.held[value] = _Held({c: new[c] for c in carriers if c in new}, self.graph)
        made.meta["headrace_op"] = at

    def store(self, value: int) -> None:
        carrier = self.step.values[value].carriers[0]
        token = self._call("store", self._carrier(carrier, value), self.mover, value)
        self.held[value].token = token
        self.stored.append(value)

    def load(self, value: int) -> None:
        held = self.held[value]
        token = held.token if held.graph is self.graph else self._saved(held.token)
        self._forget_views(value)
        self.held[value] = _Held({}, self.graph, self._call("load", token, self.mover, value))

    def wait(self, value: int) -> None:
        carrier = self.step.values[value].carriers[0]
        like = carrier.meta["val"]
        held = self.held[value]
        token = held.token if held.graph is self.graph else self._saved(held.token)
        made = self._call("wait", token, self.mover, value, list(like.shape), list(like.stride()),
                          like.dtype)
        made.meta["val"] = like
        self.held[value] = _Held({carrier: made}, self.graph, token)

    def tick(self, _: int) -> None:
        self._call("tick", self.mover)

    def _call(self, name: str, *args: Any) -> fx.Node:
        return self.graph.call_function(getattr(torch.ops.headrace, name).default, args)

    def turn(self) -> None:
        self.outputs = [self.tensor(n) if isinstance(n, fx.Node) else n
                        for n in self.step.forward_outputs]
        self.graph = self.backward
        self.views, self.by_value = {}, {}
        kept = {p: self._placeholder(p, self.backward) for p in self.step.kept_primals}
        tangents = [self._placeholder(t, self.backward) for t in self.step.tangents]
        # Saved values are found while the backward pass is written: their names go before this one.
        self.top = next(iter(self.backward.nodes))
        self.primals = kept
        for node, made in zip(self.step.tangents, tangents):
            value = self.step.value_of.get(node)
            if value is None:
                self.views[node] = made
            else:
                self.held[value] = _Held({node: made}, self.graph)

    def finish(self) -> None:
        gradients = [self.tensor(n) if isinstance(n, fx.Node) else n
                     for n in self.step.backward_outputs]
        self.backward.output(tuple(gradients))
        self.forward.output((*self.outputs, *self.saved))


class Boxed(fx.graph.CodeGen):
    """The function takes one list and empties it, so that what was in it can die in there. torch
    2.15 has a generator of its own for that, 2.6 has none."""

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **_: Any) -> str:
        names = [variable.partition(":")[0].strip() for variable in free_vars]
        taken = f"    [{', '.join(names)}] = values\n    values.clear()"
        return f"def {self._func_name}(self, values){maybe_return_annotation}:\n{taken}"


def _module(step: Step, graph: fx.Graph) -> Callable[[list[Any]], Any]:
    graph.set_codegen(Boxed())
    around_uses(graph, step.remote)
    module = fx.GraphModule(step.module, graph)
    return Using(module) if step.remote else module


def emit(step: Step, actions: list[Action], mover: int = 0) -> Emission:
    """Writes both graphs. The schedule must be one that the step's operands allow.

    mover: number of the Mover that headrace::store, load and wait of these graphs speak to.
    """
    e = _Emitter(step, mover)
    for action in actions:
        if action.kind == "turn":
            e.turn()
        else:
            getattr(e, action.kind)(action.index)
    e.finish()
    return Emission(_module(step, e.forward), _module(step, e.backward), len(e.saved),
                    sum(n - 1 for n in e.runs if n > 1), e.stored)
