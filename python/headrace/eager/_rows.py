"""A frozen table marked with @remote_memory: only the rows that a batch uses are in memory."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headrace.eager._remote import Remote
from headrace.eager._saved import ordinary_storage

if TYPE_CHECKING:
    from headrace.eager._session import Session

# Rows are read in blocks of about this size, each by one read; single rows would be one read each.
BLOCK_BYTES = 64 << 10


def by_rows(module: nn.Module) -> bool:
    """Whether a marked module is a table whose rows may come alone."""
    return (isinstance(module, nn.Embedding) and type(module).forward is nn.Embedding.forward
            and not module.weight.requires_grad and module.max_norm is None
            and module.weight.is_contiguous())


class Rows(Remote):
    """The table. home is "rows" while its blocks are in the spill."""

    def __init__(self, session: "Session", name: str, parameter: nn.Parameter,
                 rule: dict[str, int]) -> None:
        self._blocks: list[int] = []
        self._row_bytes = parameter.nbytes // len(parameter)
        self._in_block = max(1, BLOCK_BYTES // self._row_bytes)  # rows
        self._padding: int | None = None
        super().__init__(session, name, parameter, rule)

    def put(self, address: int, nbytes: int) -> None:
        self.in_memory()
        for begin, size in self._ranges():
            self._blocks.append(self.session.spill.put(address + begin, size))
        self.home = "rows"

    def read(self, address: int, nbytes: int) -> None:
        for block, (begin, size) in zip(self._blocks, self._ranges()):
            self.session.spill.get(block, address + begin, size)

    def in_memory(self) -> None:
        for block in self._blocks:
            self.session.spill.drop(block)
        self._blocks = []
        super().in_memory()

    def _ranges(self) -> list[tuple[int, int]]:
        step = self._in_block * self._row_bytes
        return [(begin, min(step, self.nbytes - begin)) for begin in range(0, self.nbytes, step)]

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """These rows (sorted, each once): [rows, columns], ordinary memory."""
        out = torch.empty(len(rows), *self.size[1:], dtype=self.dtype)
        room, _ = ordinary_storage(min(self.nbytes, self._in_block * self._row_bytes))
        ranges = self._ranges()
        blocks, counts = torch.unique_consecutive(rows // self._in_block, return_counts=True)
        at = 0
        for block, count in zip(blocks.tolist(), counts.tolist()):
            size = ranges[block][1]
            self.session.spill.get(self._blocks[block], room.data_ptr(), size)
            view = torch.empty(0, dtype=self.dtype).set_(
                room, 0, (size // self._row_bytes, *self.size[1:]))
            out[at:at + count] = view[rows[at:at + count] - block * self._in_block]
            at += count
        return out

    def enter(self, module: nn.Embedding, args: tuple) -> Any:
        """Before the table's forward pass: its rows come, and the numbers become theirs."""
        if self.home == "memory" or len(args) != 1:
            return None
        if self.parameter().requires_grad:  # thawed: an ordinary parameter from now on
            self.end()
            return None
        rows, inverse = torch.unique(args[0], return_inverse=True)
        if len(rows) and not 0 <= int(rows[0]) <= int(rows[-1]) < self.size[0]:
            raise IndexError(f"row {int(rows[-1])} or {int(rows[0])} of a table of {self.size[0]}")
        with self.session.lock, torch.no_grad():
            self.parameter().set_(self.take(rows))
        self.users, self._padding, module.padding_idx = 1, module.padding_idx, None
        return (inverse,)

    def leave(self, module: nn.Embedding, *_: Any) -> None:
        if self.users:
            self.users, module.padding_idx = 0, self._padding
            self.park()
