"""One parameter that is in memory only while it is used."""
from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch import nn

from headrace.eager._place import Place

if TYPE_CHECKING:
    from headrace.eager._session import Session


class Remote(Place):
    """One parameter."""

    def __init__(self, session: "Session", name: str, parameter: nn.Parameter,
                 rule: dict[str, int]) -> None:
        super().__init__(session, name)
        self.parameter = weakref.ref(parameter)
        self.size, self.stride = parameter.size(), parameter.stride()
        self.dtype, self.nbytes, self.rule = parameter.dtype, parameter.nbytes, rule
        self.live: weakref.ref[torch.UntypedStorage] | None = None
        self.fetches = 0  # in this cycle
        self.stamp = 0  # rises with each change of its values
        self.users = 0  # forward passes that are inside its module
        parameter.__deepcopy__ = self._copied  # copy looks it up on the object
        self.store(parameter.detach())
        self.park()

    def _show(self, values: torch.Tensor) -> None:
        # set_() would make graphs of before and after add up their gradients apart: other bits.
        self.parameter().data = values
        torch.autograd.graph.increment_version(self.parameter())

    def bind(self, storage: torch.UntypedStorage) -> None:
        self._show(torch.empty(0, dtype=self.dtype).set_(storage, 0, self.size, self.stride))

    def park(self) -> None:
        nan = torch.full((1,), float("nan"), dtype=self.dtype)
        self._show(nan.expand(self.size))

    def store(self, values: torch.Tensor) -> None:
        """New values, from a dense tensor of its shape and strides: into the spill."""
        self.put(values.data_ptr(), self.nbytes)
        self.stamp += 1

    def value(self) -> torch.Tensor:
        """Its values in ordinary memory."""
        out = torch.empty_strided(self.size, self.stride, dtype=self.dtype)
        self.read(out.data_ptr(), self.nbytes)
        return out

    def end(self) -> None:
        """An ordinary parameter again."""
        parameter = self.parameter()
        if parameter is None or self.home == "memory":
            return
        with torch.no_grad():
            parameter.set_(self.value())
        parameter.__dict__.pop("__deepcopy__", None)
        self.in_memory()

    def _copied(self, memo: dict) -> nn.Parameter:
        parameter = self.parameter()
        if id(parameter) not in memo:
            with self.session.lock:
                self.session.deviate("a remote parameter is copied in the middle of a cycle")
                memo[id(parameter)] = nn.Parameter(self.value(), parameter.requires_grad)
        return memo[id(parameter)]
