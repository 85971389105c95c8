"""The compile door: the same bits as torch's own compiled graphs, whatever of a step is kept,
computed again or moved; and a clear refusal for the rest."""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

import doors  # noqa: E402
import headrace  # noqa: E402
import headrace.compiled  # noqa: E402
import random_models  # noqa: E402
from headrace.compiled import _backend, _planner, _runtime, _schedule, _search, _step  # noqa: E402
from models import CASES  # noqa: E402

KINDS = ("llama", "gpt2", "vit", "conv", "dropped")


class Steps:
    """One model, compiled; its steps have the room that the test says (None: all they like)."""

    def __init__(self, model, loss, batch, folder, **more):
        torch._dynamo.reset()
        self.bare, self.loss, self.batch = model, loss, batch
        self.room = None
        self.options = {"memory": "64GiB", "folder": str(folder)}
        self.model = torch.compile(model, backend="headrace", options=self.options, **more)

    def plans(self):
        ledger = _backend._ledgers[id(self.options)][1]
        return [plans for plans in (ref() for ref in ledger.passes) if plans is not None]

    def search(self):
        (plans,) = self.plans()
        return plans.search

    def step(self, model=None, seed=5):
        """(loss, gradients, buffers, random numbers that come next)"""
        self.bare.zero_grad()
        before = copy.deepcopy(dict(self.bare.named_buffers()))
        torch.manual_seed(seed)
        loss = self.loss(self.model if model is None else model, *self.batch)
        loss.backward()
        result = [loss.detach().clone(), *(p.grad.clone() for p in self.bare.parameters()
                                           if p.grad is not None)]
        result += [b.clone() for b in self.bare.buffers()]
        for name, buffer in self.bare.named_buffers():
            buffer.copy_(before[name])
        return [*result, torch.rand(4)]

    def expected(self):
        """Of torch's own backend that runs the same graphs."""
        torch._dynamo.reset()
        return self.step(torch.compile(self.bare, backend="aot_eager"))


@pytest.fixture
def steps_of(folder, monkeypatch):
    made = []

    def room(ledger, own):
        return made[-1].room if made and made[-1].room is not None else 1 << 40

    def make(name, **more):
        case = CASES[name]
        steps = Steps(case.model(), case.loss, case.batch(torch.Generator().manual_seed(3)),
                      folder, **more)
        made.append(steps)
        return steps
    def moving(name, **more):
        """Of what can be done without, everything moves, and nothing is computed again only."""
        monkeypatch.setattr(_search.Search, "_still_draft", lambda search, room: None)
        monkeypatch.setattr(_search, "ENGINE_BYTES", 0)
        return make(name, **more)
    make.moving = moving
    monkeypatch.setattr(_planner.Ledger, "room", room)
    yield make
    made.clear()
    torch._dynamo.reset()
    _backend._ledgers.clear()
    gc.collect()


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def rooms(search, count=4):
    least, most = search.least(), search.ample.bytes
    return [least + (most - least) * i // (count - 1) for i in range(count)]


# ---- the same bits in every room ----

@pytest.mark.parametrize("kind", KINDS)
def test_every_room_gives_the_bits_of_torchs_own_graphs(kind, steps_of):
    steps = steps_of(kind)
    expected = steps.expected()
    torch._dynamo.reset()
    assert same(steps.step(), expected)
    recomputed = moved = 0
    for steps.room in rooms(steps.search()):
        for _ in range(2):  # the second time an engine goes round again
            assert same(steps.step(), expected), f"{kind} in {steps.room} bytes"
        for chosen in steps.plans()[0].made:
            recomputed += chosen.emission.recomputed
            moved += len(chosen.emission.moved)
            assert chosen.draft.bytes <= max(chosen.room, steps.room)
    # What the other two are made of is smaller than what one of their ops needs.
    assert recomputed + moved > 0 or kind in ("conv", "dropped")
    assert not _runtime._records


def test_what_only_moves_has_the_same_bits(steps_of):
    steps = steps_of.moving("llama")
    expected = steps.expected()
    torch._dynamo.reset()
    steps.step()
    for steps.room in rooms(steps.search()):
        for _ in range(2):
            assert same(steps.step(), expected)
    assert any(chosen.emission.moved for chosen in steps.plans()[0].made)


@pytest.mark.parametrize("kind", ("llama", "dropped"))
def test_without_moves_values_are_computed_again(kind, steps_of):
    steps = steps_of(kind)
    expected = steps.expected()
    torch._dynamo.reset()
    steps.options["move"] = False
    steps.step()
    for steps.room in rooms(steps.search(), 4):
        assert same(steps.step(), expected)
    made = steps.plans()[0].made
    assert not any(chosen.emission.moved for chosen in made)
    assert any(chosen.emission.recomputed for chosen in made) or kind == "dropped"


@pytest.mark.parametrize("seed", range(6))
def test_random_models_have_the_bits_of_torchs_own_graphs(seed, steps_of, folder):
    scenario = random_models.scenario(seed)
    torch._dynamo.reset()
    options = {"memory": "64GiB", "folder": str(folder)}
    results = []
    for how in ({"backend": "aot_eager"}, {"backend": "headrace", "options": options}):
        torch._dynamo.reset()
        bare = scenario.model()
        model = torch.compile(bare, **how)
        batches = scenario.batches()
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        loss = random_models.loss(model, *batches(generator))
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in bare.parameters()
                                         if p.grad is not None)])
    assert same(*results)


# ---- what a plan may and may not do ----

def test_random_ops_run_once(steps_of):
    steps = steps_of("dropped")
    steps.step()
    search = steps.search()
    random_ops = {at for at, op in enumerate(search.step.ops) if _step.is_random(op.node)}
    assert random_ops
    for room in rooms(search):
        runs = [a.index for a in search.best(room).actions if a.kind == "run"]
        assert all(runs.count(at) == 1 for at in random_ops)


@torch.library.custom_op("headrace_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


noisy.register_fake(torch.empty_like)
noisy.register_autograd(lambda ctx, grad: grad.clone())


def test_ops_from_elsewhere_run_once(folder):
    layers = torch.nn.ModuleList(torch.nn.Linear(160, 160) for _ in range(4))

    def forward(x):
        for layer in layers:
            x = noisy(layer(x).tanh()).sin()
        return x.sum()

    def gradients(backend, **more):
        torch._dynamo.reset()
        model = torch.compile(forward, backend=backend, **more)
        torch.manual_seed(1)
        return torch.autograd.grad(model(torch.randn(256, 160)), list(layers.parameters()))
    expected = gradients("aot_eager")
    with doors.moving():
        got = gradients("headrace", options={"memory": "64GiB", "folder": str(folder),
                                             "move": False})
    assert same(got, expected)


def test_more_room_is_never_predicted_slower_and_never_exceeded(steps_of):
    steps = steps_of("llama")
    steps.step()
    search = steps.search()
    drafts = [(room, search.best(room)) for room in rooms(search, 33)]
    for (_, less), (_, more) in zip(drafts, drafts[1:]):
        assert more.seconds <= less.seconds
    for room, draft in drafts:
        assert draft.bytes <= room
    assert search.best(search.least() - 1) is None


def test_ample_memory_is_what_computing_cheap_values_again_leaves(steps_of, monkeypatch):
    """Where there is room for all, what costs next to nothing is not kept, and nothing moves."""
    monkeypatch.setattr(_search, "AMPLE_FROM", 0)
    monkeypatch.setattr(_search, "AMPLE_SLOWER", 1.25)
    steps = steps_of("llama")
    expected = steps.expected()
    torch._dynamo.reset()
    assert same(steps.step(), expected)
    search, (chosen,) = steps.search(), steps.plans()[0].made
    assert chosen.draft is search.ample is search.best(1 << 40) is search.best(search.ample.bytes)
    assert search.ample.bytes < search.kept.bytes
    assert search.ample.seconds <= search.kept.seconds * 1.25
    assert chosen.emission.recomputed > 0 and not chosen.emission.moved
    for steps.room in (search.kept.bytes, search.ample.bytes):
        assert same(steps.step(), expected) and len(steps.plans()[0].made) == 1


def test_moves_survive_dead_code_elimination(steps_of):
    steps = steps_of.moving("llama")
    expected = steps.expected()
    torch._dynamo.reset()
    steps.step()
    steps.room = steps.search().least()
    steps.step()
    chosen = steps.plans()[0].made[-1]

    def ops():
        nodes = [*chosen.emission.forward.graph.nodes, *chosen.emission.backward.graph.nodes]
        return [n.target for n in nodes if str(n.target).startswith("headrace.")]
    before = ops()
    assert torch.ops.headrace.store.default in before and torch.ops.headrace.wait.default in before
    for module in (chosen.emission.forward, chosen.emission.backward):
        module.graph.eliminate_dead_code()
        module.recompile()
    assert ops() == before
    assert same(steps.step(), expected)


def test_a_value_that_moves_in_parts_moves_whole():
    class Instr:
        def __init__(self, kind, name):
            self.kind, self.name = kind, name

    class Op:
        def __init__(self, name, inputs, outputs):
            self.name, self.inputs, self.outputs, self.seconds = name, inputs, outputs, 0

    class Value:
        def __init__(self, name):
            self.name = name

    class Step:
        ops = [Op("a", [], [0]), Op("b", [0], [1])]
        values = [Value("x"), Value("y")]
    plan = [Instr("compute", "a"), Instr("store", "x"), Instr("store", "x"), Instr("load", "x"),
            Instr("load", "x"), Instr("compute", "b")]
    kinds = [a.kind for a in _schedule.schedule_of(Step, plan)]
    assert kinds == ["run", "store", "load", "wait", "run"]


# ---- what users do ----

def test_a_retained_graph_gives_the_same_gradients_twice(steps_of):
    steps = steps_of.moving("llama")
    steps.step()
    steps.room = steps.search().least()
    for _ in range(2):
        steps.bare.zero_grad()
        loss = steps.loss(steps.model, *steps.batch)
        loss.backward(retain_graph=True)
        first = [p.grad.clone() for p in steps.bare.parameters()]
        steps.bare.zero_grad()
        loss.backward()
        assert same(first, [p.grad for p in steps.bare.parameters()])
        with pytest.raises(RuntimeError):
            loss.backward()


def test_an_output_changed_in_place_that_the_backward_pass_needs_is_refused(folder):
    bare = torch.nn.Linear(64, 64)
    model = torch.compile(lambda x: bare(x).exp(), backend="headrace",
                          options={"memory": "64GiB", "folder": str(folder)})
    out = model(torch.randn(8, 64))
    with torch.no_grad():
        out.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = model(torch.randn(8, 64))
    out.mul(3).sum().backward()
    assert bare.weight.grad is not None


def test_two_forward_passes_before_their_backward_passes(steps_of):
    steps = steps_of.moving("llama")
    expected = steps.step()
    steps.room = steps.search().least()
    steps.step()
    losses = [steps.loss(steps.model, *steps.batch) for _ in range(3)]
    for loss in losses:  # in another order than a plan would have them
        steps.bare.zero_grad()
        loss.backward()
        assert same([p.grad for p in steps.bare.parameters()], expected[1:-1])


def test_a_forward_pass_without_backward_leaves_nothing(steps_of):
    steps = steps_of.moving("llama")
    expected = steps.step()
    steps.room = steps.search().least()
    for _ in range(3):
        loss = steps.loss(steps.model, *steps.batch)
        assert len(_runtime._records) == 1
        del loss
        assert not _runtime._records
    assert same(steps.step(), expected)


def test_an_output_that_the_backward_pass_needs_is_freed_without_one(folder):
    bare = torch.nn.Linear(64, 64)
    model = torch.compile(lambda x: bare(x).exp(), backend="headrace",
                          options={"memory": "64GiB", "folder": str(folder)})
    for kept in (False, True):
        out = model(torch.randn(8, 64))
        assert len(_runtime._records) == 1
        if kept:
            out.sum().backward(retain_graph=True)
        del out
        assert not _runtime._records


def test_passes_without_gradients_between_steps(steps_of):
    steps = steps_of.moving("llama")
    expected = steps.step()
    steps.room = steps.search().least()
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(steps.loss(steps.model, *steps.batch), expected[0])
        assert same(steps.step(), expected)


def test_shapes_that_change_are_planned_one_by_one(folder):
    torch._dynamo.reset()
    case = CASES["gpt2"]
    bare = case.model()
    model = torch.compile(bare, backend="headrace", dynamic=True,
                          options={"memory": "64GiB", "folder": str(folder)})
    for rows, length in ((2, 48), (4, 64), (3, 16), (2, 48)):
        tokens = torch.randint(0, 256, (rows, length + 1))
        results = []
        for run in (bare, model):
            bare.zero_grad()
            loss = run(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            results.append([loss.detach(), *(p.grad.clone() for p in bare.parameters())])
        assert same(*results), (rows, length)


class _Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x ** 3 * scale

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * 3 * x ** 2 * ctx.scale, None


class _Bodied(torch.nn.Module):
    """Dynamo makes graphs of their own of its checkpoint's and its Function's insides; sizes are
    read in both."""

    def __init__(self, checkpoint, function):
        super().__init__()
        torch.manual_seed(2)
        self.fc, self.out = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.checkpoint, self.function = checkpoint, function

    def body(self, x):
        return self.out(torch.relu(self.fc(x)) / x.shape[1])

    def forward(self, x):
        for _ in range(2):
            x = (torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
                 if self.checkpoint else self.body(x))
            if self.function:
                x = _Cubed.apply(x, 1.0 / x.shape[1])
        return x.square().mean()


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("checkpoint, function", [(True, False), (False, True), (True, True)])
def test_bodies_of_higher_order_ops_come_along_when_shapes_change(checkpoint, function, dynamic,
                                                                  folder):
    torch._dynamo.reset()
    bare = _Bodied(checkpoint, function)
    model = torch.compile(bare, backend="headrace", dynamic=dynamic,
                          options={"memory": "64GiB", "folder": str(folder)})
    for rows, length in ((2, 48), (4, 64), (3, 16), (2, 48)):
        x = torch.randn(rows, length, 32)
        results = []
        for run in (bare, model):
            bare.zero_grad()
            loss = run(x)
            loss.backward()
            results.append([loss.detach(), *(p.grad.clone() for p in bare.parameters())])
        assert same(*results), (rows, length)


def test_graphs_of_a_broken_model_share_the_memory(folder):
    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.a = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
            self.b = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))

        def forward(self, x):
            h = torch.tanh(self.a(x))
            torch._dynamo.graph_break()
            return torch.tanh(self.b(h)).square().mean()
    shared = Steps(Broken(), lambda model, x: model(x), (torch.randn(1024, 256),), folder)
    expected = shared.expected()
    torch._dynamo.reset()
    for _ in range(3):
        assert same(shared.step(), expected)
    first, second = shared.plans()
    assert first.made[0].draft.bytes <= first.search.least()       # when nothing else was known
    assert first.made[-1].draft is first.search.ample              # there is room for everything
    assert second.made[-1].draft is second.search.ample


# ---- refusals ----

def test_too_little_memory_is_refused_with_what_is_needed(folder):
    torch._dynamo.reset()
    case = CASES["llama"]
    batch = case.batch(torch.Generator().manual_seed(3))
    model = torch.compile(case.model(), backend="headrace",
                          options={"memory": "1MiB", "folder": str(folder)})
    for _ in range(2):
        with pytest.raises(headrace.DoesNotFit) as refused:
            case.loss(model, *batch)
        assert refused.value.needed_bytes > refused.value.budget_bytes == 1 << 20
        assert refused.value.options and "1 MiB" in str(refused.value)


@pytest.mark.parametrize("options, words", [
    ({"memory": "many"}, "many"), ({"memory": 0}, "above zero"), ({"memroy": "1GiB"}, "memroy")])
def test_options_that_mean_nothing_are_refused(options, words):
    torch._dynamo.reset()
    with pytest.raises(headrace.HeadraceError, match=words) as refused:
        torch.compile(lambda x: x * 2, backend="headrace", options=options)(
            torch.ones(3, requires_grad=True))
    assert refused.value.code == "usage"


def test_higher_order_ops_are_refused_by_name():
    torch._dynamo.reset()

    def branches(x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))
    with pytest.raises(headrace.HeadraceError, match="higher-order") as refused:
        torch.compile(branches, backend="headrace", options={"memory": "1GiB"})(
            torch.ones(3, requires_grad=True))
    assert refused.value.code == "unsupported"
