"""The callable that headrace.compile_step() returns."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any, Callable, Optional, Union

import torch
from torch.utils import _pytree as pytree

from .. import _core, _report
from .._errors import HeadraceError
from .._memory import Size, parse_bytes
from . import capture as capturing
from . import shapes
from .description import Description, describe
from .state import State, check_free

_MOST_SHAPES = 8
_CHECK_TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # of the first loss against eager


@dataclasses.dataclass
class _Compiled:
    description: Description


class CompiledStep:
    """A training step that the engine runs whole. See compile_step()."""

    def __init__(
        self,
        train_step: Callable,
        model: torch.nn.Module,
        optimizer,
        memory: int,
        folder: Optional[str],
        threads: int,
        seed: Optional[int],
        check: Optional[bool],
    ):
        self._train_step, self._model, self._optimizer = train_step, model, optimizer
        self._memory, self._folder, self._threads = memory, folder, threads
        self._seed = torch.initial_seed() if seed is None else seed
        self._check = check
        self._baseline = _core.process_memory().rss
        self._compiled: dict[Any, _Compiled] = {}  # the least recently used first
        self._live: Optional[_Compiled] = None  # whose engine runs
        self._state = State(model, optimizer, folder)
        self._steps = 0
        self.skipped_steps = 0

    # ---- for users

    def __call__(self, *args, **kwargs):
        """One step. Returns what train_step returns: the loss, or what is made of losses and norms.
        Only tensors among the arguments may differ in value from call to call; another shape, or
        another value of something else, is captured anew."""
        if self._state.left:
            raise HeadraceError("this compiled step is closed", "usage")
        leaves, spec = capturing.flatten(args, kwargs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        entry = self._entry_of(args, kwargs, leaves, spec, tensors)
        d = entry.description
        values = [v.detach() for v in d.before(*tensors)]
        target = self._target(entry)
        rows = shapes.Rows(d, target.description, values)
        expected = self._eager_losses(d, tensors)
        self._ready(target)
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        for name, number, floats in rows.floats:
            self._state.engine.write_input(name, floats.data_ptr(), floats.numel() * 4, number)
        seed = (self._seed * 0x9E3779B97F4A7C15 + self._steps) % 2**63
        means, norm, skipped = self._state.engine.run(
            rows.tokens.data_ptr(), rows.targets.data_ptr(), len(rows.tokens), rates, seed
        )
        losses = rows.losses(means)
        self._optimizer._opt_called = True  # or schedulers warn that it has not stepped yet
        self._steps += 1
        self.skipped_steps += int(skipped)
        self._compare(d, expected, losses)
        return self._result(d, tensors, losses, norm)

    def sync(self) -> None:
        """Brings parameters back into the model, which may be changed until the next step."""
        self._state.sync()

    def close(self) -> None:
        """Ends the engine; model and optimizer have their state and are torch's alone again."""
        if not self._state.left:
            self._state.leave()

    def trace(self):
        """What the engine did in the last step, for headrace.memory_timeline() and the like."""
        if self._state.engine is None:
            raise HeadraceError("no step has been run yet", "usage")
        return self._state.engine.trace()

    def plan_text(self) -> str:
        """The table of the plan of the last shape, at most 100 columns."""
        if self._state.engine is None:
            return "compile_step: planned at the first call"
        return self._state.engine.plan_text()

    def __repr__(self) -> str:
        return self.plan_text()

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(self.plan_text())}</pre>"

    def __enter__(self) -> "CompiledStep":
        return self

    def __exit__(self, *_error) -> None:
        self.close()

    # ---- capture

    def _entry_of(self, args, kwargs, leaves, spec, tensors) -> _Compiled:
        key = self._key(leaves, spec)
        entry = self._compiled.pop(key, None)
        if entry is None:
            entry = self._compile(args, kwargs, tensors)
            if len(self._compiled) >= _MOST_SHAPES:
                self._compiled.pop(next(iter(self._compiled)))
        self._compiled[key] = entry
        return entry

    def _key(self, leaves, spec) -> tuple:
        shapes_of = tuple(
            (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else _static(leaf)
            for leaf in leaves
        )
        flags = tuple(m.training for m in self._model.modules())
        parameters = tuple((id(p), p.requires_grad) for p in self._model.parameters())
        groups = tuple(
            tuple(
                (k, _static(v))
                for k, v in sorted(group.items())
                if k not in ("params", "lr", "initial_lr")
            )
            + (len(group["params"]),)
            for group in self._optimizer.param_groups
        )
        return str(spec), shapes_of, flags, parameters, groups

    def _compile(self, args, kwargs, tensors) -> _Compiled:
        state = self._state
        state.tracing = True
        emptied = [] if state.resident else list(state.parameters.values())
        try:
            for p in emptied:  # strides of a whole tensor; pages that nothing touches
                p.tensor.data = torch.empty(p.tensor.shape, dtype=p.tensor.dtype)
            captured = capturing.capture(
                self._train_step, self._model, self._optimizer, args, kwargs
            )
            description = describe(captured, self._model, self._optimizer, tensors)
        finally:
            state.tracing = False
            for p in emptied:
                state._release(p)
        return _Compiled(description)

    # ---- engines

    def _target(self, entry: _Compiled) -> _Compiled:
        """The compiled step whose engine is to run this one's rows: itself, or the larger one that
        runs and is the same but for its shape."""
        live = self._live
        holds = live is not None and shapes.holds(live.description, entry.description)
        return live if holds else entry

    def _ready(self, entry: _Compiled) -> None:
        """Its engine is there, and has all state."""
        if self._live is entry:
            self._state.settle()
            return
        engine = self._engine(entry.description)
        trained = [p["name"] for p in entry.description.forward["parameters"] if p["trainable"]]
        if self._live is None:
            engine.start()
            self._state.give(engine, entry.description.parameters, trained)
        else:
            self._state.move(engine, entry.description.parameters, trained)
        self._live = entry
        _report.note(engine.plan, self)

    def _engine(self, d: Description):
        return _core.CapturedStep(
            json.dumps(d.forward),
            json.dumps(d.optimizer),
            self._memory,
            folder=self._folder,
            threads=self._threads,
            baseline_bytes=self._baseline,
        )

    def _wants_check(self, d: Description) -> bool:
        if any(op["op"] == "hr.dropout" for m in d.forward["micro_batches"] for op in m["ops"]):
            return False
        if self._check is not None:
            return self._check
        # Eager logits, their log-softmax and what else a forward pass holds.
        needed = max(3 * 4 * i.loss_rows * i.classes for i in d.inputs)
        return needed <= self._memory // 4

    def _eager_losses(self, d: Description, tensors) -> Optional[list[float]]:
        """Before the first step, where they are to be compared."""
        if self._live is not None or not self._wants_check(d):
            return None
        return [float(loss) for loss in d.losses_eager(*tensors)]

    @staticmethod
    def _compare(d: Description, expected: Optional[list[float]], losses: list[float]) -> None:
        allowed = _CHECK_TOLERANCE["f32" if d.forward["precision"] == "f32" else "bf16"]
        for eager, loss in zip(expected or [], losses):
            if not abs(loss - eager) <= allowed * max(1.0, abs(eager)) and eager == eager:
                raise HeadraceError(
                    f"compile_step: the first loss is {loss:.7g}, and {eager:.7g} as PyTorch "
                    "computes it: train_step has not been understood rightly. Please report it",
                    "unsupported",
                )

    # ---- results

    def _result(self, d: Description, tensors, losses, norm):
        dtype = d.loss_dtype
        given = [torch.tensor(loss, dtype=dtype) for loss in losses]
        given += [torch.tensor(0.0 if norm is None else norm)] * d.norms
        with torch.no_grad():
            leaves = d.after(*tensors, *given)
        for event in d.schedules:
            event.replay()
        return pytree.tree_unflatten(leaves, d.out_spec)


def _static(value) -> Any:
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def _check_arguments(model, optimizer) -> None:
    if not isinstance(model, torch.nn.Module):
        raise HeadraceError(f"compile_step: model is {type(model).__name__}, no torch.nn.Module")
    if hasattr(model, "_orig_mod"):
        raise HeadraceError(
            "compile_step: model is a compiled one (torch.compile); give the model that "
            "was compiled",
            "unsupported",
        )
    eager = sys.modules.get("headrace.eager")
    if eager is not None and model in eager._sessions:
        raise HeadraceError(
            "compile_step: the model is one that headrace.fit() works on; call "
            "headrace.release(model) first",
            "usage",
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise HeadraceError(
            f"compile_step: optimizer is {type(optimizer).__name__}, no torch.optim.Optimizer"
        )


def _take_back(model, optimizer) -> None:
    """From a step that was compiled for the model before, which is closed."""
    for module in model.modules():
        state = State.of(module)
        if state is not None:
            state.leave()
    names = capturing.parameter_names(model, optimizer)
    check_free({names[id(p)]: p for p in capturing.all_parameters(model, optimizer)})


def compile_step(
    train_step: Callable,
    model: torch.nn.Module,
    optimizer,
    memory: Size,
    *,
    folder: Union[None, str, os.PathLike] = None,
    threads: Optional[int] = None,
    seed: Optional[int] = None,
    check: Optional[bool] = None,
) -> CompiledStep:
    """A training step, forward to optimizer, that runs in ``memory``: one hard number.

        def train_step(tokens, targets):
            optimizer.zero_grad()
            loss = model(tokens, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        step = headrace.compile_step(train_step, model, optimizer, memory="1GiB")
        for tokens, targets in data:
            loss = step(tokens, targets)

    At the first call train_step is traced, nothing computed: its ops become ops of headrace's
    engine, which runs the whole step from then on, under a plan. The Python of train_step runs once
    a shape; only tensors among its arguments may change in value. Learning rates are read at every
    call.

    While the engine has them, parameters of the model read as NaN and take no memory. A forward
    outside the step, state_dict(), load_state_dict(), copy.deepcopy() and optimizer.state_dict()
    bring them back first; for anything else call sync(). The next step lets go of them again.
    Memory and scratch file are given back by close(), by compiling another step for the model,
    which closes this one, and with the last reference to the model.

    Of a loss, the mean or the sum over targets may be scaled by numbers and by tensors of one
    element that do not depend on parameters, as transformers' num_items_in_batch. Padding by an
    attention_mask is taken on the right, and on the left where positions are relative (rotary);
    targets that do not count (-100) must be what sees less than without padding.

    Sequences that are shorter or fewer than those of the last plan run on it as padding, where at
    least half of its rows are used; other shapes are planned anew (eight descriptions are kept),
    and state moves through a file. Dropout draws from a counter-based generator: the same seed
    gives the same masks under every plan, but not those of torch. A step whose loss or gradient
    norm is not finite changes nothing (torch's would); skipped_steps counts them.

    Args:
        train_step: calls zero_grad(), backward(), optimizer.step() of these very objects; several
            backward() are gradient accumulation. Returns the loss tensor, or a tuple, list or dict
            of tensors made of losses and the norm of clip_grad_norm_().
        model: parameters f32, or bf16 (then masters are f32).
        optimizer: AdamW, Adam without weight decay, or SGD (momentum, weight decay) of torch.optim.
        memory: bytes, or text as "1GiB": what the process may grow by from this call on.
        folder: for the scratch file, which has no name; None: $TMPDIR, /var/tmp or the current one.
        threads: that compute; None: as many as torch has.
        seed: of dropout; None: torch.initial_seed().
        check: compare the first loss with an eager forward pass of the same batch; None: where
            there is no dropout and its logits would take less than a quarter of ``memory``.

    Raises:
        HeadraceError: "unsupported" names the ATen op, its shapes and the line of the model, at the
            first call. DoesNotFit, at the first call, with the least memory that would do.
    """
    _check_arguments(model, optimizer)
    _take_back(model, optimizer)
    return CompiledStep(
        train_step,
        model,
        optimizer,
        parse_bytes(memory),
        None if folder is None else os.fspath(folder),
        threads or torch.get_num_threads(),
        seed,
        check,
    )
