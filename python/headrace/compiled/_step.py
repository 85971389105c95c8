"""The joint graph of a forward and a backward pass, as ops and the memory that they write.

Vocabulary
  value     a storage that an op of the graph allocates, or that autograd hands in (a tangent).
            Views, aliases and detached tensors lie in the value of their base.
  op        a node that computes. A node that only makes a view is none: it costs nothing and is
            made again wherever its base is.
  outside   what is in memory before and after the pass whatever we do: parameters, buffers, inputs
            and constants of the graph.
  turn      between the forward and the backward pass: forward outputs leave, tangents come.

What cannot be planned is refused by name (HeadraceError "unsupported"): shapes that are not known,
ops that change their operands, higher-order ops, tensors that are not dense CPU tensors.
"""
from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch import fx

from .._errors import HeadraceError


@dataclass
class Value:
    """A storage of `bytes` bytes; `carriers` are the nodes of the tensors that hold it."""

    name: str
    bytes: int
    tangent: bool = False
    carriers: list[fx.Node] = field(default_factory=list)
    backward: bool = False  # written by the backward pass
    pinned: bool = False    # somebody else holds it: an output, a tangent


@dataclass
class Op:
    """A node that computes: `inputs` and `outputs` are indices of values."""

    node: fx.Node
    inputs: list[int]
    outputs: list[int]
    getitems: list[fx.Node]
    backward: bool
    recompute: bool
    primals: set[fx.Node]  # that it reads, itself or through views
    seconds: float = 0.0
    workspace: int = 0  # bytes that it has besides operands, at its peak
    remote: int = 0     # of them, those of parameters that come for it

    @property
    def name(self) -> str:
        return self.node.name


@dataclass
class Step:
    """One forward and backward pass. `ops` are in order, the first `turn` of them are forward."""

    module: fx.GraphModule
    primals: list[fx.Node]
    tangents: list[fx.Node]
    forward_outputs: list[Any]
    backward_outputs: list[Any]
    ops: list[Op]
    turn: int
    values: list[Value]
    value_of: dict[fx.Node, int]  # nodes that are not here are outside
    kept_primals: list[fx.Node]   # those that the backward pass reads, whatever the plan
    remote: set[fx.Node] = field(default_factory=set)  # primals that come for each use


def refuse(what: str) -> HeadraceError:
    return HeadraceError(f'torch.compile(backend="headrace"): {what}', "unsupported")


def storage_key(tensor: torch.Tensor) -> int:
    # The address of the storage object: the tensors live as long as the graph's metadata.
    return tensor.untyped_storage()._cdata


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists and tuples (metadata or results of a node), in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_of(item)]
    return []


def is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def has_effect(node: fx.Node) -> bool:
    """True for what must run exactly once even if nobody reads what it returns."""
    schema = getattr(node.target, "_schema", None)
    return is_random(node) or (schema is not None and (schema.is_mutable or not schema.returns))


def may_run_again(node: fx.Node) -> bool:
    """True for what computes the same again. Of ops from elsewhere nobody says so: they may draw
    random numbers without a tag that tells it."""
    return node.target.namespace in ("aten", "prims") and not has_effect(node)


def check_node(node: fx.Node) -> None:
    """Refuses, by name, what the planner cannot know the memory of."""
    where = f"{node.target} ({node.name})"
    if node.op == "call_function" and node.target is not operator.getitem:
        if not isinstance(node.target, torch._ops.OpOverload):
            raise refuse(f"{where} is no ATen op: higher-order ops are not planned")
        if node.target._schema.is_mutable and node.target is not torch.ops.aten.copy_.default:
            raise refuse(f"{where} changes its operands")
    elif node.op not in ("placeholder", "get_attr", "call_function", "output"):
        raise refuse(f"{where}: a {node.op} node")
    value = node.meta.get("val")
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise refuse(f"{where} has a size that is only known when it runs")
    for tensor in tensors_of(value):
        if tensor.device.type != "cpu":
            raise refuse(f"{where} is on {tensor.device}; only CPU tensors are planned")
        if tensor.layout is not torch.strided:
            raise refuse(f"{where} has layout {tensor.layout}; only dense tensors are planned")
        if any(not isinstance(n, int) for n in tensor.shape):
            raise refuse(f"{where} has the shape {tuple(tensor.shape)}, known only when it runs")


class _Builder:
    def __init__(self, module: fx.GraphModule, forward_outputs: int, static: list[int]) -> None:
        self.module = module
        self.graph = module.graph
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.tangents = [n for n in placeholders if n.name.startswith("tangents")]
        self.primals = [n for n in placeholders if not n.name.startswith("tangents")]
        output = next(n for n in reversed(self.graph.nodes) if n.op == "output")
        results = list(output.args[0])
        self.forward_outputs = results[:forward_outputs]
        self.backward_outputs = results[forward_outputs:]
        self.mutated = self._mutated(output)
        self.static = {self.primals[i] for i in static} - self.mutated
        self.values: list[Value] = []
        self.value_of: dict[fx.Node, int] = {}
        self.by_storage: dict[int, int] = {}  # -1: outside
        self.reads: dict[fx.Node, set[fx.Node]] = {}  # primals that a view or an op reads
        self.copies: list[fx.Node] = []  # of inputs, made before they change

    def _mutated(self, output: fx.Node) -> set[fx.Node]:
        """The inputs that are changed in place once the forward pass has returned."""
        told = output.meta.get("desc")
        if told is None:  # before torch 2.8: it may be any that has no gradient
            return {p for p, g in zip(self.primals, self.backward_outputs) if g is None}
        changed = [getattr(d, "mutated_input", None) for d in told[:len(self.forward_outputs)]]
        return {p for p in self.primals if p.meta.get("desc") in changed
                and p.meta.get("desc") is not None}

    # ---- which nodes run, and on which side of the turn ----
    def _ancestors(self, roots: list[fx.Node]) -> set[fx.Node]:
        seen: set[fx.Node] = set()
        stack = [r for r in roots if isinstance(r, fx.Node)]
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(node.all_input_nodes)
        return seen

    def _sides(self) -> tuple[list[fx.Node], list[fx.Node]]:
        effects = [n for n in self.graph.nodes if n.op == "call_function" and has_effect(n)]
        behind = {n for n in effects if n.meta.get("partitioner_tag") in
                  ("is_backward", "must_be_in_backward")}
        front = [n for n in effects if n not in behind]
        forward = self._ancestors([*self.forward_outputs, *front, *self.copies])
        if any(t in forward for t in self.tangents):
            raise refuse("an output of the forward pass reads a gradient")
        needed = forward | self._ancestors([*self.backward_outputs, *behind])
        nodes = [n for n in self.graph.nodes if n in needed]
        return [n for n in nodes if n in forward], [n for n in nodes if n not in forward]

    def snapshot_mutated(self) -> None:
        """Inputs that the pass changes, and that the backward pass reads, are read from a copy."""
        behind = set(self._sides()[1])
        for primal in self.primals:
            if primal not in self.mutated or not self._read_behind(primal, behind):
                continue
            with self.graph.inserting_before(primal.next):
                copy = self.graph.call_function(torch.ops.aten.clone.default, (primal,))
            value = primal.meta["val"]
            with value.fake_mode:
                copy.meta["val"] = torch.clone(value)
            primal.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy
                                         and user.op != "output")
            self.copies.append(copy)

    @staticmethod
    def _read_behind(primal: fx.Node, behind: set[fx.Node]) -> bool:
        stack = list(primal.users)
        while stack:
            user = stack.pop()
            if user in behind:
                return True
            shared = [t for t in tensors_of(user.meta.get("val"))
                      if storage_key(t) == storage_key(primal.meta["val"])]
            if shared:
                stack.extend(user.users)
        return False

    # ---- values ----
    def _outside(self, node: fx.Node) -> None:
        for tensor in tensors_of(node.meta.get("val")):
            self.by_storage.setdefault(storage_key(tensor), -1)
        self.reads[node] = {node} if node.op == "placeholder" else set()

    def _tangent(self, node: fx.Node) -> None:
        self.reads[node] = set()
        for tensor in tensors_of(node.meta.get("val")):
            self.by_storage[storage_key(tensor)] = len(self.values)
            self.value_of[node] = len(self.values)
            self.values.append(Value(node.name, tensor.untyped_storage().nbytes(), tangent=True,
                                     carriers=[node], backward=True, pinned=True))

    def _note(self, node: fx.Node, tensor: torch.Tensor) -> None:
        at = self.by_storage.get(storage_key(tensor), -1)
        if at >= 0:
            self.value_of[node] = at

    def _visit(self, node: fx.Node, backward: bool) -> Optional[Op]:
        self.reads[node] = set().union(*(self.reads.get(a, set()) for a in node.all_input_nodes))
        value = node.meta.get("val")
        if node.target is operator.getitem:
            for tensor in tensors_of(value):
                self._note(node, tensor)
            return None
        outputs = tensors_of(value)
        fresh = [t for t in outputs if storage_key(t) not in self.by_storage]
        if outputs and not fresh and not node.target._schema.is_mutable:
            if len({storage_key(t) for t in outputs}) > 1:
                raise refuse(f"{node.target} ({node.name}) returns views of several tensors")
            self._note(node, outputs[0])
            return None  # a view, or several of one base
        if fresh and len(fresh) < len(outputs):
            raise refuse(f"{node.target} ({node.name}) returns new tensors and views together")
        return self._compute(node, fresh, backward)

    def _compute(self, node: fx.Node, fresh: list[torch.Tensor], backward: bool) -> Op:
        made: list[int] = []
        for tensor in fresh:
            key = storage_key(tensor)
            if key in self.by_storage:
                continue  # two of its outputs share a storage
            self.by_storage[key] = len(self.values)
            made.append(len(self.values))
            name = node.name if not made[1:] else f"{node.name}:{len(made) - 1}"
            self.values.append(Value(name, tensor.untyped_storage().nbytes(), backward=backward))
        getitems = [u for u in node.users if u.target is operator.getitem]
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._note(node, node.meta["val"])
            getitems = []
            if made:
                self.values[made[0]].carriers.append(node)
        for item in getitems:
            for tensor in tensors_of(item.meta.get("val")):
                at = self.by_storage[storage_key(tensor)]
                self.values[at].carriers.append(item)
        inputs = {self.value_of[a] for a in node.all_input_nodes if a in self.value_of}
        self.reads[node], reads = set(), self.reads[node]
        return Op(node, sorted(inputs), made, getitems, backward, may_run_again(node), reads)

    def build(self) -> Step:
        for node in self.graph.nodes:
            check_node(node)
        self.snapshot_mutated()
        for node in [*self.primals, *(n for n in self.graph.nodes if n.op == "get_attr")]:
            self._outside(node)
        for node in self.tangents:
            self._tangent(node)
        front, behind = self._sides()
        ops: list[Op] = []
        for nodes, backward in ((front, False), (behind, True)):
            turn = len(ops)
            for node in nodes:
                if node.op == "call_function":
                    op = self._visit(node, backward)
                    if op is not None:
                        ops.append(op)
        self._allow_recompute(ops)
        for node in [*self.forward_outputs, *self.backward_outputs]:
            if isinstance(node, fx.Node) and node in self.value_of:
                self.values[self.value_of[node]].pinned = True
        return Step(self.module, self.primals, self.tangents, self.forward_outputs,
                    self.backward_outputs, ops, turn, self.values, self.value_of,
                    [p for p in self.primals if p in self.behind])

    def _allow_recompute(self, ops: list[Op]) -> None:
        # What runs again may read parameters, and inputs that the backward pass reads anyway. Other
        # inputs it must not hold on to: users may change them in place once the forward pass is
        # over. They may change parameters as well: those are only held by plans that read them.
        behind = set().union(*(op.primals for op in ops if op.backward))
        outs = [n for n in self.backward_outputs if isinstance(n, fx.Node)]
        behind |= set().union(*(self.reads.get(n, set()) for n in outs))
        self.behind = behind - self.mutated
        allowed = (self.static | behind) - self.mutated
        for op in ops:
            if not op.primals <= allowed:
                op.recompute = False


def build_step(module: fx.GraphModule, *, num_fwd_outputs: int, static: list[int]) -> Step:
    """Reads AOTAutograd's joint graph; the graph must live as long as the Step.

    num_fwd_outputs: how many of the graph's outputs the forward pass returns. static: indices of
    the inputs that live longer than the pass (parameters, buffers).
    Errors: HeadraceError "unsupported", naming the op.
    """
    return _Builder(module, num_fwd_outputs, static).build()
