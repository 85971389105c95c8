"""Shared by the tests of the package. None of them needs a network or leaves a file behind.

HEADRACE_FUZZ_ALL=1 makes the fuzz tests long.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402

try:
    import torch
    torch.set_num_threads(1)  # ctest runs several files at once
except ImportError:
    pass  # the tests that need it say so

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """A folder for scratch files; what is left in it after the test is a failure of the test."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield scratch
    assert not list(scratch.iterdir()), "scratch files are left behind"


@pytest.fixture
def disk() -> str:
    """A folder on a disk: the system's temporary one may be in memory."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield folder


@pytest.fixture
def least_arena(monkeypatch):
    """Plans of the eager door take the least arena that there is, and everything is planned."""
    import headrace
    from headrace.eager import _plans
    plan_in = _plans.Plans._plan_in

    def least(self, order, extra_bytes):
        if not order.events:
            return None
        try:
            return plan_in(self, order, 4096)
        except headrace.DoesNotFit as why:
            return plan_in(self, order, why.needed_bytes)
    monkeypatch.setattr(_plans.Plans, "_plan", least)


class Memory:
    """Bytes at an address, as tensors have them; 64 bytes off a page, as torch gives them out."""

    def __init__(self, size: int, fill: bytes = b"\0") -> None:
        self._all = ctypes.create_string_buffer(size + 8192)
        begin = (ctypes.addressof(self._all) + 4095) // 4096 * 4096 + 64
        self.address = begin
        self.size = size
        self.write((fill * (size // len(fill) + 1))[:size])

    def write(self, data: bytes) -> None:
        ctypes.memmove(self.address, data, len(data))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)


@pytest.fixture
def memory():
    return Memory


def stack_workload(layers: int = 8, size: int = 1 << 20, cyclic: bool = True,
                   state: bool = False, milliseconds: float = 10) -> str:
    """What a training step does with what it saves: the last that was packed is unpacked first."""
    tensors = [{"name": f"saved{i}", "bytes": size} for i in range(layers)]
    ops = [{"name": f"pack{i}", "kernel": "Pack", "outputs": [f"saved{i}"],
            "seconds": milliseconds / 1e3, "recompute": False} for i in range(layers)]
    tensors += [{"name": f"after{i}", "bytes": 1, "class": "other"} for i in range(layers)]
    ops += [{"name": f"unpack{i}", "kernel": "Unpack", "inputs": [f"saved{i}"],
             "outputs": [f"after{i}"], "seconds": milliseconds / 1e3, "recompute": False}
            for i in reversed(range(layers))]
    if state:
        tensors += [{"name": f"moment{i}", "bytes": size, "persistent": True,
                     "class": "optimizer"} for i in range(layers)]
        ops += [{"name": f"step{i}", "kernel": "Step", "updates": [f"moment{i}"],
                 "seconds": milliseconds / 1e3, "recompute": False} for i in range(layers)]
    return json.dumps({"headrace_workload": 1, "name": "stack", "cyclic": cyclic,
                       "tensors": tensors, "ops": ops})
