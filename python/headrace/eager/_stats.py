"""Counts of one session, for people and tests."""
from __future__ import annotations

import dataclasses

from headrace import _core
from headrace._moved import MovedTensors


@dataclasses.dataclass
class Stats:
    """What fit() has done for a model so far. Bytes and seconds since the call.

    Attributes:
        mode: of the current cycle: "recording", "following", "deviated" or "off" (all fits).
        recorded, followed: cycles that ended so.
        deviations: cycles that were not as planned; last_deviation says why the last was not.
        spilled_bytes: put into the scratch file one by one, outside of any plan.
        loaded_bytes, stored_bytes, stall_seconds: of the engines that followed plans.
        recorded_peak_bytes: the most that was resident in the cycles that were recorded, the
            process as a whole (its VmHWM counts from the last of them on).
        arena_bytes: memory that the current engine holds; 0: none runs.
        plan: what is followed; None: nothing is. It is a table for people when printed.
    """

    mode: str = "recording"
    recorded: int = 0
    followed: int = 0
    deviations: int = 0
    last_deviation: str = ""
    spilled_bytes: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    stall_seconds: float = 0.0
    recorded_peak_bytes: int = 0
    arena_bytes: int = 0
    plan: _core.Plan | None = None

    def deviated(self, why: str) -> None:
        self.deviations += 1
        self.last_deviation = why

    def engine_started(self, moved: MovedTensors) -> None:
        self.plan = moved.engine.plan
        self.arena_bytes = self.plan.arena_bytes

    def engine_stopped(self, moved: MovedTensors) -> None:
        self._add(moved)
        self.plan, self.arena_bytes = None, 0

    def _add(self, moved: MovedTensors) -> None:
        self.loaded_bytes += moved.engine.loaded_bytes
        self.stored_bytes += moved.engine.stored_bytes
        self.stall_seconds += moved.engine.stall_seconds

    def now(self, mode: str, moved: MovedTensors | None) -> "Stats":
        """A copy that counts the engine at work as well."""
        copy = dataclasses.replace(self, mode=mode)
        if moved is not None:
            copy._add(moved)
        return copy
