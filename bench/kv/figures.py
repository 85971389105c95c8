"""Rows of bench/kv/run.py that decode after a past drawn from a seed, or run what is short.

A row takes a Setup (run.py) and returns (table, remarks, raw): table = [(figure, target,
measured)], raw = what was measured, for the JSON file. Its docstring says what it is.
"""
import json
import pathlib
import re
import statistics

import selected_step
from fetch_text import ROOT
from measure import spread
from programs import MIB
from rows import mib, with_range

HERE = pathlib.Path(__file__).resolve().parent
SETTLE = 2       # first steps of a run, which read what later ones have
NEIGHBOURS = 256
FORMATS = ("f16", "q8", "q4")


def seconds(run, row=0):
    """The median step, without the first ones."""
    return statistics.median(run["rows"][row]["steps_s"][SETTLE:])


def loaded(run, row=0):
    """Bytes that a step reads, weights and KV, without the first ones: the median."""
    return statistics.median(run["rows"][row]["loaded_bytes"][SETTLE:])


def all_resident(s, positions, steps, **more):
    return s.bench_kv(f"{positions[-1]:,} positions, all in memory",
                      s.everything(positions[-1] + steps), positions, steps, moves=False, **more)


def budget_for(s, positions, share):
    """The budget in which `share` of the KV of `positions` stays in memory, from short runs."""
    kv = s.header.kv_bytes(positions)
    budget = s.model.stat().st_size + int(kv * share) + 40 * MIB
    for _ in range(4):
        run = s.bench_kv(f"looking for {share:.0%} of KV: {budget // MIB} MiB", budget,
                         [positions], 1)
        off = int(share * run["kv_bytes"]) - run["kv_resident_bytes"]
        if abs(off) < max(MIB, run["kv_bytes"] // 200):
            break
        budget += off
    return budget // MIB * MIB


def decode64k(s):
    """Steps after 65,536 positions, a quarter of KV in memory."""
    positions, steps = s.length(65536), 14
    budget = budget_for(s, positions, 0.25)
    disks, whole, moved = [s.disk()], [], []
    for _ in range(s.args.repeat):
        whole.append(all_resident(s, [positions], steps))
        moved.append(s.bench_kv(f"{positions:,} positions in {budget // MIB} MiB", budget,
                                [positions], steps))
        disks.append(s.disk())
    compute, rate = spread([seconds(r) for r in whole]), spread(disks)
    ratios = [seconds(m) / max(loaded(m) / statistics.mean(disks[i:i + 2]), seconds(w))
              for i, (w, m) in enumerate(zip(whole, moved))]
    share = moved[0]["kv_resident_bytes"] / moved[0]["kv_bytes"]
    measured = (
        f"**{with_range(spread(ratios), 2)}x**: "
        f"{with_range(spread([1e3 * seconds(r) for r in moved]))} ms for "
        f"{loaded(moved[0]) / MIB:,.0f} MiB a step; bytes at {rate['median'] / 1e9:.2f} GB/s "
        f"{1e3 * loaded(moved[0]) / rate['median']:.0f} ms, compute alone "
        f"{1e3 * compute['median']:.0f} ms; {budget // MIB} MiB, {share:.0%} of KV in memory")
    table = [(f"decode after {positions:,} positions, a quarter of KV in memory",
              "<= 1.15 x max(bytes / disk rate, compute)", measured)]
    return table, [f"{s.args.threads} threads; disk rate by `headrace probe` before and after "
                   "each pair of runs, in the folder of KV"], {
        "budget": budget, "disk": disks, "resident": whole, "moved": moved, "ratios": ratios}


def emulated(s):
    """A step behind an emulated link that is fast enough to hide its reads."""
    positions, steps = s.length(65536), 34
    disk, table, raw = s.disk(), [], []
    for threads in dict.fromkeys((s.args.threads, 1)):
        first = all_resident(s, [positions], steps, threads=threads)
        kv = first["kv_bytes"]
        # Reads that this disk, which is behind the link, serves in a third of the step.
        share = max(0.25, 1 - seconds(first) * disk / 3 / kv)
        budget = budget_for(s, positions, share)
        whole, moved, link = [first], [], None
        for i in range(s.args.repeat):
            if i:
                whole.append(all_resident(s, [positions], steps, threads=threads))
            if link is None:  # what a step reads takes half of it
                reads = (1 - share) * kv
                link = 2 * reads / seconds(first)
            moved.append(s.bench_kv(
                f"{positions:,} positions in {budget // MIB} MiB behind {link / 1e9:.2f} GB/s, "
                f"{threads} threads", budget, [positions], steps,
                extra=["--kv-link", f"{link:.0f}"], threads=threads))
        ratio = [seconds(m) / seconds(w) - 1 for w, m in zip(whole, moved)]
        table.append((
            f"step behind an emulated link of {link / 1e9:.2f} GB/s, {share:.0%} of KV in memory, "
            f"{threads} thread{'s' * (threads > 1)}", "<= +1 % of all in memory",
            f"**{with_range(spread([100 * r for r in ratio]))} %**: "
            f"{with_range(spread([1e3 * seconds(m) for m in moved]))} ms for "
            f"{loaded(moved[0]) / MIB:,.0f} MiB, "
            f"{with_range(spread([1e3 * seconds(w) for w in whole]))} ms with all in memory"))
        raw.append({"threads": threads, "share": share, "link": link, "resident": whole,
                    "moved": moved})
    return table, ["the link is emulated in front of the disk, which must be faster: hence the "
                   "share in memory; reads take a third of a step of the disk, half of a step of "
                   f"the link (disk {disk / 1e9:.2f} GB/s)"], raw


def slowest(steps):
    """The largest ratio of a step to the median of its 256 neighbours."""
    worst = 0
    for i, step in enumerate(steps):
        begin = max(0, min(i - NEIGHBOURS // 2, len(steps) - NEIGHBOURS - 1))
        around = steps[begin:i] + steps[i + 1:begin + NEIGHBOURS + 1]
        worst = max(worst, step / statistics.median(around))
    return worst


def growth(s):
    """Peak memory and even steps from 1K to 128K positions."""
    budget = s.kv_budget(400)
    steps = s.args.growth_steps
    points = [s.length(p) for p in (1024, 4096, 16384, 65536)]
    points.append(s.length(131072) - (steps + 63) // 64 * 64)
    points = sorted({p for p in points if p > 0})
    run = s.bench_kv(f"{steps} steps at each of {points} in {budget // MIB} MiB", budget, points,
                     steps + 1)
    times = [row["steps_s"] for row in run["rows"]]
    first, times[0] = times[0][0], times[0][1:]
    ratios = [slowest(t) for t in times]
    medians = [1e3 * statistics.median(t) for t in times]
    table = [
        (f"peak from {points[0]:,} to {points[-1] + steps:,} positions", f"<= {budget // MIB} MiB",
         f"**{mib(run['peak_rss'])} MiB**; KV {mib(run['kv_bytes'])} MiB"),
        (f"a step against the median of its {NEIGHBOURS} neighbours, {steps} steps at each of "
         + ", ".join(f"{p:,}" for p in points), "<= 3x",
         f"**{max(ratios):.2f}x**; slowest at each "
         + ", ".join(f"{r:.2f}" for r in ratios) + "x; medians "
         + ", ".join(f"{m:.1f}" for m in medians) + " ms")]
    remarks = [f"the first step of the process, which reads the weights, is not among them: "
               f"{1e3 * first:.0f} ms"]
    if steps <= NEIGHBOURS:
        remarks.append(f"{steps} steps: fewer than {NEIGHBOURS} neighbours")
    return table, remarks, run


def perplexity(s):
    """q8 and q4 against f16 on a fixed text."""
    window, windows = s.length(4096), 2
    runs = {}
    for name in FORMATS:
        runs[name] = s.json_of(
            f"{windows} windows of {window:,} tokens, {name}", "bench", "perplexity", s.model,
            "--text", s.text, "--window", window, "--windows", windows, "--kv", name,
            "--threads", s.args.threads, "--json", *s.common)
    base = runs["f16"]["perplexity"]
    table = [(f"perplexity with {name} KV, {windows} windows of {window:,} tokens",
              f"<= +{most} %", f"**{100 * (runs[name]['perplexity'] / base - 1):+.2f} %**: "
              f"{runs[name]['perplexity']:.4f} against {base:.4f}")
             for name, most in (("q8", "0.1"), ("q4", "1.5"))]
    return table, [], runs


def sparse(s):
    """Needles where decode steps attend an eighth, and what such a step takes."""
    # The question is a step of its own: one more than whole chunks.
    positions = max(2, 64 // s.args.divide) * 512 - 511
    selected = max(256, (positions - 1) // 8 // 64 * 64)  # four segments are the least
    script, folder = [s.args.python, HERE / "needle.py"], s.folder / "needle"
    s.command("a model that finds needles", [*script, "model", folder])
    found = []
    for name, prompts in (("f16", 4), ("q8", 2), ("q4", 2)):
        said = s.command(f"{prompts} needles in {positions:,} positions, {name}", [
            *script, "check", s.args.headrace, folder, "--positions", positions, "--prompts",
            prompts, "--", "--memory", "64MiB", "--kv", name, "--kv-sparse", selected, "--kv-dir",
            s.folder, *s.common], good=(0, 1))
        counted = re.search(r"\d+ of \d+", said["stdout"])
        if not counted:
            raise RuntimeError(f"needles, {name}: {said['stderr'].strip()[-300:]}")
        found.append(f"{name} {counted.group()}")
    kv_positions, steps = s.length(32768), 66
    budget = budget_for(s, kv_positions, 0.25)
    runs = {}
    for what, extra in (("all", []), ("an eighth", ["--kv-sparse", max(256, kv_positions // 8)])):
        runs[what] = s.bench_kv(f"{kv_positions:,} positions, {what} attended", budget,
                                [kv_positions], steps, extra=extra)
    # The mean: one step in 64 attends everything.
    times = {k: statistics.mean(r["rows"][0]["steps_s"][SETTLE:]) for k, r in runs.items()}
    table = [
        (f"needles found at {positions:,} positions, {selected:,} attended", "100 %",
         "**" + ", ".join(found) + "**"),
        (f"time a step at {kv_positions:,} positions, an eighth attended, against all",
         "<= 0.25x", f"**{times['an eighth'] / times['all']:.2f}x**: "
         f"{1e3 * times['an eighth']:.1f} ms against {1e3 * times['all']:.1f} ms, in "
         f"{budget // MIB} MiB")]
    return table, [f"mean of {steps - SETTLE} steps, one of which attends everything"], {
        "needles": found, "steps": runs}


def seeds(s):
    """The published case in the simulator; longer contexts in the same memory."""
    scenarios = s.json_of("headrace bench scenarios", "bench", "scenarios", "--json")
    cache = next(x for x in scenarios if x["name"] == "Key-value cache at long context")
    full = {row["figure"]: row["ours"] for row in cache["rows"]}
    table = [("61.2 GB held in 45.0, simulated, full attention", ">= 99 % of the throughput",
              f"**{full['throughput in 45.0 GB']}**; 99 % from "
              f"{full['least memory at 99 % of the throughput']} on")]
    raw = {"scenario": cache, "selected": []}
    for part in (1, 8, 16, 24, 32):
        path = s.folder / f"selected{part}.json"
        path.write_text(json.dumps(selected_step.workload(part)))
        times = {}
        for budget in (64, 45):
            plan = s.json_of(f"1/{part} of seldom attended blocks a step, {budget} GB", "plan",
                             path, "--machine", selected_step.MACHINE, "--memory", f"{budget}GB",
                             "--goal", "throughput", "--json")
            times[budget] = 1e3 * plan["predicted_s"] / part
        raw["selected"].append({"part": part, "step_ms": times})
    every = raw["selected"].pop(0)["step_ms"][64]
    for r in raw["selected"]:
        part, times = r["part"], r["step_ms"]
        table.append((f"the same, 1/{part} of the seldom attended blocks in a step",
                      ">= 99 % of the throughput",
                      f"**{100 * times[64] / times[45]:.1f} %** of the same with everything kept: "
                      f"{times[45]:.1f} ms against {times[64]:.1f} ms a step; {every:.1f} ms "
                      "attending all, everything kept"))
    rows, runs = longer_context(s)
    return table + rows, [
        "simulated: " + "; ".join(cache["assumptions"]),
        "selected: of the 17.3 blocks of 4,096 positions of a layer 9.3 are attended in each step, "
        "8 once in so many steps, evenly spread (bench/kv/selected_step.py)",
    ], {**raw, "longer": runs}


def longer_context(s):
    """Short decoding with room for 71K positions, and for 123K in the same memory."""
    short, steps, shown = [s.length(p) for p in (1024, 4096)], 130, 12
    less, more = s.length(71_680), s.length(123_008)
    kv = s.header.kv_bytes(less)
    budget = (s.model.stat().st_size + kv + 64 * MIB) // MIB * MIB
    runs = {less: [], more: []}
    for _ in range(2 * s.args.repeat):  # they are short, and differ by a few percent
        for context, into in runs.items():
            into.append(s.bench_kv(f"room for {context:,} positions in {budget // MIB} MiB",
                                   budget, short, steps, extra=["--context", context]))
    times = {c: [spread([1e3 * seconds(r, i) for r in rs]) for i in range(len(short))]
             for c, rs in runs.items()}
    ratios = [100 * (times[more][i]["median"] / times[less][i]["median"] - 1)
              for i in range(len(short))]
    end = more - shown // 64 * 64 - 64
    long = s.bench_kv(f"{end:,} positions in {budget // MIB} MiB", budget, [end], shown,
                      extra=["--context", more])
    table = [(
        f"{less // 1000}K to {more // 1000}K positions in {budget // MIB} MiB: a step at "
        + " and ".join(f"{p:,}" for p in short), "<= +10 %",
        "**" + ", ".join(f"{r:+.1f} %" for r in ratios) + "**: "
        + "; ".join(f"{with_range(times[more][i], 2)} against {with_range(times[less][i], 2)} ms"
                    for i in range(len(short)))
        + f"; {1e3 * seconds(long):.0f} ms at {end:,} positions, peak {mib(long['peak_rss'])} MiB")]
    return table, {"short": {str(c): r for c, r in runs.items()}, "long": long}


def estimate(s):
    """KV bytes that a plan says against growth of memory that the kernel counts."""
    table, raw, worst = [], [], 0.0
    models = sorted(p for p in (ROOT / "tests/data/models").iterdir()
                    if p.suffix == ".gguf" or p.is_dir())
    for model in models:
        said, counted, own = [], [], []
        for positions in (65536, 1 << 20):
            # All but a tile is filled, so that the kernel counts it.
            context = ["--context", positions]
            plan = s.json_of(f"{model.name}: plan of {positions:,}", "plan", model, *context,
                             "--memory", "4GiB", "--kv-dir", "none", "--json")
            run = s.bench_kv(f"{model.name}: {positions:,} positions", 4096 * MIB,
                             [positions - 64], 2, extra=context, model=model,
                             moves=False)
            said.append(plan["decode"]["kv_bytes"])
            own.append(run["kv_resident_bytes"])
            counted.append(run["peak_rss"])
        off = 100 * ((counted[1] - counted[0]) / (said[1] - said[0]) - 1)
        worst = max(worst, abs(off))
        raw.append({"model": model.name, "said": said, "allocated": own, "rss": counted,
                    "off_percent": off})
    exact = sum(r["said"] == r["allocated"] for r in raw)
    table.append((f"KV bytes said before a run, {len(raw)} tiny models of 5 families", "within 1 %",
                  f"**{exact} of {len(raw)} equal to what was allocated**; growth of peak memory "
                  f"from 64K to 1M positions within {worst:.2f} % of what was said"))
    return table, [f"{r['model']}: {mib(r['said'][1])} MiB at 1M, memory grew "
                   f"{r['off_percent']:+.2f} % against it" for r in raw], raw
