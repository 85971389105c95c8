// Matmul for AVX2 with FMA and F16C. Same bits as matmul_scalar.cc.
#include "headrace/kernel/matmul.h"

#if defined(__x86_64__)

#include "headrace/kernel/matmul_tile.h"

namespace headrace {
namespace {

// 64 weight bytes: lanes 0-7 (elements 0-15 of both blocks) and 8-15.
struct Bytes64 {
  __m256i low, high;
};
struct Lanes16 {
  __m256 low, high;
};

HR_INLINE __m256i bytes_of(int b) { return _mm256_set1_epi8(static_cast<char>(b)); }

struct V256 {
  using U = Bytes64;
  using F = Lanes16;
  // 16 registers: 2 x 2 pairs of accumulators leave 8 for the rest.
  static constexpr int kTileWeights = 2, kTileRows = 2, kThinWeights = 2;

  static HR_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static HR_INLINE F mul(F a, F b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static HR_INLINE F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low),
            _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static HR_INLINE F load_f(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static HR_INLINE void store_f(float* p, F lanes) {
    _mm256_storeu_ps(p, lanes.low);
    _mm256_storeu_ps(p + 8, lanes.high);
  }
  static HR_INLINE __m256 pair_lanes(const float* p) {
    return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(p)));
  }
  static HR_INLINE F pair(const float* p) {
    const __m256 lanes = pair_lanes(p);
    return {lanes, lanes};
  }
  static HR_INLINE F quad(const float* p) { return {pair_lanes(p), pair_lanes(p + 2)}; }
  static HR_INLINE void store_pair(float* p, F lanes) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), _mm256_castps256_ps128(lanes.low));
  }
  static HR_INLINE void store_quad(float* p, F lanes) {
    store_pair(p, lanes);
    _mm_storel_pi(reinterpret_cast<__m64*>(p + 2), _mm256_castps256_ps128(lanes.high));
  }
  static HR_INLINE U load_u(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  static HR_INLINE void store_u(std::byte* p, U u) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), u.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), u.high);
  }
  // Exact sums of four products a lane. Pairs of products saturate at 16 bits, which only
  // a u of eight bits could reach (kWide): that one is |u - 128| times the signed q, plus
  // 128 q.
  template <bool kWide>
  static HR_INLINE __m256 dot8(__m256i u, const int8_t* p) {
    const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum;
    if constexpr (kWide) {
      const __m256i w = _mm256_xor_si256(u, bytes_of(0x80));
      const __m256i product =
          _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
      const __m256i pairs = _mm256_maddubs_epi16(bytes_of(1), q);
      sum = _mm256_add_epi32(_mm256_madd_epi16(product, ones),
                             _mm256_madd_epi16(pairs, _mm256_set1_epi16(128)));
    } else {
      sum = _mm256_madd_epi16(_mm256_maddubs_epi16(u, q), ones);
    }
    return _mm256_cvtepi32_ps(sum);
  }
  template <bool kWide>
  static HR_INLINE F dot(U u, const int8_t* q) {
    return {dot8<kWide>(u.low, q), dot8<kWide>(u.high, q + 32)};
  }
  static HR_INLINE __m256 fold(F lanes) { return _mm256_add_ps(lanes.low, lanes.high); }
};

HR_INLINE float half_at(const std::byte* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}

HR_INLINE uint32_t word_at(const std::byte* p) {
  uint32_t w;
  std::memcpy(&w, p, 4);
  return w;
}

HR_INLINE __m128i load16(const std::byte* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
HR_INLINE __m256i load32(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// The f16 at p and the f16 at q, alternating, as floats.
HR_INLINE __m256 alternating_halves(const std::byte* p, const std::byte* q) {
  uint16_t first, second;
  std::memcpy(&first, p, 2);
  std::memcpy(&second, q, 2);
  return _mm256_cvtph_ps(
      _mm_set1_epi32(static_cast<int>(uint32_t{second} << 16 | first)));
}

// dwords a0 b0 a1 b1 a2 b2 a3 b3.
HR_INLINE __m256i interleave(__m128i a, __m128i b) {
  return _mm256_set_m128i(_mm_unpackhi_epi32(a, b), _mm_unpacklo_epi32(a, b));
}

// dwords w0 w0 w1 w1 ... of 32 bytes.
HR_INLINE Bytes64 twice(const std::byte* p) {
  const __m256i x = load32(p);
  return {_mm256_permutevar8x32_epi32(x, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0)),
          _mm256_permutevar8x32_epi32(x, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4))};
}

HR_INLINE __m256i alternate(uint32_t even, uint32_t odd) {
  return _mm256_set1_epi64x(static_cast<int64_t>(uint64_t{odd} << 32 | even));
}

// u + value wherever all bits of `select` are set in `bits` (a byte each).
HR_INLINE __m256i add_where(__m256i u, __m256i bits, __m256i select, int value) {
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, select), select);
  return _mm256_add_epi8(u, _mm256_and_si256(set, bytes_of(value)));
}

// The first pairs of the four chunks of a group, as 8 floats.
HR_INLINE __m256 four_pairs(const __m128* pair) {
  return _mm256_set_m128(_mm_movelh_ps(pair[2], pair[3]),
                         _mm_movelh_ps(pair[0], pair[1]));
}

// ---- 32-element blocks

template <bool kMin, bool kFive>
struct SmallBlocks {
  static constexpr int kPer = 32;
  static constexpr bool kWide = false;
  static constexpr int kHeader = 2 + (kMin ? 2 : 0) + (kFive ? 4 : 0);
  static constexpr int kBlock = kHeader + 16;
  static constexpr int kGroupBytes = 8 * kBlock;
  static constexpr float kZero = kFive ? -16.0f : -8.0f;

  // Adds the fifth bits: lane 2j + b, byte i: bit 4j + i of block b's word.
  static HR_INLINE Bytes64 add_fifths(Bytes64 u, const std::byte* p) {
    const __m256i words =
        alternate(word_at(p + kHeader - 4), word_at(p + kBlock + kHeader - 4));
    // Byte 0 (of each block's word) for j = 0, 1; byte 1 for j = 2, 3; 2 and 3 for the
    // high half.
    const __m256i low = _mm256_set_epi64x(0x0505050501010101, 0x0505050501010101,
                                          0x0404040400000000, 0x0404040400000000);
    const __m256i high = _mm256_add_epi8(low, bytes_of(2));
    const __m256i select =
        _mm256_set_epi64x(static_cast<int64_t>(0x8040201080402010), 0x0804020108040201,
                          static_cast<int64_t>(0x8040201080402010), 0x0804020108040201);
    return {add_where(u.low, _mm256_shuffle_epi8(words, low), select, 16),
            add_where(u.high, _mm256_shuffle_epi8(words, high), select, 16)};
  }

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count count, Chunk&& chunk,
                              Offsets&& offsets) {
    __m128 pair[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      pair[c] = _mm_setzero_ps();
      if (c >= count) continue;
      const std::byte* b = p + 2 * kBlock * c;
      const __m256i nibbles =
          interleave(load16(b + kHeader), load16(b + kBlock + kHeader));
      Bytes64 u{_mm256_and_si256(nibbles, bytes_of(15)),
                _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), bytes_of(15))};
      if constexpr (kFive) u = add_fifths(u, b);
      const __m256 scale = alternating_halves(b, b + kBlock);
      pair[c] = _mm256_castps256_ps128(kMin ? alternating_halves(b + 2, b + kBlock + 2)
                                            : scale);
      chunk(c, u, Lanes16{scale, scale});
    }
    const __m256 all = four_pairs(pair);
    offsets(0, kMin ? all : _mm256_mul_ps(all, _mm256_set1_ps(kZero)));
  }
};

struct Q8Blocks {
  static constexpr int kPer = 32;
  static constexpr bool kWide = true;
  static constexpr int kBlock = 34;
  static constexpr int kGroupBytes = 8 * kBlock;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count count, Chunk&& chunk,
                              Offsets&& offsets) {
    __m128 pair[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      pair[c] = _mm_setzero_ps();
      if (c >= count) continue;
      const std::byte* b = p + 2 * kBlock * c;
      const __m256i low = interleave(load16(b + 2), load16(b + kBlock + 2));
      const __m256i high = interleave(load16(b + 18), load16(b + kBlock + 18));
      const __m256 scale = alternating_halves(b, b + kBlock);
      pair[c] = _mm256_castps256_ps128(scale);
      chunk(c,
            Bytes64{_mm256_xor_si256(low, bytes_of(0x80)),
                    _mm256_xor_si256(high, bytes_of(0x80))},
            Lanes16{scale, scale});
    }
    offsets(0, _mm256_mul_ps(four_pairs(pair), _mm256_set1_ps(-128.0f)));
  }
};

// ---- 256-element blocks

HR_INLINE __m256 floats_of(uint64_t packed) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(packed))));
}

// Scales and minima of q4_k and q5_k: 12 bytes of 6-bit fields (weight_group.cc) to 8 + 8
// bytes.
HR_INLINE void packed_scales(const std::byte* p, uint64_t& scale, uint64_t& minimum) {
  const uint32_t a = word_at(p), b = word_at(p + 4), c = word_at(p + 8);
  const uint32_t high_scale = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
  const uint32_t high_minimum = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
  scale = uint64_t{high_scale} << 32 | (a & 0x3f3f3f3f);
  minimum = uint64_t{high_minimum} << 32 | (b & 0x3f3f3f3f);
}

HR_INLINE Bytes64 shift_and_mask(Bytes64 x, uint32_t even, uint32_t odd, int mask) {
  const __m256i by = alternate(even, odd), keep = bytes_of(mask);
  return {_mm256_and_si256(_mm256_srlv_epi32(x.low, by), keep),
          _mm256_and_si256(_mm256_srlv_epi32(x.high, by), keep)};
}

// Adds `value` where bit 2c (first block) or 2c + 1 (second block) of `bits` is set.
HR_INLINE Bytes64 add_bit_of_chunk(Bytes64 u, Bytes64 bits, int c, int value) {
  const uint32_t bit = 0x01010101u << (2 * c);
  const __m256i select = alternate(bit, bit << 1);
  return {add_where(u.low, bits.low, select, value),
          add_where(u.high, bits.high, select, value)};
}

template <bool kFive>
struct Q45K {
  static constexpr int kPer = 32;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = kFive ? 176 : 144;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    uint64_t scale, minimum;
    packed_scales(p + 4, scale, minimum);
    const __m256 scales = _mm256_mul_ps(floats_of(scale), _mm256_set1_ps(half_at(p)));
    const __m256 minima =
        _mm256_mul_ps(floats_of(minimum), _mm256_set1_ps(half_at(p + 2)));
    offsets(0, _mm256_xor_ps(minima, _mm256_set1_ps(-0.0f)));
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      Bytes64 u = shift_and_mask(twice(p + (kFive ? 48 : 16) + 32 * c), 0, 4, 15);
      if constexpr (kFive) u = add_bit_of_chunk(u, twice(p + 16), c, 16);
      const uint32_t first = static_cast<uint32_t>(2 * c);
      const __m256 lanes = _mm256_permutevar8x32_ps(scales, alternate(first, first + 1));
      chunk(c, u, Lanes16{lanes, lanes});
    }
  }
};

// The 16 scales (or offsets) of a group.
struct Sixteen {
  __m256 low, high;

  // Scale lanes of chunk c: s[4c], s[4c + 2] in turn; s[4c + 1], s[4c + 3] in the high
  // half.
  HR_INLINE Lanes16 of_chunk(int c) const {
    const __m256 s = c < 2 ? low : high;
    const uint32_t first = static_cast<uint32_t>(4 * (c % 2));
    return {_mm256_permutevar8x32_ps(s, alternate(first, first + 2)),
            _mm256_permutevar8x32_ps(s, alternate(first + 1, first + 3))};
  }
  HR_INLINE Sixteen times(float f) const {
    const __m256 factor = _mm256_set1_ps(f);
    return {_mm256_mul_ps(low, factor), _mm256_mul_ps(high, factor)};
  }
};

struct Q6K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 210;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m128i sc = load16(p + 192);
    const Sixteen integers{
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(sc)),
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(sc, 8)))};
    const Sixteen scales = integers.times(half_at(p + 208));
    const Sixteen zeros = scales.times(-32.0f);
    offsets(0, zeros.low);
    offsets(1, zeros.high);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const std::byte* q = p + 64 * h;
      const Bytes64 low{interleave(load16(q), load16(q + 32)),
                        interleave(load16(q + 16), load16(q + 48))};
      const Bytes64 high = twice(p + 128 + 32 * h);
      const __m256i up = alternate(4, 2), down = alternate(0, 2);
      chunk(2 * h,
            Bytes64{join(low.low, _mm256_sllv_epi32(high.low, up)),
                    join(low.high, _mm256_sllv_epi32(high.high, up))},
            scales.of_chunk(2 * h));
      chunk(2 * h + 1,
            Bytes64{
                join(_mm256_srli_epi16(low.low, 4), _mm256_srlv_epi32(high.low, down)),
                join(_mm256_srli_epi16(low.high, 4), _mm256_srlv_epi32(high.high, down))},
            scales.of_chunk(2 * h + 1));
    }
  }
  // Bits 0-3 of `low`, bits 4-5 of `high`.
  static HR_INLINE __m256i join(__m256i low, __m256i high) {
    return _mm256_or_si256(_mm256_and_si256(low, bytes_of(15)),
                           _mm256_and_si256(high, bytes_of(48)));
  }
};

// The pairs of bits of chunk c of q2_k and q3_k.
HR_INLINE Bytes64 pairs_of_bits(const std::byte* q, int c) {
  const uint32_t shift = static_cast<uint32_t>(4 * (c % 2));
  return shift_and_mask(twice(q + 32 * (c / 2)), shift, shift + 2, 3);
}

struct Q2K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 84;

  static HR_INLINE Sixteen sixteen(__m128i bytes) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
  }

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m128i raw = load16(p), nibble = _mm_set1_epi8(15);
    const Sixteen scales = sixteen(_mm_and_si128(raw, nibble)).times(half_at(p + 80));
    const Sixteen minima =
        sixteen(_mm_and_si128(_mm_srli_epi16(raw, 4), nibble)).times(half_at(p + 82));
    offsets(0, _mm256_xor_ps(minima.low, _mm256_set1_ps(-0.0f)));
    offsets(1, _mm256_xor_ps(minima.high, _mm256_set1_ps(-0.0f)));
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) chunk(c, pairs_of_bits(p + 16, c), scales.of_chunk(c));
  }
};

struct Q3K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 110;

  // The 16 six-bit scales, less 32.
  static HR_INLINE Sixteen scale_integers(const std::byte* p) {
    const uint32_t a = word_at(p), b = word_at(p + 4), t = word_at(p + 8);
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    const uint32_t w0 = (a & low) | (t << 4 & high), w1 = (b & low) | (t << 2 & high);
    const uint32_t w2 = (a >> 4 & low) | (t & high),
                   w3 = (b >> 4 & low) | (t >> 2 & high);
    const __m256 zero = _mm256_set1_ps(-32.0f);
    return {_mm256_add_ps(floats_of(uint64_t{w1} << 32 | w0), zero),
            _mm256_add_ps(floats_of(uint64_t{w3} << 32 | w2), zero)};
  }

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const Sixteen scales = scale_integers(p + 96).times(half_at(p + 108));
    const Sixteen zeros = scales.times(-4.0f);
    offsets(0, zeros.low);
    offsets(1, zeros.high);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      chunk(c, add_bit_of_chunk(pairs_of_bits(p + 32, c), twice(p), c, 4),
            scales.of_chunk(c));
    }
  }
};

// ---- dense

struct DenseF32 {
  static constexpr int kElementBytes = 4;
  static HR_INLINE Lanes16 load(const std::byte* p) {
    return V256::load_f(reinterpret_cast<const float*>(p));
  }
};
struct DenseF16 {
  static constexpr int kElementBytes = 2;
  static HR_INLINE Lanes16 load(const std::byte* p) {
    return {_mm256_cvtph_ps(load16(p)), _mm256_cvtph_ps(load16(p + 16))};
  }
};
struct DenseBF16 {
  static constexpr int kElementBytes = 2;
  static HR_INLINE __m256 widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static HR_INLINE Lanes16 load(const std::byte* p) {
    return {widen(load16(p)), widen(load16(p + 16))};
  }
};

}  // namespace

void matmul_span_avx2(const MatmulArgs& args, int64_t begin, int64_t end,
                      std::byte* scratch) {
  using V = V256;
  switch (args.type) {
    case DType::kF32: return dense_span<V, DenseF32>(args, begin, end);
    case DType::kF16: return dense_span<V, DenseF16>(args, begin, end);
    case DType::kBF16: return dense_span<V, DenseBF16>(args, begin, end);
    case DType::kQ4_0:
      return quantised_span<V, SmallBlocks<false, false>>(args, begin, end, scratch);
    case DType::kQ4_1:
      return quantised_span<V, SmallBlocks<true, false>>(args, begin, end, scratch);
    case DType::kQ5_0:
      return quantised_span<V, SmallBlocks<false, true>>(args, begin, end, scratch);
    case DType::kQ5_1:
      return quantised_span<V, SmallBlocks<true, true>>(args, begin, end, scratch);
    case DType::kQ8_0: return quantised_span<V, Q8Blocks>(args, begin, end, scratch);
    case DType::kQ2_K: return quantised_span<V, Q2K>(args, begin, end, scratch);
    case DType::kQ3_K: return quantised_span<V, Q3K>(args, begin, end, scratch);
    case DType::kQ4_K: return quantised_span<V, Q45K<false>>(args, begin, end, scratch);
    case DType::kQ5_K: return quantised_span<V, Q45K<true>>(args, begin, end, scratch);
    case DType::kQ6_K: return quantised_span<V, Q6K>(args, begin, end, scratch);
    default: return matmul_span_scalar(args, begin, end, scratch);
  }
}

}  // namespace headrace

#else

namespace headrace {

void matmul_span_avx2(const MatmulArgs& args, int64_t begin, int64_t end,
                      std::byte* scratch) {
  matmul_span_scalar(args, begin, end, scratch);  // never in force: supported() says no
}

}  // namespace headrace

#endif
