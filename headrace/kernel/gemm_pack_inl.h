// Packing of gemm_inl.h, in AVX2 for every file that has it: bytes are moved and never computed
// with, but for f16, which becomes f32. A unit is 4 bytes, see gemm_layout.h. Included in
// *_avx2.cc and *_avx512.cc files only.
#pragma once

#include <immintrin.h>

#include "headrace/kernel/gemm_layout.h"

namespace headrace {
namespace {

using gemm_layout::panel_floats, gemm_layout::RowCursor;

constexpr int64_t kRowsAhead = 12;

inline __m256i load_units(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
// 8 units: f32, pairs of bf16, or f16 that become f32.
template <DType type>
inline __m256i load_eight(const std::byte* p) {
  if constexpr (type != DType::kF16) return load_units(p);
  return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline void store_units(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Copies and fills the last unit with 0. (GCC makes REP MOVS of a memcpy here, which took a tenth
// of the whole product.)
inline void pack_bytes(const std::byte* from, Bytes bytes, float* out) {
  auto* to = reinterpret_cast<std::byte*>(out);
  Bytes at = 0;
  for (; at + 32 <= bytes; at += 32) store_units(to + at, load_units(from + at));
  if (at == bytes) return;
  std::byte last[32] = {};
  std::memcpy(last, from + at, static_cast<size_t>(bytes - at));
  store_units(to + at, load_units(last));
}

// out[c * out_stride + r] = unit c of row r, r and c < 8; `at`: bytes from the start of each row.
template <DType type>
inline void transpose_8x8(const std::byte* const* rows, Bytes at, float* out, int64_t out_stride) {
  __m256i a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = load_eight<type>(rows[i] + at);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store_units(out + i * out_stride, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
    store_units(out + (i + 4) * out_stride, _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
  }
}

// One unit of a row of `depth` elements; the missing half of a last one is 0.
inline float unit_at(DType type, const std::byte* row, int64_t unit, int64_t depth) {
  float value = 0;
  if (type == DType::kF16) {
    uint16_t bits;
    std::memcpy(&bits, row + unit * 2, 2);
    return _cvtsh_ss(bits);
  }
  const bool half = type == DType::kBF16 && 2 * unit + 1 == depth;
  std::memcpy(&value, row + unit * 4, half ? 2 : 4);
  return value;
}

// Up to 8 rows of `depth` elements: out[u * out_stride + r] = unit u of row r; rows beyond
// `count` are 0.
inline void pack_transposed(DType type, const std::byte* const* rows, int64_t count, int64_t depth,
                            float* out, int64_t out_stride) {
  const int64_t whole = type == DType::kBF16 ? depth / 2 : depth;
  const int64_t all = gemm_layout::units(type, depth);
  int64_t u = 0;
  if (count == 8) {
    for (; u + 8 <= whole; u += 8) {
      float* to = out + u * out_stride;
      if (type == DType::kF16) {
        transpose_8x8<DType::kF16>(rows, u * 2, to, out_stride);
      } else {
        transpose_8x8<DType::kF32>(rows, u * 4, to, out_stride);
      }
    }
  }
  for (; u < all; ++u) {
    for (int64_t r = 0; r < 8; ++r) {
      out[u * out_stride + r] = r < count ? unit_at(type, rows[r], u, depth) : 0.0f;
    }
  }
}

// 8 units of a stored row; bf16 is joined with the next row's, or with 0 where there is none.
template <DType type>
inline __m256i units_of(const std::byte* row, const std::byte* next, int64_t i) {
  if constexpr (type == DType::kF32) {
    return load_units(row + i * 4);
  } else if constexpr (type == DType::kF16) {
    return load_eight<type>(row + i * 2);
  } else {
    const auto widen = [i](const std::byte* p) {
      return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * 2)));
    };
    const __m256i low = widen(row);
    return next == nullptr ? low : _mm256_or_si256(low, _mm256_slli_epi32(widen(next), 16));
  }
}

// The same of the last `count` < 8 columns, 0 beyond them.
template <DType type>
inline __m256i last_units(const std::byte* row, const std::byte* next, int64_t i, int64_t count) {
  constexpr int64_t kElement = type == DType::kF32 ? 4 : 2;
  std::byte rows[2][32] = {};
  std::memcpy(rows[0], row + i * kElement, static_cast<size_t>(count * kElement));
  if (next != nullptr) {
    std::memcpy(rows[1], next + i * kElement, static_cast<size_t>(count * kElement));
  }
  return units_of<type>(rows[0], rows[1], 0);
}

// out[i], i < count, = element i of a stored row as a unit; count is rounded up to 8, the rest
// being what follows in the row, which has `readable` elements, or 0.
template <DType type>
inline void pack_row(const std::byte* row, const std::byte* next, int64_t count, int64_t readable,
                     float* out) {
  int64_t i = 0;
  for (; i + 8 <= readable && i < count; i += 8) store_units(out + i, units_of<type>(row, next, i));
  if (i < count) store_units(out + i, last_units<type>(row, next, i, count - i));
}

// Columns [begin, begin + count) of a stored matrix, of `readable` from `begin` on, cut into panels
// of `width` columns; a unit of a panel takes `stride` floats.
struct Columns {
  int64_t begin, count, readable, width, stride;
};

// Stored rows [first, first + depth) of a matrix with k as rows: out[panel][unit][stride].
template <DType type>
void pack_rows(RowCursor rows, int64_t first, int64_t depth, const Columns& c, float* out) {
  constexpr int64_t kElement = type == DType::kF32 ? 4 : 2, kStep = type == DType::kBF16 ? 2 : 1;
  const int64_t all = gemm_layout::units(type, depth), row_bytes = rows.row_bytes();
  for (int64_t u = 0; u < all; ++u) {
    const int64_t p = first + u * kStep;
    const std::byte* row = rows.at(p) + c.begin * kElement;
    const bool pair = kStep == 2 && p + 1 < first + depth;
    const std::byte* next = pair ? rows.at(p + 1) + c.begin * kElement : nullptr;
    // The processor's own prefetcher does not follow short runs that are a row apart.
    for (int64_t at = 0; at < c.count * kElement; at += 64) {
      __builtin_prefetch(row + kRowsAhead * kStep * row_bytes + at);
      if (kStep == 2) __builtin_prefetch(row + (kRowsAhead * kStep + 1) * row_bytes + at);
    }
    float* to = out + u * c.stride;
    for (int64_t j = 0; j < c.count; j += c.width, to += panel_floats(all, c.stride)) {
      const std::byte* next_part = pair ? next + j * kElement : nullptr;
      pack_row<type>(row + j * kElement, next_part, std::min(c.width, c.count - j), c.readable - j,
                     to);
    }
  }
}

inline void pack_rows(DType type, const RowCursor& rows, int64_t first, int64_t depth,
                      const Columns& c, float* out) {
  if (type == DType::kF32) {
    pack_rows<DType::kF32>(rows, first, depth, c, out);
  } else if (type == DType::kF16) {
    pack_rows<DType::kF16>(rows, first, depth, c, out);
  } else {
    pack_rows<DType::kBF16>(rows, first, depth, c, out);
  }
}

// Columns [begin, begin + count) of B = rows of w, elements [first, first + depth) of each.
inline void pack_weight(const GemmArgs& g, int64_t first, int64_t depth, int64_t begin,
                        int64_t count, int64_t width, float* out) {
  const int64_t all = gemm_layout::units(g.type, depth);
  RowCursor rows(g);
  for (int64_t c = 0; c < count; c += 8) {
    const std::byte* row[8] = {};
    const int64_t here = std::min<int64_t>(8, count - c);
    for (int64_t r = 0; r < here; ++r) {
      row[r] = rows.at(begin + c + r) + first * RowCursor::element(g.type);
    }
    float* panel = out + c / width * panel_floats(all, width) + c % width;
    pack_transposed(g.type, row, here, depth, panel, width);
  }
}

}  // namespace
}  // namespace headrace
