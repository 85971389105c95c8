"""The compile door's numbers where what torch says of a graph is not what its kernels do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import doors  # noqa: E402
import headrace.compiled  # noqa: E402, F401
from headrace.compiled import _backend, _search  # noqa: E402


@pytest.fixture
def everything_moves():
    """Of what can be done without, all moves; gives what counts the values that did."""
    with doors.only_moves():
        yield lambda: sum(len(chosen.emission.moved) for _, ledger in _backend._ledgers.values()
                          for plans in ledger.passes for chosen in plans().made)
    torch._dynamo.reset()
    _backend._ledgers.clear()


def gradients(function, inputs, parameters, backend, **more):
    """Of the sum of what the compiled function returns; backend None: plainly."""
    torch._dynamo.reset()
    if backend is not None:
        function = torch.compile(function, backend=backend, **more)
    torch.manual_seed(1)
    return torch.autograd.grad(function(*inputs).sum(), parameters)


def through_the_door(function, inputs, parameters, folder):
    options = {"memory": "64GiB", "folder": str(folder)}
    with doors.moving():
        return gradients(function, inputs, parameters, "headrace", options=options)


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


@torch.library.custom_op("headrace_tests::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().contiguous().t()


turned.register_fake(torch.empty_like)  # as rows, but it is as columns
turned.register_autograd(lambda ctx, grad: grad * 2)


def test_what_lies_otherwise_than_the_graph_says_moves_as_it_lies(folder, everything_moves):
    layers = torch.nn.ModuleList(torch.nn.Linear(160, 160) for _ in range(4))

    def forward(x):
        for layer in layers:
            x = turned(layer(x).tanh()).sin()
        return x
    case = (forward, (torch.randn(256, 160),), list(layers.parameters()))
    expected = gradients(*case, "aot_eager")
    assert same(through_the_door(*case, folder), expected)
    assert everything_moves() > 4


class ScaledBehind(torch.autograd.Function):
    """x, whose gradient is multiplied by what `of` makes of the buffer in the forward pass."""

    @staticmethod
    def forward(ctx, x, buffer, of):
        ctx.save_for_backward(of(buffer))
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        (scale,) = ctx.saved_tensors
        return gradient * scale, None, None


@pytest.mark.parametrize("of", (torch.clone, torch.exp, lambda b: b.view(4, 16).sum(0).repeat(4)),
                         ids=("itself", "exp", "view"))
def test_a_buffer_that_only_the_backward_pass_reads_is_read_before_it_changes(of, folder):
    buffer = torch.ones(64)
    layer = torch.nn.Linear(64, 64)

    def forward(x):
        y = ScaledBehind.apply(layer(x), buffer, of)
        with torch.no_grad():
            buffer.mul_(0.5)
        return y
    case = (forward, (torch.randn(32, 64),), list(layer.parameters()))
    plain = gradients(*case, None)
    buffer.fill_(1)
    got = through_the_door(*case, folder)
    assert torch.equal(buffer, torch.full((64,), 0.5))
    assert all(doors.distance(a, b) < 1e-6 for a, b in zip(got, plain))


def test_a_view_that_does_not_fit_is_a_copy(folder):
    """Torch's own graph fails here: the dropout's gradient is transposed, but not in the graph."""
    first, norm = torch.nn.Linear(32, 32), torch.nn.GroupNorm(4, 32)

    def forward(x):
        y = torch.nn.functional.dropout(first(x), 0.5) / 3
        return norm(y.transpose(1, 2)).transpose(1, 2).square()
    case = (forward, (torch.randn(7, 48, 32),), [*first.parameters(), *norm.parameters()])
    for got, plain in zip(through_the_door(*case, folder), gradients(*case, None)):
        assert doors.distance(got, plain) < 1e-5


def test_a_gradient_that_is_only_noise_is_the_noise_of_torchs_own_graph(folder):
    """A bias before a batch norm moves nothing: what is left of its gradient is rounding."""
    first, norm = torch.nn.GroupNorm(4, 32), torch.nn.BatchNorm1d(32)

    def forward(x):
        return norm(first(x)).square() * x.abs()
    case = (forward, (torch.randn(7, 32, 48),), [*first.parameters(), *norm.parameters()])
    got, own = through_the_door(*case, folder), gradients(*case, "aot_eager")
    assert same(got, own)
    exact = gradients(forward, (case[1][0].double(),), [*first.double().parameters(),
                                                        *norm.double().parameters()], None)
    assert exact[1].norm() < 1e-10  # nothing
    assert all(doors.distance(a, b.float()) < 1e-5 for a, b in zip(got[2:], exact[2:]))


class Shifted(torch.nn.Module):
    """Its backward pass needs neither its buffer nor the first layer's weight."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(256, 256)
        self.second = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))
        self.last = torch.nn.Linear(256, 16)
        self.register_buffer("shift", torch.ones(256))

    def forward(self, x):
        h = self.first(x)
        for f in self.second:
            h = f(h.sin() - self.shift)
        return self.last(h).sum()


@pytest.mark.parametrize("which, read_again", (("shift", True), ("first.weight", False)))
def test_what_backward_does_not_read_may_change_before_it(which, read_again, folder, monkeypatch):
    """Plainly, and by torch's own graphs, this goes; also here, unless a plan computes again from
    what has changed: that is told."""
    def measure(step):
        for op in step.ops:  # the same plan on every machine
            op.seconds = 1e-2 if "mm" in op.name else 1e-4
    monkeypatch.setattr(_search, "measure", measure)
    torch.manual_seed(1)
    model, x = Shifted(), torch.randn(1024, 256)
    changed = model.state_dict()[which]
    before = changed.clone()

    def step(backend, **more):
        torch._dynamo.reset()
        loss = torch.compile(model, backend=backend, **more)(x)
        changed.mul_(0.5)
        try:
            return torch.autograd.grad(loss, list(model.parameters()))
        finally:
            changed.copy_(before)
    expected = step("aot_eager")
    options = {"memory": "64GiB", "folder": str(folder)}
    assert same(step("headrace", options=dict(options)), expected)
    if read_again:
        with doors.moving(), pytest.raises(RuntimeError, match="modified by an inplace operation"):
            step("headrace", options=options | {"move": False})
