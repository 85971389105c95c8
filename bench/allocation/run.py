#!/usr/bin/env python3
"""Measures `headrace offsets`, and minimalloc where a build of it is given.

  run.py minimalloc --headrace BIN --peer BIN    A..K at their capacity, both programs in turn
  run.py slack      --headrace BIN --peer BIN    A..K with 1, 2 and 5 % more room
  run.py large      --headrace BIN --data DIR    large problems: height above the load, and time
  run.py random     --headrace BIN [--count N]   random problems: within 1.005 x load, or optimal

One core (taskset); seconds are CPU seconds of the whole process, so that other work on the machine
counts little; medians. Every answer is checked here by a validator of its own. Prints a table in
Markdown; -o FILE also writes it there with machine, commit and command.
"""
import argparse
import csv
import datetime
import json
import os
import pathlib
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CAPACITY = 1048576


def cpu_seconds(command, timeout):
    """Seconds of CPU, exit code, output; None for the code when time ran out."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (timeout, timeout))
    done = subprocess.run(["taskset", "-c", "0"] + command, capture_output=True, text=True,
                          preexec_fn=limit)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.returncode if done.returncode >= 0 else None, done.stdout


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def height_of(problem, solution):
    """The height of a valid solution file of `problem`; raises when it is not valid."""
    asked = {r["id"]: (int(r["lower"]), int(r["upper"]), int(r["size"])) for r in read(problem)}
    placed = []
    for r in read(solution):
        lower, upper, size = asked.pop(r["id"])
        placed.append((lower, upper, int(r["offset"]), int(r["offset"]) + size))
    assert not asked, "buffers without an offset"
    placed.sort()
    alive = []
    for lower, upper, begin, end in placed:
        assert begin >= 0
        alive = [a for a in alive if a[0] > lower]
        for _, b, e in alive:
            assert end <= b or e <= begin, "two buffers share bytes"
        alive.append((upper, begin, end))
    return max((p[3] for p in placed), default=0)


def ours(a, path, out, capacity=None):
    command = [a.headrace, "offsets", str(path), "--json", "-o", out,
               "--nodes", str(a.nodes)]
    if capacity is not None:
        command += ["--capacity", str(capacity)]
    seconds, code, text = cpu_seconds(command, a.timeout)
    if code is None or code not in (0, 3):
        return seconds, None
    result = json.loads(text)
    if result["fits"]:
        assert height_of(path, out) == result["height"]
    return seconds, result


def peer(a, path, out, capacity):
    seconds, code, _ = cpu_seconds([a.peer, f"--capacity={capacity}", f"--input={path}",
                                    f"--output={out}", f"--timeout={a.timeout}s"], a.timeout)
    solved = code == 0 and os.path.exists(out) and height_of(path, out) <= capacity
    return seconds, solved


def compare(a, capacities):
    rows = ["| problem | capacity | ours s | minimalloc s | ratio |", "|---|---|---|---|---|"]
    sums = {}
    for capacity in capacities:
        for letter in "ABCDEFGHIJK":
            path = ROOT / f"tests/data/allocation/{letter}.1048576.csv"
            mine, theirs, solved, they_solved = [], [], True, True
            for _ in range(a.repetitions):
                with tempfile.TemporaryDirectory() as folder:
                    s, result = ours(a, path, f"{folder}/ours.csv", capacity)
                    mine.append(s)
                    solved &= result is not None and result["fits"]
                    if a.peer:
                        s, yes = peer(a, path, f"{folder}/peer.csv", capacity)
                        theirs.append(s)
                        they_solved &= yes
            m = statistics.median(mine)
            t = statistics.median(theirs) if theirs else float("nan")
            total = sums.setdefault(capacity, [0.0, 0.0, 0, 0])
            total[0] += m
            total[1] += t
            total[2] += solved
            total[3] += they_solved
            rows.append(f"| {letter} | {capacity} | {m:.2f}{'' if solved else ' not solved'} | "
                        f"{t:.2f}{'' if they_solved else ' not solved'} | {t / m:.1f} |")
            print(rows[-1], file=sys.stderr)
    for capacity, (m, t, solved, they) in sums.items():
        rows.append(f"| all, {capacity} | {solved} and {they} of 11 solved | {m:.2f} | {t:.2f} | "
                    f"{t / m:.1f} |")
    return rows


def large(a):
    rows = ["| problem | buffers | above the load % | CPU s | method |", "|---|---|---|---|---|"]
    for name in ["pangu_2.6B", "S_1", "snapshot_256_training", "snapshot_512_training", "resnet50",
                 "G_1"]:
        path = pathlib.Path(a.data) / f"{name}.csv"
        with tempfile.TemporaryDirectory() as folder:
            runs = [ours(a, path, f"{folder}/o.csv") for _ in range(a.repetitions)]
        r = runs[0][1]
        rows.append(f"| {name} | {r['buffers']} | {100 * (r['height'] / r['load'] - 1):.4f} | "
                    f"{statistics.median(s for s, _ in runs):.2f} | {r['method']} |")
        print(rows[-1], file=sys.stderr)
    return rows


def random_problem(seed):
    """50-2,000 buffers; sizes log-uniform 64 B - 64 MiB; lifetimes short, long or nested."""
    draw = random.Random(seed)
    count = round(50 * 40 ** draw.random())
    kind = ("short", "long", "nested")[seed % 3]
    times = 2 * count
    buffers = []
    for i in range(count):
        size = round(64 * 2 ** (20 * draw.random()))
        if kind == "short":
            lower = draw.randrange(times)
            upper = lower + 1 + draw.randrange(12)
        elif kind == "long":
            lower, upper = sorted(draw.sample(range(times + 1), 2))
        else:  # a stack: what begins later ends earlier, as activations between forward and back
            lower = i
            upper = times - i + draw.randrange(-2, 3) if draw.random() < 0.7 else i + 2
            upper = max(upper, lower + 1)
        buffers.append((lower, upper, size))
    return kind, buffers


def random_set(a):
    good = {"short": 0, "long": 0, "nested": 0}
    total = dict(good)
    worst, seconds, late = 1.0, [], 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(a.count):
            kind, buffers = random_problem(seed)
            path = f"{folder}/p.csv"
            with open(path, "w") as f:
                f.write("id,lower,upper,size\n")
                f.writelines(f"{i},{b[0]},{b[1]},{b[2]}\n" for i, b in enumerate(buffers))
            s, r = ours(a, path, f"{folder}/o.csv")
            seconds.append(s)
            total[kind] += 1
            if r is None:
                late += 1
                continue
            ratio = r["height"] / r["load"]
            worst = max(worst, ratio)
            good[kind] += r["optimal"] or ratio <= 1.005
    rows = ["| lifetimes | problems | within 1.005 x load, or optimal |", "|---|---|---|"]
    rows += [f"| {k} | {total[k]} | {good[k]} |" for k in total]
    rows.append(f"| all | {a.count} | {sum(good.values())} |")
    rows.append("")
    rows.append(f"{late} did not end in {a.timeout} CPU seconds (counted as failed). At most "
                f"{a.nodes} nodes of search.")
    rows.append(f"Worst height {worst:.4f} x load; CPU seconds: median "
                f"{statistics.median(seconds):.2f}, most {max(seconds):.2f}.")
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["minimalloc", "slack", "large", "random"])
    p.add_argument("--headrace", default=str(ROOT / "build/headrace"))
    p.add_argument("--peer")
    p.add_argument("--data")
    p.add_argument("--count", type=int, default=1000)
    p.add_argument("--repetitions", type=int, default=3)
    p.add_argument("--nodes", type=int, default=20000000, help="of our search")
    p.add_argument("--timeout", type=int, default=20, help="CPU seconds of one run")
    p.add_argument("-o", dest="output")
    a = p.parse_args()
    if a.what == "minimalloc":
        rows = compare(a, [CAPACITY])
    elif a.what == "slack":
        rows = compare(a, [CAPACITY * q // 100 for q in (101, 102, 105)])
    else:
        rows = large(a) if a.what == "large" else random_set(a)
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"],
                            capture_output=True, text=True).stdout.strip()
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "?")
    load = os.getloadavg()[0]
    rows += ["", f"- Machine: {model}, {os.cpu_count()} CPUs, {platform.system()} "
             f"{platform.release()}; load average of one minute {load:.1f}",
             "- One core, CPU seconds of the whole process, medians of "
             f"{a.repetitions if a.what != 'random' else 1}",
             f"- Commit {commit}, {datetime.datetime.now().isoformat(timespec='seconds')}",
             f"- Command: `bench/allocation/run.py {' '.join(sys.argv[1:2])} --nodes {a.nodes}`"]
    text = f"# offsets: {a.what}\n\n" + "\n".join(rows) + "\n"
    print(text)
    if a.output:
        pathlib.Path(a.output).write_text(text)


if __name__ == "__main__":
    main()
