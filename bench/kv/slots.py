"""What llama-server's saved slots do: a prompt is read, its slot saved, and restored elsewhere.

Endpoints and their replies: tools/server/README.md of llama.cpp (/completion, /slots). The standard
library only.
"""
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import measure

START_S, ANSWER_S = 120, 1800
FILE = "prompt.slot"


class Server:
    """One llama-server of one slot; ends with the `with` block."""

    def __init__(self, llama, model, context, folder, threads):
        llama = pathlib.Path(llama)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base, self.log = f"http://127.0.0.1:{port}", folder / f"server-{port}.log"
        # Slots are cut to the trained context otherwise, and this model's is 8K.
        words = [llama / "bin" / "llama-server", "-m", model, "-c", context, "-np", 1, "-t",
                 threads, "--port", port, "--slot-save-path", folder, "--no-context-shift",
                 "--override-kv", f"llama.context_length=int:{context}"]
        begin = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(w) for w in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "LD_LIBRARY_PATH": str(llama / "lib")})
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - begin

    def _wait(self):
        for _ in range(START_S * 20):
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server: exit {self.process.returncode}: "
                                   f"{self.log.read_text(errors='replace')[-300:]}")
            try:
                with urllib.request.urlopen(self.base + "/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"llama-server: not ready after {START_S} s")

    def post(self, path, body):
        """The reply to a JSON request; RuntimeError with what the server said otherwise."""
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"llama-server: {path}: {error.read()[-300:]}") from error

    def complete(self, prompt, tokens):
        """(text, seconds of reading the prompt, tokens of it that were computed)"""
        r = self.post("/completion", {"prompt": prompt, "n_predict": tokens, "temperature": 0,
                                      "cache_prompt": True, "id_slot": 0, "ignore_eos": True})
        t = r["timings"]
        return r["content"], t["prompt_ms"] / 1e3, t["prompt_n"]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def measure_slots(llama, model, prompt, tokens, prompt_tokens, folder, threads):
    """{start_s, read_s, tokens, save_s, bytes, restore_s, first_s, restored_tokens, same}: first_s
    is what reading the prompt takes after its slot was restored, in a server that never saw it."""
    context = (prompt_tokens + tokens + 511) // 256 * 256
    out = {}
    with Server(llama, model, context, folder, threads) as server:
        text, out["read_s"], out["tokens"] = server.complete(prompt, tokens)
        begin = time.monotonic()
        saved = server.post("/slots/0?action=save", {"filename": FILE})
        out["save_s"], out["bytes"] = time.monotonic() - begin, saved["n_written"]
    measure.evict(folder / FILE)
    with Server(llama, model, context, folder, threads) as server:
        out["start_s"] = server.start_s
        begin = time.monotonic()
        out["restored_tokens"] = server.post("/slots/0?action=restore",
                                             {"filename": FILE})["n_restored"]
        out["restore_s"] = time.monotonic() - begin
        again, out["first_s"], out["read_again"] = server.complete(prompt, tokens)
    out["same"] = text == again
    return out
