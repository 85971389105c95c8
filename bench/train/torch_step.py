#!/usr/bin/env python3
"""The peer of `headrace train`: the same training step in PyTorch, measured.

A LLaMA-type or GPT-2-type model of the given shape, random parameters, AdamW, tokens of a seeded
generator; prints one JSON object: seconds and CPU seconds a step (median of the steps after the
first), peak resident memory of the process, losses.
"""
import argparse
import json
import os
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_table(positions, head_dim, base=10000.0):
    inv = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(positions).float(), inv)
    return torch.cat([angle.cos(), angle.cos()], -1), torch.cat([angle.sin(), angle.sin()], -1)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class LlamaBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv_heads = a.heads, a.kv_heads
        self.head_dim = a.hidden // a.heads
        kv = a.kv_heads * self.head_dim
        self.norm1, self.norm2 = RMSNorm(a.hidden), RMSNorm(a.hidden)
        self.q = nn.Linear(a.hidden, a.hidden, bias=False)
        self.k = nn.Linear(a.hidden, kv, bias=False)
        self.v = nn.Linear(a.hidden, kv, bias=False)
        self.o = nn.Linear(a.hidden, a.hidden, bias=False)
        self.gate = nn.Linear(a.hidden, a.ffn, bias=False)
        self.up = nn.Linear(a.hidden, a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.hidden, bias=False)

    def forward(self, x, cos, sin):
        b, t, n = x.shape
        h = self.norm1(x)
        q = self.q(h).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(h).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(h).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, n))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Gpt2Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads = a.heads
        self.norm1, self.norm2 = nn.LayerNorm(a.hidden), nn.LayerNorm(a.hidden)
        self.qkv = nn.Linear(a.hidden, 3 * a.hidden)
        self.o = nn.Linear(a.hidden, a.hidden)
        self.fc = nn.Linear(a.hidden, a.ffn)
        self.proj = nn.Linear(a.ffn, a.hidden)

    def forward(self, x, cos, sin):
        b, t, n = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, n))
        return x + self.proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        gpt2 = a.family == "gpt2"
        self.embed = nn.Embedding(a.vocab, a.hidden)
        self.pos = nn.Embedding(a.sequence, a.hidden) if gpt2 else None
        block = Gpt2Block if gpt2 else LlamaBlock
        self.blocks = nn.ModuleList(block(a) for _ in range(a.layers))
        self.norm = nn.LayerNorm(a.hidden) if gpt2 else RMSNorm(a.hidden)
        self.out = nn.Linear(a.hidden, a.vocab, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        if gpt2:
            self.out.weight = self.embed.weight
        self.table = rope_table(a.sequence, a.hidden // a.heads)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        if self.pos is not None:
            x = x + self.pos.weight[: tokens.shape[1]]
        table = [t[: tokens.shape[1]] for t in self.table]
        for block in self.blocks:
            if self.a.checkpoint:
                x = checkpoint(block, x, *table, use_reentrant=False)
            else:
                x = block(x, *table)
        logits = self.out(self.norm(x))
        return F.cross_entropy(logits.float().view(-1, self.a.vocab), targets.reshape(-1))


def peak_rss():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def parser(description):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--family", default="llama", choices=["llama", "gpt2"])
    for name, value in [("layers", 8), ("hidden", 512), ("heads", 8), ("kv-heads", 8),
                        ("ffn", 1408), ("vocab", 8192), ("batch", 8), ("sequence", 512),
                        ("steps", 4), ("threads", 2)]:
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--checkpoint", action="store_true", help="recompute every block")
    p.add_argument("--bf16", action="store_true", help="autocast to bf16, f32 parameters")
    return p


def prepare(a):
    """The model, seeded, and its optimizer."""
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Model(a)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95),
                                    weight_decay=0.1)


def measure(a, step):
    """Calls step(tokens, targets) -> loss for each step; what it took and gave as a dict."""
    generator = torch.Generator().manual_seed(2)
    wall, cpu, losses = [], [], []
    for _ in range(a.steps):
        tokens = torch.randint(0, a.vocab, (a.batch, a.sequence + 1), generator=generator)
        begin, begin_cpu = time.monotonic(), cpu_seconds()
        losses.append(step(tokens[:, :-1], tokens[:, 1:]).item())
        wall.append(time.monotonic() - begin)
        cpu.append(cpu_seconds() - begin_cpu)

    def median(x):
        return sorted(x[1:])[len(x[1:]) // 2] if len(x) > 1 else x[0]
    return {"peer": "torch " + torch.__version__, "threads": a.threads,
            "malloc": os.environ.get("MALLOC_MMAP_THRESHOLD_", "default"),
            "s_per_step": median(wall), "cpu_s_per_step": median(cpu), "first_step_s": wall[0],
            "peak_rss_bytes": peak_rss(), "losses": losses}


def main():
    a = parser(__doc__).parse_args()
    model, optimizer = prepare(a)

    def step(tokens, targets):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss
    print(json.dumps(measure(a, step) | {"checkpoint": a.checkpoint, "bf16": a.bf16}))


if __name__ == "__main__":
    main()
