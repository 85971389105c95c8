"""Graphs whose shapes Dynamo leaves open: each combination of shapes is planned on its own.

Training loops see few shapes (the last batch of an epoch, lengths padded to buckets), and a plan
is for known sizes. So the graph is given to AOTAutograd again for each combination that comes,
with sizes that are numbers, when it first comes. The latest MOST_BUCKETS are kept.
"""
from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable

import torch
from torch import fx
from torch.fx.node import map_arg

MOST_BUCKETS = 8


def has_open_shapes(example_inputs: list[Any]) -> bool:
    """True when a size among the inputs is a symbol."""
    def is_open(value: Any) -> bool:
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return True
        return isinstance(value, torch.Tensor) and any(not isinstance(n, int) for n in value.shape)
    return any(is_open(value) for value in example_inputs)


def _key(args: tuple[Any, ...]) -> tuple[Any, ...]:
    def of(arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return (tuple(arg.shape), arg.stride(), arg.dtype, arg.requires_grad)
        return arg
    # Whether a graph for backward is made at all depends on the mode.
    return (torch.is_grad_enabled(), *map(of, args))


def _read_numbers(gm: fx.GraphModule) -> dict[int, fx.Node]:
    """Inputs that are numbers in a tensor, which the graph reads by item(): where, and the
    reader."""
    found: dict[int, fx.Node] = {}
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for at, node in enumerate(placeholders):
        for user in node.users:
            if user.op == "call_method" and user.target == "item":
                found[at] = user
    return found


def _with_numbers(gm: fx.GraphModule, args: tuple[Any, ...]) -> fx.GraphModule:
    """The same graph with those numbers as they are now."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    # Only now: a module is made with those attributes (bodies of checkpoints and of autograd
    # Functions among them) that its graph names by then.
    copy = fx.GraphModule(gm, graph)
    for at, reader in _read_numbers(copy).items():
        value = args[at].item()
        for user in list(reader.users):
            user.args = map_arg(user.args, lambda n: value if n is reader else n)
            user.kwargs = map_arg(user.kwargs, lambda n: value if n is reader else n)
        copy.graph.erase_node(reader)
    copy.recompile()
    return copy


class Buckets:
    """Callable as the compiled graph."""

    def __init__(self, gm: fx.GraphModule,
                 compile_static: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]) -> None:
        self.gm = gm
        self.compile_static = compile_static
        self.numbers = list(_read_numbers(gm))
        self.made: OrderedDict[tuple[Any, ...], Callable[..., Any]] = OrderedDict()

    def __call__(self, *args: Any) -> Any:
        key = (*_key(args), *(args[at].item() for at in self.numbers))
        if key not in self.made:
            if len(self.made) >= MOST_BUCKETS:
                self.made.popitem(last=False)
            self.made[key] = self.compile_static(_with_numbers(self.gm, args), list(args))
        self.made.move_to_end(key)
        return self.made[key](*args)
