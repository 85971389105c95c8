#!/usr/bin/env python3
"""Writes tests/data/quant/dequantised.bin: random rows of every weight type and what gguf-py
makes of them. Needs `pip install gguf numpy`; made with gguf 0.19.0. Deterministic.

Records one after another, little endian: name (8 bytes, zero padded), elements (i32), bytes (i32),
the row's bytes, its elements as f32.
"""
import struct
import sys

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

ELEMENTS = 512
# Where the f16 scales of a block are; all other bytes are random.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def random_row(rng, kind):
    block, size = GGML_QUANT_SIZES[kind]
    count = ELEMENTS // block
    if kind in HALVES:
        row = rng.integers(0, 256, size=(count, size), dtype=np.uint8)
        for at in HALVES[kind]:
            scale = (rng.standard_normal(count) * 0.05).astype(np.float16)
            scale[0] = np.float16(6e-8)  # the smallest subnormal
            row[:, at:at + 2] = scale.view(np.uint8).reshape(count, 2)
        return row.reshape(-1)
    values = rng.standard_normal(ELEMENTS).astype(np.float32)
    values[:6] = [0.0, -0.0, 65504.0, 6e-8, -6.1e-5, 1.0]
    if kind == T.F16:
        return values.astype(np.float16).view(np.uint8)
    if kind == T.BF16:
        return gguf.quants.quantize(values, kind).view(np.uint8)
    return values.view(np.uint8)


def main(path):
    rng = np.random.default_rng(20240607)
    with open(path, "wb") as out:
        for kind in [T.F32, T.F16, T.BF16, *HALVES]:
            row = random_row(rng, kind)
            values = gguf.quants.dequantize(row, kind).astype(np.float32).reshape(-1)
            assert values.size == ELEMENTS
            name = kind.name.lower().encode()
            out.write(struct.pack("<8sii", name, ELEMENTS, row.size))
            out.write(row.tobytes())
            out.write(values.tobytes())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "tests/data/quant/dequantised.bin")
