"""Rows of a step as the engine wants them, and steps that run on the plan of a larger one.

A batch of fewer or shorter sequences is that of the larger plan with rows whose targets are not
counted: no counted row of a causal model sees them.
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
    """tokens and targets, int32 [rows of the plan], and inputs of floats, of one step.

    ``values`` is what description.before() gave. HeadraceError("usage") for tokens and targets out
    of range, ("unsupported") for a padding token whose gradient torch would leave out."""

    def __init__(self, description: Description, plan: Description, values: list[torch.Tensor]):
        total = plan.forward["rows"]
        self.tokens = torch.zeros(total, dtype=torch.int32)
        self.targets = torch.full((total,), -1, dtype=torch.int32)
        self.floats: list[tuple[str, int, torch.Tensor]] = []  # (name, micro-batch, contiguous)
        token_begin = loss_begin = 0
        for k, (mine, planned) in enumerate(zip(description.inputs, plan.inputs)):
            counted = self._set_targets(mine, planned, values, loss_begin)
            if mine.tokens is not None:
                self._set_tokens(mine, planned, values, token_begin, counted)
            for name, place in mine.floats.items():
                self.floats.append((name, k, values[place].to(torch.float32).contiguous()))
            token_begin += planned.token_rows
            loss_begin += planned.loss_rows

    def _set_targets(self, mine: MicroInputs, planned: MicroInputs, values, begin: int):
        """Rows, among those of the loss, whose targets count."""
        targets = values[mine.targets].reshape(-1)
        counted = targets != mine.ignored
        _check_range(targets[counted], mine.classes, "target")
        rows = torch.from_numpy(mine.target_rows)[counted]
        at = _places(rows, mine, planned) if mine.loss_rows == mine.token_rows else rows
        self.targets[begin + at] = targets[counted].to(torch.int32)
        return rows

    def _set_tokens(self, mine, planned, values, begin: int, counted_rows) -> None:
        tokens = values[mine.tokens].reshape(-1)
        _check_range(tokens, mine.vocabulary, "token")
        if mine.padding or mine.masks:
            last = _last_counted(mine, counted_rows)
            _check_padding(mine, tokens, last)
            _check_masks(mine, values, last)
        at = _places(torch.arange(mine.token_rows), mine, planned)
        self.tokens[begin + at] = tokens.to(torch.int32)


def _last_counted(mine: MicroInputs, counted_rows: torch.Tensor) -> torch.Tensor:
    """By sequence, the last position that a target counts of; -1: none."""
    last = torch.full((mine.token_rows // mine.sequence,), -1, dtype=torch.int64)
    if mine.loss_rows != mine.token_rows:
        return last + mine.sequence
    return last.scatter_reduce_(
        0, counted_rows // mine.sequence, counted_rows % mine.sequence, "amax"
    )


def _check_padding(mine: MicroInputs, tokens: torch.Tensor, last: torch.Tensor) -> None:
    seen = torch.arange(mine.sequence)[None, :] <= last[:, None]
    for padding in mine.padding:
        if bool(((tokens.reshape(-1, mine.sequence) == padding) & seen).any()):
            raise HeadraceError(
                f"compile_step: token {padding}, the padding_idx of an embedding, is before a "
                "target that counts; its embedding has no gradient in torch, which is not "
                "supported",
                "unsupported",
            )


def _check_masks(mine: MicroInputs, values, last: torch.Tensor) -> None:
    """Rows up to the last that counts see what they would without padding."""
    for place, causal, window in mine.masks:
        seen = seen_by(values[place])
        pattern = torch.from_numpy(pattern_of(causal, window, mine.sequence))
        differs = (seen != pattern).any(-1)  # [.., S]
        differs = differs.expand(*differs.shape[:-1], mine.sequence)
        differs = differs.reshape(-1, 1, mine.sequence) if differs.dim() < 2 else differs
        counts = torch.arange(mine.sequence)[None, :] <= last[:, None]  # [B, S]
        shape = (counts.shape[0],) + (1,) * (differs.dim() - 2) + (mine.sequence,)
        if bool((differs & counts.reshape(shape)).any()):
            raise HeadraceError(
                "compile_step: attention_mask leaves out positions that targets which count would "
                "see: only padding after the last such target is supported (on the right, labels "
                "-100)",
                "unsupported",
            )


def _places(rows: torch.Tensor, mine: MicroInputs, planned: MicroInputs) -> torch.Tensor:
    """Where rows of mine are among those of the plan."""
    return rows // mine.sequence * planned.sequence + rows % mine.sequence


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
    for micro in forward["micro_batches"]:
        for op in micro["ops"]:
            op["attrs"].pop("sequence", None)
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
