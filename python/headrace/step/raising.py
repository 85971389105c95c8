"""Raising: from the ATen ops of a traced step to values of the engine.

The graph is walked once. Every node that depends on parameters becomes a view of a matrix (Ref), a
pattern that is not complete yet (Partial, Mix) or a sum of losses; each op is checked for what it
must be, and whatever is not known is refused with its op, shapes and line. Nothing is guessed: a
pattern that is not completed reaches an op that does not take it. Here are the walk and what all
handlers have in common; the handlers register themselves, in a file for each kind of op.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Optional, Sequence

import torch

from . import layout, values
from .capture import Capture, line_of
from .events import unsupported
from .graph import CONSTANT, FLOAT, INPUT, Parts
from .layout import Ref
from .values import Losses, Mix, Parameter, Partial, Value

HANDLERS: dict[str, Callable] = {}
COMPLETIONS: dict[str, Callable] = {}


class NotRaised(Exception):
    """Why a node is not what the engine has; the walk adds the op and the line."""


def handles(*names: str):
    """Registers a handler of ATen ops, by name without overload. It gets (raiser, node, *args)."""

    def register(function):
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def completes(kind: str):
    """Registers what makes a value of a pattern that may end here: a Partial of that kind, or a Mix
    ("mix")."""

    def register(function):
        COMPLETIONS[kind] = function
        return function

    return register


@dataclasses.dataclass
class Backward:
    losses: Losses
    node: torch.fx.Node


class Raiser:
    """After run(): ``losses`` and ``backwards`` of the step, in order."""

    def __init__(self, captured: Capture, tensors: Sequence[torch.Tensor]):
        self.captured = captured
        self.tensors = tensors  # among the arguments of the first call
        self.parts = Parts(captured)
        self.values: dict[torch.fx.Node, Any] = {}
        self.losses: list[tuple[values.Loss, torch.fx.Node]] = []
        self.backwards: list[Backward] = []
        self.parameters: dict[int, Parameter] = {}
        self.inputs: dict[torch.fx.Node, Value] = {}  # of floats, by node
        self.masks: dict[torch.fx.Node, values.Mask] = {}
        self.node: Optional[torch.fx.Node] = None  # being raised
        self.of_parameters = {
            t.dtype
            for n in captured.nodes
            if self.parts.is_parameter(n)
            for t in [captured.objects[n.target]]
        }
        # Norms, softmax, rotations and losses are computed in f32 from bf16 as well.
        self.dtypes = self.of_parameters | {torch.float32, torch.complex64}

    def run(self) -> None:
        for node in self.captured.nodes:
            if self.parts.kind.get(node) != FLOAT or node.op == "output":
                continue
            self.node = node
            if node.op == "get_attr":
                self.values[node] = self.parameter(node)
                continue
            try:
                self.values[node] = self.raise_node(node)
            except NotRaised as e:
                raise unsupported(self.message(node, str(e))) from e

    def raise_node(self, node):
        name, handler = _handler(node)
        if handler is None:
            raise NotRaised("the engine has no such op")
        if name.endswith("_") and not name.endswith("__"):
            self._check_in_place(node)
        if node.meta.get("val") is not None:
            self._check_dtype(node.meta["val"])
        return handler(
            self,
            node,
            *[self.operand(a) for a in node.args],
            **{k: self.operand(v) for k, v in node.kwargs.items()},
        )

    def message(self, node, why: str) -> str:
        shapes = ", ".join(
            "x".join(map(str, n.meta["val"].shape)) or "scalar"
            for n in node.all_input_nodes
            if isinstance(n.meta.get("val"), torch.Tensor)
        )
        return (
            f"compile_step: {node.target} of [{shapes}] is not supported here: {why}{line_of(node)}"
        )

    # ---- operands

    def operand(self, argument):
        """Values of float nodes, nodes of all others, and everything else as it is."""
        if isinstance(argument, torch.fx.Node):
            return self.values[argument] if self.parts.kind[argument] == FLOAT else argument
        if isinstance(argument, (list, tuple)):
            return [self.operand(a) for a in argument]
        return argument

    def parameter(self, node) -> Ref:
        tensor = self.captured.objects[node.target]
        if id(tensor) not in self.parameters:
            name = self.captured.parameters.get(id(tensor))
            if name is None:
                raise unsupported(
                    f"compile_step: a tensor of shape {tuple(tensor.shape)} with requires_grad "
                    f"is neither of the model nor of the optimizer{line_of(next(iter(node.users)))}"
                )
            self.parameters[id(tensor)] = Parameter(name, tensor)
        return layout.contiguous(self.parameters[id(tensor)], tensor.shape)

    def constant(self, argument, exact: bool = False) -> Optional[torch.Tensor]:
        """The value of a constant node, or of a number; None for everything else."""
        if isinstance(argument, (int, float)) and not isinstance(argument, bool):
            return torch.tensor(float(argument), dtype=torch.float64)
        if isinstance(argument, torch.fx.Node) and self.parts.kind[argument] == CONSTANT:
            return self.parts.evaluate(argument, exact)
        return None

    def first_value(self, node: torch.fx.Node) -> torch.Tensor:
        """Of a node that depends on inputs, in the first call."""
        with torch.no_grad():
            return self.parts.module([node])(*self.tensors)[0]

    def number(self, argument) -> Optional[float]:
        """A constant that is one number."""
        if isinstance(argument, torch.fx.Node):
            value = argument.meta.get("val")
            if value is None or value.numel() != 1:
                return None
        constant = self.constant(argument)
        if constant is None or constant.is_complex():
            return None
        return float(constant)

    def is_scalar_input(self, argument) -> bool:
        """Whether it is one number that depends on inputs, or on chance, and is known before the
        step: none that is changed in place later."""
        if not isinstance(argument, torch.fx.Node) or self.parts.kind[argument] != INPUT:
            return False
        value = argument.meta["val"]
        one = value.numel() == 1 and not value.is_complex()
        return one and not self.parts.changed_after(argument, self.node)

    # ---- results

    def add_loss(self, loss: values.Loss) -> Losses:
        self.losses.append((loss, self.node))
        return Losses((values.LossTerm(len(self.losses) - 1),))

    # ---- checks

    def _check_in_place(self, node) -> None:
        """Later nodes read the result of an op in place, but views made before would not."""
        root = self.parts.root[node.args[0]]
        changes = self.parts.mutators[root]
        if any(n is not root and n not in changes for n in self.parts.aliases[root]):
            raise NotRaised("it changes a tensor in place that has other views")

    def _check_dtype(self, value) -> None:
        if not isinstance(value, torch.Tensor) or value.dtype in self.dtypes:
            return
        if value.dim() == 0 and value.dtype == torch.float64:
            return  # a loss over a count in float64
        raise NotRaised(
            f"its result is {value.dtype}, and parameters are "
            f"{' and '.join(sorted(map(str, self.of_parameters)))}"
        )


def _handler(node):
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "__name__", ""), HANDLERS.get(getattr(target, "__name__", ""))
    name = target._schema.name.split("::")[1]
    handler = HANDLERS.get(name)
    if handler is None and name.endswith("_"):
        handler = HANDLERS.get(name[:-1])  # relu_, add_: the result is what later nodes read
    return name, handler


# ---- helpers of handlers -----------------------------------------------------------------------


def by_rows(made, like: Ref, cols: int) -> Ref:
    """A new value of an op that works on rows, in the rows of ``like``."""
    x = like.base
    return layout.like_rows(like, Value(made, x.rows, cols, x.sequence))


def is_value(x) -> bool:
    return isinstance(x, Ref) and isinstance(x.base, Value)


def is_parameter(x) -> bool:
    return isinstance(x, Ref) and isinstance(x.base, Parameter)


def is_partial(x, kind: str) -> bool:
    return isinstance(x, Partial) and x.kind == kind


def scaled(x, factor: float):
    """x * factor; losses and scaled values take the factor in."""
    if isinstance(x, Losses):
        return x.times(factor)
    if is_partial(x, "scaled"):
        return scaled(x.of[0], x.number * factor)
    return x if factor == 1 else Partial("scaled", (x,), factor)


def complete(x) -> Ref:
    """A view of a value, from a Mix that is a rotation or a pattern that may end here. The same one
    each time."""
    if isinstance(x, (Mix, Partial)):
        if not x.whole:
            x.whole.append(_completed(x))
        return x.whole[0]
    if not is_value(x):
        raise NotRaised(f"it takes {describe(x)}, which is no value of the engine")
    return x


def _completed(x) -> Ref:
    completion = COMPLETIONS.get("mix" if isinstance(x, Mix) else x.kind)
    if completion is None:
        raise NotRaised(f"it takes {describe(x)}, which is no value of the engine")
    return completion(x)


def rows_of(x) -> tuple[Ref, layout.Rows]:
    """A value's rows, all columns of them."""
    ref = complete(x)
    rows = layout.as_rows(ref)
    if rows is None or rows.begin != 0 or rows.count != ref.base.cols:
        raise NotRaised("the last dimension is not all columns of the rows of a product or a norm")
    return ref, rows


def columns_of(x) -> tuple[Ref, layout.Rows]:
    """A value's rows, a run of columns of them."""
    ref = complete(x)
    rows = layout.as_rows(ref)
    if rows is None:
        raise NotRaised("the last dimension is not a run of columns of the rows of a value")
    return ref, rows


def describe(x) -> str:
    if isinstance(x, Partial):
        return f"an unfinished pattern ({x.kind})"
    if isinstance(x, Mix):
        return "an unfinished rotary embedding"
    if is_parameter(x):
        return f"parameter '{x.base.name}' in a place of its own"
    if isinstance(x, Losses):
        return "a loss"
    return "a tensor that does not depend on parameters"


def close(a: float, b: float, tolerance: float = 1e-6) -> bool:
    return math.isclose(a, b, rel_tol=tolerance)
