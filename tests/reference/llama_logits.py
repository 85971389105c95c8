#!/usr/bin/env python3
"""Expected predictions of the real quantised files, by llama.cpp.

usage: tests/reference/llama_logits.py PEER NAME MODEL.gguf

PEER is the folder bench/setup_peers.sh built; NAME is the stem of the files written to
tests/data/logits/ (smollm2-135m, gemma3-270m). Two readings are taken:

  as_run   llama.cpp on the file as it is (activations rounded to eight bits), its
           plain kernels (no repacking), one thread
  exact    the same weights widened to f32 first (by llama-quantize), so that only the
           weights are rounded: what both programs approximate

Written:
  NAME.json            ids: the input's token ids (text.txt, with the tokens the
                       tokenizer adds); positions: how many are scored (360; position i
                       predicts ids[i + 1]); as_run and exact: top1 and logsumexp of
                       each position; agreement of the two; decided: the first 200
                       positions where exact's best token leads by 0.3 or more (the
                       logits of the two readings differ by 0.2 rms, so elsewhere the
                       best token is a matter of rounding); perplexity of both over the
                       first 2048 tokens of the licence text named there; greedy: a
                       continuation of a short prompt
  NAME.top_ids.i32     as_run, [positions, 20] token ids, best first, little endian
  NAME.top_logits.f32  as_run, [positions, 20] their logits
  NAME.exact_top_ids.i32, NAME.exact_top_logits.f32    the same of exact

Perplexity: windows of 512 tokens (each starting with the start token if the tokenizer
adds one), nothing carried between windows, every token of a window but its first
scored: exp(mean of -log p).

Needs numpy and typing_extensions; PEER for the libraries and its Python binding.
"""
import ctypes
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "data" / "logits"
POSITIONS, TOP, WINDOW, WINDOWS = 360, 20, 512, 4
DECIDED, MARGIN = 200, 0.3
LICENCE = "/usr/share/common-licenses/GPL-3"  # Debian's base-files
PROMPT = "The capital of France is"


def binding(peer):
    """The peer's ctypes declarations, without the package's own imports."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(peer / "lib")
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(peer / "src" / "llama_cpp")]
    sys.modules["llama_cpp"] = package
    import llama_cpp.llama_cpp as api
    return api


class Peer:
    """One model loaded by llama.cpp, one thread, f16 cache."""

    def __init__(self, api, path):
        self.api = api
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False
        self.model = api.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"{path}: llama.cpp does not load it")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.size = api.llama_vocab_n_tokens(self.vocab)
        options = api.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = WINDOW
        options.n_threads = options.n_threads_batch = 1
        self.context = api.llama_init_from_model(self.model, options)
        self.memory = api.llama_get_memory(self.context)

    def tokens(self, text, special=True):
        raw = text.encode()
        room = (self.api.llama_token * (len(raw) + 8))()
        count = self.api.llama_tokenize(self.vocab, raw, len(raw), room, len(room),
                                        special, False)
        return list(room[:count])

    def logits(self, ids):
        """Logits of every position of a fresh sequence, [len(ids), vocabulary] f32."""
        api, count = self.api, len(ids)
        api.llama_memory_clear(self.memory, True)
        batch = api.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        pointer = api.llama_get_logits(self.context)
        flat = np.ctypeslib.as_array(
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)),
            shape=(count * self.size,))
        out = flat.reshape(count, self.size).copy()
        api.llama_batch_free(batch)
        return out

    def close(self):
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


def log_sum_exp(logits):
    most = logits.max(axis=1, keepdims=True).astype(np.float64)
    return (most + np.log(np.exp(logits - most).sum(axis=1, keepdims=True)))[:, 0]


def positions(peer, ids):
    """(summary, top ids [positions, TOP], top logits) of the fixed text."""
    logits = peer.logits(ids[:POSITIONS])
    order = np.argsort(-logits, axis=1, kind="stable")[:, :TOP].astype("<i4")
    best = np.take_along_axis(logits, order, axis=1).astype("<f4")
    summary = {
        "top1": [int(t) for t in order[:, 0]],
        "logsumexp": [round(float(v), 5) for v in log_sum_exp(logits)],
        "largest_logit": float(np.abs(logits).max()),
        "least_margin": float((best[:, 0] - best[:, 1]).min()),
    }
    return summary, order, best


def windows_of(peer, text):
    start = peer.tokens("")
    body = peer.tokens(text, special=False)
    each = WINDOW - len(start)
    return [start + body[i * each:(i + 1) * each] for i in range(WINDOWS)]


def perplexity(peer, windows):
    total, count = 0.0, 0
    for ids in windows:
        logits = peer.logits(ids)[:-1]
        chosen = logits[np.arange(len(ids) - 1), ids[1:]]
        total += float((log_sum_exp(logits) - chosen).sum())
        count += len(ids) - 1
    return float(np.exp(total / count))


def greedy(peer, count=32):
    ids = peer.tokens(PROMPT)
    start, margin = len(ids), []
    for _ in range(count):
        last = np.sort(peer.logits(ids)[-1])
        margin.append(float(last[-1] - last[-2]))
        ids.append(int(peer.logits(ids)[-1].argmax()))
    return {"prompt": PROMPT, "prompt_ids": ids[:start], "ids": ids[start:],
            "least_margin": min(margin)}


def reading(api, path, with_greedy):
    peer = Peer(api, path)
    ids = peer.tokens((OUT / "text.txt").read_text())
    text = pathlib.Path(LICENCE).read_text()
    summary, order, best = positions(peer, ids)
    windows = windows_of(peer, text)
    summary["perplexity"] = perplexity(peer, windows)
    extra = {"ids": ids[:POSITIONS + 1], "windows": windows,
             "greedy": greedy(peer) if with_greedy else None}
    peer.close()
    return summary, order, best, extra


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    peer, name, path = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    api = binding(peer)
    run, run_ids, run_logits, extra = reading(api, path, True)
    with tempfile.TemporaryDirectory() as folder:
        wide = os.path.join(folder, "wide.gguf")
        subprocess.run([peer / "bin" / "llama-quantize", "--allow-requantize", path,
                        wide, "F32"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        exact, exact_ids, exact_logits, _ = reading(api, wide, False)
    same = sum(a == b for a, b in zip(run["top1"], exact["top1"])) / POSITIONS
    windows = np.array(extra["windows"], dtype="<i4")
    result = {
        "model_sha256": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest(),
        "made_with": (peer / "BUILD").read_text().splitlines()[0],
        "positions": POSITIONS, "top": TOP, "ids": extra["ids"],
        "as_run": run, "exact": exact, "agreement_of_the_two": same,
        "perplexity_text": {
            "file": LICENCE,
            "sha256": hashlib.sha256(pathlib.Path(LICENCE).read_bytes()).hexdigest(),
            "windows": WINDOWS, "window_tokens": WINDOW,
            "ids_sha256": hashlib.sha256(windows.tobytes()).hexdigest()},
        "greedy": extra["greedy"],
    }
    lead = exact_logits[:, 0] - exact_logits[:, 1]
    decided = [int(i) for i in np.flatnonzero(lead >= MARGIN)[:DECIDED]]
    if len(decided) < DECIDED or len(extra["ids"]) < POSITIONS:
        raise RuntimeError(f"the text is too short: {len(decided)} decided positions")
    result["decided"] = decided
    result["agreement_where_decided"] = sum(
        run["top1"][i] == exact["top1"][i] for i in decided) / DECIDED
    (OUT / f"{name}.json").write_text(json.dumps(result, indent=None) + "\n")
    run_ids.tofile(OUT / f"{name}.top_ids.i32")
    run_logits.tofile(OUT / f"{name}.top_logits.f32")
    exact_ids.tofile(OUT / f"{name}.exact_top_ids.i32")
    exact_logits.tofile(OUT / f"{name}.exact_top_logits.f32")
    print(name, "agreement", same, "perplexity", run["perplexity"],
          exact["perplexity"], "greedy margin", extra["greedy"]["least_margin"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
