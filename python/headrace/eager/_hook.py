"""Hooks at modules that copies of the modules do not inherit."""
from __future__ import annotations

from typing import Any, Callable


class Hook:
    """A hook of a module. A copy of the module, deep or by pickle, gets one that does nothing."""

    def __init__(self, function: Callable | None = None) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return None if self.function is None else self.function(*args)

    def __deepcopy__(self, memo: dict) -> "Hook":
        return Hook()

    def __reduce__(self) -> tuple:
        return Hook, ()
