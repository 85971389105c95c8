"""Rows of bench/kv/run.py that read a 32K-token text: prefill, a prefix store, saved slots.

Rows are as in figures.py. The runs are shared by the rows: each is made once, when first asked for.
The model was trained to 8K positions: what is compared is equality and time, not prose.
"""
import shutil

import measure
import slots
from programs import MIB
from rows import mib

TEXT_BYTES, TOKENS = 148_000, 32   # 32,390 tokens of SmolLM2; tokens that continue it


def once(s, name, make):
    if name not in s.shared:
        s.shared[name] = make()
    return s.shared[name]


def prompt_file(s):
    def write():
        path = s.folder / "prompt.txt"
        path.write_bytes(s.text.read_bytes()[:TEXT_BYTES // s.args.divide])
        return path
    return once(s, "prompt", write)


def read(s, what, memory, extra=()):
    """`headrace run` over the text; RuntimeError where it fails."""
    with s.doing(what):
        result = s.headrace.run(
            s.model, memory=memory, prompt_file=prompt_file(s), tokens=TOKENS,
            threads=s.args.threads, timeout_s=1800,
            extra=["--kv-dir", s.folder, *s.common, *extra])
    if result["rc"] != 0:
        raise RuntimeError(f"{what}: exit {result['rc']}: {result['stderr'].strip()[-300:]}")
    return {**result["report"], "peak_rss": result["peak_rss"]}


def whole(s):
    return once(s, "whole", lambda: read(s, "the text, everything in memory",
                                         s.everything(TEXT_BYTES // s.args.divide // 4)))


def half_budget(s):
    """Half of weights and KV, of the whole process."""
    weights = s.model.stat().st_size
    return (weights + s.header.kv_bytes(whole(s)["prompt_tokens"] + TOKENS)) // 2 // MIB * MIB


def store_options(s):
    return ["--prefix-store", s.folder / "store"]


def half(s):
    return once(s, "half", lambda: read(
        s, f"the text in {half_budget(s) // MIB} MiB, half of weights and KV, kept in a store",
        half_budget(s), store_options(s)))


def restored(s):
    def again():
        half(s)
        for path in (s.folder / "store").rglob("*"):
            if path.is_file():
                measure.evict(path)
        return read(s, "the text again, from the store", half_budget(s), store_options(s))
    return once(s, "restored", again)


def peer(s):
    """What llama-server took; None without --llama."""
    if not s.args.llama:
        return None
    def ask():
        folder = s.folder / "slots"
        folder.mkdir()
        with s.doing("llama-server: the text, its slot saved; a new server, the slot restored"):
            result = slots.measure_slots(
                s.args.llama, s.model, prompt_file(s).read_text("utf-8", "replace"), TOKENS,
                whole(s)["prompt_tokens"], folder, s.args.threads)
        shutil.rmtree(folder)
        return result
    return once(s, "peer", ask)


def prefill32k(s):
    """A long text read in half of weights and KV."""
    a, b, p = whole(s), half(s), peer(s)
    rates = [r["prefill_tokens_per_s"] for r in (a, b)]
    same = "same" if a["tokens"] == b["tokens"] else "ANOTHER"
    table = [(
        f"prefill of {a['prompt_tokens']:,} tokens in {half_budget(s) // MIB} MiB, half of weights "
        "and KV", ">= 85 % of the rate with everything in memory",
        f"**{100 * rates[1] / rates[0]:.1f} %**: {rates[1]:.1f} against {rates[0]:.1f} tokens/s, "
        f"{same} text; peak {mib(b['peak_rss'])} MiB")]
    if p:
        table.append(("llama.cpp (llama-server) reads the same text, everything in memory", "-",
                      f"{p['tokens'] / p['read_s']:.1f} tokens/s ({p['tokens']:,} tokens)"))
    return table, [f"{s.args.threads} threads; single runs; the run in half also writes a prefix "
                   "store, the other does not"], {"whole": a, "half": b, "peer": p}


def restore32k(s):
    """The same text from a prefix store, in a new process."""
    cold, warm, p = half(s), restored(s), peer(s)
    first = [r["time_to_first_token_s"] for r in (cold, warm)]
    same = "same" if cold["tokens"] == warm["tokens"] == whole(s)["tokens"] else "ANOTHER"
    table = [(
        f"{warm['prefix_tokens']:,} of {cold['prompt_tokens']:,} tokens restored from the store in "
        f"{half_budget(s) // MIB} MiB", ">= 20x faster than reading it, same text",
        f"**{first[0] / first[1]:.0f}x**, {same} text: first token after {first[1]:.2f} s "
        f"({warm['prefix_seconds']:.2f} s of it restoring) against {first[0]:.1f} s")]
    if p:
        table.append((
            "llama-server: the slot restored in a new server", "the peer",
            f"{p['read_s'] / (p['restore_s'] + p['first_s']):.0f}x, "
            f"{'same' if p['same'] else 'another'} text: first token after "
            f"{p['restore_s'] + p['first_s']:.2f} s ({p['restore_s']:.2f} s of it restoring "
            f"{p['bytes'] / MIB:,.0f} MiB; starting the server {p['start_s']:.1f} s besides) "
            f"against {p['read_s']:.1f} s"))
    return table, ["each time in a new process, its files dropped from the page cache"], {
        "cold": cold, "warm": warm, "peer": p}
