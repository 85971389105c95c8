"""Which plan a pass follows, and how much memory it may take.

Ledger      one a torch.compile call: what the process may grow by, shared by all its graphs.
PassPlans   the plans of one graph. A plan is chosen at each forward pass, by what the process has
            grown by until then: gradients that are still there, the optimizer's state, what other
            graphs have saved. A plan that was made for less room serves more.
"""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Optional

from .. import _core
from .._errors import DoesNotFit
from ._emit import Emission, emit
from ._live import live_bytes
from ._measure import measure
from ._moves import Mover, events_workload
from ._options import Settings
from ._schedule import Action, everything_kept, schedule_of
from ._step import Step
from ._workload import workload_json

# The process grows after a plan was chosen: code of the graphs, small tensors, threads' counters.
MARGIN_BYTES = 32 << 20
MOST_PLANS = 8
# Another plan is only made when the room has changed by this part of the memory given.
NEW_PLAN_PART = 0.03


class Ledger:
    """What the process may grow by, and by how much it has grown."""

    def __init__(self, settings: Settings, resident: int) -> None:
        """resident: bytes that the process had when torch.compile was called."""
        self.settings = settings
        self.resident = resident
        self.passes: list[weakref.ref[PassPlans]] = []

    def grown(self) -> int:
        """Bytes that the process has grown by."""
        return max(0, _core.process_memory().rss - self.resident)

    def room(self, own: int = 0) -> int:
        """What is left for a pass that has `own` bytes of its own in use already."""
        return self.settings.memory - self.grown() - MARGIN_BYTES + own


@dataclass
class Chosen:
    """A plan of a pass. `room` is what it was made for; plan is None when everything is kept."""

    room: int
    emission: Emission
    seconds: float
    plan: Optional[_core.Plan] = None
    mover: Optional[Mover] = None


class PassPlans:
    """The plans of one graph."""

    def __init__(self, step: Step, ledger: Ledger, goes_on: bool) -> None:
        self.step = step
        self.ledger = ledger
        self.goes_on = goes_on
        self.made: list[Chosen] = []
        self.workload = ""
        self.compute_seconds = 0.0
        self.needed = 0  # least arena that a plan was found for; 0: not looked for

    def _prepare(self) -> None:
        if self.workload:
            return
        measure(self.step)
        self.workload = workload_json(self.step, move=self.ledger.settings.move)
        self.compute_seconds = sum(op.seconds for op in self.step.ops)

    def choose(self) -> Chosen:
        """The plan for a forward pass that begins now. DoesNotFit, with the numbers."""
        self._prepare()
        arenas = sum(c.mover.arena_bytes for c in self.made if c.mover is not None)
        room = self.ledger.room(arenas)
        near = self.ledger.settings.memory * NEW_PLAN_PART
        fitting = [c for c in self.made if c.room <= room]
        best = min(fitting, key=lambda c: c.seconds, default=None)
        if best is None or (best.plan is not None
                            and room - max(c.room for c in fitting) > near):
            best = self._plan(room)
            self.made = [*self.made[1 - MOST_PLANS:], best]
        for other in self.made:
            if other.mover is not None and other is not best:
                other.mover.release()
        return best

    def _plan(self, room: int) -> Chosen:
        kept = everything_kept(self.step)
        peak, _ = live_bytes(self.step, kept)
        if peak <= room:
            return Chosen(peak, emit(self.step, kept), self.compute_seconds)
        try:
            return self._tight(room)
        except DoesNotFit as refusal:
            raise self._refusal(room) from refusal

    def _tight(self, room: int) -> Chosen:
        """A plan for less than everything. What moves goes through an arena of its own, which takes
        what the values in memory leave; when that is too small, the values get less."""
        budget = room
        while True:
            plan = self._planned(budget, "throughput")
            actions = schedule_of(self.step, plan.instructions())
            peak, _ = live_bytes(self.step, actions)
            if not any(action.kind == "store" for action in actions):
                return Chosen(room, emit(self.step, actions), plan.predicted_seconds, plan)
            moves = self._moves_plan(actions, room - peak)
            if moves is not None:
                mover = Mover(self.step, moves, self.ledger.settings.folder)
                return Chosen(room, emit(self.step, actions, mover.number),
                              plan.predicted_seconds, plan, mover)
            budget -= max(room // 32, peak - room)

    def _moves_plan(self, actions: list[Action], arena: int) -> Optional[_core.Plan]:
        if arena <= 0:
            return None
        settings = self.ledger.settings
        try:
            return _core.plan_workload(events_workload(self.step, actions), arena,
                                       folder=settings.folder, recompute=False, goal="fit")
        except DoesNotFit:
            return None

    def _planned(self, room: int, goal: str) -> _core.Plan:
        if room <= 0:
            raise DoesNotFit("no room", 0, 0)
        return _core.plan_workload(self.workload, room, folder=self.ledger.settings.folder, goal=goal)

    def _refusal(self, room: int) -> DoesNotFit:
        if not self.needed:
            self.needed = self._least()
        memory = self.ledger.settings.memory
        needed = memory - room + self.needed
        grown = memory - room - MARGIN_BYTES
        text = (f"memory={memory >> 20} MiB is not enough for this graph: it needs {needed >> 20} MiB: "
                f"{self.needed >> 20} MiB in which no plan keeps less, {grown >> 20} MiB that the "
                f"process has grown by already (torch.compile itself, gradients, optimizer state), "
                f"and {MARGIN_BYTES >> 20} MiB for what it still grows by.")
        return DoesNotFit(text, needed, memory, [f"memory={needed}", "a smaller batch"])

    def _least(self) -> int:
        """The least arena that a plan is found for, to 1 %."""
        low, high = 0, live_bytes(self.step, everything_kept(self.step))[0]
        while high - low > high // 100:
            middle = (low + high) // 2
            try:
                self._planned(middle, "fit")
                high = middle
            except DoesNotFit as refusal:
                low = max(middle, min(refusal.needed_bytes - 1, high))
        return high
