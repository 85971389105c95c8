// Codecs of ir/codec.h on the CPU: a plain f32 tensor to its encoded form and back.
//
// Layout of the encoded forms, n elements (little endian)
//   bf16        n x u16
//   int8_block  n x i8, then one f32 a block of 64: the largest magnitude m of the block
//   mask        bit (i % 8) of byte i / 8 is element i > 0
//   byte_plane  64 bytes of header: the sizes of four parts (u64 each; 0: the part is the plane as
//               it is), then the parts: bytes 3, 2, 1, 0 of all elements in order, each a Zstandard
//               frame (RFC 8878) where that is smaller than the plane
//
// What is not a usual number
//   bf16        NaN stays NaN (made quiet, sign kept), infinities stay. Rounding is to nearest
//               even, so magnitudes from 2^128 - 2^119 on become infinite. Numbers below 2^-126
//               keep an absolute error of at most 2^-134 rather than a relative one.
//   int8_block  NaN and infinities are code -128 and decode to NaN: what has diverged stays
//               visible; they do not count for m. A number x decodes to q m / 127, |x - it| <= m /
//               254 plus the rounding of an f32; the sign of zero is lost.
//   mask        NaN is not above zero.
//   byte_plane  every bit pattern comes back.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "headrace/base/thread_pool.h"
#include "headrace/ir/codec.h"

namespace headrace {

// What kBytePlane needs beside its operands, allocated once. Not thread-safe.
class CodecScratch {
 public:
  // For tensors of at most `elements` elements. kDoesNotFit when there is no memory for it.
  static Result<std::unique_ptr<CodecScratch>> create(int64_t elements);
  ~CodecScratch();
  CodecScratch(const CodecScratch&) = delete;
  CodecScratch& operator=(const CodecScratch&) = delete;

  struct State;  // codec.cc
  State& state() const { return *state_; }

 private:
  explicit CodecScratch(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Writes the encoded form of `plain` (elements x 4 bytes) to `to`, which has room for
// encoded_bytes(). Returns the bytes that the form takes: fewer than that for kBytePlane alone.
// `scratch` may be null for the others. Precondition: codec is not kNone; sizes agree.
Bytes encode(Codec codec, std::span<const std::byte> plain, std::span<std::byte> to,
             CodecScratch* scratch, ThreadPool& pool);

// Writes the plain tensor that `encoded` (what encode() wrote, or more bytes) stands for to `to`.
// kBadFile when `encoded` is not such a form (kBytePlane; the others accept any bytes).
Status decode(Codec codec, std::span<const std::byte> encoded, std::span<std::byte> to,
              CodecScratch* scratch, ThreadPool& pool);

}  // namespace headrace
