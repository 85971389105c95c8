#!/usr/bin/env python3
"""Writes a GGUF model of true shape with random weights, for measuring.

usage: bench/make_model.py OUT.gguf --shape SHAPE --mix MIX [--seed N] [--layers N]

SHAPE  qwen2-1.5b   28 layers, 1536 wide, tied head, 151,936 tokens
       qwen3-4b     36 layers, 2560 wide, tied head, 151,936 tokens
       llama-4.5b   24 layers, 4096 wide, own head, 32,000 tokens (4.8 GB in q8_0)
       llama-8b     32 layers, 4096 wide, own head, 128,256 tokens
       llama-tiny   4 layers, 256 wide, own head, 2,048 tokens (for trying things)
MIX    q8_0         every matrix
       q4_k_m       q4_k, with q6_k for the head and for value and down projections
                    of some layers, as the usual file of that name has them
       f16, bf16    every matrix

The same arguments give the same bytes. The file is streamed: memory stays under
200 MB whatever the size. Weights have deviation 1/sqrt(columns), so activations keep
the scale of one; text that comes out means nothing, and speed, bytes and memory are
those of a real model of that shape. The tokenizer is a byte-level BPE of the full
size, made up of the bytes and then of letter strings in alphabetical order.

Needs numpy.
"""
import argparse
import sys

import numpy as np

import gguf_file
from gguf_file import I, U, Bits, random_blocks

PIECE_BYTES = 8 << 20

SHAPES = {
    "qwen2-1.5b": dict(arch="qwen2", layers=28, embd=1536, ff=8960, heads=12, kv=2,
                       head=128, vocab=151936, tied=True, rope=1e6, eps=1e-6,
                       context=32768, pre="qwen2"),
    "qwen3-4b": dict(arch="qwen3", layers=36, embd=2560, ff=9728, heads=32, kv=8,
                     head=128, vocab=151936, tied=True, rope=1e6, eps=1e-6,
                     context=40960, pre="qwen2"),
    "llama-4.5b": dict(arch="llama", layers=24, embd=4096, ff=11008, heads=32, kv=8,
                       head=128, vocab=32000, tied=False, rope=1e4, eps=1e-5,
                       context=4096, pre="llama-bpe"),
    "llama-8b": dict(arch="llama", layers=32, embd=4096, ff=14336, heads=32, kv=8,
                     head=128, vocab=128256, tied=False, rope=5e5, eps=1e-5,
                     context=8192, pre="llama-bpe"),
    "llama-tiny": dict(arch="llama", layers=4, embd=256, ff=768, heads=4, kv=2,
                       head=64, vocab=2048, tied=False, rope=1e4, eps=1e-5,
                       context=2048, pre="llama-bpe"),
}

# general.file_type of each mix: a label only.
FILE_TYPES = {"q8_0": 7, "q4_k_m": 15, "f16": 1, "bf16": 32}


def byte_letters():
    """The printable letter GPT-2's byte-level BPE gives to each of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {}, 256
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(spare)
            spare += 1
    return [letters[byte] for byte in range(256)]


SPECIAL = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]


def tokenizer(vocab):
    """A byte-level BPE of exactly `vocab` tokens: (tokens, types, merges).

    256 bytes; then strings of letters, each one letter longer than an earlier one, so
    that each is one merge ("ab" + "c"); then four special tokens at the end.
    """
    if vocab < 256 + len(SPECIAL):
        raise ValueError(f"vocabulary of {vocab}: fewer than the bytes need")
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    tokens, merges = byte_letters(), []
    wanted = vocab - len(SPECIAL)
    stems = ["Ġ"] + list(alphabet)
    while len(tokens) < wanted:
        longer = []
        for stem in stems:
            for letter in alphabet:
                if len(tokens) == wanted:
                    break
                tokens.append(stem + letter)
                merges.append(f"{stem} {letter}")
                longer.append(stem + letter)
        stems = longer
    types = [I(1)] * wanted + [I(3)] * len(SPECIAL)
    return tokens + SPECIAL, types, merges


def key_values(name, shape, mix):
    """The key-value pairs of the file."""
    arch, vocab = shape["arch"], shape["vocab"]
    tokens, types, merges = tokenizer(vocab)
    return {
        "general.architecture": arch,
        "general.name": f"{name} {mix}, random weights",
        "general.file_type": U(FILE_TYPES[mix]),
        f"{arch}.context_length": U(shape["context"]),
        f"{arch}.embedding_length": U(shape["embd"]),
        f"{arch}.block_count": U(shape["layers"]),
        f"{arch}.feed_forward_length": U(shape["ff"]),
        f"{arch}.attention.head_count": U(shape["heads"]),
        f"{arch}.attention.head_count_kv": U(shape["kv"]),
        f"{arch}.attention.key_length": U(shape["head"]),
        f"{arch}.attention.value_length": U(shape["head"]),
        f"{arch}.attention.layer_norm_rms_epsilon": float(shape["eps"]),
        f"{arch}.rope.dimension_count": U(shape["head"]),
        f"{arch}.rope.freq_base": float(shape["rope"]),
        f"{arch}.vocab_size": U(vocab),
        "general.quantization_version": U(2),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": shape["pre"],
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": U(vocab - 4),
        "tokenizer.ggml.eos_token_id": U(vocab - 3),
        "tokenizer.ggml.padding_token_id": U(vocab - 3),
        "tokenizer.ggml.add_bos_token": False,
    }


def more_bits(layer, layers):
    """Whether q4_k_m gives this layer's value and down projections q6_k: the first
    and last eighth of the layers, and every third between them."""
    eighth = layers // 8
    return (layer < eighth or layer >= 7 * layers // 8
            or (layer - eighth) % 3 == 2)


def matrix_kind(mix, role, layer, shape):
    if mix != "q4_k_m":
        return mix
    if role == "head" or (role == "embedding" and shape["tied"]):
        return "q6_k"
    if role in ("v", "down") and more_bits(layer, shape["layers"]):
        return "q6_k"
    return "q4_k"


def tensor_list(shape, mix):
    """[(name, kind, [rows, cols] or [n], deviation)] in file order; deviation 0 means
    a norm (values near one)."""
    embd, ff, head, arch = shape["embd"], shape["ff"], shape["head"], shape["arch"]
    q_rows, kv_rows = shape["heads"] * head, shape["kv"] * head
    out = []

    def matrix(name, role, rows, cols, layer=0):
        kind = matrix_kind(mix, role, layer, shape)
        out.append((name, kind, [rows, cols], cols ** -0.5))

    matrix("token_embd.weight", "embedding", shape["vocab"], embd)
    out.append(("output_norm.weight", "f32", [embd], 0))
    if not shape["tied"]:
        matrix("output.weight", "head", shape["vocab"], embd)
    for i in range(shape["layers"]):
        p = f"blk.{i}."
        out.append((p + "attn_norm.weight", "f32", [embd], 0))
        for role, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            matrix(f"{p}attn_{role}.weight", role, rows, embd, i)
            if arch == "qwen2":
                out.append((f"{p}attn_{role}.bias", "f32", [rows], 0.1))
        if arch == "qwen3":
            out.append((p + "attn_q_norm.weight", "f32", [head], 0))
            out.append((p + "attn_k_norm.weight", "f32", [head], 0))
        matrix(p + "attn_output.weight", "o", embd, q_rows, i)
        out.append((p + "ffn_norm.weight", "f32", [embd], 0))
        matrix(p + "ffn_gate.weight", "gate", ff, embd, i)
        matrix(p + "ffn_up.weight", "up", ff, embd, i)
        matrix(p + "ffn_down.weight", "down", embd, ff, i)
    return out


def pieces_of(kind, shape, deviation, seed, index):
    """A function that yields the tensor's bytes, PIECE_BYTES at a time."""
    _, weights, size = gguf_file.TYPES[kind]
    total = int(np.prod(shape, dtype=np.int64)) // weights
    step = max(1, PIECE_BYTES // size)

    def run():
        bits = Bits(seed, index)
        for begin in range(0, total, step):
            count = min(step, total - begin)
            if deviation:
                yield random_blocks(kind, count, deviation, bits)
            else:
                yield (1 + np.float32(0.2) * bits.uniform(count)).view(np.uint8)

    return run


def main():
    parser = argparse.ArgumentParser(
        description="Writes a GGUF model of true shape with random weights.")
    parser.add_argument("out")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--mix", choices=FILE_TYPES, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    arguments = parser.parse_args()
    shape = dict(SHAPES[arguments.shape])
    if arguments.layers:
        shape["layers"] = arguments.layers
    tensors = [
        (name, kind, dims, pieces_of(kind, dims, deviation, arguments.seed, index))
        for index, (name, kind, dims, deviation)
        in enumerate(tensor_list(shape, arguments.mix))
    ]
    gguf_file.write(arguments.out, key_values(arguments.shape, shape, arguments.mix),
                    tensors)
    total = sum(gguf_file.tensor_bytes(kind, dims) for _, kind, dims, _ in tensors)
    print(f"{arguments.out}: {len(tensors)} tensors, {total} bytes of weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
