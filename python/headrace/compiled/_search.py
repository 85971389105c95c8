"""The plans of one step: how fast it is in how much memory, and the least that it can do with.

Draft   a plan of values (kept, computed again, moved) with the plan of its moves, and what both
take. Search  looks for drafts. Budgets lie on a fixed grid between the least and ample memory, and
a room gets the fastest draft of all that fit: more memory is never predicted to be slower.

Ample is what a step takes in which nothing moves and computing again costs next to nothing. Above
it, memory buys no time worth naming, so it is left alone. (torch's own partition computes cheap
values again as well, whatever they cost: Chen et al., arXiv:1604.06174, then min-cut. Without this,
a process with room for everything would take more than with backend="aot_eager". With it, a step of
a 34M LLaMA was measured to peak at 2,407 MiB against 2,511; nothing ensures it for other models.)
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Optional

from .. import _core
from .._errors import DoesNotFit
from ._live import least_bytes, live_bytes
from ._measure import measure
from ._moves import events_workload
from ._options import Settings
from ._schedule import Action, everything_kept, schedule_of
from ._step import Step
from ._workload import workload_json

GRID = 8
LEAST_PARTS = (1.02, 1.06, 1.12, 1.2, 1.35, 1.6, 2.0, 3.0, 5.0)
# Rounds in which the values' budget shrinks until the arena of what moves fits beside them.
MOST_ROUNDS = 6
# What ample memory may cost in time. torch's partition of a LLaMA step of 34M parameters costs
# 1.7 % of the ops' time and takes 1,442 MiB of 1,754; here those 2 % buy 1,338 MiB.
AMPLE_SLOWER = 1.02
AMPLE_ROUNDS = 5         # of bisection between the bound and everything kept
AMPLE_FROM = 16 << 20    # less than this to be gained is not looked for
# What moves is copied into the engine's arena and, into fresh pages, out of it again: bytes a
# second of both together. The planner knows of transfers only.
COPIED_BYTES_PER_S = 1.5e9
# What an engine holds besides its arena (1.2 MiB measured: rings and tables).
ENGINE_BYTES = 2 << 20


@dataclass
class Draft:
    """`bytes` is all that a run takes beside what is outside: values, workspaces, the moves'
    arena."""

    actions: list[Action]
    seconds: float
    bytes: int
    plan: Optional[_core.Plan] = None    # of values; None: everything is kept
    moves: Optional[_core.Plan] = None   # None: nothing moves
    moved: int = 0                       # bytes

    def cost(self) -> tuple[float, int]:
        """The less, the better."""
        return self.seconds, self.moved


class Search:
    """Measures the step's ops when it is made."""

    def __init__(self, step: Step, settings: Settings) -> None:
        self.step = step
        self.folder = settings.folder
        measure(step)
        # Where engines and their arenas are too much beside small values, nothing moves.
        self.still = workload_json(step, move=False)
        self.moving = workload_json(step) if settings.move else ""
        kept = everything_kept(step)
        self.kept = Draft(kept, sum(op.seconds for op in step.ops), live_bytes(step, kept)[0])
        self.bound = least_bytes(step)
        self.ample = self._ample()
        self._made: dict[int, Optional[Draft]] = {}
        self._least = 0

    def _ample(self) -> Draft:
        """The least without moves that takes at most AMPLE_SLOWER of the time of everything
        kept."""
        found, low, high = self.kept, self.bound, self.kept.bytes
        for _ in range(AMPLE_ROUNDS if high - low >= AMPLE_FROM else 0):
            middle = (low + high) // 2
            draft = self._still_draft(middle)
            if (draft is not None and draft.bytes < found.bytes
                    and draft.seconds <= self.kept.seconds * AMPLE_SLOWER):
                found, high = draft, middle
            else:
                low = middle
        return found

    def kept_plan(self) -> Callable[[], _core.Plan]:
        """What makes the plan in which everything is kept: for reports, no pass needs it. It holds
        nothing of the model."""
        return functools.partial(_core.plan_workload, self.still, 2 * self.kept.bytes,
                                 folder=self.folder, goal="fit")

    def best(self, room: int) -> Optional[Draft]:
        """The fastest draft of the grid that fits into `room` bytes; None: nothing does."""
        if room >= self.ample.bytes:
            return self.ample
        least = self.least()
        if room < least:
            return None
        span = self.ample.bytes - least
        fitting = [self.at(least + span * i // GRID) for i in range(GRID)
                   if least + span * i // GRID <= room]
        return min((d for d in fitting if d is not None), key=Draft.cost)

    def least(self) -> int:
        """The least room that a draft was found for: the first of LEAST_PARTS times the bound."""
        if not self._least:
            rooms = [int(self.bound * part) for part in LEAST_PARTS]
            self._least = next((room for room in rooms if room < self.ample.bytes
                                and self.at(room) is not None), self.ample.bytes)
            if self._least == self.ample.bytes:
                self._made[self._least] = self.ample
        return self._least

    def at(self, room: int) -> Optional[Draft]:
        """A draft that takes at most `room` bytes."""
        if room not in self._made:
            self._made[room] = self._draft(room)
        return self._made[room]

    def _draft(self, room: int) -> Optional[Draft]:
        drafts = [self._still_draft(room), self._moving_draft(room) if self.moving else None]
        best = min((d for d in drafts if d is not None), key=Draft.cost, default=None)
        if best is not None:
            # What ample memory is allowed to cost is not to be had back with less of it.
            best.seconds = max(best.seconds, self.ample.seconds)
        return best

    def _plan(self, workload: str, budget: int) -> Optional[_core.Plan]:
        if budget <= 0:
            return None
        try:
            return _core.plan_workload(workload, budget, folder=self.folder, goal="fit")
        except DoesNotFit:
            return None

    def _still_draft(self, room: int) -> Optional[Draft]:
        plan = self._plan(self.still, room)
        if plan is None:
            return None
        actions = schedule_of(self.step, plan.instructions())
        return Draft(actions, plan.predicted_seconds, live_bytes(self.step, actions)[0], plan)

    def _moving_draft(self, room: int) -> Optional[Draft]:
        budget = room - ENGINE_BYTES
        for _ in range(MOST_ROUNDS):
            if budget < self.bound:
                return None  # the planner would say so as well, after seconds of trying
            plan = self._plan(self.moving, budget)
            if plan is None:
                return None
            actions = schedule_of(self.step, plan.instructions())
            peak = live_bytes(self.step, actions)[0]
            moved = sum(self.step.values[a.index].bytes for a in actions if a.kind == "store")
            if not moved:
                return Draft(actions, plan.predicted_seconds, peak, plan)
            arena = room - peak - ENGINE_BYTES
            moves = self._plan(events_workload(self.step, actions), arena)
            if moves is not None:
                stall = moves.predicted_seconds - moves.compute_seconds
                seconds = plan.predicted_seconds + max(0.0, stall) + moved / COPIED_BYTES_PER_S
                return Draft(actions, seconds, peak + ENGINE_BYTES + moves.arena_bytes, plan,
                             moves, moved)
            budget -= max(room // 12, -arena)
        return None
