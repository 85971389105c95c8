"""The options of torch.compile(model, backend="headrace", options={...})."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from .._errors import HeadraceError
from .._memory import parse_bytes

KNOWN = ("memory", "folder", "move", "verbose")


@dataclass
class Settings:
    """memory: bytes that the process may grow by. folder: where values go that leave memory; None: the
    system's folder for scratch files. move: False: values are kept or computed again, none is moved.
    verbose: the plan's table is printed when it is made."""

    memory: int
    folder: Optional[str] = None
    move: bool = True
    verbose: bool = False

    def machine(self) -> Optional[Any]:
        return None


def parse_options(options: Optional[Mapping[str, Any]]) -> Settings:
    """HeadraceError "usage" for what is missing, unknown or no size."""
    options = dict(options or {})
    unknown = [name for name in options if name not in KNOWN]
    if unknown:
        raise HeadraceError(f"option '{unknown[0]}' is not known; the options are "
                            f"{', '.join(KNOWN)}")
    if "memory" not in options:
        raise HeadraceError('options={"memory": "1GiB"} is needed: how much the process may grow')
    return Settings(parse_bytes(options["memory"]), options.get("folder"), bool(options.get("move", True)),
                    bool(options.get("verbose", False)))
