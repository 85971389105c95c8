"""From torch.compile's graph to a Pass: the part that speaks to Dynamo and AOTAutograd."""
from __future__ import annotations

import os
import sys
from typing import Any, Callable, Mapping, Optional

import torch
import torch._dynamo.utils
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from .. import _core
from .._errors import HeadraceError
from .._remote import marked_modules
from ._buckets import Buckets, has_open_shapes
from ._emit import Boxed
from ._options import parse_options
from ._planner import Ledger
from ._outside import marked_inside, refuse_unknown, watch_modules
from ._remotes import Adopter
from ._runtime import Pass, interface_graphs
from ._step import build_step
from ._uses import UsingInference

_ledgers: dict[int, tuple[Any, Ledger]] = {}  # by identity of the options, which are kept alive
_calls: list[int] = []  # what the process held when torch.compile was called, the oldest call first


# What torch._dynamo and this package are in memory when torch.compile imports them (164 MiB and 5
# MiB measured with torch 2.15): that is growth of the process, but happens before anybody asks us.
IMPORT_BYTES = 172 << 20
_imported = [False]  # by the torch.compile call that is going on


def note_import() -> None:
    """This module is being imported."""
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith(
            os.path.join("torch", "__init__.py")):
        frame = frame.f_back
    _imported[0] = frame is not None and not _dynamo_was_there()


def _dynamo_was_there() -> bool:
    """Dynamo has seen a frame, or an optimizer was made, which imports it (torch notes that at the
    method). Counted as growth all the same, it would be 170 MiB that no plan may have."""
    adding = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    return bool(torch._dynamo.utils.counters["frames"]) or hasattr(adding, "__dynamo_disable")


def _note_call() -> None:
    """torch.compile has been called: growth counts from here."""
    _core.tune_malloc()
    watch_modules()
    before = IMPORT_BYTES if _imported[0] else 0
    _imported[0] = False
    _calls.append(_core.process_memory().rss - before)


def _ledger(options: Optional[Mapping[str, Any]]) -> Ledger:
    known = _ledgers.get(id(options))
    if known is None:
        settings = parse_options(options)
        if not _calls:
            _note_call()  # before torch 2.10 the first graph is the first that is heard of the call
        known = (options, Ledger(settings, _calls.pop(0)))
        _ledgers[id(options)] = known
    return known[1]


class _Compilation:
    """One call of the backend: AOTAutograd asks for the parts one after the other."""

    def __init__(self, ledger: Ledger, goes_on: bool) -> None:
        self.ledger = ledger
        self.goes_on = goes_on
        self.made: Optional[Pass] = None

    def partition(self, joint: fx.GraphModule, _inputs: Any, *, num_fwd_outputs: int,
                  static_lifetime_input_indices: Optional[list[int]] = None,
                  **_: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        output = next(n for n in reversed(joint.graph.nodes) if n.op == "output")
        descriptions = output.meta.get("desc") or [None] * len(output.args[0])
        step = build_step(joint, num_fwd_outputs=num_fwd_outputs,
                          static=list(static_lifetime_input_indices or ()))
        self.made = Pass(step, self.ledger, self.goes_on)
        return interface_graphs(step, descriptions)

    def forward(self, _module: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        assert self.made is not None
        return _boxed(self.made.forward)

    def backward(self, _module: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        assert self.made is not None
        return _boxed(self.made.backward)

    @staticmethod
    def inference(module: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        """Nothing is saved: the graph as it is, each tensor dying with its last reader."""
        module.graph.set_codegen(Boxed())
        module.recompile()
        return _boxed(UsingInference(module) if marked_modules() else module.forward)


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(args: list[Any]) -> Any:
        return function(args)
    call._boxed_call = True
    return call


def _refusal(error: HeadraceError) -> Callable[..., Any]:
    # Raised where the model is called, as it is: what is raised while Dynamo compiles arrives as
    # Dynamo's own error.
    def refused(*_: Any) -> Any:
        raise error
    return refused


def backend(gm: fx.GraphModule, example_inputs: list[Any], *,
            options: Optional[Mapping[str, Any]] = None, mode: Optional[str] = None,
            **_: Any) -> Callable[..., Any]:
    """The backend of torch.compile(model, backend="headrace", options={"memory": "1GiB"}).

    Everything that the compiled graphs keep for their backward passes is planned, so that the
    process grows by at most `memory` bytes over what it held when torch.compile was called.
    Gradients are those of backend="aot_eager", bit for bit: the same kernels on the same operands.

    Options: memory (bytes, or "1GiB"; without it $HEADRACE_MEMORY, else 80 % of what the system
    says is available), folder (for what is moved to a file), move, verbose.
    The call of the model raises DoesNotFit, with the numbers, or HeadraceError for what is not
    served.
    """
    try:
        if mode is not None:
            raise HeadraceError(f"mode={mode!r}: this backend has no modes")
        ledger = _ledger(options)
        watch_modules()  # there may be more of them than when torch.compile was called
        refuse_unknown(gm)
        reason = getattr(gm, "compile_subgraph_reason", None)
        goes_on = bool(reason is not None and reason.graph_break)
    except HeadraceError as error:
        return _refusal(error)

    def compile_static(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return _compile(graph, inputs, ledger, goes_on)

    if has_open_shapes(example_inputs):
        return Buckets(gm, compile_static)
    return compile_static(gm, example_inputs)


def _compile(gm: fx.GraphModule, inputs: list[Any], ledger: Ledger,
             goes_on: bool) -> Callable[..., Any]:
    work = _Compilation(ledger, goes_on)
    compiler = aot_autograd(fw_compiler=work.forward, bw_compiler=work.backward,
                            inference_compiler=work.inference, partition_fn=work.partition)
    try:
        compiled = compiler(gm, inputs)
    except HeadraceError as error:
        return _refusal(error)
    if not marked_modules():
        return compiled
    adopter = Adopter(gm, ledger.settings.folder, marked_inside())

    def call(*args: Any) -> Any:
        adopter.look(args)
        return compiled(*args)
    return call


backend._dynamo_backend_init = _note_call  # Dynamo calls it whenever torch.compile is called
