#!/usr/bin/env python3
"""Checks that includes follow the order of the folders, and the README's map.

usage: check_layers.py ROOT

A folder of headrace/ may include only headers of itself and of the folders to its left:
"""
import re
import sys
from pathlib import Path

ORDER = ["base", "ir", "cost", "tier", "kernel", "model", "sim", "plan", "run", "kv",
         "report", "snapshot", "session", "train", "serve", "tools"]
# Stricter than the order: what a folder must not see although it lies to its left.
FORBIDDEN = {
    "sim": {"tier", "kernel", "model"},
    "plan": {"tier", "kernel", "model"},
    "run": {"sim", "plan", "model"},
    "tier": {"ir", "cost"},
}
__doc__ += "  " + " <- ".join(ORDER) + "\n"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]((?:headrace|tools|tests|bench)/[^">]+)[">]')
# The README's map: one line a folder, "headrace/base/   Status, Result, ...".
MAP_LINE = re.compile(r"^headrace/(\w+)/\s+\S", re.M)


def sources(folder):
    return sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc"))


def layer_of(path, root):
    parts = path.relative_to(root).parts
    return parts[1] if parts[0] == "headrace" and len(parts) > 2 else parts[0]


def includes_of(path):
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1)


def include_fault(layer, target):
    """Why `layer` may not include `target`, or None."""
    parts = target.split("/")
    if parts[0] in ("tests", "bench"):
        return f"includes {target}: the product never includes {parts[0]}/"
    other = parts[1] if parts[0] == "headrace" and len(parts) > 2 else parts[0]
    if other not in ORDER:
        return f"includes {target}: no folder of the order is called {other}"
    if ORDER.index(other) > ORDER.index(layer):
        return f"includes {target}: {other} is not to the left of {layer}"
    if other in FORBIDDEN.get(layer, ()):
        return f"includes {target}: {layer} must never see {other}"
    return None


def layer_faults(root):
    for top in (root / "headrace", root / "tools"):
        for path in sources(top):
            layer = layer_of(path, root)
            name = path.relative_to(root)
            if layer not in ORDER:
                yield f"{name}: folder {layer} is not in the order"
                continue
            for number, target in includes_of(path):
                fault = include_fault(layer, target)
                if fault is None and not (root / target).exists():
                    fault = f"includes {target}, which does not exist"
                if fault:
                    yield f"{name}:{number}: {fault}"


def cycle_faults(root):
    """Cycles among headers, by depth-first search; each is told once."""
    headers = {str(p.relative_to(root)): p for p in sources(root / "headrace")}
    state = {}

    def visit(name, path):
        state[name] = "open"
        for _, target in includes_of(headers[name]):
            if target not in headers:
                continue
            if state.get(target) == "open":
                chain = path[path.index(target):] + [target]
                yield "cycle of includes: " + " -> ".join(chain)
            elif target not in state:
                yield from visit(target, path + [target])
        state[name] = "done"

    for name in headers:
        if name not in state:
            yield from visit(name, [name])


def link_faults(root):
    """CMakeLists.txt names the folders in the same order."""
    cmake = root / "CMakeLists.txt"
    if not cmake.exists():
        return
    linked = re.findall(r"^headrace_folder\((\w+)", cmake.read_text(), re.M)
    wanted = [f for f in ORDER if f in linked]
    if linked != wanted:
        yield f"CMakeLists.txt: folders are {' '.join(linked)}, the order is {' '.join(wanted)}"


def map_faults(root):
    readme = root / "README.md"
    if not readme.exists():
        return
    told = set(MAP_LINE.findall(readme.read_text()))
    if not told:
        yield "README.md: no map of folders (lines 'headrace/NAME/   what it is')"
        return
    there = {p.name for p in (root / "headrace").iterdir() if p.is_dir()}
    for name in sorted(there - told):
        yield f"README.md: the map does not name headrace/{name}"
    for name in sorted(told - there):
        yield f"README.md: the map names headrace/{name}, which does not exist"


def main(argv):
    if len(argv) != 2:
        print(__doc__.strip())
        return 2
    root = Path(argv[1]).resolve()
    if not (root / "headrace").is_dir():
        print(f"{root}: no folder headrace")
        return 2
    status = 0
    for check in (layer_faults, cycle_faults, link_faults, map_faults):
        faults = list(check(root))
        for fault in faults:
            print(fault)
        if not faults:
            print(f"{check.__name__.replace('_faults', '')}: ok")
        status |= bool(faults)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
