#!/usr/bin/env python3
"""Measures one row of the table of targets; writes bench/results/DATE-ROW.json and .md.

usage: bench/run_bench.py ROW MODEL.gguf ... [options]
       bench/run_bench.py all [options]

`all` measures every row on the models it is meant for, as far as they are in the folder
of models; it names what it skips, goes on after a row that failed, and then ends with 1.

Rows (docs: the table of targets in the README):
  memory     peak memory against the budget over a sweep of budgets, free and in a
             cgroup limited to the budget
  overhead   memory not spent on weights and cache, at a context of 2048
  bytes      bytes read a token in steady state against M - R
  bound      decode time against max((M - R) / disk bandwidth, resident compute time) at
             R = 25, 50, 75, 90 % of M
  limit      tokens/s in the same cgroup limit (25, 50, 75 % of the file), page cache
             dropped, against llama.cpp at its best surviving setting
  resident   decoding tokens/s against llama.cpp, everything in memory
  prefill    prompt tokens/s against llama.cpp, 128 and 512 tokens
  first      cold start: seconds to the first output byte against llama.cpp
  identity   the same tokens at every budget, chunk and thread count

Options:
  --headrace FILE      default build/release/headrace
  --peer FOLDER        default .cache/peers (bench/setup_peers.sh FOLDER)
  --side both|headrace|peer   measure only one side (default both)
  --repetitions N      default 5; the two programs take turns, medians are given
  --threads N[,N]      default 1,2
  --budgets A,B,...    MiB, instead of the row's own sweep (memory, identity)
  --shares A,B,...     percent, instead of the row's own (bytes, bound, limit)
  --tokens N           tokens to decode (default: by row)
  --try-timeout N      seconds a setting of llama.cpp gets in row limit (default 240)
  --cpus LIST          taskset (default: none)
  --folder FOLDER      of models, for `all`; default .cache/models
  --label TEXT         appended to the file name
  --out FOLDER         default bench/results

Run as root for cgroups. Needs an idle machine: the load is printed with the results.
"""
import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import traceback

import measure
import rows
from programs import Headrace, Peer

ROOT = pathlib.Path(__file__).resolve().parent.parent


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
QWEN2 = "qwen2.5-coder-1.5b-q4_k_m.gguf"
LLAMA = "llama-4.5b-q8_0.gguf"
# What `all` measures each row on.
MODELS = {
    "memory": [SMOLLM2, GEMMA3, QWEN2],
    "overhead": [SMOLLM2],
    "bytes": [SMOLLM2, GEMMA3, QWEN2],
    "bound": [SMOLLM2, QWEN2],
    "limit": [QWEN2, LLAMA],
    "resident": [SMOLLM2, GEMMA3, QWEN2],
    "prefill": [SMOLLM2, GEMMA3, QWEN2],
    "first": [SMOLLM2],
    "identity": [SMOLLM2, GEMMA3],
}


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments_of(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=[*rows.ROWS, "all"])
    parser.add_argument("models", nargs="*", metavar="MODEL.gguf", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path,
                        default=ROOT / ".cache" / "models")
    parser.add_argument("--headrace", type=pathlib.Path,
                        default=ROOT / "build" / "release" / "headrace")
    parser.add_argument("--peer", type=pathlib.Path, default=ROOT / ".cache" / "peers")
    parser.add_argument("--side", choices=["both", "headrace", "peer"], default="both")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--budgets", type=numbers)
    parser.add_argument("--shares", type=numbers)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--try-timeout", type=int, default=240)
    parser.add_argument("--cpus")
    parser.add_argument("--label", default="")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results")
    options = parser.parse_args(argv)
    if options.row != "all" and not options.models:
        parser.error(f"row {options.row} needs a model")
    if options.row == "all" and options.models:
        parser.error("all takes its models from --folder")
    return options


class Setup:
    """What a row gets: the programs (None: not measured) and the options."""

    def __init__(self, options):
        self.options = options
        headrace, peer = Headrace(options.headrace, options.cpus), Peer(options.peer,
                                                                        options.cpus)
        self.headrace = headrace if options.side != "peer" else None
        self.peer = peer if options.side != "headrace" else None
        self.counter = peer if peer.available() else None
        for program, path in ((self.headrace, options.headrace),
                              (self.peer, options.peer)):
            if program and not program.available():
                sys.exit(f"run_bench: {program.name} is not at {path}")


def git_commit():
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True,
                              text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def markdown(facts, table):
    """A page: what was measured, on what, by which command; the table; remarks."""
    lines = [f"# {facts['row']}", "", facts["title"], ""]
    head, *body = table["rows"]
    lines.append("| " + " | ".join(head) + " |")
    lines.append("|" + "---|" * len(head))
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in body]
    lines += [""] + [f"- {remark}" for remark in table["remarks"]]
    m = facts["machine"]
    lines += [
        f"- Machine: {m['cpu']}, {m['cpus']} CPUs, {m['memory_bytes'] / 2**30:.1f} GiB, "
        f"Linux {m['kernel']}, AVX-512 VNNI {'yes' if m['avx512_vnni'] else 'no'}",
        f"- Load average of one minute: {facts['load_before']:.2f} before, "
        f"{facts['load_after']:.2f} after",
        f"- Commit {facts['commit']}, {facts['date']}",
        f"- llama.cpp: {facts['peer_build'].splitlines()[0]}",
        f"- Command: `{facts['command']}`", ""]
    return "\n".join(lines)


def measure_row(options):
    """Measures options.row on options.models and writes its two files."""
    setup = Setup(options)
    row = rows.ROWS[options.row]
    before = os.getloadavg()[0]
    table, raw = row(setup)
    facts = {
        "row": options.row, "title": " ".join(row.__doc__.split()),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "commit": git_commit(), "machine": measure.machine(),
        "command": "bench/run_bench.py " + " ".join(sys.argv[1:]),
        "peer_build": setup.peer.build() if setup.peer else "not measured",
        "load_before": before, "load_after": os.getloadavg()[0],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    label = f"-{options.label}" if options.label else ""
    stem = f"{datetime.date.today().isoformat()}-{options.row}{label}"
    (options.out / f"{stem}.json").write_text(
        json.dumps({**facts, "table": table, "raw": raw}, indent=1) + "\n")
    page = markdown(facts, table)
    (options.out / f"{stem}.md").write_text(page)
    print(page)


def say(text):
    print(f"run_bench: {text}", file=sys.stderr, flush=True)


def measure_all(options):
    """Every row in turn; the names of those that failed."""
    if options.side == "both" and not Peer(options.peer).available():
        say(f"llama.cpp is not at {options.peer}: its columns stay empty")
        options.side = "headrace"
    failed = []
    for name in rows.ROWS:
        wanted = [options.folder / file for file in MODELS[name]]
        there = [path for path in wanted if path.exists()]
        for path in wanted:
            if path not in there:
                say(f"row {name}: {path.name} is skipped, it is not in {options.folder}")
        if not there:
            continue
        say(f"row {name}: {', '.join(path.name for path in there)}")
        try:
            measure_row(argparse.Namespace(**{**vars(options), "row": name,
                                              "models": there}))
        except Exception:  # the other rows are worth having all the same
            traceback.print_exc()
            failed.append(name)
    return failed


def main():
    options = arguments_of(sys.argv[1:])
    if options.row != "all":
        measure_row(options)
        return 0
    failed = measure_all(options)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
