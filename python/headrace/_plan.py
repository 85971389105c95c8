"""headrace.plan: what a step will do with its memory, before it runs."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional, Union

from headrace import _core
from headrace._errors import HeadraceError
from headrace._memory import Size, parse_bytes

Workload = Union[str, "os.PathLike[str]", Mapping[str, Any]]
MachineLike = Union[None, str, "os.PathLike[str]", _core.Machine]

# Formats that the core tells apart by their keys, docs/guide/workload.md.
_DOCUMENT_KEYS = ("headrace_workload", "kernels", "step")
_MODEL_ENDINGS = (".gguf", ".safetensors")


def plan(workload: Workload, memory: Size, *, machine: MachineLike = None,
         folder: Union[None, str, "os.PathLike[str]"] = None, recompute: bool = True,
         reorder: bool = True, goal: str = "latency") -> _core.Plan:
    """Plans one step of computation in `memory` bytes of the device.

    Args:
        workload: a file with a workload, a step config, a kernel trace (JSON) or a graph; its text;
            or a mapping: {"preset": "llama-8b", "phase": "train", "batch": 1, "sequence": 4096}.
            docs/guide/workload.md teaches the formats.
        memory: of the device, bytes or text ("24GiB").
        machine: what to plan for: the name of a profile (Machine.profiles()), a machine file, a
            Machine; None: this computer, its disk measured once in half a second.
        folder: plan for this computer with a scratch file there, in place of the machine's tiers.
        recompute: ops may run twice to save memory.
        reorder: ops may run in another order.
        goal: "fit" (the first plan found), "latency", or "throughput" (the step repeats).

    Returns:
        Plan: print it, or show it in a notebook, for the table; its times are seconds.

    Raises:
        DoesNotFit: with needed_bytes, budget_bytes and options.
        HeadraceError: what cannot be read or planned, by name.
    """
    return _core.plan_workload(
        _text_of(workload), parse_bytes(memory), machine=find_machine(machine),
        folder=None if folder is None else os.fspath(folder), recompute=recompute,
        reorder=reorder, goal=goal)


def find_machine(machine: MachineLike) -> Optional[_core.Machine]:
    """A Machine from what users write for one; None stays None."""
    if machine is None or isinstance(machine, _core.Machine):
        return machine
    name = os.fspath(machine)
    if os.sep in name or os.path.exists(name):
        return _core.Machine.from_file(name)
    return _core.Machine.from_profile(name)


def _text_of(workload: Workload) -> str:
    if isinstance(workload, Mapping):
        document = dict(workload)
        known = any(key in document for key in _DOCUMENT_KEYS)
        return json.dumps(document if known else {"step": document})
    text = os.fspath(workload)
    if text.lstrip().startswith("{") or text.startswith("graph "):
        return text
    if os.path.isdir(text) or text.endswith(_MODEL_ENDINGS):
        raise HeadraceError(
            f"{text} is a model: `headrace plan {text}` plans how it runs; this plans steps",
            "unsupported")
    try:
        with open(text, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise HeadraceError(f"cannot read {text}: {error.strerror}", "io") from error
    except UnicodeDecodeError as error:
        raise HeadraceError(f"{text} is no text, and so no workload", "bad_file") from error
