"""Where bytes that last longer than a cycle are: a chunk of optimizer state, a remote parameter."""
from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._moved import MovedTensors
from headrace.eager._saved import ordinary_storage

if TYPE_CHECKING:
    import torch

    from headrace.eager._session import Session


class Place:
    """home: "memory" (tensors of PyTorch have the bytes), "spill" or "engine"."""

    def __init__(self, session: "Session", name: str) -> None:
        self.session, self.name = session, name
        self.home = "memory"
        self.moved: MovedTensors | None = None  # the engine that has it
        self._spilled: int | None = None

    def read(self, address: int, nbytes: int) -> None:
        """Copies its bytes; home is not memory."""
        if self.home == "spill":
            self.session.spill.get(self._spilled, address, nbytes)
        elif self.moved.deviated:
            self.moved.read(self.name, address, nbytes)
        else:
            self.moved.read_state(self.name, address, nbytes)

    def copy(self, nbytes: int) -> "torch.UntypedStorage":
        """Its bytes in ordinary memory."""
        storage = ordinary_storage(nbytes)[0]
        self.read(storage.data_ptr(), nbytes)
        return storage

    def in_memory(self) -> None:
        """From now on tensors have the bytes."""
        if self._spilled is not None:
            self.session.spill.drop(self._spilled)
        self.home, self.moved, self._spilled = "memory", None, None

    def in_engine(self, moved: MovedTensors) -> None:
        """From now on the engine has them."""
        self.in_memory()
        self.home, self.moved = "engine", moved

    def put(self, address: int, nbytes: int) -> None:
        """Into the spill, wherever they were."""
        self.in_memory()
        self._spilled = self.session.spill.put(address, nbytes)
        self.home = "spill"

    def into(self, moved: MovedTensors, nbytes: int) -> None:
        """From the spill into an engine that is between cycles."""
        if self.home == "spill":
            image = self.copy(nbytes)
            moved.write_state(self.name, image.data_ptr(), nbytes)
            self.in_engine(moved)

    def out_of(self, moved: MovedTensors, nbytes: int) -> None:
        """This engine ends: what only it has goes to the spill."""
        if self.home == "engine" and self.moved is moved:
            image = self.copy(nbytes)
            self.put(image.data_ptr(), nbytes)
