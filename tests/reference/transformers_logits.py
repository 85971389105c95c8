#!/usr/bin/env python3
"""Expected logits of the tiny models, by transformers in f32 on the CPU.

usage: tests/reference/transformers_logits.py [--ablate] [NAME ...]

Reads the folders of tests/data/models/ (make_tiny_models.py) and writes to
tests/data/logits/:
  tiny_input.txt   the 40 token ids of the input, on one line
  NAME.f32         the logits, [40 positions, 512 tokens], f32, little endian
  tiny.json        for each model: the largest logit by magnitude, the difference
                   between f32 and f64 arithmetic (what no f32 program can be held
                   to), and 16 tokens of greedy continuation

--ablate writes nothing: it changes one feature of the configuration at a time (no
scaling, no window, ...) and prints by how much the logits move, so that one sees that
a test against these files would notice the feature missing.

Needs torch and transformers (made with 2.15.0 and 5.24.0).
"""
import argparse
import json
import pathlib
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

# A torch without its CUDA libraries must not be asked about streams.
torch.cuda.is_current_stream_capturing = lambda: False

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODELS = ROOT / "tests" / "data" / "models"
OUT = ROOT / "tests" / "data" / "logits"
COUNT, GREEDY = 40, 16


def input_ids():
    """40 ids below 512 by a linear congruential generator."""
    ids, state = [], 12345
    for _ in range(COUNT):
        state = (state * 1103515245 + 12345) % (1 << 31)
        ids.append((state >> 8) % 508)
    return ids


def load(name, dtype, change=None):
    config = AutoConfig.from_pretrained(MODELS / name)
    if change:
        change(config)
    return AutoModelForCausalLM.from_pretrained(
        MODELS / name, config=config, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, ids):
    """The next GREEDY tokens, each from a whole pass, and the smallest margin between
    the first and second logit on the way."""
    ids, margin = list(ids), float("inf")
    for _ in range(GREEDY):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[-GREEDY:], margin


def without_scaling(config):
    text = json.loads(json.dumps(config.rope_parameters))
    for entry in [text, *[v for v in text.values() if isinstance(v, dict)]]:
        if "rope_theta" in entry:
            theta = entry["rope_theta"]
            entry.clear()
            entry.update(rope_type="default", rope_theta=theta)
    config.rope_parameters = text


def one_base(config):
    text = json.loads(json.dumps(config.rope_parameters))
    text["sliding_attention"] = dict(text["full_attention"])
    config.rope_parameters = text


ABLATIONS = {
    "no rope scaling": without_scaling,
    "one rope base": one_base,
    "no window": lambda c: setattr(c, "sliding_window", 4096),
    "window one less": lambda c: setattr(c, "sliding_window", c.sliding_window - 1),
    "query scale of head_dim": lambda c: setattr(c, "query_pre_attn_scalar", c.head_dim),
    "no logit cap": lambda c: setattr(c, "final_logit_softcapping", None),
}
APPLIES = {
    "llama": ["no rope scaling"], "llama_linear": ["no rope scaling"],
    "qwen3_yarn": ["no rope scaling"], "mistral": ["no window", "window one less"],
    "gemma3": ["one rope base", "no window", "window one less"],
    "gemma3_caps": ["no rope scaling", "one rope base", "no window",
                    "query scale of head_dim", "no logit cap"],
}


def attention_with_f16_cache(module, query, key, value, mask, **rest):
    """The model's own plain attention over keys and values rounded to f16."""
    plain = sys.modules[type(module).__module__].eager_attention_forward
    return plain(module, query, key.half().to(query.dtype), value.half().to(query.dtype),
                 mask, **rest)


def ablate(name, ids):
    base = logits_of(load(name, torch.float32), ids)
    model = load(name, torch.float32)
    transformers.AttentionInterface.register("cache16", attention_with_f16_cache)
    transformers.AttentionMaskInterface.register(
        "cache16", transformers.masking_utils.eager_mask)
    model.set_attn_implementation("cache16")
    ratio = float((logits_of(model, ids) - base).abs().max() / base.abs().max())
    print(f"{name}: keys and values rounded to f16: {ratio:.3g} of the largest logit")
    for what in APPLIES.get(name, []):
        try:
            changed = logits_of(load(name, torch.float32, ABLATIONS[what]), ids)
        except Exception as error:  # a configuration the library refuses
            print(f"{name}: {what}: {error}")
            continue
        ratio = float((changed - base).abs().max() / base.abs().max())
        print(f"{name}: {what}: largest change {ratio:.3g} of the largest logit")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ablate", action="store_true")
    arguments = parser.parse_args()
    names = arguments.names or sorted(p.name for p in MODELS.iterdir() if p.is_dir())
    torch.set_num_threads(1)
    ids = input_ids()
    if arguments.ablate:
        for name in names:
            ablate(name, ids)
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "tiny_input.txt").write_text(" ".join(map(str, ids)) + "\n")
    notes_path = OUT / "tiny.json"
    notes = json.loads(notes_path.read_text()) if notes_path.exists() else {}
    notes["made_with"] = {"torch": torch.__version__,
                          "transformers": transformers.__version__}
    for name in names:
        model = load(name, torch.float32)
        logits = logits_of(model, ids)
        exact = logits_of(load(name, torch.float64), ids)
        (OUT / f"{name}.f32").write_bytes(
            logits.contiguous().numpy().astype("<f4").tobytes())
        largest = float(logits.abs().max())
        continuation, margin = greedy(model, ids)
        notes[name] = {
            "largest_logit": largest,
            "f32_against_f64": float((logits.double() - exact).abs().max()),
            "greedy": continuation, "least_margin": margin,
        }
        print(name, list(logits.shape), notes[name])
    notes_path.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
