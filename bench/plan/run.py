#!/usr/bin/env python3
"""The planner's table: one command measures every row and writes bench/results/DATE-planner.{json,md}.

  cmake -S . -B build -DHEADRACE_BENCH=ON && ninja -C build plan_bench
  bench/plan/run.py [--data DIR] [--bench build/bench/plan_bench] [ROW ...]

--data: a folder with g10_bert_base_b256.json and g10_vit_b1280.json (kernel traces, not part of this
project; see tests/data/oracle/README.md); without it the rows that need them are left out and said so.
Rows: offload, joint, steps, whatif, time.
"""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACES = {"BERT-256": "g10_bert_base_b256.json", "ViT-1280": "g10_vit_b1280.json"}
# What a quick prototype of the joint choice reached, and the least that is asked.
JOINT = [("ViT-1280", 40, 98.3), ("ViT-1280", 32, 87.2), ("ViT-1280", 24, 77.8),
         ("BERT-256", 24, 99.0)]
SIZES = ((1000, 0.1), (10000, 1.0), (100000, 15.0))


def output(command):
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def machine():
    cpu = "unknown"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    return {"cpu": cpu, "cpus": os.cpu_count(), "kernel": platform.release()}


class Bench:
    def __init__(self, program, data):
        self.program, self.data = program, data

    def call(self, *args):
        run = subprocess.run([self.program, *map(str, args)], capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(f"plan_bench {' '.join(map(str, args))}: {run.stderr.strip()}")
        return [json.loads(line) for line in run.stdout.splitlines()]

    def trace(self, model):
        return os.path.join(self.data, TRACES[model])


def percent(x):
    return f"{100 * x:.2f}"


def bounds():
    with open(os.path.join(ROOT, "tests/data/oracle/g10_lp_bounds.json")) as f:
        return {(b["trace"] + ".json", b["budget_gib"], b["link_gib_per_s"]): b["bound_s"]
                for b in json.load(f)}


def offload(bench):
    lp = bounds()
    rows, gaps = [], []
    for model in TRACES:
        for link in (15.754, 50.0):
            for budget in (40, 32, 24, 20):
                r = bench.call("trace", bench.trace(model), budget, link, "offload")[0]
                bound = lp[TRACES[model], float(budget), link]
                if not r["fits"]:
                    rows.append([model, str(budget), f"{link:g}", "does not fit", "", "", "", "", ""])
                    continue
                gaps.append(r["makespan_s"] / bound - 1)
                rows.append([model, str(budget), f"{link:g}",
                             percent(r["compute_s"] / r["makespan_s"]),
                             percent(r["compute_s"] / bound), percent(gaps[-1]),
                             percent(r["makespan_s"] / r["bound_s"] - 1),
                             percent(r["noise_cost"]), f"{r['plan_seconds']:.2f}"])
    note = (f"Worst gap {percent(max(gaps))} %, {sum(g <= 0.02 for g in gaps)} of 16 cells at or below "
            "2 %." if gaps else "nothing fits")
    return ("Offload only: efficiency = compute / makespan; gap to the fluid LP. Target: gap <= 2 % in "
            "every cell; noise of +-25 % costs <= 1 %.",
            ["trace", "GiB", "GiB/s", "efficiency %", "LP bound %", "gap to LP %",
             "gap to the plan's own bound %", "noise costs %", "planning s"], rows, note)


def joint(bench):
    rows = []
    for model, budget, target in JOINT:
        r = bench.call("trace", bench.trace(model), budget, 15.754, "joint")[0]
        if not r["fits"]:
            rows.append([model, str(budget), "does not fit", f"{target}", "", "", "", ""])
            continue
        rows.append([model, str(budget), percent(r["compute_s"] / r["makespan_s"]), f"{target}",
                     percent(r["compute_s"] / r["bound_s"]), r["policy"],
                     percent(r["noise_cost"]), f"{r['plan_seconds']:.2f}"])
    return ("Offload and recompute together, codecs off, 15.754 GiB/s.",
            ["trace", "GiB", "efficiency %", "at least %", "the plan's own bound %", "policy",
             "noise costs %", "planning s"], rows, "")


def steps(bench):
    data = os.path.join(ROOT, "tests/data/oracle/steps.txt")
    whole, placed = bench.call("steps", data), bench.call("placement", data)
    rows = []
    for what, results in (("plan", whole), ("placement alone, no offsets", placed)):
        for order in ("fixed", "free"):
            if results is placed and order == "free":
                continue                         # placement takes the order as it is
            mine = [r for r in results if r["order"] == order and r["closed"]]
            gaps = sorted(r["makespan_s"] / r["optimum_s"] - 1 for r in mine if r["fits"])
            beaten = sum(r["fits"] and r["makespan_s"] < r["proven_s"] * (1 - 1e-6)
                         for r in results if r["order"] == order)
            rows.append([order, what, str(len(mine)), percent(sum(gaps) / len(gaps)),
                         percent(gaps[len(gaps) // 2]), percent(gaps[int(0.9 * len(gaps))]),
                         percent(gaps[-1]), str(sum(g > 0.05 for g in gaps)),
                         str(len(mine) - len(gaps)), str(beaten)])
    noise = [r["noise_cost"] for r in whole if r["fits"]]
    note = (f"{len(whole)} steps, {sum(r['closed'] for r in whole)} proven. Noise of +-25 % costs "
            f"{percent(sum(noise) / len(noise))} % in the mean (stall added, mean of 16 seeds), "
            f"{percent(max(noise))} % at most. The optimum is of live bytes: it knows of no offsets.")
    return ("Small steps against their exact optimum. Target: mean gap <= 1 %, max <= 5 %.",
            ["order", "what", "proven steps", "mean gap %", "median %", "90 % below", "max %",
             "over 5 %", "no plan", "better than proven"], rows, note)


def whatif(bench):
    rows, worst, falls = [], 0.0, True
    for by, values in (("budget", range(20, 49, 4)), ("link", (8, 12, 16, 24, 32, 48, 64))):
        for ways in ("offload", "joint"):
            r = bench.call("sweep", bench.trace("ViT-1280"), by, ways, *values)
            alone = [x["makespan_s"] for x in r if x["what"] == "alone" and x["fits"]]
            chain = [x["makespan_s"] for x in r if x["what"] == "inherited" and x["fits"]]
            rise = max([b / a - 1 for a, b in zip(alone, alone[1:])] + [0.0])
            never = all(b <= a for a, b in zip(chain, chain[1:]))
            worst, falls = max(worst, rise), falls and never
            rows.append([by, ways, " ".join(f"{x:.3f}" for x in chain), "yes" if never else "NO",
                         percent(rise)])
    return ("ViT-1280: makespan (s) along a sweep of budgets 20..48 GiB (15.754 GiB/s) and of links "
            "8..64 GiB/s (32 GiB). Target: never rises when inherited; independent plans rise by at "
            "most 0.5 %.",
            ["sweep", "ways", "inherited, s", "never rises", "largest rise of independent plans %"],
            rows, "")


def planning_time(bench):
    rows = []
    for ops, most in SIZES:
        r = bench.call("size", ops)[0]
        rows.append([str(r["ops"]), str(r["tensors"]), f"{r['cpu_seconds']:.2f}",
                     f"{r['plan_seconds']:.2f}", f"{most:g}",
                     str(r["peak_rss_mib"]), "yes" if r["fits"] else "no",
                     percent(r["makespan_s"] / r["bound_s"] - 1) if r["fits"] else ""])
    return ("Planning time on one core: a transformer's training step at 60 % of its peak, all ways.",
            ["ops", "tensors", "CPU seconds", "seconds elapsed", "at most", "peak RSS MiB", "fits",
             "gap to the plan's own bound %"], rows, "")


ROWS = {"offload": offload, "joint": joint, "steps": steps, "whatif": whatif, "time": planning_time}
NEED_DATA = ("offload", "joint", "whatif")


def markdown(result):
    lines = ["# Planner", "", f"{result['date']}, commit {result['commit']}, {result['machine']['cpu']}, "
             f"{result['machine']['cpus']} CPUs, load {result['load_before']:.1f} before and "
             f"{result['load_after']:.1f} after; `{result['command']}`", ""]
    for name, row in result["rows"].items():
        lines += [f"## {name}", "", row["title"], "", "| " + " | ".join(row["columns"]) + " |",
                  "|" + "---|" * len(row["columns"])]
        lines += ["| " + " | ".join(r) + " |" for r in row["table"]]
        lines += ["", row["note"], ""] if row["note"] else [""]
    return "\n".join(lines)


def main():
    a = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    a.add_argument("--data")
    a.add_argument("--bench", default=os.path.join(ROOT, "build/bench/plan_bench"))
    a.add_argument("--out", default=os.path.join(ROOT, "bench/results"))
    o = a.parse_args()
    unknown = [r for r in o.rows if r not in ROWS]
    if unknown:
        a.error(f"no row '{unknown[0]}'")
    if not os.path.exists(o.bench):
        a.error(f"'{o.bench}' does not exist: build it with -DHEADRACE_BENCH=ON")
    bench = Bench(o.bench, o.data)
    now = datetime.datetime.now()
    dirty = "+" if output(["git", "status", "--porcelain", "--untracked-files=no"]) else ""
    result = {"row": "planner", "date": now.isoformat(timespec="seconds"),
              "commit": output(["git", "rev-parse", "--short=12", "HEAD"]) + dirty,
              "machine": machine(),
              "command": "bench/plan/run.py " + " ".join(
                  ["--data DIR"] * bool(o.data) + o.rows),
              "load_before": os.getloadavg()[0], "rows": {}}
    for name in o.rows or ROWS:
        if name in NEED_DATA and not o.data:
            print(f"{name}: left out, it needs --data", file=sys.stderr)
            continue
        title, columns, table, note = ROWS[name](bench)
        result["rows"][name] = {"title": title, "columns": columns, "table": table, "note": note}
        result["load_after"] = os.getloadavg()[0]
        print(f"{name}: {title}")
        for r in [columns] + table:
            print("  " + " | ".join(r))
        print("  " + note, flush=True)
    if not result["rows"]:
        raise SystemExit("nothing was measured")
    name = os.path.join(o.out, f"{now.date()}-planner" +
                        ("-" + "-".join(o.rows) if o.rows else ""))
    with open(name + ".json", "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    with open(name + ".md", "w") as f:
        f.write(markdown(result) + "\n")
    print("written:", name + ".md")


if __name__ == "__main__":
    main()
