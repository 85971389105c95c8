"""Parameters and optimizer of a step as the engine is told of them: the JSON of
headrace/train/captured_step.h."""

from __future__ import annotations

from typing import Any

import torch

from .._remote import remote_of
from .events import unsupported
from .values import Parameter


def precision_of(parameters) -> str:
    """Of the whole step, as its JSON says it."""
    dtypes = {p.tensor.dtype for p in parameters}
    if dtypes == {torch.float32}:
        return "f32"
    if {p.tensor.dtype for p in parameters if p.tensor.dim() > 1} == {torch.bfloat16}:
        return "bf16"
    raise unsupported(
        "compile_step: parameters of "
        f"{', '.join(sorted(str(d) for d in dtypes))} together are not supported"
    )


def _remote(model) -> dict[int, dict[str, int]]:
    """The rule of @remote_memory of each parameter that has one, by id."""
    rules = {}
    for module in model.modules():
        asked = remote_of(module)
        if asked is not None:
            rules.update((id(p), asked.rule()) for p in module.parameters())
    return rules


def parameters_of(parameters: dict[str, Parameter], model, optimizer) -> list[dict[str, Any]]:
    """The list of the step's parameters. HeadraceError("unsupported"): none is trained."""
    remote = _remote(model)
    group_of = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
    described = []
    for p in parameters.values():
        group = group_of.get(id(p.tensor))
        trainable = group is not None and p.tensor.requires_grad
        entry = {
            "name": p.name,
            "shape": list(p.tensor.shape) if p.tensor.dim() < 3 else [p.rows, p.cols],
            "dtype": "f32" if p.tensor.dtype == torch.float32 else "bf16",
            "trainable": trainable,
        }
        if trainable and group:
            entry["group"] = group
        if p.transposed:
            entry["transposed"] = True
        if id(p.tensor) in remote:
            entry["remote_memory"] = remote[id(p.tensor)]
        described.append(entry)
    if not any(p["trainable"] for p in described):
        raise unsupported("compile_step: none of the optimizer's parameters leads to the loss")
    return described


def optimizer_of(optimizer) -> dict[str, Any]:
    """Kind and groups. HeadraceError("unsupported"): an optimizer or a setting we have not."""
    kind = type(optimizer)
    groups = []
    for g, group in enumerate(optimizer.param_groups):
        for flag in ("amsgrad", "maximize", "nesterov", "differentiable"):
            if group.get(flag):
                raise unsupported(
                    f"compile_step: {kind.__name__} with {flag}=True is not supported "
                    f"(parameter group {g})"
                )
        groups.append(_group(kind, g, group))
    return {"kind": "sgd" if kind is torch.optim.SGD else "adamw", "groups": groups}


def _group(kind, g: int, group: dict) -> dict[str, float]:
    if kind in (torch.optim.AdamW, torch.optim.Adam):
        decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay", False)
        if group["weight_decay"] and not decoupled:
            raise unsupported(
                f"compile_step: Adam with weight_decay={group['weight_decay']:g} adds it "
                f"to gradients, which is not supported (parameter group {g}); "
                "use AdamW"
            )
        beta1, beta2 = (float(b) for b in group["betas"])
        return {
            "beta1": beta1,
            "beta2": beta2,
            "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
        }
    if kind is torch.optim.SGD:
        if group["dampening"]:
            raise unsupported(
                f"compile_step: SGD with dampening is not supported (parameter group {g})"
            )
        return {"momentum": float(group["momentum"]), "weight_decay": float(group["weight_decay"])}
    raise unsupported(
        f"compile_step: optimizer {kind.__module__}.{kind.__name__} is not supported; "
        "supported are AdamW, Adam without weight decay and SGD of torch.optim"
    )
