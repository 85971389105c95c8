"""Tensors that leave memory and come back, following a Program: the core of two doors.

Vocabulary
    key       one piece of bytes (a tensor's whole storage) from the event that packs it on.
    state     bytes that one cycle leaves for the next (optimizer moments).
    event     "pack:KEY", "unpack:KEY:N" (the N-th), "tick:NAME" or "state:NAME": an op of the
              Program, in the order in which they happen.
    hold      a key whose bytes must stay where they are during an event that does not name it,
              because somebody still uses what an earlier event handed out.

Promises
    1. All bytes that are kept lie in the engine's arena or in a scratch file without a name.
    2. What unpack() or state() hands out stays as it is until the last event that names or holds
       its key has passed. Somebody who still has it then is found out before it is overwritten.
    3. Any event but the one that the Program has next raises Deviation and changes nothing. After
       abandon(), read() gives the bytes of every key that a later event would have read.
Not thread-safe: the caller has one lock around all of it.
"""
from __future__ import annotations

import json
import weakref
from collections.abc import Collection, Mapping, Sequence

import torch

from headrace import _core

END = "tick:end"  # the last event of every Program: nothing but the next cycle comes after it


class Deviation(Exception):
    """What happened is not what the Program was made for. Its message says what was expected."""


def key_of(event: str) -> str:
    """The key or the name of state that an event is about; "" for ticks."""
    kind, _, rest = event.partition(":")
    if kind == "unpack":
        return rest.rpartition(":")[0]
    return "" if kind == "tick" else rest


def moved_workload(events: Sequence[str], seconds: Sequence[float], sizes: Mapping[str, int], *,
                   cyclic: bool = True, holds: Mapping[int, Sequence[str]] | None = None,
                   states: Collection[str] = (), rules: Mapping[str, dict] | None = None,
                   name: str = "moved") -> str:
    """The workload (JSON, docs/guide/workload.md) whose ops are these events, with one at the end.

    seconds[i] is the time from event i to the next one. sizes: bytes of every key and state.
    holds[i]: keys that must stay in place during event i besides its own. states: names that may be
    unpacked without a pack, as cycles leave them to each other. rules: more fields of single
    tensors ("pinned", "remote_memory"). Another unpack before its key's pack is a ValueError.
    """
    tensors, ops, numbers = [], [], {}

    def number(key: str, fields: dict) -> int:
        numbers[key] = len(tensors)
        tensors.append({"name": key, "bytes": max(1, sizes.get(key, 1)), **fields,
                        **(rules or {}).get(key, {})})
        return numbers[key]

    for i, event in enumerate([*events, END]):
        kind, key = event.partition(":")[0], key_of(event)
        op = {"name": event, "kernel": kind, "recompute": False,
              "seconds": max(0.0, seconds[i]) if i < len(seconds) else 0.0}
        inputs = [numbers[held] for held in (holds or {}).get(i, ()) if held != key]
        if kind == "pack":
            op["outputs"] = [number(key, {})]
        elif kind == "unpack":
            if key not in numbers and key not in states:
                raise ValueError(f"event {i}, {event}: '{key}' was never packed")
            if key not in numbers:
                number(key, {"persistent": True})
            inputs.append(numbers[key])
        elif kind == "state":
            known = numbers.get(key)
            op["updates"] = [number(key, {"persistent": True, "class": "optimizer"})
                             if known is None else known]
        if inputs:
            op["inputs"] = inputs
        if kind in ("unpack", "tick"):  # an op of a workload writes something
            op["outputs"] = [number(f"after {i}", {"class": "other"})]
        ops.append(op)
    return json.dumps({"headrace_workload": 1, "name": name, "cyclic": cyclic,
                       "tensors": tensors, "ops": ops})


class _Lent:
    """What has been handed out: alive until nobody has the storage any more."""

    __slots__ = ("storage",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = weakref.ref(storage)


class MovedTensors:
    """One engine that follows one Plan whose ops are events (see moved_workload)."""

    def __init__(self, plan: _core.Plan, folder: str | None = None, threads: int = 1, *,
                 holds: Mapping[int, Sequence[str]] | None = None,
                 sizes: Mapping[str, int] | None = None, paranoid: bool = False) -> None:
        """Takes the arena and opens the scratch files in `folder`. holds, sizes: as given to
        moved_workload; with sizes, a pack of more bytes than planned is a Deviation. paranoid:
        freed memory is filled with NaN.

        HeadraceError when the files cannot be made or memory is refused.
        """
        self.engine = _core.Engine(plan, folder, threads, paranoid)
        self.events = list(plan.ops)
        self.at = -1  # the event of the current turn
        self.running = False
        self.deviated = False
        self._left = False  # in the middle of a run
        self._turn = None
        self._operands: dict[str, tuple[int, int]] = {}  # of the current turn: address, bytes
        self._lent: dict[str, _Lent] = {}
        self._holds = holds or {}
        self._sizes = sizes or {}
        self._first: dict[str, int] = {}  # event from which on there are bytes; -1: state
        self._last = self._last_events()
        self._ending: list[list[str]] = [[] for _ in self.events]
        for key, last in self._last.items():
            self._ending[last].append(key)

    def _last_events(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for i, event in enumerate(self.events):
            if key_of(event):
                last[key_of(event)] = i
                self._first.setdefault(key_of(event), i if event.startswith("pack:") else -1)
            for key in self._holds.get(i, ()):
                last[key] = i
        return last

    # A cycle.

    def begin(self) -> None:
        """A new cycle. The one before has ended."""
        self.engine.begin()
        self.at, self.running = -1, True
        self._operands = {}

    def expects(self) -> str:
        """The next event; "" when the cycle is over."""
        return self.events[self.at + 1] if self.at + 1 < len(self.events) else ""

    def ending(self) -> list[str]:
        """Keys that no later event names or holds: gone for good with the next event."""
        return self._ending[self.at] if self.at >= 0 else []

    def lent(self, key: str) -> bool:
        """True while somebody has what unpack() or state() has handed out for `key`."""
        lent = self._lent.get(key)
        return lent is not None and lent.storage() is not None

    def _advance(self, event: str) -> None:
        if not self.running or self.expects() != event:
            raise Deviation(f"'{event}' happened, '{self.expects()}' was expected")
        for key in self.ending():
            if self.lent(key):
                raise Deviation(f"'{key}' is still in use at '{event}'")
            self._lent.pop(key, None)
        self._turn = self.engine.next()
        self.at += 1
        self._operands = {}

    def _operand(self, key: str, which: str) -> tuple[int, int]:
        address, size = getattr(self._turn, which)[-1]
        self._operands[key] = (address, size)
        return address, size

    def _borrow(self, key: str, address: int, size: int) -> torch.Tensor:
        base = torch.from_dlpack(self.engine.borrow(address, size, _core.ReleaseFlag()))
        self._lent[key] = _Lent(base.untyped_storage())
        return base

    def pack(self, key: str, tensor: torch.Tensor) -> None:
        """Event "pack:KEY": copies the whole storage that `tensor` shows some part of."""
        storage = tensor.untyped_storage()
        nbytes, planned = storage.nbytes(), self._sizes.get(key)
        if planned is not None and nbytes > planned:
            raise Deviation(f"'{key}' has {nbytes} bytes, {planned} were expected")
        self._advance(f"pack:{key}")
        address, room = self._operand(key, "outputs")
        if nbytes > room:
            raise ValueError(f"'{key}' has {nbytes} bytes, the plan has {room}")
        _core.copy_in(address, storage.data_ptr(), nbytes)

    def storage(self, key: str, n: int) -> torch.UntypedStorage:
        """Event "unpack:KEY:N": the bytes of the key, in the arena."""
        self._advance(f"unpack:{key}:{n}")
        return self._borrow(key, *self._operand(key, "inputs")).untyped_storage()

    def unpack(self, key: str, n: int, like: tuple) -> torch.Tensor:
        """The same as a tensor. like: (size, stride, offset in elements, dtype) of what was packed.
        """
        size, stride, offset, dtype = like
        return torch.empty(0, dtype=dtype).set_(self.storage(key, n), offset, size, stride)

    def state(self, name: str) -> torch.Tensor:
        """Event "state:NAME": its bytes (uint8), which may be changed until the next event."""
        self._advance(f"state:{name}")
        return self._borrow(name, *self._operand(name, "updates"))

    def tick(self, name: str) -> None:
        """Event "tick:NAME"."""
        self._advance(f"tick:{name}")

    def end(self) -> None:
        """After the last event: the cycle is over. Stores and Loads go on behind it."""
        self.tick(END.partition(":")[2])
        if self.engine.next() is not None:
            raise Deviation("the cycle has more events")
        self.running = False
        self._lent.clear()

    # Between cycles.

    def write_state(self, name: str, address: int, nbytes: int, begin: int = 0) -> None:
        """Between cycles: state bytes [begin, begin + nbytes) from `address`."""
        self.engine.write_state(name, address, nbytes, begin)

    def read_state(self, name: str, address: int, nbytes: int, begin: int = 0) -> None:
        """Between cycles: state bytes [begin, begin + nbytes) to `address`."""
        self.engine.read_state(name, address, nbytes, begin)

    # After a Deviation.

    def abandon(self) -> list[str]:
        """Ends the cycle where it is; the engine runs nothing any more. Gives the keys and states
        whose bytes read() still has."""
        if self.running:
            self.engine.abandon()
            self._left = True
        self.running, self.deviated = False, True
        # Nothing runs any more, so the operands of the last turn stay where they are as well.
        wanted = [key for key, last in self._last.items()
                  if last > self.at and self._first[key] <= self.at]
        return [*wanted, *(key for key in self._operands if key not in wanted)]

    def read(self, key: str, address: int, nbytes: int) -> None:
        """After abandon(): the first `nbytes` bytes of what abandon() has named."""
        if key in self._operands:
            _core.copy_in(address, self._operands[key][0], nbytes)
        elif self._left:
            self.engine.read_abandoned(key, address, nbytes)
        else:
            self.engine.read_state(key, address, nbytes)
