"""A Step as a workload (JSON, docs/guide/workload.md): what the planner sees of it."""
from __future__ import annotations

import json
import mmap
from typing import Any

import torch

from ._step import Step, Value

TURN = "headrace.turn"  # forward outputs leave, tangents come
END = "headrace.end"    # gradients leave
FILE = "scratch"        # the planner's name for the tier that values move to

# With the allocator's threshold of 64 KiB (tune_malloc) larger storages are pages of their own,
# with a page for the allocator's header in front.
OWN_PAGES_BYTES = 64 << 10


def allocated_bytes(nbytes: int) -> int:
    """What a storage of `nbytes` takes of the process."""
    if nbytes < OWN_PAGES_BYTES:
        return nbytes + 64
    return (nbytes + 2 * mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE


def workload_json(step: Step, *, move: bool = True, loss_seconds: float = 0.0) -> str:
    """Ops by their node names, values by theirs; parameters and inputs are no part of it.

    move: values may leave memory. loss_seconds: time between the forward and the backward pass.
    """
    tensors = [_tensor(value, move) for value in step.values]
    ops: list[dict[str, Any]] = []

    def something(name: str) -> list[int]:
        # Every op of a workload writes something.
        tensors.append({"name": f"{name}:done", "bytes": 1, "class": "other"})
        return [len(tensors) - 1]

    for at, op in enumerate(step.ops):
        if at == step.turn:
            ops.append(_turn(step, loss_seconds))
        ops.append({"name": op.name, "kernel": str(op.node.target), "inputs": op.inputs,
                    "outputs": op.outputs or something(op.name), "seconds": op.seconds,
                    "workspace": op.workspace, "recompute": op.recompute})
    if step.turn == len(step.ops):
        ops.append(_turn(step, loss_seconds))
    held = [at for at, value in enumerate(step.values) if value.pinned]
    ops.append({"name": END, "kernel": "headrace", "inputs": held,
                "outputs": something(END), "seconds": 0, "recompute": False})
    return json.dumps({"headrace_workload": 1, "name": "compiled step", "cyclic": False,
                       "tensors": tensors, "ops": ops})


def _tensor(value: Value, move: bool) -> dict[str, Any]:
    fields = {"name": value.name, "bytes": max(1, allocated_bytes(value.bytes)),
              "class": "gradient" if value.backward else "activation"}
    if value.pinned:
        fields["pinned"] = True
    elif not move or not is_movable(value):
        fields["forbidden_tiers"] = [FILE]
    return fields


def is_movable(value: Value) -> bool:
    """One dense tensor that is not small: its bytes can go and come back as a block."""
    if value.bytes < OWN_PAGES_BYTES or len(value.carriers) != 1:
        return False
    tensor = value.carriers[0].meta["val"]
    return (tensor.numel() * tensor.element_size() == value.bytes
            and torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _turn(step: Step, seconds: float) -> dict[str, Any]:
    leaving = [at for at, v in enumerate(step.values) if v.pinned and not v.backward]
    coming = [at for at, v in enumerate(step.values) if v.tangent]
    return {"name": TURN, "kernel": "headrace", "inputs": leaving, "outputs": coming,
            "seconds": seconds, "recompute": False}
