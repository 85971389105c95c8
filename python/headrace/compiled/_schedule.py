"""Schedules: a plan's instructions, reduced to what happens to the ops and values of a Step.

    run OP       it computes: once, or again
    store VALUE  its bytes leave memory; its last reader has been
    load VALUE   from here on they may come back
    wait VALUE   here its next reader needs them
    tick         transfers get a chance to begin
    turn         forward outputs leave, tangents come
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ._step import Step
from ._workload import END, TURN

# A tick costs about 50 us, so only ops that take much longer are followed by one.
TICK_SECONDS = 0.002


@dataclass(frozen=True)
class Action:
    """`index` is that of an op for "run", of a value for "store", "load" and "wait"."""

    kind: Literal["run", "store", "load", "wait", "tick", "turn"]
    index: int = -1


def everything_kept(step: Step) -> list[Action]:
    """The schedule without a plan: each op once, in order."""
    runs = [Action("run", at) for at in range(len(step.ops))]
    return [*runs[:step.turn], Action("turn"), *runs[step.turn:]]


def schedule_of(step: Step, instructions: list[Any]) -> list[Action]:
    """The schedule of a plan of the step's workload. A value that moves in parts moves whole: out
    with its first Store, back with the first Load after that."""
    return with_ticks(step, with_waits(step, _plain(step, instructions)))


def _plain(step: Step, instructions: list[Any]) -> list[Action]:
    ops = {op.name: at for at, op in enumerate(step.ops)}
    values = {value.name: at for at, value in enumerate(step.values)}
    moved: dict[int, str] = {}
    actions: list[Action] = []
    for i in instructions:
        if i.kind == "compute" and i.name == TURN:
            actions.append(Action("turn"))
        elif i.kind == "compute" and i.name != END:
            at = ops[i.name]
            actions.append(Action("run", at))
            for value in (*step.ops[at].outputs, *step.ops[at].inputs):
                if moved.get(value) != "store" or value in step.ops[at].outputs:
                    moved.pop(value, None)
        elif i.kind in ("store", "load") and moved.get(values[i.name]) != i.kind:
            moved[values[i.name]] = i.kind
            actions.append(Action(i.kind, values[i.name]))
    return actions


def with_waits(step: Step, actions: list[Action]) -> list[Action]:
    """A wait before the first op that reads what was loaded."""
    coming: set[int] = set()
    result: list[Action] = []
    for action in actions:
        if action.kind == "load":
            coming.add(action.index)
        elif action.kind == "run":
            for value in step.ops[action.index].inputs:
                if value in coming:
                    result.append(Action("wait", value))
                    coming.discard(value)
            coming.difference_update(step.ops[action.index].outputs)
        result.append(action)
    return result


def with_ticks(step: Step, actions: list[Action]) -> list[Action]:
    """A tick after each long op between the first store and the last wait."""
    moves = [at for at, action in enumerate(actions) if action.kind in ("store", "wait")]
    if not moves:
        return actions
    result: list[Action] = []
    for at, action in enumerate(actions):
        result.append(action)
        if (moves[0] < at < moves[-1] and action.kind == "run"
                and step.ops[action.index].seconds >= TICK_SECONDS):
            result.append(Action("tick"))
    return result
