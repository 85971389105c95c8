"""headrace.fit: a PyTorch model and its optimizer, trained eagerly in the memory that you give."""
from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

import torch

from headrace import _core
from headrace._errors import DoesNotFit, HeadraceError
from headrace._memory import parse_bytes
from headrace.eager import _private
from headrace.eager._heap import close_holes
from headrace.eager._hook import Hook
from headrace.eager._plans import Settings
from headrace.eager._session import Session
from headrace.eager._states import separable
from headrace.eager._stats import Stats

_sessions: "weakref.WeakKeyDictionary[torch.nn.Module, _Installed]" = weakref.WeakKeyDictionary()


class _Installed:
    """A session at its model: autograd's hooks are on while the model's forward runs."""

    def __init__(self, model: torch.nn.Module, session: Session) -> None:
        self.session = session
        self._threads = threading.local()  # autograd's hooks are a thread's own as well
        self.handles = [
            model.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            model.register_forward_hook(Hook(self._after), always_call=True)]

    @property
    def entered(self) -> list[tuple[Any, int]]:
        """Per forward pass in progress in this thread: its saved_tensors_hooks or None, and how
        deep the stack was."""
        if not hasattr(self._threads, "entered"):
            self._threads.entered = []
        return self._threads.entered

    def _before(self, model: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        depth = _stack_depth()
        # What is not below us in the stack was left by an exception for which torch calls no hook
        # (KeyboardInterrupt).
        while self.entered and self.entered[-1][1] >= depth:
            self._after()
        hooks = None
        if not self.entered and torch.is_grad_enabled():
            if self.session.enter_forward(_signature((*args, *kwargs.values()))):
                hooks = torch.autograd.graph.saved_tensors_hooks(self.session.pack,
                                                                 self.session.unpack)
                hooks.__enter__()
                self.session.hooked = True
        self.entered.append((hooks, depth))

    def _after(self, *_: Any) -> None:
        # Without an entry the forward failed before our own pre-hook.
        hooks = self.entered.pop()[0] if self.entered else None
        if hooks is not None:
            hooks.__exit__(None, None, None)
            self.session.hooked = False
            _name_refusal(sys.exc_info()[1])

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.session.end()


def _name_refusal(error: BaseException | None) -> None:
    """torch.func.grad and its kin refuse the hooks of autograd that fit() works by, in words that
    do not say whose they are. A hook cannot raise another error in the place of theirs."""
    if isinstance(error, RuntimeError) and "support saved tensor hooks" in str(error):
        error.args = ("torch.func.grad, vjp, jacrev and hessian inside the forward pass of a model "
                      "that was given to headrace.fit are not supported, as they refuse the hooks "
                      "for saved tensors that it works by. Call them outside of the model's "
                      "forward pass, use torch.autograd.grad(..., create_graph=True) there, or "
                      f"headrace.release(model). torch says: {error}",)


def _stack_depth() -> int:
    depth, frame = 0, sys._getframe(1)
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


def _signature(values: Any) -> tuple:
    """Shapes of the tensors among the arguments of a forward pass, in their order."""
    shapes: list[tuple] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            shapes.append(tuple(value.shape))
        elif isinstance(value, dict):
            shapes.extend(_signature(value.values()))
        elif isinstance(value, (list, tuple)):
            shapes.extend(_signature(value))
    return tuple(shapes)


def fit(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None,
        memory: int | str = "1GiB", *, folder: str | os.PathLike | None = None, threads: int = 1,
        verbose: bool = False,
        paranoid: bool = False) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Lets training of `model` by `optimizer` take at most `memory` more than is resident now.

    Returns the same two objects; train with them as before. Saved tensors of the model's forward
    pass (what autograd keeps for backward) and the optimizer's state leave memory for a scratch
    file while nobody needs them. Gradients and parameters have the same bits as without.

    The first step records what happens when; it is slow. Steps after it follow a plan, as long as
    the same happens again; if not (another shape, an exception), the rest of the step goes on
    unplanned, slower, with the same bits, and a new plan is made. When everything fits, nothing is
    moved or copied.

    Bounded is what is ours: saved tensors of 64 KiB and more, optimizer state, copies. Temporaries
    of PyTorch's ops, logits, gradients, and what is computed outside the model's forward are
    measured in the first step and again in each step that is recorded; the plan takes what they
    leave.

    A process that is forked from this one (a worker of a DataLoader) may have and drop the model;
    what would need the scratch file there is a HeadraceError. torch.func.grad, vjp, jacrev and
    hessian inside the model's forward pass are refused, as they refuse hooks of saved tensors.

    Args:
        model: on the CPU. Its forward passes with gradients are watched; others are left alone.
        optimizer: of torch.optim. State of LBFGS and of optimizers from elsewhere stays in memory.
            Without one, a step ends when backward has used up all that forward passes have saved.
        memory: bytes, or text as "1GiB" or "800MiB".
        folder: on a disk, for the scratch file, which has no name and goes with the process; None:
            $TMPDIR, /var/tmp or the current folder.
        threads: that the engine may use besides PyTorch's.
        verbose: print each plan when it is made.
        paranoid: fill memory with NaN as soon as the plan says that it is free (for tests).

    Errors: HeadraceError here for what cannot be served; DoesNotFit here or when the second step
    begins, with the bytes that are missing and what would help. Calling fit() again replaces the
    first call; release(model) undoes it.
    """
    _private.check()
    release(model)
    _refuse_other_devices(model)
    _refuse_shared(optimizer)
    _core.tune_malloc()
    close_holes()
    settings = Settings(parse_bytes(memory), _core.process_memory().rss,
                        None if folder is None else os.fspath(folder), threads, verbose, paranoid)
    _look_ahead(model, optimizer, settings)
    _sessions[model] = _Installed(model, Session(model, optimizer, settings))
    return model, optimizer


def _refuse_other_devices(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise HeadraceError(f"parameter '{name}' is on {parameter.device}: fit() moves tensors "
                                "of the CPU", "unsupported")


def _refuse_shared(optimizer: torch.optim.Optimizer | None) -> None:
    """Its steps end the cycles of one model, and its state can be in one place."""
    if optimizer is not None and any(installed.session.states.optimizer() is optimizer
                                     for installed in _sessions.values()):
        raise HeadraceError("this optimizer was given to fit() with another model: give it with "
                            "one of them (its state moves for all), and None with the others; or "
                            "release() the other model first")


def _look_ahead(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None,
                settings: Settings) -> None:
    """What can be said before the first step; DoesNotFit when gradients alone are too much."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in trained if p.grad is None)
    if settings.verbose:
        state = "left in memory" if optimizer is not None and not separable(optimizer) else "moved"
        parameters = sum(p.nbytes for p in model.parameters())
        print(f"headrace.fit: {parameters >> 20:,} MiB of parameters, {gradients >> 20:,} MiB of "
              f"gradients to come, in {settings.memory >> 20:,} MiB more than now; optimizer state "
              f"is {state}. The first step records what happens when.")
    if gradients > settings.memory:
        raise DoesNotFit(
            f"gradients alone take {gradients / 2**20:,.0f} MiB, "
            f"{settings.memory / 2**20:,.0f} MiB were given. Options: more memory, frozen "
            "parameters, headrace.compile_step, which places gradients as well.",
            gradients, settings.memory,
            ["more memory", "frozen parameters", "headrace.compile_step"])


def release(model: torch.nn.Module) -> None:
    """Undoes fit(): optimizer state is in ordinary memory again. Nothing when there was none."""
    installed = _sessions.pop(model, None)
    if installed is not None:
        installed.remove()


def stats(model: torch.nn.Module) -> Stats:
    """What fit() has done for `model` so far; HeadraceError when it was not called."""
    installed = _sessions.get(model)
    if installed is None:
        raise HeadraceError("fit() was not called for this model", "usage")
    session = installed.session
    return session.stats.now(session.mode.value, session.moved)
