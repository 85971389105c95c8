"""Views, copies and casts: where elements lie, not what they are."""

from __future__ import annotations

import dataclasses

import torch

from . import layout, rotary
from .layout import Ref
from .raising import NotRaised, complete, describe, handles, is_parameter, is_partial, is_value
from .values import Losses, Mix, Partial, Term


def on_view(function):
    """A handler from a function of a Ref: of views, of scaled views, of finished rotations."""

    def handler(raiser, node, x, *args, **kwargs):
        if is_partial(x, "scaled") or is_partial(x, "silu") or is_partial(x, "complex"):
            inner = handler(raiser, node, x.of[0], *args, **kwargs)
            return dataclasses.replace(x, of=(inner,), whole=[])
        if isinstance(x, Mix):
            x = complete(x)
        if not isinstance(x, Ref):
            raise NotRaised(f"it takes {describe(x)}")
        result = function(node, x, *args, **kwargs)
        if result is None:
            raise NotRaised("elements would be mixed in a way that is no view of rows and columns")
        if result.shape != tuple(node.meta["val"].shape):
            raise NotRaised(f"a shape of {result.shape} was expected")
        return result

    return handler


def _same(raiser, node, x, *args, **kwargs):
    """Nothing but the same numbers. Casts between f32 and bf16 are checked where they matter."""
    return x


for _name in (
    "contiguous",
    "clone",
    "alias",
    "lift_fresh",
    "lift_fresh_copy",
    "to",
    "_to_copy",
    "type_as",
    "positive",
    "float",
    "bfloat16",
    "resolve_conj",
    "resolve_neg",
):
    handles(_name)(_same)


@handles("detach", "detach_")
def detach(raiser, node, x):
    if isinstance(x, Losses):
        return Partial("detached", (x,))
    raise NotRaised("gradients would stop here")


@handles(
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_copy",
    "unflatten",
    "flatten",
    "view_as",
    "reshape_as",
)
def reshape(raiser, node, x, *args):
    shape = tuple(node.meta["val"].shape)
    if isinstance(x, Losses) and shape in ((), (1,)):
        return x
    if isinstance(x, Mix):
        merged = _interleaved(x, shape)
        if merged is not None:
            return merged
    return on_view(lambda node, ref: layout.reshape(ref, shape))(raiser, node, x)


def _interleaved(x: Mix, shape):
    """[..., n, k] -> [..., n k] of k pieces of one column: as many pieces as columns."""
    if shape[:-1] != x.shape[:-2] or len(x.shape) < 2 or shape[-1] != x.shape[-2] * x.shape[-1]:
        return None
    if len(x.pieces) != x.shape[-1]:
        return None
    pieces = []
    for column in range(x.shape[-2]):
        for piece in x.pieces:
            terms = []
            for term in piece:
                ref = layout.select(term.ref, -1, 0)  # [..., n]
                factor = term.factor[..., 0]
                here = column if factor.ndim and factor.shape[-1] > 1 else 0
                terms.append(
                    Term(
                        layout.slice_axis(ref, -1, column, column + 1),
                        factor[..., here : here + 1] if factor.ndim else factor,
                    )
                )
            pieces.append(tuple(terms))
    return Mix(shape, tuple(pieces))


@handles("transpose", "swapaxes", "swapdims")
def transpose(raiser, node, x, a, b):
    return on_view(lambda node, ref: layout.transpose(ref, a, b))(raiser, node, x)


@handles("t", "numpy_T", "mT", "adjoint", "matrix_H")
def matrix_transpose(raiser, node, x):
    if isinstance(x, Ref) and len(x.axes) != 2 and node.target._schema.name != "aten::mT":
        raise NotRaised("it has not two dimensions")
    return on_view(lambda node, ref: layout.transpose(ref, -2, -1))(raiser, node, x)


@handles("permute", "movedim")
def permute(raiser, node, x, dims, *more):
    if more:
        raise NotRaised("movedim is not supported; use transpose or permute")
    return on_view(
        lambda node, ref: layout.permute(ref, [layout.wrap(d, len(ref.axes)) for d in dims])
    )(raiser, node, x)


@handles("unsqueeze")
def unsqueeze(raiser, node, x, dim):
    if isinstance(x, Losses):
        return x
    return on_view(lambda node, ref: layout.unsqueeze(ref, dim))(raiser, node, x)


@handles("squeeze")
def squeeze(raiser, node, x, dim=None):
    dims = [dim] if isinstance(dim, int) else dim
    return on_view(lambda node, ref: layout.squeeze(ref, dims))(raiser, node, x)


@handles("slice")
def slice_(raiser, node, x, dim=0, start=None, end=None, step=1):
    return on_view(lambda node, ref: layout.slice_axis(ref, dim, start, end, step))(raiser, node, x)


@handles("narrow")
def narrow(raiser, node, x, dim, start, length):
    return slice_(raiser, node, x, dim, start, start + length)


@handles("select")
def select(raiser, node, x, dim, index):
    return on_view(lambda node, ref: layout.select(ref, dim, index))(raiser, node, x)


@handles("index")
def index(raiser, node, x, indices):
    """x[:, [i, j]] with constant numbers, one dimension at a time."""
    chosen = [(d, i) for d, i in enumerate(indices) if i is not None]
    constant = raiser.constant(chosen[0][1]) if len(chosen) == 1 else None
    if constant is None or constant.dtype != torch.int64 or constant.dim() > 1 or not is_value(x):
        raise NotRaised("indices must be constant, of one dimension")
    axes = list(x.axes)
    d = chosen[0][0]
    if constant.dim() == 0:
        return layout.select(x, d, int(constant))
    axes[d] = axes[d][constant.numpy()]
    return dataclasses.replace(x, axes=tuple(axes))


@handles("expand", "expand_as", "broadcast_to")
def expand(raiser, node, x, *args, **kwargs):
    shape = tuple(node.meta["val"].shape)
    return on_view(lambda node, ref: layout.expand(ref, shape))(raiser, node, x)


@handles("repeat_interleave")
def repeat_interleave(raiser, node, x, repeats, dim=None, **kwargs):
    if not isinstance(repeats, int) or dim is None:
        raise NotRaised("repeats must be a number, of one dimension")

    def repeated(node, ref):
        axes = list(ref.axes)
        d = layout.wrap(dim, len(axes))
        axes[d] = axes[d].repeat(repeats)
        return dataclasses.replace(ref, axes=tuple(axes))

    return on_view(repeated)(raiser, node, x)


def _pieces(raiser, node, x, dim, sizes):
    """Views of consecutive parts of one dimension."""
    if isinstance(x, Mix) or is_partial(x, "scaled"):
        x = complete(x)
    if not isinstance(x, Ref):
        raise NotRaised(f"it takes {describe(x)}")
    begin, parts = 0, []
    for size in sizes:
        parts.append(layout.slice_axis(x, dim, begin, begin + size))
        begin += size
    return parts


def _results(node) -> list:
    return node.meta["val"]


@handles("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_chunk", "unsafe_split")
def split(raiser, node, x, _how, dim=0):
    return _pieces(raiser, node, x, dim, [part.shape[dim] for part in _results(node)])


@handles("unbind")
def unbind(raiser, node, x, dim=0):
    parts = _pieces(raiser, node, x, dim, [1] * len(_results(node)))
    return [layout.squeeze(part, [dim]) for part in parts]


@handles("getitem")
def getitem(raiser, node, parts, number):
    return parts[number]


def empty_constants_left_out(raiser, parts: list) -> list:
    """Without tensors of no elements (an empty cache of keys, to which keys are appended)."""
    return [p for p in parts if not (isinstance(p, torch.fx.Node) and p.meta["val"].numel() == 0)]


@handles("view_as_complex")
def view_as_complex(raiser, node, x):
    if not isinstance(x, Ref) or not is_value(x) or is_parameter(x):
        raise NotRaised(f"it takes {describe(x)}")
    return Partial("complex", (x,))


@handles("view_as_real")
def view_as_real(raiser, node, x):
    return rotary.as_real(x)
