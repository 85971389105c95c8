"""What a training step does beside computing: noted while it is traced, carried out by the engine.

While recording() is entered, loss.backward(), optimizer.step(), zero_grad(), clip_grad_norm_() and
scheduler.step() do nothing but add an Event. Whatever else would change gradients or parameters,
or give gradients of its own, is refused by name: a step that is captured is captured whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import Any, Callable, Iterator, Optional

import torch

from .. import _errors

# The two marks that events leave in the traced graph, so that the order and the operands of
# backward() and clip_grad_norm_() are seen there.
_LIBRARY = torch.library.Library("headrace_step", "DEF")
_LIBRARY.define("backward(Tensor loss) -> Tensor")
_LIBRARY.define("gradient_norm(Tensor loss) -> Tensor")
_LIBRARY.impl("backward", lambda loss: loss.clone(), "CompositeExplicitAutograd")
_LIBRARY.impl("gradient_norm", lambda loss: loss.new_empty(()), "CompositeExplicitAutograd")


@dataclasses.dataclass
class Event:
    kind: str  # "zero_grad", "backward", "clip", "step" or "schedule"
    max_norm: float = 0.0  # of clip
    parameters: tuple = ()  # of clip: ids
    replay: Optional[Callable[[], Any]] = None  # of schedule


def unsupported(message: str) -> _errors.HeadraceError:
    return _errors.HeadraceError(message, "unsupported")


def _refuse(what: str, advice: str = "") -> Callable:
    def refuse(*_args, **_kwargs):
        raise unsupported(f"compile_step: {what} inside train_step is not supported{advice}")

    return refuse


class _Recorder:
    def __init__(self, model, optimizer, parameters):
        self.model, self.optimizer = model, optimizer
        self.parameters = parameters
        self.events: list[Event] = []
        self.loss = None
        # An element seen as a whole gradient: what touches .grad is found in the traced graph.
        self.gradients = {
            id(p): torch.zeros((), dtype=p.dtype).expand(p.shape)
            for p in parameters
            if p.requires_grad
        }

    def backward(self, loss, gradient=None, retain_graph=None, create_graph=False, inputs=None):
        if gradient is not None or create_graph or inputs is not None:
            raise unsupported(
                "compile_step: backward() with gradient=, create_graph= or inputs= is not supported"
            )
        self.loss = loss
        torch.ops.headrace_step.backward(loss)
        self.events.append(Event("backward"))
        for p in self.parameters:
            if p.requires_grad:
                p.grad = self.gradients[id(p)]

    def backward_of(self, tensors, grad_tensors=None, *args, **kwargs):
        if not isinstance(tensors, torch.Tensor):
            if len(tensors) != 1:
                raise unsupported(
                    "compile_step: torch.autograd.backward() of several tensors is "
                    "not supported: add the losses"
                )
            tensors = tensors[0]
        return self.backward(tensors, grad_tensors, *args, **kwargs)

    def zero_grad(self, set_to_none=True):
        self.events.append(Event("zero_grad"))
        self.clear()

    def clear(self):
        for p in self.parameters:
            p.grad = None

    def step(self, closure=None):
        if closure is not None:
            raise unsupported("compile_step: optimizer.step(closure) is not supported")
        self.events.append(Event("step"))

    def clip(self, parameters, max_norm, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        if float(norm_type) != 2.0 or error_if_nonfinite:
            raise unsupported(
                "compile_step: clip_grad_norm_() is supported for the 2-norm without "
                "error_if_nonfinite"
            )
        if self.loss is None:
            raise unsupported("compile_step: clip_grad_norm_() before backward() is not supported")
        some = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self.events.append(Event("clip", float(max_norm), tuple(id(p) for p in some)))
        return torch.ops.headrace_step.gradient_norm(self.loss)


def _names_of(function) -> Iterator[tuple[Any, str]]:
    """Every module that has the function under some name of its own ("from ... import")."""
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", None)
        if isinstance(space, dict):
            for name, value in list(space.items()):
                if value is function:
                    yield module, name


@contextlib.contextmanager
def recording(model, optimizer, parameters) -> Iterator[_Recorder]:
    """A recorder of the events until the context is left; then all is as before."""
    recorder = _Recorder(model, optimizer, parameters)
    undo: list[Callable[[], None]] = []

    def replace(owner, name, value):
        own = vars(owner)
        if name in own:
            undo.append(lambda old=own[name]: setattr(owner, name, old))
        else:
            undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def schedule(scheduler, *args, **kwargs):
        recorder.events.append(
            Event("schedule", replay=lambda: step_of_schedulers(scheduler, *args, **kwargs))
        )

    schedulers = torch.optim.lr_scheduler.LRScheduler
    step_of_schedulers = schedulers.step
    gradients = {id(p): p.grad for p in parameters}
    try:
        replace(torch.Tensor, "backward", lambda *a, **k: recorder.backward(*a, **k))
        replace(torch.autograd, "backward", recorder.backward_of)
        replace(torch.autograd, "grad", _refuse("torch.autograd.grad()"))
        replace(torch.autograd.Function, "apply", classmethod(_custom_function))
        for scalar in ("item", "tolist", "numpy", "__float__", "__int__", "__bool__"):
            replace(torch.Tensor, scalar, _host_value(scalar, getattr(torch.Tensor, scalar)))
        replace(optimizer, "step", recorder.step)
        replace(optimizer, "zero_grad", recorder.zero_grad)
        replace(model, "zero_grad", recorder.zero_grad)
        replace(schedulers, "step", schedule)
        for function, instead in (
            (torch.nn.utils.clip_grad_norm_, recorder.clip),
            (torch.nn.utils.clip_grad_value_, _refuse("clip_grad_value_()")),
        ):
            for module, name in _names_of(function):
                replace(module, name, instead)
        yield recorder
    finally:
        for step in reversed(undo):
            step()
        for p in parameters:
            p.grad = gradients[id(p)]


def _custom_function(cls, *args, **kwargs):
    if cls.__name__ == "CheckpointFunction":  # reentrant checkpoint: what it wraps is traced
        return args[0](*args[2:])
    if cls.__name__ == "_NoopSaveInputs":  # torch 2.6's other one keeps its inputs by this: no need
        return args[0].detach()
    raise unsupported(
        f"compile_step: torch.autograd.Function {cls.__module__}.{cls.__qualname__} "
        "has a gradient of its own, which is not supported"
    )


def _host_value(name: str, original: Callable) -> Callable:
    def value(tensor, *args, **kwargs):
        if (
            not isinstance(tensor, torch._subclasses.FakeTensor)
            or getattr(tensor, "constant", None) is not None
        ):  # torch.tensor(3): known
            return original(tensor, *args, **kwargs)
        raise unsupported(
            f"compile_step: train_step wants the value of a tensor while it is captured "
            f"(Tensor.{name}, of shape {tuple(tensor.shape)}). Return the loss as a tensor, take "
            "its value outside; steps that depend on values are not supported"
        )

    return value
