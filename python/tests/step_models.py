"""Small models as people write them, for the tests of the step door."""

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, HEADS, LENGTH = 96, 32, 4, 16


class NanoAttention(nn.Module):
    """nanoGPT's: one product for q, k and v; softmax written out under a triangle."""

    def __init__(self, fused, bias=True, p=0.0):
        super().__init__()
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(WIDTH, WIDTH, bias=bias)
        self.drop = nn.Dropout(p)
        self.fused = fused
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(c, dim=2)
        k = k.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        q = q.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        v = v.view(b, t, HEADS, c // HEADS).transpose(1, 2)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = F.softmax(att, dim=-1) @ v
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        return self.drop(self.c_proj(y))


class NanoBlock(nn.Module):
    def __init__(self, fused, bias, p, gelu):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=bias), nn.LayerNorm(WIDTH, bias=bias)
        self.attn = NanoAttention(fused, bias, p)
        self.c_fc = nn.Linear(WIDTH, 4 * WIDTH, bias=bias)
        self.c_proj = nn.Linear(4 * WIDTH, WIDTH, bias=bias)
        self.gelu, self.drop = gelu, nn.Dropout(p)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.drop(self.c_proj(self.gelu(self.c_fc(self.ln_2(x)))))


def new_gelu(x):
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


class NanoGPT(nn.Module):
    def __init__(self, fused=True, bias=True, p=0.0, gelu=new_gelu, tied=True, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.drop = nn.Dropout(p)
        self.h = nn.ModuleList(NanoBlock(fused, bias, p, gelu) for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH, bias=bias)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(pos))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim) + 0.1 * torch.randn(dim))

    def forward(self, x):
        normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.type_as(x) * self.weight


def rotate_real(q, k, cos, sin):
    """llama2.c's: neighbours, cos and sin apart."""

    def turn(x):
        a, b = x.float().reshape(x.shape[:-1] + (-1, 2)).unbind(-1)
        c, s = cos.view(1, cos.shape[0], 1, -1), sin.view(1, cos.shape[0], 1, -1)
        return torch.stack([a * c - b * s, a * s + b * c], dim=-1).flatten(3).type_as(x)

    return turn(q), turn(k)


def rotate_complex(q, k, cos, sin):
    """Meta's: neighbours as complex numbers."""
    table = torch.complex(cos, sin).view(1, cos.shape[0], 1, -1)

    def turn(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * table).flatten(3).type_as(x)

    return turn(q), turn(k)


def rotate_halves(q, k, cos, sin):
    def turn(x):
        a, b = x.chunk(2, dim=-1)
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)

    return turn(q), turn(k)


def rotate_backwards(q, k, cos, sin):
    """By minus the angle, as nanochat has it."""

    def turn(x):
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return torch.cat([a * c + b * s, a * (-s) + b * c], 3)

    return turn(q), turn(k)


def repeat_kv(x, n):
    b, t, h, d = x.shape
    return x[:, :, :, None, :].expand(b, t, h, n, d).reshape(b, t, h * n, d)


class Llama2c(nn.Module):
    """karpathy's llama2.c in small."""

    def __init__(self, rotate=rotate_real, kv=2, additive=False, layers=2):
        super().__init__()
        d = WIDTH // HEADS
        self.rotate, self.kv, self.additive = rotate, kv, additive
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "wq": nn.Linear(WIDTH, WIDTH, bias=False),
                    "wk": nn.Linear(WIDTH, kv * d, bias=False),
                    "wv": nn.Linear(WIDTH, kv * d, bias=False),
                    "wo": nn.Linear(WIDTH, WIDTH, bias=False),
                    "w1": nn.Linear(WIDTH, 88, bias=False),
                    "w2": nn.Linear(88, WIDTH, bias=False),
                    "w3": nn.Linear(WIDTH, 88, bias=False),
                    "n1": RMSNorm(WIDTH),
                    "n2": RMSNorm(WIDTH),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.output = RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        angles = torch.outer(torch.arange(64.0), 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        mask = torch.triu(torch.full((1, 1, 64, 64), float("-inf")), diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens, targets):
        b, t = tokens.shape
        h = self.tok(tokens)
        cos, sin = self.cos[:t], self.sin[:t]
        for layer in self.layers:
            x = layer["n1"](h)
            q = layer["wq"](x).view(b, t, HEADS, -1)
            k, v = layer["wk"](x).view(b, t, self.kv, -1), layer["wv"](x).view(b, t, self.kv, -1)
            q, k = self.rotate(q, k, cos, sin)
            k, v = repeat_kv(k, HEADS // self.kv), repeat_kv(v, HEADS // self.kv)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if self.additive:
                scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS)
                scores = F.softmax((scores + self.mask[:, :, :t, :t]).float(), dim=-1).type_as(q)
                o = torch.matmul(scores, v)
            else:
                o = F.scaled_dot_product_attention(q, k, v, attn_mask=None, is_causal=True)
            h = h + layer["wo"](o.transpose(1, 2).contiguous().view(b, t, -1))
            x = layer["n2"](h)
            h = h + layer["w2"](F.silu(layer["w1"](x)) * layer["w3"](x))
        logits = self.output(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class Lora(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        base.weight.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)
        nn.init.normal_(self.lora_B.weight, std=0.02)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x)) * self.scale


def with_lora(model, names=("wq", "wv", "w2")):
    for p in model.parameters():
        p.requires_grad_(False)
    for layer in model.layers:
        for name in names:
            layer[name] = Lora(layer[name])
    return model


def shifted_loss(logits, tokens):
    """The form of older transformers: both are cut."""
    logits, labels = logits[..., :-1, :].contiguous(), tokens[..., 1:].contiguous()
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))


def batch(rows=2, length=LENGTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, VOCAB, (rows, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


# name -> model of (tokens, targets) -> loss
OWN = {
    "nano": NanoGPT,
    "nano softmax written out": lambda: NanoGPT(fused=False),
    "nano without biases": lambda: NanoGPT(bias=False, tied=False),
    "nano gelu": lambda: NanoGPT(gelu=nn.GELU()),
    "nano gelu tanh": lambda: NanoGPT(gelu=nn.GELU(approximate="tanh")),
    "nano relu": lambda: NanoGPT(gelu=nn.ReLU()),
    "llama2.c": Llama2c,
    "llama2.c complex": lambda: Llama2c(rotate_complex),
    "llama2.c halves": lambda: Llama2c(rotate_halves, kv=4),
    "llama2.c backwards": lambda: Llama2c(rotate_backwards, kv=1),
    "llama2.c softmax written out": lambda: Llama2c(additive=True),
    "llama2.c lora": lambda: with_lora(Llama2c()),
}


def huggingface(name, **more):
    """A small one of transformers, by the class' first part; dropout of attention is off."""
    import transformers

    config = dict(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=None,
    )
    if name == "GPT2":
        config = dict(
            vocab_size=VOCAB,
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            n_positions=64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    elif name == "OPT":
        del config["intermediate_size"]
        config |= dict(
            ffn_dim=64,
            attention_dropout=0.0,
            dropout=0.0,
            word_embed_proj_dim=WIDTH,
            pad_token_id=0,
        )
    elif name == "Falcon":
        config |= dict(new_decoder_architecture=True, num_kv_heads=2)
    elif name in ("Llama", "Qwen2", "Qwen3", "Mistral", "Phi3", "Gemma", "Granite"):
        config["num_key_value_heads"] = 2
    head = "GPT2LMHeadModel" if name == "GPT2" else name + "ForCausalLM"
    settings = getattr(transformers, name + "Config")(**(config | more))
    return getattr(transformers, head)(settings)


# name -> model of transformers
HUGGINGFACE = {
    "Llama": lambda: huggingface("Llama"),
    "Llama eager attention": lambda: huggingface("Llama", attn_implementation="eager"),
    "Llama tied": lambda: huggingface("Llama", tie_word_embeddings=True),
    "Qwen2": lambda: huggingface("Qwen2"),
    "Qwen3": lambda: huggingface("Qwen3", head_dim=8),
    "Mistral": lambda: huggingface("Mistral", sliding_window=6),
    "Phi3": lambda: huggingface("Phi3", tie_word_embeddings=False),
    "Gemma": lambda: huggingface("Gemma", head_dim=8),
    "Granite": lambda: huggingface(
        "Granite",
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        logits_scaling=1.0,
        attention_multiplier=0.2,
    ),
    "GPTNeoX": lambda: huggingface("GPTNeoX"),
    "OPT": lambda: huggingface("OPT"),
    "Falcon": lambda: huggingface("Falcon"),
    "Olmo": lambda: huggingface("Olmo"),
    "GPT2": lambda: huggingface("GPT2"),
    "GPT2 eager attention": lambda: huggingface("GPT2", attn_implementation="eager"),
}


class Vit(nn.Module):
    """A vision transformer as torchvision writes it (Dosovitskiy et al., arXiv 2010.11929)."""

    def __init__(self, pool="class", layers=2, classes=10, image=16, patch=4):
        super().__init__()
        self.pool = pool
        self.conv_proj = nn.Conv2d(3, WIDTH, patch, stride=patch)
        squares = (image // patch) ** 2
        self.class_token = (
            nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02) if pool == "class" else None
        )
        rows = squares + (1 if pool == "class" else 0)
        self.pos_embedding = nn.Parameter(torch.randn(1, rows, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln_1": nn.LayerNorm(WIDTH),
                    "ln_2": nn.LayerNorm(WIDTH),
                    "attention": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
                    "mlp": nn.Sequential(
                        nn.Linear(WIDTH, 64),
                        nn.GELU(),
                        nn.Dropout(0.0),
                        nn.Linear(64, WIDTH),
                        nn.Dropout(0.0),
                    ),
                }
            )
            for _ in range(layers)
        )
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images, labels):
        n = images.shape[0]
        x = self.conv_proj(images)
        x = x.reshape(n, WIDTH, -1).permute(0, 2, 1)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = x + self.pos_embedding
        for block in self.blocks:
            y = block["ln_1"](x)
            y, _ = block["attention"](y, y, y, need_weights=False)
            x = x + y
            x = x + block["mlp"](block["ln_2"](x))
        x = self.ln(x)
        x = x[:, 0] if self.pool == "class" else x.mean(dim=1)
        return F.cross_entropy(self.head(x), labels)


def image_batch(rows=3, seed=0, image=16, classes=10):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(rows, 3, image, image, generator=generator),
        torch.randint(0, classes, (rows,), generator=generator),
    )


def huggingface_vit():
    import transformers

    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
            num_labels=10,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
