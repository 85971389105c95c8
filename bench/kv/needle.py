#!/usr/bin/env python3
"""A model that finds needles, by construction, and prompts for it.

usage: bench/kv/needle.py model FOLDER
       bench/kv/needle.py check HEADRACE FOLDER [--positions N,N] [--prompts N] [-- RUN OPTIONS]

`model` writes a llama of two layers (Hugging Face folder, f16, 32K positions) whose weights are
set by hand. Every token is a word of two letters: 256 needles (key i with value j), 16 questions
(key i), 16 answers (value j); the rest is hay. After the question of key i the likeliest token is
the answer j whose needle (i, j) was anywhere before. Each of the two layers and two heads brings
one of the four bits of j, so an answer is right only if every layer and head saw the needle's
block: one in sixteen by guessing. Hay has random keys that score at most 0.3 of a needle's, so a
summary of a block has something to be misled by.

Keys lie in the channels that the rotary embedding turns least (base 1e12: by 3e-5 rad over 32K),
so a needle scores 40 wherever it is, hay at most 12, and e^40 outweighs 32,768 e^12 by 2e7.

`check` asks for needles at seeded depths and says how many answers are right. Options after "--"
go to `headrace run` (--memory, --kv q8, --kv-sparse 4096). Prompts are read exactly and only decode
steps select, so with --kv-sparse the question has to be a step of its own: --positions 1 + a
multiple of the chunk (512), e.g. 4097,32257. Exit codes: 0 all right, 1 not, 2 usage.
Needs numpy.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import make_model  # noqa: E402

HIDDEN, HEAD, HEADS, LAYERS, FF, VOCAB = 128, 64, 2, 2, 64, 1638
KEYS = 16
WORDS = [" " + a + b for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz"]
NEEDLES, QUESTIONS, ANSWERS, HAY = WORDS[:256], WORDS[256:272], WORDS[272:288], WORDS[288:]
SLOW = [*range(24, 32), *range(56, 64)]  # both halves of the slowest pairs
QUESTION, BIT, FOUND, REST = 16, 32, 48, 64  # where these begin in the hidden state; keys at 0
NORM = (HIDDEN / 6) ** 0.5  # what RMSNorm makes of a 1 in an embedding of squared length 6


def tokens():
    """Token strings, their merges, and the number of each word."""
    strings, _, merges = make_model.tokenizer(VOCAB)
    number = {s: i for i, s in enumerate(strings)}
    return strings, merges, {w: number["Ġ" + w[1:]] for w in WORDS}


def embeddings(ids):
    """[VOCAB, HIDDEN]: every row has squared length 6, so that all norms are alike."""
    rng = np.random.default_rng(7)
    out = np.zeros((VOCAB, HIDDEN))
    for i in range(KEYS):
        for j in range(16):
            row = out[ids[NEEDLES[16 * i + j]]]
            row[i] = 1
            for bit in range(4):  # which of two channels says what the bit is
                row[BIT + 2 * bit + (j >> bit & 1)] = 1
        out[ids[QUESTIONS[i]], QUESTION + i] = 1
    for word in HAY:
        out[ids[word], :KEYS] = rng.uniform(-0.3, 0.3, KEYS)
    for row in out:
        rest = rng.normal(size=HIDDEN - REST)
        row[REST:] = rest * ((6 - row @ row) ** 0.5 / np.linalg.norm(rest))
    return out


def weights(ids):
    """{tensor: f16 array}"""
    out = {"model.embed_tokens.weight": embeddings(ids)}
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        q, k, v = (np.zeros((HEADS * HEAD, HIDDEN)) for _ in range(3))
        o = np.zeros((HIDDEN, HEADS * HEAD))
        for head in range(HEADS):
            bit = layer * HEADS + head
            for i, channel in enumerate(SLOW):
                k[head * HEAD + channel, i] = 1
                # 40 = score of a needle = (NORM * gain) * NORM / sqrt(HEAD)
                q[head * HEAD + channel, QUESTION + i] = 40 * HEAD ** 0.5 / NORM ** 2
            for one in range(2):
                v[head * HEAD + one, BIT + 2 * bit + one] = 1
                o[FOUND + 2 * bit + one, head * HEAD + one] = 1 / NORM
        out[p + "input_layernorm.weight"] = np.ones(HIDDEN)
        for role, value in (("q", q), ("k", k), ("v", v), ("o", o)):
            out[f"{p}self_attn.{role}_proj.weight"] = value
        out[p + "post_attention_layernorm.weight"] = np.ones(HIDDEN)
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = np.zeros((FF, HIDDEN))
        out[p + "mlp.down_proj.weight"] = np.zeros((HIDDEN, FF))
    out["model.norm.weight"] = np.ones(HIDDEN)
    head = np.zeros((VOCAB, HIDDEN))
    for j in range(16):
        for bit in range(4):
            head[ids[ANSWERS[j]], FOUND + 2 * bit + (j >> bit & 1)] = 4
    out["lm_head.weight"] = head
    return {name: value.astype("<f2") for name, value in out.items()}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, value in tensors.items():
        header[name] = {"dtype": "F16", "shape": list(value.shape),
                        "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            out.write(value.tobytes())


def write_model(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    strings, merges, ids = tokens()
    # One more layer norm's difference: the second layer sees the bits that the first one found,
    # which makes its norm a little smaller; the margin of 40 against 12 covers it.
    write_safetensors(folder / "model.safetensors", weights(ids))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HEAD, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768, "rope_theta": 1e12, "vocab_size": VOCAB,
        "tie_word_embeddings": False, "bos_token_id": VOCAB - 4, "eos_token_id": VOCAB - 3,
        "torch_dtype": "float16", "hidden_act": "silu"}, indent=1) + "\n")
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    special = range(VOCAB - 4, VOCAB)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": strings[i], "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}
                         for i in special],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {s: i for i, s in enumerate(strings) if i not in special},
                  "merges": [m.split(" ") for m in merges]}}, ensure_ascii=False) + "\n")


def prompt(positions, seed):
    """(text of `positions` tokens, the answer): 16 needles in hay, and one question."""
    rng = random.Random(seed)
    words = [rng.choice(HAY) for _ in range(positions - 1)]
    values = [rng.randrange(16) for _ in range(KEYS)]
    for key, place in enumerate(rng.sample(range(positions - 1), KEYS)):
        words[place] = NEEDLES[16 * key + values[key]]
    key = rng.randrange(KEYS)
    return "".join(words) + QUESTIONS[key], ANSWERS[values[key]]


def check(headrace, folder, positions, prompts, options=(), report=None):
    """How many of `prompts` answers are right."""
    right = 0
    for seed in range(prompts):
        text, answer = prompt(positions, seed)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            command = [headrace, "run", folder, "--prompt-file", file.name, "--tokens", "1",
                       *options, *(["--report", f"{report}.{seed}"] if report else [])]
            done = subprocess.run([str(w) for w in command], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"needle: exit {done.returncode}: {done.stderr[-400:]}")
        right += done.stdout.rstrip("\n").endswith(answer)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("model").add_argument("folder")
    c = verbs.add_parser("check")
    c.add_argument("headrace")
    c.add_argument("folder")
    c.add_argument("--positions", default="4096,32768")
    c.add_argument("--prompts", type=int, default=4)
    own, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    args = parser.parse_args(own.split())
    if args.verb == "model":
        write_model(args.folder)
        return 0
    good = True
    for positions in map(int, args.positions.split(",")):
        right = check(args.headrace, args.folder, positions, args.prompts, options.split())
        print(f"{positions} positions: {right} of {args.prompts} right", flush=True)
        good = good and right == args.prompts
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
