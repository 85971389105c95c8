"""Attention: scaled_dot_product_attention, and softmax(q k^T) v written out, with its masks."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import numpy as np
import torch

from . import layout, rotary
from .raising import NotRaised, complete, handles, is_partial
from .values import Attention, Heads, Mask, Partial, Value

# What a mask adds to scores that are to be left out: e^-1e4 is 0 in f32 beside any score.
_OUT = -1e4


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    q: Heads
    k: Heads
    scale: float
    visible: Optional[tuple[bool, int]] = None  # (causal, window); None: not masked yet
    mask: Optional[Mask] = None  # that depends on inputs


def _heads(x, what: str) -> tuple[Heads, float]:
    """Heads of [B, heads, S, d], and a factor that they are scaled by."""
    factor = 1.0
    if is_partial(x, "scaled") and not is_partial(x.of[0], "scaled"):
        factor, x = x.number, x.of[0]
    ref = complete(x)
    heads = rotary.find_heads(ref)
    if heads is None:
        raise NotRaised(f"{what} of attention are not [B, heads, S, d] of whole rows of a product")
    return heads, factor


def seen_by(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask lets a position be seen: True, or a number to be added that is 0."""
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask == 0) | (mask <= _OUT)).all()):
        raise NotRaised("a mask of attention adds numbers other than 0 and minus infinity")
    return mask == 0


def pattern_of(causal: bool, window: int, rows: int) -> np.ndarray:
    """Where position i sees position j."""
    away = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    seen = away >= 0 if causal else np.ones_like(away, dtype=bool)
    return seen & (np.abs(away) < window) if window else seen


def visible_of(seen: torch.Tensor) -> tuple[bool, int]:
    """(causal, window) of a constant mask [.., S, S]."""
    while seen.dim() > 2:
        if not bool((seen == seen[:1]).all()):
            raise NotRaised("a mask of attention differs between sequences or heads")
        seen = seen[0]
    rows = seen.shape[-1]
    seen = seen.expand(rows, rows).numpy()
    if seen.all():
        return False, 0
    away = np.arange(rows)[:, None] - np.arange(rows)[None, :]
    causal = not seen[away < 0].any()
    window = int(np.where(seen, away, 0).max()) + 1
    for width in (0, window):
        if np.array_equal(pattern_of(causal, width, rows), seen):
            return causal, width
    raise NotRaised("a mask of attention is neither causal nor a causal window nor full")


def mask_of(raiser, node) -> tuple[tuple[bool, int], Optional[Mask]]:
    """What a mask that is a node lets be seen. One that depends on inputs is looked at in the first
    batch: what any of its sequences sees, between the first position that sees itself and the last
    one."""
    constant = raiser.constant(node)
    if constant is not None:
        return visible_of(seen_by(constant)), None
    if not isinstance(node, torch.fx.Node):
        raise NotRaised("a mask of attention depends on parameters")
    if raiser.parts.changed_after(node, raiser.node):
        raise NotRaised("a mask of attention is changed in place afterwards")
    if node not in raiser.masks:
        seen = seen_by(raiser.first_value(node))
        rows = seen.shape[-1]
        seen = seen.reshape(-1, seen.shape[-2], rows).any(0).expand(rows, rows)
        itself = seen.diagonal().nonzero()
        if len(itself) == 0:
            raise NotRaised("a mask of attention lets no position see itself")
        real = slice(int(itself.min()), int(itself.max()) + 1)
        raiser.masks[node] = Mask(node, *visible_of(seen[real, real]))
    mask = raiser.masks[node]
    return (mask.causal, mask.window), mask


def _attention(scores: Scores, v: Heads):
    causal, window = scores.visible or (False, 0)
    q, k = scores.q, scores.k
    if (
        q.repeated != 1
        or q.size != k.size
        or k.size != v.size
        or k.count != v.count
        or q.count % k.count
        or k.count * k.repeated not in (q.count, k.count)
        or v.count * v.repeated not in (q.count, v.count)
    ):
        raise NotRaised(
            f"attention of {q.count} heads of {q.size} to {k.count} keys of {k.size} and "
            f"{v.count} values of {v.size}"
        )
    if len({(h.value.rows, h.value.sequence) for h in (q, k, v)}) != 1:
        raise NotRaised("attention between sequences of different lengths")
    made = Attention(q, k, v, scores.scale, causal, window, scores.mask)
    value = Value(made, q.value.rows, q.count * q.size, q.value.sequence)
    sequences = value.rows // value.sequence
    rows = layout.contiguous(value, [sequences, value.sequence, q.count, q.size])
    return layout.transpose(rows, 1, 2)


@handles("scaled_dot_product_attention")
def scaled_dot_product_attention(
    raiser,
    node,
    q,
    k,
    v,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    if dropout_p:
        raise NotRaised(
            f"dropout of attention weights (p = {dropout_p}); set it to 0: dropout of "
            "what attention gives is supported"
        )
    (q, factor_q), (k, factor_k) = _heads(q, "queries"), _heads(k, "keys")
    v, factor_v = _heads(v, "values")
    if factor_v != 1:
        raise NotRaised("values of attention are scaled")
    if not enable_gqa and k.count * k.repeated != q.count:
        raise NotRaised("queries and keys have different numbers of heads")
    scale = 1 / math.sqrt(q.size) if scale is None else scale
    visible, mask = (bool(is_causal), 0), None
    if attn_mask is not None:
        visible, mask = mask_of(raiser, attn_mask)
    return _attention(Scores(q, k, scale * factor_q * factor_k, visible, mask), v)


# ---- written out -------------------------------------------------------------------------------


def scores_of(q, k_transposed) -> Partial:
    """q k^T of [B, heads, S, d] and [B, heads, d, S]."""
    if is_partial(k_transposed, "scaled"):
        k = dataclasses.replace(
            k_transposed, of=(layout.transpose(complete(k_transposed.of[0]), -2, -1),), whole=[]
        )
    else:
        k = layout.transpose(complete(k_transposed), -2, -1)
    (q, factor_q), (k, factor_k) = _heads(q, "queries"), _heads(k, "keys")
    return Partial("scores", (Scores(q, k, factor_q * factor_k),))


def scaled_scores(x: Partial, factor: float) -> Partial:
    scores = x.of[0]
    if scores.visible is not None and factor <= 0:
        raise NotRaised("masked scores are scaled by a number below 0")
    return Partial("scores", (dataclasses.replace(scores, scale=scores.scale * factor),))


def masked(x: Partial, visible: tuple[bool, int], mask: Optional[Mask] = None) -> Partial:
    scores = x.of[0]
    if scores.visible is not None and scores.visible != visible:
        raise NotRaised("attention is masked twice, in different ways")
    changed = dataclasses.replace(scores, visible=visible, mask=mask or scores.mask)
    return Partial("scores", (changed,))


def _out(raiser, value) -> bool:
    number = raiser.number(value)
    return number is not None and number <= _OUT


@handles("masked_fill")
def masked_fill(raiser, node, x, mask, value):
    constant = raiser.constant(mask)
    if is_partial(x, "scores") and constant is not None and _out(raiser, value):
        return masked(x, visible_of(~constant.bool()))
    raise NotRaised("only scores of attention are masked, by constants, with minus infinity")


@handles("where")
def where(raiser, node, condition, x, y):
    constant = raiser.constant(condition)
    if constant is not None and is_partial(x, "scores") and _out(raiser, y):
        return masked(x, visible_of(constant.bool()))
    if constant is not None and is_partial(y, "scores") and _out(raiser, x):
        return masked(y, visible_of(~constant.bool()))
    raise NotRaised("only scores of attention are masked, by constants, with minus infinity")


@handles("softmax", "_softmax", "_safe_softmax")
def softmax(raiser, node, x, dim, *args, **kwargs):
    rank = len(node.meta["val"].shape)
    if is_partial(x, "scores") and layout.wrap(dim, rank) == rank - 1:
        return Partial("probabilities", x.of)
    raise NotRaised("only the softmax of scores of attention is known")


def weighted_values(x: Partial, v):
    heads, factor = _heads(v, "values")
    if factor != 1:
        raise NotRaised("values of attention are scaled")
    scores = x.of[0]
    return _attention(scores, heads)
