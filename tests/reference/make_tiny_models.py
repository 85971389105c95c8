#!/usr/bin/env python3
"""Writes the tiny random models of tests/data/models/, one a family or feature.

usage: tests/reference/make_tiny_models.py [NAME ...]

For each model: a Hugging Face folder tests/data/models/NAME/ (config.json, weights in
safetensors, tokenizer.json) and, where GGUF can express it, the same weights as
tests/data/models/NAME.gguf (matrices f16 or bf16, the rest f32). All weights are
values that f16 (or bf16, for the bf16 folder) holds exactly, so both forms are the
same model. Then run transformers_logits.py for the expected logits.

Two things differ between the forms by convention, and these pairs test them: llama
GGUFs hold the rows of Q and K in interleaved order, Gemma GGUFs hold 1 + w where the
folder holds the norm weight w.

Needs numpy. Same bytes on every run.
"""
import json
import math
import pathlib
import struct
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import gguf_file  # noqa: E402
import make_model  # noqa: E402
from gguf_file import Bits, U  # noqa: E402

OUT = ROOT / "tests" / "data" / "models"
VOCAB = 512
# Window of the models that have one: shorter than the 40 tokens of the test input.
WINDOW = 8

# Fields: arch (GGUF), type and cls (config.json), sizes, store (type in safetensors),
# shards, config (further keys of config.json), gguf (further GGUF keys; None: the
# format has no way to say it, no twin).
LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    # llama3 rope factors, own head, head_dim not hidden / heads.
    "llama": dict(
        arch="llama", type="llama", cls="LlamaForCausalLM", hidden=64, ff=96, layers=2,
        heads=4, kv=2, head=32, tied=False, store="f32", theta=1e4, eps=1e-5,
        config={"rope_theta": 10000.0, "rope_scaling": LLAMA3_SCALING},
        gguf={}),
    # Linear factor said the way newer folders do (rope_parameters), tied head, no
    # head_dim key.
    "llama_linear": dict(
        arch="llama", type="llama", cls="LlamaForCausalLM", hidden=64, ff=96, layers=2,
        heads=2, kv=1, head=32, tied=True, store="f16", theta=1e4, eps=1e-5,
        implicit_head=True,
        config={"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear",
                                    "factor": 4.0}},
        gguf={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    # Sliding window in every layer, stored as f16. llama.cpp has no such architecture.
    "mistral": dict(
        arch="llama", type="mistral", cls="MistralForCausalLM", hidden=64, ff=96,
        layers=2, heads=4, kv=2, head=32, tied=False, store="f16", theta=1e4, eps=1e-5,
        config={"rope_theta": 10000.0, "sliding_window": WINDOW}, gguf=None),
    # Biases on Q, K and V; tied head.
    "qwen2": dict(
        arch="qwen2", type="qwen2", cls="Qwen2ForCausalLM", hidden=64, ff=96, layers=2,
        heads=4, kv=2, head=16, tied=True, store="f32", theta=1e6, eps=1e-6,
        implicit_head=True,
        config={"rope_theta": 1000000.0, "use_sliding_window": False,
                "sliding_window": 4096, "max_window_layers": 2}, gguf={}),
    # Norms on Q and K, two shards with an index.
    "qwen3": dict(
        arch="qwen3", type="qwen3", cls="Qwen3ForCausalLM", hidden=64, ff=96, layers=2,
        heads=4, kv=2, head=32, tied=True, store="f32", theta=1e6, eps=1e-6, shards=2,
        config={"rope_theta": 1000000.0, "attention_bias": False}, gguf={}),
    "qwen3_yarn": dict(
        arch="qwen3", type="qwen3", cls="Qwen3ForCausalLM", hidden=64, ff=96, layers=2,
        heads=4, kv=2, head=32, tied=True, store="f16", theta=1e4, eps=1e-6,
        config={"rope_theta": 10000.0, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 256}},
        gguf={"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
              "rope.scaling.original_context_length": U(256)}),
    # Layer 5 (from 0) is the only global one: two rope bases, window, bf16.
    "gemma3": dict(
        arch="gemma3", type="gemma3_text", cls="Gemma3ForCausalLM", hidden=64, ff=96,
        layers=7, heads=2, kv=1, head=32, tied=True, store="bf16", theta=1e6, eps=1e-6,
        config={"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                "sliding_window": WINDOW, "sliding_window_pattern": 6,
                "query_pre_attn_scalar": 32, "rope_scaling": None,
                "attn_logit_softcapping": None, "final_logit_softcapping": None},
        gguf={"attention.sliding_window": U(WINDOW)}),
    # Layers named one by one, linear factor on the global layers only, a query scale
    # that is not head_dim, capped logits.
    "gemma3_caps": dict(
        arch="gemma3", type="gemma3_text", cls="Gemma3ForCausalLM", hidden=64, ff=96,
        layers=3, heads=2, kv=1, head=32, tied=True, store="f32", theta=1e6, eps=1e-6,
        config={"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                "sliding_window": WINDOW, "query_pre_attn_scalar": 20,
                "layer_types": ["sliding_attention", "full_attention",
                                "sliding_attention"],
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "attn_logit_softcapping": None, "final_logit_softcapping": 4.0},
        gguf=None),
}


def rounded(values, store):
    """The nearest values that the stored type holds (f16 for an f32 folder)."""
    if store != "bf16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def weights_of(name, m):
    """{Hugging Face tensor name: f32 array}, in file order."""
    hidden, ff = m["hidden"], m["ff"]
    q_rows, kv_rows = m["heads"] * m["head"], m["kv"] * m["head"]
    gemma = m["arch"] == "gemma3"
    out = {}

    def add(tensor, shape, deviation, mean=0.0):
        bits = Bits(2024, list(MODELS).index(name), len(out))
        count = int(np.prod(shape))
        values = mean + bits.uniform(count) * np.float32(deviation * 3 ** 0.5)
        out[tensor] = rounded(values, m["store"]).reshape(shape)

    def norm(tensor, size):
        add(tensor, [size], 0.2, 0.0 if gemma else 1.0)

    def matrix(tensor, rows, cols, scale=1.0):
        add(tensor, [rows, cols], scale * cols ** -0.5)

    add("model.embed_tokens.weight", [VOCAB, hidden], 0.125 if gemma else 0.6)
    for i in range(m["layers"]):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        norm(p + "input_layernorm.weight", hidden)
        # 0.8: scores of deviation 0.6: positions and masks matter, and rounding the
        # cache to f16 moves the logits by 2e-4 to 7e-4 of the largest, not by more.
        for role, rows, scale in (("q", q_rows, 0.8), ("k", kv_rows, 0.8),
                                  ("v", kv_rows, 1.0)):
            matrix(f"{a}{role}_proj.weight", rows, hidden, scale)
            if m["arch"] == "qwen2":
                add(f"{a}{role}_proj.bias", [rows], 0.3)
        if m["arch"] in ("qwen3", "gemma3"):
            for role in "qk":
                add(f"{a}{role}_norm.weight", [m["head"]], 0.2, -0.2 if gemma else 0.8)
        matrix(a + "o_proj.weight", hidden, q_rows)
        norm(p + "post_attention_layernorm.weight", hidden)
        if gemma:
            norm(p + "pre_feedforward_layernorm.weight", hidden)
        for role in ("gate", "up"):
            matrix(f"{p}mlp.{role}_proj.weight", ff, hidden)
        matrix(p + "mlp.down_proj.weight", hidden, ff)
        if gemma:
            norm(p + "post_feedforward_layernorm.weight", hidden)
    norm("model.norm.weight", hidden)
    if not m["tied"]:
        matrix("lm_head.weight", VOCAB, hidden, 3.0)
    return out


def raw(values, kind):
    """The array's bytes in type `kind` (exact: see rounded)."""
    if kind == "f32":
        return values.astype("<f4").tobytes()
    if kind == "f16":
        return values.astype("<f2").tobytes()
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, store):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        size = len(raw(values, store))
        header[name] = {"dtype": store.upper(), "shape": list(values.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            out.write(raw(values, store))


def config_of(m):
    config = {
        "architectures": [m["cls"]], "model_type": m["type"],
        "hidden_size": m["hidden"], "intermediate_size": m["ff"],
        "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"],
        "num_key_value_heads": m["kv"], "head_dim": m["head"],
        "rms_norm_eps": m["eps"], "max_position_embeddings": 1024,
        "vocab_size": VOCAB, "tie_word_embeddings": m["tied"],
        "bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3, "pad_token_id": None,
        "torch_dtype": {"f32": "float32", "f16": "float16",
                        "bf16": "bfloat16"}[m["store"]],
    }
    if m["arch"] == "gemma3":
        config["hidden_activation"] = "gelu_pytorch_tanh"
    else:
        config["hidden_act"] = "silu"
    if m.get("implicit_head"):
        del config["head_dim"]
    config.update(m["config"])
    return config


def tokenizer_json():
    """The made-up byte-level BPE of bench/make_model.py as tokenizer.json."""
    tokens, types, merges = make_model.tokenizer(VOCAB)
    special = [i for i, kind in enumerate(types) if kind == 3]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for i in special],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens) if i not in special},
                  "merges": [m.split(" ") for m in merges]},
    }


def write_folder(name, m, tensors):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(m), indent=1) + "\n")
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(), ensure_ascii=False, separators=(",", ":")) + "\n")
    shards = m.get("shards", 1)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, m["store"])
        return
    names = list(tensors)
    cut = [round(i * len(names) / shards) for i in range(shards + 1)]
    index, total = {}, 0
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: tensors[n] for n in names[cut[s]:cut[s + 1]]}
        write_safetensors(folder / file, part, m["store"])
        index.update({n: file for n in part})
        total += sum(len(raw(v, m["store"])) for v in part.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": index}, indent=1) + "\n")


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm",
               "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(m, name):
    names = dict(GGUF_NAMES)
    if m["arch"] == "gemma3":
        names.update(GEMMA_NAMES)
    stem, _, ending = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{ending}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{names[rest]}.{ending}"


def interleave(values, heads):
    """Q or K rows from [half, half] order within each head to (0, half, 1, half + 1,
    ...), the order of llama GGUFs. [rows, cols]."""
    rows = values.shape[0]
    split = values.reshape(heads, 2, rows // heads // 2, -1)
    return split.swapaxes(1, 2).reshape(values.shape)


def rope_factors(m):
    """The factor llama3 scaling divides each frequency by, [head / 2] f32: none below
    a wavelength, `factor` above another, a blend between (Llama 3.1's own rule)."""
    s = m["config"]["rope_scaling"]
    old = s["original_max_position_embeddings"]
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    out = []
    for i in range(m["head"] // 2):
        wave = 2 * math.pi * m["theta"] ** (2 * i / m["head"])
        if wave < old / high:
            out.append(1.0)
        elif wave > old / low:
            out.append(s["factor"])
        else:
            blend = (old / wave - low) / (high - low)
            out.append(1 / ((1 - blend) / s["factor"] + blend))
    return np.array(out, dtype=np.float32)


def write_gguf(name, m, tensors):
    shape = dict(arch=m["arch"], layers=m["layers"], embd=m["hidden"], ff=m["ff"],
                 heads=m["heads"], kv=m["kv"], head=m["head"], vocab=VOCAB,
                 rope=m["theta"], eps=m["eps"], context=1024, pre="gpt-2")
    pairs = make_model.key_values(f"tiny {name}", shape, "f16")
    pairs.update({f"{m['arch']}.{k}": v for k, v in m["gguf"].items()})
    matrices = "bf16" if m["store"] == "bf16" else "f16"
    entries = []

    def add(tensor, values, kind):
        data = raw(values, kind)
        entries.append((tensor, kind, list(values.shape), lambda: iter([data])))

    for hf_name, values in tensors.items():
        if m["arch"] == "llama" and ".q_proj." in hf_name:
            values = interleave(values, m["heads"])
        elif m["arch"] == "llama" and ".k_proj." in hf_name:
            values = interleave(values, m["kv"])
        elif m["arch"] == "gemma3" and "norm" in hf_name:
            values = values + np.float32(1)
        add(gguf_name(m, hf_name), values, matrices if values.ndim == 2 else "f32")
    if (m["config"].get("rope_scaling") or {}).get("rope_type") == "llama3":
        add("rope_freqs.weight", rope_factors(m), "f32")
    gguf_file.write(OUT / f"{name}.gguf", pairs, entries)


def main():
    for name in sys.argv[1:] or MODELS:
        m = MODELS[name]
        tensors = weights_of(name, m)
        write_folder(name, m, tensors)
        if m["gguf"] is not None:
            write_gguf(name, m, tensors)
        size = sum(f.stat().st_size for f in (OUT / name).iterdir())
        print(f"{name}: {size} bytes in the folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
