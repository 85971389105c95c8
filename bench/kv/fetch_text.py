#!/usr/bin/env python3
"""Obtains the fixed English text that long contexts are measured with, and verifies it.

usage: bench/kv/fetch_text.py [--into FOLDER]

The text is the Jargon File 4.4.7 (public domain) as the Debian package jargon-text has it: 1.7 MB,
some 405,000 tokens of SmolLM2. FOLDER defaults to .cache/texts in the repository. The package is
downloaded by name with apt-get (no root needed) and unpacked here, not installed; an installed
one is used as it is. The file is checked against the SHA-256 pinned here and appears whole or
not at all. The last line of stdout is its path.

Where that cannot be had (no network, another distribution): the licences of
/usr/share/common-licenses one after another, which every Debian has; stderr says so, and the
file has another name, so that nobody takes one for the other.
Exit codes: 0 there is a text; 1 there is none.
"""
import argparse
import gzip
import hashlib
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGE = "jargon-text"
MEMBER = "usr/share/doc/jargon-text/jargon.txt.gz"
SHA256 = "40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97"
NAME, FALLBACK = "jargon-4.4.7.txt", "common-licenses.txt"
LICENCES = pathlib.Path("/usr/share/common-licenses")


def right(data):
    return hashlib.sha256(data).hexdigest() == SHA256


def packaged():
    """The text's bytes; RuntimeError where the package gives others."""
    installed = pathlib.Path("/") / MEMBER
    with tempfile.TemporaryDirectory() as folder:
        if installed.exists():
            packed = installed
        else:
            subprocess.run(["apt-get", "-qq", "download", PACKAGE], cwd=folder, check=True,
                           stdout=sys.stderr)
            deb = next(pathlib.Path(folder).glob("*.deb"))
            subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
            packed = pathlib.Path(folder) / MEMBER
        data = gzip.decompress(packed.read_bytes())
    if not right(data):
        raise RuntimeError(f"{PACKAGE}: SHA-256 is {hashlib.sha256(data).hexdigest()}, "
                           f"expected {SHA256}")
    return data


def save(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(data)
    unfinished.rename(path)
    return path


def fetch(into=ROOT / ".cache" / "texts"):
    """The path of the text; of the licences, said on stderr, where it cannot be had."""
    target = into / NAME
    if target.exists() and right(target.read_bytes()):
        return target
    try:
        return save(target, packaged())
    except (OSError, RuntimeError, StopIteration, subprocess.CalledProcessError) as error:
        print(f"fetch_text: {PACKAGE}: {error}: the licences instead", file=sys.stderr)
    files = [p for p in sorted(LICENCES.glob("*")) if p.is_file() and not p.is_symlink()]
    if not files:
        raise RuntimeError(f"no text: neither {PACKAGE} nor {LICENCES}")
    return save(into / FALLBACK, b"\n".join(p.read_bytes() for p in files))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / ".cache" / "texts")
    try:
        print(fetch(parser.parse_args().into))
    except RuntimeError as error:
        print(f"fetch_text: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
