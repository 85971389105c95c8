"""Lowering: from raised values to the op list of one micro-batch (headrace/train/captured_step.h).

What the engine wants side by side is made by one product here: q | k | v, gate | up. Residuals are
added by the product before them where there is one. Only what the loss needs is written.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

import numpy as np
import torch

from . import values
from .capture import line_of
from .events import unsupported
from .values import Act, Add, Heads, Linear, Loss, Parameter, Value

_ACT_ALONE = {"gelu_tanh": 2, "gelu": 3, "relu": 4, "silu": 5, "quick_gelu": 7}
_ACT_GATED = {"silu": 0, "gelu_tanh": 1, "gelu": 6}


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
        micro = _MicroLowering(self)
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


class _MicroLowering:
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
            self.names[key] = getattr(self, "_" + type(v.made).__name__.lower())(v, v.made)
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

    # ---- one method an op

    def _embed(self, v: Value, made: values.Embed) -> str:
        if self.tokens not in (None, made.tokens):
            raise unsupported(
                "compile_step: two tensors of tokens are embedded for one loss, which is not "
                f"supported; positions must not be an argument{line_of(made.tokens)}"
            )
        self.tokens, self.token_rows, self.sequence = made.tokens, v.rows, v.sequence
        if made.padding >= 0:
            self.padding.append((made.padding, made.tokens))
        attrs = {"sequence": v.sequence}
        inputs = [self.parameter(made.table)]
        if made.positions is not None:
            inputs.append(self.parameter(made.positions))
            attrs["positions"] = 1
            if made.first:
                attrs["first"] = made.first
        return self.emit("hr.embed", self.module(made.table), inputs, v.rows, v.cols, attrs)

    def _input(self, v: Value, made: values.Input) -> str:
        name = self.fresh("input" if not self.inputs else f"input.{len(self.inputs)}")
        self.inputs[name] = v
        return name

    def _patches(self, v: Value, made: values.Patches) -> str:
        attrs = {"channels": made.channels, "height": made.height, "patch": made.patch}
        return self.emit("hr.patches", "patches", [self.of(made.x)], v.rows, v.cols, attrs)

    def _prefix(self, v: Value, made: values.Prefix) -> str:
        inputs = [self.of(made.x)] + [self.parameter(w) for w in made.weights]
        attrs = {"sequence": v.sequence, "weights": len(made.weights)}
        if made.positions is not None:
            inputs.append(self.parameter(made.positions))
            attrs["positions"] = 1
        return self.emit("hr.prefix", "prefix", inputs, v.rows, v.cols, attrs)

    def _select(self, v: Value, made: values.Select) -> str:
        attrs = {"sequence": made.x.sequence, "first": made.first}
        return self.emit("hr.select", self.here("select"), [self.of(made.x)], v.rows, v.cols, attrs)

    def _meanrows(self, v: Value, made: values.MeanRows) -> str:
        attrs = {"sequence": made.x.sequence, "first": made.first}
        return self.emit(
            "hr.mean_rows", self.here("mean"), [self.of(made.x)], v.rows, v.cols, attrs
        )

    def _linear(self, v: Value, made: Linear) -> str:
        return self.products([v], None)

    def products(self, parts: Sequence[Value], residual: Optional[str]) -> str:
        """Linear values of one x side by side, + residual."""
        made = [p.made for p in parts]
        first = made[0]
        biases = [m.bias for m in made if m.bias is not None]
        inputs = [self.of(first.x)] + [self.parameter(m.weight) for m in made]
        inputs += [self.parameter(b) for b in biases]
        if residual is not None:
            inputs.append(residual)
        attrs = {"weights": len(made), "scale": first.scale}
        if biases:
            attrs["bias"] = 1
        name = "+".join(
            [self.module(made[0].weight)]
            + [m.weight.name.removesuffix(".weight").rsplit(".", 1)[-1] for m in made[1:]]
        )
        return self.emit(
            "hr.linear", name, inputs, parts[0].rows, sum(p.cols for p in parts), attrs
        )

    def _add(self, v: Value, made: Add) -> str:
        for x, residual in ((made.b, made.a), (made.a, made.b)):
            if self.fuses(x):
                return self.plus(x, self.of(residual))
        name = self.here("add")
        return self.emit("hr.add", name, [self.of(made.a), self.of(made.b)], v.rows, v.cols, {})

    def fuses(self, v: Value) -> bool:
        """Whether a product that makes it can add something to it."""
        if not self.alone(v):
            return False
        if isinstance(v.made, Add):
            return any(self.fuses(x) for x in (v.made.a, v.made.b))
        return isinstance(v.made, Linear)

    def plus(self, v: Value, residual: str) -> str:
        if isinstance(v.made, Linear):
            return self.products([v], residual)
        a, b = v.made.a, v.made.b
        if self.fuses(b):
            inner = (
                self.plus(a, residual)
                if self.fuses(a)
                else self.emit(
                    "hr.add", self.here("add"), [self.of(a), residual], v.rows, v.cols, {}
                )
            )
            return self.plus(b, inner)
        return self.plus(
            a, self.emit("hr.add", self.here("add"), [self.of(b), residual], v.rows, v.cols, {})
        )

    def _norm(self, v: Value, made: values.Norm) -> str:
        x = self.of(made.x)
        inputs = [x, self.weight(made.weight, v.cols)]
        if made.bias is not None:
            inputs.append(self.parameter(made.bias))
        stat = {"name": ".stat", "shape": [v.rows, 2 if made.layer else 1], "dtype": "f32"}
        name = self.here("norm") if made.weight is None else self.module(made.weight)
        attrs = {"act": int(made.layer), "eps": made.eps}
        if made.add_one:
            attrs["add_one"] = 1
        return self.emit("hr.norm", name, inputs, v.rows, v.cols, attrs, [stat])

    def _scale(self, v: Value, made: values.Scale) -> str:
        inputs = [self.of(made.x)]
        if made.weight is not None:
            inputs.append(self.parameter(made.weight))
        return self.emit(
            "hr.scale", self.here("scale"), inputs, v.rows, v.cols, {"scale": made.factor}
        )

    def _dropout(self, v: Value, made: values.Dropout) -> str:
        x = self.of(made.x)
        self.streams += 1
        return self.emit(
            "hr.dropout",
            self.here("dropout"),
            [x],
            v.rows,
            v.cols,
            {"probability": made.probability, "stream": self.streams},
        )

    def _act(self, v: Value, made: Act) -> str:
        if made.begin != 0 or made.count != made.x.cols:
            raise unsupported(
                f"compile_step: {made.kind} of some of the columns of a product is "
                "supported as a gate only"
            )
        x = self.of(made.x)
        return self.emit(
            "hr.act", self.here(made.kind), [x], v.rows, v.cols, {"act": _ACT_ALONE[made.kind]}
        )

    def _gated(self, v: Value, made: values.Gated) -> str:
        act = made.act
        if act.kind not in _ACT_GATED:
            raise unsupported(f"compile_step: {act.kind} as a gate is not supported")
        x = self.side_by_side(
            [
                (act.x, np.arange(act.begin, act.begin + act.count)),
                (made.up, np.arange(made.begin, made.begin + made.count)),
            ],
            "a gate and what it gates",
        )
        return self.emit(
            "hr.act", self.here(act.kind), [x], v.rows, v.cols, {"act": _ACT_GATED[act.kind]}
        )

    def _rope(self, v: Value, made: values.Rope) -> str:
        raise unsupported(
            "compile_step: a rotary embedding of something else than queries and keys "
            "of attention is not supported"
        )

    def _headnorm(self, v: Value, made: values.HeadNorm) -> str:
        raise unsupported(
            "compile_step: a norm of heads of something else than queries and keys of "
            "attention is not supported"
        )

    def _attention(self, v: Value, made: values.Attention) -> str:
        q, k = made.q, made.k
        if made.mask is not None:
            self.masks[made.mask.node] = made.mask
        rope, q, k = _taken_off(q, k, values.Rope, "rotary embeddings")
        norms, q, k = _taken_off(q, k, values.HeadNorm, "norms of heads")
        parts = [(h.value, h.columns()) for h in (q, k, made.v)]
        x = self.side_by_side(parts, "queries, keys and values of attention")
        heads = {"heads": q.count, "kv_heads": k.count, "head_dim": q.size}
        cols = (q.count + 2 * k.count) * q.size
        if norms:
            x = self.head_norms(norms, x, v.rows, cols, heads)
        if rope:
            x = self.rope(rope, x, v, cols, heads)
        lse = {"name": ".lse", "shape": [v.rows, q.count], "dtype": "f32"}
        attrs = heads | {"scale": made.scale, "sequence": v.sequence}
        if not made.causal:
            attrs["causal"] = 0
        if made.window:
            attrs["window"] = made.window
        return self.emit("hr.attention", self.here("attention"), [x], v.rows, v.cols, attrs, [lse])

    def rope(self, made: Sequence[values.Rope], x: str, v: Value, cols: int, heads: dict) -> str:
        a, b = made
        if a.frequencies != b.frequencies or a.half != b.half:
            raise unsupported("compile_step: queries and keys are rotated by different frequencies")
        frequencies = self.constant(a.frequencies)
        attrs = heads | {"sequence": v.sequence, "rope_half_split": int(a.half)}
        return self.emit("hr.rope", self.here("rope"), [x, frequencies], v.rows, cols, attrs)

    def head_norms(
        self, norms: Sequence[values.HeadNorm], x: str, rows: int, cols: int, heads: dict
    ) -> str:
        a, b = norms
        if a.layer != b.layer or a.eps != b.eps or a.add_one != b.add_one:
            raise unsupported("compile_step: queries and keys are normalised in different ways")
        runs = (heads["heads"] + heads["kv_heads"]) * (2 if a.layer else 1)
        stat = {"name": ".stat", "shape": [rows, runs], "dtype": "f32"}
        return self.emit(
            "hr.qk_norm",
            self.here("qk_norm"),
            [x, self.weight(a.weight, heads["head_dim"]), self.weight(b.weight, heads["head_dim"])],
            rows,
            cols,
            heads | {"act": int(a.layer), "eps": a.eps} | ({"add_one": 1} if a.add_one else {}),
            [stat],
        )

    # ---- columns next to one another

    def side_by_side(self, parts: Sequence[tuple[Value, np.ndarray]], what: str) -> str:
        """One matrix of these columns of values, one part after another."""
        whole: list[Value] = []
        for value, _ in parts:
            if not any(value is v for v in whole):
                whole.append(value)
        begins = dict(zip(map(id, whole), np.cumsum([0] + [v.cols for v in whole])))
        columns = np.concatenate([begins[id(value)] + chosen for value, chosen in parts])
        if len(np.unique(columns)) != len(columns):
            raise unsupported(
                f"compile_step: {what} are the same columns of a product, which is not supported"
            )
        key = tuple(id(v) for v in whole)
        if len(whole) > 1 and key not in self.names:
            self.kept.append(whole)
            self.names[key] = self.joined(whole, what)
        name = self.of(whole[0]) if len(whole) == 1 else self.names[key]
        if np.array_equal(columns, np.arange(sum(v.cols for v in whole))):
            return name
        index = self.constant(tuple(float(c) for c in columns))
        return self.emit(
            "hr.columns", self.here("columns"), [name, index], whole[0].rows, len(columns), {}
        )

    def joined(self, whole: Sequence[Value], what: str) -> str:
        """One product for all, then what is added to each (LoRA) at its columns."""
        chains = [_chain(v) for v in whole]
        if any(c is None for c in chains):
            raise unsupported(
                f"compile_step: {what} are not made by products of the same rows, which "
                "is not supported"
            )
        bases = [c[0] for c in chains]
        first = bases[0].made
        for base in bases:
            if base.made.x is not first.x or base.made.scale != first.scale:
                raise unsupported(
                    f"compile_step: {what} are products of different values, which is not supported"
                )
            if (base.made.bias is None) != (first.bias is None):
                raise unsupported(
                    f"compile_step: {what} are products of which some have biases and "
                    "some have none, which is not supported"
                )
        name = self.products(bases, None)
        rows, cols = whole[0].rows, sum(v.cols for v in whole)
        begin = 0
        for value, (_, added) in zip(whole, chains):
            for extra in added:
                made = extra.made
                inputs = [self.of(made.x), self.parameter(made.weight), name]
                name = self.emit(
                    "hr.linear",
                    self.module(made.weight),
                    inputs,
                    rows,
                    cols,
                    {"weights": 1, "scale": made.scale, "col_begin": begin},
                )
            begin += value.cols
        return name


def _chain(v: Value) -> Optional[tuple[Value, list[Value]]]:
    """(product, products without bias that are added to it), or None."""
    if isinstance(v.made, Linear):
        return v, []
    if isinstance(v.made, Add):
        for a, b in ((v.made.a, v.made.b), (v.made.b, v.made.a)):
            inner = _chain(a)
            if inner and isinstance(b.made, Linear) and b.made.bias is None:
                return inner[0], inner[1] + [b]
    return None


def _taken_off(q: Heads, k: Heads, kind: type, what: str):
    """(ops of q and k, what they were done to) where both have one, (None, q, k) where none has."""
    has = [isinstance(h.value.made, kind) for h in (q, k)]
    if not any(has):
        return None, q, k
    if not all(has) or not q.whole() or not k.whole():
        raise unsupported(f"compile_step: {what} of queries or keys alone are not supported")
    made = (q.value.made, k.value.made)
    return made, made[0].x, made[1].x


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
