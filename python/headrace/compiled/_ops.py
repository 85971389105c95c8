"""headrace::store, load, wait and tick: how a compiled graph has a value moved.

    token = store(tensor, mover, value)     its bytes are on their way out; the tensor may die
    token = load(token, mover, value)       from here on they may come back
    tensor = wait(token, mover, value, size, stride, dtype)      here they are, in memory of its own
    tick(mover)                             between computes: transfers that are due are started

A token is int64 [1], the number of what was stored. What the ops do is the Mover's (_moves);
`mover` is its number. size, stride and dtype are what the graph says of the tensor; it comes back
as it was stored, which may be with other strides. The ops are no pure
functions: dead-code elimination and reordering leave them where they are.
"""
from __future__ import annotations

import weakref
from typing import Any, Sequence

import torch
from torch import Tensor

from .._errors import HeadraceError

_movers: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


def register_mover(number: int, mover: Any) -> None:
    """From now on, until it dies, the ops with this number speak to it."""
    _movers[number] = mover


def _mover(number: int) -> Any:
    mover = _movers.get(number)
    if mover is None:
        raise HeadraceError(f"headrace::store: there is no mover {number}")
    return mover


@torch.library.custom_op("headrace::store", mutates_args=())
def store(tensor: Tensor, mover: int, value: int) -> Tensor:
    return torch.tensor([_mover(mover).store(tensor, value)], dtype=torch.int64)


@store.register_fake
def _(tensor: Tensor, mover: int, value: int) -> Tensor:
    return torch.empty(1, dtype=torch.int64)


@torch.library.custom_op("headrace::load", mutates_args=())
def load(token: Tensor, mover: int, value: int) -> Tensor:
    _mover(mover).load(int(token), value)
    return token.clone()


@load.register_fake
def _(token: Tensor, mover: int, value: int) -> Tensor:
    return torch.empty_like(token)


@torch.library.custom_op("headrace::wait", mutates_args=())
def wait(token: Tensor, mover: int, value: int, size: Sequence[int], stride: Sequence[int],
         dtype: torch.dtype) -> Tensor:
    return _mover(mover).wait(int(token), value)


@wait.register_fake
def _(token: Tensor, mover: int, value: int, size: Sequence[int], stride: Sequence[int],
      dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


@torch.library.custom_op("headrace::tick", mutates_args=())
def tick(mover: int) -> None:
    _mover(mover).tick()


@tick.register_fake
def _(mover: int) -> None:
    return None


for _op in (torch.ops.headrace.store, torch.ops.headrace.load, torch.ops.headrace.wait,
            torch.ops.headrace.tick):
    torch.fx.node.has_side_effect(_op.default)
