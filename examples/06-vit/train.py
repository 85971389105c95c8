#!/usr/bin/env python3
"""A vision transformer learns to name shapes, through two of the three doors.

    make python                                        # PyTorch and headrace into .cache/torch
    .cache/torch/bin/python examples/06-vit/train.py                # eager: headrace.fit
    .cache/torch/bin/python examples/06-vit/train.py --door step    # headrace.compile_step
    .cache/torch/bin/python examples/06-vit/train.py --door none    # plain PyTorch

The images are drawn here: a disc, a ring, a square, a cross, stripes ... of random place, size and
colour in noise, 64 x 64 pixels.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import nn

import headrace

SIZE, CLASSES = 64, ["disc", "ring", "square", "frame", "cross", "stripes", "checks", "triangle"]


def draw(count, generator):
    """(images [count, 3, 64, 64], labels [count])."""
    def uniform(low, high):
        return torch.rand(count, 1, 1, generator=generator) * (high - low) + low
    labels = torch.randint(0, len(CLASSES), (count,), generator=generator)
    axis = torch.linspace(-1, 1, SIZE)
    x, y = axis - uniform(-0.4, 0.4), axis[:, None] - uniform(-0.4, 0.4)
    size = uniform(0.25, 0.5)
    inside = (x.abs() < size) & (y.abs() < size)
    middle = (x.abs() < size / 2) & (y.abs() < size / 2)
    away = (x * x + y * y).sqrt()
    stripes = ((x * 12 / size).sin() > 0)
    kinds = torch.stack([
        away < size, (away < size) & (away > size / 2), inside, inside & ~middle,
        inside & ((x.abs() < size / 4) | (y.abs() < size / 4)), inside & stripes,
        inside & (stripes ^ ((y * 12 / size).sin() > 0)), inside & (y > x.abs() * 2 - size)])
    shape = kinds[labels, torch.arange(count)].float()[:, None]           # [count, 1, 64, 64]
    colour = torch.rand(count, 3, 1, 1, generator=generator) + 0.5
    noise = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return shape * colour + 0.3 * noise, labels


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):                                                 # [rows, places, hidden]
        rows, places, hidden = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(rows, places, self.heads, -1).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, places, hidden)
        x = x + self.o(h)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    """Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020."""

    def __init__(self, hidden=192, layers=6, heads=6, patch=8):
        super().__init__()
        self.patch = nn.Conv2d(3, hidden, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.places = nn.Parameter(torch.randn(1, (SIZE // patch) ** 2 + 1, hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, len(CLASSES))

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--door", choices=["none", "fit", "step"], default="fit")
    p.add_argument("--memory", default="128MiB", help="what training may take on top of the model")
    p.add_argument("--steps", type=int, default=150)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--json", action="store_true", help="print what came of it as one JSON object")
    a = p.parse_args()
    torch.manual_seed(1)
    model = Vit()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)

    def train_step(images, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    generator = torch.Generator().manual_seed(2)
    held_out = draw(256, torch.Generator().manual_seed(3))
    resident = headrace.process_memory().rss
    headrace.reset_peak()
    step = train_step
    if a.door == "fit":
        headrace.fit(model, optimizer, memory=a.memory)
    elif a.door == "step":
        step = headrace.compile_step(train_step, model, optimizer, memory=a.memory)

    begin, losses = time.monotonic(), []
    for i in range(a.steps):
        losses.append(step(*draw(a.batch, generator)).item())
        if not a.json and (i % 25 == 0 or i == a.steps - 1):
            print(f"step {i + 1}/{a.steps}  loss {losses[-1]:.4f}  "
                  f"{(i + 1) / (time.monotonic() - begin):.1f} steps/s")
    growth = headrace.process_memory().peak - resident
    model.eval()
    with torch.no_grad():
        right = (model(held_out[0]).argmax(-1) == held_out[1]).float().mean().item()
    if a.json:
        print(json.dumps({"losses": losses, "right": right, "peak_growth": growth}))
    else:
        print(f"{right:.0%} of 256 other images are named rightly; training took "
              f"{growth / 2**20:,.0f} MiB on top of the model")


if __name__ == "__main__":
    main()
