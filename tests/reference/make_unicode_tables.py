#!/usr/bin/env python3
"""Writes headrace/model/unicode_tables.cc from Python's own Unicode database.

Usage: python3 tests/reference/make_unicode_tables.py > headrace/model/unicode_tables.cc
The committed file was made with Python 3.11 (Unicode 14.0.0).
"""
import sys
import unicodedata

ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def rows(name, kind, entries):
    """One C++ array, several entries a line, at most 90 columns."""
    print(f"extern const {kind} {name}[{len(entries)}] = {{")
    line = "   "
    for entry in entries:
        if kind == "CaseMapping":
            values = f"0x{entry[0]:X}, {{" + ", ".join(f"0x{v:X}" for v in entry[1:]) + "}"
        else:
            values = ", ".join(f"0x{v:X}" for v in entry)
        text = " {" + values + "},"
        if len(line) + len(text) > 90:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")
    print(f"extern const size_t {name}Count = {len(entries)};\n")


def ranges(value_of):
    """Maximal ranges [first, last] of equal, non-zero value."""
    out = []
    for c in range(0x110000):
        value = value_of(chr(c))
        if value and out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        elif value:
            out.append([c, c, value])
    return out


def decompositions():
    out = []
    for c in ALL:
        text = unicodedata.decomposition(c)
        if not text or text.startswith("<"):
            continue
        parts = [int(p, 16) for p in text.split()]
        out.append((ord(c), parts[0], parts[1] if len(parts) > 1 else 0))
    return out


def compositions():
    out = []
    for c, a, b in decompositions():
        if b and unicodedata.normalize("NFC", chr(a) + chr(b)) == chr(c):
            out.append((a, b, c))
    return sorted(out)


def case_map(function):
    out = []
    for c in ALL:
        mapped = function(c)
        if mapped != c:
            out.append([ord(c)] + [ord(m) for m in mapped] + [0] * (3 - len(mapped)))
    return out


def main():
    print("// Made by tests/reference/make_unicode_tables.py from Unicode "
          f"{unicodedata.unidata_version}. Do not edit.")
    print('#include "headrace/model/unicode_tables.h"\n')
    print("namespace headrace {\n")
    rows("kDecompositions", "UnicodeTriple", decompositions())
    rows("kCompositions", "UnicodeTriple", compositions())
    rows("kCombiningClasses", "UnicodeTriple", ranges(unicodedata.combining))
    rows("kLowerCase", "CaseMapping", case_map(str.lower))
    rows("kUpperCase", "CaseMapping", case_map(str.upper))
    title = [r for r in case_map(str.title)
             if "".join(map(chr, [v for v in r[1:] if v])) != chr(r[0]).upper()]
    title += [[ord(c), ord(c), 0, 0] for c in ALL if c.title() == c and c.upper() != c]
    rows("kTitleCase", "CaseMapping", sorted(title))
    rows("kUnprintable", "UnicodeTriple", ranges(lambda c: int(not c.isprintable())))
    print("}  // namespace headrace")


if __name__ == "__main__":
    sys.exit(main())
