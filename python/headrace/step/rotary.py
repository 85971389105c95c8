"""Rotary embeddings, however they are written: halves, neighbours, complex numbers.

What such code builds from q (or k) and constant tables is a Mix: each column of each head is a sum
of columns of the same head times factors by position. rotated() checks that these sums are
rotations of pairs of columns by position * frequency, and finds the frequencies. (Su et al.,
"RoFormer", arXiv 2104.09864.)
"""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np

from . import layout
from .layout import Ref
from .raising import NotRaised, completes, describe, is_partial, is_value
from .values import Heads, Mix, Rope, Term, Value


def as_mix(x) -> Mix:
    if isinstance(x, Mix):
        return x
    if is_value(x):
        return Mix(x.shape, ((Term(x, np.ones(())),),))
    if is_partial(x, "scaled") and is_value(x.of[0]):
        return Mix(x.of[0].shape, ((Term(x.of[0], np.full((), x.number)),),))
    raise NotRaised(f"it takes {describe(x)}")


def _widths(mix: Mix) -> list[int]:
    return [piece[0].ref.shape[-1] for piece in mix.pieces]


def _cut(mix: Mix, bounds: list[int]) -> Mix:
    """The same with pieces that end at ``bounds``."""
    pieces, at = [], 0
    for piece, width in zip(mix.pieces, _widths(mix)):
        inner = [b - at for b in bounds if at < b <= at + width]
        begin = 0
        for end in inner:
            pieces.append(tuple(_columns(term, begin, end) for term in piece))
            begin = end
        at += width
    return Mix(mix.shape, tuple(pieces))


def _columns(term: Term, begin: int, end: int) -> Term:
    factor = term.factor
    if factor.ndim and factor.shape[-1] > 1:
        factor = factor[..., begin:end]
    return Term(layout.slice_axis(term.ref, -1, begin, end), factor)


def _bounds(mix: Mix) -> list[int]:
    return list(np.cumsum(_widths(mix)))


def plus(x, y) -> Mix:
    a, b = as_mix(x), as_mix(y)
    if a.shape != b.shape:
        raise NotRaised("parts of a rotary embedding have different shapes")
    bounds = sorted(set(_bounds(a)) | set(_bounds(b)))
    a, b = _cut(a, bounds), _cut(b, bounds)
    return Mix(a.shape, tuple(p + q for p, q in zip(a.pieces, b.pieces)))


def times(x, table) -> Mix:
    """``table``: a constant tensor whose shape broadcasts to that of x."""
    mix = as_mix(x)
    factor = table.double().numpy()
    if factor.ndim > len(mix.shape):
        raise NotRaised("a constant of more dimensions than the value is multiplied with it")
    if any(f not in (1, s) for f, s in zip(reversed(factor.shape), reversed(mix.shape))):
        raise NotRaised("a constant of another shape is multiplied with a value")
    pieces, at = [], 0
    for piece, width in zip(mix.pieces, _widths(mix)):
        part = factor
        if factor.ndim and factor.shape[-1] > 1:
            part = factor[..., at : at + width]
        pieces.append(tuple(Term(t.ref, t.factor * part) for t in piece))
        at += width
    return Mix(mix.shape, tuple(pieces))


def joined(raiser, parts) -> Mix:
    """Parts one after another along the last axis."""
    parts = [p for p in parts if not (is_value(p) and 0 in p.shape)]
    refs = [p for p in parts if is_value(p)]
    if len(refs) == len(parts):
        whole = layout.concatenated(refs)
        if whole is not None:
            return whole
    mixes = [as_mix(p) for p in parts]
    shape = mixes[0].shape[:-1] + (sum(m.shape[-1] for m in mixes),)
    return Mix(shape, tuple(piece for m in mixes for piece in m.pieces))


def with_last_axis(x) -> Mix:
    """[..., n] -> [..., n, 1]."""
    mix = as_mix(x)
    if len(mix.pieces) != 1:
        raise NotRaised("parts of a rotary embedding are stacked in a way that is not known")
    terms = tuple(
        Term(layout.unsqueeze(t.ref, -1), t.factor[..., None] if t.factor.ndim else t.factor)
        for t in mix.pieces[0]
    )
    return Mix(mix.shape + (1,), (terms,))


def complex_product(x, table):
    """(real, imaginary) pairs times a constant of complex numbers: [..., n, 2] as a Mix."""
    ref = x.of[0]
    if not table.is_complex():
        raise NotRaised("complex numbers are multiplied with real ones")
    real, imaginary = table.real.double().numpy(), table.imag.double().numpy()
    a, b = layout.slice_axis(ref, -1, 0, 1), layout.slice_axis(ref, -1, 1, 2)
    real, imaginary = real[..., None], imaginary[..., None]
    return dataclasses.replace(
        x,
        kind="complex_mix",
        whole=[],
        of=(
            Mix(
                ref.shape,
                ((Term(a, real), Term(b, -imaginary)), (Term(a, imaginary), Term(b, real))),
            ),
        ),
    )


def as_real(x):
    if is_partial(x, "complex_mix"):
        return x.of[0]
    raise NotRaised(f"it takes {describe(x)}")


# ---- recognition -------------------------------------------------------------------------------


@completes("mix")
def rotated(mix: Mix) -> Ref:
    """The value that the engine's rotation makes of the heads, in the shape of the mix."""
    if len(mix.shape) != 4:
        raise NotRaised(
            "an unfinished rotary embedding: rotations are known of [B, heads, S, d] and "
            "[B, S, heads, d]"
        )
    heads, head_axis = _heads_of(mix)
    own, other, partner = _table(mix, heads, head_axis)
    half, rotary = _pairing(partner)
    frequencies = []
    for i in range(rotary // 2):
        a, b = (i, i + rotary // 2) if half else (2 * i, 2 * i + 1)
        frequencies.append(_frequency(own[a], own[b], -other[a], other[b]))
    made = Rope(heads, tuple(frequencies), half)
    source = heads.value
    value = Value(made, source.rows, heads.count * heads.size, source.sequence)
    shape = [source.rows // source.sequence, source.sequence, heads.count, heads.size]
    b, rows, of_heads, columns = layout.contiguous(value, shape).axes
    result = Ref(value, 0, (b, rows, np.repeat(of_heads, heads.repeated), columns))
    return result if head_axis == 2 else layout.transpose(result, 1, 2)


def _heads_of(mix: Mix) -> tuple[Heads, int]:
    """Whose columns are mixed, and which axis counts the heads."""
    terms = [t for piece in mix.pieces for t in piece]
    base = terms[0].ref.base
    if any(t.ref.base is not base for t in terms):
        raise NotRaised("a rotary embedding mixes two values")
    begin = min(int(t.ref.offset + t.ref.axes[-1].min()) for t in terms)
    sequence, cols = base.sequence, base.cols
    for head_axis, row_axis in ((1, 2), (2, 1)):
        axes = terms[0].ref.axes
        count = len(np.unique(axes[head_axis]))
        repeated = len(axes[head_axis]) // count
        starts = begin + axes[head_axis][::repeated]
        fits = (
            np.array_equal(axes[row_axis], np.arange(sequence) * cols)
            and np.array_equal(axes[0], np.arange(base.rows // sequence) * sequence * cols)
            and starts.min() >= 0
            and starts.max() + mix.shape[-1] <= cols
            and np.array_equal(begin + axes[head_axis], np.repeat(starts, repeated))
        )
        if fits and all(
            np.array_equal(a, b) for t in terms for a, b in zip(t.ref.axes[:3], axes[:3])
        ):
            return (Heads(base, tuple(int(c) for c in starts), mix.shape[-1], repeated), head_axis)
    raise NotRaised("a rotary embedding is not of whole heads of all positions")


def _table(mix: Mix, heads: Heads, head_axis: int):
    """By output column of a head: factors [S] of itself and of another column, and which one."""
    size, sequence = heads.size, heads.value.sequence
    own = np.zeros((size, sequence))
    other = np.zeros((size, sequence))
    partner = np.full(size, -1)
    column = 0
    for piece in mix.pieces:
        width = piece[0].ref.shape[-1]
        for term in piece:
            sources = (
                term.ref.offset + term.ref.axes[-1] + term.ref.axes[head_axis][0] - heads.starts[0]
            )
            factors = _by_position(term, head_axis, sequence, width)  # [S, width]
            for j in range(width):
                source, target = int(sources[j]), column + j
                if source == target:
                    own[target] += factors[:, j]
                elif partner[target] in (-1, source) and 0 <= source < size:
                    partner[target] = source
                    other[target] += factors[:, j]
                else:
                    raise NotRaised("a column of a rotary embedding mixes more than two")
        column += width
    return own, other, partner


def _by_position(term: Term, head_axis: int, sequence: int, width: int) -> np.ndarray:
    factor = term.factor
    factor = factor.reshape((1,) * (4 - factor.ndim) + factor.shape)
    for axis in (0, head_axis):
        first = np.take(factor, [0], axis=axis)
        if not np.array_equal(np.broadcast_to(first, factor.shape), factor):
            raise NotRaised("the angles of a rotary embedding differ between sequences or heads")
        factor = first
    return np.broadcast_to(factor.squeeze((0, head_axis)), (sequence, width))


def _pairing(partner: np.ndarray) -> tuple[bool, int]:
    """Whether pairs are of halves, and how many of the first columns rotate."""
    rotary = int((partner >= 0).sum())
    if rotary == 0 or rotary % 2 or (partner[:rotary] < 0).any():
        raise NotRaised("an unfinished rotary embedding")
    numbers = np.arange(rotary)
    if np.array_equal(partner[:rotary], (numbers + rotary // 2) % rotary) and rotary != 2:
        return True, rotary
    if np.array_equal(partner[:rotary], numbers ^ 1):
        return False, rotary
    raise NotRaised("pairs of a rotary embedding are neither halves nor neighbours")


def _frequency(cos_a, cos_b, sin_a, sin_b) -> float:
    """f where all four are cos and sin of position * f in f32, positions from 0."""
    sequence = len(cos_a)
    if sequence == 1:
        raise NotRaised("a rotary embedding of a single position has no frequency to be found")
    step = 1
    f = float(np.arctan2(sin_a[1], cos_a[1]))
    while step * 2 < sequence:  # the angle at twice the position halves the error of f
        step *= 2
        turn = step * f
        angle = float(np.arctan2(sin_a[step], cos_a[step]))
        f = (angle + 2 * np.pi * np.round((turn - angle) / (2 * np.pi))) / step
    f = float(np.float32(f))
    angles = np.arange(sequence) * f
    # f32 rounds f, the angle, and its sine.
    allowed = 4e-7 + np.abs(angles) * 2.0**-22
    for given, right in (
        (cos_a, np.cos(angles)),
        (cos_b, np.cos(angles)),
        (sin_a, np.sin(angles)),
        (sin_b, np.sin(angles)),
    ):
        if (np.abs(given - right) > allowed).any():
            raise NotRaised(
                "the tables of a rotary embedding are not cos and sin of position * "
                "frequency, positions 0, 1, 2 ... (scaled ones are not supported)"
            )
    return f


def find_heads(ref: Ref) -> Optional[Heads]:
    """[B, heads, S, d] of a value, heads repeated or not."""
    if len(ref.axes) != 4 or not is_value(ref):
        return None
    base, (batch, heads, rows, columns) = ref.base, ref.axes
    sequences = base.rows // base.sequence
    if not (
        np.array_equal(batch, np.arange(sequences) * base.sequence * base.cols)
        and np.array_equal(rows, np.arange(base.sequence) * base.cols)
        and np.array_equal(columns - columns[0], np.arange(len(columns)))
    ):
        return None
    count = len(np.unique(heads))
    repeated = len(heads) // count
    starts = heads[::repeated] + ref.offset + columns[0]
    if len(starts) != count or not np.array_equal(heads, np.repeat(heads[::repeated], repeated)):
        return None
    if starts.min() < 0 or starts.max() + len(columns) > base.cols:
        return None
    return Heads(base, tuple(int(c) for c in starts), len(columns), repeated)
