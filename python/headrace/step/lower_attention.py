"""Attention, with the rotary embeddings and norms of its queries and keys."""

from __future__ import annotations

from typing import Sequence

from . import values
from .events import unsupported
from .lower import MicroLowering, lowers
from .lower_products import side_by_side
from .values import Heads, Value


@lowers(values.Attention)
def attention(micro: MicroLowering, v: Value, made: values.Attention) -> str:
    q, k = made.q, made.k
    if made.mask is not None:
        micro.masks[made.mask.node] = made.mask
    rope, q, k = _taken_off(q, k, values.Rope, "rotary embeddings")
    norms, q, k = _taken_off(q, k, values.HeadNorm, "norms of heads")
    parts = [(h.value, h.columns()) for h in (q, k, made.v)]
    x = side_by_side(micro, parts, "queries, keys and values of attention")
    heads = {"heads": q.count, "kv_heads": k.count, "head_dim": q.size}
    cols = (q.count + 2 * k.count) * q.size
    if norms:
        x = _normalised(micro, norms, x, v.rows, cols, heads)
    if rope:
        x = _rotated(micro, rope, x, v, cols, heads)
    lse = {"name": ".lse", "shape": [v.rows, q.count], "dtype": "f32"}
    attrs = heads | {"scale": made.scale, "sequence": v.sequence}
    if not made.causal:
        attrs["causal"] = 0
    if made.window:
        attrs["window"] = made.window
    return micro.emit("hr.attention", micro.here("attention"), [x], v.rows, v.cols, attrs, [lse])


def _rotated(
    micro: MicroLowering, made: Sequence[values.Rope], x: str, v: Value, cols: int, heads: dict
) -> str:
    a, b = made
    if a.frequencies != b.frequencies or a.half != b.half:
        raise unsupported("compile_step: queries and keys are rotated by different frequencies")
    frequencies = micro.constant(a.frequencies)
    attrs = heads | {"sequence": v.sequence, "rope_half_split": int(a.half)}
    return micro.emit("hr.rope", micro.here("rope"), [x, frequencies], v.rows, cols, attrs)


def _normalised(
    micro: MicroLowering,
    norms: Sequence[values.HeadNorm],
    x: str,
    rows: int,
    cols: int,
    heads: dict,
) -> str:
    a, b = norms
    if a.layer != b.layer or a.eps != b.eps or a.add_one != b.add_one:
        raise unsupported("compile_step: queries and keys are normalised in different ways")
    runs = (heads["heads"] + heads["kv_heads"]) * (2 if a.layer else 1)
    stat = {"name": ".stat", "shape": [rows, runs], "dtype": "f32"}
    return micro.emit(
        "hr.qk_norm",
        micro.here("qk_norm"),
        [x, micro.weight(a.weight, heads["head_dim"]), micro.weight(b.weight, heads["head_dim"])],
        rows,
        cols,
        heads | {"act": int(a.layer), "eps": a.eps} | ({"add_one": 1} if a.add_one else {}),
        [stat],
    )


def _taken_off(q: Heads, k: Heads, kind: type, what: str):
    """(ops of q and k, what they were done to) where both have one, (None, q, k) where none has."""
    has = [isinstance(h.value.made, kind) for h in (q, k)]
    if not any(has):
        return None, q, k
    if not all(has) or not q.whole() or not k.whole():
        raise unsupported(f"compile_step: {what} of queries or keys alone are not supported")
    made = (q.value.made, k.value.made)
    return made, made[0].x, made[1].x


@lowers(values.Rope)
def rope(micro: MicroLowering, v: Value, made: values.Rope) -> str:
    raise unsupported(
        "compile_step: a rotary embedding of something else than queries and keys "
        "of attention is not supported"
    )


@lowers(values.HeadNorm)
def head_norm(micro: MicroLowering, v: Value, made: values.HeadNorm) -> str:
    raise unsupported(
        "compile_step: a norm of heads of something else than queries and keys of "
        "attention is not supported"
    )
