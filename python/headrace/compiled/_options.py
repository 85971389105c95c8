"""The options of torch.compile(model, backend="headrace", options={...})."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from .._errors import HeadraceError
from .._memory import parse_bytes

KNOWN = ("memory", "folder", "move", "verbose")


@dataclass
class Settings:
    """memory: bytes that the process may grow by (default: $HEADRACE_MEMORY, else 80 % of what the
    system says is available). folder: where values go that leave memory; None: the
    system's folder for scratch files. move: False: values are kept or computed again, none is
    moved. verbose: the plan's table is printed when it is made."""

    memory: int
    folder: Optional[str] = None
    move: bool = True
    verbose: bool = False


def _available() -> int:
    with open("/proc/meminfo") as lines:
        words = next(line.split() for line in lines if line.startswith("MemAvailable"))
    return int(words[1]) * 1024 * 4 // 5


def parse_options(options: Optional[Mapping[str, Any]]) -> Settings:
    """HeadraceError "usage" for what is unknown or no size."""
    options = dict(options or {})
    unknown = [name for name in options if name not in KNOWN]
    if unknown:
        raise HeadraceError(f"option '{unknown[0]}' is not known; the options are "
                            f"{', '.join(KNOWN)}")
    if "memory" not in options and "HEADRACE_MEMORY" not in os.environ:
        memory = _available()
    else:
        memory = parse_bytes(options.get("memory", os.environ.get("HEADRACE_MEMORY")))
    return Settings(memory, options.get("folder"), bool(options.get("move", True)),
                    bool(options.get("verbose", False)))
