"""What raising makes of the nodes of a traced step: matrices of the engine, views of them (Ref of
layout.py), and half-recognised patterns, which are good for nothing until they are complete.

"Made" classes say which op makes a Value; operands are Values and Parameters.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import numpy as np
import torch

from . import layout


@dataclasses.dataclass(eq=False)
class Parameter:
    """A parameter as a matrix: [1, n] of one dimension, [k, n] of [1, k, n] (class tokens,
    positions of images), else [first size, product of the others] (a convolution's)."""

    name: str
    tensor: torch.Tensor
    transposed: Optional[bool] = None  # of a product's weight: torch holds [inputs, outputs]

    @property
    def rows(self) -> int:
        shape = self.tensor.shape
        if len(shape) > 2 and shape[0] == 1:
            return self.tensor.numel() // max(1, shape[-1])
        return shape[0] if len(shape) > 1 else 1

    @property
    def cols(self) -> int:
        return self.tensor.numel() // max(1, self.rows)


@dataclasses.dataclass(eq=False)
class Value:
    """A matrix [rows, cols] of a micro-batch: whole sequences of ``sequence`` rows."""

    made: Any
    rows: int
    cols: int
    sequence: int


@dataclasses.dataclass(frozen=True, eq=False)
class Heads:
    """Heads of a value: ``size`` columns from each of ``starts`` on."""

    value: Value
    starts: tuple[int, ...]
    size: int
    repeated: int = 1  # each stands for so many heads of the queries

    @property
    def count(self) -> int:
        return len(self.starts)

    def columns(self) -> np.ndarray:
        return (np.array(self.starts)[:, None] + np.arange(self.size)[None, :]).reshape(-1)

    def whole(self) -> bool:
        """Whether they are all columns of the value in their order."""
        return np.array_equal(self.columns(), np.arange(self.value.cols))


@dataclasses.dataclass(eq=False)
class Embed:
    tokens: torch.fx.Node  # [B, S], does not depend on parameters
    table: Parameter
    positions: Optional[Parameter] = None
    first: int = 0  # row of positions that position 0 has
    padding: int = -1  # row whose gradient torch leaves out


@dataclasses.dataclass(eq=False)
class Linear:
    x: Value
    weight: Parameter
    bias: Optional[Parameter] = None
    scale: float = 1.0


@dataclasses.dataclass(eq=False)
class Norm:
    x: Value
    layer: bool  # layer norm, else RMS
    weight: Optional[Parameter]  # None: ones
    bias: Optional[Parameter]
    eps: float
    add_one: bool = False  # the weight is 1 + weight


@dataclasses.dataclass(eq=False)
class Scale:
    x: Value
    factor: float
    weight: Optional[Parameter]  # by column


@dataclasses.dataclass(eq=False)
class HeadNorm:
    x: Heads  # each head by itself
    layer: bool
    weight: Optional[Parameter]
    eps: float
    add_one: bool = False


@dataclasses.dataclass(eq=False)
class Rope:
    x: Heads
    frequencies: tuple[float, ...]
    half: bool  # pairs (i, i + r / 2), else (2i, 2i + 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Mask:
    """A mask of attention [.., S, S] that depends on inputs: ``causal`` and ``window`` where
    nothing is padding, which is seen to in every step."""

    node: torch.fx.Node
    causal: bool
    window: int


@dataclasses.dataclass(eq=False)
class Attention:
    q: Heads
    k: Heads
    v: Heads
    scale: float
    causal: bool
    window: int = 0
    mask: Optional[Mask] = None  # that depends on inputs


@dataclasses.dataclass(eq=False)
class Act:
    kind: str  # "silu", "gelu_tanh", "gelu", "relu", "quick_gelu"
    x: Value
    begin: int = 0  # columns begin .. begin + count of x
    count: int = 0


@dataclasses.dataclass(eq=False)
class Gated:
    act: Act  # of the gate
    up: Value
    begin: int
    count: int


@dataclasses.dataclass(eq=False)
class Dropout:
    x: Value
    probability: float


@dataclasses.dataclass(eq=False)
class Add:
    a: Value
    b: Value


@dataclasses.dataclass(eq=False)
class Input:
    node: torch.fx.Node  # floats that do not depend on parameters, [rows, cols] as a matrix


@dataclasses.dataclass(eq=False)
class Patches:
    x: Value  # images: an Input [S, channels height width]
    channels: int
    height: int
    patch: int


@dataclasses.dataclass(eq=False)
class Prefix:
    x: Value
    weights: tuple[Parameter, ...]  # rows before those of x, in each sequence
    positions: Optional[Parameter] = None


@dataclasses.dataclass(eq=False)
class Select:
    x: Value
    first: int  # rows first .. of each sequence of x, as many as the value's sequence


@dataclasses.dataclass(eq=False)
class MeanRows:
    x: Value
    first: int


@dataclasses.dataclass(eq=False)
class Loss:
    """The cross entropy over the targets that are not ``ignored``: their mean, or ``summed``."""

    x: Value
    weight: Parameter
    bias: Optional[Parameter]
    rows: np.ndarray  # row of x of each target
    targets: torch.fx.Node  # [len(rows)], does not depend on parameters
    ignored: int
    smoothing: float = 0.0
    summed: bool = False


# ---- half-recognised ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Partial:
    """``kind`` of ``of`` (Refs and Partials), with a number where it has one."""

    kind: str
    of: tuple
    number: float = 0.0
    whole: list = dataclasses.field(default_factory=list)  # what complete() made of it


@dataclasses.dataclass(frozen=True, eq=False)
class LossTerm:
    """factor * loss number ``loss``, times or over scalars that depend on inputs."""

    loss: int
    factor: float = 1.0
    scalars: tuple[tuple[torch.fx.Node, bool], ...] = ()  # (scalar, whether it divides)


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """A sum of terms: a scalar."""

    terms: tuple[LossTerm, ...]

    def times(self, factor: float) -> "Losses":
        return Losses(
            tuple(dataclasses.replace(t, factor=t.factor * factor) for t in self.terms)
        )

    def by(self, scalar: torch.fx.Node, divides: bool) -> "Losses":
        return Losses(
            tuple(
                dataclasses.replace(t, scalars=t.scalars + ((scalar, divides),))
                for t in self.terms
            )
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """ref * factor, elementwise; the factor's shape broadcasts to the ref's."""

    ref: layout.Ref
    factor: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Mix:
    """Sums of terms, piece after piece along the last axis: what rotary embeddings are made of."""

    shape: tuple[int, ...]
    pieces: tuple[tuple[Term, ...], ...]
    whole: list = dataclasses.field(default_factory=list)  # what complete() made of it
