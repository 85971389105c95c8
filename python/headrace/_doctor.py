"""headrace.doctor: what a PyTorch memory snapshot says; and runs of ours in that format."""

from __future__ import annotations

import json as _json
import os
from typing import Any, Literal, Union, overload

from headrace import _core
from headrace._plan import MachineLike, find_machine
from headrace._text import Text

Path = Union[str, "os.PathLike[str]"]


@overload
def doctor(path: Path, *, machine: MachineLike = ..., slowdown: float = ..., plan: bool = ...,
           json: Literal[False] = ...) -> Text: ...


@overload
def doctor(path: Path, *, machine: MachineLike = ..., slowdown: float = ..., plan: bool = ...,
           json: Literal[True]) -> dict[str, Any]: ...


def doctor(path: Path, *, machine: MachineLike = None, slowdown: float = 0.03, plan: bool = True,
           json: bool = False) -> Any:
    """Why a PyTorch run needed its memory, and what would help, from a memory snapshot.

    The file is what torch.cuda.memory._dump_snapshot(path) writes. It is read by a reader that
    knows nothing but data: nothing in it is executed. Ranked by bytes: how little would do for the
    same run, patterns that waste memory, devices that differ, and what stays although its use is
    over.

    Args:
        path: the snapshot.
        machine: what the plan is made for: a profile's name, a machine file, a Machine; None:
            "a100-pcie3".
        slowdown: what a plan may cost, 0.03 is 3 %.
        plan: also say how much memory a plan of the same trace would have needed (seconds).
        json: return the findings as data instead of text.

    Returns:
        Text for people, at most 100 columns; a dict with json=True.

    Raises:
        HeadraceError: "io", "bad_file" (no snapshot), "unsupported".
    """
    text = _core.doctor(os.fspath(path), machine=find_machine(machine), slowdown=slowdown,
                        plan=plan, json=json)
    return _json.loads(text) if json else Text(text)


def snapshot_of(run: Union[_core.Plan, _core.Run, _core.Engine], path: Path) -> None:
    """Writes a plan (as predicted) or a run as a memory snapshot for PyTorch's viewers.

    pytorch.org/memory_viz and torch.cuda._memory_viz open it; each tier is a device there.

    Raises:
        HeadraceError: "io"; "usage" when the engine has not run yet.
    """
    if isinstance(run, _core.Plan):
        run = run.predicted()
    elif isinstance(run, _core.Engine):
        run = run.trace()
    run.save_snapshot(os.fspath(path))
