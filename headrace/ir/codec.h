// Codecs: forms of a tensor that take fewer bytes, with their stated error. A plan uses them only
// for tensors that a rule allows them for.
//
// Vocabulary: the encoded form is a run of encoded_bytes() bytes that stands for the whole tensor;
// ratio is encoded over plain bytes.
#pragma once

#include <string_view>

#include "headrace/ir/graph.h"

namespace headrace {

enum class Codec : uint8_t {
  kNone,
  // f32 rounded to bf16, nearest even: relative error <= 2^-8 (2^-9 for the rounding itself).
  kBf16,
  // f32 in blocks of 64 with one f32 scale: int8, absolute error <= max|block| / 254.
  kInt8Block,
  // One bit an f32 element: whether it is above zero. Decodes to 1.0 and 0.0, so exact only for a
  // tensor of which nothing but the sign is read later (ReLU, dropout); a rule must say so.
  kMask,
  // Lossless: the four byte planes of f32, each a Zstandard frame or stored raw. How small it gets
  // is known only at run time: the plan reserves the plain size and a header.
  kBytePlane,
};
constexpr int kCodecCount = 5;
const char* name_of(Codec codec);
Result<Codec> codec_from_name(std::string_view name);
bool is_lossless(Codec codec);  // kMask counts as lossless: see there

// The most bytes the encoded form of `tensor` can take; 0: the codec cannot encode it (not f32).
Bytes encoded_bytes(Codec codec, const Tensor& tensor);

}  // namespace headrace
