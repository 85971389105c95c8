"""Sizes, what the process holds, the allocator, buffers put aside, the decorator."""

from __future__ import annotations

import os
import threading

import pytest

import headrace
from headrace import _core
from headrace._remote import remote_of


@pytest.mark.parametrize("size, want", [
    (4096, 4096), ("4096", 4096), ("1GiB", 1 << 30), ("128MB", 128_000_000), ("800M", 800 << 20),
    (" 1.5GiB ", 3 << 29), ("512mib", 512 << 20)])
def test_sizes_are_read_as_the_command_line_reads_them(size, want):
    assert headrace.parse_bytes(size) == want


@pytest.mark.parametrize("size", [0, -1, "0", "-3GiB", "much", "", None, True, 1.5, "60%", "auto",
                                  [1], "1 GiBB", "nan"])
def test_what_is_no_size_is_refused_with_what_was_given(size):
    with pytest.raises(headrace.HeadraceError) as caught:
        headrace.parse_bytes(size, "memory")
    assert caught.value.code == "usage"
    assert "memory=" in str(caught.value)
    assert str(size).strip() in str(caught.value)


def test_numbers_of_other_libraries_are_sizes():
    class Index:
        def __index__(self):
            return 1 << 20
    assert headrace.parse_bytes(Index()) == 1 << 20


def test_the_peak_counts_from_where_it_was_reset():
    big = bytearray(64 << 20)
    for i in range(0, len(big), 4096):
        big[i] = 1
    before = headrace.process_memory()
    assert before.peak >= before.rss >= 64 << 20
    del big
    headrace.reset_peak()
    after = headrace.process_memory()
    assert after.peak < before.peak - (32 << 20)
    assert "rss" in repr(after)


def test_with_the_allocator_tuned_freed_memory_goes_back_at_once():
    headrace.tune_malloc()
    kept = []
    blocks = []
    for _ in range(400):  # of 80 KiB, with small ones between them that stay
        blocks.append(bytearray(80 << 10))
        kept.append(bytearray(64))
    for block in blocks:
        block[::4096] = b"x" * len(block[::4096])
    full = headrace.process_memory().anonymous
    del blocks, block
    assert headrace.process_memory().anonymous < full - (25 << 20)
    assert kept


@pytest.mark.parametrize("size", [1, 4095, 1 << 20, (4 << 20) - 1, (9 << 20) + 4097])
def test_copies_are_exact_with_one_thread_and_with_two(memory, size):
    source = memory(size, os.urandom(257))
    target = memory(size)
    _core.copy_in(target.address, source.address, size)
    assert target.read() == source.read()


def test_a_copy_to_nowhere_is_refused():
    with pytest.raises(headrace.HeadraceError):
        _core.copy_in(0, 0, 8)


def test_buffers_put_aside_come_back_and_their_room_is_used_again(memory, disk):
    spill = _core.Spill(disk)
    assert spill.bytes_on_disk == 0
    sizes = [1, 4096, 100_000, (4 << 20) + 1, (17 << 20) + 333, 64]
    buffers = {}
    for round_ in range(3):
        for size in sizes:
            buffer = memory(size, os.urandom(251))
            buffers[spill.put(buffer.address, size)] = buffer
        on_disk = spill.bytes_on_disk
        for number, buffer in list(buffers.items()):
            back = memory(buffer.size)
            spill.get(number, back.address, buffer.size)
            assert back.read() == buffer.read()
            if number % 2 == round_ % 2:
                spill.drop(number)
                del buffers[number]
    for number in buffers:
        spill.drop(number)
    assert spill.held_bytes == 0
    assert spill.bytes_on_disk == on_disk
    assert os.listdir(disk) == []


def test_a_buffer_that_is_not_there_is_refused_by_its_number(memory, disk):
    spill = _core.Spill(disk)
    buffer = memory(4096)
    number = spill.put(buffer.address, 4096)
    with pytest.raises(headrace.HeadraceError, match="4096"):
        spill.get(number, buffer.address, 4097)
    spill.drop(number)
    for call in (lambda: spill.get(number, buffer.address, 1), lambda: spill.drop(number)):
        with pytest.raises(headrace.HeadraceError, match=str(number)) as caught:
            call()
        assert caught.value.code == "usage"


def test_a_folder_that_is_not_there_is_an_io_error():
    with pytest.raises(headrace.HeadraceError, match="/nowhere") as caught:
        _core.Spill("/nowhere/at/all")
    assert caught.value.code == "io"


def test_two_threads_may_put_aside_at_the_same_time(memory, disk):
    spill = _core.Spill(disk)
    wrong = []

    def work(seed: int) -> None:
        for i in range(20):
            buffer = memory(300_000 + seed, bytes([seed, i, 7]))
            number = spill.put(buffer.address, buffer.size)
            back = memory(buffer.size)
            spill.get(number, back.address, buffer.size)
            if back.read() != buffer.read():
                wrong.append((seed, i))
            spill.drop(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_decorator_says_what_was_asked_and_subclasses_inherit_it():
    @headrace.remote_memory(max_size="128MB", prefetch_priority=0.8)
    class Large:
        pass

    class Larger(Large):
        pass

    want = headrace.RemoteMemory(128_000_000, 0.8)
    assert remote_of(Large()) == want == remote_of(Larger())
    assert remote_of(object()) is None
    assert want.rule() == {"max_size": 128_000_000, "prefetch_priority": 80}


def test_the_decorator_refuses_what_it_is_not_for():
    with pytest.raises(headrace.HeadraceError, match="prefetch_priority=2"):
        headrace.remote_memory(prefetch_priority=2)
    with pytest.raises(headrace.HeadraceError, match="max_size='lots'"):
        headrace.remote_memory(max_size="lots")
    with pytest.raises(headrace.HeadraceError, match="parentheses"):
        headrace.remote_memory(lambda: 0)
    with pytest.raises(headrace.HeadraceError, match="classes"):
        headrace.remote_memory()(lambda: 0)
