"""Trains a model plainly or through one of the doors, and compares what came of it.

Everything a training loop of a user does is in `train`, in a user's order: the door is opened by
its one line and nothing else differs. What a door returns is held against the plain run: bit for
bit for the eager door; norm-wise for those that compute in another order (EXACT says which). The
compile door's numbers are those of torch's own graphs, which "aot_eager" runs, bit for bit.
"""
import contextlib
import copy
import re
import unittest.mock
from typing import Callable, NamedTuple, Optional

import torch
from torch import nn

import headrace
import headrace.eager
from headrace.compiled import _planner, _search
from headrace.eager import _plans, _saved

DOORS = ("eager", "compile", "step")
EXACT = ("eager", "aot_eager")
CLOSE = 1e-5     # relative, of the norm of a tensor
MIB = 1 << 20


class How(NamedTuple):
    """How a model is trained."""
    steps: int = 4
    optimizer: str = "adamw"
    accumulation: int = 1
    clip: Optional[float] = None
    schedule: bool = False
    groups: bool = False
    evaluate: bool = False        # a pass without gradients after each step
    forward_only: bool = False    # before each step a pass whose backward is never called
    fail_at: int = -1             # at this step something raises in the middle of the forward pass
    to_none: bool = True


class Run(NamedTuple):
    """losses: one a step. gradients: one {name: tensor} a step, empty where a door has none to
    show. state: the model's state_dict. moments: the optimizer's. evaluated: losses of the passes
    without gradients. random: the generator's state at the end."""
    losses: list
    gradients: list
    state: dict
    moments: dict
    evaluated: list
    random: torch.Tensor
    stats: object = None    # headrace.eager.stats()


class Interrupted(Exception):
    """What the tests raise in the middle of a step."""


def make_optimizer(model: nn.Module, how: How) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if how.groups:
        parameters = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                      {"params": [p for p in parameters if p.dim() <= 1], "lr": 2e-3}]
        parameters = [group for group in parameters if group["params"]]
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        # A large eps: with a small one a gradient of 1e-12 moves a parameter as one of 1 does, and
        # rounding would decide about its sign.
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-4, betas=(0.9, 0.95)),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-4, amsgrad=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=1e-4),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3, eps=1e-4),
    }
    return make[how.optimizer](parameters)


@contextlib.contextmanager
def interruption(model: nn.Module):
    """Something in the middle of the model's forward pass raises Interrupted, as a user's own
    check or a failing kernel would."""
    inner = [m for m in model.modules() if not list(m.children())] or [model]

    def raises(*_):
        raise Interrupted
    handle = inner[len(inner) // 2].register_forward_hook(raises)
    try:
        yield
    finally:
        handle.remove()


def open_door(door: Optional[str], model: nn.Module, optimizer: torch.optim.Optimizer, memory,
              folder=None):
    """(model, optimizer) as a user goes on with them; the step door is opened by `train`."""
    if door == "eager":
        return headrace.fit(model, optimizer, memory=memory, folder=folder, verbose=False)
    if door == "compile":
        torch._dynamo.reset()  # plans of other tests' models are not this one's
        options = {"memory": memory} | ({"folder": str(folder)} if folder else {})
        return torch.compile(model, backend="headrace", options=options), optimizer
    if door == "aot_eager":
        torch._dynamo.reset()
        # Graphs of open shapes may have the last bits otherwise; "headrace" compiles each shape.
        return torch.compile(model, backend="aot_eager", dynamic=False), optimizer
    return model, optimizer


def simple_step(door: Optional[str], case, model: nn.Module, optimizer: torch.optim.Optimizer,
                memory, folder) -> Callable:
    """Opens the door; what is returned takes one step of the case's model on one batch."""
    used, _ = open_door(door, model, optimizer, memory, folder)

    def train_step(*batch):
        loss = case.loss(used, *batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()
    if door == "step":
        return headrace.compile_step(train_step, model, optimizer, memory=memory, folder=folder)
    return train_step


def train(model: nn.Module, batch: Callable[[torch.Generator], tuple], loss: Callable, how: How,
          door: Optional[str] = None, memory=None, folder=None, seed: int = 1) -> Run:
    """Trains `model`, changing it. batch(generator) gives what loss(model, *batch) takes."""
    bare, optimizer = model, make_optimizer(model, how)
    schedule = (torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.steps + 1)
                if how.schedule else None)
    model, optimizer = open_door(door, model, optimizer, memory, folder)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed + 1)
    losses, gradients, evaluated = [], [], []

    def train_step(*tensors):
        count = len(tensors) // how.accumulation
        total = 0.0
        for i in range(how.accumulation):
            part = loss(model, *tensors[i * count:(i + 1) * count]) / how.accumulation
            part.backward()
            total = total + part.detach()
        if how.clip is not None:
            torch.nn.utils.clip_grad_norm_(bare.parameters(), how.clip)
        if door != "step":
            gradients.append({name: p.grad.clone() for name, p in bare.named_parameters()
                              if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad(set_to_none=how.to_none)
        return total

    step = train_step
    if door == "step":
        step = headrace.compile_step(train_step, bare, optimizer, memory=memory, folder=folder)
    for i in range(how.steps):
        tensors = [t for _ in range(how.accumulation) for t in batch(generator)]
        one = tensors[:len(tensors) // how.accumulation]
        if i == how.fail_at:
            with contextlib.suppress(Interrupted), interruption(bare):
                loss(model, *one).backward()
            optimizer.zero_grad()
        if how.forward_only:
            loss(model, *one)
        losses.append(step(*tensors).detach().clone())
        if schedule is not None:
            schedule.step()
        if how.evaluate:
            bare.eval()
            with torch.no_grad():
                evaluated.append(loss(model, *one).clone())
            bare.train()
    random = torch.get_rng_state()
    state = {name: t.detach().clone() for name, t in bare.state_dict().items()}
    moments = copy.deepcopy(optimizer.state_dict())
    stats = None
    if door == "eager":
        stats = headrace.eager.stats(bare)
        headrace.release(bare)
    return Run(losses, gradients, state, moments, evaluated, random, stats)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Norm of the difference, relative to the norm of b."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    a, b = a.detach().double(), b.detach().double()
    size = b.norm().item()
    return (a - b).norm().item() / (size if size > 0 else 1.0)


def flat(value, name="") -> dict:
    """{path: tensor} of a nested state."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = (value.items() if isinstance(value, dict) else
             enumerate(value) if isinstance(value, (list, tuple)) else ())
    out = {}
    for key, part in items:
        out.update(flat(part, f"{name}.{key}"))
    return out


def assert_same(got: Run, plain: Run, door: str, close: float = CLOSE, noise: float = 0.0) -> None:
    """Raises AssertionError that names the first thing that differs.

    noise: of the norm of everything of a kind (all gradients, all of the state); a difference that
    is smaller is rounding. A bias before a norm that removes the mean has no gradient but that."""
    pairs = {"loss": (got.losses, plain.losses), "state": (got.state, plain.state),
             "moments": (got.moments, plain.moments), "evaluated": (got.evaluated, plain.evaluated)}
    if got.gradients:
        pairs["gradient"] = (got.gradients, plain.gradients)
    for what, (a, b) in pairs.items():
        a, b = flat(a), flat(b)
        assert set(a) == set(b), f"{what}: not the same names: {set(a) ^ set(b)}"
        whole = sum(t.double().square().sum().item() for t in b.values()) ** 0.5
        for name in a:
            if door in EXACT:
                assert torch.equal(a[name], b[name]), (
                    f"{what}{name} is not the same bits: {distance(a[name], b[name]):.2e} apart")
            else:
                apart = distance(a[name], b[name])
                assert apart <= close or apart * b[name].double().norm() <= noise * whole, (
                    f"{what}{name}: {apart:.2e} apart")
    if door != "step":
        assert torch.equal(got.random, plain.random), "the random generator was moved"


@contextlib.contextmanager
def moving(slack: float = 1.0):
    """Inside, the eager and the compile door plan for the least arena in which there is a plan,
    times `slack`, whatever the process holds; the eager door also moves tensors of a page. The
    small models of tests would never be tight otherwise: the process itself varies by more than
    they take."""
    def eager_plan(self, order, extra_bytes):
        return self._plan_in(order, int(self._least_arena(order) * slack)) if order.events else None

    def compiled_room(self):
        return int(self.search.least() * slack)
    with unittest.mock.patch.object(_plans.Plans, "_plan", eager_plan), \
            unittest.mock.patch.object(_saved, "SMALLEST_BYTES", 4096), \
            unittest.mock.patch.object(_planner.PassPlans, "_room", compiled_room):
        yield


@contextlib.contextmanager
def only_moves():
    """Inside, the compile door computes nothing again: of what can leave memory, all moves. The
    least memory of small models is otherwise one in which nothing does."""
    with unittest.mock.patch.object(_search.Search, "_still_draft", lambda search, room: None), \
            unittest.mock.patch.object(_search, "ENGINE_BYTES", 0):
        yield


def in_the_least(door: str, run: Callable[[object], Run], slack: float = 1.0) -> Run:
    """run(memory) in the least memory that the door can do with, times `slack`: all that can move
    does."""
    if door != "step":
        with moving(slack):
            return run("4GiB")
    memory = MIB
    for _ in range(8):
        try:
            return run(memory)
        except headrace.DoesNotFit as refused:
            # What tracing leaves in the process is measured, and varies by some MiB from run to run
            # (four refusals in a row have been seen).
            least = re.search('memory="([^"]+)"', str(refused)).group(1)
            memory = int(max(memory + MIB, headrace.parse_bytes(least)) * slack)
    raise AssertionError(f"refused again and again, at last in {memory} bytes")
