#!/usr/bin/env python3
"""What KV formats do to the perplexity of a model, before the engine has them.

usage: bench/kv/perplexity.py MODEL.gguf TEXT [--tokens N] [--skip N] [--formats NAME ...]

TEXT is read from its token --skip on, N tokens (default 4096) at once, by PyTorch in f32 with
keys and values rounded to f16. A query sees the 64-position tiles before its own as the format
holds them and its own tile as it is, in every layer: what the engine does (ir/kv.h). Printed for
each format: bits an element with its scales, perplexity, the change against f16, and the standard
error of that change (of the paired differences of log-probabilities, tokens taken as independent).

Formats, as WORD[-WORD...]:
  q8          int8, f16 scale a 32                 q4          4 bits
  had         rows rotated by block Hadamard first chan        keys' scales per channel of a tile
  sym | min   f16 scale | f16 scale and f16 minimum for each group
  g16 g32 g64 elements a group (default 32)        fit         the least squared error of a search
  konly/vonly the other one stays f16
"q8", "q4" and no more are what the engine has (docs/decisions/0008-kv-formats.md).

Needs torch, transformers and gguf. Exit codes: 0 done; 2 usage.
"""
import argparse
import math
import pathlib
import sys

import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TILE = 64
ENGINE = {"q8": "q8-sym", "q4": "q4-had-min"}


def hadamard(x):
    """The last dimension times the engine's orthonormal block Hadamard matrix."""
    dim = x.shape[-1]
    size = dim & -dim
    y = x.reshape(-1, size)
    half = 1
    while half < size:
        pairs = y.reshape(-1, size // (2 * half), 2, half)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        y = torch.stack((a + b, a - b), dim=2).reshape(-1, size)
        half *= 2
    return (y / math.sqrt(size)).reshape(x.shape)


def half(x):
    return x.half().float()


def closer(x, y, best, error):
    """Of each row, whichever of `y` and `best` (None: y) is nearer to `x`; and how far it is."""
    e = ((y - x) ** 2).sum(-1, keepdim=True)
    if best is None:
        return y, e
    return torch.where(e < error, y, best), torch.minimum(e, error)


def symmetric(x, levels, fit):
    """Groups in the last dimension; values -levels .. levels (4 bits: -8 .. 7, signed scale)."""
    low, high = (-127, 127) if levels == 127 else (-8, 7)
    at = x.abs().argmax(-1, keepdim=True)
    most = x.gather(-1, at)
    best, error = None, None
    shrinks = [1.0] if not fit else [0.80 + 0.025 * i for i in range(11)]
    for shrink in shrinks:
        scale = most.abs() / 127 if levels == 127 else -most / 8
        scale = half(scale * shrink)
        inverse = torch.where(scale == 0, 0, 1 / scale)
        y = (x * inverse).round().clamp(low, high) * scale
        best, error = closer(x, y, best, error)
    return best


def with_minimum(x, fit):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    best, error = None, None
    steps = [0.0] if not fit else [i / 64 for i in range(-2, 9)]
    for cut in steps:  # of the range, at both ends
        least = half(low + cut * (high - low))
        scale = half((high - least - cut * (high - low)).clamp(min=0) / 15)
        inverse = torch.where(scale == 0, 0, 1 / scale)
        y = ((x - least) * inverse).round().clamp(0, 15) * scale + least
        best, error = closer(x, y, best, error)
    return best


class Format:
    def __init__(self, name):
        self.words = set(ENGINE.get(name, name).split("-"))
        self.group = next((int(w[1:]) for w in self.words if w[0] == "g"), 32)

    def bits(self, keys):
        if "f16" in self.words or ("vonly" if keys else "konly") in self.words:
            return 16
        group = TILE if keys and "chan" in self.words else self.group
        return (8 if "q8" in self.words else 4) + (32 if "min" in self.words else 16) / group

    def apply(self, x, keys):
        """x [heads, tokens, head_dim], whole tiles."""
        if self.bits(keys) == 16:
            return x
        shape = x.shape
        if "had" in self.words:
            x = hadamard(x)
        if keys and "chan" in self.words:
            x = x.reshape(shape[0], -1, TILE, shape[-1]).transpose(-1, -2)
            y = self.groups(x).transpose(-1, -2)
        else:
            y = self.groups(x.reshape(*shape[:-1], -1, min(self.group, shape[-1])))
        y = y.reshape(shape)
        return hadamard(y) if "had" in self.words else y

    def groups(self, x):
        fit = "fit" in self.words
        if "min" in self.words:
            return with_minimum(x, fit)
        return symmetric(x, 127 if "q8" in self.words else 8, fit)


class Attention:
    """transformers' attention function over tiles in a format."""

    def __init__(self):
        self.format = Format("f16")

    def __call__(self, module, query, key, value, mask, scaling=None, sliding_window=None,
                 **_):
        q, k, v = query[0], half(key[0]), half(value[0])
        heads, tokens, dim = q.shape
        repeat = heads // k.shape[0]
        whole = tokens // TILE * TILE
        old_k = self.format.apply(k[:, :whole], True)
        old_v = self.format.apply(v[:, :whole], False)
        scaling = scaling or dim ** -0.5
        out = torch.empty_like(q)
        for begin in range(0, tokens, TILE):
            end = min(begin + TILE, tokens)
            first = max(0, begin - sliding_window + 1) if sliding_window else 0
            keys = torch.cat((old_k[:, first:begin], k[:, begin:end]), 1)
            values = torch.cat((old_v[:, first:begin], v[:, begin:end]), 1)
            keys, values = (x.repeat_interleave(repeat, 0) for x in (keys, values))
            scores = q[:, begin:end] @ keys.transpose(1, 2) * scaling
            at = torch.arange(begin, end)[:, None] - torch.arange(first, end)[None, :]
            hidden = at < 0
            if sliding_window:
                hidden |= at >= sliding_window
            out[:, begin:end] = scores.masked_fill(hidden, -math.inf).softmax(-1) @ values
        return out.transpose(0, 1)[None], None


def losses(model, ids):
    """Negative log-probability of each token after the first, [tokens - 1]."""
    with torch.no_grad():
        hidden = model.model(ids[None]).last_hidden_state[0]
        found = []
        for begin in range(0, len(ids) - 1, 256):
            end = min(begin + 256, len(ids) - 1)
            logits = model.lm_head(hidden[begin:end]).float()
            found.append(torch.nn.functional.cross_entropy(logits, ids[begin + 1:end + 1],
                                                           reduction="none"))
    return torch.cat(found).double()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--formats", nargs="+", default=["q8", "q4"])
    args = parser.parse_args()

    where = {"pretrained_model_name_or_path": args.model.parent, "gguf_file": args.model.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    attention = Attention()
    ALL_ATTENTION_FUNCTIONS["tiles"] = attention
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="tiles").eval()
    ids = tokenizer(args.text.read_text("utf-8"), return_tensors="pt").input_ids[0]
    ids = ids[args.skip:args.skip + args.tokens]
    if len(ids) < 2 * TILE:
        sys.exit(2)

    exact = losses(model, ids)
    print(f"{args.model.name}, {len(ids)} tokens of {args.text.name}")
    print(f"{'format':24} {'bits':>6} {'perplexity':>11} {'change %':>9} {'+-':>6}")
    print(f"{'f16':24} {16:6.2f} {exact.mean().exp():11.4f}", flush=True)
    for name in args.formats:
        attention.format = Format(name)
        bits = sum(attention.format.bits(keys) for keys in (True, False)) / 2
        change = losses(model, ids) - exact
        error = change.std() / math.sqrt(len(change))
        print(f"{name:24} {bits:6.2f} {(exact + change).mean().exp():11.4f} "
              f"{100 * math.expm1(change.mean()):9.3f} {100 * error:6.3f}", flush=True)


if __name__ == "__main__":
    main()
