"""Passes at run time: what a forward pass leaves for its backward pass, and which plan both follow.

AOTAutograd is given two graphs that never change: forward returns its outputs, the kept primals
and a *token*; backward takes the last two and the tangents. What is really saved lies in the
Record that the token's storage owns, so each call may follow another plan, and a Record dies when
autograd lets go of the token: at the end of the backward pass, or when there never was one.
"""
from __future__ import annotations

import itertools
import weakref
from typing import Any, Optional

import torch
from torch import fx

from .._errors import HeadraceError
from ..eager._saved import check_version
from ._emit import Emission
from ._moves import Moves
from ._planner import Ledger, PassPlans
from ._step import Step
from ._uses import note_remote

TOKEN_BYTES = 8
_numbers = itertools.count(1)
_records: "weakref.WeakValueDictionary[int, Record]" = weakref.WeakValueDictionary()


class Record(bytearray):
    """What one forward pass has saved. The memory of its token: torch.frombuffer keeps it alive."""

    def __init__(self, emission: Emission, saved: list[torch.Tensor], moves: Optional[Moves],
                 ledger: Ledger) -> None:
        super().__init__(TOKEN_BYTES)
        self.ledger: Optional[Ledger] = ledger
        ledger.pending += 1
        self.emission = emission
        self.saved: Optional[list[torch.Tensor]] = saved
        # Some of them are outputs as well: the caller may change those in place.
        self.versions = [tensor._version for tensor in saved]
        self.moves = moves
        self.number = next(_numbers)
        self[:] = self.number.to_bytes(TOKEN_BYTES, "little")
        _records[self.number] = self

    __hash__ = object.__hash__

    def end(self) -> None:
        """Its backward pass is over, or will never be."""
        if self.ledger is not None:
            self.ledger.pending -= 1
            self.ledger = None
            if self.moves is not None:
                self.moves.end()

    def __del__(self) -> None:
        self.end()

    def token(self) -> torch.Tensor:
        """uint8 [8]: the record's number, in the record's own memory."""
        return torch.frombuffer(self, dtype=torch.uint8)


def record_of(token: torch.Tensor) -> Record:
    record = _records.get(int.from_bytes(bytes(token.tolist()), "little"))
    if record is None:
        raise HeadraceError("the backward pass was given a token of no forward pass of headrace")
    return record


def _graph_is_kept() -> bool:
    # Private, but the only way to know retain_graph; AOTAutograd asks the same.
    keep = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    if keep is None:
        raise HeadraceError(f"torch {torch.__version__} does not say whether a graph is retained; "
                            "torch >= 2.6 is needed", "unsupported")
    return keep()


class Pass:
    """One compiled graph: forward and backward as AOTAutograd calls them. Boxed: both empty the
    list of arguments that they are given."""

    def __init__(self, step: Step, ledger: Ledger, goes_on: bool) -> None:
        """goes_on: the model goes on after this graph (a graph break)."""
        self.step = step
        self.ledger = ledger
        self.plans = PassPlans(step, ledger, goes_on)
        self.kept = [step.primals.index(p) for p in step.kept_primals]
        self.outputs = len(step.forward_outputs)

    def forward(self, args: list[Any]) -> list[Any]:
        """primals -> forward outputs, kept primals, token."""
        if note_remote(self.step, args):
            self.plans.made, self.plans.search = [], None
        plan = self.plans.choose()
        kept = [args[i] for i in self.kept]
        moves = plan.mover.begin() if plan.mover is not None else None
        try:
            results = list(plan.emission.forward(args))
        except BaseException:
            if moves is not None:
                moves.end()
            raise
        outputs, saved = results[:self.outputs], results[self.outputs:]
        del results
        # An output gets a history that leads to the token, so to the record: never to be freed.
        ours = {id(tensor) for tensor in outputs}
        saved = [tensor.detach() if id(tensor) in ours else tensor for tensor in saved]
        record = Record(plan.emission, saved, moves, self.ledger)
        return [*outputs, *kept, record.token()]

    def backward(self, args: list[Any]) -> tuple[Any, ...]:
        """kept primals, token, tangents -> gradients."""
        count = len(self.kept)
        record = record_of(args[count])
        if record.saved is None:
            raise HeadraceError("backward a second time: give retain_graph=True to the first")
        for tensor, version in zip(record.saved, record.versions):
            check_version(tensor, version)
        given = [*record.saved, *args[:count], *args[count + 1:]]
        args.clear()
        kept = _graph_is_kept()
        if record.moves is not None:
            record.moves.mover.resume(record.moves, kept)
        if kept:
            return record.emission.backward(given)
        record.saved = None
        try:
            return record.emission.backward(given)
        finally:
            record.end()


def _call(graph: fx.Graph, name: str, inputs: list[fx.Node], results: list[Any]) -> list[Any]:
    """A node that stands for the whole pass, and one for each of the results that is a tensor."""
    def stand_in(*_: Any) -> Any:
        raise HeadraceError("this graph only describes a pass; compiled autograd is not served",
                            "unsupported")
    stand_in.__name__ = name
    body = graph.call_function(stand_in, tuple(inputs))
    body.meta["val"] = tuple(results)
    made: list[Any] = []
    for at, value in enumerate(results):
        if isinstance(value, torch.Tensor):
            node = graph.call_function(lambda x, i: x[i], (body, at))
            node.meta["val"] = value
            made.append(node)
        else:
            made.append(value)
    return made


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else node


def _entry(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.placeholder(node.name)
    made.meta = dict(node.meta)
    return made


def interface_graphs(step: Step, descriptions: list[Any]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The two graphs for AOTAutograd: only names, metadata and order of what goes in and out.

    descriptions: what the joint graph's output node says of its outputs, in order.
    """
    outputs = len(step.forward_outputs)
    forward = fx.Graph()
    primals = {p: _entry(forward, p) for p in step.primals}
    kept = [primals[p] for p in step.kept_primals]
    # A token that shares memory with an input (in name only) is not taken for a buffer that the
    # backward pass may overwrite, which would rule retain_graph out.
    base = next(v for v in map(_value, step.primals) if isinstance(v, torch.Tensor))
    token = base.detach()
    made = _call(forward, "headrace_forward", list(primals.values()),
                 [*map(_value, step.forward_outputs), token])
    forward.output((*made[:outputs], *kept, made[-1])).meta["desc"] = [
        *descriptions[:outputs], *[None] * (len(kept) + 1)]
    backward = fx.Graph()
    entries = [_entry(backward, p) for p in step.kept_primals]
    entry = backward.placeholder("headrace_token")
    entry.meta["val"] = token
    tangents = [_entry(backward, t) for t in step.tangents]
    made = _call(backward, "headrace_backward", [*entries, entry, *tangents],
                 [*map(_value, step.backward_outputs)])
    backward.output(tuple(made)).meta["desc"] = list(descriptions[outputs:])
    return fx.GraphModule(step.module, forward), fx.GraphModule(step.module, backward)
