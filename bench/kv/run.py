#!/usr/bin/env python3
"""The table of KV: one command measures rows and writes bench/results/DATE-kv.{json,md}.

usage: bench/kv/run.py MODEL.gguf [ROW ...] [--llama FOLDER] [--divide N] [options]

Rows (default: all, in this order; lengths are those of --divide 1):
  decode64k   a step after 65,536 positions with a quarter of KV in memory, against the larger of
              bytes / disk rate and of the same step with everything in memory
  emulated    the same against everything in memory behind emulated links at which reads can hide
  growth      1K to 128K positions at 400 MiB: peak, and each step against its 256 neighbours
  prefill32k  a 32K-token text read in half of weights + KV, against everything in memory
  restore32k  the same text again from a prefix store, against reading it; llama-server's slots
  perplexity  q8 and q4 against f16
  sparse      needles found and time a step where an eighth of the positions is attended
  seeds       published: 61.2 GB held in 45.0, simulated; 71K and 123K positions in equal memory
  estimate    KV bytes said before a run against what the kernel counted, all families

Rows that are measured anew replace those of the same name in today's file; the rest of it stays.
Each row is written as soon as it is measured, with its own commit, date, command and load.
prefill32k and restore32k share their runs when both are asked for. All rows take some 25 minutes
on two cores, 16 of them in these two.

  --headrace FILE    default build/release/headrace
  --llama FOLDER     llama.cpp as bench/setup_peers.sh FOLDER built it; without: our own rows only
  --divide N         lengths and budgets of KV divided by N, to try the script (files named so)
  --repeat N         of what is short, programs taking turns; default 3
  --growth-steps N   at each length; default 257
  --threads N        default 2
  --python FILE      a Python with numpy, for row sparse; default this one
  --folder FOLDER    for KV, stores and a file to probe, on a disk; default the build folder
  --out FOLDER       default bench/results
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import fetch_text  # noqa: E402
import figures  # noqa: E402
import long_text  # noqa: E402
import measure  # noqa: E402
from gguf_header import Header  # noqa: E402
from programs import MIB, Headrace  # noqa: E402
from run_bench import git_commit  # noqa: E402

ROWS = {f.__name__: f for f in (
    figures.decode64k, figures.emulated, figures.growth, long_text.prefill32k,
    long_text.restore32k, figures.perplexity, figures.sparse, figures.seeds, figures.estimate)}
TILE = 64
PROBED = 512 * MIB
SAY_EVERY_S = 30


def say(text):
    print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


class Setup:
    """What a row gets: the program, the model, a folder on a disk, and lengths to use."""

    def __init__(self, args, folder):
        self.args, self.model, self.folder = args, args.model, pathlib.Path(folder)
        self.headrace, self.header = Headrace(args.headrace), Header(args.model)
        self.shared = {}  # what rows hand on to each other: see long_text.py
        self.probed = self.folder / "probed"
        with open(self.probed, "wb") as out:
            for _ in range(PROBED // (8 * MIB)):
                out.write(os.urandom(8 * MIB))
            os.fsync(out.fileno())
        self.machine_file = self.folder / "machine.json"
        subprocess.run([args.headrace, "probe", "--file", self.probed, "-o", self.machine_file],
                       capture_output=True, check=True)
        self.common = ["--machine", self.machine_file]
        self.text = fetch_text.fetch()

    def length(self, positions):
        """A number of positions, whole tiles, as --divide makes it."""
        return max(TILE, positions // self.args.divide // TILE * TILE)

    def kv_budget(self, megabytes):
        """A budget given for whole lengths: what is above 128 MiB is divided."""
        return (128 + (megabytes - 128) // self.args.divide) * MIB

    def everything(self, positions):
        """A budget in which nothing has to move."""
        return self.model.stat().st_size + self.header.kv_bytes(positions) + 512 * MIB

    def disk(self):
        """Bytes a second of direct reads in the folder where KV goes."""
        return self.headrace.disk_bandwidth(self.probed)

    @contextlib.contextmanager
    def doing(self, what):
        """Says what takes more than a second, that it still goes on, and its end."""
        begin, over = time.monotonic(), threading.Event()

        def remind():
            if over.wait(1):
                return
            say(f"  {what} ...")
            while not over.wait(SAY_EVERY_S):
                say(f"    {time.monotonic() - begin:.0f} s so far")
            say(f"    took {time.monotonic() - begin:.1f} s")

        thread = threading.Thread(target=remind, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def command(self, what, words, good=(0,)):
        """One command, said and measured; RuntimeError with its last words where it fails."""
        with self.doing(what):
            result = measure.run(words, timeout_s=1800)
        if result["rc"] not in good:
            raise RuntimeError(f"{what}: exit {result['rc']}: {result['stderr'].strip()[-300:]}")
        return result

    def bench_kv(self, what, memory, positions, steps, extra=(), model=None, threads=None,
                 moves=True):
        """`headrace bench kv`, its JSON with "peak_rss" as the kernel counted it. memory: bytes;
        positions: a list; moves: KV that does not fit goes to the folder, else it is refused."""
        result = self.command(what, [
            self.args.headrace, "bench", "kv", model or self.model, "--memory",
            f"{memory // MIB}MiB", "--positions", ",".join(map(str, positions)), "--steps", steps,
            "--threads", threads or self.args.threads, "--kv-dir",
            self.folder if moves else "none", "--json", *self.common, *extra])
        out = json.loads(result["stdout"])
        return {**out, "peak_rss": max(result["peak_rss"], out["peak_rss_bytes"])}

    def json_of(self, what, *words):
        """The JSON that a short command prints."""
        return json.loads(self.command(what, [self.args.headrace, *words])["stdout"])


def page(results, divide):
    """The results of all rows as one table, and what each was measured with."""
    m = next(iter(results.values()))["machine"]
    lines = ["# KV that does not fit" + (f", lengths divided by {divide}" if divide > 1 else ""),
             "", f"Machine: {m['cpu']}, {m['cpus']} CPUs, {m['memory_bytes'] / 2**30:.1f} GiB, "
             f"Linux {m['kernel']}, AVX-512 VNNI {'yes' if m['avx512_vnni'] else 'no'}.", "",
             "| figure | target | measured |", "|---|---|---|"]
    ordered = [(name, results[name]) for name in ROWS if name in results]
    for name, result in ordered:
        lines += [f"| {figure} | {target} | {measured} |"
                  for figure, target, measured in result["table"]]
    lines += [""] + [f"- {name}: {remark}" for name, r in ordered for remark in r["remarks"]]
    lines += ["", "| row | date | commit | load before, after | took | command |",
              "|---|---|---|---|---|---|"]
    lines += [f"| {name} | {r['date']} | {r['commit']} | {r['load_before']:.2f}, "
              f"{r['load_after']:.2f} | {r['seconds']:.0f} s | `{r['command']}` |"
              for name, r in ordered]
    return "\n".join(lines) + "\n"


def command_of(args, row):
    """What measures a row again, with folders by what they are."""
    words = [f"bench/kv/run.py {args.model.name} {row}"]
    words += [f"--{name.replace('_', '-')} {getattr(args, name)}"
              for name in ("divide", "repeat", "growth_steps", "threads")]
    return " ".join(words + ["--llama FOLDER"] * bool(args.llama))


def measure_rows(args, setup):
    """Measures the rows that were asked for; the number of those that failed."""
    label = f"-divided{args.divide}" if args.divide > 1 else ""
    stem = args.out / f"{datetime.date.today().isoformat()}-kv{label}"
    args.out.mkdir(parents=True, exist_ok=True)
    saved = stem.with_suffix(".json")
    results = json.loads(saved.read_text()) if saved.exists() else {}
    failed = 0
    for name in args.rows:
        say(name)
        load, begin = os.getloadavg()[0], time.monotonic()
        date = datetime.datetime.now().isoformat(timespec="seconds")
        try:
            table, remarks, raw = ROWS[name](setup)
        except Exception as error:  # a row that fails leaves the others
            traceback.print_exc()
            say(f"{name}: {error}")
            failed += 1
            continue
        results[name] = {
            "table": table, "remarks": remarks, "raw": raw, "date": date, "commit": git_commit(),
            "machine": measure.machine(), "load_before": load, "load_after": os.getloadavg()[0],
            "seconds": time.monotonic() - begin, "command": command_of(args, name)}
        # Names of folders here are nobody's business.
        text = json.dumps(results, indent=1).replace(str(setup.folder), "FOLDER")
        saved.write_text(text.replace(str(ROOT), "ROOT") + "\n")
        stem.with_suffix(".md").write_text(page(results, args.divide))
        for row in table:
            print(" | ".join([name, *row]), flush=True)
        for remark in remarks:
            print(f"{name}: {remark}", flush=True)
    return failed


def arguments_of(argv):
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    p.add_argument("--headrace", type=pathlib.Path, default=ROOT / "build/release/headrace")
    p.add_argument("--llama", type=pathlib.Path)
    p.add_argument("--divide", type=int, default=1)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--growth-steps", type=int, default=257)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--folder", type=pathlib.Path, default=ROOT / "build")
    p.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    args = p.parse_args(argv)
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        p.error(f"no row {unknown[0]}")
    args.rows = args.rows or list(ROWS)
    if not args.headrace.exists():
        p.error(f"no program at {args.headrace}")
    return args


def main():
    args = arguments_of(sys.argv[1:])
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="kv-bench-") as folder:
        return 1 if measure_rows(args, Setup(args, folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
