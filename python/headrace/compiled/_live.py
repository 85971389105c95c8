"""How much memory a schedule has in use: the plan's promise, counted again from the schedule
alone."""
from __future__ import annotations

from dataclasses import dataclass

from ._schedule import Action
from ._step import Step
from ._workload import allocated_bytes


@dataclass
class Life:
    """One incarnation of a value: from action `begin` to action `end`, both included."""

    value: int
    begin: int
    end: int


def lives_of(step: Step, actions: list[Action]) -> list[Life]:
    """What a run of the two graphs holds. What is loaded is there from its wait on (until then its
    bytes are in the arena of the moved tensors)."""
    lives: list[Life] = []
    current: dict[int, Life] = {}

    def begin(value: int, at: int) -> None:
        current[value] = Life(value, at, at)
        lives.append(current[value])

    for at, action in enumerate(actions):
        if action.kind == "run":
            op = step.ops[action.index]
            for value in op.inputs:
                current[value].end = at
            for value in op.outputs:
                begin(value, at)
        elif action.kind == "store":
            current[action.index].end = at
        elif action.kind == "wait":
            begin(action.index, at)
        elif action.kind == "turn":
            for value, v in enumerate(step.values):
                if v.tangent:
                    begin(value, at)
    for value, v in enumerate(step.values):
        if v.pinned and value in current:
            current[value].end = len(actions)
    return lives


def live_bytes(step: Step, actions: list[Action]) -> tuple[int, int]:
    """(the most that is in use at once, what is in use between the two passes), in bytes."""
    change = [0] * (len(actions) + 2)
    for life in lives_of(step, actions):
        size = allocated_bytes(step.values[life.value].bytes)
        change[life.begin] += size
        change[life.end + 1] -= size
    peak = between = now = 0
    for at, action in enumerate(actions):
        now += change[at]
        workspace = step.ops[action.index].workspace if action.kind == "run" else 0
        peak = max(peak, now + workspace)
        if action.kind == "turn":
            between = now
    return peak, between


def least_bytes(step: Step) -> int:
    """What no schedule does without: at each op its operands, its workspace, and what others
    hold."""
    sizes = [allocated_bytes(value.bytes) for value in step.values]
    held: set[int] = set()
    least = 0
    for at, op in enumerate(step.ops):
        if at == step.turn:
            held.update(i for i, value in enumerate(step.values) if value.tangent)
        here = held.union(op.inputs, op.outputs)
        least = max(least, sum(sizes[i] for i in here) + op.workspace)
        held.update(i for i in op.outputs if step.values[i].pinned)
    return least
