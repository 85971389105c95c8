#include "headrace/kernel/weight_group.h"

#include <algorithm>
#include <cstring>

#include "headrace/kernel/half.h"

namespace headrace {
namespace {

uint8_t u8(std::byte b) { return static_cast<uint8_t>(b); }

float half_at(const std::byte* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return f16_to_f32(h);
}

// The 32-element types. A header [d f16][m f16, the _1 types][32 fifth bits, q5], then 16
// bytes of two nibbles: byte i holds element i (low) and element i + 16 (high).
void decode_small_block(DType type, const std::byte* p, int block, WeightGroup& out) {
  uint8_t* u = out.u + 32 * block;
  const float d = half_at(p);
  p += 2;
  float offset = 0;
  if (type == DType::kQ4_1 || type == DType::kQ5_1) {
    offset = half_at(p);
    p += 2;
  }
  uint32_t fifth = 0;
  if (type == DType::kQ5_0 || type == DType::kQ5_1) {
    std::memcpy(&fifth, p, 4);
    p += 4;
  }
  if (type == DType::kQ8_0) {
    for (int i = 0; i < 32; ++i) u[i] = u8(p[i]) ^ 0x80;  // q + 128
    offset = d * -128.0f;
  } else {
    for (int i = 0; i < 16; ++i) {
      u[i] = static_cast<uint8_t>((u8(p[i]) & 15) | (fifth >> i & 1) << 4);
      u[i + 16] = static_cast<uint8_t>(u8(p[i]) >> 4 | (fifth >> (i + 16) & 1) << 4);
    }
  }
  if (type == DType::kQ4_0) offset = d * -8.0f;
  if (type == DType::kQ5_0) offset = d * -16.0f;
  out.scale[2 * block] = out.scale[2 * block + 1] = d;
  out.offset[block] = offset;
}

// The 6-bit scale and minimum of sub-block j of q4_k and q5_k, from 12 packed bytes.
void packed_scale(const std::byte* s, int j, int& scale, int& minimum) {
  if (j < 4) {
    scale = u8(s[j]) & 63;
    minimum = u8(s[j + 4]) & 63;
  } else {
    scale = (u8(s[j + 4]) & 15) | u8(s[j - 4]) >> 6 << 4;
    minimum = u8(s[j + 4]) >> 4 | u8(s[j]) >> 6 << 4;
  }
}

// q4_k: [d][dmin][12 scale bytes][128 nibbles]; q5_k: the same with [32 bytes of fifth
// bits] before the nibbles. 64 elements share 32 bytes: low nibbles, then high ones.
void decode_q4_q5_k(const std::byte* p, bool five, WeightGroup& out) {
  const float d = half_at(p);
  const float dmin = half_at(p + 2);
  const std::byte* high = p + 16;
  const std::byte* low = five ? p + 48 : p + 16;
  for (int j = 0; j < 8; ++j) {
    int scale, minimum;
    packed_scale(p + 4, j, scale, minimum);
    out.scale[2 * j] = out.scale[2 * j + 1] = d * static_cast<float>(scale);
    out.offset[j] = -(dmin * static_cast<float>(minimum));
    for (int i = 0; i < 32; ++i) {
      const int byte = u8(low[32 * (j / 2) + i]);
      const int nibble = j % 2 ? byte >> 4 : byte & 15;
      const int fifth = five ? u8(high[i]) >> j & 1 : 0;
      out.u[32 * j + i] = static_cast<uint8_t>(nibble | fifth << 4);
    }
  }
}

// q6_k: [128 low nibbles][64 bytes of high pairs][16 int8 scales][d], in halves of 128
// elements.
void decode_q6_k(const std::byte* p, WeightGroup& out) {
  const float d = half_at(p + 208);
  for (int e = 0; e < kGroup; ++e) {
    const int half = e / 128, quarter = e / 32 % 4, i = e % 32;
    const int low = u8(p[64 * half + 32 * (quarter % 2) + i]) >> (quarter / 2 * 4) & 15;
    const int high = u8(p[128 + 32 * half + i]) >> (2 * quarter) & 3;
    out.u[e] = static_cast<uint8_t>(low | high << 4);
  }
  for (int j = 0; j < 16; ++j) {
    out.scale[j] = d * static_cast<float>(static_cast<int8_t>(p[192 + j]));
    out.offset[j] = out.scale[j] * -32.0f;
  }
}

// The pairs of bits of q2_k and q3_k: byte i of half h holds elements 128 h + 32 s + i, s
// < 4.
int pair_at(const std::byte* q, int e) {
  return u8(q[32 * (e / 128) + e % 32]) >> (2 * (e / 32 % 4)) & 3;
}

// q2_k: [16 bytes: scale nibble, minimum nibble][64 bytes of pairs][d][dmin].
void decode_q2_k(const std::byte* p, WeightGroup& out) {
  const float d = half_at(p + 80);
  const float dmin = half_at(p + 82);
  for (int e = 0; e < kGroup; ++e) out.u[e] = static_cast<uint8_t>(pair_at(p + 16, e));
  for (int j = 0; j < 16; ++j) {
    out.scale[j] = d * static_cast<float>(u8(p[j]) & 15);
    out.offset[j] = -(dmin * static_cast<float>(u8(p[j]) >> 4));
  }
}

// q3_k: [32 bytes of third bits][64 bytes of pairs][12 scale bytes][d]. Scale j: low
// nibble from byte j % 8, two high bits from byte 8 + j % 4; it is stored + 32.
void decode_q3_k(const std::byte* p, WeightGroup& out) {
  const float d = half_at(p + 108);
  for (int e = 0; e < kGroup; ++e) {
    const int third = u8(p[e % 32]) >> (e / 32) & 1;
    out.u[e] = static_cast<uint8_t>(pair_at(p + 32, e) | third << 2);  // q + 4
  }
  const std::byte* s = p + 96;
  for (int j = 0; j < 16; ++j) {
    const int low = u8(s[j % 8]) >> (j / 8 * 4) & 15;
    const int high = u8(s[8 + j % 4]) >> (j / 4 * 2) & 3;
    out.scale[j] = d * static_cast<float>((low | high << 4) - 32);
    out.offset[j] = out.scale[j] * -4.0f;
  }
}

}  // namespace

int offset_elements(DType type) {
  return type == DType::kQ2_K || type == DType::kQ3_K || type == DType::kQ6_K ? 16 : 32;
}

void decode_group(DType type, const std::byte* row, int64_t n, int64_t group,
                  WeightGroup& out) {
  const DTypeInfo& t = info(type);
  HR_CHECK(t.quantised, "a quantised weight type");
  out = WeightGroup{};
  const std::byte* p = row + group * (kGroup / t.block_elements) * t.block_bytes;
  switch (type) {
    case DType::kQ2_K: return decode_q2_k(p, out);
    case DType::kQ3_K: return decode_q3_k(p, out);
    case DType::kQ4_K: return decode_q4_q5_k(p, false, out);
    case DType::kQ5_K: return decode_q4_q5_k(p, true, out);
    case DType::kQ6_K: return decode_q6_k(p, out);
    default: break;
  }
  const int blocks = static_cast<int>(std::min<int64_t>(8, n / 32 - 8 * group));
  for (int b = 0; b < blocks; ++b)
    decode_small_block(type, p + b * t.block_bytes, b, out);
}

}  // namespace headrace
