"""Writes GGUF files piece by piece (numpy and the standard library only).

The layout follows the GGUF specification (ggml, docs/gguf.md, version 3): header,
key-value pairs, tensor descriptions, then the tensors, each at a multiple of 32 bytes.
Block layouts of the quantised types follow the same project's description of its
types; `random_blocks` fills them with random bits whose weights have mean 0 and a
chosen standard deviation.

Nothing here keeps a tensor whole: callers yield pieces, the writer counts them.
"""
import struct

import numpy as np

ALIGNMENT = 32

# name: (number in the file, weights a block, bytes a block)
TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "bf16": (30, 1, 2),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q6_k": (14, 256, 210),
}

# Python value -> GGUF value type; lists are arrays of the type of their first element.
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


class U(int):
    """An integer to be written as uint32."""


class I(int):
    """An integer to be written as int32."""


def _string(text):
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _scalar(value):
    """Returns (value type, bytes) of one value that is not a list."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, I):
        return I32, struct.pack("<i", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return STRING, _string(value)
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _pair(key, value):
    if isinstance(value, list):
        kind = _scalar(value[0])[0]
        head = _string(key) + struct.pack("<IIQ", ARRAY, kind, len(value))
        return head + b"".join(_scalar(v)[1] for v in value)
    kind, raw = _scalar(value)
    return _string(key) + struct.pack("<I", kind) + raw


def tensor_bytes(kind, shape):
    """Bytes of a tensor; shape is [rows, cols] or [n], cols the contiguous one."""
    _, weights, size = TYPES[kind]
    if shape[-1] % weights:
        raise ValueError(f"{kind} needs columns in multiples of {weights}: {shape}")
    return int(np.prod(shape, dtype=np.int64)) // weights * size


def write(path, pairs, tensors):
    """Writes a file.

    pairs: {key: value}. tensors: [(name, kind, shape, pieces)], shape as in numpy
    ([rows, cols]), pieces a function without arguments that returns an iterator of
    bytes-like objects, tensor_bytes(kind, shape) long together.
    """
    with open(path, "wb") as out:
        out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        for key, value in pairs.items():
            out.write(_pair(key, value))
        offset = 0
        for name, kind, shape, _ in tensors:
            dims = list(reversed(shape))
            out.write(_string(name) + struct.pack("<I", len(dims)))
            out.write(struct.pack(f"<{len(dims)}Q", *dims))
            out.write(struct.pack("<IQ", TYPES[kind][0], offset))
            offset += -(-tensor_bytes(kind, shape) // ALIGNMENT) * ALIGNMENT
        out.write(bytes(-out.tell() % ALIGNMENT))
        for name, kind, shape, pieces in tensors:
            count = 0
            for piece in pieces():
                count += out.write(piece)
            if count != tensor_bytes(kind, shape):
                raise ValueError(f"{name}: {count} bytes written, "
                                 f"{tensor_bytes(kind, shape)} expected")
            out.write(bytes(-count % ALIGNMENT))


class Bits:
    """A stream of random bits that is the same with every numpy version.

    Only the raw words of PCG64 are used: numpy promises those, and not the
    distributions built on them.
    """

    def __init__(self, *seed):
        self.source = np.random.PCG64(np.random.SeedSequence(seed))

    def bytes(self, count):
        """`count` random bytes, [count] u8."""
        words = self.source.random_raw(-(-count // 8))
        return words.astype("<u8", copy=False).view(np.uint8)[:count]

    def uniform(self, count):
        """`count` numbers in [-1, 1), [count] f32."""
        raw = self.bytes(4 * count).view("<u4") >> np.uint32(8)
        return raw.astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1)


def _half(value, count):
    return np.full(count, value, dtype="<f2").view(np.uint8).reshape(count, 2)


def _pack_q4_k_scales(scales, mins):
    """[n, 8] six-bit scales and mins -> [n, 12] bytes."""
    packed = np.empty((len(scales), 12), dtype=np.uint8)
    packed[:, 0:4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    packed[:, 4:8] = mins[:, :4] | (mins[:, 4:] >> 4 << 6)
    packed[:, 8:12] = (scales[:, 4:] & 15) | ((mins[:, 4:] & 15) << 4)
    return packed


def random_blocks(kind, count, deviation, bits):
    """`count` blocks of `kind`, weights of mean 0 and the given standard deviation.

    Returns [count, bytes a block] u8.
    """
    size = TYPES[kind][2]
    if kind in ("f32", "f16", "bf16"):
        weights = bits.uniform(count) * np.float32(deviation * 3 ** 0.5)
        if kind == "f32":
            return weights.view(np.uint8).reshape(count, 4)
        if kind == "f16":
            return weights.astype("<f2").view(np.uint8).reshape(count, 2)
        return (weights.view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(count, 2)
    block = bits.bytes(count * size).reshape(count, size).copy()
    if kind == "q8_0":
        # q uniform over int8: deviation 256 / sqrt(12).
        block[:, :2] = _half(deviation / 73.9, count)
    elif kind == "q4_k":
        # w = d sc q - dmin m with m = sc and dmin = 7.5 d: mean 0. sc is uniform over
        # 32..63 (rms 48.4), q over 0..15 (deviation 4.61).
        unit = deviation / (48.4 * 4.61)
        scales = 32 + (block[:, 4:12] & 31)
        block[:, 0:2] = _half(unit, count)
        block[:, 2:4] = _half(7.5 * unit, count)
        block[:, 4:16] = _pack_q4_k_scales(scales, scales)
    elif kind == "q6_k":
        # w = d sc (q - 32): sc uniform over 64..127 (rms 97.3), q over 0..63 (18.5).
        block[:, 192:208] = 64 + (block[:, 192:208] & 63)
        block[:, 208:210] = _half(deviation / (97.3 * 18.5), count)
    else:
        raise ValueError(f"no random blocks for {kind}")
    return block
