"""Where the elements of a torch tensor lie in a matrix of the engine.

The engine's values are matrices [rows, cols], whole sequences one after another; torch's are views
of them in many shapes ([B, S, n], [B, H, S, D], with heads repeated, sliced, split). A Ref says
which elements: element (i, j, ...) of the torch tensor is element
``offset + axes[0][i] + axes[1][j] + ...`` of the matrix, counted row by row. That form is closed
under all view operations but reshapes that interleave, which are refused (None).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Ref:
    """A view of ``base``, which has ``cols``: a value or a parameter."""

    base: Any
    offset: int
    axes: tuple[np.ndarray, ...]  # int64, [size] of each dimension

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    def same_as(self, other: "Ref") -> bool:
        """Whether both are the same elements in the same shape."""
        return (
            self.base is other.base
            and self.offset == other.offset
            and self.shape == other.shape
            and all(np.array_equal(a, b) for a, b in zip(self.axes, other.axes))
        )


def contiguous(base: Any, shape: Sequence[int]) -> Ref:
    """All of a base in row-major order."""
    axes, stride = [], 1
    for size in reversed(shape):
        axes.append(np.arange(size, dtype=np.int64) * stride)
        stride *= size
    return Ref(base, 0, tuple(reversed(axes)))


def wrap(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def permute(ref: Ref, dims: Sequence[int]) -> Ref:
    return dataclasses.replace(ref, axes=tuple(ref.axes[d] for d in dims))


def transpose(ref: Ref, a: int, b: int) -> Ref:
    rank = len(ref.axes)
    dims = list(range(rank))
    a, b = wrap(a, rank), wrap(b, rank)
    dims[a], dims[b] = dims[b], dims[a]
    return permute(ref, dims)


def unsqueeze(ref: Ref, dim: int) -> Ref:
    axes = list(ref.axes)
    axes.insert(wrap(dim, len(axes) + 1), np.zeros(1, dtype=np.int64))
    return dataclasses.replace(ref, axes=tuple(axes))


def squeeze(ref: Ref, dims: Optional[Sequence[int]] = None) -> Ref:
    rank = len(ref.axes)
    chosen = range(rank) if dims is None else [wrap(d, rank) for d in dims]
    gone = {d for d in chosen if len(ref.axes[d]) == 1}
    offset = ref.offset + sum(int(ref.axes[d][0]) for d in gone)
    axes = tuple(axis for d, axis in enumerate(ref.axes) if d not in gone)
    return Ref(ref.base, offset, axes)


def slice_axis(ref: Ref, dim: int, begin: Optional[int], end: Optional[int], step: int = 1) -> Ref:
    axes = list(ref.axes)
    dim = wrap(dim, len(axes))
    axes[dim] = axes[dim][begin:end:step]
    return dataclasses.replace(ref, axes=tuple(axes))


def select(ref: Ref, dim: int, index: int) -> Ref:
    axes = list(ref.axes)
    axis = axes.pop(wrap(dim, len(axes)))
    return Ref(ref.base, ref.offset + int(axis[index]), tuple(axes))


def expand(ref: Ref, shape: Sequence[int]) -> Ref:
    """As torch's expand: -1 keeps a size, new dimensions come first."""
    axes = [np.zeros(1, dtype=np.int64)] * (len(shape) - len(ref.axes)) + list(ref.axes)
    for d, size in enumerate(shape):
        if size not in (-1, len(axes[d])):
            axes[d] = np.repeat(axes[d], size)  # only axes of size 1 are expanded
    return dataclasses.replace(ref, axes=tuple(axes))


def reshape(ref: Ref, shape: Sequence[int]) -> Optional[Ref]:
    """The same elements in row-major order in another shape; None: not of this form."""
    shape = list(shape)
    count = math.prod(ref.shape)
    if -1 in shape:
        known = math.prod(s for s in shape if s != -1)
        shape[shape.index(-1)] = count // known if known else 0
    if math.prod(shape) != count or count == 0:
        return None
    offset = ref.offset
    axes: list[np.ndarray] = []
    old = new = 0
    while old < len(ref.axes) or new < len(shape):
        merged = ref.axes[old] if old < len(ref.axes) else np.zeros(1, dtype=np.int64)
        sizes = [shape[new]] if new < len(shape) else []
        old, new = old + 1, new + 1
        while len(merged) != math.prod(sizes):  # the smallest groups of equal counts
            if len(merged) < math.prod(sizes):
                merged = (merged[:, None] + ref.axes[old][None, :]).reshape(-1)
                old += 1
            else:
                sizes.append(shape[new])
                new += 1
        parts = _split(merged, sizes)
        if parts is None:
            return None
        offset += parts[0]
        axes += parts[1]
    return Ref(ref.base, offset, tuple(axes))


def _split(merged: np.ndarray, sizes: Sequence[int]):
    """(offset, axes of these sizes) whose outer sum is ``merged``, or None."""
    if not sizes:
        return int(merged[0]), []
    table = merged.reshape(sizes)
    axes = []
    for d in range(len(sizes)):
        line = table[tuple(slice(None) if d == e else 0 for e in range(len(sizes)))]
        axes.append(line - (line[0] if len(sizes) > 1 else 0))
    if len(sizes) == 1:
        return 0, axes
    total = axes[0]
    for axis in axes[1:]:
        total = np.add.outer(total, axis)
    first = int(table.reshape(-1)[0])
    return (first, axes) if np.array_equal(total + first, table) else None


def concatenated(refs: Sequence[Ref]) -> Optional[Ref]:
    """One view whose last axis is those of ``refs`` one after another, where there is one."""
    first = refs[0]
    last = []
    for ref in refs:
        if ref.base is not first.base or ref.shape[:-1] != first.shape[:-1]:
            return None
        if not all(np.array_equal(a, b) for a, b in zip(ref.axes[:-1], first.axes[:-1])):
            return None
        last.append(ref.axes[-1] + (ref.offset - first.offset))
    return dataclasses.replace(first, axes=first.axes[:-1] + (np.concatenate(last),))


@dataclasses.dataclass(frozen=True)
class Rows:
    """A view as rows of its matrix: row ``index[i]``, columns ``begin .. begin + count``."""

    index: np.ndarray  # int64, in the row-major order of all axes but the last
    begin: int
    count: int


def as_rows(ref: Ref) -> Optional[Rows]:
    """None: the last axis is not a run of neighbouring columns of whole rows."""
    if not ref.axes:
        return None
    cols = ref.base.cols
    last = ref.axes[-1]
    if not np.array_equal(last - last[0], np.arange(len(last))):
        return None
    index = np.zeros(1, dtype=np.int64) + ref.offset + last[0]
    for axis in ref.axes[:-1]:
        index = (index[:, None] + axis[None, :]).reshape(-1)
    begins = index % cols
    if len(index) == 0 or (begins != begins[0]).any() or begins[0] + len(last) > cols:
        return None
    return Rows(index // cols, int(begins[0]), len(last))


def like_rows(ref: Ref, base: Any) -> Ref:
    """The view of ``base`` that has the rows of ``ref`` and all columns. Precondition: as_rows()
    is not None. For results of ops that work on each row by itself."""
    cols = ref.base.cols
    axes = tuple((axis // cols) * base.cols for axis in ref.axes[:-1])
    # Offsets inside a row are those of the last axis alone.
    row = (ref.offset + int(ref.axes[-1][0])) // cols
    return Ref(base, row * base.cols, axes + (np.arange(base.cols, dtype=np.int64),))
