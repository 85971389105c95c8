"""Rows of a step as the engine wants them, and steps that run on the plan of a larger one.

A batch of fewer or shorter sequences is that of the larger plan with rows whose targets are not
counted: no counted row of a causal model sees them. Padding is moved to where it is not seen.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from .._errors import HeadraceError
from .attention import pattern_of, seen_by
from .description import Description, MicroInputs


class Rows:
    """tokens and targets, int32 [rows of the plan], and inputs of floats, of one step. ``counts``
    are the counted targets of each micro-batch.

    ``values`` is what description.before() gave. HeadraceError("usage") for tokens and targets out
    of range, ("unsupported") for a padding token whose gradient torch would leave out."""

    def __init__(self, description: Description, plan: Description, values: list[torch.Tensor]):
        total = plan.forward["rows"]
        self.tokens = torch.zeros(total, dtype=torch.int32)
        self.targets = torch.full((total,), -1, dtype=torch.int32)
        self.floats: list[tuple[str, int, torch.Tensor]] = []  # (name, micro-batch, contiguous)
        self.counts: list[int] = []
        self.summed = [i.summed for i in description.inputs]
        token_begin = loss_begin = 0
        for k, (mine, planned) in enumerate(zip(description.inputs, plan.inputs)):
            rows, targets = _counted(mine, values)
            left = torch.zeros(mine.token_rows // mine.sequence, dtype=torch.int64)
            if mine.tokens is not None:
                left = _checked_padding(mine, values, rows, left)
                self._set_tokens(mine, planned, values, token_begin, left)
            self._set_targets(mine, planned, values, loss_begin, rows, targets, left)
            for name, place in mine.floats.items():
                self.floats.append((name, k, values[place].to(torch.float32).contiguous()))
            token_begin += planned.token_rows
            loss_begin += planned.loss_rows

    def _set_targets(self, mine, planned, values, begin: int, rows, targets, left) -> None:
        by_token = mine.loss_rows == mine.token_rows
        at = _places(rows, mine, planned, left) if by_token else rows
        self.targets[begin + at] = targets.to(torch.int32)
        self.counts.append(len(rows))
        if planned.weights is not None:
            weights = torch.zeros(planned.loss_rows)
            weights[at] = _weight(mine, values, len(rows))
            self.floats.append((*planned.weights, weights))

    def losses(self, means: list[float]) -> list[float]:
        """Of the micro-batches as torch has them, from the means over counted targets."""
        return [
            mean * count if summed else mean if count else math.nan
            for mean, count, summed in zip(means, self.counts, self.summed)
        ]

    def _set_tokens(self, mine, planned, values, begin: int, left) -> None:
        tokens = values[mine.tokens].reshape(-1)
        _check_range(tokens, mine.vocabulary, "token")
        rows = torch.arange(mine.token_rows)
        rows = rows[rows % mine.sequence >= left[rows // mine.sequence]]
        self.tokens[begin + _places(rows, mine, planned, left)] = tokens[rows].to(torch.int32)


def _counted(mine: MicroInputs, values) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, among those of the loss, whose targets count, their targets)."""
    targets = values[mine.targets].reshape(-1)
    counted = targets != mine.ignored
    _check_range(targets[counted], mine.classes, "target")
    return torch.from_numpy(mine.target_rows)[counted], targets[counted]


def _weight(mine: MicroInputs, values, count: int) -> float:
    """What gradients of the losses of counted targets are multiplied by."""
    weight = torch.tensor(mine.factor, dtype=torch.float64)
    for place, divides in mine.scalars:
        scalar = values[place].to(torch.float64).reshape(())
        weight = weight / scalar if divides else weight * scalar
    weight = float(weight) / (1 if mine.summed else max(1, count))
    if count and not math.isfinite(weight):
        raise HeadraceError(
            f"compile_step: backward() is of the loss times {weight}: it is divided by 0, or what "
            "it is multiplied by or divided by is not finite",
            "usage",
        )
    return weight if count else 0.0


def _last_counted(mine: MicroInputs, counted_rows: torch.Tensor) -> torch.Tensor:
    """By sequence, the last position that a target counts of; -1: none."""
    last = torch.full((mine.token_rows // mine.sequence,), -1, dtype=torch.int64)
    if mine.loss_rows != mine.token_rows:
        return last + mine.sequence
    return last.scatter_reduce_(
        0, counted_rows // mine.sequence, counted_rows % mine.sequence, "amax"
    )


def _checked_padding(mine: MicroInputs, values, rows: torch.Tensor, none: torch.Tensor):
    """By sequence, how many tokens of padding are before it; ``none`` where there are no masks."""
    if not mine.padding and not mine.masks:
        return none
    last = _last_counted(mine, rows)
    left = _on_the_left(mine, values, none)
    position = torch.arange(mine.sequence)[None, :]
    before = (position >= left[:, None]) & (position <= last[:, None])
    tokens = values[mine.tokens].reshape(-1, mine.sequence)
    for padding in mine.padding:
        if bool(((tokens == padding) & before).any()):
            raise HeadraceError(
                f"compile_step: token {padding}, the padding_idx of an embedding, is before a "
                "target that counts; its embedding has no gradient in torch, which is not "
                "supported",
                "unsupported",
            )
    if mine.masks and mine.loss_rows == mine.token_rows:
        if bool((rows % mine.sequence < left[rows // mine.sequence]).any()):
            raise HeadraceError(
                "compile_step: attention_mask leaves out positions on the left whose targets "
                "count; the first label after padding must be -100 as well",
                "unsupported",
            )
    _check_masks(mine, values, left, last)
    return left


def _on_the_left(mine: MicroInputs, values, none: torch.Tensor) -> torch.Tensor:
    """By sequence, the first position that sees itself. Sequences that begin there are those that
    begin at 0 where only distances between positions count."""
    if mine.absolute or mine.loss_rows != mine.token_rows:
        return none
    left = none
    for place, causal, _ in mine.masks:
        seen = _square(seen_by(values[place]), mine.sequence)
        if not causal or seen.dim() != 4:
            return none
        itself = seen.diagonal(dim1=-2, dim2=-1)[:, 0].to(torch.int64)  # [B, S]
        left = torch.where(itself.any(1), itself.argmax(1), 0).expand_as(none)
    return left


def _square(seen: torch.Tensor, sequence: int) -> torch.Tensor:
    return seen.expand(*seen.shape[:-2], sequence, sequence)


def _check_masks(mine: MicroInputs, values, left: torch.Tensor, last: torch.Tensor) -> None:
    """Rows between padding and the last that counts see what they would without padding."""
    position = torch.arange(mine.sequence)
    real = (position >= left[:, None]) & (position <= last[:, None])  # [B, S]
    for place, causal, window in mine.masks:
        seen = _square(seen_by(values[place]), mine.sequence)
        seen = seen.reshape((1,) * (4 - seen.dim()) + seen.shape)  # [B, heads, S, S]
        pattern = torch.from_numpy(pattern_of(causal, window, mine.sequence))
        pattern = pattern & (position >= left[:, None, None, None])  # [B, 1, S, S]
        differs = (seen != pattern).any(-1)  # [B, heads, S]
        if bool((differs & real[:, None, :]).any()):
            raise HeadraceError(
                "compile_step: attention_mask leaves out positions that targets which count would "
                "see: only padding after the last such target is supported (on the right, labels "
                "-100), and padding before the first token where positions are relative (rotary)",
                "unsupported",
            )


def _places(rows, mine: MicroInputs, planned: MicroInputs, left: torch.Tensor) -> torch.Tensor:
    """Where rows of mine are among those of the plan: without padding on the left."""
    sequence = rows // mine.sequence
    return sequence * planned.sequence + rows % mine.sequence - left[sequence]


def _check_range(values: torch.Tensor, size: int, what: str) -> None:
    if values.numel() and not (0 <= int(values.min()) and int(values.max()) < size):
        raise HeadraceError(
            f"compile_step: {what}s from {int(values.min())} to {int(values.max())}; "
            f"they must be from 0 to below {size}",
            "usage",
        )


def holds(plan: Description, other: Description) -> bool:
    """Whether the step runs as rows of the plan, at least half of them."""
    if plan is other:
        return True
    if len(plan.inputs) != len(other.inputs) or plan.optimizer != other.optimizer:
        return False
    mine, planned = other.forward["rows"], plan.forward["rows"]
    if not planned / 2 <= mine <= planned:
        return False
    for a, b in zip(other.inputs, plan.inputs):
        if a.tokens is None or b.tokens is None or a.floats or b.floats:
            return False
        if a.loss_rows != a.token_rows or b.loss_rows != b.token_rows or a.sequence > b.sequence:
            return False
        if a.token_rows // a.sequence > b.token_rows // b.sequence:
            return False
    if any(
        p.tensor is not plan.parameters[n].tensor
        for n, p in other.parameters.items()
        if n in plan.parameters
    ):
        return False
    causal = all(
        op["attrs"].get("causal", 1)
        for m in plan.forward["micro_batches"]
        for op in m["ops"]
        if op["op"] == "hr.attention"
    )
    if not causal and any(a.sequence != b.sequence for a, b in zip(other.inputs, plan.inputs)):
        return False
    return _same(_shapeless(plan.forward), _shapeless(other.forward))


def _shapeless(forward: dict[str, Any]) -> dict[str, Any]:
    """Without what follows from the shape of the batch."""
    forward = copy.deepcopy(forward)
    forward["rows"] = 0
    for given in forward["inputs"]:
        given["shape"][0] = 0
    for micro in forward["micro_batches"]:
        for op in micro["ops"]:
            op["attrs"].pop("sequence", None)
            op["attrs"].pop("row_begin", None)
            for out in op["out"]:
                out["shape"][0] = 0
    return forward


def _same(a: Any, b: Any) -> bool:
    """Equal, where numbers may differ by rounding (frequencies are found from tables)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)
