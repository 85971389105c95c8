"""Products, with what they add, and columns of several products next to one another."""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

from .events import unsupported
from .lower import MicroLowering, lowers
from .values import Add, Linear, Value


@lowers(Linear)
def linear(micro: MicroLowering, v: Value, made: Linear) -> str:
    return products(micro, [v], None)


def products(micro: MicroLowering, parts: Sequence[Value], residual: Optional[str]) -> str:
    """Linear values of one x side by side, + residual."""
    made = [p.made for p in parts]
    first = made[0]
    biases = [m.bias for m in made if m.bias is not None]
    inputs = [micro.of(first.x)] + [micro.parameter(m.weight) for m in made]
    inputs += [micro.parameter(b) for b in biases]
    if residual is not None:
        inputs.append(residual)
    attrs = {"weights": len(made), "scale": first.scale}
    if biases:
        attrs["bias"] = 1
    name = "+".join(
        [micro.module(made[0].weight)]
        + [m.weight.name.removesuffix(".weight").rsplit(".", 1)[-1] for m in made[1:]]
    )
    cols = sum(p.cols for p in parts)
    return micro.emit("hr.linear", name, inputs, parts[0].rows, cols, attrs)


@lowers(Add)
def add(micro: MicroLowering, v: Value, made: Add) -> str:
    for x, residual in ((made.b, made.a), (made.a, made.b)):
        if fuses(micro, x):
            return plus(micro, x, micro.of(residual))
    name = micro.here("add")
    return micro.emit("hr.add", name, [micro.of(made.a), micro.of(made.b)], v.rows, v.cols, {})


def fuses(micro: MicroLowering, v: Value) -> bool:
    """Whether a product that makes it can add something to it."""
    if not micro.alone(v):
        return False
    if isinstance(v.made, Add):
        return any(fuses(micro, x) for x in (v.made.a, v.made.b))
    return isinstance(v.made, Linear)


def plus(micro: MicroLowering, v: Value, residual: str) -> str:
    if isinstance(v.made, Linear):
        return products(micro, [v], residual)
    a, b = v.made.a, v.made.b
    if not fuses(micro, b):
        a, b = b, a
    if fuses(micro, a):
        return plus(micro, b, plus(micro, a, residual))
    operands = [micro.of(a), residual]
    return plus(micro, b, micro.emit("hr.add", micro.here("add"), operands, v.rows, v.cols, {}))


# ---- columns next to one another ---------------------------------------------------------------


def side_by_side(micro: MicroLowering, parts: Sequence[tuple[Value, np.ndarray]], what: str) -> str:
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
    if len(whole) > 1 and key not in micro.names:
        micro.kept.append(whole)
        micro.names[key] = joined(micro, whole, what)
    name = micro.of(whole[0]) if len(whole) == 1 else micro.names[key]
    if np.array_equal(columns, np.arange(sum(v.cols for v in whole))):
        return name
    index = micro.constant(tuple(float(c) for c in columns))
    return micro.emit(
        "hr.columns", micro.here("columns"), [name, index], whole[0].rows, len(columns), {}
    )


def joined(micro: MicroLowering, whole: Sequence[Value], what: str) -> str:
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
    name = products(micro, bases, None)
    rows, cols = whole[0].rows, sum(v.cols for v in whole)
    begin = 0
    for value, (_, added) in zip(whole, chains):
        for extra in added:
            made = extra.made
            inputs = [micro.of(made.x), micro.parameter(made.weight), name]
            name = micro.emit(
                "hr.linear",
                micro.module(made.weight),
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
