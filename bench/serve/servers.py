"""Servers as the benchmarks run them: Headrace's and llama.cpp's, in a cgroup or not.

measure.run follows each process from a thread of its own, so peaks, bytes read and
cgroup facts are those of all other benchmarks. The standard library only.
"""
import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))
import measure  # noqa: E402
from client import fetch  # noqa: E402

MIB = 1 << 20
# What llama.cpp's server is tried with under a limit: those of bench/programs.py as the
# server says them.
PEER_SETTINGS = [
    ("mmap, no repacking, 1 thread", ["-lm", "mmap", "--no-repack", "-t", "1"]),
    ("mmap, no repacking, 2 threads", ["-lm", "mmap", "--no-repack", "-t", "2"]),
    ("mmap, repacking (default), 1 thread", ["-lm", "mmap", "--repack", "-t", "1"]),
    ("mmap, repacking (default), 2 threads", ["-lm", "mmap", "--repack", "-t", "2"]),
    ("read whole, no repacking, 2 threads", ["-lm", "none", "--no-repack", "-t", "2"]),
    ("direct I/O, no repacking, 2 threads", ["-lm", "dio", "--no-repack", "-t", "2"]),
]


class ServerFailed(RuntimeError):
    """It did not become ready. `result`: measure.run's dict, None while it still runs."""

    def __init__(self, text, result):
        super().__init__(text)
        self.result = result


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A process that answers on a loopback port. As a context: ready inside, ended after.

    command: a function of the port that gives the words. `limit`: bytes of a cgroup."""

    def __init__(self, command, limit=None, cpus=None, ready_s=600, on_start=None):
        self.port = free_port()
        self.command = [str(word) for word in command(self.port)]
        self.limit, self.cpus, self.ready_s = limit, cpus, ready_s
        self.pid = self.result = self.thread = None
        self.on_start, self.started = on_start, threading.Event()

    def _follow(self):
        def started(pid):
            self.pid = pid
            if self.on_start:
                self.on_start(pid)
            self.started.set()
        try:
            self.result = measure.run(self.command, limit=self.limit, cpus=self.cpus,
                                      on_start=started)
        finally:
            self.started.set()

    def start(self):
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()
        self.started.wait()
        until = time.monotonic() + self.ready_s
        while time.monotonic() < until and self.thread.is_alive():
            if self.healthy():
                return self
            time.sleep(0.05)
        if self.thread.is_alive():
            self.end(signal.SIGKILL)
            raise ServerFailed(f"not ready after {self.ready_s} s", self.result)
        text = (self.result or {}).get("stderr", "").strip()[-400:]
        raise ServerFailed(f"ended before it was ready: {text}", self.result)

    def healthy(self):
        try:
            return fetch(self.port, "/health", timeout_s=30).status == 200
        except (OSError, TimeoutError):
            return False

    def alive(self):
        return self.thread.is_alive()

    def end(self, number=signal.SIGTERM, patience_s=120):
        """Sends a signal, waits, gives measure.run's dict; killed after patience_s (then
        the dict has "had_to_be_killed")."""
        late = False
        if self.alive():
            os.kill(self.pid, number)
            self.thread.join(patience_s)
            if late := self.alive():
                os.kill(self.pid, signal.SIGKILL)
                self.thread.join()
        self.result["had_to_be_killed"] = late
        return self.result

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.end()

    def memory(self):
        """{VmHWM, VmRSS, ...} in bytes, now."""
        return measure.proc_fields(f"/proc/{self.pid}/status",
                                   ("VmHWM", "VmRSS", "RssAnon", "VmSwap"))

    def metrics(self):
        return fetch(self.port, "/metrics").body.decode()


def headrace(binary, model, memory, *, threads=2, context=None, places=None,
             speculate=None, prefix_store=None, kv_folder=None, extra=(), **server):
    """Headrace's server in a budget of `memory` bytes, said in MiB, rounded down."""
    options = {"--threads": threads, "--context": context, "--parallel": places,
               "--speculate": speculate, "--prefix-store": prefix_store,
               "--kv-dir": kv_folder}
    words = [word for name, value in options.items() if value is not None
             for word in (name, value)]
    return Server(lambda port: [binary, "serve", model, "--memory",
                                f"{int(memory) // MIB}MiB", "--port", port, *words,
                                *extra], **server)


def peer(folder, model, *, places, context, flags=("-t", "2"), **server):
    """llama.cpp's server: `places` slots of `context` positions each. Its cache of old
    prompts in memory (8 GiB by default) is off: no row repeats a prompt."""
    return Server(lambda port: [pathlib.Path(folder) / "bin" / "llama-server", "-m", model,
                                "--port", port, "-np", places, "-c", places * context,
                                "--cache-ram", 0, *flags], **server)


REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY_MODEL = ROOT / "tests" / "data" / "models" / "llama.gguf"
TINY_TEMPLATE = ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
                 "{% if add_generation_prompt %}assistant:{% endif %}")


def model_for_tests(folder):
    """The real model where HEADRACE_MODELS names a folder that has it; otherwise a tiny one,
    written into `folder`: that of the tests' data with a chat template."""
    real = pathlib.Path(os.environ.get("HEADRACE_MODELS", "")) / REAL_MODEL
    if "HEADRACE_MODELS" in os.environ and real.exists():
        return real
    path = pathlib.Path(folder) / "tiny.gguf"
    path.write_bytes(with_template(TINY_MODEL.read_bytes(), TINY_TEMPLATE))
    return path


def with_template(gguf, template):
    """The bytes of a GGUF file with one pair more, in front of the others (GGUF
    specification, version 3). The pair is a multiple of 32 bytes long, so that the tensors,
    which begin at such multiples, need not be moved; the template ends in a comment that
    makes it so."""
    key = b"tokenizer.chat_template"
    magic, version, tensors, pairs = struct.unpack_from("<4sIQQ", gguf)
    fixed = 8 + len(key) + 4 + 8
    text = template.encode() + b"{#"
    text += b" " * (-(fixed + len(text) + 2) % 32) + b"#}"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text
    return struct.pack("<4sIQQ", magic, version, tensors, pairs + 1) + pair + gguf[24:]
