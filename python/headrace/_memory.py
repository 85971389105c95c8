"""Amounts of memory, as people write them."""

from __future__ import annotations

import operator
from typing import Union

from headrace import _core
from headrace._errors import HeadraceError

Size = Union[int, str]


def parse_bytes(size: Size, what: str = "memory") -> int:
    """Bytes of `size`: an int, or text such as "1.5GiB", "128MB", "800M" (MiB).

    Units are those of the command line: KiB, MiB, GiB, TiB are powers of 1024, and so are K, M, G,
    T; KB, MB, GB, TB are powers of 1000. `what` names the argument in errors.

    Raises:
        HeadraceError: "usage", with what was given, for anything that is no size above zero.
    """
    if isinstance(size, bool) or size is None:
        raise HeadraceError(f"{what}={size!r}: write a size, 512 * 2**20 or \"512MiB\"")
    if not isinstance(size, str):
        try:
            count = operator.index(size)
        except TypeError:
            raise HeadraceError(
                f"{what}={size!r}: write a size, 512 * 2**20 or \"512MiB\"") from None
        if count <= 0:
            raise HeadraceError(f"{what}={count}: a size is above zero")
        return count
    text = size.strip()
    if text.endswith("%") or text.lower() == "auto":
        raise HeadraceError(
            f"{what}={size!r}: of what is for you to say; write a size, \"512MiB\" or \"1.5GiB\"")
    try:
        return _core.parse_size(text)
    except HeadraceError as error:
        raise HeadraceError(f"{what}={size!r}: {error}") from None
