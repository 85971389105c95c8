"""A slow, plain reference of the engine's forward ops (headrace/ir/train_ops.h), in torch.

It reads the JSON that headrace.compile_step gives to the engine, so that what raising makes of a
model is tested without the engine, and the engine against the same description.
"""

import math

import torch
import torch.nn.functional as F


def losses_of(forward, parameters, tokens, targets, inputs=None):
    """Mean loss of each micro-batch. parameters: name -> tensor; tokens, targets: int32 [rows], -1
    is not counted; inputs: name -> tensors of the micro-batches."""
    tensors = {}
    for p in forward["parameters"]:
        t = parameters[p["name"]].reshape(p["shape"])
        t = t.t() if p.get("transposed") else t
        tensors[p["name"]] = t.reshape(1, -1) if t.dim() == 1 else t
    for c in forward["constants"]:
        tensors[c["name"]] = torch.tensor(c["values"], dtype=torch.float32).reshape(1, -1)
    losses, token_begin, loss_begin, repetition = [], 0, 0, 0
    for micro in forward["micro_batches"]:
        for _ in range(micro.get("repeat", 1)):
            values = dict(tensors)
            for name, of_all in (inputs or {}).items():
                values[name] = of_all[repetition]
            embed_rows = sum(
                op["out"][0]["shape"][0] for op in micro["ops"] if op["op"] == "hr.embed"
            )
            rows = micro["ops"][-1]["out"][0]["shape"][0]
            mine = targets[loss_begin : loss_begin + rows]
            for op in micro["ops"]:
                out = OPS[op["op"]](
                    op,
                    [values[n] for n in op["in"]],
                    op["attrs"],
                    tokens[token_begin : token_begin + embed_rows],
                    mine,
                )
                assert list(out.shape) == op["out"][0]["shape"], (op, out.shape)
                values[op["out"][0]["name"]] = out
            losses.append(out.sum() / (mine >= 0).sum())
            token_begin, loss_begin = token_begin + embed_rows, loss_begin + rows
            repetition += 1
    return losses


def embed(op, inputs, attrs, tokens, targets):
    x = inputs[0][tokens.long()]
    if attrs.get("positions"):
        sequence = attrs["sequence"]
        x = x + inputs[1][attrs.get("first", 0) + torch.arange(len(tokens)) % sequence]
    return x


def linear(op, inputs, attrs, tokens, targets):
    n = attrs["weights"]
    x, weights, rest = inputs[0], inputs[1 : 1 + n], inputs[1 + n :]
    y = attrs["scale"] * torch.cat([x @ w.t() for w in weights], 1)
    if attrs.get("bias"):
        y, rest = y + torch.cat(rest[:n], 1), rest[n:]
    if not rest:
        return y
    begin = attrs.get("col_begin", 0)
    out = rest[0].clone()
    out[:, begin : begin + y.shape[1]] += y
    return out


def norm_of(x, act, eps):
    if act == 0:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return F.layer_norm(x, x.shape[-1:], None, None, eps)


def norm(op, inputs, attrs, tokens, targets):
    y = norm_of(inputs[0], attrs["act"], attrs["eps"]) * (inputs[1] + attrs.get("add_one", 0))
    return y + inputs[2] if len(inputs) > 2 else y


def split_heads(qkv, attrs):
    h, kv, d = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    q, k, v = qkv.split([h * d, kv * d, kv * d], 1)
    return q.reshape(-1, h, d), k.reshape(-1, kv, d), v


def qk_norm(op, inputs, attrs, tokens, targets):
    q, k, v = split_heads(inputs[0], attrs)
    q = norm_of(q, attrs["act"], attrs["eps"]) * (inputs[1] + attrs.get("add_one", 0))
    k = norm_of(k, attrs["act"], attrs["eps"]) * (inputs[2] + attrs.get("add_one", 0))
    return torch.cat([q.flatten(1), k.flatten(1), v], 1)


def rope(op, inputs, attrs, tokens, targets):
    q, k, v = split_heads(inputs[0], attrs)
    r = 2 * inputs[1].shape[1]
    positions = torch.arange(len(inputs[0])) % attrs["sequence"]
    angle = (positions[:, None] * inputs[1]).unsqueeze(1)
    cos, sin = angle.cos(), angle.sin()

    def turned(x):
        if attrs["rope_half_split"]:
            a, b = x[..., : r // 2], x[..., r // 2 : r]
            return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., r:]], -1)
        a, b = x[..., 0:r:2], x[..., 1:r:2]
        return torch.cat(
            [torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), x[..., r:]], -1
        )

    return torch.cat([turned(q).flatten(1), turned(k).flatten(1), v], 1)


def attention(op, inputs, attrs, tokens, targets):
    q, k, v = split_heads(inputs[0], attrs)
    h, kv, d, s = attrs["heads"], attrs["kv_heads"], attrs["head_dim"], attrs["sequence"]
    q = q.reshape(-1, s, h, d).transpose(1, 2)
    k = k.reshape(-1, s, kv, d).transpose(1, 2).repeat_interleave(h // kv, 1)
    v = v.reshape(-1, s, kv, d).transpose(1, 2).repeat_interleave(h // kv, 1)
    scores = attrs["scale"] * q @ k.transpose(-1, -2)
    away = torch.arange(s)[:, None] - torch.arange(s)[None, :]
    seen = torch.ones(s, s, dtype=torch.bool)
    if attrs.get("causal", 1):
        seen &= away >= 0
    if attrs.get("window", 0):
        seen &= away.abs() < attrs["window"]
    scores = scores.masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, h * d)


def patches(op, inputs, attrs, tokens, targets):
    channels, height, patch = attrs["channels"], attrs["height"], attrs["patch"]
    x = inputs[0].reshape(len(inputs[0]), channels, height, -1)
    columns = F.unfold(x, patch, stride=patch)  # [S, channels patch patch, P]
    return columns.transpose(1, 2).reshape(-1, channels * patch * patch)


def prefix(op, inputs, attrs, tokens, targets):
    n, weights = inputs[0].shape[1], inputs[1 : 1 + attrs["weights"]]
    before = sum(len(w) for w in weights)
    x = inputs[0].reshape(-1, attrs["sequence"] - before, n)
    y = torch.cat([w.expand(len(x), -1, -1) for w in weights] + [x], 1)
    if attrs.get("positions"):
        y = y + inputs[-1][: attrs["sequence"]]
    return y.reshape(-1, n)


def select(op, inputs, attrs, tokens, targets):
    x = inputs[0].reshape(-1, attrs["sequence"], inputs[0].shape[1])
    count = op["out"][0]["shape"][0] // len(x)
    return x[:, attrs["first"] : attrs["first"] + count].reshape(-1, x.shape[2])


def mean_rows(op, inputs, attrs, tokens, targets):
    x = inputs[0].reshape(-1, attrs["sequence"], inputs[0].shape[1])
    return x[:, attrs["first"] :].mean(1)


def act(op, inputs, attrs, tokens, targets):
    x, kind = inputs[0], attrs["act"]
    functions = {
        0: F.silu,
        1: lambda x: F.gelu(x, approximate="tanh"),
        6: F.gelu,
        2: lambda x: F.gelu(x, approximate="tanh"),
        3: F.gelu,
        4: F.relu,
        5: F.silu,
        7: lambda x: x * torch.sigmoid(1.702 * x),
    }
    if kind in (0, 1, 6):
        gate, up = x.chunk(2, 1)
        return functions[kind](gate) * up
    return functions[kind](x)


def loss(op, inputs, attrs, tokens, targets):
    logits = inputs[0] @ inputs[1].t()
    if attrs.get("bias"):
        logits = logits + inputs[2]
    return F.cross_entropy(
        logits,
        targets[: len(logits)].long(),
        ignore_index=-1,
        label_smoothing=attrs.get("smoothing", 0.0),
        reduction="none",
    )[:, None]


def scale(op, inputs, attrs, tokens, targets):
    y = attrs["scale"] * inputs[0]
    return y * inputs[1] if len(inputs) > 1 else y


def columns(op, inputs, attrs, tokens, targets):
    return inputs[0][:, inputs[1][0].long()]


OPS = {
    "hr.embed": embed,
    "hr.linear": linear,
    "hr.norm": norm,
    "hr.qk_norm": qk_norm,
    "hr.rope": rope,
    "hr.attention": attention,
    "hr.patches": patches,
    "hr.prefix": prefix,
    "hr.select": select,
    "hr.mean_rows": mean_rows,
    "hr.act": act,
    "hr.loss": loss,
    "hr.scale": scale,
    "hr.columns": columns,
    "hr.add": lambda op, inputs, *_: inputs[0] + inputs[1],
    "hr.dropout": lambda op, inputs, *_: inputs[0],
}
