"""headrace::store, load, wait and tick as torch sees them, and what stands behind them."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from headrace import _core  # noqa: E402
from headrace.compiled import _moves, _ops  # noqa: E402


class Step:
    """Enough of a step for its moves: values of 256 KiB."""

    class Value:
        def __init__(self, name):
            self.name, self.bytes = name, 1 << 18

    def __init__(self, count=4):
        self.values = [self.Value(f"v{i}") for i in range(count)]
        self.ops = []


class Action:
    def __init__(self, kind, index=-1):
        self.kind, self.index = kind, index


COUNT = 4
PASS = [*(Action("store", i) for i in range(COUNT)), Action("turn"),
        *(Action(kind, i) for i in reversed(range(COUNT)) for kind in ("load", "wait"))]


@pytest.fixture
def mover(disk):
    step = Step()
    plan = _core.plan_workload(_moves.events_workload(step, PASS), 1 << 20, folder=disk,
                               recompute=False)
    return _moves.Mover(step, plan, disk)


def tensor(value):
    return torch.arange(1 << 16, dtype=torch.float32).reshape(256, 256) + value


def forward(mover):
    moves = mover.begin()
    return moves, [torch.ops.headrace.store(tensor(i), mover.number, i) for i in range(COUNT)]


@pytest.mark.parametrize("spilled", (False, True, "later"))
def test_what_is_stored_comes_back_as_it_lay_there(spilled, mover):
    """The strides that the graph has come from a meta kernel, which may be wrong about them."""
    first = mover.begin() if spilled is True else None
    moves = mover.begin()
    made = [tensor(i).t() for i in range(COUNT)]
    tokens = [torch.ops.headrace.store(t, mover.number, i) for i, t in enumerate(made)]
    mover.resume(moves, kept=spilled == "later")
    for i in reversed(range(COUNT)):
        token = torch.ops.headrace.load(tokens[i], mover.number, i)
        back = torch.ops.headrace.wait(token, mover.number, i, [256, 256], [256, 1], torch.float32)
        assert torch.equal(back, made[i]) and back.stride() == made[i].stride()
    moves.end()
    if first is not None:
        first.end()


def backward(mover, moves, tokens, kept=False):
    mover.resume(moves, kept)
    for i in reversed(range(COUNT)):
        token = torch.ops.headrace.load(tokens[i], mover.number, i)
        back = torch.ops.headrace.wait(token, mover.number, i, [256, 256], [256, 1], torch.float32)
        assert torch.equal(back, tensor(i))


def test_what_is_stored_comes_back_again_and_again(mover):
    for _ in range(3):
        moves, tokens = forward(mover)
        backward(mover, moves, tokens)
        moves.end()
    assert mover.spill is None


def test_a_second_pass_in_between_has_its_own_bytes(mover):
    first, tokens = forward(mover)
    second, others = forward(mover)
    backward(mover, second, others)
    backward(mover, first, tokens)
    second.end()
    first.end()
    assert mover.spill.held_bytes == 0


def test_passes_of_two_threads_at_once(mover):
    both_begun, done = threading.Barrier(2, timeout=30), []

    def work():
        moves = mover.begin()
        both_begun.wait()
        tokens = [torch.ops.headrace.store(tensor(i), mover.number, i) for i in range(COUNT)]
        backward(mover, moves, tokens)
        moves.end()
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 2 and mover.spill.held_bytes == 0


def test_a_kept_graph_reads_its_values_twice(mover):
    moves, tokens = forward(mover)
    for _ in range(2):
        backward(mover, moves, tokens, kept=True)
    moves.end()
    moves, tokens = forward(mover)  # and a plan is followed again
    backward(mover, moves, tokens)
    moves.end()


def test_a_pass_that_ends_in_the_middle_leaves_the_mover_as_new(mover):
    moves, _ = forward(mover)
    moves.end()
    moves, tokens = forward(mover)
    backward(mover, moves, tokens)
    moves.end()


def test_fake_kernels_and_schemas_are_right(disk):
    class Anything:
        """A mover that has every value."""
        def store(self, tensor, value):
            return 7

        def load(self, token, value):
            assert token == 7

        def tick(self):
            pass

        def wait(self, token, value):
            return torch.empty_strided([4, 8], [1, 4], dtype=torch.float32).fill_(0)
    mover = Anything()
    _ops.register_mover(-5, mover)
    token = torch.ops.headrace.store(tensor(0), -5, 0)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.headrace.store.default, (tensor(0), -5, 0), test_utils=checks)
    torch.library.opcheck(torch.ops.headrace.load.default, (token, -5, 0), test_utils=checks)
    torch.library.opcheck(torch.ops.headrace.wait.default,
                          (token, -5, 0, [4, 8], [1, 4], torch.float32), test_utils=checks)
    torch.library.opcheck(torch.ops.headrace.tick.default, (-5,), test_utils=checks)


def test_an_op_without_its_mover_is_an_error():
    with pytest.raises(RuntimeError, match="no mover"):
        torch.ops.headrace.tick(123456789)
