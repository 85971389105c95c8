"""Random models and random ways to train them, from a seed.

A RandomModel is a straight program over values of shape [rows, length, width]; each layer reads one
or two earlier values. The layers are chosen for what goes wrong in systems that move saved tensors:
views, in-place ops, shared parameters, residuals, branches without gradients, buffers, custom
autograd functions, checkpoints of both kinds, values that are used many times. A Scenario adds how
it is trained. The same seed gives the same bits.
"""
import itertools
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from doors import How


class ScaledTanh(torch.autograd.Function):
    """tanh(x) * s, saving its output: a tensor that it also returns."""

    @staticmethod
    def forward(ctx, x, s):
        y = torch.tanh(x)
        ctx.save_for_backward(y, s)
        return y * s

    @staticmethod
    def backward(ctx, gradient):
        y, s = ctx.saved_tensors
        return gradient * s * (1 - y * y), (gradient * y).sum().reshape(s.shape)


def _linear(net, r, width):
    net.fc = nn.Linear(width, width, bias=r.random() < 0.7)
    return lambda x, y: net.fc(x)


def _shared(net, r, width):
    net.fc = nn.Linear(width, width)
    return lambda x, y: net.fc(torch.tanh(net.fc(x)))


def _mlp(net, r, width):
    act = r.choice([F.gelu, F.silu, F.relu, torch.tanh, F.leaky_relu, F.softplus, F.hardswish])
    net.up, net.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    return lambda x, y: x + net.down(act(net.up(x)))


def _gated(net, r, width):
    net.up, net.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width)

    def forward(x, y):
        gate, up = net.up(x).chunk(2, -1)       # two views of one storage
        return net.down(F.silu(gate) * up)
    return forward


def _norm(net, r, width):
    net.norm = r.choice([nn.LayerNorm, nn.RMSNorm])(width)
    return lambda x, y: net.norm(x)


def _group_norm(net, r, width):
    net.norm = nn.GroupNorm(4, width)
    return lambda x, y: net.norm(x.transpose(1, 2)).transpose(1, 2)


def _batch_norm(net, r, width):
    net.norm = nn.BatchNorm1d(width)
    return lambda x, y: net.norm(x.flatten(0, 1)).view_as(x)


def _attention(net, r, width):
    heads, causal = r.choice([2, 4]), r.random() < 0.5
    net.qkv, net.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(x, y):
        q, k, v = net.qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + net.out(z.transpose(1, 2).flatten(2))
    return forward


def _plain_attention(net, r, width):
    def forward(x, y):
        scores = x @ y.transpose(1, 2) / width ** 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -1e4).softmax(-1) @ y
    return forward


def _conv(net, r, width):
    net.conv = nn.Conv1d(width, width, 3, padding=1, groups=r.choice([1, 4]))
    return lambda x, y: net.conv(x.transpose(1, 2)).transpose(1, 2).contiguous()


def _in_place(net, r, width):
    net.fc = nn.Linear(width, width)
    kind = r.randrange(4)

    def forward(x, y):
        z = net.fc(x)
        if kind == 0:
            return z.relu_()
        if kind == 1:
            return z.add_(y)
        if kind == 2:
            z[:, ::2] *= 0.5                     # through a view
            return z
        return z.mul_(2).sigmoid_()
    return forward


def _views(net, r, width):
    kind = r.randrange(5)

    def forward(x, y):
        if kind == 0:
            half = x.shape[1] // 2
            return torch.cat([x[:, half:], y[:, :half].flip(1)], 1) if half else x + y
        if kind == 1:
            return torch.stack(x.unbind(1), 1) * x.mean(1, keepdim=True).expand_as(x)
        if kind == 2:
            return (x.transpose(1, 2).reshape(x.shape) * y).roll(1, 1)
        if kind == 3:
            return x[..., ::2].repeat_interleave(2, -1) * y
        return x.as_strided(x.size(), x.stride()).sin() if x.is_contiguous() else x.sin()
    return forward


def _reduction(net, r, width):
    kind = r.randrange(4)

    def forward(x, y):
        if kind == 0:
            return x.cumsum(1) / x.shape[1]
        if kind == 1:
            return x - x.logsumexp(-1, keepdim=True)
        if kind == 2:
            return torch.where(x > y, x, 0.1 * y)
        return x * torch.sigmoid(y.amax(1, keepdim=True))
    return forward


def _gather(net, r, width):
    net.table = nn.Embedding(32, width)

    def forward(x, y):
        rows = (x[..., 0].detach() * 8).long().remainder(32)
        return x + net.table(rows)
    return forward


def _detached(net, r, width):
    net.fc = nn.Linear(width, width)

    def forward(x, y):
        with torch.no_grad():
            scale = net.fc(y).sigmoid()
        return x * scale + y.detach()
    return forward


def _buffer(net, r, width):
    net.register_buffer("mean", torch.zeros(width))

    def forward(x, y):
        if net.training:
            with torch.no_grad():
                net.mean.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        return x - net.mean
    return forward


def _function(net, r, width):
    net.scale = nn.Parameter(torch.ones(1))
    return lambda x, y: ScaledTanh.apply(x, net.scale)


def _dropout(net, r, width):
    net.drop = nn.Dropout(r.choice([0.0, 0.1, 0.5]))
    return lambda x, y: net.drop(x) + y


def _recurrent(net, r, width):
    # GRU cells work in place on parts of one storage that are no views of it.
    net.cell = r.choice([nn.RNNCell, nn.GRUCell])(width, width)

    def forward(x, y):
        state = y[:, 0]
        out = []
        for t in range(0, x.shape[1], max(1, x.shape[1] // 4)):
            state = net.cell(x[:, t], state)
            out.append(state)
        return x + torch.stack(out).sum(0)[:, None]
    return forward


def _checkpoint(net, r, width):
    net.body = Layer(r.choice([_mlp, _gated, _attention, _dropout]), r, width)
    reentrant = r.random() < 0.3
    return lambda x, y: checkpoint(net.body, x, y, use_reentrant=reentrant)


def _residual(net, r, width):
    return lambda x, y: x + y


KINDS = [_linear, _shared, _mlp, _mlp, _gated, _norm, _group_norm, _batch_norm, _attention,
         _plain_attention, _conv, _in_place, _in_place, _views, _views, _reduction, _gather,
         _detached, _buffer, _function, _dropout, _recurrent, _checkpoint, _residual]


class Layer(nn.Module):
    def __init__(self, kind, r, width):
        super().__init__()
        self.kind = kind.__name__
        # A closure over submodules would follow no deepcopy: what is drawn is drawn again.
        self._seed, self._width, self._make = r.randrange(1 << 30), width, kind
        self.body = None
        self._run = kind(self, random.Random(self._seed), width)

    def __deepcopy__(self, memo):
        copy = Layer.__new__(Layer)
        nn.Module.__init__(copy)
        memo[id(self)] = copy
        with torch.random.fork_rng():
            copy.kind, copy._seed = self.kind, self._seed
            copy._width, copy._make = self._width, self._make
            copy.body = None
            copy._run = self._make(copy, random.Random(self._seed), self._width)
        copy.load_state_dict(self.state_dict())
        for mine, theirs in zip(copy.parameters(), self.parameters()):
            mine.requires_grad_(theirs.requires_grad)
        return copy.train(self.training)

    def forward(self, x, y):
        return self._run(x, y)


class RandomModel(nn.Module):
    def __init__(self, r, width, kinds=KINDS):
        super().__init__()
        self.first = nn.Linear(width, width)
        chosen = [r.choice(kinds) for _ in range(r.randint(2, 9))]
        self.layers = nn.ModuleList(Layer(kind, r, width) for kind in chosen)
        if r.random() < 0.2:                    # one layer twice: shared parameters across depth
            self.layers.append(r.choice(list(self.layers)))
        # Operands: mostly the last value, sometimes one from long before.
        self.reads = [(i if r.random() < 0.7 else r.randint(0, i), r.randint(0, i))
                      for i in range(len(self.layers))]
        self.two_outputs = r.random() < 0.3
        trained = [p for p in self.layers.parameters()]
        for p in trained:
            if r.random() < 0.1:
                p.requires_grad_(False)

    def forward(self, x):
        values = [self.first(x)]
        for layer, (a, b) in zip(self.layers, self.reads):
            z = layer(values[a], values[b])
            # The same size whatever comes before: the values of deep models would overflow.
            values.append(z / (1 + z.detach().abs().mean()))
        if self.two_outputs:
            return values[-1], values[len(values) // 2]
        return values[-1], values[-1]

    def text(self):
        return " ".join(f"{layer.kind[1:]}({a},{b})"
                        for layer, (a, b) in zip(self.layers, self.reads))


class Scenario(NamedTuple):
    """A model and how it is trained; every field is drawn from the seed."""
    seed: int
    width: int
    shapes: list          # (rows, length) of the micro-batches in turn
    how: How

    def model(self, kinds=KINDS):
        torch.manual_seed(self.seed)
        return RandomModel(random.Random(self.seed), self.width, kinds)

    def batches(self):
        """A function that gives one batch after another: (inputs, wanted outputs)."""
        turn = itertools.cycle(self.shapes)

        def batch(generator):
            shape = (*next(turn), self.width)
            return (torch.randn(shape, generator=generator),
                    torch.randn(shape, generator=generator))
        return batch


def loss(model, inputs, wanted):
    last, other = model(inputs)
    return F.mse_loss(last, wanted) + 0.1 * other.square().mean()


def scenario(seed):
    r = random.Random(seed * 7919 + 1)
    shapes = [(r.randint(1, 8), r.choice([1, 16, 48, 64, 96]))]
    if r.random() < 0.3:
        shapes.append((r.randint(1, 8), r.choice([16, 32, 64])))
    steps = r.randint(3, 6)
    how = How(
        steps=steps, accumulation=r.choice([1, 1, 1, 2, 3]),
        optimizer=r.choice(["sgd", "momentum", "adamw", "adamw", "adam", "rmsprop", "adagrad"]),
        clip=r.choice([None, None, 0.1]), schedule=r.random() < 0.3, groups=r.random() < 0.3,
        evaluate=r.random() < 0.3, forward_only=r.random() < 0.15,
        fail_at=r.randrange(steps) if r.random() < 0.15 else -1, to_none=r.random() < 0.7)
    return Scenario(seed, r.choice([32, 64, 96, 128]), shapes, how)
