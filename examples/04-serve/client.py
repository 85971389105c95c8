#!/usr/bin/env python3
"""Talks to `headrace serve` with nothing but Python's standard library.

usage: client.py [--url http://127.0.0.1:8080] [--key KEY] [--tokens N] QUESTION...

Each QUESTION is asked at the same time as the others: they share the server's passes over
the weights. With one question the answer is written as it comes; with several, each whole.
"""
import argparse
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request


class Failed(Exception):
    """What the server, or the way to it, said."""


def ask(args, question, stream):
    """Pieces of the answer's text as they come. Waits and asks again while the server is busy."""
    body = json.dumps({
        "messages": [{"role": "user", "content": question}],
        "max_tokens": args.tokens,
        "stream": stream,
    }).encode()
    headers = {"Content-Type": "application/json"}
    if args.key:
        headers["Authorization"] = "Bearer " + args.key
    request = urllib.request.Request(args.url + "/v1/chat/completions", body, headers)
    while True:
        try:
            reply = urllib.request.urlopen(request)
            break
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code in (429, 503) and "Retry-After" in error.headers:
                time.sleep(int(error.headers["Retry-After"]))
                continue
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Failed(f"{error.code}: {text}") from None
        except OSError as error:
            raise Failed(f"cannot reach {args.url}: {getattr(error, 'reason', error)}") from None
    with reply:
        if not stream:
            yield json.load(reply)["choices"][0]["message"]["content"]
            return
        # Server-sent events: "data: {...}", then an empty line. Lines that begin with ":" say
        # that the server is still there.
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            data = line[len(b"data: "):].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if "error" in event:
                raise Failed(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--key", default=os.environ.get("HEADRACE_API_KEY", ""))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("questions", nargs="+", metavar="QUESTION")
    args = parser.parse_args()
    if len(args.questions) == 1:
        try:
            for piece in ask(args, args.questions[0], stream=True):
                print(piece, end="", flush=True)
        except Failed as failure:
            return str(failure)
        print()
        return 0
    answers = [""] * len(args.questions)
    failures = []

    def fill(i):
        try:
            answers[i] = "".join(ask(args, args.questions[i], stream=False))
        except Failed as failure:
            answers[i] = f"({failure})"
            failures.append(i)

    threads = [threading.Thread(target=fill, args=(i,)) for i in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for question, answer in zip(args.questions, answers):
        print(f"> {question}\n{answer}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
