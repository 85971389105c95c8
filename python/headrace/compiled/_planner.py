"""Which plan a pass follows, and how much memory it may take.

Ledger      one a torch.compile call: what the process may grow by, shared by all its graphs.
PassPlans   the plans of one graph. A plan is chosen at each forward pass, by what the process has
            grown by until then: gradients that are still there, the optimizer's state, what other
            graphs have saved.
"""
from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Optional

from .. import _core
from .._errors import DoesNotFit
from ._emit import Emission, emit
from ._moves import Mover
from ._options import Settings
from ._search import Draft, Search
from ._step import Step

# The process grows after a plan was chosen: code of the graphs, small tensors, threads' counters.
MARGIN_BYTES = 32 << 20
MOST_PLANS = 8
# Another plan is only looked for when the room has changed by this part of the memory given.
NEW_PLAN_PART = 0.02
# What a refusal asks for above what it has found: the process is a little larger each time.
CUSHION_BYTES = 4 << 20


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

    def room(self, own: int) -> int:
        """What is left for a pass that has `own` bytes of its own in use already."""
        return self.settings.memory - self.grown() - MARGIN_BYTES + own


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

    def choose(self) -> Chosen:
        """The plan for a forward pass that begins now. DoesNotFit, with the numbers."""
        if self.search is None:
            self.search = Search(self.step, self.ledger.settings)
        chosen = self._known(self._room())
        if chosen is None:
            _core.tune_malloc()  # also gives back what is free between blocks in use
            room = self._room()
            chosen = self._known(room) or self._new(self.search, room)
        for other in self.made:
            if other.mover is not None and other is not chosen:
                other.mover.release()
        return chosen

    def _room(self) -> int:
        return self.ledger.room(sum(c.mover.held_bytes for c in self.made if c.mover is not None))

    def _known(self, room: int) -> Optional[Chosen]:
        """A plan that was made, unless there might be a better one for this room."""
        fitting = [c for c in self.made if c.draft.bytes <= room]
        best = min(fitting, key=lambda c: c.draft.seconds, default=None)
        if best is None or best.draft.plan is None:
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
        needed = grown + MARGIN_BYTES + least + CUSHION_BYTES + grown // 64
        text = (f"memory={memory >> 20} MiB is not enough for this graph, which needs "
                f"{needed >> 20} MiB: {least >> 20} MiB that no plan does without, "
                f"{max(0, grown) >> 20} MiB that the process has grown by already (torch.compile "
                "itself, gradients, the optimizer's state, what other graphs have saved), and "
                f"{(needed - least - grown) >> 20} MiB for what it still grows by.")
        return DoesNotFit(text, needed, memory, [f"memory={needed}", "a smaller batch"])
