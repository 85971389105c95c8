// The KV codec over Lanes. Included by kv_codec_avx2.cc and kv_codec_avx512.cc, each after its
// lanes_*.h and its load_i8, load_u4, to_bytes and butterfly; the steps are those of kv_codec.cc in
// every lane.
#pragma once

#include "headrace/kernel/kv_codec_isa.h"
#include "headrace/kernel/lanes_math.h"

namespace headrace {
namespace {

void rotate(float* row, int64_t head_dim) {
  const int64_t size = hadamard_size(head_dim);
  const Lanes factor = Lanes::splat(hadamard_factor(size));
  each_group(head_dim, [&](int64_t i, auto part) {
    Lanes x = Lanes::load(row + i, part);
    if (size >= 2) x = butterfly<1>(x);
    if (size >= 4) x = butterfly<2>(x);
    if (size >= 8) x = butterfly<4>(x);
    if (size >= 16) x = butterfly<8>(x);
    if (size <= 16) x = x * factor;
    x.store(row + i, part);
  });
  for (int64_t half = 16; half < size; half *= 2) {
    for (int64_t i = 0; i < head_dim; i += 16) {
      if ((i & half) != 0) continue;
      const Lanes a = Lanes::load(row + i), b = Lanes::load(row + i + half);
      Lanes sum = a + b, difference = a - b;
      if (2 * half == size) sum = sum * factor, difference = difference * factor;
      sum.store(row + i);
      difference.store(row + i + half);
    }
  }
}

inline float from_half(const std::byte* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, 2);
  return _cvtsh_ss(bits);
}
inline float put_half(float x, std::byte* p) {
  const uint16_t bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __builtin_memcpy(p, &bits, 2);
  return _cvtsh_ss(bits);
}
inline void put_bits(uint16_t bits, std::byte* p) { __builtin_memcpy(p, &bits, 2); }

// The elements of a group; absent ones are copies of its first.
struct Group {
  Lanes first, second;

  bool finite() const { return ((first - first) + (second - second)).tree_sum() == 0; }
};

inline Lanes limit(Lanes x, float low, float high) {
  return min(max(x, Lanes::splat(low)), Lanes::splat(high));
}

// Encodes one group whose scale goes to `scale`; its bytes.
inline void encode_q8(const Group& x, std::byte* scale, __m128i* bytes) {
  bytes[0] = bytes[1] = _mm_setzero_si128();
  if (!x.finite()) return put_bits(kHalfNan, scale);
  const float s = put_half(max(absolute(x.first), absolute(x.second)).max_lane() / 127.0f, scale);
  if (s == 0) return;
  const Lanes inverse = Lanes::splat(1.0f / s);
  bytes[0] = to_bytes(limit(x.first * inverse, -127, 127));
  bytes[1] = to_bytes(limit(x.second * inverse, -127, 127));
}

inline void encode_q4(const Group& x, std::byte* scale, std::byte* least, __m128i* bytes) {
  bytes[0] = bytes[1] = _mm_setzero_si128();
  put_bits(0, least);
  if (!x.finite()) return put_bits(kHalfNan, scale);
  const float high = max(x.first, x.second).max_lane();
  const float low = -max(negative(x.first), negative(x.second)).max_lane();
  const auto at_most = [](float a, float b) { return a < b ? a : b; };
  const float l = put_half(at_most(low < -kHalfMost ? -kHalfMost : low, kHalfMost) + 0.0f, least);
  const float range = high - l;
  const float s = put_half(at_most((range > 0 ? range : 0) / 15.0f, kHalfMost), scale);
  if (s == 0) return;
  const Lanes inverse = Lanes::splat(1.0f / s), from = Lanes::splat(l);
  bytes[0] = to_bytes(limit((x.first - from) * inverse, 0, 15));
  bytes[1] = to_bytes(limit((x.second - from) * inverse, 0, 15));
}

inline void store_u4(__m128i bytes, std::byte* p) {
  const __m128i high = _mm_slli_epi16(_mm_srli_si128(bytes, 8), 4);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_or_si128(bytes, high));
}

void encode(KvFormat format, const uint16_t* rows16, int64_t head_dim, std::byte* out) {
  const KvPlanes at(format, head_dim);
  const bool q8 = format == KvFormat::kQ8;
  const int64_t whole = at.groups * kKvGroup;
  for (int64_t r = 0; r < kKvTile; ++r) {
    float x[kMaxHeadDim];
    each_group(head_dim, [&](int64_t i, auto part) {
      Lanes::load_f16(rows16 + r * at.padded + i, part).store(x + i);
    });
    if (!q8) rotate(x, head_dim);
    // Absent elements repeat the group's first, so that they change neither range nor scale.
    for (int64_t i = head_dim; i < whole; ++i) x[i] = x[whole - kKvGroup];
    for (int64_t g = 0; g < at.groups; ++g) {
      const Group group{Lanes::load(x + g * kKvGroup), Lanes::load(x + g * kKvGroup + 16)};
      std::byte* const scale = out + at.scales + 2 * (r * at.groups + g);
      __m128i bytes[2];
      if (q8) {
        encode_q8(group, scale, bytes);
      } else {
        encode_q4(group, scale, scale + (at.least - at.scales), bytes);
      }
      for (int64_t u = 0; u < 2 && g * kKvGroup + u * 16 < at.padded; ++u) {
        const int64_t unit = g * kKvGroup + u * 16, left = head_dim - unit;
        if (left < 16) {  // the padding is 0
          const __m128i index = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
          bytes[u] = _mm_and_si128(
              bytes[u], _mm_cmpgt_epi8(_mm_set1_epi8(static_cast<char>(left)), index));
        }
        std::byte* const to = out + r * at.row_bytes + (q8 ? unit : unit / 2);
        if (q8) {
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes[u]);
        } else {
          store_u4(bytes[u], to);
        }
      }
    }
  }
}

// Decodes rows [lo, hi); unit(q, scale, least) gives 16 values.
template <typename Unit>
inline void decode_rows(const KvPlanes& at, const std::byte* part, int64_t head_dim, int64_t lo,
                        int64_t hi, float* out, Unit unit) {
  for (int64_t r = lo; r < hi; ++r) {
    const std::byte* const scales = part + at.scales + 2 * r * at.groups;
    float* const to = out + r * at.padded;
    for (int64_t i = 0; i < at.padded; i += 16) {
      unit(part + r * at.row_bytes, i, scales + i / kKvGroup * 2).store(to + i);
    }
    for (int64_t i = head_dim; i < at.padded; ++i) to[i] = 0;
  }
}

void decode(KvFormat format, const std::byte* part, int64_t head_dim, int64_t lo, int64_t hi,
            float* out) {
  const KvPlanes at(format, head_dim);
  if (format == KvFormat::kQ8) {
    return decode_rows(at, part, head_dim, lo, hi, out,
                       [](const std::byte* q, int64_t i, const std::byte* scale) {
                         return load_i8(q + i) * Lanes::splat(from_half(scale));
                       });
  }
  const int64_t to_least = at.least - at.scales;
  decode_rows(at, part, head_dim, lo, hi, out,
              [to_least](const std::byte* q, int64_t i, const std::byte* scale) {
                return fma(load_u4(q + i / 2), Lanes::splat(from_half(scale)),
                           Lanes::splat(from_half(scale + to_least)));
              });
}

void decode_16bit(bool f16, const uint16_t* rows16, int64_t head_dim, int64_t lo, int64_t hi,
                  float* out) {
  const int64_t padded = round_up(head_dim, 16);
  for (int64_t i = lo * padded; i < hi * padded; i += 16) {
    const uint16_t* const from = rows16 + i;
    (f16 ? Lanes::load_f16(from, Full{}) : Lanes::load_bf16(from, Full{})).store(out + i);
  }
  for (int64_t r = lo; r < hi && head_dim < padded; ++r) {
    for (int64_t i = head_dim; i < padded; ++i) out[r * padded + i] = 0;
  }
}

constexpr KvCodecFns kFns{encode, decode, decode_16bit, rotate};

}  // namespace
}  // namespace headrace
