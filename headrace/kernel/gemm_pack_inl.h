// Packing of gemm_inl.h, in AVX2 for every file that has it: bytes are moved and never computed
// with. A unit is 4 bytes, see gemm_layout.h. Included in *_avx2.cc and *_avx512.cc files only.
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
inline void store_units(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// out[c * out_stride + r] = unit c of row r, r and c < 8.
inline void transpose_8x8(const std::byte* const* rows, Bytes at, float* out, int64_t out_stride) {
  __m256i a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) a[i] = load_units(rows[i] + at);
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
    for (; u + 8 <= whole; u += 8) transpose_8x8(rows, u * 4, out + u * out_stride, out_stride);
  }
  for (; u < all; ++u) {
    for (int64_t r = 0; r < 8; ++r) {
      out[u * out_stride + r] = r < count ? unit_at(type, rows[r], u, depth) : 0.0f;
    }
  }
}

// out[i], i < count (rounded up to 8 or 16, the rest being 0 or what follows in a row that has
// `readable` elements) = element i of `row`, as a unit: for bf16
// with element i of `next` (null: 0) as the second half.
inline void pack_row(DType type, const std::byte* row, const std::byte* next, int64_t count,
                     int64_t readable, float* out) {
  int64_t i = 0;
  if (type == DType::kF32) {
    if (count <= 16 && count > 8 && readable >= 16) count = 16;
    for (; i + 8 <= count; i += 8) store_units(out + i, load_units(row + i * 4));
    if (i == count) return;
    for (int64_t j = i; j < i + 8; ++j) out[j] = 0;
    std::memcpy(out + i, row + i * 4, static_cast<size_t>(count - i) * 4);
    return;
  }
  const auto widen = [](const std::byte* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  };
  for (; i + 8 <= count; i += 8) {
    __m256i v = widen(row + i * 2);
    if (next != nullptr) v = _mm256_or_si256(v, _mm256_slli_epi32(widen(next + i * 2), 16));
    store_units(out + i, v);
  }
  if (i == count) return;
  uint16_t pairs[16] = {};
  for (int64_t j = i; j < count; ++j) {
    std::memcpy(pairs + 2 * (j - i), row + j * 2, 2);
    if (next != nullptr) std::memcpy(pairs + 2 * (j - i) + 1, next + j * 2, 2);
  }
  std::memcpy(out + i, pairs, sizeof(pairs));
}

// Stored rows [first, first + depth) of a matrix with k as rows, columns [begin, begin + count) of
// `readable` from there on: panels of `width` columns, unit by unit: out[panel][unit][stride].
inline void pack_rows(DType type, RowCursor rows, int64_t first, int64_t depth, int64_t begin,
                      int64_t count, int64_t readable, int64_t width, int64_t stride, float* out) {
  const int64_t element = RowCursor::element(type), step = type == DType::kBF16 ? 2 : 1;
  const int64_t all = gemm_layout::units(type, depth);
  const int64_t row_bytes = rows.row_bytes();
  for (int64_t u = 0; u < all; ++u) {
    const int64_t p = first + u * step;
    const std::byte* row = rows.at(p) + begin * element;
    const bool pair = step == 2 && p + 1 < first + depth;
    const std::byte* next = pair ? rows.at(p + 1) + begin * element : nullptr;
    // The processor's own prefetcher does not follow short runs that are a row apart.
    for (int64_t at = 0; at < count * element; at += 64) {
      __builtin_prefetch(row + kRowsAhead * step * row_bytes + at);
    }
    for (int64_t c = 0; c < count; c += width) {
      pack_row(type, row + c * element, next == nullptr ? nullptr : next + c * element,
               std::min(width, count - c), readable - c, out + c / width * panel_floats(all, stride) + u * stride);
    }
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
