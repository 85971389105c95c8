"""What happens in one cycle (from one optimizer step to the next): its events, their times, and the
memory that everything else takes meanwhile.

While a cycle is recorded, each event ends a *segment* and begins the next one; so does the release
of what an event has handed out. Of every segment the peak of resident memory is read (Linux counts
it; the count begins anew at each segment, so VmHWM of the process is wrong afterwards) and what we
hold ourselves is taken off: the rest is parameters, gradients, logits, temporaries of ops,
libraries.
"""
from __future__ import annotations

import dataclasses
import time

from headrace import _core
from headrace._moved import key_of
from headrace.eager._heap import give_back_freed


MOST_EVENTS = 200_000  # of a cycle: 60 MiB of notes


@dataclasses.dataclass
class Order:
    """A recorded cycle, as a workload needs it."""

    events: list[str]  # names, see headrace._moved
    seconds: list[float]  # from each event to the next
    sizes: dict[str, int]  # bytes by key and by name of state
    holds: dict[int, list[str]]  # keys that must stay in place during an event besides its own
    aside: set[str]  # keys that go to the scratch file one by one: no event, not in the plan
    shared: set[str]  # keys that were saved more than once
    copied: set[str]  # keys whose bytes are used beyond the cycle: handed out as copies
    states: set[str]  # those names of sizes that one cycle leaves for the next
    rules: dict[str, dict]  # what was asked for single states
    others_bytes: int  # the most that everything else took
    kept_bytes: int  # the most that everything takes when nothing leaves memory

    def same_as(self, other: "Order") -> bool:
        """Whether a plan made for this one serves the other as well."""
        return (self.events == other.events and self.holds == other.holds
                and self.aside == other.aside and self.copied == other.copied
                and all(size <= self.sizes[key] for key, size in other.sizes.items()))


@dataclasses.dataclass
class _Event:
    name: str
    key: str
    seconds: float = 0.0
    holds: set[str] = dataclasses.field(default_factory=set)


class Recorder:
    """Collects one Order. begin() a segment after every event() and release()."""

    def __init__(self) -> None:
        self.events: list[_Event] = []
        self.sizes: dict[str, int] = {}
        self.last_use: dict[str, int] = {}  # last event that unpacks or holds a key
        self.unpacked: set[str] = set()
        self.shared: set[str] = set()
        self.dead: dict[str, int] = {}  # event after which nobody could ask for a key any more
        self.lent: dict[str, int] = {}  # bytes of copies in use, by key
        self.saved_bytes = 0  # of keys that somebody can still ask for
        self.others_bytes = self.kept_bytes = self.peak_bytes = 0
        self.full = False
        self._since = time.perf_counter()
        give_back_freed()
        self.begin_segment()

    def begin_segment(self) -> None:
        self._since = time.perf_counter()
        _core.reset_peak()

    def end_segment(self) -> None:
        if self.events:
            self.events[-1].seconds += time.perf_counter() - self._since
        peak = _core.process_memory().peak
        self.peak_bytes = max(self.peak_bytes, peak)
        others = peak - sum(self.lent.values())
        self.others_bytes = max(self.others_bytes, others)
        self.kept_bytes = max(self.kept_bytes, others + self.saved_bytes)

    def event(self, name: str, key: str = "", nbytes: int = 0) -> None:
        """`name` happens now. Ends a segment."""
        self.end_segment()
        at = len(self.events)
        if at == MOST_EVENTS:  # nothing that could be planned: somebody never steps the optimizer
            self.full = True
            return
        self.events.append(_Event(name, key, holds=self.lent.keys() - {key}))
        for held in self.events[-1].holds:
            self.last_use[held] = at
        if name.startswith("pack:"):
            self.sizes[key] = nbytes
            self.saved_bytes += nbytes
        elif name.startswith("unpack:"):
            self.unpacked.add(key)
            self.last_use[key] = at

    def lend(self, key: str, nbytes: int) -> None:
        self.lent[key] = nbytes

    def release(self, key: str) -> None:
        """Nobody has the copy of `key` any more; its memory is still there. Ends a segment."""
        self.end_segment()
        self.lent.pop(key, None)

    def death(self, key: str) -> None:
        """Nobody can ask for `key` any more."""
        if key in self.sizes and key not in self.dead:
            self.dead[key] = len(self.events) - 1
            self.saved_bytes -= self.sizes[key]

    def finish(self, states: dict[str, int], rules: dict[str, dict]) -> Order:
        """The cycle is over. states: bytes by name of what cycles leave to each other (events of
        other names go); rules: what was asked for some of them."""
        self.end_segment()
        # A key that outlives its cycle, or that nobody came for, would only be in the plan's way.
        aside = {key for key in self.sizes
                 if key not in self.unpacked or key not in self.dead}
        copied = set(self.lent) - aside
        for key in self.sizes.keys() - aside:
            if self.dead[key] > self.last_use[key]:
                self.events[self.dead[key]].holds.add(key)
        left_out = aside | copied
        order = Order([], [], {**{k: v for k, v in self.sizes.items() if k not in aside}, **states},
                      {}, aside, self.shared, copied, set(states), rules, self.others_bytes,
                      self.kept_bytes + sum(states.values()))
        for event in self.events:
            gone = event.key in aside or (event.name.startswith("state:")
                                          and event.key not in states)
            holds = sorted(event.holds - left_out)
            if gone and order.events:
                order.seconds[-1] += event.seconds
            elif not gone:
                order.events.append(event.name)
                order.seconds.append(event.seconds)
            if holds and order.events:
                at = len(order.events) - 1
                order.holds[at] = sorted({*order.holds.get(at, ()), *holds}
                                         - {key_of(order.events[at])})
        return order
