"""Elementwise ops: sums, products and the patterns written with them (norms, activations)."""

from __future__ import annotations

import math

import torch

from . import attention, images, layout, products, rotary
from .layout import Ref
from .raising import (
    NotRaised,
    by_rows,
    close,
    columns_of,
    complete,
    completes,
    describe,
    handles,
    is_parameter,
    is_partial,
    is_value,
    rows_of,
    scaled,
)
from .values import Act, Add, Dropout, Gated, Losses, Mix, Partial

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


# ---- sums --------------------------------------------------------------------------------------


@handles("add", "__add__")
def add(raiser, node, a, b, alpha=1):
    if alpha != 1:
        b = times(raiser, node, b, alpha)
    if isinstance(a, Losses) and isinstance(b, Losses):
        return Losses(a.terms + b.terms)
    if any(is_partial(x, "detached") for x in (a, b)):
        return Partial("detached", (a, b))
    for x, y in ((a, b), (b, a)):
        number = raiser.number(y)
        if number is not None:
            return _plus_number(x, number)
        result = _plus_pattern(raiser, x, y)
        if result is not None:
            return result
    return _plus_rows(raiser, a, b)


def _plus_number(x, number):
    if number == 0:
        return x
    if number == 1 and is_parameter(x) and x.base.tensor.dim() == 1:
        return Partial("one_plus_weight", (x,))
    if is_partial(x, "mean_square"):
        return Partial("mean_square_eps", x.of, number)
    if number == 1 and (is_partial(x, "tanh_gelu") or is_partial(x, "erf")):
        return Partial("one_plus_" + x.kind, x.of)
    raise NotRaised(
        f"a number is added to {describe(x)}"
        if not isinstance(x, Losses)
        else "a number is added to the loss"
    )


def _plus_pattern(raiser, x, y):
    """x + y where that is part of a pattern; None where it is not."""
    if isinstance(x, Mix) or isinstance(y, Mix):
        return rotary.plus(x, y)
    if is_partial(x, "scores"):
        return attention.masked(x, *attention.mask_of(raiser, y))
    if is_value(x) and is_partial(y, "scaled") and is_partial(y.of[0], "cube"):
        if x.same_as(y.of[0].of[0]) and close(y.number, 0.044715):
            return Partial("gelu_argument", (x,))
    return None


def _plus_rows(raiser, a, b):
    for x, y in ((a, b), (b, a)):
        if is_parameter(y) and not is_parameter(x):
            return products.plus_parameter(raiser, complete(x), y)
    if not isinstance(a, (Ref, Partial, Mix)) or not isinstance(b, (Ref, Partial, Mix)):
        raise NotRaised("one side does not depend on parameters and is no mask of attention")
    (x, x_rows), (y, y_rows) = rows_of(a), rows_of(b)
    if x.shape != y.shape or (x_rows.index != y_rows.index).any() or x.base.cols != y.base.cols:
        raise NotRaised("different rows are added")
    return by_rows(Add(x.base, y.base), x, x.base.cols)


@handles("sub", "rsub")
def sub(raiser, node, a, b, alpha=1):
    if node.target._schema.name == "aten::rsub":
        a, b = b, a
    return add(raiser, node, a, times(raiser, node, b, -float(alpha)))


@handles("neg")
def neg(raiser, node, x):
    return times(raiser, node, x, -1.0)


# ---- products ----------------------------------------------------------------------------------


def times(raiser, node, x, factor: float):
    if isinstance(x, Mix):
        return rotary.times(x, torch.tensor(float(factor), dtype=torch.float64))
    if is_partial(x, "scores"):
        return attention.scaled_scores(x, factor)
    if is_partial(x, "detached"):
        return x
    if isinstance(x, (Ref, Partial, Losses)):
        return scaled(x, factor)
    if isinstance(x, torch.fx.Node):
        number = raiser.number(x)
        if number is not None:
            return number * factor
        raise NotRaised("a tensor that does not depend on parameters is subtracted or scaled here")
    return x * factor


@handles("mul", "multiply", "__mul__")
def mul(raiser, node, a, b):
    for x, y in ((a, b), (b, a)):
        number = raiser.number(y)
        if number is not None:
            return times(raiser, node, x, number)
    for x, y in ((a, b), (b, a)):
        result = _times_pattern(raiser, x, y)
        if result is not None:
            return result
    raise NotRaised(
        f"{describe(a)} times {describe(b)}"
        if not (is_value(a) and is_value(b))
        else "two values are multiplied, and neither is a gate (silu, gelu)"
    )


def _times_pattern(raiser, x, y):
    if isinstance(x, Losses) and raiser.is_scalar_input(y):
        return x.by(y, divides=False)
    if isinstance(y, torch.fx.Node):
        table = raiser.constant(y, exact=True)
        if table is None:
            raise NotRaised("one side depends on inputs of train_step")
        if is_partial(x, "complex"):
            return rotary.complex_product(x, table)
        if is_value(x) or isinstance(x, Mix) or is_partial(x, "scaled"):
            return rotary.times(x, table)
        return None
    if is_parameter(x):
        return products.times_weight(raiser, x, y)
    if is_partial(x, "one_plus_weight"):
        return products.times_weight(raiser, x.of[0], y, add_one=True)
    if is_partial(y, "rstd") and isinstance(x, (Partial, Mix)):
        x = complete(x)
    if is_value(x) and is_value(y):
        if x.same_as(y):
            return Partial("square", (x,))
        return _gated(raiser, x, y)
    if is_value(x) and is_partial(y, "rstd"):
        return _normed(x, y)
    if is_partial(x, "silu") and isinstance(y, (Ref, Partial, Mix)):
        return _gated_by(raiser, x, y)
    if is_value(x) and is_partial(y, "sigmoid"):
        return _sigmoid_product(raiser, x, y)
    return _gelu_product(raiser, x, y)


def _normed(x: Ref, rstd: Partial):
    if not x.same_as(rstd.of[0]):
        return None
    return Partial("rms_normed", (x,), rstd.number)


def _sigmoid_product(raiser, x: Ref, y: Partial):
    inner, factor = (
        (y.of[0].of[0], y.of[0].number) if is_partial(y.of[0], "scaled") else (y.of[0], 1)
    )
    if not (is_value(inner) and x.same_as(inner)):
        return None
    if factor == 1:
        return Partial("silu", (x,))
    return activation("quick_gelu", x) if close(factor, 1.702) else None


def _gelu_product(raiser, x, y):
    """0.5 x (1 + tanh(...)) and 0.5 x (1 + erf(x / sqrt 2)), in any order of the factors."""
    half = 1.0
    parts = []
    for part in (x, y):
        if is_partial(part, "scaled"):
            half, part = half * part.number, part.of[0]
        parts.append(part)
    for a, b in (parts, reversed(parts)):
        for kind, name in (("one_plus_tanh_gelu", "gelu_tanh"), ("one_plus_erf", "gelu")):
            if is_partial(b, kind) and is_value(a) and a.same_as(b.of[0]):
                product = Partial("twice_" + name, (a,))
                return _finish_gelu(raiser, product, half)
    return None


def _finish_gelu(raiser, product: Partial, factor: float):
    if factor == 0.5:
        return activation(product.kind.removeprefix("twice_"), product.of[0])
    raise NotRaised(f"a GELU has the factor {factor}, not 0.5")


@handles("div", "divide", "true_divide")
def div(raiser, node, a, b, rounding_mode=None):
    number = raiser.number(b)
    if rounding_mode is None and number is not None:
        return times(raiser, node, a, 1.0 / number)
    if rounding_mode is None and isinstance(a, Losses) and raiser.is_scalar_input(b):
        return a.by(b, divides=True)
    if rounding_mode is None and is_value(a) and is_partial(b, "std"):
        result = _normed(a, b)
        if result is not None:
            return result
    raise NotRaised("the divisor is no number")


# ---- functions ---------------------------------------------------------------------------------


@handles("pow")
def pow_(raiser, node, x, exponent):
    kind = {2: "square", 3: "cube"}.get(raiser.number(exponent))
    if kind == "square" and (is_partial(x, "scaled") or isinstance(x, Mix)):
        x = complete(x)
    if is_value(x) and kind:
        return Partial(kind, (x,))
    if raiser.number(exponent) in (-0.5, 0.5) and is_partial(x, "mean_square_eps"):
        return Partial("rstd" if exponent < 0 else "std", x.of, x.number)
    raise NotRaised(
        "only squares and cubes of values are known (norms, GELU)"
        if is_value(x)
        else f"it takes {describe(x)}"
    )


@handles("square")
def square(raiser, node, x):
    return pow_(raiser, node, x, 2)


@handles("mean")
def mean(raiser, node, x, dim=None, keepdim=False, dtype=None):
    if isinstance(x, Losses) and dim is None:
        return x
    last = len(node.args[0].meta["val"].shape) - 1
    if is_partial(x, "square") and keepdim and dim is not None:
        if [layout.wrap(d, last + 1) for d in ([dim] if isinstance(dim, int) else dim)] == [last]:
            return Partial("mean_square", x.of)
    if is_value(x) and dim is not None:
        return images.mean_rows(raiser, x, dim, keepdim)
    raise NotRaised(
        "only the mean of squares of the last dimension is known (RMS norm), and the "
        "mean of rows of a sequence"
    )


@handles("sum")
def sum_(raiser, node, x, *args, **kwargs):
    if isinstance(x, Losses):
        return x
    raise NotRaised("sums of values are not known")


_ONLY_RMS = "only the root of a mean of squares plus eps is known (RMS norm)"


@handles("rsqrt")
def rsqrt(raiser, node, x):
    if is_partial(x, "mean_square_eps"):
        return Partial("rstd", x.of, x.number)
    raise NotRaised(_ONLY_RMS)


@handles("sqrt")
def sqrt(raiser, node, x):
    if is_partial(x, "mean_square_eps"):
        return Partial("std", x.of, x.number)
    raise NotRaised(_ONLY_RMS)


@handles("reciprocal")
def reciprocal(raiser, node, x):
    if is_partial(x, "std"):
        return Partial("rstd", x.of, x.number)
    raise NotRaised(_ONLY_RMS)


@handles("tanh")
def tanh(raiser, node, x):
    if is_partial(x, "scaled") and is_partial(x.of[0], "gelu_argument"):
        if close(x.number, _SQRT_2_OVER_PI):
            return Partial("tanh_gelu", x.of[0].of)
    raise NotRaised("only the tanh of a GELU is known")


@handles("erf")
def erf(raiser, node, x):
    if is_partial(x, "scaled") and is_value(x.of[0]) and close(x.number, math.sqrt(0.5)):
        return Partial("erf", x.of)
    raise NotRaised("only the erf of a GELU is known")


@handles("sigmoid")
def sigmoid(raiser, node, x):
    if is_value(x) or is_partial(x, "scaled"):
        return Partial("sigmoid", (x,))
    raise NotRaised(f"it takes {describe(x)}")


@handles("silu")
def silu(raiser, node, x):
    return Partial("silu", (complete(x),))


@handles("gelu")
def gelu(raiser, node, x, approximate="none"):
    return activation("gelu_tanh" if approximate == "tanh" else "gelu", x)


@handles("relu")
def relu(raiser, node, x):
    return activation("relu", x)


def activation(kind: str, x) -> Ref:
    ref, rows = columns_of(x)
    return by_rows(Act(kind, ref.base, rows.begin, rows.count), ref, rows.count)


@completes("silu")
def _silu(x: Partial) -> Ref:
    return activation("silu", x.of[0])


def _gated(raiser, x: Ref, y: Ref):
    """act(gate) * up of two values, where one of them is an activation."""
    for gate, up in ((x, y), (y, x)):
        if isinstance(gate.base.made, Act):
            return _gate(raiser, gate.base.made, gate, up)
    return None


def _gated_by(raiser, silu_of: Partial, up):
    ref, rows = columns_of(silu_of.of[0])
    return _gate(raiser, Act("silu", ref.base, rows.begin, rows.count), ref, up)


def _gate(raiser, act: Act, gate: Ref, up):
    up, up_rows = columns_of(up)
    gate_rows = layout.as_rows(gate)
    if gate_rows is None or gate.shape != up.shape or (gate_rows.index != up_rows.index).any():
        raise NotRaised("a gate and what it gates are not the same rows")
    if gate_rows.count != up_rows.count:
        raise NotRaised("a gate and what it gates have not the same columns")
    made = Gated(act, up.base, up_rows.begin, up_rows.count)
    return by_rows(made, up, up_rows.count)


@handles("dropout", "native_dropout", "feature_dropout")
def dropout(raiser, node, x, p, train=True):
    if not train or p == 0:
        return x
    if is_partial(x, "probabilities"):
        raise NotRaised(
            f"dropout of attention weights (p = {p}); set it to 0: dropout of what "
            "attention gives is supported"
        )
    ref, _ = rows_of(x)
    return by_rows(Dropout(ref.base, float(p)), ref, ref.base.cols)


# ---- joining -----------------------------------------------------------------------------------


@handles("cat", "concat", "concatenate")
def cat(raiser, node, parts, dim=0):
    from .views import empty_constants_left_out

    parts = empty_constants_left_out(raiser, parts)
    if len(parts) == 1:
        return parts[0]
    rank = len(node.meta["val"].shape)
    if layout.wrap(dim, rank) == rank - 1:
        return rotary.joined(raiser, parts)
    return images.prefixed(raiser, node, parts, layout.wrap(dim, rank))


@handles("stack")
def stack(raiser, node, parts, dim=0):
    if all(isinstance(p, Losses) for p in parts):
        return Partial("stacked_losses", tuple(parts))
    rank = len(node.meta["val"].shape)
    if layout.wrap(dim, rank) == rank - 1:
        return rotary.joined(raiser, [rotary.with_last_axis(p) for p in parts])
    raise NotRaised("tensors are stacked")
