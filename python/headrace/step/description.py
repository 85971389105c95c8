"""Description: everything that the engine and the callable need of one captured step.

forward and optimizer are the JSON objects of headrace/train/captured_step.h; ``before`` and
``after`` are the parts of the step that stay torch's: what makes tokens and targets of the
arguments, and what makes the returned values of the losses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Optional, Sequence

import numpy as np
import torch

from . import arithmetic, attention, images, products, rotary, views  # noqa: F401  raise ops
from . import lower_attention, lower_ops, lower_products  # noqa: F401  lower values
from . import values
from .capture import Capture, line_of
from .events import Event, unsupported
from .lower import Lowering, MicroBatch
from .optimizer import optimizer_of, parameters_of, precision_of
from .raising import Raiser
from .values import Parameter, Partial


@dataclasses.dataclass
class MicroInputs:
    """Of one micro-batch; ``tokens``, ``targets`` and ``floats`` are places in what ``before``
    returns."""

    tokens: Optional[int]
    token_rows: int  # sequences of ``sequence`` tokens each; 0: none
    sequence: int
    vocabulary: int
    padding: list[int]  # tokens whose embedding torch gives no gradient
    targets: int
    loss_rows: int  # rows that the loss has
    target_rows: np.ndarray  # and those that there are targets of
    ignored: int
    classes: int
    floats: dict[str, int]  # by name of the input
    masks: list[tuple[int, bool, int]]  # of attention: (place, causal, window)
    absolute: bool  # positions have embeddings of their own
    summed: bool  # the loss is the sum over counted targets, else their mean
    weights: Optional[tuple[str, int]]  # input (name, number) with the weights of the loss' rows
    factor: float  # of the loss in backward(), times or over
    scalars: list[tuple[int, bool]]  # (place, whether it divides)


@dataclasses.dataclass
class Description:
    forward: dict[str, Any]
    optimizer: dict[str, Any]
    parameters: dict[str, Parameter]
    inputs: list[MicroInputs]
    before: torch.fx.GraphModule  # (tensors of the arguments) -> tensors
    after: torch.fx.GraphModule  # (tensors of the arguments, losses, norms) -> leaves
    norms: int  # how many norms ``after`` takes
    out_spec: Any
    schedules: list[Event]
    raiser: Raiser  # of the traced graph
    loss_nodes: list[torch.fx.Node]

    @property
    def loss_dtype(self) -> torch.dtype:
        return self.loss_nodes[0].meta["val"].dtype

    def losses_eager(self, *tensors) -> list[torch.Tensor]:
        """Losses of the micro-batches as torch computes them from what was traced, without
        gradients. Parameters must be in the model."""
        with torch.no_grad():
            return self.raiser.parts.module(self.loss_nodes)(*tensors)


def describe(captured: Capture, model, optimizer, tensors: Sequence[torch.Tensor]) -> Description:
    """``tensors``: those among the arguments that were captured, in order.

    HeadraceError("unsupported") with op, shapes and line for what the engine does not have."""
    raiser = Raiser(captured, tensors)
    raiser.run()
    raiser.tensors = ()
    clip = _checked_events(captured.events, raiser)
    terms = _terms(raiser)
    lowering = Lowering()
    weighted = any(t.scalars or raiser.losses[t.loss][0].summed for t in terms)
    micros = [
        lowering.run(raiser.losses[t.loss][0], t.factor, len(terms) > 1, weighted) for t in terms
    ]
    if not _alike(micros):
        _set_apart(micros)
    before, inputs = _before(raiser, terms, micros)
    loss_nodes = [raiser.losses[t.loss][1] for t in terms]
    after, norms = _after(raiser, loss_nodes)
    forward = {
        "headrace_forward": 1,
        "name": type(model).__name__,
        "precision": precision_of(lowering.parameters.values()),
        "rows": max(sum(i.token_rows for i in inputs), sum(i.loss_rows for i in inputs)),
        "parameters": parameters_of(lowering.parameters, model, optimizer),
        "constants": [
            {"name": name, "values": list(numbers)} for numbers, name in lowering.constants.items()
        ],
        "inputs": _inputs(micros),
        "micro_batches": _repeated(micros),
    }
    settings = optimizer_of(optimizer)
    if clip is not None:
        _check_clipped(clip, forward["parameters"], lowering.parameters)
        settings["clip_norm"] = clip.max_norm
    schedules = [e for e in captured.events if e.kind == "schedule"]
    return Description(
        forward,
        settings,
        lowering.parameters,
        inputs,
        before,
        after,
        norms,
        captured.out_spec,
        schedules,
        raiser,
        loss_nodes,
    )


# ---- events ------------------------------------------------------------------------------------


def _checked_events(events: Sequence[Event], raiser: Raiser) -> Optional[Event]:
    """The clipping, where there is one; events must be those of one whole step."""
    kinds = [e.kind for e in events if e.kind != "schedule"]
    text = ", ".join(kinds)
    if kinds.count("step") != 1:
        raise unsupported(
            f"compile_step: train_step must call optimizer.step() once; it did: {text}"
        )
    at = kinds.index("step")
    before = [k for k in kinds[:at] if k != "zero_grad"]
    if "backward" not in before:
        raise unsupported(f"compile_step: no backward() before optimizer.step(): {text}")
    if "backward" in kinds[at:] or "clip" in kinds[at:]:
        raise unsupported(f"compile_step: backward() or clipping after optimizer.step(): {text}")
    if "zero_grad" not in kinds:
        raise unsupported(
            "compile_step: train_step never calls zero_grad(), so that gradients of "
            "all steps would add up; call optimizer.zero_grad() in it"
        )
    begun = kinds.index("backward")
    if "zero_grad" in kinds[begun:at]:
        raise unsupported(
            f"compile_step: zero_grad() between backward() and optimizer.step(): {text}"
        )
    clips = [e for e in events if e.kind == "clip"]
    if len(clips) > 1 or (clips and before[-1] != "clip"):
        raise unsupported(
            f"compile_step: gradients are clipped more than once or before the last "
            f"backward(): {text}"
        )
    order = [e.kind for e in events]
    if "schedule" in order and order.index("schedule") < order.index("step"):
        raise unsupported("compile_step: scheduler.step() before optimizer.step()")
    return clips[0] if clips else None


def _terms(raiser: Raiser) -> list[values.LossTerm]:
    """What backward() is called of, in the order of the losses."""
    terms: dict[int, values.LossTerm] = {}
    for backward in raiser.backwards:
        for term in backward.losses.terms:
            if term.loss in terms:
                raise unsupported(
                    "compile_step: backward() twice through one loss is not supported"
                    f"{line_of(backward.node)}"
                )
            terms[term.loss] = term
    for k, (_, node) in enumerate(raiser.losses):
        if k not in terms:
            raise unsupported(
                f"compile_step: a loss without backward() is not supported{line_of(node)}"
            )
        if not terms[k].factor > 0:
            raise unsupported(
                f"compile_step: a loss has the factor {terms[k].factor:g} in backward(); it "
                f"must be above 0{line_of(node)}"
            )
    return [terms[k] for k in sorted(terms)]


def _check_clipped(clip: Event, described: list[dict], parameters: dict[str, Parameter]) -> None:
    trained = {id(parameters[p["name"]].tensor) for p in described if p["trainable"]}
    if not trained <= set(clip.parameters):
        raise unsupported(
            "compile_step: clip_grad_norm_() is given some of the trained parameters "
            "only, which is not supported"
        )
    others = [p for p in set(clip.parameters) - trained]
    frozen = {id(p.tensor) for p in parameters.values() if not p.tensor.requires_grad}
    known = {id(p.tensor) for p in parameters.values()}
    if any(p in known and p not in frozen for p in others):
        raise unsupported(
            "compile_step: clip_grad_norm_() is given parameters that need gradients "
            "but are not the optimizer's, which is not supported"
        )


# ---- micro-batches -----------------------------------------------------------------------------


def _alike(micros: Sequence[MicroBatch]) -> bool:
    return all(m.ops == micros[0].ops for m in micros)


def _set_apart(micros: Sequence[MicroBatch]) -> None:
    """Of micro-batches that are no repetitions of one: each has rows of the step, and an input of
    weights, of its own."""
    begins = {"hr.embed": 0, "hr.loss": 0, "hr.dropout": 0}
    for k, micro in enumerate(micros):
        if micro.weights is not None:
            micro.weights = micro.ops[-1]["in"][-1] = f"{micro.weights}.{k}"
        for op in micro.ops:
            if op["op"] in begins and begins[op["op"]]:
                op["attrs"]["row_begin"] = begins[op["op"]]
        begins["hr.embed"] += micro.token_rows
        begins["hr.loss"] += micro.ops[-1]["out"][0]["shape"][0]
        begins["hr.dropout"] += max(op["out"][0]["shape"][0] for op in micro.ops)


def _repeated(micros: Sequence[MicroBatch]) -> list[dict[str, Any]]:
    if _alike(micros):
        return [{"ops": micros[0].ops, "repeat": len(micros)}]
    return [{"ops": m.ops} for m in micros]


def _before(raiser: Raiser, terms: Sequence[values.LossTerm], micros: Sequence[MicroBatch]):
    outputs: list[torch.fx.Node] = []

    def place(node) -> int:
        if node not in outputs:
            outputs.append(node)
        return outputs.index(node)

    inputs = []
    for k, (term, micro) in enumerate(zip(terms, micros)):
        loss = raiser.losses[term.loss][0]
        table = next((op["in"][0] for op in micro.ops if op["op"] == "hr.embed"), None)
        inputs.append(
            MicroInputs(
                tokens=None if micro.tokens is None else place(micro.tokens),
                token_rows=micro.token_rows,
                sequence=micro.sequence,
                vocabulary=0 if table is None else _rows_of(raiser, table),
                padding=[p for p, _ in micro.padding],
                targets=place(loss.targets),
                loss_rows=loss.x.rows,
                target_rows=loss.rows,
                ignored=loss.ignored,
                classes=loss.weight.cols if loss.weight.transposed else loss.weight.rows,
                floats={name: place(v.made.node) for name, v in micro.inputs.items()},
                masks=[(place(m.node), m.causal, m.window) for m in micro.masks],
                absolute=any(op["attrs"].get("positions") for op in micro.ops),
                summed=loss.summed,
                weights=micro.weights and (micro.weights, k if _alike(micros) else 0),
                factor=term.factor,
                scalars=[(place(scalar), divides) for scalar, divides in term.scalars],
            )
        )
    return raiser.parts.module(outputs), inputs


def _inputs(micros: Sequence[MicroBatch]) -> list[dict[str, Any]]:
    first = micros[0]
    if first.inputs and not all(
        m.ops == first.ops and m.inputs.keys() == first.inputs.keys() for m in micros
    ):
        raise unsupported(
            "compile_step: micro-batches of images that are not computed in the same way "
            "are not supported"
        )
    described = [
        {"name": name, "shape": [v.rows, v.cols], "dtype": "f32", "count": len(micros)}
        for name, v in first.inputs.items()
    ]
    for micro in micros if first.weights else ():
        if micro is first or not _alike(micros):
            described.append(
                {
                    "name": micro.weights,
                    "shape": micro.ops[-1]["out"][0]["shape"],
                    "dtype": "f32",
                    "count": len(micros) if _alike(micros) else 1,
                }
            )
    return described


def _rows_of(raiser: Raiser, name: str) -> int:
    return next(p.rows for p in raiser.parameters.values() if p.name == name)


def _after(raiser: Raiser, losses: Sequence[torch.fx.Node]):
    """The module that makes the step's result, and how many norms it takes."""
    parts = raiser.parts
    norms = [
        n
        for n in raiser.captured.nodes
        if isinstance(raiser.values.get(n), Partial) and raiser.values[n].kind == "gradient_norm"
    ]
    given = [*losses, *norms]
    outputs = raiser.captured.outputs
    for output in outputs:
        if not isinstance(output, torch.fx.Node):
            continue
        for node in parts.needed([output], given):
            if parts.is_parameter(node):
                raise unsupported(
                    "compile_step: train_step returns a tensor of shape "
                    f"{tuple(output.meta['val'].shape)} that is not made of its losses "
                    f"alone{line_of(output)}; return the loss"
                )
    return _without_marks(parts.module(outputs, given)), len(norms)


def _without_marks(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in list(module.graph.nodes):
        if node.target is torch.ops.headrace_step.backward.default:
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()
    return module
