"""Who owns parameters and optimizer state: the engine while steps run, torch's objects in between.

A parameter that the engine holds keeps its object, shape and dtype in the model, but its elements
are one NaN seen as all of them: it takes no memory, and what reads it unnoticed gets NaN, never
stale numbers. Module.forward, state_dict(), load_state_dict(), deepcopy of the model, the
optimizer's state_dict() and an eager optimizer.step() bring the values back first, by hooks. The
next step of the engine takes what was changed meanwhile, compared byte by byte, and lets go again.
"""

from __future__ import annotations

import copy
import ctypes
import sys
import tempfile
import weakref
from typing import Any, Iterator, Optional

import torch

from .. import _core
from .._errors import HeadraceError
from .events import unsupported
from .values import Parameter

VALUE, FIRST, SECOND, MASTER = 0, 1, 2, 3
_CHUNK = 4 << 20  # bytes that go between two engines or are compared at a time
_MOMENTS = {FIRST: "exp_avg", SECOND: "exp_avg_sq"}


class _Hook:
    """Brings values back before what it is hung on. Copies and pickles of it do nothing."""

    def __init__(self, state: Optional["State"], moments: bool = False):
        self.state = weakref.ref(state) if state is not None else None
        self.moments = moments

    def __call__(self, *_args, **_kwargs):
        state = self.state() if self.state is not None else None
        if state is not None and not state.tracing:
            state.sync()
            if self.moments:
                state.sync_moments()

    def __reduce__(self):
        return (_Hook, (None,))

    def __deepcopy__(self, memo):
        return _Hook(None)


_states: "weakref.WeakSet[State]" = weakref.WeakSet()


def check_free(parameters: dict[str, torch.Tensor]) -> None:
    """HeadraceError where a compiled step has one of them, or the compile door keeps its values."""
    held = {id(p.tensor) for s in _states if s.engine is not None for p in s.parameters.values()}
    for name, p in parameters.items():
        # A step may have it whose model, and with it the State, is gone.
        empty = p.layout == torch.strided and p.untyped_storage().nbytes() < p.nbytes
        if id(p) in held or empty:
            raise HeadraceError(
                f"compile_step: parameter '{name}' is held by a step that was compiled earlier; "
                "close() that one first",
                "usage",
            )
    _check_at_home(parameters)


def _check_at_home(parameters: dict[str, torch.Tensor]) -> None:
    remotes = sys.modules.get("headrace.compiled._remotes")  # else torch.compile has none of them
    for name, p in parameters.items():
        if remotes is not None and remotes.remote_at(p) is not None:
            raise unsupported(
                f"compile_step: the values of parameter '{name}' are out of memory: it is marked "
                '@remote_memory, and a graph of torch.compile(backend="headrace") has it. '
                "copy.deepcopy(model) has the values; compile a step for that"
            )


class State:
    """Parameters of one model and their optimizer's state, and the engine that has them, if one
    does. ``engine`` is a _core.CapturedStep; ``folder`` is where state goes on its way from one
    engine to another, None: where the engines have their scratch files then.

    From give() on the model keeps its State, and with it the engine: its values stay its own when
    the compiled step is dropped. The State knows the model weakly, so that memory and file are
    given back with the model's last reference, not when cycles are collected."""

    def __init__(self, model: torch.nn.Module, optimizer, folder: Optional[str]):
        self._model = weakref.ref(model)
        self.optimizer, self.folder = optimizer, folder
        self.engine: Any = None
        self.parameters: dict[str, Parameter] = {}
        self.trained: list[str] = []
        self.resident = True  # torch's objects have the values
        self.tracing = False
        self.left = False  # leave() has been called: of no more use
        self._copier: Any = None  # the user's own __deepcopy__ of this one model
        self._handles: list[Any] = []
        self._nan: dict[torch.dtype, torch.Tensor] = {}
        _states.add(self)

    @property
    def model(self) -> torch.nn.Module:
        return self._model()  # alive: whoever calls a method of this has it

    @staticmethod
    def of(model: torch.nn.Module) -> Optional["State"]:
        """The State that the model keeps, if it does."""
        keeper = getattr(vars(model).get("__deepcopy__"), "__self__", None)
        return keeper if isinstance(keeper, State) else None

    # ---- to and from an engine

    def give(self, engine, parameters: dict[str, Parameter], trained: list[str]) -> None:
        """All state of torch's objects to an engine that has none yet."""
        self._check_shared(parameters)
        check_free({name: p.tensor for name, p in parameters.items()})
        self.engine, self.parameters, self.trained = engine, parameters, trained
        self._install()
        for name, p in parameters.items():
            self._write(name, VALUE, p.tensor)
            self._release(p)
        self.resident = False
        self._give_moments(compare=False)

    def settle(self) -> None:
        """Before a step: takes what torch's objects have, and lets go of them."""
        if self.resident:
            _check_at_home({name: p.tensor for name, p in self.parameters.items()})
            for name, p in self.parameters.items():
                self._write(name, VALUE, p.tensor, compare=True)
                self._release(p)
            self.resident = False
        self._give_moments(compare=True)

    def sync(self) -> None:
        """Values of all parameters in torch's objects."""
        if self.resident or self.engine is None:
            return
        for name, p in self.parameters.items():
            tensor = torch.empty(p.tensor.shape, dtype=p.tensor.dtype)
            self._read(name, VALUE, tensor)
            p.tensor.data = tensor
        self.resident = True

    def sync_moments(self) -> None:
        """The optimizer's state as torch has it, where a step has been done."""
        if self.engine is None or self.engine.done == 0:
            return
        adam = not isinstance(self.optimizer, torch.optim.SGD)
        for name in self.trained:
            p = self.parameters[name].tensor
            if p in self.optimizer.state and self.optimizer.state[p]:
                continue
            state: dict[str, Any] = {"step": torch.tensor(float(self.engine.done))} if adam else {}
            for which in (FIRST, SECOND):
                if self.engine.bytes_of(name, which):
                    moment = torch.empty(p.shape, dtype=torch.float32)
                    self._read(name, which, moment)
                    state[self._key(which)] = moment.to(p.dtype)
            if state:
                self.optimizer.state[p] = state

    def leave(self) -> None:
        """Everything back in torch's objects, which have no hooks any more; ends the engine."""
        self.sync()
        self.sync_moments()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self.engine is not None:
            self._restore_copier()
            self.engine.close()
        self.engine, self.left = None, True

    def move(self, engine, parameters: dict[str, Parameter], trained: list[str]) -> None:
        """From the engine to another one, through a file; in memory is a piece at a time."""
        self.settle()
        old, done = self.engine, self.engine.done
        new = sorted(set(trained) - set(self.trained))
        if new and done:
            raise unsupported(
                f"compile_step: parameter '{new[0]}' begins to be trained after "
                f"{done} steps, which is not supported: close() this step and compile "
                "another"
            )
        with tempfile.TemporaryFile(dir=self.folder or _core.scratch_folder()) as spool:
            pieces = [
                (name, which, old.bytes_of(name, which))
                for name in self.parameters
                for which in (VALUE, FIRST, SECOND, MASTER)
            ]
            buffer = bytearray(_CHUNK)
            address = _address(buffer)
            for name, which, size in pieces:
                for begin, count in _chunks(size):
                    old.read(name, which, address, count, begin)
                    spool.write(memoryview(buffer)[:count])
            old.close()
            spool.seek(0)
            engine.start()
            for name, which, size in pieces:
                for begin, count in _chunks(size):
                    spool.readinto(memoryview(buffer)[:count])
                    if engine.bytes_of(name, which):
                        engine.write(name, which, address, count, begin)
        engine.done = done
        self.engine, self.parameters, self.trained = engine, parameters, trained

    # ---- parts

    def _key(self, which: int) -> str:
        return "momentum_buffer" if isinstance(self.optimizer, torch.optim.SGD) else _MOMENTS[which]

    def _give_moments(self, compare: bool) -> None:
        steps = set()
        for name in self.trained:
            p = self.parameters[name].tensor
            state = self.optimizer.state.get(p)
            if not state:
                continue
            for which in (FIRST, SECOND):
                moment = state.get(self._key(which))
                if moment is not None and self.engine.bytes_of(name, which):
                    self._write(name, which, moment.to(torch.float32), compare)
            if "step" in state:
                steps.add(int(state["step"]))
            del self.optimizer.state[p]
        if len(steps) > 1:
            raise unsupported(
                f"compile_step: parameters have done different numbers of steps "
                f"({sorted(steps)}), which is not supported"
            )
        if steps:
            self.engine.done = steps.pop()

    def _write(self, name: str, which: int, tensor: torch.Tensor, compare: bool = False) -> None:
        data = tensor.detach().contiguous()
        size = data.numel() * data.element_size()
        if not compare:
            self.engine.write(name, which, data.data_ptr(), size, 0)
            return
        buffer = bytearray(min(_CHUNK, size))
        for begin, count in _chunks(size):
            self.engine.read(name, which, _address(buffer), count, begin)
            if ctypes.string_at(data.data_ptr() + begin, count) != memoryview(buffer)[:count]:
                self.engine.write(name, which, data.data_ptr() + begin, count, begin)

    def _read(self, name: str, which: int, tensor: torch.Tensor) -> None:
        self.engine.read(name, which, tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0)

    def _release(self, p: Parameter) -> None:
        dtype = p.tensor.dtype
        if dtype not in self._nan:
            self._nan[dtype] = torch.full((), float("nan"), dtype=dtype)
        p.tensor.data = self._nan[dtype].expand(p.tensor.shape)

    @staticmethod
    def _check_shared(parameters: dict[str, Parameter]) -> None:
        seen: dict[int, str] = {}
        for name, p in parameters.items():
            if p.tensor.numel() == 0:
                raise unsupported(f"compile_step: parameter '{name}' has no elements")
            storage = p.tensor.untyped_storage().data_ptr()
            if storage in seen:
                raise unsupported(
                    f"compile_step: parameters '{seen[storage]}' and '{name}' are two "
                    "objects that share memory, which is not supported"
                )
            seen[storage] = name

    # ---- hooks

    def _install(self) -> None:
        if self._handles:
            return
        hook = _Hook(self)
        for module in self.model.modules():
            if not module._parameters:
                continue
            self._handles.append(module.register_forward_pre_hook(hook))
            self._handles.append(module.register_state_dict_pre_hook(hook))
            self._handles.append(module.register_load_state_dict_pre_hook(hook))
        self._handles.append(self.model.register_forward_pre_hook(hook))
        self._handles.append(self.model.register_state_dict_pre_hook(hook))
        both = _Hook(self, moments=True)
        self._handles.append(self.optimizer.register_state_dict_pre_hook(both))
        self._handles.append(self.optimizer.register_step_pre_hook(both))
        self._copier = vars(self.model).get("__deepcopy__")
        self.model.__dict__["__deepcopy__"] = self._deepcopy

    def _restore_copier(self) -> None:
        self.model.__dict__.pop("__deepcopy__", None)
        if self._copier is not None:
            self.model.__dict__["__deepcopy__"] = self._copier

    def _deepcopy(self, memo):
        self.sync()
        model = self.model
        own = model.__dict__["__deepcopy__"]
        self._restore_copier()
        try:
            return copy.deepcopy(model, memo)
        finally:
            model.__dict__["__deepcopy__"] = own


def _chunks(size: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, size, _CHUNK):
        yield begin, min(_CHUNK, size - begin)


def _address(buffer: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
