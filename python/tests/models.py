"""Small models of every kind that the doors are tested with, and what trains them.

A Case says how to build a model, what one batch is and what the loss of a batch is. Everything is
drawn from seeds: two calls give the same bits. Activations are a few MiB in pieces on both sides of
64 KiB, below which the eager door leaves a tensor alone.
"""
import math
import pathlib
import sys
import types
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "train"))
import torch_step  # noqa: E402  (the models that `headrace train` is measured against)

VOCAB, TOKENS = 256, 64


class Case(NamedTuple):
    name: str
    build: Callable[[], nn.Module]               # random parameters from torch's generator
    batch: Callable[[torch.Generator], tuple]    # what `loss` takes after the model
    loss: Callable[..., torch.Tensor]            # (model, *batch) -> scalar

    def model(self, seed: int = 1) -> nn.Module:
        torch.manual_seed(seed)
        return self.build()


def token_batch(generator, rows=4, length=TOKENS):
    """(tokens, targets), each [rows, length] int64."""
    tokens = torch.randint(0, VOCAB, (rows, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def language_loss(model, tokens, targets):
    return model(tokens, targets)


def language_model(family, recompute=False, **more):
    shape = dict(family=family, layers=3, hidden=128, heads=4,
                 kv_heads=4 if family == "gpt2" else 2, ffn=320, vocab=VOCAB, sequence=TOKENS,
                 checkpoint=recompute)
    return torch_step.Model(types.SimpleNamespace(**(shape | more)))


class LowRank(nn.Module):
    """A frozen linear layer and a trained product of rank r beside it (Hu et al., "LoRA", 2021)."""

    def __init__(self, base: nn.Linear, rank: int = 4, scale: float = 2.0):
        super().__init__()
        self.base, self.scale = base, scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, rank) * 0.01)

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


def low_rank_model():
    model = language_model("llama")
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("q", "v", "down"):
            setattr(block, name, LowRank(getattr(block, name)))
    return model


class Vit(nn.Module):
    """A vision transformer: patches, a class token, learned positions (Dosovitskiy et al. 2020)."""

    def __init__(self, image=32, patch=4, hidden=128, layers=2, heads=4, classes=10):
        super().__init__()
        self.patch = nn.Conv2d(3, hidden, patch, stride=patch)
        self.first = nn.Parameter(torch.randn(1, 1, hidden) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, hidden) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden, heads, 2 * hidden, dropout=0.0, activation="gelu",
                                       batch_first=True, norm_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)        # [batch, patches, hidden]
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


class Conv(nn.Module):
    """Convolutions, batch norms (buffers that a forward pass changes), in-place activations."""

    def __init__(self, channels=32, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                          nn.BatchNorm2d(channels), nn.ReLU(inplace=True)) for _ in range(3))
        self.head = nn.Linear(channels, classes)

    def forward(self, images):
        x = self.stem(images)
        for layer in self.body:
            x = F.max_pool2d(x + layer(x), 2)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """The same cell over and over: one parameter, many uses, many small saved tensors."""

    def __init__(self, hidden=160):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)                                    # [rows, tokens, hidden]
        state = torch.zeros(len(tokens), x.shape[-1])
        states = []
        for t in range(tokens.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        return self.out(torch.stack(states, 1))


class Dropped(nn.Module):
    """Dropout and a residual stream that one checkpoint recomputes: its random numbers too."""

    def __init__(self, hidden=128):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 3 * hidden), nn.GELU(),
                          nn.Dropout(0.2), nn.Linear(3 * hidden, hidden)) for _ in range(3))
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            x = x + (checkpoint(block, x, use_reentrant=False) if i == 1 else block(x))
        return self.out(x)


def image_batch(generator):
    """(images [8, 3, 32, 32], labels [8])."""
    return (torch.randn(8, 3, 32, 32, generator=generator),
            torch.randint(0, 10, (8,), generator=generator))


def class_loss(model, inputs, labels):
    """Cross-entropy of the last dimension of what the model gives."""
    logits = model(inputs)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def _language(name, **more):
    return Case(name, lambda: language_model(**more), token_batch, language_loss)


CASES = {case.name: case for case in (
    _language("llama", family="llama"),
    _language("tiny", family="llama", layers=1, hidden=64, ffn=128),
    _language("gpt2", family="gpt2"),
    _language("checkpointed", family="llama", recompute=True),
    Case("lora", low_rank_model, token_batch, language_loss),
    Case("vit", Vit, image_batch, class_loss),
    Case("conv", Conv, image_batch, class_loss),
    Case("recurrent", Recurrent, token_batch, class_loss),
    Case("dropped", Dropped, token_batch, class_loss),
)}
