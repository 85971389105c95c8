#!/usr/bin/env python3
"""The training step of bench/train/torch_step.py through a door of headrace, measured.

  door_step.py none|eager|compile|step [--memory SIZE | --total SIZE] [--folder FOLDER] [shape ...]

--memory is what the process may grow by, from the call on; --total is what it may have at all.
Prints one JSON object: what torch_step.py says, what was resident at the call, the growth's peak, a
digest of the last step's gradients; or {"refused": ..., "needed_bytes": ...}, exit code 3.
"""
import hashlib
import json
import os
import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "train"))
import torch  # noqa: E402
import torch_step  # noqa: E402

REFUSED = 3


def gradient_digest(model):
    """Of all gradients in the order of the parameters; None where the door shows none."""
    text = hashlib.sha256()
    for p in model.parameters():
        if p.grad is not None:
            text.update(p.grad.contiguous().numpy().data)
    return text.hexdigest() if any(p.grad is not None for p in model.parameters()) else None


def opened(a, model, optimizer):
    """(step, bytes resident at the call): the step that is measured, through the door."""
    used = model

    def train_step(tokens, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = used(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss
    if a.door == "none":
        return train_step, 0
    if a.door == "aot":    # autograd's graphs as they are: what the compile door starts from
        torch._dynamo.config.cache_size_limit = 64
        used = torch.compile(model, backend="aot_eager")
        return train_step, 0
    import headrace
    resident = headrace.process_memory().rss
    memory = int(a.memory) if a.memory.isdigit() else a.memory
    if a.total:
        memory = headrace.parse_bytes(a.total) - resident
    headrace.reset_peak()
    if a.door == "eager":
        headrace.fit(model, optimizer, memory=memory, folder=a.folder)
    elif a.door == "compile":
        used = torch.compile(model, backend="headrace",
                             options={"memory": memory, "folder": a.folder})
    else:
        return headrace.compile_step(train_step, model, optimizer, memory=memory, folder=a.folder,
                                     threads=a.threads), resident
    return train_step, resident


def main():
    p = torch_step.parser(__doc__)
    p.add_argument("door", choices=["none", "aot", "eager", "compile", "step"])
    p.add_argument("--memory", default="64GiB")
    p.add_argument("--total")
    p.add_argument("--folder")
    p.add_argument("--end", choices=["exit", "crash", "kill"], default="exit",
                   help="how the process ends, in the middle of its last step")
    a = p.parse_args()
    model, optimizer = torch_step.prepare(a)
    try:
        step, resident = opened(a, model, optimizer)
        if a.end != "exit":
            step = ended(step, a, model)
        out = torch_step.measure(a, step)
    except Exception as error:  # headrace.DoesNotFit; imported only where there is a door
        if type(error).__name__ != "DoesNotFit":
            raise
        print(json.dumps({"refused": str(error), "needed_bytes": error.needed_bytes}))
        sys.exit(REFUSED)
    out.update(door=a.door, resident_at_call=resident, gradients=gradient_digest(model),
               peak_growth=out["peak_rss_bytes"] - resident)
    print(json.dumps(out))


def ended(step, a, model):
    """The step, but the last one ends the process after its forward pass."""
    count = [0]

    def dies(*_):
        if count[0] == a.steps:
            if a.end == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError("a crash, on purpose")
    if a.door != "step":  # which does not run the model's code: it is ended from outside
        model.blocks[-1].register_full_backward_pre_hook(dies)

    def counted(tokens, targets):
        count[0] += 1
        if a.door != "step" or count[0] < a.steps:
            return step(tokens, targets)
        if a.end == "kill":
            threading.Thread(target=lambda: (time.sleep(0.2), os.kill(os.getpid(), 9))).start()
        step(tokens, targets)
        raise RuntimeError("a crash, on purpose")
    return counted


if __name__ == "__main__":
    main()
