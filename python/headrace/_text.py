"""Text that reads as text wherever it ends up: print, a prompt, a notebook."""

from __future__ import annotations

import html


class Text(str):
    """A string that a prompt and a notebook show as it is, line by line."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"
