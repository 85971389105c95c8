"""The engine whose ops the caller computes: exact bytes, many runs, abandoned anywhere."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

import headrace
from headrace import _core
from conftest import stack_workload

SIZE = 256 << 10
LAYERS = 8


def make_engine(disk, budget=3 * SIZE, **options):
    state = options.pop("state", False)
    plan = _core.plan_workload(stack_workload(LAYERS, SIZE, state=state), budget, folder=disk,
                               recompute=False)
    assert plan.stored_bytes > 0
    return _core.Engine(plan, **options)


def contents(run: int, layer: int) -> bytes:
    return bytes([run + 1, layer + 1, 7, 9]) * (SIZE // 4)


def compute(turn, run: int, memory, wrong: list) -> None:
    """Packs write what unpacks must find."""
    name = turn.op
    if name.startswith("pack"):
        [(address, size)] = turn.outputs
        assert size == SIZE
        source = memory(size, contents(run, int(name[4:])))
        _core.copy_in(address, source.address, size)
    elif name.startswith("unpack"):
        [(address, size)] = turn.inputs
        target = memory(size)
        _core.copy_in(target.address, address, size)
        if target.read() != contents(run, int(name[6:])):
            wrong.append((run, name))


def run_once(engine, run: int, memory, wrong: list) -> int:
    engine.begin()
    turns = 0
    while (turn := engine.next()) is not None:
        compute(turn, run, memory, wrong)
        turns += 1
    return turns


@pytest.mark.parametrize("paranoid", [False, True])
def test_what_is_packed_is_unpacked_run_after_run(disk, memory, paranoid):
    engine = make_engine(disk, paranoid=paranoid)
    wrong = []
    for run in range(4):
        assert run_once(engine, run, memory, wrong) == 2 * LAYERS
    assert wrong == []
    assert engine.runs == 4 and not engine.running
    assert engine.stored_bytes == 4 * engine.plan.stored_bytes
    assert engine.loaded_bytes == 4 * engine.plan.loaded_bytes
    assert engine.stall_seconds >= 0
    trace = engine.trace()
    assert trace.seconds > 0 and trace.stored_bytes == engine.plan.stored_bytes
    assert os.listdir(disk) == []


def test_several_engines_share_a_folder(disk, memory):
    engines = [make_engine(disk) for _ in range(3)]
    wrong = []
    for run in range(2):
        for k, engine in enumerate(engines):
            run_once(engine, run + 10 * k, memory, wrong)
    assert wrong == []


def test_a_run_may_go_on_in_another_thread(disk, memory):
    engine = make_engine(disk)
    wrong = []
    engine.begin()
    for _ in range(LAYERS):
        compute(engine.next(), 0, memory, wrong)

    def backward():
        while (turn := engine.next()) is not None:
            compute(turn, 0, memory, wrong)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert wrong == [] and engine.runs == 1


@pytest.mark.parametrize("stop", range(2 * LAYERS))
def test_what_was_still_wanted_is_there_after_a_run_is_abandoned(disk, memory, stop):
    engine = make_engine(disk)
    wrong = []
    run_once(engine, 0, memory, wrong)
    engine.begin()
    packed = set()
    for _ in range(stop):
        turn = engine.next()
        compute(turn, 1, memory, wrong)
        if turn.op.startswith("pack"):
            packed.add(int(turn.op[4:]))
        else:
            packed.discard(int(turn.op[6:]))
    engine.next()
    engine.abandon()
    for layer in packed:
        target = memory(SIZE)
        engine.read_abandoned(f"saved{layer}", target.address, SIZE)
        assert target.read() == contents(1, layer)
    assert wrong == []
    with pytest.raises(headrace.HeadraceError, match="nobody"):
        engine.read_abandoned("nobody", memory(8).address, 8)
    with pytest.raises(headrace.HeadraceError, match="abandoned"):
        engine.begin()


def test_state_is_written_updated_in_place_and_read(disk, memory):
    engine = make_engine(disk, budget=4 * SIZE, state=True)
    for layer in range(LAYERS):
        source = memory(SIZE, bytes([layer, 0, 0, 0]))
        engine.write_state(f"moment{layer}", source.address, SIZE)
    wrong = []
    for run in range(3):
        engine.begin()
        while (turn := engine.next()) is not None:
            compute(turn, run, memory, wrong)
            if turn.op.startswith("step"):
                [(address, size)] = turn.updates
                held = memory(size)
                _core.copy_in(held.address, address, size)
                assert held.read() == bytes([int(turn.op[4:]), run, 0, 0]) * (SIZE // 4)
                held.write(bytes([int(turn.op[4:]), run + 1, 0, 0]) * (SIZE // 4))
                _core.copy_in(address, held.address, size)
    assert wrong == []
    part = memory(1000)
    engine.read_state("moment3", part.address, 1000, begin=4000)
    assert part.read() == bytes([3, 3, 0, 0]) * 250
    with pytest.raises(headrace.HeadraceError, match="nobody"):
        engine.read_state("nobody", part.address, 1)


def test_wrong_orders_of_calls_are_refused_and_change_nothing(disk, memory):
    engine = make_engine(disk)
    for call in (engine.next, engine.abandon, engine.trace,
                 lambda: engine.read_abandoned("saved0", memory(8).address, 8)):
        with pytest.raises(headrace.HeadraceError) as caught:
            call()
        assert caught.value.code == "usage"
    engine.begin()
    with pytest.raises(headrace.HeadraceError, match="begun already"):
        engine.begin()
    with pytest.raises(headrace.HeadraceError, match="between runs"):
        engine.write_state("saved0", memory(8).address, 8)
    wrong = []
    while (turn := engine.next()) is not None:
        compute(turn, 0, memory, wrong)
    assert wrong == []


def test_a_plan_for_another_machine_is_not_run_here(disk):
    plan = headrace.plan(stack_workload(LAYERS, SIZE), 3 * SIZE, machine="a100-pcie3")
    with pytest.raises(headrace.HeadraceError, match="folder="):
        _core.Engine(plan)


def test_what_lies_in_files_is_refused_by_name(disk):
    plan = headrace.plan({"preset": "llama-8b", "phase": "decode", "batch": 1, "sequence": 512},
                         "40GiB", folder=disk, goal="fit")
    with pytest.raises(headrace.HeadraceError, match="lies in a file") as caught:
        _core.Engine(plan)
    assert caught.value.code == "unsupported"


def test_a_folder_that_cannot_be_written_is_an_io_error(disk):
    plan = _core.plan_workload(stack_workload(LAYERS, SIZE), 3 * SIZE, folder=disk, recompute=False)
    with pytest.raises(headrace.HeadraceError, match="/nowhere") as caught:
        _core.Engine(plan, "/nowhere/at/all")
    assert caught.value.code == "io"


def test_borrowed_bytes_keep_the_arena_and_say_when_they_are_freed(disk, memory):
    numpy = pytest.importorskip("numpy")
    engine = make_engine(disk)
    engine.begin()
    turn = engine.next()
    compute(turn, 5, memory, [])
    [(address, size)] = turn.outputs
    flag = _core.ReleaseFlag()
    array = numpy.from_dlpack(engine.borrow(address, size, flag))
    assert array.dtype == numpy.uint8 and array.shape == (SIZE,)
    assert array.__array_interface__["data"][0] == address
    ended = weakref.ref(engine)
    del engine, turn
    gc.collect()
    assert ended() is None
    assert not flag.released
    assert array.tobytes() == contents(5, 0)
    del array
    gc.collect()
    assert flag.released


def test_borrowed_bytes_are_taken_once_and_given_back_when_nobody_takes_them(disk):
    engine = make_engine(disk)
    flag = _core.ReleaseFlag()
    loan = engine.borrow(engine.arena_address, 64, flag)
    assert loan.__dlpack_device__() == (1, 0)
    capsule = loan.__dlpack__()
    with pytest.raises(headrace.HeadraceError, match="once"):
        loan.__dlpack__()
    assert not flag.released
    del capsule
    gc.collect()
    assert flag.released
    again = _core.ReleaseFlag()
    engine.borrow(engine.arena_address, 64, again)  # never asked for
    gc.collect()
    assert again.released
    with pytest.raises(headrace.HeadraceError, match="arena"):
        engine.borrow(engine.arena_address + engine.plan.arena_bytes - 8, 64 << 20, flag)


def test_borrowed_bytes_are_a_tensor_of_torch(disk, memory):
    torch = pytest.importorskip("torch")
    engine = make_engine(disk)
    engine.begin()
    turn = engine.next()
    compute(turn, 2, memory, [])
    flag = _core.ReleaseFlag()
    tensor = torch.from_dlpack(engine.borrow(*turn.outputs[0], flag))
    assert tensor.data_ptr() == turn.outputs[0][0] and tensor.dtype == torch.uint8
    floats = tensor.view(torch.float32).view(-1, 16)
    del tensor
    assert not flag.released
    assert bytes(floats.view(torch.uint8).flatten().tolist()) == contents(2, 0)
    del floats
    assert flag.released


def test_the_memory_of_an_engine_goes_back_when_it_ends(disk, memory):
    gc.collect()
    before = headrace.process_memory().rss
    engine = make_engine(disk, budget=2 * SIZE)
    plan = _core.plan_workload(stack_workload(4, 32 << 20), 96 << 20, folder=disk, recompute=False)
    engine = _core.Engine(plan)
    engine.begin()
    while (turn := engine.next()) is not None:
        for address, size in turn.outputs:
            source = memory(size, b"abcd")
            _core.copy_in(address, source.address, size)
            del source
    assert headrace.process_memory().rss > before + (60 << 20)
    del engine
    gc.collect()
    assert headrace.process_memory().rss < before + (30 << 20)
