"""Which plan a pass follows, and how much memory it may take.

Ledger      one a torch.compile call: what the process may grow by, shared by all its graphs.
PassPlans   the plans of one graph. A plan is chosen at each forward pass, by what the process has
            grown by until then: gradients that are still there, the optimizer's state, what other
            graphs have saved.
"""
from __future__ import annotations

import atexit
import weakref
from dataclasses import dataclass
from typing import Optional

from .. import _core
from .._errors import DoesNotFit
from .._report import note
from ._emit import Emission, emit
from ._moves import Mover
from ._options import Settings
from ._remotes import away_bytes
from ._search import Draft, Search
from ._step import Step

# The process grows after a plan was chosen: code of the graphs, small tensors, threads' counters.
MARGIN_BYTES = 32 << 20
MOST_PLANS = 8
MOST_GRAPHS = 1024  # of one step; more are taken for passes that will never see a backward pass
# Another plan is only looked for when the room has changed by this part of the memory given.
NEW_PLAN_PART = 0.02


class Ledger:
    """What the process may grow by, and by how much it has grown."""

    def __init__(self, settings: Settings, resident: int) -> None:
        """resident: bytes that the process had when torch.compile was called."""
        self.settings = settings
        self.resident = resident
        self.passes: list[weakref.ref[PassPlans]] = []
        self.pending = 0  # forward passes whose backward pass has not been
        self._step: list[PassPlans] = []    # the graphs of this step, in order
        self._before: list[PassPlans] = []  # and those of the step before

    def grown(self) -> int:
        """Bytes that the process has grown by; less than none by what remote parameters gave
        back."""
        return max(-away_bytes(), _core.process_memory().rss - self.resident)

    def room(self, own: int) -> int:
        """What is left for a pass that has `own` bytes of its own in use already."""
        return self.settings.memory - self.grown() - MARGIN_BYTES + own

    def enter(self, plans: PassPlans) -> None:
        """A forward pass begins: the first of a step when no other is pending."""
        if self.pending == 0 or len(self._step) >= MOST_GRAPHS:
            self._before, self._step = self._step, []
        self._step.append(plans)

    def after(self) -> Optional[list[PassPlans]]:
        """The graphs that came after the one that begins now, in the step before; None: not
        known."""
        count = len(self._step)
        return self._before[count:] if self._before[:count] == self._step else None


@dataclass
class Chosen:
    """A plan that passes follow. room: what it was chosen for."""

    room: int
    draft: Draft
    emission: Emission
    mover: Optional[Mover]


class PassPlans:
    """The plans of one graph."""

    def __init__(self, step: Step, ledger: Ledger, goes_on: bool) -> None:
        """goes_on: the model goes on after this graph."""
        self.step = step
        self.ledger = ledger
        self.goes_on = goes_on
        self.made: list[Chosen] = []
        self.search: Optional[Search] = None
        ledger.passes.append(weakref.ref(self))
        _alive.add(self)

    def choose(self) -> Chosen:
        """The plan for a forward pass that begins now. DoesNotFit, with the numbers."""
        if self.search is None:
            self.search = Search(self.step, self.ledger.settings)
        self.ledger.enter(self)
        chosen = self._known(self._room())
        if chosen is None:
            _core.tune_malloc()  # also gives back what is free between blocks in use
            room = self._room()
            chosen = self._known(room) or self._new(self.search, room)
        for other in self.made:
            if other.mover is not None and other is not chosen:
                other.mover.release()
        note(chosen.draft.plan or self.search.kept_plan())
        return chosen

    def _room(self) -> int:
        own = sum(c.mover.held_bytes for c in self.made if c.mover is not None)
        return self._share(self.ledger.room(own))

    def _share(self, room: int) -> int:
        """What of it is for this graph. Others that come before its backward pass need theirs: at
        least what they cannot do without; what is more than all of that is shared by what they
        could use. Before they are known, this one takes the least that it can do with."""
        assert self.search is not None
        after = self.ledger.after()
        if after is None and not self.goes_on:
            return room
        least, ample = self.search.least(), self.search.ample.bytes
        if after is None:
            return min(room, least)
        others = [p.search for p in after if p.search is not None]
        spare = room - least - sum(s.least() for s in others)
        wishes = ample - least + sum(s.ample.bytes - s.least() for s in others)
        if not others or spare >= wishes:
            return room
        if spare <= 0:
            return min(room, least)
        return least + spare * (ample - least) // wishes

    def _known(self, room: int) -> Optional[Chosen]:
        """A plan that was made, unless there might be a better one for this room."""
        fitting = [c for c in self.made if c.draft.bytes <= room]
        best = min(fitting, key=lambda c: c.draft.cost(), default=None)
        if best is None or (self.search is not None and best.draft is self.search.ample):
            return best
        near = self.ledger.settings.memory * NEW_PLAN_PART
        return best if room - max(c.room for c in fitting) <= near else None

    def _new(self, search: Search, room: int) -> Chosen:
        draft = search.best(room)
        if draft is None:
            raise self._refusal(search, room)
        same = next((c for c in self.made if c.draft is draft), None)
        if same is not None:
            same.room = room
            return same
        mover = None
        if draft.moves is not None:
            mover = Mover(self.step, draft.moves, self.ledger.settings.folder)
        emission = emit(self.step, draft.actions, mover.number if mover is not None else 0)
        self.made = [*self.made[1 - MOST_PLANS:], Chosen(room, draft, emission, mover)]
        if self.ledger.settings.verbose and draft.plan is not None:
            print(draft.plan)
        return self.made[-1]

    def _refusal(self, search: Search, room: int) -> DoesNotFit:
        memory, least = self.ledger.settings.memory, search.least()
        grown = memory - room - MARGIN_BYTES
        # The first step leaves something behind (15 MiB measured for 800 ops): half a margin more.
        needed = max(1, grown + MARGIN_BYTES * 3 // 2 + least + max(0, grown) // 64)
        text = (f"memory={memory >> 20} MiB is not enough for this graph, which needs "
                f"{needed >> 20} MiB: {least >> 20} MiB that no plan does without, "
                f"{max(0, grown) >> 20} MiB that the process has grown by already (torch.compile "
                "itself, gradients, the optimizer's state, what other graphs have saved), and "
                f"{(needed - least - grown) >> 20} MiB for what it still grows by. What the "
                "optimizer's first step makes, like AdamW's moments, comes on top of that.")
        return DoesNotFit(text, needed, memory, [f"memory={needed}", "a smaller batch"])


# Dynamo's caches outlive the extension; what is left of plans must not.
_alive: "weakref.WeakSet[PassPlans]" = weakref.WeakSet()


@atexit.register
def _forget() -> None:
    for plans in list(_alive):
        plans.made, plans.search = [], None
