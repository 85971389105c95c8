"""What single ops take: seconds, and memory besides their operands; each distinct one once.

An op is run on made-up operands of the shapes, strides and types that the graph gives (halves in
floats, zeros in indices and masks: valid for every op that reads indices). Its memory is the peak
of the process while it runs (VmHWM, reset before, so the peak that /proc shows begins anew here).
"""
from __future__ import annotations

import time
from typing import Any, NamedTuple, Optional

import torch
from torch import fx
from torch.fx.node import map_arg

from .. import _core
from ._step import Op, Step, refuse, storage_key, tensors_of

# Below this the process's counters are no help: the kernel batches them, 256 KiB a thread.
LEAST_WORKSPACE = 512 << 10
# An op that takes this long is run once more only for its workspace: noise does not matter.
LONG_SECONDS = 0.01
# When an op cannot be run on made-up operands: bytes a second that it is taken to touch.
FALLBACK_BYTES_PER_S = 4e9
# An operand is the one of the op before when that is larger by at most this.
SPARE_PART = 1.25
# What remote parameters come with, from a disk: for the choice whether to run an op again.
READ_BYTES_PER_S = 1e9


def signature(node: fx.Node) -> str:
    """Equal for ops that take the same time: target, shapes, strides, types, other arguments."""
    def text(arg: Any) -> Any:
        if isinstance(arg, fx.Node):
            value = arg.meta.get("val")
            if isinstance(value, torch.Tensor):
                return f"{value.dtype}{tuple(value.shape)}{value.stride()}"
            return str(type(value))
        return arg
    return f"{node.target}{map_arg(node.args, text)}{map_arg(node.kwargs, text)}"


def _fill(base: torch.Tensor, dtype: torch.dtype) -> None:
    if dtype.is_floating_point or dtype.is_complex:
        base.fill_(0.5)
    else:
        base.zero_()


class _Operands:
    """Real tensors in place of nodes; what shares a storage in the graph shares one here. (A class:
    functions that call each other would be a cycle, and keep the tensors until it is collected.)"""

    def __init__(self, spare: list[torch.Tensor]) -> None:
        """spare: operands of the op before; filled they are already, and in memory."""
        self.bases: dict[int, torch.Tensor] = {}
        self.spare = spare

    def of(self, node: fx.Node) -> Any:
        if "val" not in node.meta:
            raise refuse(f"{node.name} has no known value")
        return self.real(node.meta["val"])

    def real(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self.real(v) for v in value)
        if not isinstance(value, torch.Tensor):
            return value
        key = storage_key(value)
        if key not in self.bases:
            count = value.untyped_storage().nbytes() // value.element_size()
            self.bases[key] = self._base(count, value.dtype)
        base = self.bases[key]
        if base.dtype != value.dtype:
            base = base.view(value.dtype)
        return base.as_strided(value.shape, value.stride(), value.storage_offset())

    def _base(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        for at, base in enumerate(self.spare):
            if base.dtype == dtype and count <= base.numel() <= count * SPARE_PART:
                return self.spare.pop(at)
        base = torch.empty(count, dtype=dtype)
        _fill(base, dtype)
        return base


class _Taken(NamedTuple):
    """What one run of an op took. aliases: how many of its results lie in operands' memory."""

    seconds: float
    workspace: int
    aliases: int


def _once(node: fx.Node, args: Any, kwargs: Any, lent: set[int]) -> _Taken:
    resident = _core.process_memory().rss
    _core.reset_peak()
    began, began_cpu = time.perf_counter(), time.process_time()
    result = node.target(*args, **kwargs)
    # More than its processor time is somebody else's: 77 s for a step of 13 measured on a busy
    # machine.
    seconds = min(time.perf_counter() - began, time.process_time() - began_cpu)
    growth = _core.process_memory().peak - resident
    outputs = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_of(result)}
    return _Taken(seconds, _workspace(growth, outputs), len(outputs.keys() & lent))


def _run(node: fx.Node, spare: list[torch.Tensor]) -> _Taken:
    """spare: operands of the op before; afterwards those of this one."""
    operands = _Operands(spare)
    args, kwargs = map_arg(node.args, operands.of), map_arg(node.kwargs, operands.of)
    spare.clear()  # an op has no more in memory than it needs
    lent = {t.untyped_storage()._cdata
            for t in (*tensors_of(args), *tensors_of(tuple(kwargs.values())))}
    taken = _once(node, args, kwargs, lent)
    if not node.target._schema.is_mutable:
        spare.extend(operands.bases.values())
    if taken.seconds > LONG_SECONDS and taken.workspace == 0:
        return taken
    taken = _once(node, args, kwargs, lent)  # the first run also makes what a library keeps
    if taken.seconds > LONG_SECONDS:
        return taken
    return taken._replace(seconds=min(taken.seconds, _once(node, args, kwargs, lent).seconds))


def _workspace(growth: int, outputs: dict[int, int]) -> int:
    spare = growth - sum(outputs.values())
    return spare if spare > LEAST_WORKSPACE else 0


def _measured(op: Op, step: Step, spare: list[torch.Tensor]) -> _Taken:
    try:
        return _run(op.node, spare)
    except RuntimeError:
        # Made-up operands are no valid ones for it (a singular matrix, a bad probability).
        touched = sum(step.values[v].bytes for v in (*op.inputs, *op.outputs))
        return _Taken(touched / FALLBACK_BYTES_PER_S, max(LEAST_WORKSPACE, touched), 0)


_known: dict[str, _Taken] = {}  # by signature


def measure(step: Step, known: Optional[dict[str, _Taken]] = None) -> None:
    """Sets seconds and workspace of every op of the step.

    known: what signatures took, kept for the next call (default: one table a process).
    HeadraceError "unsupported" when an op returns a view where the graph says a new tensor.
    """
    table = _known if known is None else known
    spare: list[torch.Tensor] = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for op in step.ops:
            key = signature(op.node)
            if key not in table:
                table[key] = _measured(op, step, spare)
            op.seconds, op.workspace, aliases = table[key]
            op.seconds += op.remote / READ_BYTES_PER_S
            op.workspace += op.remote
            if aliases and op.outputs:
                raise refuse(f"{op.node.target} ({op.name}) returns memory of its operands, "
                             "which its meta kernel does not say")
