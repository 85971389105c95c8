#!/usr/bin/env python3
"""Runs pytest in the environment that `make torch` made, for ctest.

usage: tests/python/run.py FILE [pytest arguments]

HEADRACE_TORCH names the environment; where it is not there the tests are skipped: exit code 77. So
are files all of whose tests are skipped, by the reasons that pytest prints; a file without a test
is a failure.
"""
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main():
    folder = pathlib.Path(os.environ.get("HEADRACE_TORCH", ROOT / ".cache" / "torch"))
    if not (folder / "ready").exists():
        print(f"SKIPPED: no PyTorch in {folder}; make torch installs it")
        sys.exit(77)
    option = next(word for word in sys.argv if word.startswith("--basetemp="))
    pathlib.Path(option.partition("=")[2]).parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1",
                       HF_HOME=str(folder / "huggingface"))
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-rs", "--tb=short",
               "-p", "no:cacheprovider", *sys.argv[1:]]
    os.chdir(ROOT / "python" / "tests")
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
