"""Errors: every refusal of headrace is a HeadraceError, and says what it is by its code."""

from __future__ import annotations

from typing import Sequence


class HeadraceError(RuntimeError):
    """What headrace refuses, or could not do.

    Attributes:
        code: "usage" (asked for something meaningless), "does_not_fit", "bad_file",
            "unsupported" (a valid wish that is not served; the message names it), "io",
            "not_finite" or "cancelled".
    """

    def __init__(self, message: str, code: str = "usage") -> None:
        super().__init__(message)
        self.code = code


class DoesNotFit(HeadraceError):
    """It cannot be done in the memory given.

    Attributes:
        needed_bytes: the least memory that would do; 0: unknown.
        budget_bytes: the memory given; 0: unknown.
        options: what would make it fit, the best first.
    """

    def __init__(self, message: str, needed_bytes: int = 0, budget_bytes: int = 0,
                 options: Sequence[str] = ()) -> None:
        super().__init__(message, "does_not_fit")
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.options = list(options)
