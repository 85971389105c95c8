"""Images: squares of them as rows, class tokens before them, losses on one row or on the mean."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from . import layout
from .layout import Ref
from .raising import NotRaised, handles, is_parameter, rows_of
from .values import Act, Input, Linear, MeanRows, Norm, Parameter, Patches, Prefix, Select, Value


def _input(raiser, node: torch.fx.Node, rows: int, cols: int, sequence: int) -> Value:
    """The value of a tensor of floats; one for each node."""
    if raiser.constant(node) is not None or node.meta["val"].dtype != torch.float32:
        raise NotRaised("what is no input of train_step in float32 is multiplied with a weight")
    if raiser.parts.changed_after(node, raiser.node):
        raise NotRaised("an input is changed in place after it is used")
    if node not in raiser.inputs:
        raiser.inputs[node] = Value(Input(node), rows, cols, sequence)
    return raiser.inputs[node]


def matrix_of(raiser, node: torch.fx.Node) -> Ref:
    """Floats [B, S, n] or [B, n] that a product reads."""
    shape = tuple(node.meta["val"].shape)
    if len(shape) not in (2, 3):
        raise NotRaised("a product reads an input that is not [B, S, n] or [B, n]")
    sequence = shape[1] if len(shape) == 3 else 1
    value = _input(raiser, node, math.prod(shape[:-1]), shape[-1], sequence)
    return layout.contiguous(value, shape)


@handles("conv2d")
def conv2d(
    raiser, node, x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1
):
    """A convolution of squares side by side: a product over them."""
    if not isinstance(x, torch.fx.Node) or not is_parameter(weight):
        raise NotRaised("only a convolution of input images is known (patch embedding)")
    count, channels, height, width = x.meta["val"].shape
    outputs, _, patch, patch_width = weight.shape
    plain = (
        padding in ([0, 0], (0, 0), "valid")
        and tuple(dilation) == (1, 1)
        and groups == 1
        and patch == patch_width
        and tuple(stride) == (patch, patch)
        and height % patch == 0
        and width % patch == 0
    )
    if not plain:
        raise NotRaised("only a convolution of squares side by side is known (patch embedding)")
    squares = (height // patch) * (width // patch)
    image = _input(raiser, x, count, channels * height * width, 1)
    patches = Value(
        Patches(image, channels, height, patch), count * squares, channels * patch * patch, squares
    )
    p = weight.base
    if not layout.contiguous(p, p.tensor.shape).same_as(weight):
        raise NotRaised("a patch embedding's weight is not a whole parameter")
    offset = None if bias is None else bias.base
    value = Value(Linear(patches, p, offset), patches.rows, outputs, squares)
    p.transposed = False
    rows = layout.contiguous(value, [count, height // patch, width // patch, outputs])
    return layout.permute(rows, [0, 3, 1, 2])


# ---- rows before others ------------------------------------------------------------------------


def prefixed(raiser, node, parts, dim: int) -> Ref:
    """[B, k, n] parameters for every sequence, then values [B, p, n]."""
    *before, last = parts
    ref, rows = rows_of(last)
    x = ref.base
    sequences = x.rows // x.sequence
    whole = np.array_equal(rows.index, np.arange(x.rows)) and ref.shape[:2] == (
        sequences,
        x.sequence,
    )
    if dim != 1 or len(ref.shape) != 3 or not whole:
        raise NotRaised("rows are joined that are not [B, k, n] of parameters and all of a value")
    weights = tuple(_rows_for_all(part, sequences, x.cols) for part in before)
    sequence = x.sequence + sum(w.tensor.numel() // x.cols for w in weights)
    value = Value(Prefix(x, weights), sequences * sequence, x.cols, sequence)
    return layout.contiguous(value, [sequences, sequence, x.cols])


def _rows_for_all(part, sequences: int, cols: int) -> Parameter:
    """The parameter [k, n] that is seen as [B, k, n]."""
    if is_parameter(part) and len(part.axes) == 3 and part.offset == 0:
        rows, p = part.shape[1], part.base
        if (
            part.shape == (sequences, rows, cols)
            and p.tensor.numel() == rows * cols
            and not part.axes[0].any()
            and np.array_equal(part.axes[1], np.arange(rows) * cols)
            and np.array_equal(part.axes[2], np.arange(cols))
        ):
            return p
    raise NotRaised("rows before others are not a whole parameter, the same for all sequences")


# ---- rows that a loss is on --------------------------------------------------------------------


def selected(x: Value, rows: np.ndarray) -> tuple[Value, np.ndarray]:
    """The same rows of a smaller value, where they are the same ones of every sequence and few."""
    places = np.unique(rows % x.sequence)
    count, first = len(places), int(places[0])
    sequences = x.rows // x.sequence
    few = 2 * count <= x.sequence and np.array_equal(places, np.arange(first, first + count))
    if not few or len(rows) != sequences * count:
        return x, rows
    return _only(x, first, count), rows // x.sequence * count + rows % x.sequence - first


def _only(x: Value, first: int, count: int) -> Value:
    """Rows first .. first + count of each sequence; what works on rows is done to them alone."""
    rows = x.rows // x.sequence * count
    made = Select(x, first)
    if isinstance(x.made, (Norm, Linear)) or (
        isinstance(x.made, Act) and x.made.count == x.made.x.cols
    ):
        made = dataclasses.replace(x.made, x=_only(x.made.x, first, count))
    return Value(made, rows, x.cols, count)


def mean_rows(raiser, x: Ref, dim, keepdim: bool) -> Ref:
    """Of [B, S, n], over the last rows of each sequence."""
    ref, rows = rows_of(x)
    value = ref.base
    dims = [dim] if isinstance(dim, int) else list(dim)
    sequences = value.rows // value.sequence
    if len(ref.shape) != 3 or [layout.wrap(d, 3) for d in dims] != [1] or ref.shape[0] != sequences:
        raise NotRaised("only the mean over the rows of each sequence is known")
    first = value.sequence - ref.shape[1]
    wanted = (
        np.arange(sequences)[:, None] * value.sequence + np.arange(first, value.sequence)[None, :]
    ).reshape(-1)
    if not np.array_equal(rows.index, wanted):
        raise NotRaised("the mean of rows is not of the last rows of every sequence")
    result = layout.contiguous(
        Value(MeanRows(value, first), sequences, value.cols, 1), [sequences, value.cols]
    )
    return layout.unsqueeze(result, 1) if keepdim else result
