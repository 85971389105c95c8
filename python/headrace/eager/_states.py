"""Optimizer state that leaves memory between the optimizer's steps.

The optimizer's own step runs once for each *chunk* of parameters, with only their state in memory;
for optimizers that treat every parameter by itself that is bit for bit one call. Others (LBFGS,
those that we do not know) are left alone.

The tensors in optimizer.state stay the same objects. While their bytes are elsewhere they are NaNs
that take no memory and refuse to be written to; state_dict(), pickling and deepcopy see true
values.
"""
from __future__ import annotations

import collections
import dataclasses
import types
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.optim import Optimizer

from headrace._moved import MovedTensors
from headrace.eager._place import Place
from headrace.eager._saved import ordinary_storage

if TYPE_CHECKING:
    from headrace.eager._session import Session

# Parameters of at most these bytes share a chunk (AdamW has twice as much state).
CHUNK_BYTES = 8 << 20
SMALLEST_BYTES = 4 << 10  # smaller state stays in memory
ALIGNMENT = 64

# Those whose step treats each parameter by itself (torch.optim, exact types).
_SEPARABLE = {getattr(torch.optim, name) for name in (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD", "SparseAdam") if hasattr(torch.optim, name)}


def separable(optimizer: Optimizer | None) -> bool:
    """Whether its state can leave memory in chunks."""
    return type(optimizer) in _SEPARABLE


@dataclasses.dataclass
class Entry:
    """One state tensor and its place in the image of its chunk."""

    parameter: torch.Tensor
    name: str
    tensor: torch.Tensor
    offset: int  # bytes
    size: torch.Size
    stride: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return self.size.numel() * self.tensor.element_size()

    def bind(self, image: torch.UntypedStorage) -> None:
        offset = self.offset // self.tensor.element_size()
        self.tensor.set_(image, offset, self.size, self.stride)

    def park(self) -> None:
        nan = torch.full((1,), float("nan"), dtype=self.tensor.dtype)
        self.tensor.set_(nan.untyped_storage(), 0, self.size, (0,) * len(self.size))


class Chunk(Place):
    """Parameters whose state comes and goes together."""

    def __init__(self, session: "Session", name: str) -> None:
        super().__init__(session, name)
        self.parameters: list[tuple[int, torch.Tensor]] = []  # with the number of their group
        self.entries: list[Entry] = []

    def park(self) -> None:
        with torch.no_grad():
            for entry in self.entries:
                entry.park()

    @property
    def nbytes(self) -> int:
        return self.entries[-1].offset + self.entries[-1].nbytes if self.entries else 0


def movable(value: Any) -> bool:
    return (type(value) is torch.Tensor and value.device.type == "cpu" and value.is_floating_point()
            and value.layout is torch.strided and value.nbytes >= SMALLEST_BYTES
            and value.untyped_storage().nbytes() == value.nbytes)


def chunked(session: "Session", groups: list[dict]) -> list[Chunk]:
    chunks: list[Chunk] = []
    size = CHUNK_BYTES + 1
    for g, group in enumerate(groups):
        for p in group["params"]:
            if size + p.nbytes > CHUNK_BYTES:
                chunks.append(Chunk(session, f"o{len(chunks)}"))
                size = 0
            chunks[-1].parameters.append((g, p))
            size += p.nbytes
    return chunks


class States:
    """The optimizer's state of one session. All but the steps is under the session's lock."""

    def __init__(self, session: "Session", optimizer: Optimizer | None) -> None:
        self.session = session
        self.optimizer = weakref.ref(optimizer) if optimizer is not None else lambda: None
        self.separable = separable(optimizer)
        self.chunks: list[Chunk] = []
        self._made_for: list[list[int]] = []
        self._handles: list[Any] = []
        if optimizer is not None:
            self._install(optimizer)

    # The optimizer's methods.

    def _install(self, optimizer: Optimizer) -> None:
        states = self
        before = optimizer.__dict__.get("step")  # of a learning-rate scheduler, for instance
        plain = before if before is not None else _bound(type(optimizer).step, optimizer)
        raw = _bound(getattr(type(optimizer).step, "__wrapped__", type(optimizer).step), optimizer)

        def step(self: Optimizer, closure: Callable | None = None, *args: Any,
                 **kwargs: Any) -> Any:
            return states._step(raw, closure, args, kwargs)

        step.__wrapped__ = type(optimizer).step
        hooked = Optimizer.profile_hook_step(step)  # users' hooks run once, around all chunks

        def whole(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._opt_called = True  # what the schedulers' own wrapper notes
            out = hooked(self, *args, **kwargs) if states.separable else plain(*args, **kwargs)
            states.session.finish_cycle()
            return out

        whole.__wrapped__ = type(optimizer).step
        if hasattr(before, "_wrapped_by_lr_sched"):
            whole._wrapped_by_lr_sched = True
        self._before = before
        optimizer.step = types.MethodType(whole, optimizer)
        # copy and pickle look these up on the object.
        optimizer.__getstate__ = lambda: states._getstate()
        self._handles = [optimizer.register_state_dict_post_hook(self._after_state_dict),
                         optimizer.register_load_state_dict_post_hook(self._after_load)]

    def uninstall(self) -> None:
        """The optimizer is as it was, its state in memory."""
        self.keep_in_memory()
        for handle in self._handles:
            handle.remove()
        optimizer = self.optimizer()
        if optimizer is None:
            return
        optimizer.__dict__.pop("__getstate__", None)
        optimizer.__dict__.pop("step", None)
        if self._before is not None:
            optimizer.step = self._before

    def _step(self, raw: Callable, closure: Callable | None, args: tuple, kwargs: dict) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.session.moves_states():
            raw(*args, **kwargs)
            return loss
        optimizer = self.optimizer()
        self._renew(optimizer)
        for chunk in self.chunks:
            self._step_chunk(raw, optimizer, chunk, args, kwargs)
        return loss

    def _step_chunk(self, raw: Callable, optimizer: Optimizer, chunk: Chunk, args: tuple,
                    kwargs: dict) -> None:
        everyone = [group["params"] for group in optimizer.param_groups]
        for g, group in enumerate(optimizer.param_groups):
            group["params"] = [p for owner, p in chunk.parameters if owner == g]
        remotes = self.session.remotes.open([p for _, p in chunk.parameters])
        opened = [self.session.open_state(chunk)]
        try:
            raw(*args, **kwargs)
        finally:
            for group, parameters in zip(optimizer.param_groups, everyone):
                group["params"] = parameters
            self.session.close_state(chunk, *opened.pop())  # nobody may have it after that
            self.session.remotes.close(remotes)

    def _renew(self, optimizer: Optimizer) -> None:
        """Chunks anew when groups have got or lost parameters."""
        now = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
        if now != self._made_for:
            self.session.deviate("the optimizer has other parameters")
            self.keep_in_memory()
            self.chunks, self._made_for = chunked(self.session, optimizer.param_groups), now

    # Images.

    def layout(self) -> dict[str, int]:
        """Bytes of the chunks that have state, by name."""
        return {c.name: c.nbytes for c in self.chunks if c.entries}

    def attach(self, chunk: Chunk, image: torch.UntypedStorage | None) -> Any:
        """State of the chunk into memory: into `image`, a place in the arena that has its bytes
        unless its home is memory, or into ordinary memory. Returns where it is; None: nothing was
        moved."""
        if not chunk.entries:
            return None
        if image is None and chunk.home == "memory":
            image = ordinary_storage(chunk.nbytes)[0]
        elif image is None:
            image = chunk.copy(chunk.nbytes)
        with torch.no_grad():
            for entry in chunk.entries:
                self._bind(chunk, entry, image)
        return image

    def _bind(self, chunk: Chunk, entry: Entry, image: torch.UntypedStorage) -> None:
        now = self._now(entry)
        if now is entry.tensor and chunk.home != "memory":
            entry.bind(image)
            return
        # Somebody has put another tensor there: its values count.
        old, entry.tensor = now, now
        values = old.detach().clone() if old.numel() else old
        entry.bind(image)
        entry.tensor.copy_(values)

    def _now(self, entry: Entry) -> torch.Tensor:
        value = self.optimizer().state[entry.parameter].get(entry.name)
        if type(value) is not torch.Tensor or value.size() != entry.size:
            raise RuntimeError(f"optimizer state '{entry.name}' of a parameter of shape "
                               f"{list(entry.parameter.shape)} was replaced by something else")
        return value

    def detach(self, chunk: Chunk, image: torch.UntypedStorage | None, in_engine: bool) -> None:
        """The chunk has been stepped: its state goes where it came from."""
        found = self._find(chunk)
        same = [(id(p), name, id(t)) for p, name, t in found] == [
            (id(e.parameter), e.name, id(e.tensor)) for e in chunk.entries]
        if not same:
            if chunk.entries:
                self.to_memory(chunk, image)
            chunk.entries = self._entries(found)
            in_engine = False
        if not chunk.entries:
            return
        if in_engine:
            chunk.in_engine(self.session.moved)
        else:
            if not same:
                image = self.attach(chunk, None)
            chunk.put(image.data_ptr(), chunk.nbytes)
        chunk.park()

    def _find(self, chunk: Chunk) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
        state, bound = self.optimizer().state, {id(e.tensor) for e in chunk.entries}
        return [(p, name, value) for _, p in chunk.parameters if p in state
                for name, value in state[p].items() if id(value) in bound or movable(value)]

    def _entries(self, found: list[tuple[torch.Tensor, str, torch.Tensor]]) -> list[Entry]:
        entries, offset = [], 0
        for p, name, value in found:
            entries.append(Entry(p, name, value, offset, value.size(), value.stride()))
            offset = -(-(offset + value.nbytes) // ALIGNMENT) * ALIGNMENT
        return entries

    # Between steps.

    def to_memory(self, chunk: Chunk, image: torch.UntypedStorage | None = None) -> None:
        """Its tensors are ordinary ones again. image: where its bytes are; None: at home."""
        if chunk.entries and chunk.home != "memory" or image is not None:
            if image is None:
                image = self.attach(chunk, None)
            with torch.no_grad():
                for entry in chunk.entries:
                    values = entry.tensor.detach().clone(memory_format=torch.preserve_format)
                    entry.tensor.set_(values)
        chunk.in_memory()

    def keep_in_memory(self) -> None:
        """All state becomes ordinary memory."""
        for chunk in self.chunks:
            self.to_memory(chunk)
            chunk.entries = []

    def into_engine(self, moved: MovedTensors) -> None:
        """The engine gets all state; it is between cycles."""
        for chunk in self.chunks:
            chunk.into(moved, chunk.nbytes)

    def out_of_engine(self, moved: MovedTensors) -> None:
        """The engine ends: what only it has goes to the spill."""
        for chunk in self.chunks:
            chunk.out_of(moved, chunk.nbytes)

    # What others see.

    def values(self) -> dict[int, torch.Tensor]:
        """True values of the parked tensors, by the object's id: ordinary tensors, all of them."""
        out = {}
        self.session.deviate("optimizer state is read in the middle of a cycle")
        for chunk in self.chunks:
            if not chunk.entries or chunk.home == "memory":
                continue
            image = chunk.copy(chunk.nbytes)
            for e in chunk.entries:
                view = torch.empty(0, dtype=e.tensor.dtype).set_(
                    image, e.offset // e.tensor.element_size(), e.size, e.stride)
                out[id(e.tensor)] = view.clone(memory_format=torch.preserve_format)
        return out

    def _true(self, state: dict) -> dict:
        values = self.values()
        return {key: {name: values.get(id(value), value) for name, value in fields.items()}
                if isinstance(fields, dict) else fields for key, fields in state.items()}

    def _after_state_dict(self, optimizer: Optimizer, state_dict: dict) -> dict:
        with self.session.lock:
            return {**state_dict, "state": self._true(state_dict["state"])}

    def _getstate(self) -> dict:
        optimizer = self.optimizer()
        with self.session.lock:
            state = collections.defaultdict(dict, self._true(optimizer.state))
        return {"defaults": optimizer.defaults, "state": state,
                "param_groups": optimizer.param_groups}

    def _after_load(self, optimizer: Optimizer) -> None:
        """New tensors have taken the place of ours: they count, and leave memory as ours did."""
        with self.session.lock:
            self.session.deviate("optimizer state was loaded in the middle of a cycle")
            for chunk in self.chunks:
                self._reload(chunk)

    def _reload(self, chunk: Chunk) -> None:
        moved, had = chunk.moved, chunk.home != "memory"
        before = [(id(e.parameter), e.name, e.size, e.stride) for e in chunk.entries]
        chunk.in_memory()
        state = self.optimizer().state
        chunk.entries = []
        found = self._find(chunk)
        for p, name, value in found:
            state[p][name] = value.detach()  # the tensors themselves may be the caller's
        chunk.entries = self._entries([(p, name, state[p][name]) for p, name, _ in found])
        same = before == [(id(e.parameter), e.name, e.size, e.stride) for e in chunk.entries]
        if not had or not chunk.entries:
            return
        image = self.attach(chunk, None)
        if moved is not None and not moved.deviated and same:
            moved.write_state(chunk.name, image.data_ptr(), chunk.nbytes)
            chunk.in_engine(moved)
            chunk.park()
        else:
            self.detach(chunk, image, in_engine=False)


def _bound(function: Callable, owner: Any) -> Callable:
    reference = weakref.ref(owner)
    return lambda *args, **kwargs: function(reference(), *args, **kwargs)
