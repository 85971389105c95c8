"""Reads what the benchmarks need from the head of a GGUF file: sizes of tensors and the
numbers of the architecture. The standard library only; arrays are skipped."""
import struct

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q",
            11: "q", 12: "d"}
# type number: (weights a block, bytes a block)
_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
           8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176),
           14: (256, 210), 30: (1, 2)}
PAGE = 4096


class _Reader:
    def __init__(self, stream):
        self.stream = stream

    def take(self, code):
        size = struct.calcsize("<" + code)
        return struct.unpack("<" + code, self.stream.read(size))[0]

    def text(self):
        return self.stream.read(self.take("Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.take("I"), self.take("Q")
            if inner in _SCALARS:
                self.stream.seek(count * struct.calcsize(_SCALARS[inner]), 1)
            else:
                for _ in range(count):
                    self.value(inner)
            return None
        return self.take(_SCALARS[kind])


class Header:
    """keys: {key: value}; tensors: [(name, begin, end)] in file offsets, bytes."""

    def __init__(self, path):
        with open(path, "rb") as stream:
            r = _Reader(stream)
            if stream.read(4) != b"GGUF":
                raise ValueError(f"{path}: not a GGUF file")
            r.take("I")
            tensor_count, key_count = r.take("Q"), r.take("Q")
            self.keys = {}
            for _ in range(key_count):
                key = r.text()
                self.keys[key] = r.value(r.take("I"))
            listed = []
            for _ in range(tensor_count):
                name = r.text()
                dims = [r.take("Q") for _ in range(r.take("I"))]
                kind, offset = r.take("I"), r.take("Q")
                count = 1
                for dim in dims:
                    count *= dim
                weights, size = _BLOCKS[kind]
                listed.append((name, offset, count // weights * size))
            align = self.keys.get("general.alignment") or 32
            base = -(-stream.tell() // align) * align
        self.tensors = [(n, base + o, base + o + s) for n, o, s in listed]
        self.arch = self.keys["general.architecture"]

    def number(self, key, default=None):
        return self.keys.get(f"{self.arch}.{key}", default)

    def step_bytes(self):
        """M: the union of 4 KiB pages that one decode step must have in memory, bytes.
        An embedding table that is not also the head is read by rows and left out."""
        names = {name for name, _, _ in self.tensors}
        pages, last = 0, -1
        for name, begin, end in sorted(self.tensors, key=lambda t: t[1]):
            if name == "token_embd.weight" and "output.weight" in names:
                continue
            first = max(begin // PAGE, last + 1)
            stop = -(-end // PAGE)
            pages += max(0, stop - first)
            last = max(last, stop - 1)
        return pages * PAGE

    def kv_bytes(self, context):
        """An f16 cache of `context` tokens in every layer, bytes."""
        heads = self.number("attention.head_count")
        kv = self.number("attention.head_count_kv", heads)
        size = self.number("attention.key_length",
                           self.number("embedding_length") // heads)
        return 2 * 2 * context * self.number("block_count") * kv * size
