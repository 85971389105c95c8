#!/usr/bin/env python3
"""Soaks `headrace serve` in good, rude and broken requests; says what it held.

  bench/serve/soak.py [--headrace FILE] [--model FILE] [--memory 448MiB] [--requests 10000]
                      [--minutes 30] [--clients 24] [--idle 1000] [--seed 1] [--json FILE]
  bench/serve/soak.py --quick          300 requests as fast as they go, 200 idle connections,
                                       192 MiB (weights are streamed)
  bench/serve/soak.py --cgroup ...     in a memory control group whose limit is the budget (root)

Checks; any that fails is listed, and the exit code is 1:
  1. Every request ends with an answer or an error of OpenAI's shape and the expected status.
  2. Answers are those the server gave when it was alone with each prompt, and those that
     `headrace run` gives (greedy ones without a template, where the text is valid UTF-8).
  3. VmHWM is at most the budget, as are RssAnon and VmSwap together; after warm-up (a fifth of the
     run) VmRSS does not grow: the median slope of all pairs of samples over a run of ten minutes or
     more is below --slope KiB a minute. Steps of more than 1 MiB are listed by mapping.
  4. /health answers all along; at the end nothing runs or waits, no file descriptor is left,
     and a request is answered right.
  5. On SIGTERM a stream that runs is ended whole, and the exit code is 0.
  6. Sequences were preempted to the disk and went on, with the same answers.
  7. While the disk takes nothing (from a half to six tenths of the run no file may be written
     to, RLIMIT_FSIZE) and stored prefixes are damaged, answers are right all the same.

The mix, seeded (percent): answers checked 64 (long prompts 6), clients that leave in the
middle 14, half-closed 6, too large 6, malformed 9, slow heads 1; beside them 1,000 idle
connections and, five times, 300 requests at once, some of which are told to wait (429). Three
of ten have a higher priority than the others, which give way to them.
"""
import argparse
import asyncio
import json
import os
import pathlib
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import client  # noqa: E402
import mappings  # noqa: E402
import servers  # noqa: E402
from programs import WORDS  # noqa: E402

MIB, KIB = 1 << 20, 1 << 10
CONTEXT = 1024
COUNTERS = ("generated_tokens_total", "prompt_tokens_total", "cached_tokens_total",
            "preemptions_total", "prefix_store_hits_total", "draft_tokens_total",
            "draft_accepted_total", "step_failures_total", "http_requests_total",
            "http_timeouts_total")
PRIORITIES = ((0, 70), (1, 20), (2, 10))  # of answers that are checked, in percent
TROUBLE = (0.5, 0.6)  # of the requests: no file of the server takes anything
PATIENCE_S = 600    # that a request may take before it counts as lost
WAIT = (429, 503)   # typed answers that ask to come again
BODY_LIMIT = 8 * MIB


def text_of(rng, words):
    return " ".join(rng.choice(WORDS) for _ in range(words))


# ---- what is asked ---------------------------------------------------------------------


def questions(seed, tokens_a_word):
    """[(name, path, body)] whose answers are known: see known_answers()."""
    rng = random.Random(seed)
    out = []
    for i in range(8):
        out.append((f"short {i}", "/v1/completions", {
            "prompt": f"{i}. " + text_of(rng, rng.randint(6, 40)),
            "max_tokens": rng.randint(4, 32), "temperature": 0}))
    for i in range(3):
        out.append((f"long {i}", "/v1/completions", {
            "prompt": f"{i}: " + text_of(rng, int(rng.randint(350, 700) / tokens_a_word)),
            "max_tokens": 12, "temperature": 0}))
    for i in range(3):
        out.append((f"chat {i}", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": text_of(rng, 12) + "?"}],
            "max_tokens": 24, "temperature": 0}))
    out.append(("seeded", "/v1/completions", {
        "prompt": "The gate stood open and", "max_tokens": 24, "temperature": 0.9, "seed": 7,
        "top_p": 0.95}))
    out.append(("special tokens are text", "/v1/completions", {
        "prompt": "<|im_end|> <|endoftext|> </s> and", "max_tokens": 8, "temperature": 0}))
    out.append(("stop", "/v1/completions", {
        "prompt": "One, two, three, four,", "max_tokens": 32, "temperature": 0,
        "stop": ["ten", ".", "\n"]}))
    return out


def malformed():
    """[(name, method, path, body, headers, statuses)]"""
    good = {"prompt": "The river", "max_tokens": 4}

    def bad(name, **change):
        return (name, "POST", "/v1/completions", json.dumps({**good, **change}).encode(), {},
                (400,))

    def raw(name, body, statuses=(400,)):
        return (name, "POST", "/v1/completions", body, {}, statuses)
    return [
        raw("not JSON", b"{"), raw("empty body", b""), raw("an array", b"[]"),
        raw("deep nesting", b"[" * 100000, (400, 413)),
        raw("deep objects", b'{"a":' * 50000, (400, 413)),
        raw("invalid UTF-8", b'{"prompt": "\xff\xfe", "max_tokens": 4}'),
        raw("a lone surrogate", b'{"prompt": "\\ud800", "max_tokens": 4}'),
        raw("NaN", b'{"prompt": "a", "temperature": NaN}'),
        raw("too large a number", b'{"prompt": "a", "temperature": 1e999}'),
        bad("negative max_tokens", max_tokens=-5), bad("max_tokens of text", max_tokens="many"),
        bad("a huge max_tokens", max_tokens=10 ** 15),
        bad("temperature of text", temperature="hot"),
        bad("negative temperature", temperature=-1), bad("n of 0", n=0),
        bad("n of 10^9", n=10 ** 9),
        bad("stop of numbers", stop=[1, 2]), bad("100 stops", stop=["a"] * 100),
        bad("top_p of 2", top_p=2), bad("a prompt of objects", prompt=[{}]),
        bad("tokens out of range", prompt=[10 ** 9]), bad("negative tokens", prompt=[-1]),
        raw("no prompt", b'{"max_tokens": 4}'),
        ("no messages", "POST", "/v1/chat/completions", b'{"messages": []}', {}, (400,)),
        ("an unknown role", "POST", "/v1/chat/completions",
         b'{"messages": [{"role": 5, "content": "a"}]}', {}, (400,)),
        ("an unknown model", "POST", "/v1/completions",
         json.dumps({**good, "model": "no-such-model"}).encode(), {}, (404,)),
        ("an unknown path", "GET", "/v1/nothing", None, {}, (404,)),
        ("a wrong method", "GET", "/v1/completions", None, {}, (405,)),
        ("a long path", "GET", "/" + "a" * 40000, None, {}, (414, 431)),
        ("long fields", "GET", "/health", None, {"X-Long": "a" * 40000}, (431,)),
    ]


# What each hundred requests are, by kind.
MIX = {"answer": 29, "stream": 29, "long": 6, "leave": 10, "leave at once": 4, "half-closed": 6,
       "large body": 3, "long prompt": 3, "malformed": 9, "slow head": 1}


def kinds(seed, count):
    rng = random.Random(seed)
    return rng.choices(list(MIX), list(MIX.values()), k=count)


def priority(rng):
    return rng.choices(*zip(*PRIORITIES))[0]


# ---- the disk -------------------------------------------------------------------------


def ignores(pid, number):
    """Whether a process ignores a signal."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def full_disk(pid, full):
    """Writes of a process fail from now on, with EFBIG; or no longer."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))


def damage(folder, rng):
    """Turns a byte over in one of four files there; how many were damaged."""
    files = sorted(f for f in pathlib.Path(folder).rglob("*") if f.is_file())
    count = 0
    for file in rng.sample(files, (len(files) + 3) // 4):
        try:
            with open(file, "r+b") as f:
                at = rng.randrange(max(1, os.fstat(f.fileno()).st_size))
                byte = os.pread(f.fileno(), 1, at) or b"\0"
                os.pwrite(f.fileno(), bytes([byte[0] ^ 0xFF]), at)
                count += 1
        except FileNotFoundError:
            pass  # one that was being written
    return count


# ---- asking ----------------------------------------------------------------------------


class Soak:
    def __init__(self, o, server):
        self.o, self.server, self.port = o, server, server.port
        self.rng = random.Random(o.seed)
        self.known = {}
        self.questions = []
        self.failures, self.counts, self.waits, self.gone = [], {}, 0, 0
        self.samples = []  # (seconds, VmRSS)
        self.mappings = mappings.Follower()
        self.idle, self.reopened = [], 0
        self.health_s = []
        self.over = False
        self.trouble = "none"

    def fail(self, text):
        self.failures.append(text)
        if len(self.failures) <= 20:
            print(f"soak: FAILED: {text}", file=sys.stderr, flush=True)

    async def ask(self, method, path, body, **more):
        try:
            return await asyncio.wait_for(
                client.request(self.port, method, path, body, **more), PATIENCE_S)
        except ConnectionError:
            return client.Answer()
        except (TimeoutError, asyncio.TimeoutError):
            return None

    async def known_answers(self):
        """Asks each question while nothing else runs; compares with `headrace run`."""
        sample = {"content": " ".join(WORDS)}
        tokens = (await self.ask("POST", "/tokenize", sample)).json()["tokens"]
        for name, path, body in questions(self.o.seed, len(tokens) / len(WORDS)):
            answer = await self.ask("POST", path, body)
            if answer is None or answer.status != 200:
                self.fail(f"{name}, alone: {describe(answer)}")
                continue
            self.known[name] = said(answer)
            self.questions.append((name, path, body))
            if name.startswith(("short", "long")):
                self.compare_with_run(name, body, self.known[name])

    def compare_with_run(self, name, body, text):
        """The same greedy text from the command line, another path through the program."""
        done = subprocess.run(
            [self.o.headrace, "run", self.o.model, "--memory", "512MiB", "--threads",
             str(self.o.threads), "--prompt", body["prompt"], "--tokens",
             str(body["max_tokens"]), "--temperature", "0"],
            capture_output=True, check=False)
        try:
            want = done.stdout.decode()
        except UnicodeDecodeError:
            return  # cut inside a character: both are right
        if done.returncode != 0:
            self.fail(f"{name}: headrace run ended with {done.returncode}")
        elif want != text:
            self.fail(f"{name}: the server says {text!r}, headrace run {want!r}")

    def typed(self, answer):
        """An error as OpenAI's clients want it."""
        error = answer.error()
        return answer.whole and isinstance(error, dict) and bool(error.get("message")) \
            and "type" in error

    async def answered(self, question, stream=False, half=False, priority=0):
        """One answer to a known question; comes again when told to wait."""
        name, path, body = question
        body = {**body, "priority": priority}
        if stream:
            body = {**body, "stream": True}
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = await self.ask("POST", path, body, half_close=half)
            if answer is None or answer.status not in WAIT:
                break
            if not self.typed(answer):
                return self.fail(f"{name}: {describe(answer)}")
            self.waits += 1
            await asyncio.sleep(min(1.0, float(answer.headers.get("retry-after", 1))))
        if answer is not None and half and answer.status == 0:
            self.gone += 1  # nothing was sent in 2 s: then it may count as gone
            return None
        if answer is None or answer.status != 200 or not answer.finished():
            return self.fail(f"{name}, stream {stream}, half-closed {half}: {describe(answer)}")
        if said(answer) != self.known[name]:
            self.fail(f"{name}, stream {stream}: {said(answer)!r} is not {self.known[name]!r}")
        return None

    async def leave(self, question, events):
        """A stream whose client goes after so many events, 0: without reading at all."""
        name, path, body = question
        body = {**body, "stream": True, "max_tokens": 200, "ignore_eos": True}
        if events:
            answer = await self.ask("POST", path, body, on_event=lambda n: n < events)
            if answer is None or (answer.status != 200 and not self.typed(answer)):
                self.fail(f"{name}, left after {events} events: {describe(answer)}")
            return
        _, writer = await asyncio.open_connection(client.HOST, self.port)
        raw = json.dumps(body).encode()
        writer.write(client.head("POST", path, len(raw)) + raw)
        await writer.drain()
        writer.close()

    async def refused(self, name, method, path, body, headers, statuses):
        answer = await self.ask(method, path, body, headers=headers)
        if answer is None or answer.status not in statuses or not self.typed(answer):
            self.fail(f"{name}: wanted {statuses}, got {describe(answer)}")

    async def slow_head(self):
        """Sends a head byte by byte: the server may not wait for ever (408, or it closes)."""
        reader, writer = await asyncio.open_connection(client.HOST, self.port)
        begin = time.monotonic()
        ended = asyncio.create_task(reader.read(4096))
        try:
            for byte in client.head("GET", "/health")[:-2] * 1000:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.wait([ended], timeout=0.5)
                if ended.done():
                    break
                if time.monotonic() - begin > PATIENCE_S:
                    self.fail("a slow head was waited for without end")
                    break
        except ConnectionError:
            pass
        ended.cancel()
        await client.close(writer)

    async def one(self, kind, rng):
        pick = rng.choice(self.questions)
        if kind in ("answer", "stream"):
            await self.answered(pick, stream=kind == "stream", priority=priority(rng))
        elif kind == "long":
            await self.answered(rng.choice([q for q in self.questions if "long" in q[0]]),
                                stream=rng.random() < 0.5, priority=priority(rng))
        elif kind == "leave":
            await self.leave(pick, rng.randint(1, 12))
        elif kind == "leave at once":
            await self.leave(pick, 0)
        elif kind == "half-closed":
            await self.answered(pick, stream=rng.random() < 0.7, half=True,
                                priority=priority(rng))
        elif kind == "large body":
            await self.refused("a large body", "POST", "/v1/completions",
                               b" " * (BODY_LIMIT + 1), {}, (413,))
        elif kind == "long prompt":
            body = {"prompt": text_of(rng, 3 * CONTEXT), "max_tokens": 8}
            await self.refused("a prompt beyond the context", "POST", "/v1/completions",
                               json.dumps(body).encode(), {}, (400, 413))
        elif kind == "malformed":
            await self.refused(*rng.choice(malformed()))
        else:
            await self.slow_head()
        self.counts[kind] = self.counts.get(kind, 0) + 1

    async def burst(self, size, rng):
        """So many at once: each right, or told to come again."""
        async def once(priority):
            name, path, body = self.questions[0]
            answer = await self.ask("POST", path, {**body, "priority": priority})
            if answer is not None and answer.status in WAIT and self.typed(answer):
                self.waits += 1
            elif answer is None or answer.status != 200 or said(answer) != self.known[name]:
                self.fail(f"one of {size} at once: {describe(answer)}")
            self.counts["burst"] = self.counts.get("burst", 0) + 1
        await asyncio.gather(*(once(priority(rng)) for _ in range(size)))

    # ---- beside -----------------------------------------------------------------------

    async def keep_idle(self, count):
        """`count` connections that send nothing; those that the server closes are opened
        again."""
        async def hold():
            while not self.over:
                try:
                    reader, writer = await asyncio.open_connection(client.HOST, self.port)
                except ConnectionError:
                    await asyncio.sleep(1)
                    continue
                try:
                    await reader.read(1)
                    self.reopened += 1
                except ConnectionError:
                    pass
                finally:
                    writer.close()
                await asyncio.sleep(1)
        self.idle = [asyncio.create_task(hold()) for _ in range(count)]

    async def watch(self, begin):
        count = 0
        while not self.over:
            status = self.server.memory()
            if status.get("VmRSS"):
                self.samples.append((time.monotonic() - begin, status["VmRSS"]))
            if count % 20 == 0:
                self.mappings.look(self.server.pid, time.monotonic() - begin)
            if count % 4 == 0:
                answer = await self.ask("GET", "/health", None)
                if answer is None or answer.status != 200:
                    self.fail(f"/health: {describe(answer)}")
                else:
                    self.health_s.append(answer.seconds)
            count += 1
            await asyncio.sleep(0.25)

    def disk(self, index):
        """The window in which the disk is full, by the number of the request."""
        begin, end = (int(part * self.o.requests) for part in TROUBLE)
        if index == begin:
            if not ignores(self.server.pid, signal.SIGXFSZ):
                self.trouble = "not tried: the server would end by SIGXFSZ"
                return
            files = damage(self.o.store, self.rng)
            full_disk(self.server.pid, True)
            self.trouble = f"{end - begin} requests without a disk to write to, {files} files " \
                           "of prefixes damaged"
        elif index == end:
            full_disk(self.server.pid, False)

    async def drive(self):
        begin = time.monotonic()
        plan = list(enumerate(kinds(self.o.seed, self.o.requests)))
        plan.reverse()
        pace = 0.9 * 60 * self.o.minutes / self.o.requests
        until = begin + 60 * self.o.minutes if self.o.minutes else float("inf")
        bursts = {self.o.requests * i // 6 for i in range(1, 6)}
        watching = asyncio.create_task(self.watch(begin))
        await self.keep_idle(self.o.idle)

        async def work():
            while plan and time.monotonic() < until:
                index, kind = plan.pop()
                await asyncio.sleep(max(0.0, begin + index * pace - time.monotonic()))
                rng = random.Random(self.o.seed * 10 ** 6 + index)
                try:
                    self.disk(index)
                except OSError as error:
                    self.fail(f"the window of a full disk: {error}")
                if index in bursts:
                    await self.burst(self.o.burst, rng)
                await self.one(kind, rng)
                if index and index % 500 == 0:
                    rss = self.samples[-1][1] / MIB if self.samples else 0
                    print(f"soak: {index} of {self.o.requests}, "
                          f"{time.monotonic() - begin:.0f} s, RSS {rss:.1f} MiB, "
                          f"{len(self.failures)} failures", file=sys.stderr, flush=True)
        await asyncio.gather(*(work() for _ in range(self.o.clients)))
        if plan:
            self.fail(f"{len(plan)} requests were not begun in {self.o.minutes} minutes")
        self.over = True
        await watching
        for task in self.idle:
            task.cancel()
        await asyncio.gather(*self.idle, return_exceptions=True)
        return time.monotonic() - begin

    async def settle(self, files):
        """Nothing runs, nothing is left open, and the next answer is right."""
        until = time.monotonic() + 60
        busy, text = None, ""
        while time.monotonic() < until:
            answer = await self.ask("GET", "/metrics", None)
            text = answer.body.decode() if answer else ""
            busy = [client.metric(text, f"headrace_{n}")
                    for n in ("choices_running", "choices_preempted", "jobs_waiting")]
            if busy == [0, 0, 0] and open_files(self.server.pid) <= files:
                break
            await asyncio.sleep(0.5)
        else:
            self.fail(f"60 s after the end: running, preempted, waiting {busy}, open files "
                      f"{open_files(self.server.pid)} (before: {files})")
        await self.answered(self.questions[0])
        return text

    async def drain(self):
        """SIGTERM in the middle of a stream: it ends whole."""
        name, path, body = self.questions[0]
        sent = []

        def on_event(count):
            if count == 1:
                os.kill(self.server.pid, signal.SIGTERM)
                sent.append(count)
        body = {**body, "stream": True, "max_tokens": 64, "ignore_eos": True}
        answer = await self.ask("POST", path, body, on_event=on_event)
        if not sent or answer is None or not answer.finished():
            self.fail(f"the stream that ran on SIGTERM: {describe(answer)}")


def said(answer):
    """The text of an answer, None where it holds none."""
    try:
        return answer.text()
    except (ValueError, AttributeError, TypeError):
        return None


def describe(answer):
    if answer is None:
        return f"nothing in {PATIENCE_S} s"
    if answer.status == 0:
        return "closed without an answer"
    what = answer.body[:200] if not answer.events else f"{len(answer.events)} events"
    return f"{answer.status}, whole {answer.whole}, {what}"


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def slope(samples):
    """Bytes a minute: the median of the slopes between all pairs of samples (Sen, "Estimates of the
    regression coefficient based on Kendall's tau", 1968); 0 of fewer than two. One step, memory that
    is touched late and once, does not count as growth; whatever goes on growing does."""
    slopes = [60 * (v - u) / (t - r) for i, (t, v) in enumerate(samples)
              for r, u in samples[:i] if t > r]
    return statistics.median(slopes) if slopes else 0.0


def soak(o):
    """Runs one soak; a dict of what was found, "failures" among it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        o.model = o.model or servers.model_for_tests(folder)
        o.store = pathlib.Path(folder) / "prefix"
        server = servers.headrace(
            o.headrace, o.model, o.memory * MIB, threads=o.threads, context=CONTEXT,
            kv_folder=folder, prefix_store=o.store,
            extra=o.extra, limit=o.memory * MIB if o.cgroup else None)
        # Where a file may not grow, writing raises this signal besides.
        server.command = ["env", "--ignore-signal=XFSZ", *server.command]
        server.start()
        try:
            return soak_server(o, server)
        finally:
            server.end(signal.SIGKILL)


def soak_server(o, server):
    s = Soak(o, server)
    asyncio.run(s.known_answers())
    facts = {"model": str(o.model), "budget": o.memory * MIB, "requests": o.requests,
             "command": server.command}
    if s.questions:
        files = open_files(server.pid)
        facts["seconds"] = asyncio.run(s.drive())
        if server.alive():
            text = asyncio.run(s.settle(files))
            facts["metrics"] = {name: client.metric(text, f"headrace_{name}") for name in COUNTERS}
            if facts["metrics"]["preemptions_total"] == 0:
                s.fail("nothing was preempted")
            facts["VmHWM"] = server.memory().get("VmHWM", 0)
            asyncio.run(s.drain())
            server.thread.join(PATIENCE_S)  # a second SIGTERM would end it at once
    result = server.end()
    if result["rc"] != 0 or result["had_to_be_killed"]:
        s.fail(f"SIGTERM: exit {result['rc']}, had to be killed "
               f"{result['had_to_be_killed']}: {result['stderr'][-500:]}")
    facts["peak_rss"] = max(facts.get("VmHWM", 0), result["peak_rss"])
    if facts["peak_rss"] > facts["budget"]:
        s.fail(f"peak {facts['peak_rss'] / MIB:.2f} MiB, budget {o.memory} MiB")
    facts["peak_private"] = result["peak_private"]
    if result["peak_private"] > facts["budget"]:
        s.fail(f"RssAnon + VmSwap {result['peak_private'] / MIB:.2f} MiB, budget {o.memory} MiB")
    facts["cgroup"] = result["cgroup"]
    if o.cgroup and result["cgroup"]["oom_kills"]:
        s.fail(f"killed by a limit of {o.memory} MiB")
    facts["moved"] = [x for x in s.mappings.steps if x[0] > facts.get("seconds", 0) / 5]
    warm = [x for x in s.samples if x[0] > facts.get("seconds", 0) / 5]
    facts["slope_bytes_per_min"] = slope(warm)
    facts["grown_bytes"] = max(v for _, v in warm) - warm[0][1] if warm else 0
    if facts.get("seconds", 0) >= 600 and facts["slope_bytes_per_min"] > o.slope * KIB:
        s.fail(f"VmRSS grows by {facts['slope_bytes_per_min'] / KIB:.1f} KiB a minute")
    facts |= {"counts": s.counts, "waits": s.waits, "gone": s.gone, "reopened": s.reopened,
              "idle": o.idle, "trouble": s.trouble,
              "health_worst_s": max(s.health_s, default=None), "failures": s.failures,
              "samples": s.samples[::max(1, len(s.samples) // 500)]}
    return facts


def table(facts):
    """Rows of a table of the facts."""
    done = ", ".join(f"{name} {count}" for name, count in sorted(facts["counts"].items()))
    worst = facts["health_worst_s"]
    return [
        ["what", "found"],
        ["requests", f"{sum(facts['counts'].values())} ({done})"],
        ["told to come again (429, 503)", facts["waits"]],
        ["half-closed, taken for gone", facts["gone"]],
        ["idle connections beside", f"{facts['idle']}, opened again {facts['reopened']} times"],
        ["trouble with the disk", facts["trouble"]],
        ["seconds", f"{facts.get('seconds', 0):.0f}"],
        ["peak RSS / budget, MiB", f"{facts['peak_rss'] / MIB:.2f} / {facts['budget'] / MIB:.0f}"],
        ["RssAnon + VmSwap at most, MiB", f"{facts['peak_private'] / MIB:.2f}"],
        ["limit of the control group, MiB", limit_of(facts["cgroup"])],
        ["RSS slope after warm-up, KiB a minute", f"{facts['slope_bytes_per_min'] / KIB:.2f}"],
        ["RSS, most after warm-up above its end, MiB", f"{facts['grown_bytes'] / MIB:.2f}"],
        ["what moved after warm-up", "; ".join(step_of(*step) for step in facts["moved"]) or "-"],
        ["counted by the server", ", ".join(f"{name} {value:.0f}" for name, value in
                                            facts.get("metrics", {}).items() if value)],
        ["slowest /health, ms", f"{worst * 1e3:.0f}" if worst is not None else "-"],
        ["failures", len(facts["failures"])],
    ]


def limit_of(group):
    if not group:
        return "none"
    return f"{group['limit'] / MIB:.0f}, peak {group['peak'] / MIB:.0f}, " \
           f"{group['oom_kills']} kills"


def step_of(seconds, changes):
    what = ", ".join(f"{name} {change / MIB:+.1f} MiB" for name, change in changes.items())
    return f"at {seconds:.0f} s {what}"


def mib_of(text):
    number, factor = text.removesuffix("B").removesuffix("i"), 1
    if number[-1] in "MG":
        number, factor = number[:-1], 1 if number[-1] == "M" else 1024
    return int(number) * factor


def options_of(argv):
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--headrace", default=str(ROOT / "build/release/headrace"))
    p.add_argument("--model", help="default: the 135M model in the folder HEADRACE_MODELS, else a "
                                   "tiny one")
    p.add_argument("--memory", type=mib_of,
                   help="default 448MiB, in which a server keeps 1,000 idle connections; --quick: "
                        "192MiB")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--requests", type=int, default=10000)
    p.add_argument("--minutes", type=float, default=30, help="0: as fast as they go")
    p.add_argument("--clients", type=int, default=24)
    p.add_argument("--idle", type=int, default=1000)
    p.add_argument("--burst", type=int, default=300)
    p.add_argument("--slope", type=float, default=32, help="KiB a minute that RSS may grow")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--folder", help="on a disk, for KV and prefixes; default: the system's")
    p.add_argument("--json", help="write all facts there")
    p.add_argument("--cgroup", action="store_true",
                   help="in a memory control group whose limit is the budget (root)")
    p.add_argument("--quick", action="store_true")
    p.add_argument("extra", nargs="*", help="after --: more options for the server")
    o = p.parse_args([str(word) for word in argv])
    o.memory = o.memory or (192 if o.quick else 448)
    if o.quick:
        o.requests, o.minutes, o.idle, o.burst = 300, 0, 200, 60
    return o


def main():
    o = options_of(sys.argv[1:])
    facts = soak(o)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(facts, indent=1, default=str) + "\n")
    for row in table(facts):
        print(f"{row[0]:40} {row[1]}")
    for text in facts["failures"][:50]:
        print(f"FAILED {text}")
    return 1 if facts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
