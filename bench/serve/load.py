#!/usr/bin/env python3
"""Loads a server of the OpenAI kind with concurrent streams and says what came of it.

  bench/serve/load.py --port 8080 [--clients 8] [--requests 16] [--words 40-120]
                      [--tokens 64] [--seed 1] [--warm 1] [--key KEY] [--json]

N clients each send one streaming completion after the other: prompts of so many words,
answers of exactly so many tokens (greedy, ends ignored), from a seeded mix, so that two
servers given the same seed do the same work. No two prompts begin alike: what is
measured is not a cache. Works on Headrace's server and on llama.cpp's.

  tokens/s     generated tokens (by the server's count) / seconds, first request sent to
               last answer ended
  decoding     the same over the time in which every client was receiving
  TTFT         request sent to first text
  gap          between two events with text of one stream
"""
import argparse
import asyncio
import dataclasses
import json
import pathlib
import random
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import client  # noqa: E402
from programs import WORDS  # noqa: E402


def prompt(rng, words):
    """A text of about so many words; its first ones are unlike all others'."""
    start = f"{rng.randrange(10 ** 9)} {rng.choice(WORDS)} {rng.choice(WORDS)}:"
    return " ".join([start, *(rng.choice(WORDS) for _ in range(max(0, words - 3)))])


def completion(text, tokens, **more):
    """Body of a greedy streamed completion of exactly `tokens` tokens."""
    return {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, **more}


def mix(seed, count, words=(40, 120), tokens=(64, 64)):
    """`count` bodies; the same for the same arguments."""
    rng = random.Random(seed)
    return [completion(prompt(rng, rng.randint(*words)), rng.randint(*tokens))
            for _ in range(count)]


def percentile(values, share):
    """The smallest value that at least `share` (0..1) of them do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, -(-int(share * 1e6) * len(ordered) // 10 ** 6) - 1)]


@dataclasses.dataclass
class Stream:
    """One request's answer on the clock of the whole run."""
    sent_s: float
    answer: client.Answer

    @property
    def times(self):
        """When text came."""
        return [self.sent_s + at for at, o in self.answer.chunks()
                if any(client.piece(c) for c in o.get("choices", []))]

    def good(self):
        return self.answer.status == 200 and self.answer.finished()


def summary(streams, wall_s, clients):
    """The figures of a run, as a dict (see the head of this file)."""
    good = [s for s in streams if s.good()]
    usages = [s.answer.usage() or {} for s in good]
    tokens = sum(u.get("completion_tokens", 0) for u in usages)
    gaps = [b - a for s in good for a, b in zip(s.times, s.times[1:])]
    firsts = [s.times[0] - s.sent_s for s in good if s.times]
    errors = {}
    for s in streams:
        if not s.good():
            what = f"{s.answer.status} {(s.answer.error() or {}).get('message', '')}".strip()
            errors[what] = errors.get(what, 0) + 1
    return {"clients": clients, "requests": len(streams), "good": len(good), "errors": errors,
            "tokens": tokens, "prompt_tokens": sum(u.get("prompt_tokens", 0) for u in usages),
            "wall_s": wall_s, "tokens_per_s": tokens / wall_s if wall_s else None,
            "decode_tokens_per_s": decoding(good, clients),
            "ttft_p50_s": percentile(firsts, 0.5), "ttft_p99_s": percentile(firsts, 0.99),
            "gap_p50_s": percentile(gaps, 0.5), "gap_p99_s": percentile(gaps, 0.99)}


def decoding(good, clients):
    """Events with text a second, times tokens an event, while the most streams that ran
    together were all receiving; None where they never were."""
    running = [s for s in good if len(s.times) > 1][:clients]
    if not running:
        return None
    begin, end = max(s.times[0] for s in running), min(s.times[-1] for s in running)
    if end <= begin:
        return None
    count = 0.0
    for s in running:
        a_piece = (s.answer.usage() or {}).get("completion_tokens", len(s.times)) / len(s.times)
        count += a_piece * sum(begin < t <= end for t in s.times)
    return count / (end - begin)


async def drive(port, bodies, clients, headers=(), path="/v1/completions", limit_s=3600):
    """All bodies through `clients` clients; [Stream] in their order, and seconds."""
    waiting, streams = list(enumerate(bodies)), [None] * len(bodies)
    waiting.reverse()
    begin = time.monotonic()

    async def work():
        while waiting:
            index, body = waiting.pop()
            sent = time.monotonic() - begin
            try:
                answer = await client.request(port, "POST", path, body, headers)
            except ConnectionError:
                answer = client.Answer()  # status 0: nobody listens, or reset
            streams[index] = Stream(sent, answer)

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(clients))), limit_s)
    return streams, time.monotonic() - begin


def run(port, bodies, clients, **more):
    """As drive(); (summary, streams). TimeoutError after limit_s."""
    streams, wall_s = asyncio.run(drive(port, bodies, clients, **more))
    return summary(streams, wall_s, clients), streams


def span(text):
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--requests", type=int, default=16)
    p.add_argument("--words", type=span, default=(40, 120), metavar="N[-M]")
    p.add_argument("--tokens", type=span, default=(64, 64), metavar="N[-M]")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--warm", type=int, default=1, help="requests before the clock starts")
    p.add_argument("--key", help="API key")
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    headers = {"Authorization": f"Bearer {o.key}"} if o.key else {}
    if o.warm:
        run(o.port, mix(-o.seed, o.warm, o.words, (4, 4)), 1, headers=headers)
    figures, _ = run(o.port, mix(o.seed, o.requests, o.words, o.tokens), o.clients,
                     headers=headers)
    if o.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:20} {value:.4g}" if isinstance(value, float) else f"{name:20} {value}")
    return 0 if figures["good"] == figures["requests"] else 1


if __name__ == "__main__":
    sys.exit(main())
