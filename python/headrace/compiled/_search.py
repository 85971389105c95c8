"""The plans of one step: how fast it is in how much memory, and the least that it can do with.

Draft   a plan of values (kept, computed again, moved) with the plan of its moves, and what both
take. Search  looks for drafts. Budgets lie on a fixed grid between the least and everything kept,
and a room gets the fastest draft of all that fit: more memory is never predicted to be slower.
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
# What an engine holds besides its arena (1.2 MiB measured: rings and tables).
ENGINE_BYTES = 2 << 20


@dataclass
class Draft:
    """`bytes` is all that a run takes beside what is outside: values, workspaces, the moves'
    arena."""

    actions: list[Action]
    seconds: float
    bytes: int
    plan: Optional[_core.Plan] = None    # None: everything is kept
    moves: Optional[_core.Plan] = None   # None: nothing moves


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
        self._made: dict[int, Optional[Draft]] = {}
        self._least = 0

    def kept_plan(self) -> Callable[[], _core.Plan]:
        """What makes the plan in which everything is kept: for reports, no pass needs it. It holds
        nothing of the model."""
        return functools.partial(_core.plan_workload, self.still, 2 * self.kept.bytes,
                                 folder=self.folder, goal="fit")

    def best(self, room: int) -> Optional[Draft]:
        """The fastest draft of the grid that fits into `room` bytes; None: nothing does."""
        if room >= self.kept.bytes:
            return self.kept
        least = self.least()
        if room < least:
            return None
        span = self.kept.bytes - least
        fitting = [self.at(least + span * i // GRID) for i in range(GRID)
                   if least + span * i // GRID <= room]
        return min((d for d in fitting if d is not None), key=lambda d: d.seconds)

    def least(self) -> int:
        """The least room that a draft was found for: the first of LEAST_PARTS times the bound."""
        if not self._least:
            rooms = [int(self.bound * part) for part in LEAST_PARTS]
            self._least = next((room for room in rooms if room < self.kept.bytes
                                and self.at(room) is not None), self.kept.bytes)
            if self._least == self.kept.bytes:
                self._made[self._least] = self.kept
        return self._least

    def at(self, room: int) -> Optional[Draft]:
        """A draft that takes at most `room` bytes."""
        if room not in self._made:
            self._made[room] = self._draft(room)
        return self._made[room]

    def _draft(self, room: int) -> Optional[Draft]:
        drafts = [self._still_draft(room), self._moving_draft(room) if self.moving else None]
        return min((d for d in drafts if d is not None), key=lambda d: d.seconds, default=None)

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
            if not any(action.kind == "store" for action in actions):
                return Draft(actions, plan.predicted_seconds, peak, plan)
            arena = room - peak - ENGINE_BYTES
            moves = self._plan(events_workload(self.step, actions), arena)
            if moves is not None:
                stall = moves.predicted_seconds - moves.compute_seconds
                return Draft(actions, plan.predicted_seconds + max(0.0, stall),
                             peak + ENGINE_BYTES + moves.arena_bytes, plan, moves)
            budget -= max(room // 12, -arena)
        return None
