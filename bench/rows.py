"""The rows of the table of targets, one function each: see run_bench.py.

A row takes a Setup and returns (table, raw): table = {"rows": [head, row, ...],
"remarks": [...]}, raw = everything measured, for the JSON file. A function's docstring
is the title of its page. A figure that could not be measured is a dash, with the reason
in the remarks; nothing is left out silently.
"""
import os
import tempfile

import measure
from gguf_header import Header
from measure import OFTEN_S, spread
from programs import MIB, PEER_SETTINGS, prompt_of

TEXT_LIMIT = 2000  # characters of a program's output kept in the results


def kept(result):
    """A result for the JSON file: long texts cut, token lists whole."""
    if result is None:
        return None
    out = dict(result)
    for key in ("stdout", "stderr"):
        out[key] = out[key][-TEXT_LIMIT:]
    return out


def show(value, digits=2, scale=1.0):
    return "-" if value is None else f"{value / scale:.{digits}f}"


def mib(value):
    return show(value, 1, MIB)


def with_range(figures, digits=1):
    """median (least - most)"""
    if figures["median"] is None:
        return "-"
    return (f"{figures['median']:.{digits}f} "
            f"({figures['least']:.{digits}f}-{figures['most']:.{digits}f})")


def ratio(a, b):
    return a / b if a is not None and b else None


def figure(result, key):
    """A number of Headrace's report, None where the run failed."""
    if result["rc"] != 0:
        return None
    return result["report"].get(key)


def failure(result):
    """Why a run gave nothing, in a few words; "" if it ended well."""
    if result["rc"] == 0:
        return ""
    if result["timed_out"]:
        return f"stopped after {result['wall_s']:.0f} s"
    cgroup = result["cgroup"]
    if cgroup and cgroup["oom_kills"]:
        return f"killed by the memory limit after {result['wall_s']:.0f} s"
    last = (result["stderr"].strip().splitlines() or ["no message"])[-1]
    return f"exit {result['rc']}: {last[:100]}"


# ---- memory -------------------------------------------------------------------------


def budgets_for(model, options):
    """The sweep of budgets, bytes."""
    if options.budgets:
        return [b * MIB for b in options.budgets]
    size = os.path.getsize(model)
    shares = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2)
    return [int(size * s) // MIB * MIB + 40 * MIB for s in shares]


def memory(setup):
    """Peak memory (VmHWM, and sampled RssAnon + RssShmem + VmSwap) against the budget,
    free and inside a cgroup limited to the budget. Target: never above; never
    killed."""
    head = ["model", "budget MiB", "peak RSS MiB", "private MiB", "own count MiB",
            "in cgroup: peak RSS MiB", "cgroup peak MiB", "outcome"]
    table, raw, bad = [head], [], 0
    for model in setup.options.models:
        for budget in budgets_for(model, setup.options):
            tokens = setup.options.tokens or 24
            free = setup.headrace.run(model, memory=budget, tokens=tokens,
                                      every_s=OFTEN_S)
            measure.evict(model)
            caged = setup.headrace.run(model, memory=budget, tokens=tokens, limit=budget,
                                       every_s=OFTEN_S)
            raw.append({"model": str(model), "budget": budget, "free": kept(free),
                        "caged": kept(caged)})
            above = max(free["peak_rss"], caged["peak_rss"]) > budget
            if free["rc"] == caged["rc"] == 3:
                outcome = "refused (exit 3)"
            elif above:
                outcome = "ABOVE the budget"
            else:
                outcome = failure(free) or failure(caged) or "within"
            bad += outcome not in ("within", "refused (exit 3)")
            table.append([model.name, mib(budget), mib(free["peak_rss"]),
                          mib(free["peak_private"]),
                          mib(figure(free, "peak_rss_bytes")), mib(caged["peak_rss"]),
                          mib(caged["cgroup"]["peak"]), outcome])
    return {"rows": table, "remarks": [f"{bad} of {len(table) - 1} budgets broken"]}, raw


def overhead(setup):
    """Memory not spent on weights: peak RSS minus resident weights minus the f16 cache
    of 2048 tokens. Target for the 135M model: at most 40 MiB."""
    context = 2048
    head = ["model", "budget MiB", "peak RSS MiB", "resident weights MiB", "cache MiB",
            "rest MiB"]
    table, raw = [head], []
    for model in setup.options.models:
        header = Header(model)
        cache = header.kv_bytes(context)
        size = os.path.getsize(model)
        sweep = ([b * MIB for b in setup.options.budgets] if setup.options.budgets else
                 [size + cache + 64 * MIB, size // 2 + cache + 40 * MIB])
        for budget in sweep:
            result = setup.headrace.run(model, memory=budget, context=context,
                                        tokens=setup.options.tokens or 32,
                                        every_s=OFTEN_S)
            raw.append({"model": str(model), "run": kept(result), "cache": cache})
            resident = figure(result, "resident_bytes")
            rest = None if resident is None else result["peak_rss"] - resident - cache
            table.append([model.name, mib(budget), mib(result["peak_rss"]),
                          mib(resident), mib(cache),
                          mib(rest) if rest is not None else failure(result)])
    return {"rows": table, "remarks": [
        "a streamed weight's ring counts as rest: it is memory that holds no resident "
        "weight"]}, raw


# ---- bytes and the bound --------------------------------------------------------------


def budget_for_share(setup, model, share, threads):
    """The budget at which about `share` percent of the step's bytes are resident, found
    by short runs: (budget, last result), or (None, last result)."""
    step = Header(model).step_bytes()
    wanted = step * share // 100
    budget, result = wanted + 48 * MIB, None
    for _ in range(6):
        result = setup.headrace.run(model, memory=budget, tokens=2, threads=threads,
                                    context=512)
        resident = figure(result, "resident_bytes")
        if resident is None:
            budget += 16 * MIB
            continue
        if abs(resident - wanted) <= max(step // 100, MIB):
            return budget, result
        budget += wanted - resident
    return (budget if figure(result, "resident_bytes") is not None else None), result


def bytes_a_token(setup):
    """Bytes read a decoded token in steady state, counted by the kernel: the difference
    of two runs of 8 and 40 tokens, against M - R (M: 4 KiB-rounded union of what a step
    loads). Target: within 2 %; 0 when everything fits."""
    head = ["model", "budget MiB", "R % of M", "M - R MiB", "plan says MiB",
            "report counts MiB", "kernel counts MiB", "kernel / (M - R)"]
    table, raw, few, many = [head], [], 8, 40
    for model in setup.options.models:
        step = Header(model).step_bytes()
        for share in setup.options.shares or [25, 50, 75, 90, 100]:
            if share >= 100:
                budget = os.path.getsize(model) + 256 * MIB
            else:
                budget, last = budget_for_share(setup, model, share, 1)
            if budget is None:
                table.append([model.name, "-", f"{share} wanted", "-", "-", "-", "-",
                              failure(last)])
                continue
            short, long = (setup.headrace.run(model, memory=budget, tokens=n, threads=1,
                                              context=512) for n in (few, many))
            raw.append({"model": str(model), "share": share, "short": kept(short),
                        "long": kept(long)})
            resident = figure(long, "resident_bytes")
            if resident is None or short["rc"] != 0:
                table.append([model.name, mib(budget), f"{share} wanted", "-", "-", "-",
                              "-", failure(short) or failure(long)])
                continue
            counted = (long["read_bytes"] - short["read_bytes"]) / (many - few)
            missing = max(0, step - resident)
            table.append([
                model.name, mib(budget), show(100 * resident / step, 1), mib(missing),
                mib(figure(long, "streamed_bytes_per_token")),
                mib(figure(long, "read_bytes_per_token")), mib(counted),
                show(ratio(counted, missing), 3)])
    return {"rows": table, "remarks": [
        "rows of the embedding table are in the kernel's count and not in M - R"]}, raw


def bound(setup):
    """Decode seconds a token against the bound max((M - R) / disk bandwidth measured
    just before, seconds a token when fully resident). Target: at most 1.15."""
    options = setup.options
    threads = options.threads[-1]
    head = ["model", "R % of M", "budget MiB", "disk GB/s", "tokens/s",
            "resident tokens/s", "bound tokens/s", "time / bound", "stalled"]
    table, raw = [head], []
    for model in options.models:
        step = Header(model).step_bytes()
        tokens = options.tokens or 32
        full = os.path.getsize(model) + 256 * MIB
        for share in options.shares or [25, 50, 75, 90]:
            budget, last = budget_for_share(setup, model, share, threads)
            if budget is None:
                table.append([model.name, f"{share} wanted"] + ["-"] * 6
                             + [failure(last)])
                continue
            runs = []
            for _ in range(options.repetitions):
                disk = setup.headrace.disk_bandwidth(model)
                resident = setup.headrace.run(model, memory=full, tokens=tokens,
                                              threads=threads, context=512)
                streamed = setup.headrace.run(model, memory=budget, tokens=tokens,
                                              threads=threads, context=512)
                runs.append((disk, resident, streamed))
            raw.append({"model": str(model), "share": share, "budget": budget, "runs": [
                {"disk": d, "resident": kept(r), "streamed": kept(s)}
                for d, r, s in runs]})
            ratios, bounds = [], []
            for disk, resident, streamed in runs:
                rate = figure(streamed, "decode_tokens_per_s")
                whole = figure(resident, "decode_tokens_per_s")
                if not (disk and rate and whole):
                    continue
                missing = max(0, step - streamed["report"]["resident_bytes"])
                least = max(missing / disk, 1 / whole)
                bounds.append(1 / least)
                ratios.append(1 / rate / least)
            held = figure(runs[-1][2], "resident_bytes")
            table.append([
                model.name, show(held and 100 * held / step, 1), mib(budget),
                with_range(spread([d and d / 1e9 for d, _, _ in runs]), 2),
                with_range(spread([figure(s, "decode_tokens_per_s")
                                   for _, _, s in runs]), 2),
                with_range(spread([figure(r, "decode_tokens_per_s")
                                   for _, r, _ in runs]), 2),
                with_range(spread(bounds), 2), with_range(spread(ratios), 3),
                with_range(spread([figure(s, "stall_fraction")
                                   for _, _, s in runs]), 2)])
    return {"rows": table, "remarks": [f"{threads} threads"]}, raw


# ---- against llama.cpp ----------------------------------------------------------------


def best_peer_setting(setup, model, limit, tokens):
    """Tries every setting once in the limit, cold; returns (best or None, all)."""
    tried = []
    for words, flags in PEER_SETTINGS:
        measure.evict(model)
        result = setup.peer.bench(model, tokens=tokens, options=flags, limit=limit,
                                  timeout_s=setup.options.try_timeout)
        tried.append({"setting": words, "flags": flags, "run": kept(result),
                      "tokens_per_s": result["tokens_per_s"],
                      "failure": failure(result)})
    alive = [t for t in tried if t["tokens_per_s"]]
    return max(alive, key=lambda t: t["tokens_per_s"], default=None), tried


def limit(setup):
    """Tokens a second in the same cgroup limit (a share of the file), page cache dropped
    first; Headrace as it is, llama.cpp at the best surviving of its settings (each tried
    once, see the remarks). Targets: 1.4x at a quarter, 2x at half, 4x at three
    quarters."""
    options = setup.options
    head = ["model", "limit MiB", "% of file", "headrace tokens/s", "llama.cpp tokens/s",
            "ratio", "its best setting", "disk GB/s"]
    table, raw, remarks = [head], [], []
    for model in options.models:
        size = os.path.getsize(model)
        for share in options.shares or [25, 50, 75]:
            cage = size * share // 100 // MIB * MIB
            tokens = options.tokens or (16 if size < 2 << 30 else 8)
            best, tried = None, []
            if setup.peer:
                best, tried = best_peer_setting(setup, model, cage, tokens)
                remarks += [f"{model.name} at {share} %: {t['setting']}: "
                            + (t["failure"] or f"{t['tokens_per_s']:.2f} tokens/s")
                            for t in tried]

            def ours():
                if not setup.headrace:
                    return None
                measure.evict(model)
                return setup.headrace.run(model, memory=cage, limit=cage, tokens=tokens,
                                          threads=options.threads[-1])

            def theirs():
                if not best:
                    return None
                measure.evict(model)
                return setup.peer.bench(model, tokens=tokens, options=best["flags"],
                                        limit=cage, timeout_s=300)

            disks = [measure.disk_bandwidth(model)]
            a, b = measure.alternate(ours, theirs, options.repetitions)
            disks.append(measure.disk_bandwidth(model))
            raw.append({"model": str(model), "limit": cage, "tried": tried,
                        "disk": disks, "headrace": [kept(r) for r in a],
                        "peer": [kept(r) for r in b]})
            remarks += [f"{model.name} at {share} %: headrace: {failure(r)}"
                        for r in a if r and r["rc"] != 0]
            mine = spread([r and figure(r, "decode_tokens_per_s") for r in a])
            other = spread([r and r["tokens_per_s"] for r in b])
            table.append([
                model.name, mib(cage), share, with_range(mine, 2), with_range(other, 2),
                show(ratio(mine["median"], other["median"])),
                best["setting"] if best else "none survived" if setup.peer else "-",
                with_range(spread([d and d / 1e9 for d in disks]), 2)])
    return {"rows": table, "remarks": remarks}, raw


def resident(setup):
    """Decoding tokens a second with everything in memory, both programs taking turns,
    llama.cpp with its defaults. Target: at least 1.0x."""
    options = setup.options
    head = ["model", "threads", "headrace tokens/s", "llama.cpp tokens/s", "ratio"]
    table, raw = [head], []
    for model in options.models:
        measure.warm(model)
        full = os.path.getsize(model) + 256 * MIB
        for threads in options.threads:
            tokens = options.tokens or 64
            a, b = measure.alternate(
                lambda: setup.headrace and setup.headrace.run(
                    model, memory=full, tokens=tokens, threads=threads),
                lambda: setup.peer and setup.peer.bench(
                    model, tokens=tokens, options=["-t", threads]),
                options.repetitions)
            raw.append({"model": str(model), "threads": threads,
                        "headrace": [kept(r) for r in a], "peer": [kept(r) for r in b]})
            mine = spread([r and figure(r, "decode_tokens_per_s") for r in a])
            other = spread([r and r["tokens_per_s"] for r in b])
            table.append([model.name, threads, with_range(mine), with_range(other),
                          show(ratio(mine["median"], other["median"]))])
    return {"rows": table, "remarks": []}, raw


def prefill(setup):
    """Prompt tokens a second with everything in memory; llama.cpp with its defaults.
    Headrace's own figure, and the marginal rate between 128 and 512 tokens from wall
    time, which no loading can touch. Target: at least 1.0x."""
    options = setup.options
    head = ["model", "threads", "tokens", "headrace tokens/s", "llama.cpp tokens/s",
            "ratio"]
    table, raw = [head], []
    for model in options.models:
        measure.warm(model)
        full = os.path.getsize(model) + 512 * MIB
        for threads in options.threads:
            walls = {}
            for count in (128, 512):
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
                    text.write(prompt_of(count, model, setup.counter))
                    text.flush()
                    a, b = measure.alternate(
                        lambda: setup.headrace and setup.headrace.run(
                            model, memory=full, tokens=1, threads=threads, context=1024,
                            prompt_file=text.name),
                        lambda: setup.peer and setup.peer.bench(
                            model, prompt=count, options=["-t", threads]),
                        options.repetitions)
                raw.append({"model": str(model), "threads": threads, "tokens": count,
                            "headrace": [kept(r) for r in a],
                            "peer": [kept(r) for r in b]})
                mine = spread([r and figure(r, "prefill_tokens_per_s") for r in a])
                other = spread([r and r["tokens_per_s"] for r in b])
                walls[count] = [r["wall_s"] for r in a if r and r["rc"] == 0]
                table.append([model.name, threads, count, with_range(mine),
                              with_range(other),
                              show(ratio(mine["median"], other["median"]))])
            if walls[128] and walls[512]:
                seconds = (spread(walls[512])["median"] - spread(walls[128])["median"])
                table.append([model.name, threads, "512 less 128 (wall)",
                              show(384 / seconds, 1) if seconds > 0 else "-", "-", "-"])
    return {"rows": table, "remarks": [
        "prompts have exactly that many tokens as llama.cpp counts them"
        if setup.counter else "prompts have about that many tokens"]}, raw


def first(setup):
    """Cold start (page cache dropped): seconds from exec to the first byte of output,
    and bytes read. llama.cpp with its defaults and without its warm-up pass. Target: no
    worse; nothing read twice but edge pages when the model fits."""
    options = setup.options
    prompt = "The river below the mill was"
    head = ["model", "headrace s", "headrace read / file", "llama.cpp s",
            "llama.cpp without warm-up s", "ratio to its better"]
    table, raw = [head], []
    for model in options.models:
        size, runs = os.path.getsize(model), {"headrace": [], "peer": [], "cold": []}
        for _ in range(options.repetitions):
            for key in runs:
                measure.evict(model)
                if key == "headrace" and setup.headrace:
                    runs[key].append(setup.headrace.run(
                        model, prompt=prompt, tokens=1, threads=options.threads[-1]))
                elif key != "headrace" and setup.peer:
                    flags = ["-t", options.threads[-1]]
                    flags += ["--no-warmup"] if key == "cold" else []
                    runs[key].append(setup.peer.complete(model, prompt, 1, flags))
        raw.append({"model": str(model),
                    **{k: [kept(r) for r in v] for k, v in runs.items()}})
        times = {k: spread([r["first_output_s"] if r["rc"] == 0 else None for r in v])
                 for k, v in runs.items()}
        others = [times[k]["median"] for k in ("peer", "cold")
                  if times[k]["median"] is not None]
        read = spread([r["read_bytes"] / size for r in runs["headrace"]])
        table.append([
            model.name, with_range(times["headrace"], 3), with_range(read, 3),
            with_range(times["peer"], 3), with_range(times["cold"], 3),
            show(ratio(times["headrace"]["median"], min(others) if others else None))])
    return {"rows": table, "remarks": [
        f"{options.threads[-1]} threads, prompt of seven tokens or so; ratio below 1: "
        "Headrace is sooner"]}, raw


# ---- identity -------------------------------------------------------------------------


def identity(setup):
    """Greedy tokens at every budget, prefill chunk and thread count against a run with
    everything in memory. Target: identical."""
    options = setup.options
    head = ["model", "budget MiB", "chunk", "threads", "tokens", "same"]
    table, raw, remarks = [head], [], []
    for model in options.models:
        tokens = options.tokens or 48
        full = os.path.getsize(model) + 512 * MIB
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write(prompt_of(100, model, setup.counter))
            text.flush()

            def go(budget, chunk, threads):
                extra = ["--chunk", chunk] if chunk else []
                return setup.headrace.run(model, memory=budget, tokens=tokens,
                                          threads=threads, context=512, extra=extra,
                                          prompt_file=text.name)

            base = go(full, None, 1)
            want = figure(base, "tokens")
            raw.append({"model": str(model), "base": kept(base)})
            if not want:
                remarks.append(f"{model.name}: no reference: {failure(base)}")
                continue
            cases = [(b, None, t) for b in [*budgets_for(model, options), full]
                     for t in options.threads]
            cases += [(full, c, t) for c in (1, 7, 16, 64) for t in options.threads]
            for budget, chunk, threads in cases:
                result = go(budget, chunk, threads)
                got = figure(result, "tokens")
                raw.append({"model": str(model), "budget": budget, "chunk": chunk,
                            "threads": threads, "run": kept(result)})
                if got is None:
                    same = ("refused (exit 3)" if result["rc"] == 3
                            else failure(result))
                else:
                    same = "yes" if got == want else "NO"
                table.append([model.name, mib(budget), chunk or "plan's", threads,
                              len(got or []), same])
    different = sum(row[-1] == "NO" for row in table)
    remarks.append(f"{different} of {len(table) - 1} runs differ")
    return {"rows": table, "remarks": remarks}, raw


ROWS = {"memory": memory, "overhead": overhead, "bytes": bytes_a_token, "bound": bound,
        "limit": limit, "resident": resident, "prefill": prefill, "first": first,
        "identity": identity}
