"""Headrace: deep learning in the memory you give it.

    model, optimizer = headrace.fit(model, optimizer, memory="1GiB")      # eager training
    model = torch.compile(model, backend="headrace", options={"memory": "1GiB"})
    step = headrace.compile_step(train_step, model, optimizer, memory="1GiB")

    print(headrace.plan({"preset": "llama-8b", "phase": "train", "shards": 8}, "24GiB",
                        machine="h200-pcie5"))
    print(headrace.doctor("snapshot.pickle"))

`plan` and `doctor` need no PyTorch; what does imports it when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headrace._core import (
    Engine,
    Instr,
    Machine,
    Plan,
    Run,
    process_memory,
    reset_peak,
    tune_malloc,
)
from headrace._core import version as __version__
from headrace._doctor import doctor, snapshot_of
from headrace._errors import DoesNotFit, HeadraceError
from headrace._memory import parse_bytes
from headrace._plan import plan
from headrace._remote import RemoteMemory, remote_memory
from headrace._report import hotspot_analysis, memory_timeline

if TYPE_CHECKING:
    from headrace.eager import fit, release
    from headrace.step import compile_step

__all__ = [
    "DoesNotFit",
    "Engine",
    "HeadraceError",
    "Instr",
    "Machine",
    "Plan",
    "RemoteMemory",
    "Run",
    "__version__",
    "compile_step",
    "doctor",
    "fit",
    "hotspot_analysis",
    "memory_timeline",
    "parse_bytes",
    "plan",
    "process_memory",
    "release",
    "remote_memory",
    "reset_peak",
    "snapshot_of",
    "tune_malloc",
]

# Names that need PyTorch, and where they are.
_NEEDS_TORCH = {
    "fit": "headrace.eager",
    "release": "headrace.eager",
    "compile_step": "headrace.step",
}


def __getattr__(name: str) -> Any:
    module = _NEEDS_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise HeadraceError(
            f"headrace.{name} needs PyTorch 2.6 or newer, which is not installed: pip install "
            "torch", "unsupported") from error
    globals()[name] = found  # found once
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_NEEDS_TORCH))
