// The forms of the KV codec, one table an instruction set; see kv_codec.h for what they do.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "headrace/ir/kv.h"
#include "headrace/kernel/kv_layout.h"

namespace headrace {

constexpr int64_t kKvGroup = 32;  // elements that share a scale
constexpr uint16_t kHalfNan = 0x7e00;
constexpr float kHalfMost = 65504.0f;
// Added and taken away again, it rounds |x| < 2^22 to an integer, half to even.
constexpr float kRoundToInteger = 0x1.8p23f;

namespace {  // compiled for each instruction set, never shared by the linker

// Where the planes of a part of q8 or q4 are.
struct KvPlanes {
  KvPlanes(KvFormat format, int64_t head_dim)
      : padded(padded_head_dim(head_dim)),
        groups((head_dim + kKvGroup - 1) / kKvGroup),
        row_bytes(format == KvFormat::kQ4 ? padded / 2 : padded),
        scales(kKvTile * row_bytes),
        least(scales + kKvTile * groups * 2) {}

  int64_t padded, groups;
  Bytes row_bytes;      // of q
  Bytes scales, least;  // offsets of f16 [64][groups]
};

// Elements of a block that hadamard_rotate multiplies by one matrix.
inline int64_t hadamard_size(int64_t head_dim) { return head_dim & -head_dim; }

}  // namespace

// 1 / root(size).
float hadamard_factor(int64_t size);

struct KvCodecFns {
  void (*encode)(KvFormat format, const uint16_t* rows16, int64_t head_dim, std::byte* out);
  void (*decode)(KvFormat format, const std::byte* part, int64_t head_dim, int64_t lo, int64_t hi,
                 float* out);
  void (*decode_16bit)(bool f16, const uint16_t* rows16, int64_t head_dim, int64_t lo, int64_t hi,
                       float* out);
  void (*rotate)(float* row, int64_t head_dim);
};
const KvCodecFns& reference_kv_codec();
// Only to be called where supported() says so.
const KvCodecFns& avx2_kv_codec();
const KvCodecFns& avx512_kv_codec();

}  // namespace headrace
