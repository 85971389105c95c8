"""Processes that fork in the middle of training: workers of a DataLoader, os.fork().

A child has a copy of all objects and none of the threads and transfers behind them: it must end
without waiting for any, and may not touch what is the parent's.
"""
import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import doors
import headrace
import models
from doors import How
from headrace import _core
from headrace.compiled import _runtime
from models import CASES

# A child that hangs is killed after so many seconds: no bound on speed, a child takes one.
PATIENCE = 300


@pytest.fixture(autouse=True)
def moving():
    with doors.moving():
        yield


def child(work):
    """Runs work() in a fork of this process, whose interpreter ends as others do. Returns what was
    said at the end, when it ended well."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.unraisablehook = sys.__unraisablehook__  # pytest has put its own there
        signal.alarm(PATIENCE)
        code = 0
        try:
            work()
            gc.collect()
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    os.close(write)
    with os.fdopen(read) as lines:
        said = lines.read()
    status = os.waitpid(pid, 0)[1]
    assert not os.WIFSIGNALED(status), f"killed by signal {os.WTERMSIG(status)}: {said}"
    assert os.WEXITSTATUS(status) == 0, said
    return said


def refused(call):
    with pytest.raises(headrace.HeadraceError, match=r"process \d+ is a fork of process \d+"):
        call()


@pytest.mark.parametrize("door", doors.DOORS)
def test_a_dataloader_with_workers_feeds_a_training_loop(door, folder):
    """Workers are forked anew for each epoch, while transfers of the step before may go on."""
    case = CASES["tiny"]
    tokens, targets = models.token_batch(torch.Generator().manual_seed(3), rows=16)

    def losses(door, memory, workers):
        bare = case.model()
        optimizer = doors.make_optimizer(bare, How())
        step = doors.simple_step(door, case, bare, optimizer, memory, folder)
        out = []
        for _ in range(3):
            loader = DataLoader(TensorDataset(tokens, targets), batch_size=4, num_workers=workers,
                                multiprocessing_context="fork" if workers else None)
            out += [step(*batch).clone() for batch in loader]
        return out
    memory = "96MiB" if door == "step" else "48MiB"
    forked, alone = losses(door, memory, 2), losses(door, memory, 0)
    assert len(forked) == len(alone) == 12
    assert all(torch.equal(a, b) for a, b in zip(forked, alone))


class Fitted:
    """A model in the middle of a cycle that follows a plan: forward has run, backward has not."""

    def __init__(self, folder):
        case = CASES["llama"]
        self.model = case.model()
        self.optimizer = doors.make_optimizer(self.model, How())
        headrace.fit(self.model, self.optimizer, "1GiB", folder=folder, threads=2)
        self.batch = case.batch(torch.Generator().manual_seed(2))
        self.loss_of = case.loss
        for _ in range(2):
            self.loss = self.loss_of(self.model, *self.batch)
            self.finish()
        self.loss = self.loss_of(self.model, *self.batch)
        assert headrace.eager.stats(self.model).mode == "following"
        assert headrace.eager.stats(self.model).stored_bytes > 0

    def finish(self):
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digest(self):
        self.finish()
        out = [p.detach().clone() for p in self.model.parameters()]
        headrace.release(self.model)
        return out


@pytest.fixture
def fitted(folder, monkeypatch):
    """Its transfers start late: some are still to come, or under way, when the process forks."""
    monkeypatch.setattr(_core, "Engine", functools.partial(_core.Engine, delays=5))
    return Fitted(folder)


def unharmed(fitted, folder):
    """The parent's cycle goes on with the same bits."""
    same = Fitted(folder).digest()
    return all(torch.equal(a, b) for a, b in zip(fitted.digest(), same))


def test_a_child_that_drops_a_fitted_model_ends_in_silence(fitted, folder):
    def drop():
        del fitted.loss, fitted.optimizer, fitted.model
        gc.collect()
    assert child(drop) == ""
    assert unharmed(fitted, folder)


def test_calls_of_a_child_are_refused_by_name(fitted, folder):
    def calls():
        refused(fitted.loss.backward)
        refused(lambda: fitted.loss_of(fitted.model, *fitted.batch))
        refused(fitted.optimizer.state_dict)
        refused(lambda: headrace.release(fitted.model))
    assert child(calls) == ""
    assert unharmed(fitted, folder)


def test_a_child_evaluates_and_trains_a_copy(fitted, folder):
    """What needs nothing of the parent's works: a pass without gradients, another model."""
    expected = fitted.loss.detach().clone()

    def work():
        with torch.no_grad():
            assert torch.equal(fitted.loss_of(fitted.model, *fitted.batch), expected)
        Fitted(folder).digest()
    assert child(work) == ""
    assert unharmed(fitted, folder)


def test_a_child_may_release_a_model_of_which_nothing_is_moved(folder):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    headrace.fit(model, optimizer, "1GiB", folder=folder)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert headrace.eager.stats(model).mode == "off"

    def work():
        optimizer.state_dict()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        headrace.release(model)
    assert child(work) == ""
    headrace.release(model)


@pytest.mark.parametrize("door", ("compile", "step"))
def test_a_child_drops_what_another_door_has_made(door, folder):
    case = CASES["tiny"]
    held = [case.model()]
    optimizer = doors.make_optimizer(held[0], How())
    batch = case.batch(torch.Generator().manual_seed(2))
    held.append(doors.simple_step(door, case, held[0], optimizer,
                                  "96MiB" if door == "step" else "48MiB", folder))
    if door == "step":
        for _ in range(2):
            held[1](*batch)
    else:  # in the middle: forward has run, backward has not
        with doors.only_moves():
            for _ in range(2):
                held[1](*batch)
            held.append(doors.open_door(door, held[0], optimizer, "48MiB", folder)[0])
            held.append(case.loss(held[2], *batch))
        moves = [r.moves for r in _runtime._records.values() if r.moves is not None]
        assert sum(layout.bytes for m in moves for layout in m.layouts.values()) > 0
        assert any(m.mover.user is m for m in moves)  # it follows a plan
        del moves

    def drop():
        held.clear()
        gc.collect()
        if door == "compile":
            torch._dynamo.reset()
            gc.collect()
    assert child(drop) == ""


def test_a_child_renews_the_locks_of_graphs_that_move(folder):
    """A thread of the parent had one when the process was forked; it is not there to give it back.
    """
    case = CASES["tiny"]
    model = case.model()
    batch = case.batch(torch.Generator().manual_seed(2))
    with doors.only_moves():
        compiled, _ = doors.open_door("compile", model, None, "48MiB", folder)
        held = [case.loss(compiled, *batch)]
    movers = [r.moves.mover for r in _runtime._records.values() if r.moves is not None]
    assert movers
    inside, over = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as locks:
            for mover in movers:
                locks.enter_context(mover.lock)
            inside.set()
            over.wait()
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    try:
        assert child(held.clear) == ""
    finally:
        over.set()
        thread.join()
    held[0].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_the_arena_is_not_inherited(fitted):
    """Copy-on-write in the middle of a transfer would lose what the disk still sends: VmFlags "dc"
    ("do not copy area on fork") of the mapping."""
    session = headrace.eager._sessions[fitted.model].session
    address = session.moved.engine.arena_address
    inside = False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            begin, end = (int(word, 16) for word in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == "VmFlags:":
            assert "dc" in words
            break
    else:
        raise AssertionError("the arena is nowhere in /proc/self/smaps")
    fitted.digest()
