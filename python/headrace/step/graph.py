"""The traced graph taken apart: what depends on parameters, on inputs, on neither.

What depends on no parameter is never raised: constants are evaluated here, the rest (shifts of
labels, positions, padding) is a graph that is run on the real inputs of every step.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional, Sequence

import torch

from .capture import Capture, line_of
from .events import unsupported

CONSTANT, INPUT, FLOAT = "constant", "input", "float"

_MODES = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast")


class Parts:
    """Kinds of all nodes, and evaluation of those that need no parameters."""

    def __init__(self, captured: Capture):
        self.captured = captured
        self.kind: dict[torch.fx.Node, str] = {}
        self.root: dict[torch.fx.Node, torch.fx.Node] = {}
        self.aliases: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # by root
        self.mutators: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # by root
        self.place = {node: i for i, node in enumerate(captured.nodes)}
        self._known: dict[torch.fx.Node, Any] = {}
        gradient = True
        for node in captured.nodes:
            if node.op == "call_function" and _mode(node):
                gradient = self._check_mode(node, gradient)
                self.kind[node] = CONSTANT
                continue
            self.kind[node] = self._kind_of(node)
            self._note_aliases(node)
            self.aliases.setdefault(self.root[node], []).append(node)
            if self.kind[node] == FLOAT and node.op == "call_function" and not gradient:
                raise unsupported(
                    f"compile_step: {node.target} under no_grad, of what depends on "
                    f"parameters, is not supported{line_of(node)}"
                )

    def is_parameter(self, node: torch.fx.Node) -> bool:
        if node.op != "get_attr":
            return False
        tensor = self.captured.objects[node.target]
        return id(tensor) in self.captured.parameters or tensor.requires_grad

    def _kind_of(self, node: torch.fx.Node) -> str:
        if node.op == "placeholder":
            return INPUT
        if node.op == "get_attr":
            return FLOAT if self.is_parameter(node) else CONSTANT
        kinds = {self.kind[n] for n in node.all_input_nodes}
        if FLOAT in kinds:
            return FLOAT
        tags = getattr(node.target, "tags", ())
        random = torch.Tag.nondeterministic_seeded in tags
        return INPUT if INPUT in kinds or random else CONSTANT

    @staticmethod
    def _check_mode(node, gradient: bool) -> bool:
        if _mode(node) == "_set_grad_enabled":
            return bool(node.args[0])
        if _mode(node) == "_enter_autocast" and node.args[2]:
            raise unsupported(
                "compile_step: autocast is not supported; convert the model to "
                f"bfloat16{line_of(node)}"
            )
        return gradient

    def _note_aliases(self, node: torch.fx.Node) -> None:
        self.root[node] = node
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            return
        for argument, value in zip(schema.arguments, node.args):
            if argument.alias_info is None or not isinstance(value, torch.fx.Node):
                continue
            if any(r.alias_info is not None for r in schema.returns):
                self.root[node] = self.root[value]
            if argument.alias_info.is_write:
                root = self.root[value]
                self.mutators.setdefault(root, []).append(node)
                if root.op != "call_function":
                    raise unsupported(
                        f"compile_step: {node.target} changes an argument of train_step or a "
                        f"buffer of the model, which is not supported{line_of(node)}"
                    )

    def changed_after(self, node: torch.fx.Node, user: torch.fx.Node) -> bool:
        """Whether something writes into the storage of ``node`` after ``user`` has read it."""
        return any(self.place[m] > self.place[user] for m in self.mutators.get(self.root[node], ()))

    # ---- evaluation

    def needed(
        self, wanted: Iterable[torch.fx.Node], given: Sequence[torch.fx.Node] = ()
    ) -> list[torch.fx.Node]:
        """What has to be computed for ``wanted`` when ``given`` is there, in the graph's order."""
        found, todo = set(), list(wanted)
        while todo:
            node = todo.pop()
            if node in found or node in given:
                continue
            found.add(node)
            todo += node.all_input_nodes + self.mutators.get(self.root.get(node, node), [])
        return sorted(found, key=self.place.__getitem__)

    def evaluate(self, node: torch.fx.Node, exact: bool = False) -> torch.Tensor:
        """The value of a constant. ``exact``: as if nothing were rounded to bf16 on the way."""
        key = (node, exact)
        if key not in self._known:
            values: dict[torch.fx.Node, Any] = {}
            with torch.no_grad():
                for n in self.needed([node]):
                    values[n] = self._one(n, values, exact)
            self._known[key] = values[node]
        return self._known[key]

    def _one(self, node, values, exact: bool):
        if node.op == "get_attr":
            return self.captured.objects[node.target]
        args = torch.fx.node.map_arg(node.args, values.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
        result = node.target(*args, **kwargs)
        if (
            exact
            and isinstance(result, torch.Tensor)
            and args
            and isinstance(args[0], torch.Tensor)
            and args[0].dtype == torch.float32
            and result.dtype in (torch.bfloat16, torch.float16)
        ):
            return args[0].reshape(result.shape) if args[0].numel() == result.numel() else result
        return result

    def module(
        self, outputs: Sequence[Any], given: Sequence[torch.fx.Node] = ()
    ) -> torch.fx.GraphModule:
        """A module of the placeholders of the graph, then ``given``, that computes ``outputs``
        (nodes; everything else is returned as it is)."""
        graph = torch.fx.Graph()
        new: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.captured.nodes:
            if node.op == "placeholder":
                new[node] = graph.placeholder(node.name)
        for i, node in enumerate(given):
            new[node] = graph.placeholder(f"given_{i}")
        wanted = [n for n in outputs if isinstance(n, torch.fx.Node)]
        root = torch.nn.Module()
        for node in self.needed(wanted, given):
            if node in new:
                continue
            if node.op == "get_attr":
                setattr(root, node.target, self.captured.objects[node.target])
            new[node] = graph.node_copy(node, new.__getitem__)
        graph.output([new[n] if isinstance(n, torch.fx.Node) else n for n in outputs])
        return torch.fx.GraphModule(root, graph)


def _mode(node: torch.fx.Node) -> Optional[str]:
    name = getattr(node.target, "__name__", "")
    return name if name in _MODES else None
