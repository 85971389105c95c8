"""Products with weights, embeddings, norms, the loss."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

import numpy as np
import torch

from . import attention, images, layout, rotary
from .layout import Ref
from .raising import (
    Backward,
    NotRaised,
    by_rows,
    columns_of,
    complete,
    completes,
    describe,
    handles,
    is_parameter,
    is_partial,
    is_value,
    rows_of,
)
from .values import (
    Embed,
    HeadNorm,
    Linear,
    Loss,
    Losses,
    Mix,
    Norm,
    Parameter,
    Partial,
    Patches,
    Prefix,
    Scale,
    Value,
)


# ---- parameters as operands --------------------------------------------------------------------


def _whole_vector(x, size: int, what: str) -> Parameter:
    """A parameter of ``size`` elements in their order, whatever its shape."""
    if is_parameter(x) and x.base.tensor.numel() == size:
        flat = layout.reshape(x, [size])
        if flat is not None and flat.offset == 0 and np.array_equal(flat.axes[0], np.arange(size)):
            return x.base
    raise NotRaised(f"the {what} is not a whole parameter of {size} elements")


def _weight(x) -> tuple[Parameter, bool]:
    """A product's weight [outputs, inputs], and whether torch holds it the other way round."""
    if not is_parameter(x) or len(x.axes) != 2 or x.offset != 0:
        raise NotRaised("a product's weight is not a whole parameter")
    outputs, inputs = x.shape
    p = x.base
    for transposed, (rows, cols) in ((False, (outputs, inputs)), (True, (inputs, outputs))):
        axes = x.axes if not transposed else tuple(reversed(x.axes))
        if (
            p.rows == rows
            and p.cols == cols
            and np.array_equal(axes[0], np.arange(rows) * cols)
            and np.array_equal(axes[1], np.arange(cols))
        ):
            return p, transposed
    raise NotRaised(f"a product's weight is a part of parameter '{p.name}', not all of it")


def note_transposed(p: Parameter, transposed: bool) -> None:
    if p.transposed not in (None, transposed):
        raise NotRaised(f"parameter '{p.name}' is used as it is and transposed")
    p.transposed = transposed


def linear_of(raiser, x, weight, bias=None) -> Ref:
    """x w^T + bias of rows of x; ``weight`` a Ref [outputs, inputs]."""
    if isinstance(x, torch.fx.Node):
        x = images.matrix_of(raiser, x)
    ref, rows = columns_of(x)
    p, transposed = _weight(weight)
    if rows.begin != 0 or rows.count != ref.base.cols:
        raise NotRaised("a product reads some of the columns of a value only")
    note_transposed(p, transposed)
    outputs = weight.shape[0]
    vector = None if bias is None else _whole_vector(bias, outputs, "bias")
    return by_rows(Linear(ref.base, p, vector), ref, outputs)


@handles("linear")
def linear(raiser, node, x, weight, bias=None):
    return linear_of(raiser, x, weight, bias)


@handles("addmm")
def addmm(raiser, node, bias, x, weight, beta=1, alpha=1):
    if beta != 1 or alpha != 1:
        raise NotRaised("beta and alpha must be 1")
    if is_value(bias):
        raise NotRaised("what is added must be a bias")
    return linear_of(
        raiser, x, layout.transpose(weight, 0, 1) if is_parameter(weight) else weight, bias
    )


@handles("matmul", "mm", "bmm", "__matmul__")
def matmul(raiser, node, a, b):
    if is_parameter(b) and len(b.axes) == 2:
        return linear_of(raiser, a, layout.transpose(b, 0, 1))
    if is_partial(a, "probabilities"):
        return attention.weighted_values(a, b)
    if any(isinstance(x, torch.fx.Node) for x in (a, b)):
        raise NotRaised("a product with a tensor that does not depend on parameters")
    return attention.scores_of(a, b)


def plus_parameter(raiser, x: Ref, p: Ref):
    """A bias of a product that has none yet, or learned positions of an embedding."""
    made = x.base.made
    if p.base.tensor.dim() == 1 and isinstance(made, Linear) and made.bias is None:
        return by_rows(
            dataclasses.replace(made, bias=_whole_vector(p, x.base.cols, "bias")),
            rows_of(x)[0],
            x.base.cols,
        )
    if isinstance(made, (Embed, Prefix)) and made.positions is None:
        return _with_positions(raiser, x, p, made)
    if p.base.tensor.dim() > 1 and isinstance(made, Linear) and isinstance(made.x.made, Patches):
        return _with_positions(raiser, x, p, Prefix(x.base, ()))
    raise NotRaised(
        f"parameter '{p.base.name}' is added, and not as the bias of a product nor as "
        "positions of an embedding"
    )


def _with_positions(raiser, x: Ref, p: Ref, made) -> Ref:
    """Rows first, first + 1 ... of the parameter, by position."""
    rows_of(x)
    cols, sequence = x.base.cols, x.base.sequence
    axes = list(p.axes)
    if len(axes) == 3 and not axes[0].any():
        del axes[0]  # the same for all sequences
    if sequence == 1 and len(axes) == 2:
        del axes[0]
    rows = [np.arange(sequence) * cols] if sequence > 1 else []
    begin = p.offset + (int(axes[0][0]) if len(axes) > 1 else 0)
    fits = (
        begin % cols == 0
        and p.base.cols == cols
        and len(axes) == len(rows) + 1
        and all(np.array_equal(a - a[0], w) for a, w in zip(axes, rows + [np.arange(cols)]))
        and axes[-1][0] == 0
        and len(x.axes) == 3
        and x.shape[1] == sequence
    )
    if not fits or (begin and not isinstance(made, Embed)):
        raise NotRaised(
            f"'{p.base.name}' is added to an embedding, but not as rows that follow one "
            "another by position"
        )
    changed = {"first": begin // cols} if begin else {}
    return by_rows(dataclasses.replace(made, positions=p.base, **changed), x, cols)


@completes("scaled")
def scaled_product(x: Partial) -> Ref:
    """A scaled value; a product that makes it takes the factor in where it can."""
    ref = complete(x.of[0])
    made = ref.base.made
    if isinstance(made, Linear) and made.bias is None:
        made = dataclasses.replace(made, scale=made.scale * x.number)
        return dataclasses.replace(ref, base=dataclasses.replace(ref.base, made=made))
    ref, _ = rows_of(ref)
    return by_rows(Scale(ref.base, x.number, None), ref, ref.base.cols)


# ---- embeddings --------------------------------------------------------------------------------


@handles("embedding")
def embedding(
    raiser, node, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False
):
    if scale_grad_by_freq or sparse or not is_parameter(weight) or len(weight.axes) != 2:
        raise NotRaised(
            "scale_grad_by_freq, sparse gradients and tables that are no parameters are not known"
        )
    if not isinstance(indices, torch.fx.Node):
        raise NotRaised("indices depend on parameters")
    p = weight.base
    constant = raiser.constant(indices)
    if constant is not None:
        return _constant_rows(p, constant)
    shape = tuple(indices.meta["val"].shape)
    if len(shape) not in (1, 2):
        raise NotRaised("tokens are not [B, S]")
    sequence = shape[-1]
    if raiser.parts.changed_after(indices, node):
        raise NotRaised("tokens are changed in place after they are embedded")
    made = Embed(indices, p, padding=int(padding_idx))
    return layout.contiguous(Value(made, math.prod(shape), p.cols, sequence), shape + (p.cols,))


def _constant_rows(p: Parameter, indices: torch.Tensor) -> Ref:
    rows = Ref(p, 0, (indices.reshape(-1).numpy() * p.cols, np.arange(p.cols, dtype=np.int64)))
    result = layout.reshape(rows, list(indices.shape) + [p.cols])
    if result is None:
        raise NotRaised("constant positions are not the same for all sequences")
    return result


# ---- norms -------------------------------------------------------------------------------------


def times_weight(raiser, weight, y, add_one: bool = False):
    """weight * what an RMS norm makes, or * any value, by column."""
    if is_partial(y, "rms_normed"):
        return norm(y.of[0], False, weight, None, y.number, add_one)
    if isinstance(y, (Ref, Partial, Mix)) and not add_one and not is_parameter(y):
        ref, rows = rows_of(y)
        return by_rows(
            Scale(ref.base, 1.0, _whole_vector(weight, rows.count, "factor")), ref, rows.count
        )
    return None


def norm(x, layer: bool, weight, bias, eps: float, add_one: bool = False):
    ref = complete(x)
    size = ref.shape[-1]
    vector = None if weight is None else _whole_vector(weight, size, "weight of a norm")
    rows = layout.as_rows(ref)
    if rows is not None and rows.begin == 0 and rows.count == ref.base.cols:
        offset = None if bias is None else _whole_vector(bias, size, "bias of a norm")
        return by_rows(Norm(ref.base, layer, vector, offset, eps, add_one), ref, size)
    return _head_norm(ref, layer, vector, bias, eps, add_one)


@completes("rms_normed")
def _rms_norm(x: Partial) -> Ref:
    return norm(x.of[0], False, None, None, x.number)


def _head_norm(
    ref: Ref, layer: bool, weight: Optional[Parameter], bias, eps: float, add_one: bool
) -> Ref:
    """Of q or k, each head by itself."""
    for swap in (False, True):
        view = layout.transpose(ref, 1, 2) if swap and len(ref.axes) == 4 else ref
        heads = rotary.find_heads(view)
        if heads is None or heads.repeated != 1:
            continue
        if bias is not None:
            raise NotRaised("a norm of heads has a bias")
        value = Value(
            HeadNorm(heads, layer, weight, eps, add_one),
            ref.base.rows,
            heads.count * heads.size,
            ref.base.sequence,
        )
        shape = [value.rows // value.sequence, value.sequence, heads.count, heads.size]
        result = layout.contiguous(value, shape)
        return result if swap else layout.transpose(result, 1, 2)
    raise NotRaised("a norm is neither of whole rows nor of heads")


def _eps(node, eps) -> float:
    return torch.finfo(node.args[0].meta["val"].dtype).eps if eps is None else float(eps)


@handles("rms_norm")
def rms_norm(raiser, node, x, shape, weight=None, eps=None):
    _one_dimension(shape)
    return norm(x, False, weight, None, _eps(node, eps))


@handles("layer_norm")
def layer_norm(raiser, node, x, shape, weight=None, bias=None, eps=1e-5, cudnn_enable=True):
    _one_dimension(shape)
    return norm(x, True, weight, bias, float(eps))


def _one_dimension(shape) -> None:
    if len(shape) != 1:
        raise NotRaised("a norm over several dimensions")


# ---- the loss ----------------------------------------------------------------------------------


def _logits(x, class_axis: int) -> tuple[Ref, np.ndarray]:
    ref = complete(x)
    dims = [d for d in range(len(ref.axes)) if d != layout.wrap(class_axis, len(ref.axes))]
    ref, rows = rows_of(layout.permute(ref, dims + [layout.wrap(class_axis, len(ref.axes))]))
    if not isinstance(ref.base.made, Linear) or ref.base.made.scale != 1:
        raise NotRaised("the loss is not of a product with the output table")
    if len(np.unique(rows.index)) != len(rows.index):
        raise NotRaised("a row of the logits is used twice")
    return ref, rows.index


def _loss(
    raiser, node, x, class_axis, targets, weight, reduction, ignored, smoothing=0.0
) -> Losses:
    if weight is not None:
        raise NotRaised("weights of classes are not known")
    if reduction == 0:
        raise NotRaised("only the mean and the sum over targets are known (reduction='none')")
    if not isinstance(targets, torch.fx.Node):
        raise NotRaised("targets depend on parameters")
    if targets.meta["val"].dtype not in (torch.int64, torch.int32):
        raise NotRaised("targets are no numbers of classes")
    if raiser.parts.changed_after(targets, node):
        raise NotRaised("targets are changed in place afterwards")
    ref, rows = _logits(x, class_axis)
    if targets.meta["val"].numel() != len(rows):
        raise NotRaised(f"{targets.meta['val'].numel()} targets of {len(rows)} rows")
    made = ref.base.made
    x, rows = images.selected(made.x, rows)
    return raiser.add_loss(
        Loss(
            x,
            made.weight,
            made.bias,
            rows,
            targets,
            int(ignored),
            float(smoothing),
            summed=reduction == 2,
        )
    )


@handles("cross_entropy_loss")
def cross_entropy_loss(
    raiser, node, x, targets, weight=None, reduction=1, ignore_index=-100, label_smoothing=0.0
):
    axis = 1 if len(node.args[0].meta["val"].shape) > 1 else 0
    return _loss(raiser, node, x, axis, targets, weight, reduction, ignore_index, label_smoothing)


@handles("log_softmax")
def log_softmax(raiser, node, x, dim, dtype=None):
    return Partial("log_softmax", (complete(x),), layout.wrap(dim, len(node.meta["val"].shape)))


@handles("nll_loss", "nll_loss_nd")
def nll_loss(raiser, node, x, targets, weight=None, reduction=1, ignore_index=-100):
    axis = 1 if len(node.args[0].meta["val"].shape) > 1 else 0
    if not is_partial(x, "log_softmax") or x.number != axis:
        raise NotRaised("only the loss of a log_softmax is known")
    return _loss(raiser, node, x.of[0], axis, targets, weight, reduction, ignore_index)


@handles("backward")
def backward(raiser, node, loss):
    if not isinstance(loss, Losses):
        raise NotRaised(f"backward() is not of a cross entropy, but of {describe(loss)}")
    raiser.backwards.append(Backward(loss, node))
    return loss


@handles("gradient_norm")
def gradient_norm(raiser, node, loss):
    return Partial("gradient_norm", ())
