"""What goes wrong in the field, done on purpose, through the doors: each from a real report.

The same list that `headrace train` is tested with, as far as it is about a door. Bits and bytes are
compared; no test looks at a clock.
"""
import gc
import os
import pathlib
import random
import re
import subprocess
import sys
import time

import pytest
import torch

import doors
import headrace
import models
from doors import MIB, How
from headrace import _core
from headrace._moved import MovedTensors
from models import CASES

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def moving(request):
    """All that can move does, but in the tests of refusals: they need the real room."""
    if "numbers_and_options" in request.node.name:
        yield
        return
    with doors.moving():
        yield


def case_of(door):
    """Plans of compiled graphs take seconds a layer."""
    return "tiny" if door == "compile" else "llama"


def through(door, memory, folder, case="llama", how=How(), **more):
    case = CASES[case]
    return doors.train(case.model(), case.batch, case.loss, how, door, memory, folder, **more)


# What a worker needs with the step door depends on what tracing has left in the process, which is
# 20 to 50 MiB.
ENOUGH = {"eager": "40MiB", "compile": "40MiB", "step": "96MiB"}


def tight(door, folder, case="llama", how=How(), **more):
    return doors.in_the_least(door, lambda memory: through(door, memory, folder, case, how, **more))


def start_worker(*words, environment=()):
    return subprocess.Popen([sys.executable, HERE / "worker.py", *map(str, words)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **dict(environment)})


def worker(*words, environment=()):
    """Lines of a worker that ends well."""
    child = start_worker(*words, environment=environment)
    out, err = child.communicate()
    assert child.returncode == 0, err[-2000:]
    return out.splitlines()


def resident():
    """Bytes that this process holds now."""
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("/proc/self/status has no VmRSS")


def scratch_bytes():
    """Bytes on the disk of files without a name that this process has open."""
    total = 0
    for entry in os.scandir("/proc/self/fd"):
        try:
            if re.search(r"\(deleted\)$", os.readlink(entry.path)):
                total += os.stat(entry.path).st_blocks * 512
        except FileNotFoundError:
            pass
    return total


# --- The same numbers, whatever happens ---

@pytest.mark.parametrize("parts", (1, 2, 4, 8))
@pytest.mark.parametrize("door", ("eager", "compile"))
def test_accumulated_gradients_have_the_norm_of_one_big_batch(door, parts, folder):
    case = CASES[case_of(door)]
    tokens, targets = models.token_batch(torch.Generator().manual_seed(5), rows=8)

    def norm(door, parts, memory):
        bare = case.model()
        model, _ = doors.open_door(door, bare, doors.make_optimizer(bare, How()), memory, folder)
        for _ in range(2):     # the second time a plan is followed
            bare.zero_grad()
            for part in zip(tokens.chunk(parts), targets.chunk(parts)):
                (case.loss(model, *part) / parts).backward()
        return torch.nn.utils.get_total_norm([p.grad for p in bare.parameters()])
    assert torch.allclose(norm(door, parts, "48MiB"), norm(None, 1, None), rtol=1e-5)


@pytest.mark.parametrize("door", ("eager", "compile"))
def test_shapes_that_change_between_micro_batches(door, folder):
    def batches():
        lengths = random.Random(3)
        return lambda generator: models.token_batch(generator, 4, lengths.choice([24, 48, 64]))
    case, how = CASES[case_of(door)], How(accumulation=3, steps=6)
    plain = doors.train(case.model(), batches(), case.loss, how)
    got = doors.in_the_least(door, lambda memory: doors.train(
        case.model(), batches(), case.loss, how, door, memory, folder))
    doors.assert_same(got, plain, door)


class Engines:
    """All that are made from now on: what they have moved, and the room that they took."""

    def __init__(self, monkeypatch, delays=0):
        """delays: transfers start late and out of order, by this seed."""
        self.made = []
        for name in ("Engine", "CapturedStep"):
            monkeypatch.setattr(_core, name, self._noting(getattr(_core, name), delays))

    def _noting(self, kind, delays):
        def make(*words, **more):
            self.made.append(kind(*words, **more, delays=delays))
            return self.made[-1]
        return make

    def moved_bytes(self):
        return sum(engine.stored_bytes + engine.loaded_bytes for engine in self.made)

    def arenas(self):
        return [engine.plan.arena_bytes for engine in self.made]


def sleeping(original, delays, count):
    def call(*words, **more):
        count[0] += 1
        time.sleep(delays.choice([0, 0, 0.002, 0.01]))
        out = original(*words, **more)
        time.sleep(delays.choice([0, 0, 0.002]))
        return out
    return call


@pytest.mark.parametrize("door", doors.DOORS)
def test_random_delays_change_no_bit_and_no_peak(door, folder, monkeypatch):
    """Every transfer starts late, and ends in another order. Where the caller computes (all doors
    but the step door) it waits before and after it asks for anything, now and then, as well."""
    with monkeypatch.context() as patch, doors.only_moves():
        engines = Engines(patch)
        calm = tight(door, folder, case_of(door))
        assert engines.moved_bytes() > 0
        arenas = engines.arenas()
        del engines
    engines, delays, count = Engines(monkeypatch, delays=11), random.Random(11), [0]
    for name in ("pack", "storage", "state", "tick", "begin", "end"):
        monkeypatch.setattr(MovedTensors, name,
                            sleeping(getattr(MovedTensors, name), delays, count))
    with doors.only_moves():
        slow = tight(door, folder, case_of(door))
    assert engines.moved_bytes() > 0
    if door != "step":  # what memory= leaves for its arena is measured anew
        assert count[0] > 50 and engines.arenas() == arenas
    assert all(torch.equal(a, b) for a, b in zip(slow.losses, calm.losses))
    assert all(torch.equal(slow.state[name], calm.state[name]) for name in calm.state)


@pytest.mark.parametrize("door", doors.DOORS)
def test_freed_memory_that_is_overwritten_changes_nothing(door, folder):
    """MALLOC_PERTURB_ fills what is freed and what is new: a byte read too late shows."""
    words = (case_of(door), door, ENOUGH[door], folder, 4)
    poisoned = worker(*words, environment={"MALLOC_PERTURB_": "165"})
    assert poisoned == worker(*words)
    if door in doors.EXACT:
        assert poisoned == worker(words[0], "none", *words[2:])


@pytest.mark.parametrize("tier", ("disk", "default"))
@pytest.mark.parametrize("door", doors.DOORS)
def test_two_hundred_steps_are_the_same_on_every_tier(door, tier, folder):
    where = {"disk": folder, "default": None}[tier]
    how = How(steps=200, schedule=True)
    plain = through(None, None, None, case_of(door), how=how)
    got = tight(door, where, case_of(door), how)
    if door in doors.EXACT:
        doors.assert_same(got, plain, door)
    else:
        assert doors.distance(got.losses[-1], plain.losses[-1]) < 1e-3
        roomy = through(door, "4GiB", where, case_of(door), how)
        assert all(torch.equal(a, b) for a, b in zip(got.losses, roomy.losses))


@pytest.mark.parametrize("door", ("eager", "compile"))
def test_a_loss_that_is_not_a_number_is_plain_torchs(door, folder):
    case = CASES["vit"]

    def loss(model, images, labels):
        return case.loss(model, images, labels) * (float("nan") if labels[0] > 4 else 1.0)
    how = How(optimizer="sgd", steps=3)
    plain = doors.train(case.model(), case.batch, loss, how, seed=2)
    got = doors.train(case.model(), case.batch, loss, how, door, "64MiB", folder, seed=2)
    for a, b in zip(got.losses, plain.losses):
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("door", doors.DOORS)
def test_frozen_and_unused_parameters_with_clipping(door, folder):
    def build():
        model = models.language_model("llama", layers=2)
        model.blocks[0].requires_grad_(False)
        model.unused = torch.nn.Linear(64, 64)
        return model
    case, how = CASES["llama"]._replace(build=build), How(clip=0.05, steps=3)
    plain = doors.train(case.model(), case.batch, case.loss, how)
    got = doors.in_the_least(door, lambda memory: doors.train(
        case.model(), case.batch, case.loss, how, door, memory, folder))
    doors.assert_same(got, plain, door)


# --- Processes that end ---

def killed_again_and_again(door, folder, state, at, steps):
    """Lines of a run that is killed right after each of the steps `at`, and started again."""
    lines = []
    for last in (*at, None):
        child = start_worker(case_of(door), door, ENOUGH[door], folder, steps, "--state", state)
        for line in child.stdout:
            lines.append(line.strip())
            if last is not None and line.split()[0] == str(last):
                child.kill()
                break
        child.wait()
        child.stdout.close()
        errors = child.stderr.read()
        child.stderr.close()
        assert last is not None or child.returncode == 0, errors[-2000:]
        assert not list(folder.iterdir()), "a killed run leaves scratch behind"
    return lines


@pytest.mark.parametrize("door, at", [("eager", range(10)), ("compile", (0, 4)),
                                      ("step", (0, 4, 9))])
def test_killed_and_resumed_is_the_run_that_was_not(door, at, folder, tmp_path):
    whole = worker(case_of(door), door, ENOUGH[door], folder, 12)
    assert killed_again_and_again(door, folder, tmp_path / "state", at, 12) == whole


@pytest.mark.parametrize("door", doors.DOORS)
def test_two_runs_at_once_share_a_folder(door, folder, tmp_path):
    words = (case_of(door), door, ENOUGH[door], folder, 6, "--state")
    alone = worker(*words, tmp_path / "c")
    children = [start_worker(*words, tmp_path / name) for name in "ab"]
    for child in children:
        out, err = child.communicate()
        assert child.returncode == 0, err[-2000:]
        assert out.splitlines() == alone


@pytest.mark.parametrize("door", doors.DOORS)
def test_twenty_runs_leave_nothing_on_the_disk(door, folder):
    """Not even until cycles are collected: files go with the last reference to what was trained."""
    gc.collect()
    before, sizes = scratch_bytes(), []
    gc.disable()
    try:
        for _ in range(20):
            tight(door, folder, "tiny", How(steps=2))
            sizes.append(scratch_bytes())
    finally:
        gc.enable()
    assert sizes == [before] * 20


@pytest.mark.parametrize("door", ("eager", "step"))  # compiled graphs of this size may move nothing
def test_scratch_is_open_while_a_model_is_trained_and_gone_with_it(door, folder):
    case, open_bytes = CASES["llama"], []
    before = scratch_bytes()

    def loss(model, *batch):
        open_bytes.append(scratch_bytes() - before)
        return case.loss(model, *batch)
    doors.in_the_least(door, lambda memory: doors.train(
        case.model(), case.batch, loss, How(evaluate=True), door, memory, folder))
    assert max(open_bytes) > 0
    assert scratch_bytes() == before


# --- Errors ---

@pytest.mark.parametrize("door", doors.DOORS)
def test_a_disk_that_takes_no_more_is_an_error_with_a_code(door, folder):
    """RLIMIT_FSIZE: a write beyond it fails (EFBIG), as one on a full disk does (ENOSPC)."""
    words = (case_of(door), door, "least", folder, 4)
    assert len(worker(*words)) == 5
    child = start_worker(*words, "--file-limit", 64 << 10)
    out, err = child.communicate()
    assert child.returncode == 1, out
    assert re.search(r"^headrace\.(_errors\.)?HeadraceError: .*scratch", err, re.M), err[-2000:]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("door", doors.DOORS)
def test_a_folder_that_is_not_there_is_named_before_any_work(door, folder):
    with pytest.raises(headrace.HeadraceError, match="nowhere"):
        through(door, "64MiB", folder / "nowhere", case_of(door))


@pytest.mark.parametrize("memory", ("", "lots", "-1GiB", "1 XB", -5, 0, 1.5, None, float("nan")))
@pytest.mark.parametrize("door", doors.DOORS)
def test_memory_that_means_nothing_is_refused_by_its_text(door, memory, folder):
    with pytest.raises((headrace.HeadraceError, TypeError)) as refused:
        through(door, memory, folder, case_of(door))
    if isinstance(refused.value, headrace.HeadraceError):
        assert refused.value.code == "usage"
        assert str(memory) in str(refused.value)


@pytest.mark.parametrize("door", doors.DOORS)
def test_what_cannot_fit_is_refused_with_numbers_and_options(door, folder):
    with pytest.raises(headrace.DoesNotFit) as refused:
        through(door, "1MiB", folder, case_of(door))
    assert refused.value.budget_bytes == MIB
    assert refused.value.needed_bytes > MIB
    assert refused.value.options


@pytest.mark.parametrize("door", doors.DOORS)
def test_a_folder_in_memory_is_refused_by_name(door):
    with pytest.raises(headrace.HeadraceError, match="/dev/shm"):
        tight(door, "/dev/shm", case_of(door))


# --- Memory ---

@pytest.mark.parametrize("door", ("eager", "compile"))
def test_interrupted_steps_leave_no_memory_behind(door, folder):
    """Exceptions after the forward pass: half of what a step saves is alive then."""
    case = CASES[case_of(door)]
    bare = case.model()
    optimizer = doors.make_optimizer(bare, How())
    model, _ = doors.open_door(door, bare, optimizer, "64MiB", folder)
    batch = case.batch(torch.Generator().manual_seed(1))

    def steps(count, interrupted):
        for _ in range(count):
            loss = case.loss(model, *batch)
            if not interrupted:
                loss.backward()
                optimizer.step()
            del loss
            optimizer.zero_grad()
    steps(5, False)
    steps(5, True)
    before = resident()
    for _ in range(10):
        steps(4, True)
        steps(1, False)
    assert resident() - before < 8 * MIB


@pytest.mark.parametrize("door", doors.DOORS)
def test_a_thousand_steps_hold_no_more_than_two_hundred(door, folder):
    case = CASES["tiny"]
    bare = case.model()
    optimizer = doors.make_optimizer(bare, How())
    step = doors.simple_step(door, case, bare, optimizer, "64MiB", folder)
    generator = torch.Generator().manual_seed(1)
    sizes = []
    for i in range(1000):
        step(*case.batch(generator))
        if i % 200 == 199:
            sizes.append(resident())
    assert sizes[-1] - sizes[0] < 2 * MIB, sizes
    if door == "eager":
        headrace.release(bare)


def test_random_models_with_overwritten_memory(folder):
    """A part of the fuzz tests where what is freed is overwritten."""
    script = (
        "import doors, random_models as r, sys, torch\n"
        "torch.set_num_threads(1)\n"
        "for seed in range(1000, 1030):\n"
        "    s = r.scenario(seed)\n"
        "    run = lambda d, m: doors.train(s.model(), s.batches(), r.loss, s.how, d, m,\n"
        "                                   sys.argv[1], seed)\n"
        "    got = doors.in_the_least('eager', lambda m: run('eager', m))\n"
        "    doors.assert_same(got, run(None, None), 'eager')\n")
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True,
                          cwd=HERE, env={**os.environ, "MALLOC_PERTURB_": "90"})
    assert done.returncode == 0, done.stderr[-2000:]
