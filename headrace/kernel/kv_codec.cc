#include "headrace/kernel/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "headrace/kernel/half.h"
#include "headrace/kernel/kernel.h"
#include "headrace/kernel/kv_codec_isa.h"

namespace headrace {
namespace {

void rotate(float* row, int64_t head_dim) {
  const int64_t size = hadamard_size(head_dim);
  for (int64_t half = 1; half < size; half *= 2) {
    for (int64_t i = 0; i < head_dim; ++i) {
      if ((i & half) != 0) continue;  // i mod size has the same bit: size divides the block's start
      const float a = row[i], b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
  const float factor = hadamard_factor(size);
  for (int64_t i = 0; i < head_dim; ++i) row[i] *= factor;
}

bool all_finite(const float* x, int64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

float to_integer(float x) { return (x + kRoundToInteger) - kRoundToInteger; }

void put_half(std::byte* plane, int64_t i, uint16_t bits) { std::memcpy(plane + 2 * i, &bits, 2); }

uint16_t half_at(const std::byte* plane, int64_t i) {
  uint16_t bits;
  std::memcpy(&bits, plane + 2 * i, 2);
  return bits;
}

// One group to int8; its scale as f16 bits.
uint16_t encode_q8(const float* x, int64_t n, int8_t* q) {
  std::fill_n(q, n, int8_t{0});
  if (!all_finite(x, n)) return kHalfNan;
  float most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  const uint16_t bits = f32_to_f16(most / 127.0f);
  const float scale = f16_to_f32(bits);
  if (scale == 0) return bits;
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    // The scale was rounded, perhaps down.
    q[i] = static_cast<int8_t>(std::clamp(to_integer(x[i] * inverse), -127.0f, 127.0f));
  }
  return bits;
}

struct GroupQ4 {
  uint16_t scale = 0, least = 0;  // f16 bits
};

// One group to values 0 .. 15.
GroupQ4 encode_q4(const float* x, int64_t n, uint8_t* q) {
  std::fill_n(q, n, uint8_t{0});
  if (!all_finite(x, n)) return {kHalfNan, 0};
  const auto [low, high] = std::minmax_element(x, x + n);
  GroupQ4 group;
  group.least = f32_to_f16(std::clamp(*low, -kHalfMost, kHalfMost) + 0.0f);  // never -0 of a +0
  const float least = f16_to_f32(group.least);
  group.scale = f32_to_f16(std::min(std::max(*high - least, 0.0f) / 15.0f, kHalfMost));
  const float scale = f16_to_f32(group.scale);
  if (scale == 0) return group;
  const float inverse = 1.0f / scale;
  for (int64_t i = 0; i < n; ++i) {
    q[i] = static_cast<uint8_t>(std::clamp(to_integer((x[i] - least) * inverse), 0.0f, 15.0f));
  }
  return group;
}

void pack_nibbles(const uint8_t* q, int64_t padded, std::byte* out) {
  for (int64_t i = 0; i < padded; i += 16) {
    for (int64_t j = 0; j < 8; ++j) {
      out[i / 2 + j] = static_cast<std::byte>(q[i + j] | q[i + j + 8] << 4);
    }
  }
}

void encode(KvFormat format, const uint16_t* rows16, int64_t head_dim, std::byte* out) {
  const KvPlanes at(format, head_dim);
  for (int64_t r = 0; r < kKvTile; ++r) {
    float x[kMaxHeadDim];
    for (int64_t i = 0; i < head_dim; ++i) x[i] = f16_to_f32(rows16[r * at.padded + i]);
    if (format == KvFormat::kQ4) rotate(x, head_dim);
    uint8_t q[kMaxHeadDim] = {};
    for (int64_t g = 0; g < at.groups; ++g) {
      const int64_t begin = g * kKvGroup, n = std::min(kKvGroup, head_dim - begin);
      const int64_t i = r * at.groups + g;
      if (format == KvFormat::kQ8) {
        put_half(out + at.scales, i, encode_q8(x + begin, n, reinterpret_cast<int8_t*>(q) + begin));
      } else {
        const GroupQ4 group = encode_q4(x + begin, n, q + begin);
        put_half(out + at.scales, i, group.scale);
        put_half(out + at.least, i, group.least);
      }
    }
    std::byte* const to = out + r * at.row_bytes;
    if (format == KvFormat::kQ8) {
      std::memcpy(to, q, static_cast<size_t>(at.padded));
    } else {
      pack_nibbles(q, at.padded, to);
    }
  }
}

void decode(KvFormat format, const std::byte* part, int64_t head_dim, int64_t lo, int64_t hi,
            float* out) {
  const KvPlanes at(format, head_dim);
  for (int64_t r = lo; r < hi; ++r) {
    const auto* q = reinterpret_cast<const uint8_t*>(part + r * at.row_bytes);
    float* const to = out + r * at.padded;
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t group = r * at.groups + i / kKvGroup;
      const float scale = f16_to_f32(half_at(part + at.scales, group));
      if (format == KvFormat::kQ8) {
        to[i] = scale * static_cast<float>(static_cast<int8_t>(q[i]));
      } else {
        const uint8_t pair = q[i / 16 * 8 + i % 8];
        const int value = i % 16 < 8 ? pair & 15 : pair >> 4;
        // The product is exact (11 + 4 bits), so a fused form rounds the same.
        to[i] = scale * static_cast<float>(value) + f16_to_f32(half_at(part + at.least, group));
      }
    }
    std::fill(to + head_dim, to + at.padded, 0.0f);
  }
}

void decode_16bit(bool f16, const uint16_t* rows16, int64_t head_dim, int64_t lo, int64_t hi,
                  float* out) {
  const int64_t padded = padded_head_dim(head_dim);
  for (int64_t r = lo; r < hi; ++r) {
    for (int64_t i = r * padded; i < r * padded + head_dim; ++i) {
      out[i] = f16 ? f16_to_f32(rows16[i]) : bf16_to_f32(rows16[i]);
    }
    std::fill(out + r * padded + head_dim, out + (r + 1) * padded, 0.0f);
  }
}

bool is_16bit(KvFormat format) { return format == KvFormat::kF16 || format == KvFormat::kBF16; }

const KvCodecFns& fns() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni: return avx512_kv_codec();
    case Isa::kAvx2: return avx2_kv_codec();
    case Isa::kScalar: break;
  }
  return reference_kv_codec();
}

void check_head_dim(int64_t head_dim) {
  HR_CHECK(head_dim >= 1 && head_dim <= kMaxHeadDim, "head_dim is 1 .. 512");
}

}  // namespace

float hadamard_factor(int64_t size) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(size)));
}

const KvCodecFns& reference_kv_codec() {
  static constexpr KvCodecFns kFns{encode, decode, decode_16bit, rotate};
  return kFns;
}

void kv_encode_part(KvFormat format, const uint16_t* rows16, int64_t head_dim, std::byte* out) {
  check_head_dim(head_dim);
  if (is_16bit(format)) {
    std::memcpy(out, rows16, static_cast<size_t>(kv_tile_bytes(format, 1, head_dim) / 2));
    return;
  }
  fns().encode(format, rows16, head_dim, out);
}

void kv_decode_rows(KvFormat format, const std::byte* part, int64_t head_dim, int64_t lo,
                    int64_t hi, float* out) {
  check_head_dim(head_dim);
  HR_CHECK(lo >= 0 && hi <= kKvTile, "rows of a part are 0 .. 63");
  if (is_16bit(format)) {
    fns().decode_16bit(format == KvFormat::kF16, reinterpret_cast<const uint16_t*>(part), head_dim,
                       lo, hi, out);
    return;
  }
  fns().decode(format, part, head_dim, lo, hi, out);
}

void hadamard_rotate(float* row, int64_t head_dim, int64_t padded) {
  check_head_dim(head_dim);
  HR_CHECK(padded >= head_dim, "a padded row is not shorter than its elements");
  fns().rotate(row, head_dim);
}

}  // namespace headrace
