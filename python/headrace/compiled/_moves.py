"""Values that leave memory during a pass: what stands behind headrace::store, load, wait and tick.

The moves of a schedule, in its order, are events: a workload of their own. Its plan has an arena
that the bytes go through, and MovedTensors follows it, once for each pass from the beginning of
the forward to the end of the backward graph. One pass at a time can: a pass that begins in
between, and what is left of one that does not go as planned, puts its values in a scratch file one
by one.
"""
from __future__ import annotations

import itertools
import os
import threading
import weakref
from typing import Any, NamedTuple, Optional, Union

import torch

from .. import _core
from .._moved import END, MovedTensors, moved_workload
from ._ops import register_mover
from ._schedule import Action
from ._step import Step

TICK = "t"  # the name of every tick

_numbers = itertools.count(1)
_items = itertools.count(1)


def _key(step: Step, value: int, time: int) -> str:
    return f"{step.values[value].name}#{time}"


def events_workload(step: Step, actions: list[Action]) -> str:
    """The workload (JSON) whose ops are the moves of the schedule. A tick after each pack: the
    Store begins there."""
    events, seconds, sizes = [], [], {}
    stored: dict[int, int] = {}
    waited: dict[str, int] = {}
    for action in actions:
        if action.kind == "run":
            if seconds:
                seconds[-1] += step.ops[action.index].seconds
            continue
        if action.kind == "turn":
            continue
        value = action.index
        if action.kind == "store":
            stored[value] = stored.get(value, -1) + 1
            key = _key(step, value, stored[value])
            sizes[key] = step.values[value].bytes
            events.append(f"pack:{key}")
            seconds.append(0.0)
        if action.kind == "wait":
            key = _key(step, value, stored[value])
            waited[key] = waited.get(key, -1) + 1
            events.append(f"unpack:{key}:{waited[key]}")
        else:
            events.append(f"tick:{TICK}")
        seconds.append(0.0)
    return moved_workload(events, seconds, sizes, cyclic=True, name="moved values")


class _Layout(NamedTuple):
    """How a tensor lies in its storage of `bytes` bytes. Taken from the tensor that is stored, as
    meta kernels do not always give the strides that the real ones give."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bytes: int

    @staticmethod
    def of(tensor: torch.Tensor) -> "_Layout":
        return _Layout(tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype,
                       tensor.untyped_storage().nbytes())

    def empty(self) -> torch.Tensor:
        return torch.empty(0, dtype=self.dtype).set_(
            torch.UntypedStorage(self.bytes), self.offset, self.size, self.stride)


class _Followed:
    """A pass that follows the plan of its moves."""

    def __init__(self, moved: MovedTensors) -> None:
        self.moved = moved
        self.stored: dict[int, int] = {}
        self.waited: dict[str, int] = {}
        moved.begin()

    def store(self, tensor: torch.Tensor, value: int, step: Step) -> str:
        self.stored[value] = self.stored.get(value, -1) + 1
        key = _key(step, value, self.stored[value])
        self.moved.pack(key, tensor)
        self.moved.tick(TICK)
        return key

    def tick(self) -> None:
        self.moved.tick(TICK)

    def wait(self, key: str, layout: _Layout) -> torch.Tensor:
        self.waited[key] = self.waited.get(key, -1) + 1
        there = self.moved.storage(key, self.waited[key])
        # Memory of its own: the arena's is used again as soon as the plan says.
        made = layout.empty()
        _core.copy_in(made.untyped_storage().data_ptr(), there.data_ptr(), layout.bytes)
        return made


class _Spilled:
    """A pass without a plan: each value is written and read where it happens."""

    def __init__(self, spill: _core.Spill) -> None:
        self.spill = spill
        self.held: list[int] = []

    def store(self, tensor: torch.Tensor, value: int, step: Step) -> int:
        storage = tensor.untyped_storage()
        self.held.append(self.spill.put(storage.data_ptr(), storage.nbytes()))
        return self.held[-1]

    def tick(self) -> None:
        pass

    def wait(self, key: int, layout: _Layout) -> torch.Tensor:
        made = layout.empty()
        self.spill.get(key, made.untyped_storage().data_ptr(), layout.bytes)
        return made

    def drop(self) -> None:
        for number in self.held:
            self.spill.drop(number)
        self.held = []


class Moves:
    """The moves of one pass; lives as long as its Record."""

    def __init__(self, mover: "Mover", way: Union[_Followed, _Spilled]) -> None:
        self.mover = mover
        self.way = way
        self.keys: dict[int, Any] = {}  # by token
        self.layouts: dict[int, _Layout] = {}  # by token

    def end(self) -> None:
        """The backward pass is over, or will never be."""
        self.mover.end(self)


_movers: "weakref.WeakSet[Mover]" = weakref.WeakSet()


def _forked() -> None:
    """In a child process: none of the parent's other threads is there to give back a lock."""
    for mover in _movers:
        mover.lock = threading.RLock()
        mover.inherited = True


os.register_at_fork(after_in_child=_forked)


class Mover:
    """What the ops of one emission speak to. Its arena and files live as long as it does."""

    def __init__(self, step: Step, plan: _core.Plan, folder: Optional[str]) -> None:
        """plan: of events_workload."""
        self.step = step
        self.plan = plan
        self.folder = folder
        self.number = next(_numbers)
        self.lock = threading.RLock()
        self.moved: Optional[MovedTensors] = None
        self.spill: Optional[_core.Spill] = None
        self.user: Optional[Moves] = None     # who follows the plan now
        self.inherited = False                # the parent process has the engine and the files
        self._threads = threading.local()
        _movers.add(self)
        register_mover(self.number, self)

    @property
    def current(self) -> Optional[Moves]:
        """Whose graph is running in this thread."""
        return getattr(self._threads, "current", None)

    @current.setter
    def current(self, moves: Optional[Moves]) -> None:
        self._threads.current = moves

    @property
    def held_bytes(self) -> int:
        """Memory that it holds between passes."""
        return self.plan.arena_bytes if self.moved is not None else 0

    def begin(self) -> Moves:
        """A forward pass begins."""
        with self.lock:
            if self.user is None:
                if self.moved is None:
                    self.moved = MovedTensors(self.plan, self.folder)
                moves = self.user = Moves(self, _Followed(self.moved))
            else:
                moves = Moves(self, self._spilled())
            self.current = moves
            return moves

    def _spilled(self) -> _Spilled:
        if self.spill is None:
            self.spill = _core.Spill(self.folder)
        return _Spilled(self.spill)

    def resume(self, moves: Moves, kept: bool) -> None:
        """Its backward pass begins; kept: it may come again, which no plan provides for."""
        with self.lock:
            if kept and isinstance(moves.way, _Followed):
                self._leave(moves)
            self.current = moves

    def _leave(self, moves: Moves) -> None:
        """What the plan has goes to the scratch file."""
        assert self.moved is not None
        moved, self.moved, self.user = self.moved, None, None
        wanted = set(moved.abandon())
        way = self._spilled()
        for token, key in moves.keys.items():
            if key in wanted:
                nbytes = moves.layouts[token].bytes
                buffer = torch.empty(nbytes, dtype=torch.uint8)
                moved.read(key, buffer.data_ptr(), nbytes)
                moves.keys[token] = way.store(buffer, -1, self.step)
        moves.way = way

    def end(self, moves: Moves) -> None:
        with self.lock:
            if self.inherited:
                return  # who frees memory in a fork may not be bothered
            if isinstance(moves.way, _Spilled):
                moves.way.drop()
            elif self.user is moves:
                self._end_followed()
            if self.current is moves:
                self.current = None

    def _end_followed(self) -> None:
        assert self.moved is not None
        self.user = None
        if self.moved.expects() == END:
            self.moved.end()
        else:
            self.moved.abandon()  # a forward pass without its backward pass: nothing is wanted
            self.moved = None

    def release(self) -> None:
        """Another plan is followed from now on: the arena goes back, unless a pass still needs
        it."""
        with self.lock:
            if self.user is None:
                self.moved = None

    # What the ops ask for.

    def store(self, tensor: torch.Tensor, value: int) -> int:
        with self.lock:
            token = next(_items)
            moves = self._now()
            moves.layouts[token] = _Layout.of(tensor)
            moves.keys[token] = moves.way.store(tensor, value, self.step)
            return token

    def load(self, token: int, value: int) -> None:
        with self.lock:
            self._now().way.tick()

    def tick(self) -> None:
        with self.lock:
            self._now().way.tick()

    def wait(self, token: int, value: int) -> torch.Tensor:
        """As it was when it was stored, whatever strides the graph has for it."""
        with self.lock:
            moves = self._now()
            return moves.way.wait(moves.keys[token], moves.layouts[token])

    def _now(self) -> Moves:
        assert self.current is not None, "moves happen between begin and end"
        return self.current
