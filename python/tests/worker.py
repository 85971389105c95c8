#!/usr/bin/env python3
"""One training run in a process of its own, that tests kill, limit and start again.

usage: worker.py CASE DOOR MEMORY FOLDER STEPS [--state FILE] [--file-limit BYTES]

DOOR "none" is plain PyTorch. MEMORY "least": the least that the door can do with. Prints a line a
step: its number and the loss, exactly; with --state it goes on from FILE and writes it after each
step, before the line. At the end: "state" and a digest of all parameters and moments.
"""
import argparse
import contextlib
import hashlib
import os
import resource
import signal

import torch

import doors
import headrace
from doors import How
from models import CASES


def digest(state) -> str:
    text = hashlib.sha256()
    for name, tensor in doors.flat(state).items():
        text.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    return text.hexdigest()


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("case", choices=list(CASES))
    p.add_argument("door", choices=["none", *doors.DOORS])
    p.add_argument("memory")
    p.add_argument("folder")
    p.add_argument("steps", type=int)
    p.add_argument("--state")
    p.add_argument("--file-limit", type=int)
    a = p.parse_args()
    torch.set_num_threads(1)
    if a.file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)   # EFBIG instead
        resource.setrlimit(resource.RLIMIT_FSIZE, (a.file_limit, a.file_limit))
    if a.memory == "least":
        with contextlib.suppress(headrace.DoesNotFit):  # what tracing leaves behind counts once
            if a.door == "step":
                train(a, 1 << 20)
        with doors.only_moves():
            doors.in_the_least(a.door, lambda memory: train(a, memory))
    else:
        train(a, a.memory)


def train(a, memory):
    case = CASES[a.case]
    bare = case.model()
    optimizer = doors.make_optimizer(bare, How())
    step = doors.simple_step(a.door, case, bare, optimizer, memory, a.folder)
    first = 0
    if a.state and os.path.exists(a.state):
        saved = torch.load(a.state)
        bare.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    for i in range(first, a.steps):
        loss = step(*case.batch(torch.Generator().manual_seed(i)))
        if a.state:
            torch.save({"model": bare.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": i + 1}, a.state + ".part")
            os.replace(a.state + ".part", a.state)
        print(i, float(loss).hex(), flush=True)
    print("state", digest([bare.state_dict(), optimizer.state_dict()]), flush=True)


if __name__ == "__main__":
    with doors.moving():
        main()
