"""Capture: one training step as a graph of ATen ops and a list of events, nothing computed.

make_fx traces the forward pass and the loss before autograd decomposes them (pre-dispatch), on
fake tensors: no memory, no arithmetic. Parameters appear in the graph as attributes that are the
very objects of the model, so tied ones are one. What the step does beside computing is in
events.py.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import inspect
import os
import re
from typing import Any, Callable, Iterator, Optional

import torch
from torch.fx.experimental import proxy_tensor
from torch.utils import _pytree as pytree  # torch's own; the public one has no tree_unflatten
from torch._subclasses import fake_tensor

from .events import Event, recording, unsupported


# Folders of torch and of this package, wherever they are installed.
_NOT_THE_USERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (torch.__file__, os.path.dirname(__file__))
)


@dataclasses.dataclass
class Capture:
    module: torch.fx.GraphModule  # placeholders are the tensors among the arguments, in order
    events: list[Event]
    out_spec: Any  # of what train_step returns
    parameters: dict[int, str]  # id of a parameter object -> its name
    outputs: list[Any]  # leaves of the result: nodes or plain values
    objects: dict[str, torch.Tensor]  # what get_attr nodes refer to, by target

    @property
    def nodes(self):
        return self.module.graph.nodes


class _Items:
    """A UserDict (BatchEncoding of transformers) on its way through a pytree. Its own class is not
    made known to torch: that is the user's to do, once in a process."""

    def __init__(self, mapping: collections.UserDict):
        others = {name: value for name, value in vars(mapping).items() if name != "data"}
        _check_tensors(mapping, others.values())
        # What is no plain value (a tokenizer's Encoding) would be a constant that nothing compares:
        # it is missing in the step, so that whoever reads it is told.
        self.context = type(mapping), {n: v for n, v in others.items() if _is_plain(v)}
        self.data = _opened(mapping.data)

    @staticmethod
    def mapping(items, context):
        kind, others = context
        made = kind.__new__(kind)
        vars(made).update(others, data=next(iter(items)))
        return made


pytree.register_pytree_node(_Items, lambda items: ([items.data], items.context), _Items.mapping)


def _opened(tree):
    return pytree.tree_map(
        lambda leaf: _Items(leaf) if isinstance(leaf, collections.UserDict) else leaf, tree
    )


def _is_plain(value) -> bool:
    plain = (type(None), bool, int, float, str, torch.dtype, torch.device)
    return all(isinstance(leaf, plain) for leaf in pytree.tree_leaves(value))


def _tensors_in(values) -> bool:
    return any(
        isinstance(leaf, torch.Tensor)
        or (isinstance(leaf, collections.abc.Mapping) and _tensors_in(leaf.values()))
        for leaf in pytree.tree_leaves(list(values))
    )


def _check_tensors(owner, values) -> None:
    if _tensors_in(values):
        raise unsupported(
            f"compile_step: an argument of type {type(owner).__name__} has tensors in it, which "
            "would be constants of the step; give them as tensors, tuples, lists or dicts"
        )


def flatten(args: tuple, kwargs: dict) -> tuple[list, Any]:
    """(leaves, spec) of arguments, with all tensors among the leaves; torch's tree_unflatten() is
    the way back. HeadraceError("unsupported"): something else than a tuple, list, dictionary or
    UserDict has tensors in it, which would be constants."""
    leaves, spec = pytree.tree_flatten(_opened((args, kwargs)))
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            continue
        mapping = isinstance(leaf, collections.abc.Mapping)
        inside = leaf if mapping else getattr(leaf, "__dict__", {})
        if isinstance(leaf, (torch.nn.Module, torch.optim.Optimizer)):  # theirs are known by name
            inside = {n: v for n, v in inside.items() if isinstance(v, torch.Tensor)}
        _check_tensors(leaf, inside.values())
    return leaves, spec


def parameter_names(model: torch.nn.Module, optimizer) -> dict[int, str]:
    """Names of all parameters that a step may have: the model's, then the optimizer's own."""
    names = {id(p): name for name, p in model.named_parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            names.setdefault(id(p), f"optimizer.{g}.{i}")
    return names


def all_parameters(model, optimizer) -> list[torch.Tensor]:
    found = {id(p): p for p in model.parameters()}
    for group in optimizer.param_groups:
        found.update((id(p), p) for p in group["params"])
    return list(found.values())


def _check_hooks(model, parameters) -> None:
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise unsupported(
                f"compile_step: module '{name or type(model).__name__}' has backward "
                "hooks, which are not supported"
            )
    for p in parameters:
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise unsupported(
                f"compile_step: a parameter of shape {tuple(p.shape)} has gradient "
                "hooks, which are not supported"
            )
        if p.device.type != "cpu" or p.layout != torch.strided:
            raise unsupported(
                f"compile_step: a parameter of shape {tuple(p.shape)} is on "
                f"{p.device}, layout {p.layout}: only dense ones in memory are "
                "supported"
            )


@contextlib.contextmanager
def _noting_lines(options: dict[str, Any]) -> Iterator[None]:
    """make_fx with these options notes the line that made each node. torch 2.6 has no option for
    that, but its tracers have the attribute."""
    if "record_stack_traces" in inspect.signature(proxy_tensor.make_fx).parameters:
        options["record_stack_traces"] = True
        yield
        return
    tracer = proxy_tensor.PythonKeyTracer
    tracer.record_stack_traces = True
    try:
        yield
    finally:
        del tracer.record_stack_traces


def capture(train_step: Callable, model, optimizer, args: tuple, kwargs: dict) -> Capture:
    """Traces train_step(*args, **kwargs). Only shapes of tensors among the arguments matter; all
    other arguments are constants of the step. HeadraceError("unsupported") names what is not
    supported; errors of train_step itself come as they are."""
    parameters = all_parameters(model, optimizer)
    _check_hooks(model, parameters)
    if torch.is_autocast_enabled("cpu"):
        raise unsupported("compile_step: autocast is not supported; convert the model to bfloat16")
    leaves, spec = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    result: dict[str, Any] = {}

    def traced(*tensors):
        filled = list(leaves)
        for i, tensor in zip(places, tensors):
            filled[i] = tensor
        call_args, call_kwargs = pytree.tree_unflatten(filled, spec)
        with torch.enable_grad():
            returned = train_step(*call_args, **call_kwargs)
        flat, result["spec"] = pytree.tree_flatten(returned)
        result["leaves"] = flat
        return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]

    options = {"tracing_mode": "fake", "pre_dispatch": True, "_allow_non_fake_inputs": True}
    with recording(model, optimizer, parameters) as recorder, _noting_lines(options):
        try:
            module = proxy_tensor.make_fx(traced, **options)(*[leaves[i] for i in places])
        except (
            fake_tensor.DataDependentOutputException,
            fake_tensor.DynamicOutputShapeException,
        ) as e:
            raise unsupported(
                f"compile_step: train_step depends on values of tensors ({e}), which "
                "is not supported"
            ) from e
        except RuntimeError as e:
            # Gradients are one number expanded while the step is traced: writing to it fails so.
            if "more than one element of the written-to tensor" not in str(e):
                raise
            raise unsupported(
                "compile_step: train_step computes with gradients itself; only "
                "clip_grad_norm_() of torch.nn.utils is supported"
            ) from e
    return _captured(
        module,
        recorder.events,
        result,
        parameter_names(model, optimizer),
        {id(g) for g in recorder.gradients.values()},
    )


def _captured(module, events, result, names, gradients) -> Capture:
    objects = {}
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        objects[node.target] = value = _attribute(module, node.target)
        if id(value) in gradients:
            raise unsupported(
                "compile_step: train_step computes with gradients itself"
                f"{line_of(_first_user(node))}; only clip_grad_norm_() of "
                "torch.nn.utils is supported"
            )
    output = next(n for n in module.graph.nodes if n.op == "output")
    returned = iter(pytree.tree_leaves(output.args[0]))
    outputs = [
        next(returned) if isinstance(leaf, torch.Tensor) else leaf for leaf in result["leaves"]
    ]
    return Capture(module, events, result["spec"], names, outputs, objects)


def _attribute(module, target: str):
    for part in target.split("."):
        module = getattr(module, part)
    return module


def _first_user(node):
    return next(iter(node.users), node)


def line_of(node: Optional[torch.fx.Node]) -> str:
    """ " (FILE, line N: CODE)" of the user's line that made the node, the innermost outside torch;
    empty where torch did not record it."""
    trace = node.meta.get("stack_trace") if node is not None else None
    found = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)', trace or "")
    for file, line, code in reversed(found):
        if not file.startswith(_NOT_THE_USERS):
            return f" ({file}, line {line}: {code.strip()})"
    return ""
