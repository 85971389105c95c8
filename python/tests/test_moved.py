"""MovedTensors: pieces of memory that leave and come back, following a plan."""
import json

import pytest
import torch

import headrace
from headrace import _core
from headrace._moved import END, Deviation, MovedTensors, key_of, moved_workload

MIB = 1 << 20
KEYS = [f"s{i}" for i in range(8)]
EVENTS = [f"pack:{k}" for k in KEYS] + [f"unpack:{k}:0" for k in reversed(KEYS)]
SIZES = {k: MIB + 512 * i for i, k in enumerate(KEYS)}


def planned(folder, events=EVENTS, sizes=SIZES, holds=None):
    """A plan in the least arena."""
    text = moved_workload(events, [1e-3] * len(events), sizes, holds=holds)
    try:
        return _core.plan_workload(text, 4096, folder=str(folder), recompute=False)
    except headrace.DoesNotFit as why:
        return _core.plan_workload(text, why.needed_bytes, folder=str(folder), recompute=False)


def moved(folder, events=EVENTS, sizes=SIZES, holds=None):
    return MovedTensors(planned(folder, events, sizes, holds), str(folder), holds=holds,
                        sizes=sizes, paranoid=True)


def values(key, cycle):
    generator = torch.Generator().manual_seed(int(key[1:]) + 100 * cycle)
    return torch.randn(SIZES[key] // 4, generator=generator)


def like(tensor):
    return tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype


def test_keys_of_events():
    assert [key_of(e) for e in ("pack:a:b", "unpack:a:b:3", "state:m", "tick:x")] == [
        "a:b", "a:b", "m", ""]


def test_a_workload_has_an_op_for_each_event_and_one_at_the_end():
    text = moved_workload(["pack:a", "pack:b", "state:m", "unpack:a:0"], [1, 2, 3, 4],
                          {"a": 10, "b": 20, "m": 30}, holds={2: ["a"]})
    w = json.loads(text)
    assert [o["name"] for o in w["ops"]] == ["pack:a", "pack:b", "state:m", "unpack:a:0", END]
    assert [o.get("inputs") for o in w["ops"]] == [None, None, [0], [0], None]
    assert w["tensors"][2]["persistent"] and w["ops"][2]["updates"] == [2]
    with pytest.raises(ValueError, match="never packed"):
        moved_workload(["unpack:a:0"], [0], {"a": 1})


def test_bytes_come_back_cycle_after_cycle(folder):
    m = moved(folder)
    assert m.engine.plan.arena_bytes < sum(SIZES.values()) / 2
    for cycle in range(4):
        m.begin()
        for key in KEYS:
            m.pack(key, values(key, cycle))
        for key in reversed(KEYS):
            expected = values(key, cycle)
            got = m.unpack(key, 0, like(expected))
            assert torch.equal(got, expected)
            del got
        m.end()
    assert m.engine.stored_bytes > 0


def test_any_other_event_is_a_deviation_and_everything_wanted_can_be_read(folder):
    for at in range(1, len(EVENTS)):
        m = moved(folder)
        m.begin()
        for event in EVENTS[:at]:
            key = key_of(event)
            if event.startswith("pack"):
                m.pack(key, values(key, 0))
            else:
                m.unpack(key, 0, like(values(key, 0)))
        with pytest.raises(Deviation, match="was expected"):
            m.unpack("s0", 7, like(values("s0", 0)))
        wanted = m.abandon()
        later = {key_of(e) for e in EVENTS[at:] if e.startswith("unpack")}
        packed = {key_of(e) for e in EVENTS[:at] if e.startswith("pack")}
        assert later & packed <= set(wanted)
        for key in wanted:
            expected = values(key, 0)
            got = torch.full_like(expected, 7)
            m.read(key, got.data_ptr(), got.nbytes)
            assert torch.equal(got, expected), f"{key} after {at} events"


def test_what_is_still_in_use_is_found_before_it_is_overwritten(folder):
    m = moved(folder)
    m.begin()
    for key in KEYS:
        m.pack(key, values(key, 0))
    kept = m.unpack("s7", 0, like(values("s7", 0)))
    with pytest.raises(Deviation, match="still in use"):
        m.unpack("s6", 0, like(values("s6", 0)))
    m.abandon()
    assert torch.equal(kept, values("s7", 0))
    del m  # the arena stays as long as what was handed out
    assert torch.equal(kept, values("s7", 0))


def test_a_hold_lets_it_stay_in_use(folder):
    holds = {9: ["s7"], 10: ["s7"]}
    m = moved(folder, holds=holds)
    for cycle in range(2):
        m.begin()
        for key in KEYS:
            m.pack(key, values(key, cycle))
        kept = None
        for key in reversed(KEYS):
            got = m.unpack(key, 0, like(values(key, cycle)))
            assert torch.equal(got, values(key, cycle))
            if key == "s7":
                kept = got
            if key == "s5":
                assert torch.equal(kept, values("s7", cycle))
                del kept
            del got
        m.end()


def test_more_bytes_than_planned_are_a_deviation_and_fewer_are_not(folder):
    m = moved(folder)
    m.begin()
    with pytest.raises(Deviation, match="bytes"):
        m.pack("s0", torch.zeros(MIB))
    small = torch.arange(100.0)
    m.pack("s0", small)
    for key in KEYS[1:]:
        m.pack(key, values(key, 0))
    for key in reversed(KEYS[1:]):
        m.unpack(key, 0, like(values(key, 0)))
    assert torch.equal(m.unpack("s0", 0, like(small)), small)
    m.end()


def test_state_is_kept_from_cycle_to_cycle(folder):
    states = {f"o{i}": MIB for i in range(6)}
    events = EVENTS + [f"state:{name}" for name in states]
    m = moved(folder, events, {**SIZES, **states})
    for i, name in enumerate(states):
        start = torch.full((MIB // 4,), float(i))
        m.write_state(name, start.data_ptr(), start.nbytes)
    for cycle in range(3):
        m.begin()
        for key in KEYS:
            m.pack(key, values(key, cycle))
        for key in reversed(KEYS):
            m.unpack(key, 0, like(values(key, cycle)))
        for i, name in enumerate(states):
            state = m.state(name).view(torch.float32)
            assert (state == i + cycle).all()
            state.add_(1)
            del state
        m.end()
        out = torch.zeros(4)
        m.read_state("o3", out.data_ptr(), 16, begin=64)
        assert (out == 3 + cycle + 1).all()
    m.begin()
    wanted = m.abandon()
    out = torch.zeros(MIB // 4)
    for i, name in enumerate(states):
        assert name in wanted
        m.read(name, out.data_ptr(), out.nbytes)
        assert (out == i + 3).all()
