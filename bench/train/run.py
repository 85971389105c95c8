#!/usr/bin/env python3
"""The table of training: one command measures rows and writes bench/results/DATE-train.{json,md}.

  bench/train/run.py --torch PYTHON [--headrace build/release/headrace] [--repeat 3] [ROW ...]

--torch: a Python that can import torch; without it the peer's columns are dashes. Rows:
  step      the 34.1M-parameter step without recompute, 1 and 2 threads, against eager
  limit     inside the checkpointed peer's own smallest memory limit (a control group; needs root)
  curve     seconds a step at budgets from 0.3 to 2 GiB, and what of each budget is used
  least     the smallest budgets that train it, f32 and bf16
  bf16      against bf16 autocast with every block checkpointed
  gpt2      GPT-2 124M, batch 4 x 64
  plan      seconds from the command to the first step
The two programs take turns; medians of --repeat runs. Steps after the first count.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402
from measure import spread  # noqa: E402

MIB = 1 << 20
SMALL = dict(family="llama", layers=8, hidden=512, heads=8, kv_heads=8, ffn=1408, vocab=8192,
             batch=8, sequence=512)
GPT2 = dict(family="gpt2", layers=12, hidden=768, heads=12, kv_heads=12, ffn=3072, vocab=50257,
            batch=4, sequence=64)
STEPS = 4


class Setup:
    def __init__(self, args, folder):
        self.args, self.folder = args, pathlib.Path(folder)
        self.tokens = self.folder / "tokens.u16"
        x = 1
        with open(self.tokens, "wb") as out:
            for _ in range(1 << 18):
                x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
                out.write(struct.pack("<H", (x >> 16) % 8192))
        self.count = 0

    def config(self, shape, **more):
        self.count += 1
        run = self.folder / f"run{self.count}"
        model = {k: shape[k] for k in ("family", "layers", "hidden", "heads", "kv_heads", "ffn",
                                       "vocab")}
        model["head_dim"] = shape["hidden"] // shape["heads"]
        model["positions"] = shape["sequence"]
        model["tied_embeddings"] = shape["family"] == "gpt2"
        config = {"name": "bench", "model": model,
                  "data": {"files": [str(self.tokens)], "format": "u16"},
                  "optimizer": {"kind": "adamw", "rate": 3e-4, "beta1": 0.9, "beta2": 0.95,
                                "weight_decay": 0.1},
                  "precision": "f32", "batch": shape["batch"], "sequence": shape["sequence"],
                  "steps": STEPS, "out": str(run)}
        config.update(more)
        path = self.folder / f"config{self.count}.json"
        path.write_text(json.dumps(config))
        return path, run

    def ours(self, shape, memory, threads=2, limit=None, **more):
        """Report of one run; None with the reason printed when it failed."""
        config, run = self.config(shape, **more)
        report = self.folder / f"report{self.count}.json"
        result = measure.run([self.args.headrace, "train", config, "--memory", memory, "--threads",
                              threads, "--report", report], limit=limit,
                             cpus=",".join(map(str, range(threads))))
        shutil.rmtree(run, ignore_errors=True)
        if result["rc"] != 0:
            print(f"  headrace at {memory}: exit {result['rc']}: {result['stderr'][-300:]}")
            return None
        out = json.loads(report.read_text())
        out["peak"] = max(result["peak_rss"], out["peak_rss_bytes"])
        return out

    def torch(self, shape, threads=2, limit=None, tuned=False, **flags):
        if not self.args.torch:
            return None
        command = [self.args.torch, HERE / "torch_step.py", "--threads", threads, "--steps", STEPS]
        for key, value in shape.items():
            command += ["--" + key.replace("_", "-"), value]
        command += ["--" + name for name, on in flags.items() if on]
        if tuned:
            command = ["env", "MALLOC_MMAP_THRESHOLD_=65536", *command]
        result = measure.run(command, limit=limit, cpus=",".join(map(str, range(threads))))
        if result["rc"] != 0:
            print(f"  torch {flags} limit {limit}: exit {result['rc']}")
            return None
        out = json.loads(result["stdout"].splitlines()[-1])
        out["peak"] = result["peak_rss"]
        return out

    def pair(self, ours, peer):
        a, b = measure.alternate(ours, peer, self.args.repeat)
        return [x for x in a if x], [x for x in b if x]


def median(results, key):
    return spread([r[key] for r in results])["median"]


def figures(results):
    if not results:
        return ["-", "-", "-"]
    s = spread([r["s_per_step"] for r in results])
    return [f"{s['median']:.2f} ({s['least']:.2f}-{s['most']:.2f})",
            f"{median(results, 'cpu_s_per_step'):.2f}", f"{median(results, 'peak') / MIB:,.0f}"]


def against(a, b, key="s_per_step"):
    if not a or not b:
        return "-"
    return f"{median(a, key) / median(b, key):.2f}"


HEAD = ["what", "s a step", "CPU s", "peak MiB", "time / peer's", "CPU / peer's"]


def compared(name, ours, peer_name, peer):
    return [[name, *figures(ours), against(ours, peer), against(ours, peer, "cpu_s_per_step")],
            [peer_name, *figures(peer), "", ""]]


def step(s):
    """The step of 34.1M parameters without recompute (target: 1,750 MiB at 1.0x eager)"""
    rows, raw = [HEAD], []
    for threads, tuned in ((2, False), (2, True), (1, False)):
        ours, peer = s.pair(
            lambda: s.ours(SMALL, "1750MiB", threads, recompute=False),
            lambda: s.torch(SMALL, threads, tuned=tuned))
        rows += compared(f"headrace 1,750 MiB, {threads} threads", ours,
                         f"eager{', tuned malloc' if tuned else ''}, {threads} threads", peer)
        raw.append([ours, peer])
    return rows, raw


def limit(s):
    """In the checkpointed peer's smallest limit, 1,280 MiB (target: 0.72x its time and CPU)"""
    bytes_ = 1280 * MIB
    ours, peer = s.pair(lambda: s.ours(SMALL, "1280MiB", limit=bytes_),
                        lambda: s.torch(SMALL, limit=bytes_, tuned=True, checkpoint=True))
    free = s.ours(SMALL, "4GiB")
    same = bool(ours and free) and all(r["losses"] == free["losses"] for r in ours)
    rows = [HEAD, *compared("headrace, limit = budget = 1,280 MiB", ours, "torch, checkpointed", peer)]
    rows.append([f"losses equal to the unlimited run: {same}", "", "", "", "", ""])
    return rows, [ours, peer, free]


def curve(s):
    """Seconds a step by budget, f32"""
    rows = [["budget MiB", "s a step", "CPU s", "peak MiB", "of the budget", "moved MiB a step",
             "recomputed MiB", "losses as unlimited"]]
    raw = []
    free = s.ours(SMALL, "4GiB")
    for memory in (300, 350, 400, 450, 512, 640, 768, 1024, 1280, 1536, 1750, 2048):
        r = s.ours(SMALL, f"{memory}MiB")
        if r is None:
            rows.append([str(memory), "refused", "", "", "", "", "", ""])
            continue
        moved = r["loaded_bytes_per_step"] + r["stored_bytes_per_step"]
        again = sum(c["recomputed_bytes"] for c in r["plan"]["classes"].values())
        rows.append([str(memory), *figures([r]), f"{r['peak'] / MIB / memory:.3f}",
                     f"{moved / MIB:,.0f}", f"{again / MIB:,.0f}",
                     str(free is not None and r["losses"] == free["losses"])])
        raw.append(r)
    return rows, [free, raw]


def smallest(s, **more):
    low, high = 64, 2048  # MiB: refused, runs
    while high - low > 8:
        middle = (low + high) // 2
        config, run = s.config(SMALL, steps=1, **more)
        done = subprocess.run([s.args.headrace, "plan", config, "--memory", f"{middle}MiB"],
                              capture_output=True)
        shutil.rmtree(run, ignore_errors=True)
        low, high = (low, middle) if done.returncode == 0 else (middle, high)
    return high


def least(s):
    """The least budgets (targets: 450 MiB f32, 300 MiB bf16, at 1.5x eager's time)"""
    rows, raw = [HEAD], []
    for precision in ("f32", "bf16"):
        memory = smallest(s, precision=precision)
        bytes_ = (memory + 16) * MIB
        ours, peer = s.pair(
            lambda: s.ours(SMALL, f"{memory + 16}MiB", limit=bytes_, precision=precision),
            lambda: s.torch(SMALL, bf16=precision == "bf16"))
        rows += compared(f"headrace {precision}, limit = budget = {memory + 16} MiB", ours,
                         "eager, unlimited", peer)
        raw.append([memory, ours, peer])
    return rows, raw


def bf16(s):
    """bf16 (targets: 900 MiB, 0.72x the time of bf16 + checkpoint)"""
    rows, raw = [HEAD], []
    for memory in ("900MiB", "700MiB"):
        ours, peer = s.pair(lambda: s.ours(SMALL, memory, precision="bf16"),
                            lambda: s.torch(SMALL, bf16=True, checkpoint=True, tuned=True))
        rows += compared(f"headrace bf16, {memory}", ours, "torch bf16 + checkpoint", peer)
        raw.append([ours, peer])
    return rows, raw


def gpt2(s):
    """GPT-2 124M, batch 4 x 64, f32 (targets: the peer's CPU seconds, 1,300 MiB)"""
    ours, peer = s.pair(lambda: s.ours(GPT2, "1300MiB"), lambda: s.torch(GPT2))
    return [HEAD, *compared("headrace 1,300 MiB", ours, "torch eager", peer)], [ours, peer]


def plan(s):
    """Seconds of `headrace plan`: profile and plan (target: 2 s to plan and build)"""
    rows = [["budget", "s"]]
    for memory in ("2GiB", "1280MiB", "450MiB"):
        config, run = s.config(SMALL)
        result = measure.run([s.args.headrace, "train", config, "--memory", memory, "--steps", "1"])
        rows.append([memory, f"{result['wall_s']:.2f} with one step"])
        shutil.rmtree(run, ignore_errors=True)
    return rows, []


ROWS = {f.__name__: f for f in (step, limit, curve, least, bf16, gpt2, plan)}


def markdown(rows):
    out = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return out + ["| " + " | ".join(map(str, row)) + " |" for row in rows[1:]]


def main(rows=ROWS, kind="train", script="bench/train/run.py", description=__doc__, setup=Setup,
         more=lambda parser: None):
    p = argparse.ArgumentParser(description=description,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", nargs="*", choices=[*rows, []], default=list(rows))
    p.add_argument("--headrace", default=str(ROOT / "build/release/headrace"))
    p.add_argument("--torch", help="a Python that imports torch")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--folder", help="on a disk; default: a temporary one in the build folder")
    p.add_argument("--out", default=str(ROOT / "bench/results"))
    more(p)
    args = p.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=ROOT).stdout.strip()
    base = args.folder or str(ROOT / "build")
    with tempfile.TemporaryDirectory(dir=base) as folder:
        s = setup(args, folder)
        for name in args.rows:
            load = os.getloadavg()[0]
            table, raw = rows[name](s)
            stem = pathlib.Path(args.out) / f"{datetime.date.today()}-{kind}-{name}"
            facts = measure.machine()
            lines = [f"# {rows[name].__doc__}", "", *markdown(table), "",
                     f"{facts['cpu']}, {facts['cpus']} CPUs, commit {commit}, load before "
                     f"{load:.1f}; `{script} {name} --repeat {args.repeat}`; steps 2 to "
                     f"{STEPS} of each run, median (least-most) of runs."]
            stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
            stem.with_suffix(".json").write_text(json.dumps(
                {"machine": facts, "commit": commit, "load": load, "table": table, "raw": raw},
                indent=1) + "\n")
            print("\n".join(lines))


if __name__ == "__main__":
    main()
