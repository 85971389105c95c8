"""How the benchmarks call the two programs and read what they say.

Headrace says its figures in the JSON of --report; llama.cpp in the JSON of llama-bench.
Both are run through measure.run, which measures from outside. The standard library
only.
"""
import json
import os
import pathlib
import re
import subprocess
import tempfile

import measure

MIB = 1 << 20
GREEDY = ["--temperature", "0"]


class Headrace:
    """The program under test."""

    name = "headrace"

    def __init__(self, binary, cpus=None):
        self.binary, self.cpus = pathlib.Path(binary), cpus

    def available(self):
        return self.binary.exists()

    def disk_bandwidth(self, model):
        """Bytes a second of direct reads of the model's file, deep queue, by io_uring: three
        times what Python's threads get here, so the honest limit. None where it fails."""
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "machine.json"
            subprocess.run([self.binary, "probe", "--file", model, "-o", out],
                           capture_output=True, check=False)
            if not out.exists():
                return None
            tiers = json.loads(out.read_text())["tiers"]
        return next(t["load_bytes_per_s"] for t in tiers if t["name"] == "file")

    def run(self, model, memory=None, prompt=None, prompt_file=None, tokens=64,
            threads=2, context=None, extra=(), limit=None, timeout_s=600,
            every_s=measure.SELDOM_S):
        """One `headrace run`. memory: bytes (said in MiB, rounded down), or None for
        auto. Returns measure.run's dict with "report" (a dict; {} if none came)."""
        command = [self.binary, "run", model]
        if memory:
            command += ["--memory", f"{memory // MIB}MiB"]
        if prompt_file:
            command += ["--prompt-file", prompt_file]
        else:
            command += ["--prompt", prompt or "The river below the mill was"]
        command += ["--tokens", tokens, "--threads", threads, *GREEDY]
        if context:
            command += ["--context", context]
        descriptor, report = tempfile.mkstemp(suffix=".json", prefix="headrace-report-")
        os.close(descriptor)
        try:
            result = measure.run([*command, *extra, "--report", report], limit=limit,
                                 timeout_s=timeout_s, cpus=self.cpus, every_s=every_s)
            text = pathlib.Path(report).read_text()
        finally:
            os.unlink(report)
        try:
            result["report"] = json.loads(text)
        except ValueError:
            result["report"] = {}
        result["budget"] = memory // MIB * MIB if memory else None
        return result


# What llama.cpp is tried with under a limit: the settings its own documentation offers
# for memory, in words and as llama-bench says them.
PEER_SETTINGS = [
    ("mmap, no repacking, 1 thread", ["-lm", "mmap", "--repack", "0", "-t", "1"]),
    ("mmap, no repacking, 2 threads", ["-lm", "mmap", "--repack", "0", "-t", "2"]),
    ("mmap, repacking (default), 1 thread", ["-lm", "mmap", "--repack", "1", "-t", "1"]),
    ("mmap, repacking (default), 2 threads",
     ["-lm", "mmap", "--repack", "1", "-t", "2"]),
    ("read whole, no repacking, 1 thread", ["-lm", "none", "--repack", "0", "-t", "1"]),
    ("direct I/O, no repacking, 1 thread", ["-lm", "dio", "--repack", "0", "-t", "1"]),
]


class Peer:
    """llama.cpp as bench/setup_peers.sh built it."""

    name = "llama.cpp"

    def __init__(self, folder, cpus=None):
        self.folder, self.cpus = pathlib.Path(folder), cpus

    def available(self):
        return (self.folder / "bin" / "llama-bench").exists()

    def build(self):
        path = self.folder / "BUILD"
        return path.read_text().strip() if path.exists() else "unknown"

    def bench(self, model, prompt=0, tokens=0, options=(), limit=None, timeout_s=600):
        """One llama-bench of one repetition (after its own warm-up pass): tokens/s of a
        prompt or of decoding. Adds "tokens_per_s" (None if it gave none)."""
        command = [self.folder / "bin" / "llama-bench", "-m", model, "-p", prompt, "-n",
                   tokens, "-r", 1, "-o", "json", *options]
        result = measure.run(command, limit=limit, timeout_s=timeout_s, cpus=self.cpus)
        try:
            result["tokens_per_s"] = json.loads(result["stdout"])[0]["avg_ts"]
        except (ValueError, IndexError, KeyError):
            result["tokens_per_s"] = None
        return result

    def complete(self, model, prompt, tokens, options=(), limit=None, timeout_s=600):
        """One llama-completion; adds "tokens_per_s" of decoding as it prints it."""
        command = [self.folder / "bin" / "llama-completion", "-m", model, "-p", prompt,
                   "-n", tokens, "-no-cnv", "--no-display-prompt", "--temp", "0", "-c",
                   512, *options]
        result = measure.run(command, limit=limit, timeout_s=timeout_s, cpus=self.cpus)
        found = re.search(r"[^t] eval time.*?([\d.]+) tokens per second",
                          result["stderr"] + result["stdout"])
        result["tokens_per_s"] = float(found.group(1)) if found else None
        return result

    def count_tokens(self, model, text):
        """How many tokens llama.cpp makes of a text, its start token included."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as stream:
            stream.write(text)
            stream.flush()
            result = measure.run([self.folder / "bin" / "llama-tokenize", "-m", model,
                                  "-f", stream.name, "--ids"])
        return len(json.loads(result["stdout"].strip().splitlines()[-1]))


WORDS = ("the river ran low in summer and the miller kept a book of levels by the door "
         "so that every morning he could see how much the pond had gained over night "
         "while in spring the gate stood open and the wheel turned as fast as it could "
         "and nobody counted anything until the rain was over and the grass was dry")
WORDS = WORDS.split()


def prompt_of(tokens, model, peer):
    """A text of exactly `tokens` tokens for this model as the peer counts them (or of
    about that many where there is no peer)."""
    words = [WORDS[i % len(WORDS)] for i in range(tokens)]
    if not peer or not peer.available():
        return " ".join(words)
    for _ in range(20):
        count = peer.count_tokens(model, " ".join(words))
        if count == tokens:
            break
        if count > tokens:
            words = words[:len(words) - (count - tokens)]
        else:
            words += [WORDS[i % len(WORDS)] for i in range(tokens - count)]
    return " ".join(words)
