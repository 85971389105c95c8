#!/usr/bin/env python3
"""What measures servers measures right: the client, the figures, the slope."""
import asyncio
import errno
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "serve"))
import client  # noqa: E402
import load  # noqa: E402
import mappings  # noqa: E402
import servers  # noqa: E402
import soak  # noqa: E402


def event(text):
    return f"data: {text}\n\n".encode()


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def answer_of(parts, on_event=None):
    """What the client makes of these bytes, each part sent alone, then the end."""
    async def serve(reader, writer, sent):
        await reader.readuntil(b"\r\n\r\n")
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            pass  # the client left
        await client.close(writer)
        sent.set()

    async def both():
        sent = asyncio.Event()
        server = await asyncio.start_server(lambda r, w: serve(r, w, sent), client.HOST, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            answer = await client.request(port, "GET", "/", on_event=on_event)
            await sent.wait()
            return answer
    return asyncio.run(both())


class Client(unittest.TestCase):
    def test_a_message_of_known_length(self):
        a = answer_of([b"HTTP/1.1 404 Not Found\r\nContent-Length: 11\r\n\r\n", b'{"error"', b":5}"])
        self.assertEqual((a.status, a.body, a.whole), (404, b'{"error":5}', True))

    def test_a_message_that_ends_early_is_not_whole(self):
        self.assertFalse(answer_of([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]).whole)
        a = answer_of([STREAM, chunk(event("[DONE]"))])  # without the last chunk
        self.assertFalse(a.whole or a.finished())

    def test_no_answer_at_all_has_no_status(self):
        self.assertEqual(answer_of([]).status, 0)
        self.assertEqual(answer_of([b"HTTP/1.1 200"]).status, 0)

    def test_events_may_be_cut_anywhere(self):
        pieces = [{"choices": [{"index": 0, "text": t}]} for t in ("a", "b\u00e9", "")]
        usage = {"choices": [], "usage": {"completion_tokens": 3}}
        body = b"".join(event(json.dumps(p, ensure_ascii=False)) for p in [*pieces, usage])
        raw = body + b": keep alive\n\n" + event("[DONE]")
        for size in (1, 7, 1000):
            cut = [chunk(raw[i:i + size]) for i in range(0, len(raw), size)]
            a = answer_of([STREAM, *cut, b"0\r\n\r\n"])
            self.assertTrue(a.finished())
            self.assertEqual(a.text(), "ab\u00e9")
            self.assertEqual(a.usage(), {"completion_tokens": 3})

    def test_a_stream_without_its_mark_has_not_finished(self):
        a = answer_of([STREAM, chunk(event("{}")), b"0\r\n\r\n"])
        self.assertTrue(a.whole)
        self.assertFalse(a.finished())

    def test_the_client_can_leave_after_an_event(self):
        a = answer_of([STREAM, *[chunk(event("{}"))] * 5], on_event=lambda n: n < 2)
        self.assertEqual((len(a.events), a.left, a.whole), (2, True, False))


class Figures(unittest.TestCase):
    def test_percentiles_are_values_that_were_there(self):
        values = list(range(100, 0, -1))
        self.assertEqual(load.percentile(values, 0.5), 50)
        self.assertEqual(load.percentile(values, 0.99), 99)
        self.assertEqual(load.percentile([5], 0.99), 5)
        self.assertIsNone(load.percentile([], 0.5))

    def test_the_same_seed_asks_the_same_and_no_two_prompts_begin_alike(self):
        bodies = load.mix(3, 50, (5, 9), (4, 8))
        self.assertEqual(bodies, load.mix(3, 50, (5, 9), (4, 8)))
        self.assertEqual(len({b["prompt"].split()[0] for b in bodies}), 50)

    def test_a_run_of_streams(self):
        def stream(sent, times, tokens):
            events = [(t, json.dumps({"choices": [{"text": "x"}]})) for t in times]
            events.append((times[-1], json.dumps(
                {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 2}})))
            events.append((times[-1], "[DONE]"))
            return load.Stream(sent, client.Answer(
                200, {"content-type": "text/event-stream"}, events=events, whole=True,
                seconds=times[-1]))
        bad = load.Stream(0, client.Answer(429))
        got = load.summary([stream(0, [1, 2, 3, 4], 4), stream(1, [1, 2, 5], 6), bad], 6, 2)
        self.assertEqual((got["good"], got["requests"], got["tokens"]), (2, 3, 10))
        self.assertAlmostEqual(got["tokens_per_s"], 10 / 6)
        self.assertEqual(got["errors"], {"429": 1})
        self.assertEqual(got["gap_p50_s"], 1)
        self.assertEqual(got["gap_p99_s"], 3)
        # Both receive from 2 s to 4 s: two tokens of the first, one event of two of the second.
        self.assertAlmostEqual(got["decode_tokens_per_s"], (2 + 2) / 2)

    def test_the_slope_is_that_of_the_line(self):
        self.assertAlmostEqual(soak.slope([(t, 100 + 5 * t) for t in range(9)]), 300)
        self.assertEqual(soak.slope([(0, 1)]), 0)

    def test_metrics_are_read_by_their_whole_name(self):
        text = "# HELP a_b x\na_b_total 7\na_b 3.5\na_b{x=\"1\"} 9\n"
        self.assertEqual(client.metric(text, "a_b"), 3.5)
        self.assertIsNone(client.metric(text, "a"))


class Disk(unittest.TestCase):
    def test_a_full_disk_is_one_for_a_process_until_it_is_taken_back(self):
        writer = ("import sys\nfor line in sys.stdin:\n  try:\n    open(line.strip(), 'wb', 0)"
                  ".write(b'text')\n    print('written', flush=True)\n  except OSError as e:\n"
                  "    print(e.strerror, flush=True)\n")
        with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
                [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                text=True) as child:
            def write():
                child.stdin.write(f"{folder}/file\n")
                child.stdin.flush()
                return child.stdout.readline().strip()
            self.assertEqual(write(), "written")
            self.assertTrue(soak.ignores(child.pid, signal.SIGXFSZ))  # Python does
            self.assertFalse(soak.ignores(child.pid, signal.SIGTERM))
            soak.full_disk(child.pid, True)
            self.assertEqual(write(), os.strerror(errno.EFBIG))
            soak.full_disk(child.pid, False)
            self.assertEqual(write(), "written")
            child.stdin.close()

    def test_damage_is_one_byte_in_one_of_four_files(self):
        with tempfile.TemporaryDirectory() as folder:
            names = [pathlib.Path(folder) / str(i) for i in range(8)]
            for name in names:
                name.write_bytes(bytes(100))
            self.assertEqual(soak.damage(folder, random.Random(1)), 2)
            bad = [name.read_bytes() for name in names if name.read_bytes() != bytes(100)]
            self.assertEqual(len(bad), 2)
            for data in bad:
                self.assertEqual((len(data), data.count(0), data.count(255)), (100, 99, 1))
            self.assertEqual(soak.damage(pathlib.Path(folder) / "none", random.Random(1)), 0)


class Mappings(unittest.TestCase):
    def test_what_grew_is_named_and_what_stayed_is_not(self):
        toucher = ("import mmap, sys\nm = mmap.mmap(-1, 9 << 20, mmap.MAP_PRIVATE)\n"
                   "print('there', flush=True)\nsys.stdin.readline()\n"
                   "m.write(bytes(8 << 20))\nprint('written', flush=True)\nsys.stdin.readline()\n")
        with subprocess.Popen([sys.executable, "-c", toucher], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as child:
            follower = mappings.Follower(4 << 20)
            self.assertEqual(child.stdout.readline(), "there\n")
            follower.look(child.pid, 1)
            follower.look(child.pid, 2)
            self.assertEqual(follower.steps, [])
            child.stdin.write("\n")
            child.stdin.flush()
            self.assertEqual(child.stdout.readline(), "written\n")
            follower.look(child.pid, 3)
            child.stdin.close()
        follower.look(child.pid, 4)  # it has ended
        (seconds, changes), = follower.steps
        self.assertEqual(seconds, 3)
        name = max(changes, key=changes.get)
        self.assertIn("anonymous", name)
        self.assertGreaterEqual(changes[name], 8 << 20)


class TinyModel(unittest.TestCase):
    def test_a_template_moves_tensors_by_a_multiple_of_their_alignment(self):
        gguf = servers.TINY_MODEL.read_bytes()
        for template in ("", "x", servers.TINY_TEMPLATE):
            more = servers.with_template(gguf, template)
            self.assertEqual((len(more) - len(gguf)) % 32, 0)
            self.assertTrue(more.endswith(gguf[24:]))


if __name__ == "__main__":
    unittest.main()
