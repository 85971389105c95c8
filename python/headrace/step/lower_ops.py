"""Ops that are lowered one to one: embeddings, inputs, rows of sequences, norms, activations."""

from __future__ import annotations

import numpy as np

from . import values
from .capture import line_of
from .events import unsupported
from .lower import MicroLowering, lowers
from .lower_products import side_by_side
from .values import Act, Value

_ACT_ALONE = {"gelu_tanh": 2, "gelu": 3, "relu": 4, "silu": 5, "quick_gelu": 7}
_ACT_GATED = {"silu": 0, "gelu_tanh": 1, "gelu": 6}


@lowers(values.Embed)
def embed(micro: MicroLowering, v: Value, made: values.Embed) -> str:
    if micro.tokens not in (None, made.tokens):
        raise unsupported(
            "compile_step: two tensors of tokens are embedded for one loss, which is not "
            f"supported; positions must not be an argument{line_of(made.tokens)}"
        )
    micro.tokens, micro.token_rows, micro.sequence = made.tokens, v.rows, v.sequence
    if made.padding >= 0:
        micro.padding.append((made.padding, made.tokens))
    attrs = {"sequence": v.sequence}
    inputs = [micro.parameter(made.table)]
    if made.positions is not None:
        inputs.append(micro.parameter(made.positions))
        attrs["positions"] = 1
        if made.first:
            attrs["first"] = made.first
    return micro.emit("hr.embed", micro.module(made.table), inputs, v.rows, v.cols, attrs)


@lowers(values.Input)
def input_(micro: MicroLowering, v: Value, made: values.Input) -> str:
    name = micro.fresh("input" if not micro.inputs else f"input.{len(micro.inputs)}")
    micro.inputs[name] = v
    return name


@lowers(values.Patches)
def patches(micro: MicroLowering, v: Value, made: values.Patches) -> str:
    attrs = {"channels": made.channels, "height": made.height, "patch": made.patch}
    return micro.emit("hr.patches", "patches", [micro.of(made.x)], v.rows, v.cols, attrs)


@lowers(values.Prefix)
def prefix(micro: MicroLowering, v: Value, made: values.Prefix) -> str:
    inputs = [micro.of(made.x)] + [micro.parameter(w) for w in made.weights]
    attrs = {"sequence": v.sequence, "weights": len(made.weights)}
    if made.positions is not None:
        inputs.append(micro.parameter(made.positions))
        attrs["positions"] = 1
    return micro.emit("hr.prefix", "prefix", inputs, v.rows, v.cols, attrs)


@lowers(values.Select)
def select(micro: MicroLowering, v: Value, made: values.Select) -> str:
    attrs = {"sequence": made.x.sequence, "first": made.first}
    return micro.emit("hr.select", micro.here("select"), [micro.of(made.x)], v.rows, v.cols, attrs)


@lowers(values.MeanRows)
def mean_rows(micro: MicroLowering, v: Value, made: values.MeanRows) -> str:
    attrs = {"sequence": made.x.sequence, "first": made.first}
    return micro.emit(
        "hr.mean_rows", micro.here("mean"), [micro.of(made.x)], v.rows, v.cols, attrs
    )


@lowers(values.Norm)
def norm(micro: MicroLowering, v: Value, made: values.Norm) -> str:
    x = micro.of(made.x)
    inputs = [x, micro.weight(made.weight, v.cols)]
    if made.bias is not None:
        inputs.append(micro.parameter(made.bias))
    stat = {"name": ".stat", "shape": [v.rows, 2 if made.layer else 1], "dtype": "f32"}
    name = micro.here("norm") if made.weight is None else micro.module(made.weight)
    attrs = {"act": int(made.layer), "eps": made.eps}
    if made.add_one:
        attrs["add_one"] = 1
    return micro.emit("hr.norm", name, inputs, v.rows, v.cols, attrs, [stat])


@lowers(values.Scale)
def scale(micro: MicroLowering, v: Value, made: values.Scale) -> str:
    inputs = [micro.of(made.x)]
    if made.weight is not None:
        inputs.append(micro.parameter(made.weight))
    return micro.emit(
        "hr.scale", micro.here("scale"), inputs, v.rows, v.cols, {"scale": made.factor}
    )


@lowers(values.Dropout)
def dropout(micro: MicroLowering, v: Value, made: values.Dropout) -> str:
    x = micro.of(made.x)
    micro.streams += 1
    return micro.emit(
        "hr.dropout",
        micro.here("dropout"),
        [x],
        v.rows,
        v.cols,
        {"probability": made.probability, "stream": micro.streams},
    )


@lowers(Act)
def act(micro: MicroLowering, v: Value, made: Act) -> str:
    if made.begin != 0 or made.count != made.x.cols:
        raise unsupported(
            f"compile_step: {made.kind} of some of the columns of a product is "
            "supported as a gate only"
        )
    x = micro.of(made.x)
    return micro.emit(
        "hr.act", micro.here(made.kind), [x], v.rows, v.cols, {"act": _ACT_ALONE[made.kind]}
    )


@lowers(values.Gated)
def gated(micro: MicroLowering, v: Value, made: values.Gated) -> str:
    act = made.act
    if act.kind not in _ACT_GATED:
        raise unsupported(f"compile_step: {act.kind} as a gate is not supported")
    x = side_by_side(
        micro,
        [
            (act.x, np.arange(act.begin, act.begin + act.count)),
            (made.up, np.arange(made.begin, made.begin + made.count)),
        ],
        "a gate and what it gates",
    )
    return micro.emit(
        "hr.act", micro.here(act.kind), [x], v.rows, v.cols, {"act": _ACT_GATED[act.kind]}
    )
