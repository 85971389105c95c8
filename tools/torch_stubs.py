#!/usr/bin/env python3
"""Stand-ins for the CUDA libraries that a PyTorch wheel names, so that it imports for use on a CPU.

usage: tools/torch_stubs.py SITE_PACKAGES/torch

The wheel's own libraries are linked against gigabytes of CUDA libraries that come in wheels of
their own. Nothing of them does anything where there is no GPU, but the loader wants each to exist,
with the symbol versions and the symbols that are asked of it. This reads what is asked from the ELF
files that `import torch` loads and compiles libraries that have just that: 1 MB and seconds instead
of 3 GB. Each function answers 100, cudaErrorNoDevice; those that name an error answer a text. They
lie beside the wheel's libraries, whose run path has $ORIGIN. A library that the system or a wheel
has is left alone.

Formats: the System V ABI's "Object Files" chapter and, for versions, the Linux Standard Base's
"Symbol Versioning".
"""
import collections
import mmap
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

SHT_DYNAMIC, SHT_DYNSYM = 6, 11
SHT_GNU_VERNEED, SHT_GNU_VERSYM = 0x6FFFFFFE, 0x6FFFFFFF
DT_NEEDED = 1
UNDEFINED_SECTION = 0
WEAK = 2


class Elf:
    """What the dynamic loader asks of one 64-bit little-endian ELF file.

    needed: names of libraries. defined: names of its symbols. wanted: {(library, version, name)} of
    its undefined symbols that have a version, {(None, None, name)} of those without; weak ones,
    which may stay undefined, are left out. versions: {(library, version)}, each of which must
    exist even where no symbol uses it."""

    def __init__(self, path):
        self.needed, self.defined, self.wanted, self.versions = [], set(), set(), set()
        with open(path, "rb") as stream:
            self._data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        begin, = struct.unpack_from("<Q", self._data, 40)
        size, count = struct.unpack_from("<HH", self._data, 58)
        self._sections = [struct.unpack_from("<IIQQQQIIQQ", self._data, begin + i * size)
                          for i in range(count)]
        self._read_needed()
        self._read_symbols(self._read_versions())
        self._data.close()

    def _section(self, kind):
        """(bytes of the section, of its string table, number of entries), or None."""
        for s in self._sections:
            if s[1] == kind:
                strings = self._sections[s[6]]
                return (self._data[s[4]:s[4] + s[5]],
                        self._data[strings[4]:strings[4] + strings[5]], s[7])
        return None

    def _read_needed(self):
        found = self._section(SHT_DYNAMIC)
        for tag, value in struct.iter_unpack("<QQ", found[0] if found else b""):
            if tag == 0:
                break
            if tag == DT_NEEDED:
                self.needed.append(_text(found[1], value))

    def _read_versions(self):
        """{index: (library, version)} of the versions that other libraries must define."""
        found = self._section(SHT_GNU_VERNEED)
        by_index = {}
        if not found:
            return by_index
        data, strings, count = found
        at = 0
        for _ in range(count):
            _, parts, library, first, following = struct.unpack_from("<HHIII", data, at)
            part = at + first
            for _ in range(parts):
                _, _, index, name, more = struct.unpack_from("<IHHII", data, part)
                by_index[index & 0x7FFF] = (_text(strings, library), _text(strings, name))
                part += more
            at += following
        self.versions = set(by_index.values())
        return by_index

    def _read_symbols(self, versions):
        found, indices = self._section(SHT_DYNSYM), self._section(SHT_GNU_VERSYM)
        if not found:
            return
        for i, (name, info, _, section, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", found[0])):
            text = _text(found[1], name)
            if not text:
                continue
            if section != UNDEFINED_SECTION:
                self.defined.add(text)
            elif info >> 4 != WEAK:
                index = struct.unpack_from("<H", indices[0], 2 * i)[0] & 0x7FFF if indices else 0
                self.wanted.add((*versions.get(index, (None, None)), text))


def _text(strings, at):
    return strings[at:strings.index(b"\0", at)].decode()


def system_libraries():
    """{name: path} of what the loader finds without help."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        try:
            out = subprocess.run([program, "-p"], capture_output=True, text=True, check=True).stdout
        except OSError:
            continue
        found = {}
        for line in out.splitlines()[1:]:
            name, _, path = line.strip().partition(" => ")
            if "x86-64" in name:
                found.setdefault(name.split(" ")[0], path)
        return found
    raise RuntimeError("no ldconfig: cannot tell which libraries this system has")


def load(folder):
    """({name: Elf} of all that importing torch loads, [names that nobody has])."""
    files = {path.name: path for path in (folder / "lib").glob("*.so*")}
    for path in folder.parent.glob("nvidia/*/lib/*.so*"):
        files.setdefault(path.name, path)
    system = system_libraries()
    # The interpreter defines what extension modules take from Python.
    waiting = [next(folder.glob("_C.*.so")), pathlib.Path(sys.executable).resolve()]
    loaded, missing = {}, []
    while waiting:
        path = waiting.pop()
        loaded[path.name] = Elf(path)
        for name in loaded[path.name].needed:
            where = files.get(name) or system.get(name)
            if where is None and name not in missing:
                missing.append(name)
            if where is not None and name not in loaded and name not in (p.name for p in waiting):
                # By the name that asked: the file it leads to may have another.
                waiting.append(pathlib.Path(where))
    return loaded, sorted(missing)


def contents(loaded, missing):
    """{library: {version or None: {symbols}}}: what the missing libraries have to have."""
    defined = set().union(*(elf.defined for elf in loaded.values()))
    out = {name: collections.defaultdict(set) for name in missing}
    for elf in loaded.values():
        for library, version in elf.versions:
            if library in out:
                out[library][version].update()
        for library, version, symbol in elf.wanted:
            if library in out:
                out[library][version].add(symbol)
            elif library is None and missing and symbol not in defined:
                # The loader looks a name without a version up in every library: any will do.
                out[missing[0]][None].add(symbol)
    return out


def function(name):
    """C source of one stand-in. PyTorch asks for the text of the errors that it turns into
    exceptions (transformers provokes one a forward pass, and goes on)."""
    if re.search("(Error|Result)(String|Name)$", name):
        return f'const char* {name}(void) {{ return "no CUDA in this environment"; }}\n'
    return f"int {name}(void) {{ return 100; }}\n"


def compile_stub(name, symbols, into):
    """Writes the shared library `name` with {version: {symbols}} into a folder."""
    names = sorted(set().union(*symbols.values()))
    with tempfile.TemporaryDirectory() as scratch:
        source, script = pathlib.Path(scratch) / "stub.c", pathlib.Path(scratch) / "versions"
        source.write_text("".join(map(function, names)) or "typedef int empty;\n")
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", f"-Wl,-soname,{name}",
                   "-o", str(into / name), str(source)]
        versions = sorted(v for v in symbols if v)
        if versions:
            script.write_text("".join(
                f"{v} {{ {'global: ' if symbols[v] else ''}"
                f"{' '.join(s + ';' for s in sorted(symbols[v]))} }};\n" for v in versions))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
    return len(names)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    loaded, missing = load(folder)
    wanted = contents(loaded, missing)
    for name in missing:
        print(f"{name}: {compile_stub(name, wanted[name], folder / 'lib')} symbols")


if __name__ == "__main__":
    main()
