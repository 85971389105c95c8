"""The eager door for one model and its optimizer: the mode of each cycle, and what happens when.

A cycle goes from one optimizer step to the next. Modes
    RECORDING   each saved tensor goes to a scratch file at once and comes back when backward asks;
                the order of events, their times and the memory of everything else are noted.
    FOLLOWING   the engine follows the Program made from such a record: event k is op k.
    DEVIATED    an event was not the expected one. The engine stands still; what it has is read from
                it when asked for; what is new goes to the scratch file. The next cycle is recorded.
    OFF         everything fits: no hook does anything.

Bounded is what is ours: the arena, the scratch file's buffers, copies for backward ops. Temporaries
of ops, logits and gradients are PyTorch's: they are measured while recording, and the arena is what
is left of the request.
"""
from __future__ import annotations

import enum
import functools
import os
import threading
import weakref
from typing import Any

import torch

from headrace import _core
from headrace._moved import Deviation, MovedTensors
from headrace._report import note
from headrace.eager._heap import give_back_freed
from headrace.eager._plans import Plans, Settings
from headrace.eager._recording import Recorder
from headrace.eager._remote import Remote
from headrace.eager._remotes import Remotes
from headrace.eager._saved import (CHANGED, Residents, Saved, check_version,
                                   counts_for_storage, fingerprint, moves, ordinary_storage,
                                   own_region, residents)
from headrace.eager._stats import Stats
from headrace.eager._states import Chunk, States


# Giving freed memory back takes some ms: not for less than this.
SLACK_BYTES = 4 << 20


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


def _forked() -> None:
    """In a child process: none of the parent's other threads is there to give back a lock. What
    needs the engine or the scratch files raises HeadraceError there; freeing does nothing."""
    for session in _sessions:
        session.lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Mode(enum.Enum):
    RECORDING = "recording"
    FOLLOWING = "following"
    DEVIATED = "deviated"
    OFF = "off"


class Session:
    """One call of fit(). Hooks of autograd may come from any thread: one lock around all of it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None,
                 settings: Settings) -> None:
        self.settings = settings
        self.model = weakref.ref(model)
        self.lock = threading.RLock()
        _sessions.add(self)
        self.spill = _core.Spill(settings.folder)
        self.plans = Plans(settings)
        self.stats = Stats()
        self.moved: MovedTensors | None = None
        self.mode = Mode.RECORDING
        self.recorder: Recorder | None = None
        self.cycle = 0
        self.in_cycle = False
        self.signature: tuple = ()
        self._grads_before = self._grad_bytes()
        self._lowest = 0  # resident memory when a cycle began, after freed memory was given back
        self._packed = 0  # storages of this cycle so far
        self._known: dict[int, tuple] = {}  # by storage, see pack()
        self._alive: dict[str, weakref.ref[Saved]] = {}  # by key, of this cycle
        self._resident: Residents = {}
        self.hooked = False  # autograd's hooks are on
        self.states = States(self, optimizer)
        self.remotes = Remotes(self, model)

    def end(self) -> None:
        """Everything as before fit(): state in memory, nothing moves any more."""
        with self.lock:
            self.deviate("released")
            self.states.uninstall()
            self.remotes.end()
            self._stop_engine()
            self._drop_spill()
            self.mode, self.recorder = Mode.OFF, None

    def _drop_spill(self) -> None:
        """Its 8 MiB of buffers and its files go, unless a graph may still ask for what is in it."""
        if self.mode is not Mode.OFF and self.spill.held_bytes == 0:
            self.spill = _core.Spill(self.settings.folder)

    # Cycles.

    def enter_forward(self, signature: tuple) -> bool:
        """A forward pass of the model begins. True when its saved tensors are ours to move."""
        with self.lock:
            if self.in_cycle and self.states.optimizer() is None and not self._anything_alive():
                self.finish_cycle()
            if not self.in_cycle:
                self._begin_cycle(signature)
            if self.mode is Mode.OFF:
                return False
            model = self.model()
            self._resident = residents((*model.parameters(), *model.buffers()))
            return True

    def _anything_alive(self) -> bool:
        return any(saved() is not None for saved in self._alive.values())

    def _begin_cycle(self, signature: tuple) -> None:
        grads = self._grad_bytes()
        self.plans.finish_waiting(max(0, grads - self._grads_before))
        self._grads_before = grads
        self.signature, self.in_cycle = signature, True
        self.cycle += 1
        self._packed = 0
        self._alive.clear()
        self._known.clear()
        self.remotes.begin_cycle()
        chosen = self.plans.choose(signature, self._lasting())
        if chosen is None:
            self._stop_engine()
            self.mode, self.recorder = Mode.RECORDING, Recorder()
        elif not chosen.moves:
            self._stop_engine()
            self.states.keep_in_memory()
            self._drop_spill()
            self.mode = Mode.OFF
        else:
            self._start_engine(chosen)
            self._stay_low()
            self.moved.begin()
            self.mode = Mode.FOLLOWING

    def _stay_low(self) -> None:
        """New holes of the allocator's heap keep freed tensors in memory."""
        if _core.process_memory().rss > self._lowest + SLACK_BYTES:
            give_back_freed()
            self._lowest = _core.process_memory().rss

    def _lasting(self) -> dict[str, int]:
        return {**self.states.layout(), **self.remotes.layout()}

    def _grad_bytes(self) -> int:
        return sum(p.grad.nbytes for p in self.model().parameters() if p.grad is not None)

    def _start_engine(self, chosen: Any) -> None:
        if self.moved is not None and self.plans.current is chosen:
            return
        self._stop_engine()
        self.moved = MovedTensors(chosen.plan, self.settings.folder, self.settings.threads,
                                  holds=chosen.order.holds, sizes=chosen.order.sizes,
                                  paranoid=self.settings.paranoid)
        self.plans.current = chosen
        note(chosen.plan, self.moved.engine)
        self.stats.engine_started(self.moved)
        self.states.into_engine(self.moved)
        self.remotes.into_engine(self.moved)

    def _stop_engine(self) -> None:
        """Between cycles: what is still wanted of the engine's goes to the spill."""
        if self.moved is None:
            return
        self.states.out_of_engine(self.moved)
        self.remotes.out_of_engine(self.moved)
        self.stats.engine_stopped(self.moved)
        self.moved, self.plans.current = None, None

    def finish_cycle(self) -> None:
        """The optimizer has stepped."""
        with self.lock:
            if not self.in_cycle:
                return
            self.in_cycle = False
            if self.mode is Mode.FOLLOWING:
                try:
                    self._check_dead()
                    self.moved.end()
                    self.stats.followed += 1
                except Deviation as why:
                    self._deviate(why)
            if self.mode is Mode.RECORDING and not self.recorder.full:
                lasting = self._lasting()
                order = self.recorder.finish(lasting, self.remotes.rules())
                self.plans.add(self.signature, order, lasting)
                note(functools.partial(self.plans.everything_kept, order))
                self.stats.recorded += 1
                self.stats.recorded_peak_bytes = max(self.stats.recorded_peak_bytes,
                                                     self.recorder.peak_bytes)
            elif self.mode in (Mode.RECORDING, Mode.DEVIATED):
                self.plans.distrust()
            self.recorder = None
            if self.moved is not None and self.moved.deviated:
                self._stop_engine()

    def _deviate(self, why: Deviation) -> None:
        self.moved.abandon()
        self.mode = Mode.DEVIATED
        self.stats.deviated(str(why))

    def deviate(self, why: str) -> None:
        """Something from outside needs the engine to stand still."""
        with self.lock:
            if self.mode is Mode.FOLLOWING and self.moved.running:
                self._deviate(Deviation(why))

    def _check_dead(self) -> None:
        """What the Program gives up next must not be asked for any more."""
        for key in self.moved.ending():
            saved = self._alive.get(key)
            if saved is not None and saved() is not None:
                raise Deviation(f"the graph still has '{key}' after its last use in the plan")

    # Optimizer state.

    def moves_states(self) -> bool:
        """An optimizer step begins: whether its state is elsewhere."""
        with self.lock:
            if self.mode is Mode.OFF:
                return False
            if not self.in_cycle:  # no forward pass of ours led to it
                self.in_cycle, self.mode = True, Mode.DEVIATED
                if self.moved is not None:
                    self._deviate(Deviation("an optimizer step without a forward pass"))
            return True

    def open_state(self, chunk: Chunk) -> tuple:
        """The state of the chunk comes into memory. What it returns goes to close_state()."""
        with self.lock:
            image = None
            if self.mode is Mode.FOLLOWING and chunk.entries:
                try:
                    self._check_dead()
                    image = self.moved.state(chunk.name).untyped_storage()
                except Deviation as why:
                    self._deviate(why)
            in_engine = image is not None
            if self.recorder is not None:
                self.recorder.event(f"state:{chunk.name}", chunk.name)
            image = self.states.attach(chunk, image)
            if self.recorder is not None:
                self.recorder.begin_segment()
            return image, in_engine

    def close_state(self, chunk: Chunk, image: torch.UntypedStorage | None,
                    in_engine: bool) -> None:
        with self.lock:
            if self.recorder is not None:
                self.recorder.end_segment()
            self.states.detach(chunk, image, in_engine)
            if self.recorder is not None:
                self.recorder.begin_segment()

    # Remote parameters.

    def fetch(self, remote: Remote) -> torch.UntypedStorage:
        """A remote parameter is used: its bytes in memory, until nobody has them any more."""
        with self.lock:
            storage = remote.live() if remote.live is not None else None
            if storage is None:
                storage = self._fetch(remote, remote.name, remote.fetches)
                remote.fetches += 1
            return storage

    def keep(self, remote: Remote) -> None:
        """The optimizer has changed its values, which are ordinary memory now."""
        with self.lock:
            values = remote.parameter().detach()
            remote.stamp += 1
            if self.mode is Mode.FOLLOWING and remote.moved is self.moved:
                try:
                    self._check_dead()
                    state = self.moved.state(remote.name)
                    _core.copy_in(state.data_ptr(), values.data_ptr(), remote.nbytes)
                    return
                except Deviation as why:
                    self._deviate(why)
            if self.recorder is not None:
                self.recorder.event(f"state:{remote.name}", remote.name)
            remote.put(values.data_ptr(), remote.nbytes)
            if self.recorder is not None:
                self.recorder.begin_segment()

    def replace(self, remote: Remote, values: torch.Tensor) -> None:
        """Somebody has loaded other values; no cycle runs, or it has deviated."""
        remote.stamp += 1
        if remote.home == "engine" and not remote.moved.deviated:
            remote.moved.write_state(remote.name, values.data_ptr(), remote.nbytes)
        else:
            remote.put(values.data_ptr(), remote.nbytes)

    # Saved tensors.

    def pack(self, tensor: torch.Tensor) -> tuple:
        """Autograd saves `tensor`: what it keeps instead."""
        remote = self.remotes.find(tensor) if self.remotes.of else None
        if remote is not None:
            return ((remote, remote.stamp), tensor.dtype, tensor.size(), tensor.stride(),
                    tensor.storage_offset())
        if not moves(tensor, self._resident):
            return None, tensor.detach(), tensor._version
        if tensor.numel() == 0:  # nothing to move, and nothing to keep its storage for
            empty = tensor.detach().clone()
            return None, empty, empty._version
        with self.lock:
            shared = counts_for_storage(tensor)
            saved = self._find(tensor) if shared else None
            if saved is None:
                if not shared:
                    tensor = own_region(tensor.detach())
                saved = self._put(tensor)
                if shared:
                    storage = tensor.untyped_storage()
                    stamp = fingerprint(storage) if self._may_come_again(saved) else None
                    self._known[storage._cdata] = (weakref.ref(storage), tensor._version,
                                                   weakref.ref(saved), stamp)
            elif self.recorder is not None:
                self.recorder.shared.add(saved.key)
        return saved, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _find(self, tensor: torch.Tensor) -> Saved | None:
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is None or known[0]() is not storage or known[1] != tensor._version:
            return None
        saved = known[2]()
        if saved is None or known[3] is None or known[3] != fingerprint(storage):
            return None
        return saved

    def _may_come_again(self, saved: Saved) -> bool:
        """Whether to look for these bytes in what is saved later: fingerprints take their time.
        When a plan is followed that knows of no second time, one is a deviation."""
        return self.mode is not Mode.FOLLOWING or saved.key in self.plans.current.order.shared

    def _put(self, tensor: torch.Tensor) -> Saved:
        storage = tensor.untyped_storage()
        saved = Saved(self, f"s{self._packed}", storage.nbytes(), self.cycle)
        self._packed += 1
        if not self._put_in_engine(saved, tensor):
            if self.recorder is not None:
                self.recorder.event(f"pack:{saved.key}", saved.key, saved.nbytes)
            saved.spilled = self.spill.put(storage.data_ptr(), saved.nbytes)
            self.stats.spilled_bytes += saved.nbytes
            if self.recorder is not None:
                self.recorder.begin_segment()
        self._alive[saved.key] = weakref.ref(saved)
        return saved

    def _put_in_engine(self, saved: Saved, tensor: torch.Tensor) -> bool:
        if self.mode is not Mode.FOLLOWING or saved.key in self.plans.current.order.aside:
            return False
        try:
            self._check_dead()
            self.moved.pack(saved.key, tensor)
        except Deviation as why:
            self._deviate(why)
            return False
        saved.moved = self.moved
        return True

    def unpack(self, packed: tuple) -> torch.Tensor:
        """Backward asks for what pack() was given."""
        if packed[0] is None:
            check_version(packed[1], packed[2])
            return packed[1]
        saved, dtype, size, stride, offset = packed
        if type(saved) is tuple:
            remote, stamp = saved
            if remote.stamp != stamp:
                raise RuntimeError(f"{CHANGED}: a remote parameter of shape {list(remote.size)}")
            storage = self.fetch(remote)
        else:
            with self.lock:
                storage = saved.live() if saved.live is not None else None
                if storage is None:
                    storage = self._fetch(saved, saved.key, saved.unpacks)
                    saved.unpacks += 1
        return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)

    def _fetch(self, what: Saved | Remote, key: str, n: int) -> torch.UntypedStorage:
        """Bytes that come into memory: in the arena, or as a copy."""
        if self._in_turn(what):
            try:
                self._check_dead()
                storage = self.moved.storage(key, n)
                if key in self.plans.current.order.copied:
                    return self._copied(what, key, storage.data_ptr(), None)
                what.live = weakref.ref(storage)
                return storage
            except Deviation as why:
                self._deviate(why)
        # Of an earlier cycle: nothing that a plan could know.
        recorder = self.recorder if isinstance(what, Remote) or what.cycle == self.cycle else None
        if recorder is not None:
            recorder.event(f"unpack:{key}:{n}", key)
        storage = self._copied(what, key, None, recorder)
        if recorder is not None:
            recorder.lend(key, what.nbytes)
            recorder.begin_segment()
        return storage

    def _in_turn(self, what: Saved | Remote) -> bool:
        return (self.mode is Mode.FOLLOWING and self.in_cycle and what.moved is self.moved
                and (isinstance(what, Remote) or what.cycle == self.cycle))

    def _copied(self, what: Saved | Remote, key: str, address: int | None,
                recorder: Recorder | None) -> torch.UntypedStorage:
        """Bytes in ordinary memory, from `address` or from where they are."""
        def released(give_back: Any) -> None:
            if recorder is not None and self.recorder is recorder:
                recorder.release(key)
                give_back()
                recorder.begin_segment()

        storage, what.live = ordinary_storage(what.nbytes, released)
        if address is None:
            what.read(storage.data_ptr(), what.nbytes)
        else:
            _core.copy_in(storage.data_ptr(), address, what.nbytes)
        return storage

    def forget(self, saved: Saved) -> None:
        """Nobody can ask for it any more."""
        if saved.spilled is not None:
            self.spill.drop(saved.spilled)
        if self.recorder is not None and saved.cycle == self.cycle:
            self.recorder.death(saved.key)
