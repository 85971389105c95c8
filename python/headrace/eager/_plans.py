"""The plans of one session: from recorded orders, a few of them kept."""
from __future__ import annotations

import dataclasses

from headrace import _core
from headrace._errors import DoesNotFit, HeadraceError
from headrace._moved import moved_workload
from headrace.eager._heap import give_back_freed
from headrace.eager._recording import Order

# Orders kept, for instance of the batch shapes of a training run.
MOST_PLANS = 4
# Beside the arena the plan has descriptions of its instructions, the engine rings and stacks;
# measured: 4 to 5 MiB for 50 events, 7 for 350. The rest is for what varies from step to step.
MARGIN_BYTES = 10 << 20


@dataclasses.dataclass
class Settings:
    """What fit() was asked for. Bytes; base_bytes: resident memory at the call."""

    memory: int
    base_bytes: int
    folder: str | None = None
    threads: int = 1
    verbose: bool = False
    paranoid: bool = False


@dataclasses.dataclass
class Known:
    """A recorded order, and the plan for it; without a plan everything fits."""

    signature: tuple
    order: Order
    states: dict[str, int]
    plan: _core.Plan | None

    @property
    def moves(self) -> bool:
        return self.plan is not None


def covers(larger: tuple, smaller: tuple) -> bool:
    """Whether arguments of these shapes need no more than those: same ranks, no larger size."""
    return (len(larger) == len(smaller)
            and all(len(a) == len(b) and all(x >= y for x, y in zip(a, b))
                    for a, b in zip(larger, smaller)))


class Plans:
    """Which plan a cycle follows."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.known: list[Known] = []  # the last used at the end
        self.current: Known | None = None  # that an engine runs
        self._waiting: tuple[tuple, Order, dict[str, int]] | None = None
        self._doubt = False

    def choose(self, signature: tuple, states: dict[str, int]) -> Known | None:
        """The plan for a cycle that begins with arguments of these shapes; None: record it."""
        doubt, self._doubt = self._doubt, False
        if doubt:
            return None
        fitting = [k for k in self.known if covers(k.signature, signature)
                   and (not k.moves or k.states == states)]
        if not fitting:
            return None
        # The one with the least room to spare moves the least.
        best = min(fitting, key=lambda k: sum(k.order.sizes.values()))
        self.known.remove(best)
        self.known.append(best)
        return best

    def distrust(self) -> None:
        """The last cycle was not as planned: look again before the next plan."""
        self._doubt = True

    def add(self, signature: tuple, order: Order, states: dict[str, int]) -> None:
        """A recorded cycle: planned when the next one begins, as memory is free then."""
        for k in self.known:
            if k.states == states and k.order.same_as(order):
                if covers(signature, k.signature):
                    k.signature = signature
                k.order.shared |= order.shared
                return
        self.known = [k for k in self.known if k.signature != signature]
        self._waiting = (signature, order, states)

    def finish_waiting(self, extra_bytes: int = 0) -> None:
        """Plans what was recorded last. extra_bytes: that everything else takes more since then.

        DoesNotFit when it cannot be done, with the shortfall; the recorded cycle stays unplanned.
        """
        if self._waiting is None:
            return
        s, (signature, order, states) = self.settings, self._waiting
        plan = self._plan(order, extra_bytes)
        self._waiting = None
        if s.verbose:
            print(plan if plan is not None else _fits(order, extra_bytes, s))
        self.known.append(Known(signature, order, states, plan))
        del self.known[:-MOST_PLANS]

    def _plan(self, order: Order, extra_bytes: int) -> _core.Plan | None:
        s = self.settings
        fits = order.kept_bytes + extra_bytes - s.base_bytes <= s.memory
        if not order.events or fits and not order.rules:
            return None
        others = order.others_bytes + extra_bytes - s.base_bytes
        arena = s.memory - others - MARGIN_BYTES
        if arena <= 0:
            raise self._refusal(others, self._least_arena(order))
        try:
            return self._plan_in(order, arena)
        except DoesNotFit as why:
            raise self._refusal(others, why.needed_bytes) from why

    def everything_kept(self, order: Order) -> _core.Plan:
        """The plan in which nothing leaves memory: for reports, nobody follows it."""
        if not order.events:
            raise HeadraceError("this training step has nothing that headrace.fit moves: it saves "
                                "no tensor of 64 KiB or more, and its optimizer has no state")
        return self._plan_in(order, (1 << 20) + 2 * sum(order.sizes.values()))

    def _least_arena(self, order: Order) -> int:
        try:
            return self._plan_in(order, 1).arena_bytes
        except DoesNotFit as why:
            return why.needed_bytes

    def _plan_in(self, order: Order, arena: int) -> _core.Plan:
        workload = moved_workload(order.events, order.seconds, order.sizes, holds=order.holds,
                                  states=order.states, rules=order.rules, name="training step")
        try:
            return _core.plan_workload(workload, arena, folder=self.settings.folder,
                                       recompute=False)
        finally:
            give_back_freed()

    def _refusal(self, others: int, arena: int) -> DoesNotFit:
        mib = 1 << 20
        memory, needed = self.settings.memory, others + arena + MARGIN_BYTES
        options = [f"memory=\"{-(-needed // mib) + 1}MiB\"", "a smaller batch or shorter sequences",
                   "torch.utils.checkpoint around the layers",
                   "headrace.compile_step, which places logits and gradients as well"]
        return DoesNotFit(
            f"this training step needs at least {needed / mib:,.0f} MiB more than before the call "
            f"of fit(), {memory / mib:,.0f} MiB were given "
            f"({(needed - memory) / mib:,.0f} MiB short): "
            f"gradients, logits and temporaries of ops take {others / mib:,.0f} MiB at their peak, "
            f"saved tensors and optimizer state in use at the same time {arena / mib:,.0f} MiB. "
            f"Options: {'; '.join(options)}.", needed, memory, options)


def _fits(order: Order, extra_bytes: int, settings: Settings) -> str:
    growth = order.kept_bytes + extra_bytes - settings.base_bytes
    return (f"headrace.fit: everything fits in {settings.memory >> 20:,} MiB (about "
            f"{growth >> 20:,} MiB with all kept): nothing is moved")
