"""@remote_memory through the eager door: parameters that are in memory only while they are used."""
import copy

import pytest
import torch
from torch import nn

import headrace
from headrace.eager import stats
from remote_models import TABLE, WIDTH, Block, FarBlock, FarTable, Net

pytestmark = pytest.mark.usefixtures("least_arena")
ROWS = 256


def compare(folder, run=None, build=Net, steps=5, least_followed=1):
    """Runs a loop with plain and with remote classes; everything seen must be the same bits."""
    seen = []
    for far in (False, True):
        torch.manual_seed(1)
        model = build(far)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        if far:
            headrace.fit(model, optimizer, "64MiB", folder=folder, paranoid=True)
        generator = torch.Generator().manual_seed(3)
        out = []

        def step(loss=lambda rows: model(rows)):
            optimizer.zero_grad()
            loss(torch.randint(0, TABLE, (ROWS,), generator=generator)).backward()
            out.extend(p.grad.clone() for p in model.parameters() if p.grad is not None)
            optimizer.step()
            out.extend(t.clone() for t in model.state_dict().values())
        for i in range(steps):
            run(i, step, model, optimizer, out, generator) if run else step()
        if far:
            s = stats(model)
            assert s.followed >= least_followed, s
            headrace.release(model)
            assert all(p.isfinite().all() and p.is_contiguous() for p in model.parameters())
        out.extend(p.detach().clone() for p in model.parameters())
        seen.append(out)
    assert len(seen[0]) == len(seen[1])
    for i, (a, b) in enumerate(zip(*seen)):
        assert torch.equal(a, b), f"observation {i} of {len(seen[0])}"


def test_bits_are_those_of_parameters_in_memory(folder):
    compare(folder, least_followed=4)


def test_parameters_are_elsewhere_between_their_uses(folder):
    model = Net(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parameters = list(model.parameters())
    headrace.fit(model, optimizer, "64MiB", folder=folder)
    seen = []
    model.layers[1].register_forward_hook(lambda *_: seen.append(
        (model.layers[0].weight.untyped_storage().nbytes(), model.layers[1].weight.nbytes)))
    for _ in range(3):
        model(torch.arange(ROWS)).backward()
        optimizer.step()
        assert model.table.weight.untyped_storage().nbytes() == 4
        assert model.table.weight.isnan().all()
        assert list(model.parameters()) == parameters or all(
            a is b for a, b in zip(model.parameters(), parameters))
    assert seen == [(4, WIDTH * WIDTH * 4)] * 3
    with pytest.raises(RuntimeError, match="single memory location"):
        with torch.no_grad():
            model.table.weight.add_(1)
    headrace.release(model)


@pytest.mark.parametrize("recompute", [None, False, True])
def test_modules_inside_a_marked_one(recompute, folder):
    def build(far):
        return Net(far, (FarBlock if far else Block)(recompute))
    compare(folder, build=build)


def test_passes_without_gradients_between(folder):
    def run(i, step, model, optimizer, out, generator):
        step()
        with torch.no_grad():
            out.append(model(torch.arange(ROWS)))
        assert i == 0 or not model.table.__class__ is FarTable or model.table.weight.isnan().all()
    compare(folder, run, least_followed=4)


class Thrice(nn.Module):
    """Uses its weight three times."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 16)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(x @ self.weight) + x
        return x.square().mean()


@headrace.remote_memory(max_size="1MB")
class FarThrice(Thrice):
    pass


def test_two_forward_passes_before_one_backward(folder):
    """The order in which gradients are added up shows."""
    class Pair(nn.Module):
        def __init__(self, far):
            super().__init__()
            self.body = FarThrice() if far else Thrice()

        def forward(self, x):
            return self.body(x)

    def run(i, step, model, optimizer, out, generator):
        def loss(rows):
            x = torch.randn(2, ROWS, WIDTH, generator=generator)
            return model(x[0]) + model(x[1])
        step(loss)
    compare(folder, run, Pair)


def test_frozen_parameters(folder):
    def build(far):
        model = Net(far)
        model.table.requires_grad_(False)
        model.layers[2].requires_grad_(False)
        return model
    compare(folder, build=build, least_followed=4)


def test_parameters_that_others_share_stay(folder):
    def build(far):
        model = Net(far)
        model.layers[1].weight = model.layers[0].weight
        return model
    compare(folder, build=build, least_followed=4)
    model = build(True)
    headrace.fit(model, None, "64MiB", folder=folder)
    assert model.layers[0].weight.isfinite().all() and model.layers[2].weight.isnan().all()
    headrace.release(model)


def test_accumulation_exceptions_and_copies(folder):
    def run(i, step, model, optimizer, out, generator):
        if i == 4:
            handle = model.layers[2].register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                step()
            handle.remove()
        step(lambda rows: model(rows) + model(rows.flip(0)))
        copied = copy.deepcopy(model)
        out.extend(t.clone() for t in copied.state_dict().values())
        copied(torch.arange(ROWS)).backward()
        out.extend(p.grad for p in copied.parameters() if p.grad is not None)
    compare(folder, run, steps=8, least_followed=3)


def test_loading_writes_through(folder):
    kept = {}

    def run(i, step, model, optimizer, out, generator):
        if i == 2:
            kept.update({k: v.clone() for k, v in model.state_dict().items()})
        if i == 4:
            model.load_state_dict(kept)
            out.extend(t.clone() for t in model.state_dict().values())
        if i == 5:
            model.layers[0].load_state_dict(model.layers[2].state_dict())
        step()
    compare(folder, run, steps=8, least_followed=5)


def test_a_change_between_forward_and_backward_is_refused_as_ever(folder):
    model = Net(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    headrace.fit(model, optimizer, "64MiB", folder=folder)
    first, second = model(torch.arange(ROWS)), model(torch.arange(ROWS))
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.backward()
    headrace.release(model)


@pytest.mark.parametrize("padding", [None, 7])
def test_a_frozen_table_gives_the_rows_that_are_used(padding, folder):
    def build(far):
        model = Net(far)
        model.table.requires_grad_(False)
        model.table.padding_idx = padding
        return model

    def run(i, step, model, optimizer, out, generator):
        seen = []
        handle = model.layers[0].register_forward_pre_hook(
            lambda *_: seen.append(model.table.weight.shape))
        step()
        out.append(model.table(torch.tensor([[499, 0], [7, 499]])))
        handle.remove()
        assert seen == [(TABLE, WIDTH)] and model.table.padding_idx == padding
        copied = copy.deepcopy(model)
        out.append(copied.table(torch.arange(TABLE)))
        if i == 3:
            changed = model.state_dict()
            changed["table.weight"] = changed["table.weight"] * 2
            model.load_state_dict(changed)
        if i == 5:
            model.table.requires_grad_(True)
    compare(folder, run, build=build, steps=7, least_followed=3)
    model = build(True)
    headrace.fit(model, None, "64MiB", folder=folder)
    within = []
    handle = model.table.register_forward_hook(lambda m, a, out: within.append(m.weight.shape))
    # Hooks of users run after ours: the table is away again, and its rows were 3.
    rows = model.table(torch.tensor([3, 3, 9, 11]))
    assert rows.shape == (4, WIDTH) and within == [(TABLE, WIDTH)]
    with pytest.raises(IndexError):
        model.table(torch.tensor([TABLE]))
    handle.remove()
    headrace.release(model)
