"""What every test of the Python package has: one thread, no network, a folder that must end empty.

HEADRACE_FUZZ_ALL=1 makes the fuzz tests long. A door that is missing makes its tests fail, not skip.
"""
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import pytest  # noqa: E402

try:
    import torch
    torch.set_num_threads(1)  # ctest runs several files at once
except ImportError:
    torch = None  # test_without_torch.py is about that


@pytest.fixture
def folder(tmp_path):
    """A folder for scratch; what is left in it after the test is a failure of the test."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    yield scratch
    assert not list(scratch.iterdir()), "scratch files are left behind"
