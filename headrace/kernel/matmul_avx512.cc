// Matmul for AVX-512 with VNNI. Same bits as matmul_scalar.cc.
#include "headrace/kernel/matmul.h"

#if defined(__x86_64__)

// GCC 12's own intrinsics start from deliberately undefined vectors and then warn about
// it.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "headrace/kernel/matmul_tile.h"

namespace headrace {
namespace {

struct V512 {
  using U = __m512i;
  using F = __m512;
  static constexpr int kTileWeights = 4, kTileRows = 4, kThinWeights = 4;

  static HR_INLINE F zero() { return _mm512_setzero_ps(); }
  static HR_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static HR_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static HR_INLINE F load_f(const float* p) { return _mm512_loadu_ps(p); }
  static HR_INLINE void store_f(float* p, F lanes) { _mm512_storeu_ps(p, lanes); }
  // p[0], p[1], p[0], p[1], ...
  static HR_INLINE F pair(const float* p) {
    return _mm512_castpd_ps(_mm512_set1_pd(*reinterpret_cast<const Double*>(p)));
  }
  // p[0], p[1] four times, then p[2], p[3] four times.
  static HR_INLINE F quad(const float* p) {
    const __m512i index = _mm512_set_epi64(1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_castpd_ps(_mm512_permutexvar_pd(
        index, _mm512_castps_pd(_mm512_castps128_ps512(_mm_loadu_ps(p)))));
  }
  static HR_INLINE void store_pair(float* p, F lanes) {
    _mm_storel_pi(reinterpret_cast<__m64*>(p), _mm512_castps512_ps128(lanes));
  }
  static HR_INLINE void store_quad(float* p, F lanes) {
    store_pair(p, lanes);
    _mm_storel_pi(reinterpret_cast<__m64*>(p + 2), _mm512_extractf32x4_ps(lanes, 2));
  }
  static HR_INLINE U load_u(const std::byte* p) { return _mm512_loadu_si512(p); }
  static HR_INLINE void store_u(std::byte* p, U u) { _mm512_storeu_si512(p, u); }
  // Exact sums of four products a lane, as floats.
  template <bool kWide>
  static HR_INLINE F dot(U u, const int8_t* q) {
    return _mm512_cvtepi32_ps(
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), u, _mm512_loadu_si512(q)));
  }
  static HR_INLINE __m256 fold(F lanes) {
    return _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  }

 private:
  using Double = double __attribute__((may_alias, aligned(4)));
};

HR_INLINE __m512i bytes_of(int b) { return _mm512_set1_epi8(static_cast<char>(b)); }

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

// dwords w0 w0 w1 w1 ... of 32 bytes: what both blocks of a chunk share.
HR_INLINE __m512i twice(const std::byte* p) {
  const __m512i index = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_permutexvar_epi32(index, _mm512_castsi256_si512(x));
}

// Alternating dwords: `even` for the chunk's first block, `odd` for its second.
HR_INLINE __m512i alternate(uint32_t even, uint32_t odd) {
  return _mm512_set1_epi64(static_cast<int64_t>(uint64_t{odd} << 32 | even));
}

// ---- 32-element blocks: q4_0, q4_1, q5_0, q5_1

// kMin: the header is [d][m], otherwise [d] and the offset is kZero * d. kFive: fifth
// bits.
template <bool kMin, bool kFive>
struct SmallBlocks {
  static constexpr int kPer = 32;
  static constexpr bool kWide = false;
  static constexpr int kHeader = 2 + (kMin ? 2 : 0) + (kFive ? 4 : 0);
  static constexpr int kBlock = kHeader + 16;
  static constexpr int kGroupBytes = 8 * kBlock;
  static constexpr float kZero = kFive ? -16.0f : -8.0f;

  // Word index of byte `at` of block b of a chunk.
  static constexpr short word(int b, int at) {
    return static_cast<short>((b * kBlock + at) / 2);
  }

  // Words that put nibble dword j of block b into lanes 2j + b, in both halves.
  static HR_INLINE __m512i nibble_index() {
    alignas(64) static constexpr auto table = [] {
      Words t{};
      for (int i = 0; i < 32; ++i) {
        const int lane = i / 2 % 8, b = lane % 2, j = lane / 2;
        t.w[i] = word(b, kHeader + 4 * j + 2 * (i % 2));
      }
      return t;
    }();
    return _mm512_load_si512(table.w);
  }
  // Low half: d0 d1 d0 d1 ...; high half: m0 m1 m0 m1 ... (or d again).
  static HR_INLINE __m512i header_index() {
    alignas(64) static constexpr auto table = [] {
      Words t{};
      for (int i = 0; i < 32; ++i) t.w[i] = word(i % 2, kMin && i >= 16 ? 2 : 0);
      return t;
    }();
    return _mm512_load_si512(table.w);
  }
  // Lane 2j + b: the 16 bits of block b's fifth bits that hold those of elements 4j .. 4j
  // + 3.
  static HR_INLINE __m512i fifth_index() {
    alignas(64) static constexpr auto table = [] {
      Words t{};
      for (int i = 0; i < 32; ++i) {
        const int lane = i / 2, b = lane % 2, j = lane / 2;
        t.w[i] = word(b, kHeader - 4 + 2 * (j / 4));
      }
      return t;
    }();
    return _mm512_load_si512(table.w);
  }

  static HR_INLINE __m512i unpack(__m512i raw) {
    const __m512i nibbles = _mm512_permutexvar_epi16(nibble_index(), raw);
    const __m512i shift = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    __m512i u = _mm512_and_si512(_mm512_srlv_epi64(nibbles, shift), bytes_of(15));
    if constexpr (kFive) {
      // Element 4j + i is bit 4 (j mod 2) + i of byte (j / 2) mod 2 of its 16 bits.
      const __m512i word_bits = _mm512_permutexvar_epi16(fifth_index(), raw);
      const __m512i bits = fifth_bytes(word_bits);
      const __m512i select =
          _mm512_set_epi64(static_cast<int64_t>(0x8040201080402010), 0x0804020108040201,
                           static_cast<int64_t>(0x8040201080402010), 0x0804020108040201,
                           static_cast<int64_t>(0x8040201080402010), 0x0804020108040201,
                           static_cast<int64_t>(0x8040201080402010), 0x0804020108040201);
      u = _mm512_mask_add_epi8(u, _mm512_test_epi8_mask(bits, select), u, bytes_of(16));
    }
    return u;
  }
  // Lanes 2j + b with j = 0, 1, 4, 5: byte 0 of the word; j = 2, 3, 6, 7: byte 1.
  static HR_INLINE __m512i fifth_bytes(__m512i words) {
    // Each 128-bit lane holds lanes of two j: (0,1), (2,3), (4,5), (6,7).
    const __m512i choose = _mm512_set_epi64(
        0x0d0d0d0d09090909, 0x0505050501010101, 0x0c0c0c0c08080808, 0x0404040400000000,
        0x0d0d0d0d09090909, 0x0505050501010101, 0x0c0c0c0c08080808, 0x0404040400000000);
    return _mm512_shuffle_epi8(words, choose);
  }

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __mmask32 words = static_cast<__mmask32>((uint64_t{1} << kBlock) - 1);
    __m128 pair[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      pair[c] = _mm_setzero_ps();
      if (c >= count) continue;
      const __m512i raw = _mm512_maskz_loadu_epi16(words, p + 2 * kBlock * c);
      const __m512i header = _mm512_permutexvar_epi16(header_index(), raw);
      const __m512 scale = _mm512_cvtph_ps(_mm512_castsi512_si256(header));
      pair[c] = kMin ? _mm_cvtph_ps(_mm512_extracti32x4_epi32(header, 2))
                     : _mm512_castps512_ps128(scale);
      chunk(c, unpack(raw), scale);
    }
    const __m256 all =
        _mm256_set_m128(_mm_movelh_ps(pair[2], pair[3]), _mm_movelh_ps(pair[0], pair[1]));
    offsets(0, kMin ? all : _mm256_mul_ps(all, _mm256_set1_ps(kZero)));
  }

 private:
  struct Words {
    short w[32];
  };
};

struct Q8Blocks {
  static constexpr int kPer = 32;
  static constexpr bool kWide = true;
  static constexpr int kBlock = 34;
  static constexpr int kGroupBytes = 8 * kBlock;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m512i index =
        _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m128 pair[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      pair[c] = _mm_setzero_ps();
      if (c >= count) continue;
      const std::byte* b = p + 2 * kBlock * c;
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 2));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 36));
      const __m512i q = _mm512_permutex2var_epi32(_mm512_castsi256_si512(first), index,
                                                  _mm512_castsi256_si512(second));
      uint16_t d0, d1;
      std::memcpy(&d0, b, 2);
      std::memcpy(&d1, b + kBlock, 2);
      const __m256i d = _mm256_set1_epi32(static_cast<int>(uint32_t{d1} << 16 | d0));
      const __m512 scale = _mm512_cvtph_ps(d);
      pair[c] = _mm512_castps512_ps128(scale);
      chunk(c, _mm512_xor_si512(q, bytes_of(0x80)), scale);
    }
    const __m256 all =
        _mm256_set_m128(_mm_movelh_ps(pair[2], pair[3]), _mm_movelh_ps(pair[0], pair[1]));
    offsets(0, _mm256_mul_ps(all, _mm256_set1_ps(-128.0f)));
  }
};

// ---- 256-element blocks

// 8 bytes of `packed` as floats.
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
    const __m512d pairs = _mm512_castps_pd(_mm512_castps256_ps512(scales));
    const __m512i high = kFive ? twice(p + 16) : _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i both = twice(p + (kFive ? 48 : 16) + 32 * c);
      __m512i u =
          _mm512_and_si512(_mm512_srlv_epi32(both, alternate(0, 4)), bytes_of(15));
      if constexpr (kFive) {
        const uint32_t bit = 0x01010101u << (2 * c);
        const __mmask64 set = _mm512_test_epi8_mask(high, alternate(bit, bit << 1));
        u = _mm512_mask_add_epi8(u, set, u, bytes_of(16));
      }
      const __m512d lanes = _mm512_permutexvar_pd(_mm512_set1_epi64(c), pairs);
      chunk(c, u, _mm512_castpd_ps(lanes));
    }
  }
};

// Scale lanes of chunk c from the 16 scales of a group: s[4c], s[4c + 2] four times, then
// s[4c + 1], s[4c + 3] four times.
HR_INLINE __m512 half_block_scales(int c, __m512 scales) {
  const __m512i first = _mm512_set_epi32(3, 1, 3, 1, 3, 1, 3, 1, 2, 0, 2, 0, 2, 0, 2, 0);
  return _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4 * c)), scales);
}

template <typename Offsets>
HR_INLINE void both_halves(__m512 values, Offsets&& offsets) {
  offsets(0, _mm512_castps512_ps256(values));
  offsets(1, _mm512_extractf32x8_ps(values, 1));
}

struct Q6K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 210;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m128i sc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192));
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)),
                                        _mm512_set1_ps(half_at(p + 208)));
    both_halves(_mm512_mul_ps(scales, _mm512_set1_ps(-32.0f)), offsets);
    const __m512i index =
        _mm512_set_epi32(15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i low = _mm512_permutexvar_epi32(index, _mm512_loadu_si512(p + 64 * h));
      const __m512i high = twice(p + 128 + 32 * h);
      // Rotations bring the pair of bits of each block to bits 4 and 5; the rest is
      // masked off.
      const __m512i even = _mm512_rolv_epi32(high, alternate(4, 2));
      const __m512i odd = _mm512_rolv_epi32(high, alternate(0, 30));
      chunk(2 * h, join(low, even), half_block_scales(2 * h, scales));
      chunk(2 * h + 1, join(_mm512_srli_epi32(low, 4), odd),
            half_block_scales(2 * h + 1, scales));
    }
  }
  // Bits 0-3 of `low`, bits 4-5 of `high`.
  static HR_INLINE __m512i join(__m512i low, __m512i high) {
    const __m512i either = _mm512_ternarylogic_epi32(bytes_of(15), low, high, 0xca);
    return _mm512_and_si512(either, bytes_of(63));
  }
};

// The four pairs of bits of a byte of q2_k and q3_k, chunk c.
HR_INLINE __m512i pairs_of_bits(const std::byte* q, int c) {
  const uint32_t shift = static_cast<uint32_t>(4 * (c % 2));
  const __m512i both = twice(q + 32 * (c / 2));
  return _mm512_and_si512(_mm512_srlv_epi32(both, alternate(shift, shift + 2)),
                          bytes_of(3));
}

struct Q2K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 84;

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m512i wide = _mm512_cvtepu8_epi32(raw);
    const __m512i low = _mm512_and_si512(wide, _mm512_set1_epi32(15));
    const __m512 scales =
        _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(half_at(p + 80)));
    const __m512 minima = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(wide, 4)),
                                        _mm512_set1_ps(half_at(p + 82)));
    both_halves(_mm512_xor_ps(minima, _mm512_set1_ps(-0.0f)), offsets);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      chunk(c, pairs_of_bits(p + 16, c), half_block_scales(c, scales));
    }
  }
};

struct Q3K {
  static constexpr int kPer = 16;
  static constexpr bool kWide = false;
  static constexpr int kGroupBytes = 110;

  // The 16 six-bit scales, less 32.
  static HR_INLINE __m512i scale_integers(const std::byte* p) {
    const uint32_t a = word_at(p), b = word_at(p + 4), t = word_at(p + 8);
    const uint32_t low = 0x0f0f0f0f, high = 0x30303030;
    const __m128i packed =
        _mm_set_epi32(static_cast<int>((b >> 4 & low) | (t >> 2 & high)),
                      static_cast<int>((a >> 4 & low) | (t & high)),
                      static_cast<int>((b & low) | (t << 2 & high)),
                      static_cast<int>((a & low) | (t << 4 & high)));
    return _mm512_sub_epi32(_mm512_cvtepu8_epi32(packed), _mm512_set1_epi32(32));
  }

  template <typename Count, typename Chunk, typename Offsets>
  static HR_INLINE void group(const std::byte* p, Count, Chunk&& chunk,
                              Offsets&& offsets) {
    const __m512 scales = _mm512_mul_ps(_mm512_cvtepi32_ps(scale_integers(p + 96)),
                                        _mm512_set1_ps(half_at(p + 108)));
    both_halves(_mm512_mul_ps(scales, _mm512_set1_ps(-4.0f)), offsets);
    const __m512i third = twice(p);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const uint32_t bit = 0x01010101u << (2 * c);
      const __mmask64 set = _mm512_test_epi8_mask(third, alternate(bit, bit << 1));
      const __m512i pair = pairs_of_bits(p + 32, c);
      chunk(c, _mm512_mask_add_epi8(pair, set, pair, bytes_of(4)),
            half_block_scales(c, scales));
    }
  }
};

// ---- dense

struct DenseF32 {
  static constexpr int kElementBytes = 4;
  static HR_INLINE __m512 load(const std::byte* p) { return _mm512_loadu_ps(p); }
};
struct DenseF16 {
  static constexpr int kElementBytes = 2;
  static HR_INLINE __m512 load(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
};
struct DenseBF16 {
  static constexpr int kElementBytes = 2;
  static HR_INLINE __m512 load(const std::byte* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
};

}  // namespace

void matmul_span_avx512(const MatmulArgs& args, int64_t begin, int64_t end,
                        std::byte* scratch) {
  using V = V512;
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

void matmul_span_avx512(const MatmulArgs& args, int64_t begin, int64_t end,
                        std::byte* scratch) {
  matmul_span_scalar(args, begin, end, scratch);  // never in force: supported() says no
}

}  // namespace headrace

#endif
