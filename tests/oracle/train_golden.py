#!/usr/bin/env python3
"""Losses and gradients of small models in float64, for tests/train/golden_test.cc.

usage: train_golden.py FOLDER

Writes FOLDER/NAME.json and FOLDER/NAME.bin (gradients, f32, in the order of the JSON's list). Every
model is written out below in plain PyTorch, from the papers; those that transformers has too are
compared with it (1e-5, norm-wise). Parameters, tokens and targets come from a hash of their number,
which the test computes too.

Needs torch and transformers; the files in tests/data/train were made with torch 2.15 and
transformers 5.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch

F64 = torch.float64


def uniform(seed, n):
    """n numbers in [-1, 1): splitmix64 (Steele, Lea, Flood 2014) of seed * 2^32 + i."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed << 32) + np.arange(n, dtype=np.uint64)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0


def integers(seed, n, below):
    return ((uniform(seed, n) + 1) / 2 * below).astype(np.int64)


BASE = dict(family="llama", layers=2, hidden=16, heads=4, kv_heads=2, head_dim=4, ffn=24, vocab=37,
            positions=0, tied=False, bias=False, eps=1e-5, lora=0, alpha=0, sequences=4, sequence=9)
CASES = {
    "llama": {},
    "llama_tied": dict(tied=True, kv_heads=1),
    "llama_lora": dict(lora=3, alpha=6),
    "qwen2": dict(family="qwen2", tied=True, bias=True, eps=1e-6),
    "gpt2": dict(family="gpt2", kv_heads=4, ffn=64, tied=True, positions=11),
}
# Of these also the parameters after 50 steps, and how far PyTorch in float32 is from them.
LONG = ["llama", "gpt2"]
STEPS = 50
LORA_TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj"]


def shapes(c):
    """Names and [rows, cols], products as [outputs, inputs], in the order of the model."""
    h, q, kv = c["hidden"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
    out = []

    def norm(name):
        out.append((name + ".weight", 1, h))
        if c["family"] == "gpt2":
            out.append((name + ".bias", 1, h))

    def product(name, n, k, bias):
        out.append((name + ".weight", n, k))
        if bias:
            out.append((name + ".bias", 1, n))
        if c["lora"] and name.split(".")[-1] in LORA_TARGETS:
            out.append((name + ".lora_A.weight", c["lora"], k))
            out.append((name + ".lora_B.weight", n, c["lora"]))

    if c["family"] == "gpt2":
        out.append(("transformer.wte.weight", c["vocab"], h))
        out.append(("transformer.wpe.weight", c["positions"], h))
        for i in range(c["layers"]):
            at = f"transformer.h.{i}."
            norm(at + "ln_1")
            product(at + "attn.c_attn", 3 * h, h, True)
            product(at + "attn.c_proj", h, h, True)
            norm(at + "ln_2")
            product(at + "mlp.c_fc", c["ffn"], h, True)
            product(at + "mlp.c_proj", h, c["ffn"], True)
        norm("transformer.ln_f")
        return out
    out.append(("model.embed_tokens.weight", c["vocab"], h))
    for i in range(c["layers"]):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm")
        product(at + "self_attn.q_proj", q, h, c["bias"])
        product(at + "self_attn.k_proj", kv, h, c["bias"])
        product(at + "self_attn.v_proj", kv, h, c["bias"])
        product(at + "self_attn.o_proj", h, q, False)
        norm(at + "post_attention_layernorm")
        product(at + "mlp.gate_proj", c["ffn"], h, False)
        product(at + "mlp.up_proj", c["ffn"], h, False)
        product(at + "mlp.down_proj", h, c["ffn"], False)
    norm("model.norm")
    if not c["tied"]:
        out.append(("lm_head.weight", c["vocab"], h))
    return out


def parameters(c):
    """Each from its number in the list: norms 1 + 0.2 u, other vectors 0.2 u, matrices 0.3 u."""
    out = {}
    for number, (name, rows, cols) in enumerate(shapes(c)):
        u = uniform(number + 1, rows * cols)
        vector = rows == 1 and "lora" not in name
        scaled = vector and name.endswith(".weight")
        value = 1 + 0.2 * u if scaled else (0.2 if vector else 0.3) * u
        value = torch.tensor(value.astype(np.float32).astype(np.float64)).reshape(rows, cols)
        out[name] = value.squeeze(0) if vector else value
    return out


def batch(c, step):
    n = c["sequences"] * c["sequence"]
    tokens = integers(1000 + 2 * step, n, c["vocab"])
    targets = integers(1001 + 2 * step, n, c["vocab"])
    targets[::7] = -1  # not counted
    shape = (c["sequences"], c["sequence"])
    return torch.tensor(tokens).reshape(shape), torch.tensor(targets).reshape(shape)


def rms_norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def layer_norm(x, w, b, eps):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + eps) * w + b


def rotate(x, c):
    """[b, heads, t, d], pairs (i, i + d / 2)."""
    d = c["head_dim"]
    freq = torch.tensor(inv_freq(c), dtype=F64)
    angle = (torch.arange(x.shape[2], dtype=F64)[:, None] * freq).to(x.dtype)
    a, b = x[..., : d // 2], x[..., d // 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def inv_freq(c):
    d = c["head_dim"]
    return [float(np.float32(10000.0 ** (-2.0 * i / d))) for i in range(d // 2)]


def attend(q, k, v, c):
    def split(x, heads):
        return x.reshape(x.shape[0], x.shape[1], heads, c["head_dim"]).transpose(1, 2)

    q, k, v = split(q, c["heads"]), split(k, c["kv_heads"]), split(v, c["kv_heads"])
    if c["family"] != "gpt2":
        q, k = rotate(q, c), rotate(k, c)
    k = k.repeat_interleave(c["heads"] // c["kv_heads"], 1)
    v = v.repeat_interleave(c["heads"] // c["kv_heads"], 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(c["head_dim"])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    out = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def loss_of(p, c, tokens, targets):
    gpt2 = c["family"] == "gpt2"

    def product(x, name):
        y = x @ p[name + ".weight"].T
        if name + ".bias" in p:
            y = y + p[name + ".bias"]
        if name + ".lora_A.weight" in p:
            low = x @ p[name + ".lora_A.weight"].T @ p[name + ".lora_B.weight"].T
            y = y + c["alpha"] / c["lora"] * low
        return y

    def norm(x, name):
        if gpt2:
            return layer_norm(x, p[name + ".weight"], p[name + ".bias"], c["eps"])
        return rms_norm(x, p[name + ".weight"], c["eps"])

    table = p["transformer.wte.weight" if gpt2 else "model.embed_tokens.weight"]
    x = table[tokens]
    if gpt2:
        x = x + p["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["layers"]):
        if gpt2:
            at = f"transformer.h.{i}."
            qkv = product(norm(x, at + "ln_1"), at + "attn.c_attn").chunk(3, -1)
            x = x + product(attend(*qkv, c), at + "attn.c_proj")
            x = x + product(gelu(product(norm(x, at + "ln_2"), at + "mlp.c_fc")), at + "mlp.c_proj")
            continue
        at = f"model.layers.{i}."
        n = norm(x, at + "input_layernorm")
        q, k, v = (product(n, at + f"self_attn.{w}_proj") for w in "qkv")
        x = x + product(attend(q, k, v, c), at + "self_attn.o_proj")
        n = norm(x, at + "post_attention_layernorm")
        g = product(n, at + "mlp.gate_proj")
        h = g * torch.sigmoid(g) * product(n, at + "mlp.up_proj")
        x = x + product(h, at + "mlp.down_proj")
    x = norm(x, "transformer.ln_f" if gpt2 else "model.norm")
    logits = x @ (table if c["tied"] else p["lm_head.weight"]).T
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, c["vocab"]), targets.reshape(-1), ignore_index=-1)


def trained(c, p):
    return {k: v for k, v in p.items() if not c["lora"] or "lora" in k}


def gradients(c, p, step):
    for v in trained(c, p).values():
        v.requires_grad_(True)
    names = list(trained(c, p))
    loss = loss_of(p, c, *batch(c, step))
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, [p[n] for n in names])))


def train(c, steps, dtype=F64):
    """Losses and norms of AdamW steps with the global norm clipped; decay of matrices alone. Also
    the parameters at the end."""
    p = {k: v.to(dtype) for k, v in parameters(c).items()}
    groups = [
        {"params": [v for v in trained(c, p).values() if v.dim() > 1], "weight_decay": 0.1},
        {"params": [v for v in trained(c, p).values() if v.dim() == 1], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for step in range(steps):
        loss, grads = gradients(c, p, step)
        for name, g in grads.items():
            p[name].grad = g
        norms.append(torch.nn.utils.clip_grad_norm_(list(trained(c, p).values()), 0.5).item())
        optimizer.step()
        losses.append(loss)
    return losses, norms, {k: v.detach().double() for k, v in trained(c, p).items()}


def distance(a, b):
    """|a - b| / |b| of all parameters together, but for biases of keys (within c_attn): a softmax does
    not feel them, so that their gradient is rounding alone, which Adam scales up to whole steps."""
    names = [k for k in b if not k.endswith("c_attn.bias")]
    square = sum((a[k] - b[k]).pow(2).sum() for k in names)
    return math.sqrt(square / sum(b[k].pow(2).sum() for k in names))


def compare_with_transformers(name, c, grads, loss):
    import transformers

    size = dict(vocab_size=c["vocab"], hidden_size=c["hidden"], tie_word_embeddings=c["tied"])
    if c["family"] == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=c["vocab"], n_embd=c["hidden"], n_layer=c["layers"], n_head=c["heads"],
            n_inner=c["ffn"], n_positions=c["positions"], layer_norm_epsilon=c["eps"],
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        model = transformers.GPT2LMHeadModel(config)
    else:
        kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[c["family"]]
        config = kind(
            **size, intermediate_size=c["ffn"], num_hidden_layers=c["layers"],
            num_attention_heads=c["heads"], num_key_value_heads=c["kv_heads"],
            rms_norm_eps=c["eps"], max_position_embeddings=64)
        model = transformers.AutoModelForCausalLM.from_config(config)
    model = model.double()
    p = parameters(c)
    conv1d = [".c_attn.weight", ".c_proj.weight", ".c_fc.weight"]
    turned = {n: any(n.endswith(e) for e in conv1d) for n in p}
    with torch.no_grad():
        for n, v in model.named_parameters():
            v.copy_(p[n].T if turned[n] else p[n])
    tokens, targets = batch(c, 0)
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    theirs = torch.nn.functional.cross_entropy(
        logits.reshape(-1, c["vocab"]).double(), targets.reshape(-1), ignore_index=-1)
    theirs.backward()
    assert abs(theirs.item() - loss) < 1e-6 * loss, (name, theirs.item(), loss)
    for n, v in model.named_parameters():
        g = v.grad.T if turned[n] else v.grad
        error = (g - grads[n]).norm() / grads[n].norm()
        assert error < 1e-5, (name, n, error)


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, changes in CASES.items():
        c = {**BASE, **changes}
        loss, grads = gradients(c, parameters(c), 0)
        if not c["lora"]:
            compare_with_transformers(name, c, grads, loss)
        losses, norms, _ = train(c, 4)
        flat = np.concatenate([g.numpy().reshape(-1) for g in grads.values()])
        (folder / f"{name}.bin").write_bytes(flat.astype("<f4").tobytes())
        extra = {}
        if name in LONG:
            end = train(c, STEPS)[2]
            extra["float32_distance"] = distance(train(c, STEPS, torch.float32)[2], end)
            flat = np.concatenate([v.numpy().reshape(-1) for v in end.values()])
            (folder / f"{name}_end.bin").write_bytes(flat.astype("<f4").tobytes())
        text = json.dumps({**c, **extra, "inv_freq": inv_freq(c), "losses": losses, "norms": norms,
                           "gradients": list(grads)}, indent=1)
        (folder / f"{name}.json").write_text(text + "\n")
        print(name, loss, flat.size, "floats", losses)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
