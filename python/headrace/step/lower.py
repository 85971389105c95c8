"""Lowering: from raised values to the op list of one micro-batch (headrace/train/captured_step.h).

What the engine wants side by side is made by one product: q | k | v, gate | up. Residuals are added
by the product before them where there is one. Only what the loss needs is written. Here is what all
ops have in common; lower_ops.py, lower_products.py and lower_attention.py have a function for each.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Sequence

import torch

from . import values
from .values import Add, Loss, Parameter, Value

LOWERS: dict[type, Callable] = {}


def lowers(made: type):
    """Registers what lowers values that are made so. It gets (micro, value, value.made)."""

    def register(function):
        LOWERS[made] = function
        return function

    return register


@dataclasses.dataclass
class MicroBatch:
    ops: list[dict[str, Any]]
    tokens: Optional[torch.fx.Node]
    token_rows: int
    sequence: int  # of the tokens
    inputs: dict[str, values.Value]  # of floats, by name
    padding: list[tuple[int, torch.fx.Node]]  # rows of tables that torch gives no gradient
    masks: list[values.Mask]
    weights: Optional[str]  # input with the weights of the rows of the loss


class Lowering:
    """Parameters and constants are shared by all micro-batches; each is lowered by run()."""

    def __init__(self):
        self.parameters: dict[str, Parameter] = {}
        self.constants: dict[tuple[float, ...], str] = {}

    def run(self, loss: Loss, scale: float, own_mean: bool, weighted: bool) -> MicroBatch:
        """``weighted``: gradients of rows are multiplied by an input of the step, in the place of
        the mean and of ``scale``."""
        micro = MicroLowering(self)
        micro.loss(loss, scale, own_mean, weighted)
        return MicroBatch(
            micro.ops,
            micro.tokens,
            micro.token_rows,
            micro.sequence,
            micro.inputs,
            micro.padding,
            list(micro.masks.values()),
            micro.weights,
        )


class MicroLowering:
    """The ops of one micro-batch while they are written."""

    def __init__(self, shared: Lowering):
        self.shared = shared
        self.ops: list[dict[str, Any]] = []
        self.tokens: Optional[torch.fx.Node] = None
        self.token_rows, self.sequence = 0, 1
        self.inputs: dict[str, Value] = {}
        self.padding: list[tuple[int, torch.fx.Node]] = []
        self.masks: dict[torch.fx.Node, values.Mask] = {}
        self.weights: Optional[str] = None
        self.names: dict[Any, str] = {}  # of values (and of joined ones, by their parts)
        self.kept: list[Any] = []  # so that ids in keys of names stay theirs
        self.used: set[str] = {"loss", "clip"}  # names of the engine's own
        self.users: dict[int, int] = {}
        self.streams = 0
        self.at = ""  # module that names of ops begin with

    # ---- writing

    def emit(
        self,
        kernel: str,
        name: str,
        inputs: Sequence[str],
        rows: int,
        cols: int,
        attrs: dict[str, float],
        more: Sequence[dict] = (),
    ) -> str:
        name = self.fresh(name)
        out = [{"name": name, "shape": [rows, cols]}, *more]
        for extra in out[1:]:
            extra["name"] = name + extra["name"]
        self.ops.append(
            {"op": kernel, "name": name, "in": list(inputs), "out": out, "attrs": attrs}
        )
        return name

    def fresh(self, name: str) -> str:
        unique, n = name, 1
        while unique in self.used or unique in self.shared.parameters:
            n += 1
            unique = f"{name}.{n}"
        self.used.add(unique)
        return unique

    def parameter(self, p: Parameter) -> str:
        self.shared.parameters[p.name] = p
        return p.name

    def weight(self, p: Optional[Parameter], size: int) -> str:
        """Of a norm."""
        return self.constant((1.0,) * size) if p is None else self.parameter(p)

    def constant(self, numbers: tuple[float, ...]) -> str:
        names = self.shared.constants
        return names.setdefault(numbers, f"headrace.constant.{len(names)}")

    def module(self, p: Parameter) -> str:
        self.at = p.name.rsplit(".", 2)[0] if p.name.count(".") > 1 else ""
        name = p.name.removesuffix(".weight")
        return name if name != p.name else name + ".out"

    def here(self, what: str) -> str:
        return f"{self.at}.{what}" if self.at else what

    # ---- values

    def of(self, v: Value) -> str:
        key = id(v)
        if key not in self.names:
            # Refs that scale or copy made the same thing twice share the made op, not the value.
            self.kept.append(v)
            self.names[key] = LOWERS[type(v.made)](self, v, v.made)
        return self.names[key]

    def loss(self, loss: Loss, scale: float, own_mean: bool, weighted: bool) -> None:
        for v in self.count(loss.x):
            if self.users.get(id(v), 0) > 1:  # in order, so that of() need not go deep
                self.of(v)
        x = self.of(loss.x)
        inputs = [x, self.parameter(loss.weight)]
        attrs: dict[str, float] = {}
        if loss.bias is not None:
            inputs.append(self.parameter(loss.bias))
            attrs["bias"] = 1
        if weighted:
            self.weights = self.fresh("loss_weights")
            inputs.append(self.weights)
            attrs["weights"] = 1
        elif scale != 1:
            attrs["scale"] = scale
        if own_mean and not weighted:
            attrs["own_mean"] = 1
        if loss.smoothing:
            attrs["smoothing"] = loss.smoothing
        self.emit("hr.loss", "losses", inputs, loss.x.rows, 1, attrs)
        self.ops[-1]["out"][0]["dtype"] = "f32"

    def count(self, root: Value) -> list[Value]:
        """Notes the users of each value that leads to root. All of them, operands first."""
        order, seen, todo = [], set(), [(root, False)]
        while todo:
            v, done = todo.pop()
            if done:
                order.append(v)
            elif id(v) not in seen:
                seen.add(id(v))
                todo.append((v, True))
                for x in _operands(v.made):
                    self.users[id(x)] = self.users.get(id(x), 0) + 1
                    todo.append((x, False))
        return order

    def alone(self, v: Value) -> bool:
        return self.users.get(id(v), 0) <= 1 and id(v) not in self.names


def _operands(made) -> list[Value]:
    if isinstance(made, values.Attention):
        return [h.value for h in (made.q, made.k, made.v)]
    if isinstance(made, (values.Rope, values.HeadNorm)):
        return [made.x.value]
    if isinstance(made, values.Gated):
        return [made.act.x, made.up]
    if isinstance(made, Add):
        return [made.a, made.b]
    return [made.x] if isinstance(getattr(made, "x", None), Value) else []
