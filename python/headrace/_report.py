"""Pictures and rankings of the door used last.

Doors call note(plan, engine) when they have a plan, and again when it changes. `plan` has what
_core.Plan has of timeline_html(path) and hotspots_text(limit), or is a function that makes one:
where everything fits nobody needs a plan, unless somebody asks here. `engine`, when given, has
trace(), which returns a run with the same two, and save() and save_snapshot() of _core.Run.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Optional, Union

from headrace._errors import HeadraceError
from headrace._text import Text

_plan: Optional[Any] = None
# Weak: what is reported on must be free to end.
_engine: Optional["weakref.ref[Any]"] = None


def note(plan: Any, engine: Optional[Any] = None) -> None:
    """The plan that is used from now on, or a function that makes it, and what runs it."""
    global _plan, _engine
    _plan = plan
    _engine = None if engine is None else weakref.ref(engine)


def last_run() -> Any:
    """The last run of the door used last; what its plan predicts when nothing has run yet.

    Raises:
        HeadraceError: "usage" when no step of a door has ended.
    """
    global _plan
    if _plan is None:
        raise HeadraceError(
            "no training step has ended yet under headrace.fit, compile_step or "
            "torch.compile(backend=\"headrace\"); plans have timeline_html() of their own")
    if callable(_plan):
        _plan = _plan()
    engine = None if _engine is None else _engine()
    if engine is None:
        return _plan
    try:
        return engine.trace()
    except HeadraceError:  # no run has ended yet
        return _plan


def memory_timeline(path: Union[str, "os.PathLike[str]"] = "timeline.html") -> str:
    """Draws the last run of the door used last: every tier's bytes, the streams, the stalls.

    Args:
        path: the file to write. "….html": one page that needs no network; "….pickle": a memory
            snapshot for PyTorch's viewers; "….json": a Trace, for Perfetto and `headrace timeline`.

    Returns:
        The path.

    Raises:
        HeadraceError: "usage" when nothing has been planned, or for another ending; "io".
    """
    run, target = last_run(), os.fspath(path)
    if target.endswith((".html", ".htm")):
        run.timeline_html(target)
        return target
    if target.endswith((".pickle", ".json")):
        run = run.predicted() if hasattr(run, "predicted") else run
        (run.save_snapshot if target.endswith(".pickle") else run.save)(target)
        return target
    raise HeadraceError(f"{target}: the endings are .html, .pickle and .json")


def hotspot_analysis(limit: int = 10) -> Text:
    """What holds the peak of memory, what the stalls wait for, and what would help, ranked.

    Of the last run of the door used last, or of its plan when nothing has run yet.

    Args:
        limit: rows of each list.

    Returns:
        Text of at most 100 columns.

    Raises:
        HeadraceError: "usage" when nothing has been planned.
    """
    return Text(last_run().hotspots_text(limit))
