"""Models of which some modules are marked with @remote_memory, and the same without the mark."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import headrace

WIDTH, TABLE = 160, 500


class Layer(nn.Linear):
    def forward(self, x):
        return x + F.gelu(super().forward(x))


@headrace.remote_memory(max_size="128MB", prefetch_priority=0.8)
class FarLayer(Layer):
    pass


@headrace.remote_memory()
class FarTable(nn.Embedding):
    pass


class Block(nn.Module):
    """Parameters of inner modules, one of which the module itself reads."""

    def __init__(self, recompute=None):
        """recompute: None, or use_reentrant of a checkpoint."""
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.recompute, self.broken = recompute, False

    def body(self, x):
        h = F.gelu(self.first(x))
        if self.broken:
            torch._dynamo.graph_break()
        return h @ self.second.weight if self.recompute is None else self.second(h)

    def forward(self, x):
        if self.recompute is None:
            return self.body(x)
        return checkpoint(self.body, x, use_reentrant=self.recompute)


@headrace.remote_memory()
class FarBlock(Block):
    pass


class Net(nn.Module):
    def __init__(self, far, middle=None, tied=False):
        super().__init__()
        self.table = (FarTable if far else nn.Embedding)(TABLE, WIDTH)
        layer = FarLayer if far else Layer
        self.layers = nn.ModuleList([layer(WIDTH, WIDTH), Layer(WIDTH, WIDTH),
                                     layer(WIDTH, WIDTH)])
        self.middle, self.tied = middle, tied

    def forward(self, rows):
        x = self.table(rows)
        for layer in self.layers:
            x = layer(x)
        if self.middle is not None:
            x = self.middle(x) + self.middle(x.tanh())
        if self.tied:
            x = F.linear(x, self.table.weight)
        return x.square().mean()
