#!/usr/bin/env python3
"""Losses and gradients of two small models in float64, for tests/train/backward_test.cc.

usage: ops_golden.py FOLDER

Writes FOLDER/vision.json, decoder.json (losses; names and shapes of parameters) and .bin (their
gradients, f32, in that order). The models have what those of train_golden.py lack: an image
transformer with two prefix rows, and a decoder with norms of heads, a window, rotation of a part of
each head, biases of the output table, label smoothing, and in its second layer heads that are
stored one after another, weights that 1 is added to and a scaled branch. Written in plain PyTorch;
made with torch 2.15.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from train_golden import integers, uniform

F64 = torch.float64


class Parameters(dict):
    """By name, made in the order they are asked for, from a hash of their number."""

    def get(self, name, rows, cols):
        if name in self:
            return self[name]
        u = uniform(len(self) + 1, rows * cols)
        vector = "norm" in name or name.endswith("bias")
        scaled = vector and name.endswith("weight")
        u = 1 + 0.2 * u if scaled else (0.2 if vector else 0.3) * u
        # The test holds f32.
        t = torch.tensor(u.astype(np.float32).astype(np.float64).reshape(rows, cols))
        self[name] = t.requires_grad_()
        return self[name]

    def linear(self, name, x, n, bias=True):
        w = self.get(name + ".weight", n, x.shape[-1])
        return F.linear(x, w, self.get(name + ".bias", 1, n)[0] if bias else None)

    def layer_norm(self, name, x):
        n = x.shape[-1]
        w, b = self.get(name + ".weight", 1, n), self.get(name + ".bias", 1, n)
        return F.layer_norm(x, (n,), w[0], b[0], 1e-6)

    def rms_norm(self, name, x, add=0):
        w = self.get(name + ".weight", 1, x.shape[-1])
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (add + w[0])


def attention(q, k, v, sees):
    """Of [S, T, heads, d]; kv heads are shared by neighbours."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
    return o.transpose(1, 2).flatten(2)


def vision():
    p, s, n, heads = Parameters(), 3, 16, 4
    images = torch.tensor(uniform(500, s * 3 * 8 * 12).reshape(s, 3, 8, 12))
    weight = p.get("patches.weight", n, 48).reshape(n, 3, 4, 4)
    x = F.conv2d(images, weight, p.get("patches.bias", 1, n)[0], stride=4)
    x = x.flatten(2).transpose(1, 2)
    cls, distillation = p.get("cls", 1, n), p.get("distillation", 1, n)
    x = torch.cat([cls.expand(s, 1, n), distillation.expand(s, 1, n), x], 1)
    x = x + p.get("positions", 8, n)
    for i in range(2):
        at = f"layers.{i}."
        qkv = p.linear(at + "qkv", p.layer_norm(at + "norm1", x), 3 * n).reshape(s, 8, 3, heads, 4)
        x = x + p.linear(at + "out", attention(*qkv.unbind(2), None), n)
        h = F.gelu(p.linear(at + "up", p.layer_norm(at + "norm2", x), 24))
        x = x + p.linear(at + "down", h, n)
    x = p.layer_norm("norm", x)
    logits = p.linear("head", x[:, 0] + x[:, 2:].mean(1), 7)
    targets = torch.tensor(integers(1001, s, 7))
    targets[1] = -100
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    return p, [loss]


def rotate(x):
    """The first 4 of 6 elements of each head, pairs (0, 2) and (1, 3); x is [S, T, heads, 6]."""
    angles = torch.arange(x.shape[1], dtype=F64)[:, None] * torch.tensor([1.0, 0.125], dtype=F64)
    c, s = angles.cos()[None, :, None], angles.sin()[None, :, None]
    a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


def decoder():
    p, rows, n, heads, kv, d = Parameters(), 36, 16, 4, 2, 6
    tokens = torch.tensor(integers(1000, rows, 37)).reshape(4, 9)
    targets = torch.tensor(integers(1001, rows, 37))
    targets[::7] = -100
    at = torch.arange(9)
    away = at[:, None] - at[None]
    sees = (away >= 0) & (away < 4)
    x = 4 * (p.get("embed", 37, n)[tokens] + p.get("positions", 13, n)[2:11])
    for i in range(2):
        at = f"layers.{i}."
        qkv = p.linear(at + "qkv", p.rms_norm(at + "norm1", x, i), (heads + 2 * kv) * d)
        if i == 0:  # each head is normalised by itself
            q, k, v = qkv.split([heads * d, kv * d, kv * d], -1)
            q, k = (t.unflatten(-1, (-1, d)) for t in (q, k))
        else:  # columns are: for each kv head its two query heads, key and value
            q, k, v = qkv.unflatten(-1, (kv, 4, d)).split([2, 1, 1], -2)
            q, k, v = (t.flatten(2) for t in (q, k, v))
        q, k = p.rms_norm(at + "q_norm", q, i), p.rms_norm(at + "k_norm", k, i)
        q, k, v = (t.reshape(4, 9, -1, d) for t in (q, k, v))
        x = x + p.linear(at + "out", attention(rotate(q), rotate(k), v, sees), n, False)
        gate, up = p.linear(at + "up", p.rms_norm(at + "norm2", x), 48, False).chunk(2, -1)
        down = p.linear(at + "down", F.gelu(gate) * up, n, False)
        x = x + (down * p.get("scale", 1, n)[0] * 0.5 if i == 1 else down)
    x = p.rms_norm("norm", x)
    tiles = [p.linear(f"head.{i}", x, v) for i, v in enumerate((20, 17))]
    logits = torch.cat(tiles, -1).reshape(rows, 37)
    # Two micro-batches that count alike, however many targets they have.
    losses = [F.cross_entropy(logits[i:i + 18], targets[i:i + 18], label_smoothing=0.1)
              for i in (0, 18)]
    (0.5 * losses[0] + 0.5 * losses[1]).backward()
    return p, losses


def main(folder):
    for make in (vision, decoder):
        p, losses = make()
        about = {"losses": [x.item() for x in losses],
                 "parameters": [[name, *t.shape] for name, t in p.items()]}
        path = Path(folder) / make.__name__
        path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")
        gradients = [t.grad.numpy().astype(np.float32).tobytes() for t in p.values()]
        path.with_suffix(".bin").write_bytes(b"".join(gradients))


if __name__ == "__main__":
    main(sys.argv[1])
