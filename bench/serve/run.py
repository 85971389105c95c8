#!/usr/bin/env python3
"""The table of the server: one command measures rows into bench/results/DATE-serve.{json,md}.

  bench/serve/run.py [--quick] [--peer .cache/peers] [--repeat 3] [ROW ...]

Rows (minutes at full size):
  batch8    8 concurrent requests against 1, budget half the model                 (2)
  peer8     8 concurrent requests against llama.cpp's server, both in a cgroup of
            half the model (each of its settings is tried first), and resident    (15)
  lookup    drafts looked up in the prompt against none, a task that copies        (4)
  chunked   time between tokens while long prompts are read                        (4)
  restart   a long prompt again after kill -9, from the prefix store               (4)
  soak      10,000 mixed requests in 30 minutes, see soak.py                      (32)
What is compared takes turns; medians of --repeat. A row measured again replaces itself in
the file of the day. --quick: the 135M model and small sizes, to see that all of it works.
Needs root (cgroups), an idle machine, and the models of bench/fetch_models.py.
"""
import argparse
import asyncio
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import client  # noqa: E402
import load  # noqa: E402
import measure  # noqa: E402
import servers  # noqa: E402
import soak as soaking  # noqa: E402
from measure import spread  # noqa: E402

MIB = 1 << 20
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN2 = "qwen2.5-coder-1.5b-q4_k_m.gguf"
PLACES = 8
SHORT = 256  # positions of a prompt and its answer where both are short: llama.cpp holds all
# Sizes of everything, full and quick. Words of our prompts are about 1.2 tokens each.
FULL = dict(model=QWEN2, share=0.5, words=(12, 24), tokens=96, peer_tokens=48, try_s=150,
            copy_tokens=256, drafts=15, long_words=1200, longs=3, beside_tokens=800,
            restart_words=5000, soak_requests=10000, soak_minutes=30)
# Half of 94 MiB would hold little but the process itself.
QUICK = dict(model=SMOLLM2, share=2.2, words=(12, 24), tokens=48, peer_tokens=32, try_s=20,
             copy_tokens=96, drafts=15, long_words=600, longs=2, beside_tokens=1000,
             restart_words=1500, soak_requests=300, soak_minutes=0)

# What the lookup row has copied with one name changed.
CODE = '''import csv
import datetime
import pathlib


class Station:
    """Water levels of one gauge, centimetres above its zero."""

    def __init__(self, name, zero_m, folder):
        self.name = name
        self.zero_m = zero_m
        self.path = pathlib.Path(folder) / f"{name}.csv"
        self.levels = {}

    def read(self):
        with open(self.path, newline="") as stream:
            for row in csv.DictReader(stream):
                day = datetime.date.fromisoformat(row["day"])
                self.levels[day] = float(row["level_cm"])
        return self

    def highest(self, first, last):
        days = [day for day in self.levels if first <= day <= last]
        if not days:
            raise ValueError(f"{self.name}: no levels between {first} and {last}")
        return max(days, key=lambda day: self.levels[day])

    def metres(self, day):
        return self.zero_m + self.levels[day] / 100
'''


class Setup:
    def __init__(self, args, folder):
        self.args, self.size = args, QUICK if args.quick else FULL
        self.folder = pathlib.Path(folder)
        self.model = pathlib.Path(args.models) / self.size["model"]
        self.half = int(self.model.stat().st_size * self.size["share"]) // MIB * MIB
        self.words, self.tokens = self.size["words"], self.size["tokens"]
        self.seed = 0

    def ours(self, memory, **more):
        more.setdefault("places", PLACES)
        more.setdefault("context", SHORT)
        return servers.headrace(self.args.headrace, self.model, memory,
                                threads=self.args.threads, **more)

    def resident(self, context=SHORT):
        """A budget in which the model and the KV of all places stay in memory."""
        return self.model.stat().st_size + (512 if context <= SHORT else 1024) * MIB

    def peer(self, **more):
        return servers.peer(self.args.peer, self.model, places=PLACES, context=SHORT, **more)

    def has_peer(self):
        return (pathlib.Path(self.args.peer) / "bin" / "llama-server").exists()

    def load(self, server, clients, tokens=None, each=1, limit_s=3600):
        """The summary of `clients` concurrent streams; prompts never seen before."""
        self.seed += 1
        tokens = tokens or self.tokens
        bodies = load.mix(self.seed, clients * each, self.words, (tokens, tokens))
        return load.run(server.port, bodies, clients, limit_s=limit_s)[0]

    def shape(self, tokens=None):
        """The size of what load() asks, for remarks."""
        return (f"prompts of {self.words[0]} to {self.words[1]} words, answers of "
                f"{tokens or self.tokens} tokens, none like another")

    def warm(self, server):
        load.run(server.port, load.mix(-1, 2, self.words, (4, 4)), 2)


def cell(values, scale=1.0, digits=2):
    s = spread([None if v is None else v * scale for v in values])
    if s["median"] is None:
        return "-"
    return f"{s['median']:.{digits}f} ({s['least']:.{digits}f}-{s['most']:.{digits}f})"


def median(results, key):
    return spread([r[key] for r in results])["median"]


def ratio(a, b):
    return a / b if a is not None and b else None


def verdict(value, target, least=True):
    """A figure beside its target; `least`: at least, otherwise at most."""
    if value is None:
        return f"not measured (target {'>=' if least else '<='} {target})"
    met = value >= target if least else value <= target
    return (f"{value:.2f}x (target {'>=' if least else '<='} {target}x: "
            f"{'met' if met else 'MISSED'})")


LOAD_HEAD = ["what", "clients", "tokens/s", "decoding tokens/s", "TTFT p50 s", "gap p50 ms",
             "gap p99 ms", "failed"]


def load_cells(name, results):
    if not results:
        return [name, *["-"] * 7]
    return [name, results[0]["clients"], cell([r["tokens_per_s"] for r in results]),
            cell([r["decode_tokens_per_s"] for r in results]),
            cell([r["ttft_p50_s"] for r in results]),
            cell([r["gap_p50_s"] for r in results], 1e3, 0),
            cell([r["gap_p99_s"] for r in results], 1e3, 0),
            sum(r["requests"] - r["good"] for r in results)]


PASSES = ("steps", "rows", "step_seconds", "stall_seconds", "streamed_bytes")


def passes(server):
    """What a server has counted of its passes over the weights since its start."""
    text = server.metrics()
    return {name: client.metric(text, f"headrace_{name}_total") for name in PASSES}


def load_and_passes(s, server, clients):
    """Setup.load(), and under "passes" what the server's passes took meanwhile."""
    before = passes(server)
    result = s.load(server, clients)
    after = passes(server)
    return {**result, "passes": {name: after[name] - before[name] for name in PASSES}}


def disk_rate(s):
    """Bytes a second of the model's disk, as `headrace probe` finds them now. Our own threads
    that read 4 MiB at a time get a third of it here: they are no limit of the machine."""
    path = s.folder / "machine.json"
    subprocess.run([s.args.headrace, "probe", "--file", s.model, "-o", path], check=True,
                   capture_output=True)
    tiers = json.loads(path.read_text())["tiers"]
    return tiers[1]["load_bytes_per_s"]


def limit_remark(name, results, disk):
    """How close to the limit of the machine these passes were; `disk`: of disk_rate()."""
    p = {key: sum(r["passes"][key] for r in results) for key in PASSES}
    if not p["steps"] or not p["step_seconds"]:
        return f"{name}: no step"
    text = (f"{name}: a step has {p['rows'] / p['steps']:.1f} rows and takes "
            f"{p['step_seconds'] / p['steps'] * 1e3:.0f} ms; ")
    if p["streamed_bytes"]:
        rate = p["streamed_bytes"] / p["step_seconds"]
        text += (f"it streams {p['streamed_bytes'] / p['steps'] / MIB:.0f} MiB at "
                 f"{rate / 1e9:.2f} GB/s ({rate / disk:.0%} of "
                 f"the disk's) and waits {p['stall_seconds'] / p['step_seconds']:.0%} of the time "
                 "for them; ")
    outside = 1 - p["step_seconds"] / sum(r["wall_s"] for r in results)
    return text + f"{outside:.1%} of all time is outside steps"


def ended(name, result):
    """A remark about a server's whole life."""
    if result is None:
        return f"{name}: still runs"
    cage = result["cgroup"]
    text = f"{name}: exit {result['rc']}, peak RSS {result['peak_rss'] / MIB:.1f} MiB"
    if cage:
        text += (f", cgroup limit {cage['limit'] / MIB:.0f} MiB, peak "
                 f"{(cage['peak'] or 0) / MIB:.0f} MiB, {cage['oom_kills']} OOM kills")
    return text


def batch8(s):
    """Eight concurrent requests against one, budget half of the model (target: 5x tokens/s)"""
    table, remarks, raw = [LOAD_HEAD], [], []
    # Drafts speed one request up as well: the figure is that of sharing passes, without them.
    for words, drafts in (("without drafts", 0), ("with drafts (default)", None)):
        with s.ours(s.half, limit=s.half, speculate=drafts) as server:
            s.warm(server)
            disk = disk_rate(s)
            one, eight = measure.alternate(lambda: load_and_passes(s, server, 1),
                                           lambda: load_and_passes(s, server, PLACES),
                                           s.args.repeat)
        gain = ratio(median(eight, "tokens_per_s"), median(one, "tokens_per_s"))
        table += [load_cells(f"1 request, {words}", one), load_cells(f"8 requests, {words}", eight)]
        remarks += [f"8 against 1 {words}: "
                    + (verdict(gain, 5) if drafts == 0 else f"{gain or 0:.2f}x"),
                    f"the disk (headrace probe), {words}: {disk / 1e9:.2f} GB/s",
                    limit_remark(f"1 request, {words}", one, disk),
                    limit_remark(f"8 requests, {words}", eight, disk),
                    ended(f"headrace {words}", server.result)]
        raw.append([one, eight])
    return {"table": table, "remarks": [*remarks, s.shape()], "raw": raw}


def best_peer(s):
    """Tries every setting of the peer in the limit; (flags or None, words, remarks)."""
    tried = []
    for words, flags in servers.PEER_SETTINGS:
        measure.evict(s.model)
        server = s.peer(flags=flags, limit=s.half, ready_s=s.size["try_s"])
        rate, why = None, ""
        try:
            server.start()
            got = s.load(server, PLACES, tokens=8, limit_s=s.size["try_s"])
            rate = got["tokens_per_s"] if got["good"] == PLACES else None
            why = "" if rate else f"failed: {got['errors']}"
        except servers.ServerFailed as failed:
            why = str(failed).splitlines()[0][:80]
        except TimeoutError:
            why = f"8 tokens each not done after {s.size['try_s']} s"
        result = server.end(signal.SIGKILL)
        if result["cgroup"]["oom_kills"]:
            why = f"killed by the memory limit after {result['wall_s']:.0f} s"
        tried.append((rate or 0, words, flags, why))
    remarks = [f"llama.cpp, {words}: {why or f'{rate:.2f} tokens/s'}"
               for rate, words, _, why in tried]
    rate, words, flags, _ = max(tried, key=lambda t: t[0])
    return (flags if rate else None), words, remarks


def against(s, name, target, ours, peer):
    """Two running servers take turns with 8 clients; (rows, remark, raw)."""
    tokens = s.size["peer_tokens"]
    s.warm(ours)
    s.warm(peer)
    a, b = measure.alternate(lambda: s.load(ours, PLACES, tokens),
                             lambda: s.load(peer, PLACES, tokens), s.args.repeat)
    gain = ratio(median(a, "tokens_per_s"), median(b, "tokens_per_s"))
    return ([load_cells(f"headrace, {name}", a), load_cells(f"llama.cpp, {name}", b)],
            f"{name}: {verdict(gain, target)}", [a, b])


def peer8(s):
    """Eight concurrent requests against llama.cpp's server (targets: 2x in the same cgroup
    limit of half the model at its best surviving setting; 0.9x resident)"""
    if not s.has_peer():
        return {"table": [LOAD_HEAD], "remarks": [f"no llama.cpp at {s.args.peer}"], "raw": []}
    table, raw = [LOAD_HEAD], []
    flags, words, remarks = best_peer(s)
    name = f"limit {s.half // MIB} MiB"
    if flags:
        measure.evict(s.model)
        with s.ours(s.half, limit=s.half, speculate=0) as ours, \
                s.peer(flags=flags, limit=s.half) as peer:
            rows, remark, got = against(s, name, 2, ours, peer)
        remarks += [remark, f"llama.cpp's best setting: {words}", ended("headrace", ours.result),
                    ended("llama.cpp", peer.result)]
    else:
        with s.ours(s.half, limit=s.half, speculate=0) as ours:
            s.warm(ours)
            got = [[s.load(ours, PLACES, s.size["peer_tokens"]) for _ in range(s.args.repeat)], []]
        rows = [load_cells(f"headrace, {name}", got[0]), load_cells(f"llama.cpp, {name}", [])]
        remarks += ["no setting of llama.cpp survived", ended("headrace", ours.result)]
    table += rows
    raw.append(got)
    measure.warm(s.model)
    with s.ours(s.resident(), speculate=0) as ours, s.peer() as peer:
        rows, remark, got = against(s, "resident", 0.9, ours, peer)
    remarks += [remark, ended("headrace", ours.result), ended("llama.cpp", peer.result),
                s.shape(s.size["peer_tokens"]) + "; no drafts"]
    return {"table": table + rows, "remarks": remarks, "raw": [*raw, got]}


def copy_task(s):
    text = (f"A Python file:\n```python\n{CODE}```\nThe same file, with the class called "
            "Gauge:\n```python\n")
    return load.completion(text, s.size["copy_tokens"])


def lookup(s):
    """Drafts looked up in the prompt, on a task that copies, budget half of the model
    (target: 2x tokens/s, the same text as without)"""
    rates, texts, raw = ([], []), set(), []

    def once(server, rates):
        figures, streams = load.run(server.port, [copy_task(s)], 1)
        texts.update(x.answer.text() for x in streams)
        rates.append(figures)
        raw.append([figures, [x.answer.text() for x in streams]])

    with s.ours(s.half, context=1024, speculate=s.size["drafts"]) as on, \
            s.ours(s.half, context=1024, speculate=0) as off:
        for server in (on, off):  # the prompt is read once; what is compared is decoding
            load.run(server.port, [copy_task(s)], 1)
        for _ in range(s.args.repeat):
            once(on, rates[0])
            once(off, rates[1])
        metrics = on.metrics()
    gain = ratio(median(rates[0], "tokens_per_s"), median(rates[1], "tokens_per_s"))
    drafted = client.metric(metrics, "headrace_draft_tokens_total")
    accepted = client.metric(metrics, "headrace_draft_accepted_total")
    return {"table": [LOAD_HEAD, load_cells(f"--speculate {s.size['drafts']}", rates[0]),
                      load_cells("--speculate 0", rates[1])],
            "remarks": [f"with drafts against without: {verdict(gain, 2)}",
                        f"texts identical: {'yes' if len(texts) == 1 else 'NO'} "
                        f"({len(raw)} answers, {s.size['copy_tokens']} tokens each)",
                        f"drafted {drafted}, accepted {accepted}",
                        ended("with drafts", on.result), ended("without", off.result)],
            "raw": raw}


async def streams_beside_long_prompts(s, port, longs, streams=4):
    """Gaps of `streams` running streams alone, and while long prompts are read beside
    them: (alone, beside, seconds each long prompt took)."""
    begin = time.monotonic()
    s.seed += 1
    decoding = load.mix(s.seed, streams, s.words, (s.size["beside_tokens"],) * 2)
    bodies = [load.completion(text["prompt"], 1)
              for text in load.mix(s.seed + 1000, longs, (s.size["long_words"],) * 2, (1, 1))]
    over = asyncio.Event()
    answers, counts = [], [0] * streams

    async def stream(i, body):
        sent = time.monotonic() - begin

        def on_event(count):
            counts[i] = count
            return not over.is_set()
        answers.append(load.Stream(sent, await client.request(
            port, "POST", "/v1/completions", body, on_event=on_event)))

    running = [asyncio.create_task(stream(i, b)) for i, b in enumerate(decoding)]
    while min(counts) < 16 and not all(t.done() for t in running):
        await asyncio.sleep(0.01)
    windows = []
    for body in bodies:
        sent = time.monotonic() - begin
        answer = await client.request(port, "POST", "/v1/completions", body)
        windows.append((sent, sent + answer.seconds, answer.usage()))
        if answer.status != 200:
            raise RuntimeError(f"a long prompt was refused: {answer.body[:300]}")
        await asyncio.sleep(0.5)
    over.set()
    await asyncio.gather(*running)
    alone, beside = [], []
    for a in answers:
        for t, u in zip(a.times, a.times[1:]):
            inside = any(b < u and t < e for b, e, _ in windows)
            if inside:
                beside.append(u - t)
            elif u < windows[0][0]:
                alone.append(u - t)
    return alone, beside, windows


def chunked(s):
    """Time between tokens of four streams while long prompts are read beside them, budget
    half of the model (target: p99 at most 3x the median)"""
    with s.ours(s.half, limit=s.half, context=2048) as server:
        s.warm(server)
        runs = [asyncio.run(streams_beside_long_prompts(s, server.port, s.size["longs"]))
                for _ in range(s.args.repeat)]
    table = [["when", "p50 ms", "p99 ms", "worst ms", "p99 / p50", "tokens"]]
    shares = {}
    for name, index in (("no prompt is read", 0), ("prompts are read", 1)):
        sets = [r[index] for r in runs if r[index]]
        p50, p99 = ([load.percentile(g, q) for g in sets] for q in (0.5, 0.99))
        shares[name] = spread([b / a for a, b in zip(p50, p99)])["median"]
        table.append([name, cell(p50, 1e3, 1), cell(p99, 1e3, 1),
                      cell([max(g) for g in sets], 1e3, 1),
                      f"{shares[name]:.2f}" if sets else "-", sum(map(len, sets))])
    longs = [w for r in runs for w in r[2]]
    slower = spread([ratio(load.percentile(r[1], 0.5), load.percentile(r[0], 0.5))
                     for r in runs])["median"]
    return {"table": table, "remarks": [
        "p99 / median while prompts are read: "
        + verdict(shares["prompts are read"], 3, least=False),
        f"median while prompts are read against the median while none is: {slower or 0:.2f}x",
        f"long prompts: {longs[0][2]['prompt_tokens']} tokens, read in "
        f"{cell([e - b for b, e, _ in longs])} s beside 4 streams",
        ended("headrace", server.result)], "raw": runs}


def restart(s):
    """A long prompt again after kill -9 and a restart, from the prefix store (target: first
    token 10x sooner than cold, the store sound, the same text)"""
    words = s.size["restart_words"]
    context = 8192
    memory = s.resident(context)
    cold, warm, sound, texts, cached = [], [], [], [], []
    for turn in range(s.args.repeat):
        store = s.folder / f"store{turn}"
        s.seed += 1
        body = load.mix(s.seed, 1, (words, words), (8, 8))[0]

        def ask(server):
            figures, streams = load.run(server.port, [body], 1)
            texts.append(streams[0].answer.text())
            cached.append((streams[0].answer.usage() or {}).get("prompt_tokens_details"))
            return figures
        options = dict(context=context, prefix_store=store)
        server = s.ours(memory, **options).start()
        s.warm(server)
        cold.append(ask(server))
        wait_for_quiet(store)
        server.end(signal.SIGKILL)
        check = subprocess.run([s.args.headrace, "kv", store, "--verify"], capture_output=True,
                               text=True)
        sound.append(check.returncode)
        with s.ours(memory, **options) as server:
            s.warm(server)
            warm.append(ask(server))
        shutil.rmtree(store, ignore_errors=True)
    gain = ratio(median(cold, "ttft_p50_s"), median(warm, "ttft_p50_s"))
    same = all(a == b for a, b in zip(texts[::2], texts[1::2]))
    tokens = cold[0]["prompt_tokens"]
    return {"table": [["prompt", "tokens", "first token after s"],
                      ["cold", tokens, cell([r["ttft_p50_s"] for r in cold], 1, 3)],
                      ["after kill -9", tokens, cell([r["ttft_p50_s"] for r in warm], 1, 3)]],
            "remarks": [f"cold against repeated: {verdict(gain, 10)}",
                        f"store sound after kill -9 (headrace kv --verify): "
                        f"{sum(code == 0 for code in sound)} of {len(sound)}",
                        f"texts identical: {'yes' if same else 'NO'}",
                        f"usage said of the repeated prompts: {cached[1::2]}"],
            "raw": [cold, warm, sound, texts]}


def wait_for_quiet(folder, still_s=3.0, most_s=120):
    """Until the folder's bytes have not changed for a while: the store writes behind."""
    last, since = -1, time.monotonic()
    until = time.monotonic() + most_s
    while time.monotonic() < until and time.monotonic() - since < still_s:
        total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        if total != last:
            last, since = total, time.monotonic()
        time.sleep(0.2)


def soak(s):
    """Mixed, cancelled, oversize and malformed requests (target: VmHWM at most the budget, RSS
    slope 0 after warm-up, no wrong or lost answer, every request ends)"""
    model = pathlib.Path(s.args.models) / SMOLLM2
    facts = soaking.soak(soaking.options_of(
        ["--headrace", s.args.headrace, "--model", model, "--threads", s.args.threads,
         "--requests", s.size["soak_requests"], "--minutes", s.size["soak_minutes"]]))
    return {"table": soaking.table(facts), "remarks": facts["failures"] or ["nothing failed"],
            "raw": facts}


ROWS = {f.__name__: f for f in (batch8, peer8, lookup, chunked, restart, soak)}


def markdown(rows):
    out = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return out + ["| " + " | ".join(map(str, row)) + " |" for row in rows[1:]]


def page(facts):
    """The day's page from everything measured that day."""
    lines = ["# The server", ""]
    for name in [n for n in ROWS if n in facts["rows"]]:
        r = facts["rows"][name]
        lines += [f"## {name}", "", r["title"], "", *markdown(r["table"]), ""]
        lines += [f"- {remark}" for remark in r["remarks"]]
        lines += [f"- {r['model']}, {r['seconds']:.0f} s, commit {r['commit']}, load "
                  f"{r['load_before']:.1f} before; `{r['command']}`", ""]
    m = facts["machine"]
    lines += [f"{m['cpu']}, {m['cpus']} CPUs, {m['memory_bytes'] / 2**30:.1f} GiB, Linux "
              f"{m['kernel']}. Loopback only; medians (least-most) of alternating runs.", ""]
    return "\n".join(lines)


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", nargs="*", metavar="ROW", default=[])
    p.add_argument("--headrace", default=str(ROOT / "build/release/headrace"))
    p.add_argument("--peer", default=str(ROOT / ".cache/peers"))
    p.add_argument("--models", default=str(ROOT / ".cache/models"))
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--folder", help="on a disk; default: a temporary one in the build folder")
    p.add_argument("--out", default=str(ROOT / "bench/results"))
    args = p.parse_args()
    if unknown := [r for r in args.rows if r not in ROWS]:
        p.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    args.repeat = args.repeat or (1 if args.quick else 3)
    return args


def main():
    args = arguments()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            cwd=ROOT).stdout.strip()
    stem = pathlib.Path(args.out) / (f"{datetime.date.today()}-serve" + ("-quick" * args.quick))
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_suffix(".json")
    facts = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    facts["machine"] = measure.machine()
    failed = []
    with tempfile.TemporaryDirectory(dir=args.folder or ROOT / "build") as folder:
        s = Setup(args, folder)
        for name in args.rows or ROWS:
            before, begin = os.getloadavg()[0], time.monotonic()
            print(f"run.py: {name}", file=sys.stderr, flush=True)
            try:
                row = ROWS[name](s)
            except (servers.ServerFailed, RuntimeError, OSError, TimeoutError) as error:
                print(f"run.py: {name}: {error!r}", file=sys.stderr)
                failed.append(name)  # the other rows are worth having all the same
                continue
            facts["rows"][name] = {
                **row, "title": " ".join(ROWS[name].__doc__.split()), "commit": commit,
                "model": s.model.name if name != "soak" else SMOLLM2, "load_before": before,
                "seconds": time.monotonic() - begin,
                "command": " ".join(["bench/serve/run.py", name] + ["--quick"] * args.quick
                                    + ["--repeat", str(args.repeat)])}
            path.write_text(json.dumps(facts, indent=1, default=str) + "\n")
            stem.with_suffix(".md").write_text(page(facts))
            print("\n".join([f"## {name}", *markdown(row["table"]),
                             *(f"- {r}" for r in row["remarks"]), ""]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
