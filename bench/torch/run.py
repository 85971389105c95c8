#!/usr/bin/env python3
"""The table of the PyTorch doors: one command measures rows and writes
bench/results/DATE-torch-ROW.{json,md}.

  bench/torch/run.py --torch PYTHON [--repeat 3] [--quick] [ROW ...]

--torch: a Python that imports torch, transformers and headrace (.cache/torch/bin/python, which
make python makes). Rows:
  eager     the 34.1M-parameter step through headrace.fit, in 1,800 and 1,600 MiB for the process,
            against eager PyTorch, default and tuned malloc
  compile   measured growth against what was asked for, ten requests from the floor up
  step      headrace.compile_step against `headrace train`: 34.1M-parameter LLaMA, GPT-2 124M
  overhead  doors that have nothing to move, against PyTorch without
  trainer   transformers' Trainer on the real small model, with the one added line and without
  scratch   bytes left on the disk after a run's end, crash and kill
--quick: one run of each, fewer requests. The programs take turns; steps after the first two count
(a door records in the first).
"""
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "train"))
import run as train  # noqa: E402
from run import GPT2, MIB, SMALL, against, figures, measure  # noqa: E402

STEPS = 6
REFUSED = 3
TUNED = ("env", "MALLOC_MMAP_THRESHOLD_=65536")


class Setup(train.Setup):
    def __init__(self, args, folder):
        super().__init__(args, folder)
        if not args.torch:
            sys.exit("--torch PYTHON is needed: one that imports torch and headrace")
        if args.quick:
            args.repeat = 1

    def door(self, door, shape=SMALL, threads=2, tuned=False, steps=STEPS, **options):
        """What door_step.py gives, {"refused": ...} too; None with the reason printed."""
        command = [*(TUNED if tuned else ()), self.args.torch, HERE / "door_step.py", door,
                   "--threads", threads, "--steps", steps, "--folder", self.folder]
        for key, value in (shape | options).items():
            command += ["--" + key.replace("_", "-"), value]
        result = measure.run(command, cpus=",".join(map(str, range(threads))))
        if result["rc"] not in (0, REFUSED):
            print(f"  {door} {options}: exit {result['rc']}: {result['stderr'][-400:]}")
            return None
        out = json.loads(result["stdout"].splitlines()[-1])
        out["peak"] = max(result["peak_rss"], out.get("peak_rss_bytes", 0))
        return out

    def least(self, door, shape=SMALL):
        """Bytes in which three steps run. The second is refused with more than the first: the
        optimizer's state is there by then."""
        memory = MIB
        while True:
            refused = self.door(door, shape, memory=memory, steps=3)
            if not refused or refused.get("needed_bytes", 0) <= memory:
                return memory
            memory = refused["needed_bytes"]


HEAD = [*train.HEAD, "gradients"]


def rows_against(name, ours, peer):
    same = {r["gradients"] for r in ours} == {r["gradients"] for r in peer}
    losses = ours and peer and ours[0]["losses"] == peer[0]["losses"]
    words = ("same bits" if same and ours[0]["gradients"] else
             "losses same bits" if losses else "not the same bits") if ours and peer else "-"
    return [name, *figures(ours), against(ours, peer), against(ours, peer, "cpu_s_per_step"), words]


def done(results):
    return [r for r in results if r and "refused" not in r]


def eager(s):
    """headrace.fit, 34.1M parameters (targets: 1,800 MiB, aim 1,600, at 1.1x tuned eager's CPU)"""
    runs = {"eager": lambda: s.door("none"),
            "eager, tuned malloc": lambda: s.door("none", tuned=True),
            "headrace.fit, 1,800 MiB": lambda: s.door("eager", total="1800MiB"),
            "headrace.fit, 1,600 MiB": lambda: s.door("eager", total="1600MiB")}
    results = {name: [] for name in runs}
    for _ in range(s.args.repeat):
        for name, run in runs.items():
            results[name] += done([run()])
    peer = results["eager, tuned malloc"]
    return [HEAD, *(rows_against(name, got, peer) for name, got in results.items())], results


def compile(s):
    """torch.compile: measured growth against the request (target: never above it)"""
    free = s.door("compile", memory="64GiB", steps=3)
    plain = s.door("none", steps=3)
    table = [["request MiB", "measured growth MiB", "of the request", "s a step", "CPU s",
              "losses against eager"]]
    raw = [free, plain]
    if not free or not plain:
        return table + [["not measured", "", "", "", "", ""]], raw
    low = s.least("compile")
    high = max(free["peak_growth"], low + MIB)
    count = 3 if s.args.quick else 10
    for i in range(count):
        request = int(low * (high / low) ** (i / (count - 1)))
        r = s.door("compile", memory=request, steps=4)
        raw.append([request, r])
        if not r or "refused" in r:
            table.append([f"{request / MIB:,.0f}", "refused" if r else "failed", "", "", "", ""])
            continue
        apart = max(abs(a - b) / abs(b) for a, b in zip(r["losses"], plain["losses"]))
        table.append([f"{request / MIB:,.0f}", f"{r['peak_growth'] / MIB:,.0f}",
                      f"{r['peak_growth'] / request:.3f}", f"{r['s_per_step']:.2f}",
                      f"{r['cpu_s_per_step']:.2f}", "same bits" if apart == 0 else f"{apart:.1e}"])
    table.append([f"all kept: {free['peak_growth'] / MIB:,.0f}", "", "",
                  f"{free['s_per_step']:.2f}", f"{free['cpu_s_per_step']:.2f}", ""])
    return table, raw


def step(s):
    """headrace.compile_step against `headrace train` in the same total (target: within 5 %)"""
    table, raw = [train.HEAD], []
    cases = [("LLaMA 34.1M", SMALL, "1750MiB"), ("LLaMA 34.1M", SMALL, "1280MiB"),
             ("GPT-2 124M", GPT2, "1300MiB")]
    for name, shape, memory in cases:
        ours, peer = s.pair(lambda: s.door("step", shape, memory=memory),
                            lambda: s.ours(shape, memory))
        table += train.compared(f"compile_step, {name}, growth of {memory}", done(ours),
                                f"headrace train, {memory}", peer)
        raw.append([ours, peer])
    return table, raw


def overhead(s):
    """Nothing to move (target: 3 % of the time, no extra peak)"""
    table, raw = [train.HEAD], []
    for name, door, peer in (("headrace.fit, 64 GiB", "eager", "none"),
                             ("torch.compile, 64 GiB", "compile", "aot")):
        # headrace.fit() sets malloc's thresholds: so has the peer.
        ours, theirs = s.pair(lambda: s.door(door, memory="64GiB"),
                              lambda: s.door(peer, tuned=True))
        table += train.compared(name, done(ours), f"{'eager' if peer == 'none' else 'aot_eager'}, "
                                "tuned malloc", done(theirs))
        raw.append([ours, theirs])
    return table, raw


def trainer(s):
    """Trainer on a real model of 135M parameters (target: smaller peak, same loss)"""
    script = ROOT / "examples" / "05-finetune-hf" / "finetune.py"
    table, raw = [["what", "s", "CPU s", "peak MiB", "last loss", "losses"]], []
    seen = {}
    for name, words in (("Trainer", ["--plain"]), ("with headrace.fit", [])):
        result = measure.run([s.args.torch, script, *words, "--steps", 3 if s.args.quick else 8,
                              "--out", s.folder / "model", "--json"], cpus="0,1")
        if result["rc"] != 0:
            print(f"  {name}: exit {result['rc']}: {result['stderr'][-400:]}")
            table.append([name, "failed", "", "", "", ""])
            continue
        out = json.loads(result["stdout"].splitlines()[-1])
        seen[name] = out["losses"]
        raw.append([name, out, result["peak_rss"]])
        table.append([name, f"{out['train_s']:.1f}", f"{out['train_cpu_s']:.1f}",
                      f"{out['peak_rss_bytes'] / MIB:,.0f}", f"{out['losses'][-1]:.4f}",
                      "same" if out["losses"] == seen.get("Trainer") else "differ"])
    return table, raw


def left_in(folder):
    """(files, bytes) under a folder."""
    sizes = [os.path.getsize(os.path.join(at, name))
             for at, _, names in os.walk(folder) for name in names]
    return len(sizes), sum(sizes)


def scratch(s):
    """Left on the disk when a run ends, crashes, is killed (target: 0 bytes)"""
    table, raw = [["door", "exit", "crash", "kill"]], []
    small = SMALL | dict(layers=4, batch=4)
    for door in ("eager", "compile", "step"):
        memory = int(s.least(door, small) * 1.1)
        cells = []
        for end in ("exit", "crash", "kill"):
            where = s.folder / f"scratch-{door}-{end}"
            where.mkdir()
            before = os.statvfs(where)
            result = measure.run([s.args.torch, HERE / "door_step.py", door, "--steps", 4,
                                  "--folder", where, "--memory", memory, "--end", end,
                                  *(w for k, v in small.items()
                                    for w in ("--" + k.replace("_", "-"), v))])
            files, size = left_in(where)
            blocks = before.f_bavail - os.statvfs(where).f_bavail   # others write there too
            raw.append([door, end, result["rc"], files, size, blocks])
            cells.append(f"{size} bytes in {files} files (exit {result['rc']})")
        table.append([door, *cells])
    return table, raw


ROWS = {f.__name__: f for f in (eager, compile, step, overhead, trainer, scratch)}


def more(parser):
    parser.add_argument("--quick", action="store_true", help="one run of each, fewer requests")


if __name__ == "__main__":
    train.main(ROWS, "torch", "bench/torch/run.py", __doc__, Setup, more)
