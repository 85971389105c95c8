"""The eager door: gradients and parameters have the bits of plain PyTorch, whatever a loop does.

Plans are made for the smallest arena that is possible, so that all that can move does; memory that
the plan calls free is filled with NaN.
"""
import copy
import gc
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import headrace
from headrace.eager import _private, _session, stats

pytestmark = pytest.mark.usefixtures("least_arena")
WIDTH, ROWS = 160, 256  # one activation: 160 KiB


class Net(nn.Module):
    """Layers of `body(x, linear)`, with a residual around each."""

    def __init__(self, body, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.body = body

    def forward(self, x):
        for layer in self.layers:
            x = x + self.body(x, layer)
        return x.square().mean()


def plain_body(x, layer):
    return F.gelu(layer(x))


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def batch(generator, rows=ROWS):
    return torch.randn(rows, WIDTH, generator=generator)


class Loop:
    """A training loop whose every gradient and parameter is noted."""

    def __init__(self, model, fitted, folder, optimizer=adamw, **options):
        self.model, self.fitted = model, fitted
        self.optimizer = optimizer(model.parameters())
        self.generator = torch.Generator().manual_seed(3)
        self.seen = []
        if fitted:
            same = headrace.fit(model, self.optimizer, "64MiB", folder=str(folder), paranoid=True,
                                **options)
            assert same[0] is model and same[1] is self.optimizer

    def see(self):
        for p in self.model.parameters():
            self.seen.append(p.detach().clone())
            if p.grad is not None:
                self.seen.append(p.grad.clone())

    def step(self, loss=None, rows=ROWS):
        self.optimizer.zero_grad()
        loss = self.model(batch(self.generator, rows)) if loss is None else loss(self)
        loss.backward()
        self.see()
        self.optimizer.step()
        self.see()

    def stats(self):
        return stats(self.model)


def both(folder, body=plain_body, run=None, steps=5, follows=True, make=None, **options):
    """Runs a loop plainly and fitted; returns the fitted one after the comparison."""
    loops = []
    for fitted in (False, True):
        torch.manual_seed(1)
        loop = Loop(make() if make else Net(body), fitted, folder, **options)
        loops.append(loop)
        if run is None:
            for _ in range(steps):
                loop.step()
        else:
            run(loop)
    plain, ours = loops
    assert len(plain.seen) == len(ours.seen)
    for i, (a, b) in enumerate(zip(plain.seen, ours.seen)):
        assert torch.equal(a, b), f"observation {i} of {len(plain.seen)}"
    s = ours.stats()
    if follows:
        assert s.followed > 0 and s.deviations == 0, s
        assert s.stored_bytes > 0, s
    return ours


# What autograd may save.

def test_activations_and_moments_leave_memory_and_bits_are_the_same(folder):
    loop = both(folder)
    s = loop.stats()
    assert (s.recorded, s.followed, s.mode) == (1, 4, "following")
    moments = 2 * sum(p.nbytes for p in loop.model.parameters())
    everything = moments + 8 * WIDTH * ROWS * 4
    assert s.arena_bytes < everything / 2


def views(x, layer):
    q, k, v = layer(x).view(ROWS, 4, 40).unbind(1)[:3]
    first = layer(x)[:, ::2]
    wide = first.t().expand(2, WIDTH // 2, ROWS).transpose(1, 2)
    product = (q * k).tanh().repeat(1, 4) * v.repeat(1, 4).exp().sin()
    return product + wide.sum(0).tanh().repeat(1, 2)


def in_place(x, layer):
    h = layer(x)
    a = h.square()            # saves h
    h = h.clone()
    b = h.exp()               # saves its output
    h.mul_(2)
    return a.tanh_() * b.detach().sigmoid_() + F.relu(h, inplace=True)


def outputs_saved(x, layer):
    return layer(x).exp().softmax(-1).tanh().sigmoid()


def dropped(x, layer):
    return F.dropout(F.gelu(layer(x)), 0.3)


def shared(x, layer):
    return F.linear(F.gelu(layer(x)), layer.weight.t(), layer.bias)


def checkpointed(x, layer):
    return checkpoint(plain_body, x, layer, use_reentrant=False)


def reentrant(x, layer):
    return checkpoint(dropped, x.requires_grad_() if x.is_leaf else x, layer, use_reentrant=True)


def complex_numbers(x, layer):
    z = torch.view_as_complex(layer(x).view(ROWS, WIDTH // 2, 2))
    return torch.view_as_real(z * z.conj() * z).reshape(ROWS, WIDTH).tanh()


def attention(x, layer):
    q = layer(x).view(4, ROWS // 4, 4, WIDTH // 4).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return y.transpose(1, 2).reshape(ROWS, WIDTH)


def autocast(x, layer):
    with torch.autocast("cpu", torch.bfloat16):
        return F.gelu(layer(x)).float()


def without_gradients_inside(x, layer):
    with torch.no_grad():
        scale = layer(x).abs().amax()
    return F.gelu(layer(x)) / (1 + scale)


def changed_untold(x, layer):
    h = F.relu(layer(x))
    h.data.clamp_(max=0.5)  # no version counts this
    return h * x.square()


def nothing_of_much(x, layer):
    h = F.gelu(layer(x))
    nothing = torch.unsafe_split_with_sizes(h, [ROWS, 0])[1]  # no elements; not a view
    return h * h[:0].exp().sum().exp() + (nothing * nothing.tanh()).sum()


def vmapped(x, layer):
    return torch.vmap(lambda row: F.gelu(layer(row)) * row.tanh())(x)


def forward_derivatives(x, layer):
    return torch.func.jvp(torch.sin, (layer(x),), (x.tanh(),))[1]


def second_derivatives(x, layer):
    h = layer(x)
    return torch.autograd.grad(h.tanh().square().sum(), h, create_graph=True)[0]


@pytest.mark.parametrize("body", [views, changed_untold, in_place, outputs_saved, dropped, shared,
                                  checkpointed, reentrant, complex_numbers, attention, autocast,
                                  nothing_of_much, without_gradients_inside, vmapped,
                                  forward_derivatives, second_derivatives],
                         ids=lambda f: f.__name__)
def test_whatever_a_layer_saves(body, folder):
    both(folder, body)


def test_only_bytes_that_were_saved_twice_are_looked_at_when_a_plan_is_followed(
        folder, monkeypatch):
    seen = []
    fingerprint = _session.fingerprint
    monkeypatch.setattr(_session, "fingerprint", lambda s: seen.append(s) or fingerprint(s))

    def run(loop):
        for _ in range(4):
            seen.clear()
            loop.step()
            if loop.fitted:
                counts.append(len(seen))
    for body, again in ((plain_body, 0), (lambda x, layer: F.gelu(layer(x)) * x, 1)):
        counts = []
        both(folder, body, run=run)
        recorded, *followed = counts
        assert recorded >= 8 and followed == [followed[0]] * 3
        assert followed[0] == 0 if not again else 0 < followed[0] < recorded, counts


class ReturnsSaved(torch.autograd.Function):
    """Its gradient is the very tensor that it saved."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x * w).sum()

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return w, x


def test_a_function_that_returns_a_saved_tensor_as_gradient(folder):
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(ROWS, WIDTH))
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return ReturnsSaved.apply(self.layer(x).tanh(), self.w)

    def accumulating(loop):
        for i in range(6):
            for _ in range(1 + i % 2):
                loop.model(batch(loop.generator)).backward()
                loop.see()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    both(folder, make=Returns)
    both(folder, make=Returns, run=accumulating, follows=False)


def test_an_inplace_change_that_pytorch_refuses_never_gives_a_wrong_gradient(folder):
    """Of a tensor that stays where it is: refused as ever. Of one that left: the saved value
    counts."""
    model = Net(lambda x, layer: layer(x).exp())
    headrace.fit(model, None, "64MiB", folder=str(folder))
    loss = model(batch(torch.Generator().manual_seed(3)))
    with torch.no_grad():
        model.layers[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    headrace.release(model)


# What a loop may do.

def test_retained_graphs_and_second_derivatives(folder):
    def twice(loop):
        for i in range(5):
            loop.optimizer.zero_grad()
            loss = loop.model(batch(loop.generator))
            loss.backward(retain_graph=True)
            loss.backward()
            loop.see()
            loop.optimizer.step()
    both(folder, run=twice)

    def penalty(loop):
        for i in range(5):
            loop.optimizer.zero_grad()
            x = batch(loop.generator).requires_grad_()
            loss = loop.model(x)
            gradient, = torch.autograd.grad(loss, x, create_graph=True)
            (loss + gradient.square().sum()).backward()
            loop.see()
            loop.optimizer.step()
    both(folder, run=penalty)


def test_a_graph_that_is_retained_only_now_and_then(folder):
    def sometimes(loop):
        for i in range(7):
            loop.optimizer.zero_grad()
            loss = loop.model(batch(loop.generator))
            loss.backward(retain_graph=i % 3 == 2)
            if i % 3 == 2:
                loss.backward()
            loop.see()
            loop.optimizer.step()
    loop = both(folder, run=sometimes, follows=False)
    assert loop.stats().deviations >= 1 and "still has" in loop.stats().last_deviation


def test_gradient_accumulation_with_changing_counts(folder):
    def accumulate(loop):
        for count in (2, 2, 2, 3, 3, 2, 1):
            for _ in range(count):
                (loop.model(batch(loop.generator)) / count).backward()
            loop.see()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            loop.see()
    loop = both(folder, run=accumulate, follows=False)
    assert loop.stats().followed >= 2


def test_two_forward_passes_before_one_backward(folder):
    def pairs(loop):
        for _ in range(4):
            loop.step(lambda l: l.model(batch(l.generator)) - l.model(batch(l.generator)).sqrt())
    both(folder, run=pairs)


def test_passes_without_gradients_and_without_backward_between(folder):
    def mixed(loop):
        for i in range(6):
            loop.step()
            with torch.no_grad():
                loop.seen.append(loop.model(batch(loop.generator)))
            loop.model.eval()
            loop.seen.append(loop.model(batch(loop.generator)).detach())  # its graph is dropped
            loop.model.train()
    loop = both(folder, run=mixed, follows=False)
    # The first cycle had no such pass before it; from the third on it is a part of the plan.
    assert loop.stats().deviations == 1 and loop.stats().followed == 3

    def once(loop):
        for i in range(6):
            if i == 3:
                loop.model(batch(loop.generator))
            loop.step()
    loop = both(folder, run=once, follows=False)
    assert loop.stats().deviations == 1 and loop.stats().followed >= 3


def test_shapes_that_change(folder):
    def changing(loop):
        for rows in (256, 256, 192, 256, 512, 512, 256, 512, 129):
            loop.step(rows=rows)
    loop = both(folder, body=plain_body, run=changing, follows=False)
    assert loop.stats().followed >= 6 and loop.stats().recorded == 2, loop.stats()


class Broken(Exception):
    pass


def fails_in_forward(x, layer):
    if getattr(layer, "fails", False):
        raise Broken
    return F.gelu(layer(x))


class FailsInBackward(torch.autograd.Function):
    on = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if FailsInBackward.on:
            raise Broken
        return grad


def test_exceptions_in_forward_and_backward(folder):
    def failing(loop):
        for i in range(8):
            layer = loop.model.layers[2]
            layer.fails, FailsInBackward.on = i == 3, i == 5
            try:
                loop.step()
            except Broken:
                loop.optimizer.zero_grad()
            layer.fails = FailsInBackward.on = False
    loop = both(folder, lambda x, layer: FailsInBackward.apply(fails_in_forward(x, layer)),
                run=failing, follows=False)
    assert loop.stats().deviations == 2 and loop.stats().followed >= 2
    # Nothing is left over: autograd's hooks are gone, and so is all that was saved.
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(packed.append, lambda x: x):
        torch.randn(3, requires_grad=True).exp()
    assert packed
    gc.collect()
    session = headrace.eager._sessions[loop.model].session
    assert not session._anything_alive()


def test_an_exception_before_our_own_hook_leaves_no_hook_behind(folder):
    model = Net(plain_body)
    def refuses(*_):
        raise Broken
    handle = model.register_forward_pre_hook(refuses)
    headrace.fit(model, None, "64MiB", folder=str(folder))
    with pytest.raises(Broken):
        model(torch.zeros(2, WIDTH))
    handle.remove()
    model(torch.zeros(2, WIDTH)).backward()
    headrace.release(model)


def test_an_interrupt_of_the_user_in_the_middle_of_a_pass(folder):
    def interrupted(loop):
        for i in range(7):
            loop.model.layers[2].fails = i == 3
            try:
                loop.step()
            except KeyboardInterrupt:
                loop.optimizer.zero_grad()
    def body(x, layer):
        if getattr(layer, "fails", False):
            raise KeyboardInterrupt
        return F.gelu(layer(x))
    loop = both(folder, body, run=interrupted, follows=False)
    assert loop.stats().followed >= 3 and loop.stats().mode == "following"
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(seen.append, lambda x: x):
        torch.randn(3, requires_grad=True).exp()
    assert seen


def test_a_model_that_calls_itself(folder):
    class Twice(Net):
        def forward(self, x):
            if x.shape[0] < ROWS:
                return super().forward(x)
            return self(x[:ROWS // 2]) + super().forward(x)
    both(folder, make=lambda: Twice(plain_body))


def test_passes_of_two_threads_at_once(folder):
    both_inside, left = threading.Barrier(2, timeout=30), {}

    class Meeting(Net):
        def forward(self, x):
            both_inside.wait()
            loss = super().forward(x)
            both_inside.wait()
            return loss

    def work(model, x, name):
        gradients = torch.autograd.grad(model(x), list(model.parameters()))
        before = headrace.eager.stats(model).spilled_bytes
        torch.randn(ROWS, WIDTH, requires_grad=True).exp()
        left[name] = gradients, headrace.eager.stats(model).spilled_bytes - before

    x = [batch(torch.Generator().manual_seed(i)) for i in range(2)]
    plain = Net(plain_body)
    expected = [torch.autograd.grad(plain(one), list(plain.parameters())) for one in x]
    model = Meeting(plain_body)
    model.load_state_dict(plain.state_dict())
    headrace.fit(model, adamw(model.parameters()), "64MiB", folder=str(folder), paranoid=True)
    threads = [threading.Thread(target=work, args=(model, one, i)) for i, one in enumerate(x)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        assert all(torch.equal(a, b) for a, b in zip(left[i][0], expected[i]))
        assert left[i][1] == 0, "autograd's hooks are still on"
    headrace.release(model)


def test_two_models_at_once(folder):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Net(plain_body), Net(outputs_saved)

    runs = []
    for fitted in (False, True):
        torch.manual_seed(1)
        pair = Pair()
        loops = [Loop(m, fitted, folder) for m in (pair.a, pair.b)]
        for _ in range(4):
            # Forward passes of both, then backward passes of both, the first one first.
            losses = [loop.model(batch(loop.generator)) for loop in loops]
            for loop, loss in zip(loops, losses):
                loop.optimizer.zero_grad()
                loss.backward()
                loop.see()
                loop.optimizer.step()
        runs.append([t for loop in loops for t in loop.seen])
    assert all(torch.equal(a, b) for a, b in zip(*runs))
    assert all(loop.stats().followed == 3 for loop in loops)


def test_two_models_of_one_optimizer(folder):
    def train(fitted):
        torch.manual_seed(1)
        first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        second = Net(plain_body)
        optimizer = adamw([*first.parameters(), *second.parameters()])
        if fitted:
            headrace.fit(first, optimizer, "64MiB", folder=str(folder))
            with pytest.raises(headrace.HeadraceError, match="with another model"):
                headrace.fit(second, optimizer, "64MiB", folder=str(folder))
            headrace.fit(second, None, "64MiB", folder=str(folder), paranoid=True)
        generator = torch.Generator().manual_seed(3)
        for _ in range(5):
            second(first(batch(generator))).backward()
            optimizer.step()
            optimizer.zero_grad()
        if fitted:
            assert stats(first).followed >= 3 and stats(second).followed >= 3
            headrace.release(first)
            headrace.fit(second, optimizer, "64MiB", folder=str(folder))
        return [p.detach() for p in (*first.parameters(), *second.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(train(False), train(True)))


def test_frozen_and_unused_parameters_and_some_that_thaw(folder):
    def thawing(loop):
        loop.model.layers[0].requires_grad_(False)
        loop.model.unused = nn.Linear(WIDTH, WIDTH)
        for i in range(8):
            if i == 4:
                loop.model.layers[0].requires_grad_(True)
            loop.step()
    loop = both(folder, run=thawing, follows=False)
    assert loop.stats().followed >= 4


# Optimizers.

OPTIMIZERS = {
    "adamw": adamw,
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-3),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=1e-2, max_iter=2),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(kind, folder):
    def run(loop):
        for _ in range(4):
            def closure():
                loop.optimizer.zero_grad()
                loss = loop.model(batch(torch.Generator().manual_seed(3)))
                loss.backward()
                loop.see()
                return loss
            loop.seen.append(loop.optimizer.step(closure).detach())
            loop.see()
    both(folder, run=run, optimizer=OPTIMIZERS[kind], follows=kind != "lbfgs")


def test_groups_schedules_clipping_and_hooks_of_the_optimizer(folder):
    def groups(parameters):
        parameters = list(parameters)
        return torch.optim.AdamW([{"params": parameters[:3], "lr": 1e-2},
                                  {"params": parameters[3:], "weight_decay": 0.3}], lr=1e-3)

    def run(loop):
        before = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda i: 0.9 ** i)
        called = []
        loop.optimizer.register_step_pre_hook(lambda o, *_: called.append(
            sum(len(g["params"]) for g in o.param_groups)))
        loop.optimizer.register_step_post_hook(lambda *_: called.append("after"))
        for i in range(5):
            loop.optimizer.zero_grad()
            loop.model(batch(loop.generator)).backward()
            loop.seen.append(nn.utils.clip_grad_norm_(loop.model.parameters(), 1e-3))
            loop.optimizer.step()
            before.step()
            loop.see()
        assert called == [8, "after"] * 5
    both(folder, run=run, optimizer=groups)


def test_a_schedule_from_before_the_call_goes_on_without_warnings(folder, recwarn):
    model = Net(plain_body)
    optimizer = adamw(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    headrace.fit(model, optimizer, "64MiB", folder=str(folder))
    for _ in range(3):
        model(batch(torch.Generator().manual_seed(3))).backward()
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 1e-3 / 8
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]
    headrace.release(model)


def test_what_is_seen_of_the_optimizer_is_true(folder):
    plain = both_seen = None
    for fitted in (False, True):
        torch.manual_seed(1)
        loop = Loop(Net(plain_body), fitted, folder)
        seen = []
        for i in range(6):
            loop.step()
            copies = [loop.optimizer.state_dict(), copy.deepcopy(loop.optimizer).state_dict(),
                      pickle.loads(pickle.dumps(loop.optimizer)).state_dict()]
            seen += [t.clone() for c in copies for s in c["state"].values() for t in s.values()]
        plain, both_seen = both_seen, seen
    assert len(plain) == len(both_seen) and all(torch.equal(a, b) for a, b in zip(plain, both_seen))
    assert loop.stats().followed == 5
    moment = loop.optimizer.state[loop.model.layers[0].weight]["exp_avg"]
    assert moment.shape == (WIDTH, WIDTH) and moment.isnan().all()  # it is elsewhere
    headrace.release(loop.model)
    assert loop.optimizer.state[loop.model.layers[0].weight]["exp_avg"] is moment
    assert moment.isfinite().all() and "step" not in vars(loop.optimizer)


def test_state_that_is_loaded_counts(folder):
    def run(loop):
        states = []
        for i in range(9):
            if i in (4, 7):
                loop.optimizer.load_state_dict(copy.deepcopy(states[1]))
            loop.step()
            states.append(copy.deepcopy(loop.optimizer.state_dict()))
    both(folder, run=run)


def test_a_state_dict_that_was_loaded_stays_what_it_was(folder):
    loop = both(folder)
    state = copy.deepcopy(loop.optimizer.state_dict())
    moments = [t for fields in state["state"].values() for t in fields.values() if t.dim() == 2]
    before = [t.clone() for t in moments]
    loop.optimizer.load_state_dict(state)
    loop.step()
    assert before and all(torch.equal(a, b) for a, b in zip(before, moments))


def test_state_that_is_loaded_in_the_middle_of_a_step(folder):
    def run(loop):
        states = []
        for i in range(8):
            loop.optimizer.zero_grad()
            loss = loop.model(batch(loop.generator))
            if i in (4, 6):
                loop.optimizer.load_state_dict(copy.deepcopy(states[1]))
            loss.backward()
            loop.optimizer.step()
            loop.see()
            states.append(copy.deepcopy(loop.optimizer.state_dict()))
    both(folder, run=run, follows=False)


def test_models_are_copied_without_their_fit(folder):
    loop = both(folder)
    for copied in (copy.deepcopy(loop.model), ):
        loss = copied(batch(torch.Generator().manual_seed(3)))
        loss.backward()
        assert all(p.grad is not None for p in copied.parameters())
    with pytest.raises(headrace.HeadraceError, match="was not called"):
        stats(copied)


def test_a_new_group_of_parameters(folder):
    def run(loop):
        extra = nn.Parameter(torch.ones(WIDTH, WIDTH))
        for i in range(7):
            if i == 3:
                loop.optimizer.add_param_group({"params": [extra], "lr": 0.1})
            loop.step(lambda l: l.model(batch(l.generator) @ extra if i >= 3
                                        else batch(l.generator)))
        loop.seen.append(extra.detach())
    both(folder, run=run, follows=False)


def test_an_optimizer_step_that_no_forward_pass_led_to(folder):
    def run(loop):
        for i in range(6):
            loop.step()
            if i % 2:
                loop.optimizer.step()
    both(folder, run=run, follows=False)


@pytest.mark.parametrize("transform", ("grad", "jacrev", "hessian"))
def test_transforms_that_refuse_our_hooks_are_refused_by_name(transform, folder):
    """And leave nothing behind: the next steps are as if nothing had been."""
    def body(x, layer):
        h = F.gelu(layer(x))
        if getattr(layer, "transforms", False):
            h = h + getattr(torch.func, transform)(lambda t: t.square().sum())(h[0])
        return h

    def run(loop):
        for i in range(8):
            loop.model.layers[2].transforms = loop.fitted and i == 4
            if loop.fitted and i == 4:
                with pytest.raises(RuntimeError, match="given to headrace.fit are not supported"):
                    loop.model(torch.randn(ROWS, WIDTH))
                loop.model.layers[2].transforms = False
            loop.step()
    loop = both(folder, body, run=run, follows=False)
    assert loop.stats().deviations == 1 and loop.stats().followed >= 5


def test_a_version_of_torch_that_lacks_what_we_need_is_refused_by_name(monkeypatch):
    _private.check()
    monkeypatch.setattr(_private, "NAMES", ("Tensor._version", "Tensor._of_another_day"))
    with pytest.raises(headrace.HeadraceError, match="no torch.Tensor._of_another_day") as refused:
        headrace.fit(Net(plain_body), None, "64MiB")
    assert refused.value.code == "unsupported" and torch.__version__ in str(refused.value)


def test_memory_is_refused_by_name():
    model = Net(plain_body)
    for wrong in (0, -5, "many", None):
        with pytest.raises(headrace.HeadraceError):
            headrace.fit(model, None, wrong)


def test_release_and_fit_again(folder):
    def run(loop):
        for i in range(6):
            if loop.fitted and i == 3:
                headrace.release(loop.model)
                headrace.fit(loop.model, loop.optimizer, "64MiB", folder=str(folder))
            loop.step()
    both(folder, run=run, follows=False)
