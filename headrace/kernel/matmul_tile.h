// The fast matmuls' loops, written once over a vector type V and a weight decoder.
// Included only by matmul_<isa>.cc; everything here is a template over types of that
// file's unnamed namespace, so no code compiled for one instruction set can be linked
// into another.
//
// Vocabulary
//   chunk     64 elements; group: 256; lanes: see docs/decisions/0001-arithmetic.md
//   U, F, O   V's vectors: 64 weight bytes, 16 main lanes, 8 offset lanes
//   decoder   reads one group of a row and hands out its chunks: u, scale lanes, offsets
//   thin      few activation rows: weights are decoded in registers, used, forgotten
//   wide      more: some weight rows are unpacked into scratch, then used for all rows
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headrace/kernel/matmul.h"
#include "headrace/kernel/matmul_layout.h"

#define HR_INLINE inline __attribute__((always_inline))
#define HR_LAMBDA __attribute__((always_inline))

namespace headrace {

// Planes of an act_q8 row (quant.h), without its out-of-line function.
template <typename V>
struct ActPlanes {
  const int8_t* q;
  const float* d;
  const float* s;  // of the decoder's offset size

  HR_INLINE ActPlanes() {}
  HR_INLINE ActPlanes(const std::byte* row, int64_t k, int per) {
    const int64_t padded = (k + 63) / 64 * 64, groups = (k + 255) / 256;
    q = reinterpret_cast<const int8_t*>(row);
    d = reinterpret_cast<const float*>(row + padded);
    s = d + padded / 32 + (per == 16 ? groups * 8 : 0);
  }
};

// Adds lanes l + 4, l + 2, l + 1 of four vectors of 8: the four results, in order.
template <typename V>
HR_INLINE __m128 reduce4(__m256 a, __m256 b, __m256 c, __m256 d) {
  const auto fold = [](__m256 x) HR_LAMBDA {
    return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  };
  const __m128 a4 = fold(a), b4 = fold(b), c4 = fold(c), d4 = fold(d);
  const __m128 ab = _mm_add_ps(_mm_movelh_ps(a4, b4), _mm_movehl_ps(b4, a4));
  const __m128 cd = _mm_add_ps(_mm_movelh_ps(c4, d4), _mm_movehl_ps(d4, c4));
  return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd));
}

// y[row, j .. j + count) = (dots + bias) + residual.
template <typename V>
HR_INLINE void store_outputs(const MatmulArgs& args, int64_t row, int64_t j, int count,
                             __m128 dots) {
  const int64_t at = row * args.y_stride + j;
  if (count == 4) {
    if (args.bias) dots = _mm_add_ps(dots, _mm_loadu_ps(args.bias + j));
    if (args.residual) dots = _mm_add_ps(dots, _mm_loadu_ps(args.residual + at));
    _mm_storeu_ps(args.y + at, dots);
    return;
  }
  alignas(16) float values[4];
  _mm_store_ps(values, dots);
  for (int i = 0; i < count; ++i) {
    float v = values[i];
    if (args.bias) v = v + args.bias[j + i];
    if (args.residual) v = v + args.residual[at + i];
    args.y[at + i] = v;
  }
}

// The row's last, partial group. Decoders read whole chunks, so one of an odd number of
// blocks is copied, with a block of zero bytes (scale 0) after it.
template <typename V, typename D>
HR_INLINE const std::byte* last_group(const std::byte* p, int64_t blocks,
                                      std::byte* buffer) {
  if (blocks % 2 == 0) return p;
  std::memset(buffer, 0, D::kGroupBytes);
  std::memcpy(buffer, p, static_cast<size_t>(blocks * (D::kGroupBytes / 8)));
  return buffer;
}

// Bytes of a weight row: whole blocks of 32, or of 256 where the group is one block.
template <typename D>
HR_INLINE int64_t weight_row_bytes(int64_t k) {
  return k / kGroupElements * D::kGroupBytes +
         k % kGroupElements / 32 * (D::kGroupBytes / 8);
}

// The number of chunks of a whole group, known when compiling.
struct Four {
  HR_INLINE constexpr operator int() const { return 4; }
};

// ---- thin

// One group of one weight row against M activation rows.
template <typename V, typename D, int M, typename Count>
HR_INLINE void thin_group(const std::byte* p, int64_t g, Count chunks,
                          const ActPlanes<V>* a, typename V::F* main, __m256* offset) {
  constexpr int per_group = kGroupElements / D::kPer;
  D::group(
      p, chunks,
      [&](int c, typename V::U u, typename V::F scale) HR_LAMBDA {
        const int64_t chunk = 4 * g + c;
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const auto sum = V::template dot<D::kWide>(u, a[m].q + 64 * chunk);
          const auto p_lanes = V::mul(scale, V::pair(a[m].d + 2 * chunk));
          main[m] = V::fma(sum, p_lanes, main[m]);
        }
      },
      [&](int h, __m256 offsets) HR_LAMBDA {
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const __m256 s = _mm256_loadu_ps(a[m].s + per_group * g + 8 * h);
          offset[m] = _mm256_fmadd_ps(offsets, s, offset[m]);
        }
      });
}

// R weight rows from row j, M activation rows from row `row`: R streams of memory at
// once. Fetches what is `ahead` bytes further on.
template <typename V, typename D, int M, int R>
void thin_rows(const MatmulArgs& args, int64_t j, int64_t row, int64_t ahead) {
  const int64_t bytes = weight_row_bytes<D>(args.k);
  const std::byte* w = args.weight + j * bytes;
  ActPlanes<V> a[M];
  typename V::F main[R][M];
  __m256 offset[R][M];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      a[m] = ActPlanes<V>(args.a + (row + m) * args.a_stride, args.k, D::kPer);
      main[r][m] = V::zero();
      offset[r][m] = _mm256_setzero_ps();
    }
  }
  const int64_t whole = args.k / kGroupElements;
  for (int64_t g = 0; g < whole; ++g) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const std::byte* p = w + r * bytes + g * D::kGroupBytes;
#pragma GCC unroll 5
      for (int line = 0; line < (D::kGroupBytes + 63) / 64; ++line) {
        _mm_prefetch(reinterpret_cast<const char*>(p + ahead + 64 * line), _MM_HINT_T0);
      }
      thin_group<V, D, M>(p, g, Four(), a, main[r], offset[r]);
    }
  }
  if (const int64_t left = args.k - whole * kGroupElements; left > 0) {
    alignas(64) std::byte buffer[D::kGroupBytes];
    const int chunks = static_cast<int>((left + 63) / 64);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const std::byte* p = w + r * bytes + whole * D::kGroupBytes;
      for (int64_t line = 0; line < bytes - whole * D::kGroupBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(p + ahead + line), _MM_HINT_T0);
      }
      thin_group<V, D, M>(last_group<V, D>(p, left / 32, buffer), whole, chunks, a,
                          main[r], offset[r]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    const auto lanes = [&](int r) HR_LAMBDA {
      return _mm256_add_ps(V::fold(main[r][m]), offset[r][m]);
    };
    // With fewer than four rows the rest of the four sums repeat some and are not stored.
    store_outputs<V>(args, row + m, j, R,
                     reduce4<V>(lanes(0), lanes(1 % R), lanes(2 % R), lanes(3 % R)));
  }
}

template <typename V, typename D, int R>
HR_INLINE void thin_block(const MatmulArgs& args, int64_t j, int64_t ahead) {
  int64_t row = 0;
  for (; row + 4 <= args.m; row += 4) thin_rows<V, D, 4, R>(args, j, row, ahead);
  switch (args.m - row) {
    case 1: return thin_rows<V, D, 1, R>(args, j, row, ahead);
    case 2: return thin_rows<V, D, 2, R>(args, j, row, ahead);
    case 3: return thin_rows<V, D, 3, R>(args, j, row, ahead);
    default: return;
  }
}

template <typename V, typename D>
void thin(const MatmulArgs& args, int64_t begin, int64_t end) {
  constexpr int R = V::kThinWeights;
  const int64_t bytes = weight_row_bytes<D>(args.k);
  int64_t j = begin;
  // What comes `ahead` bytes later is fetched while this is used; near the end, nothing
  // more.
  const int64_t ahead = R * bytes > kFetchAhead ? R * bytes : kFetchAhead;
  const int64_t last = (end - R) * bytes - ahead;
  for (; j + R <= end; j += R)
    thin_block<V, D, R>(args, j, j * bytes <= last ? ahead : 0);
  for (; j < end; ++j) thin_block<V, D, 1>(args, j, 0);
}

// ---- wide

// One weight row unpacked: planes of u, scales and offsets (matmul_layout.h).
template <typename V, typename D>
struct Unpacked {
  std::byte* u;
  float* scale;
  float* offset;
  HR_INLINE Unpacked() {}
  HR_INLINE Unpacked(std::byte* row, int64_t k) {
    const int64_t chunks = (k + 63) / 64;
    u = row;
    scale = reinterpret_cast<float*>(row + chunks * 64);
    offset = scale + chunks * (D::kPer == 16 ? 4 : 2);
  }
};

template <typename V, typename D>
void unpack_row(const std::byte* w, int64_t k, std::byte* scratch) {
  const Unpacked<V, D> out(scratch, k);
  const int64_t chunks = (k + 63) / 64;
  alignas(64) std::byte buffer[D::kGroupBytes];
  for (int64_t g = 0; g * kGroupElements < k; ++g) {
    const std::byte* p = w + g * D::kGroupBytes;
#pragma GCC unroll 5
    for (int line = 0; line < (D::kGroupBytes + 63) / 64; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(p + kFetchAhead + 64 * line),
                   _MM_HINT_T1);
    }
    const int64_t left = k - g * kGroupElements;
    if (left < kGroupElements) p = last_group<V, D>(p, left / 32, buffer);
    D::group(
        p, chunks - 4 * g,
        [&](int c, typename V::U u, typename V::F scale) HR_LAMBDA {
          const int64_t chunk = 4 * g + c;
          V::store_u(out.u + 64 * chunk, u);
          if constexpr (D::kPer == 16) {
            V::store_quad(out.scale + 4 * chunk, scale);
          } else {
            V::store_pair(out.scale + 2 * chunk, scale);
          }
        },
        [&](int h, __m256 offsets) HR_LAMBDA {
          _mm256_storeu_ps(out.offset + kGroupElements / D::kPer * g + 8 * h, offsets);
        });
  }
}

// W unpacked weight rows against A activation rows from row `row`; outputs j .. j + W.
template <typename V, typename D, int W, int A>
void wide_tile(const MatmulArgs& args, const std::byte* scratch, int64_t row_scratch,
               int64_t j, int64_t row) {
  Unpacked<V, D> w[W];
  ActPlanes<V> a[A];
  typename V::F main[W][A];
#pragma GCC unroll 4
  for (int i = 0; i < W; ++i) {
    w[i] = Unpacked<V, D>(const_cast<std::byte*>(scratch) + i * row_scratch, args.k);
#pragma GCC unroll 4
    for (int r = 0; r < A; ++r) main[i][r] = V::zero();
  }
#pragma GCC unroll 4
  for (int r = 0; r < A; ++r) {
    a[r] = ActPlanes<V>(args.a + (row + r) * args.a_stride, args.k, D::kPer);
  }
  // Products of scales come first, those of 8 chunks with one multiplication: a chunk takes a
  // broadcast load instead of one of its own, on the ports of the dots (8 rows of q4_k gain 12 %,
  // 256 gain 20 %). The last load may reach past its plane, but not past the line that the plane
  // ends in. Scales of half blocks would need a shuffle for each chunk, which gains nothing.
  constexpr int kChunks = 8;
  constexpr bool kAhead = D::kPer == 32;
  const int64_t chunks = (args.k + 63) / 64;
  for (int64_t first = 0; first < chunks; first += kChunks) {
    alignas(64) float products[W][A][2 * kChunks];
    if constexpr (kAhead) {
#pragma GCC unroll 4
      for (int r = 0; r < A; ++r) {
        const typename V::F d = V::load_f(a[r].d + 2 * first);
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) {
          V::store_f(products[i][r], V::mul(V::load_f(w[i].scale + 2 * first), d));
        }
      }
    }
    const int64_t end = chunks - first < kChunks ? chunks : first + kChunks;
    for (int64_t c = first; c < end; ++c) {
      typename V::U u[W];
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) u[i] = V::load_u(w[i].u + 64 * c);
#pragma GCC unroll 4
      for (int r = 0; r < A; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) {
          const auto sum = V::template dot<D::kWide>(u[i], a[r].q + 64 * c);
          const typename V::F p =
              kAhead ? V::pair(products[i][r] + 2 * (c - first))
                     : V::mul(V::quad(w[i].scale + 4 * c), V::pair(a[r].d + 2 * c));
          main[i][r] = V::fma(sum, p, main[i][r]);
        }
      }
    }
  }
  const int64_t offsets = (args.k + 255) / 256 * (kGroupElements / D::kPer);
#pragma GCC unroll 4
  for (int r = 0; r < A; ++r) {
    __m256 offset[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) offset[i] = _mm256_setzero_ps();
    for (int64_t o = 0; o < offsets; o += 8) {
      const __m256 s = _mm256_loadu_ps(a[r].s + o);
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) {
        offset[i] = _mm256_fmadd_ps(_mm256_loadu_ps(w[i].offset + o), s, offset[i]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < W; ++i) offset[i] = _mm256_add_ps(V::fold(main[i][r]), offset[i]);
    store_outputs<V>(args, row + r, j, W,
                     reduce4<V>(offset[0], offset[1], offset[2], offset[3]));
  }
}

template <typename V, typename D, int W, int A>
HR_INLINE void wide_rows(const MatmulArgs& args, const std::byte* scratch,
                         int64_t row_scratch, int64_t j, int count, int64_t row) {
  int i = 0;
  for (; i + W <= count; i += W) {
    wide_tile<V, D, W, A>(args, scratch + i * row_scratch, row_scratch, j + i, row);
  }
  for (; i < count; ++i) {
    wide_tile<V, D, 1, A>(args, scratch + i * row_scratch, row_scratch, j + i, row);
  }
}

template <typename V, typename D>
void wide(const MatmulArgs& args, int64_t begin, int64_t end, std::byte* scratch) {
  constexpr int W = V::kTileWeights, A = V::kTileRows;
  const int64_t bytes = weight_row_bytes<D>(args.k);
  const int64_t row_scratch = unpacked_row_bytes(args.type, args.k);
  for (int64_t j = begin; j < end; j += kUnpackedRows) {
    const int count = static_cast<int>(end - j < kUnpackedRows ? end - j : kUnpackedRows);
    for (int i = 0; i < count; ++i) {
      unpack_row<V, D>(args.weight + (j + i) * bytes, args.k, scratch + i * row_scratch);
    }
    int64_t row = 0;
    for (; row + A <= args.m; row += A) {
      wide_rows<V, D, W, A>(args, scratch, row_scratch, j, count, row);
    }
    if constexpr (A > 2) {
      for (; row + 2 <= args.m; row += 2) {
        wide_rows<V, D, W, 2>(args, scratch, row_scratch, j, count, row);
      }
    }
    for (; row < args.m; ++row) {
      wide_rows<V, D, W, 1>(args, scratch, row_scratch, j, count, row);
    }
  }
}

template <typename V, typename D>
void quantised_span(const MatmulArgs& args, int64_t begin, int64_t end,
                    std::byte* scratch) {
  if (args.m < kWideRows) return thin<V, D>(args, begin, end);
  wide<V, D>(args, begin, end, scratch);
}

// ---- dense

// W weight rows of a dense type against A activation rows; weights are widened in
// registers. The first rows' pass also fetches the weights `ahead` bytes further on.
template <typename V, typename D, int W, int A>
void dense_tile(const MatmulArgs& args, int64_t j, int64_t row, int64_t ahead) {
  const int64_t bytes = args.k * D::kElementBytes;
  const std::byte* w = args.weight + j * bytes;
  typename V::F main[W][A];
#pragma GCC unroll 4
  for (int i = 0; i < W; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < A; ++r) main[i][r] = V::zero();
  }
  const auto step = [&](int64_t e, auto&& load_w, auto&& load_a) HR_LAMBDA {
    typename V::F wv[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; ++i) wv[i] = load_w(w + i * bytes + e * D::kElementBytes);
#pragma GCC unroll 4
    for (int r = 0; r < A; ++r) {
      const auto* a = reinterpret_cast<const float*>(args.a + (row + r) * args.a_stride);
      const typename V::F av = load_a(a + e);
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) main[i][r] = V::fma(wv[i], av, main[i][r]);
    }
  };
  const int64_t whole = args.k / 16 * 16;
  for (int64_t e = 0; e < whole; e += 16) {
    if (row == 0) {
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) {
        const std::byte* next = w + i * bytes + e * D::kElementBytes + ahead;
        _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      }
    }
    step(
        e, [](const std::byte* p) HR_LAMBDA { return D::load(p); },
        [](const float* p) HR_LAMBDA { return V::load_f(p); });
  }
  if (const int left = static_cast<int>(args.k - whole); left > 0) {
    alignas(64) float buffer[16];
    alignas(64) std::byte raw[64];
    step(
        whole,
        [&](const std::byte* p) HR_LAMBDA {
          std::memset(raw, 0, 64);
          std::memcpy(raw, p, static_cast<size_t>(left * D::kElementBytes));
          return D::load(raw);
        },
        [&](const float* p) HR_LAMBDA {
          std::memset(buffer, 0, 64);
          std::memcpy(buffer, p, static_cast<size_t>(left) * 4);
          return V::load_f(buffer);
        });
  }
  const __m256 none =
      _mm256_setzero_ps();  // the reference adds its offset lanes here too
#pragma GCC unroll 4
  for (int r = 0; r < A; ++r) {
    __m256 t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      t[i] = i < W ? _mm256_add_ps(V::fold(main[i % W][r]), none) : none;
    store_outputs<V>(args, row + r, j, W, reduce4<V>(t[0], t[1], t[2], t[3]));
  }
}

template <typename V, typename D, int A>
HR_INLINE void dense_rows(const MatmulArgs& args, int64_t begin, int64_t end,
                          int64_t row) {
  constexpr int W = V::kTileWeights;
  const int64_t bytes = args.k * D::kElementBytes;
  const int64_t ahead = W * bytes > kFetchAhead ? W * bytes : kFetchAhead;
  int64_t j = begin;
  for (; j + W <= end; j += W) dense_tile<V, D, W, A>(args, j, row, ahead);
  for (; j < end; ++j) dense_tile<V, D, 1, A>(args, j, row, ahead);
}

template <typename V, typename D>
void dense_span(const MatmulArgs& args, int64_t begin, int64_t end) {
  constexpr int A = V::kTileRows;
  for (int64_t j = begin; j < end; j += kUnpackedRows) {
    const int64_t stop = end - j < kUnpackedRows ? end : j + kUnpackedRows;
    int64_t row = 0;
    for (; row + A <= args.m; row += A) dense_rows<V, D, A>(args, j, stop, row);
    if constexpr (A > 2) {
      for (; row + 2 <= args.m; row += 2) dense_rows<V, D, 2>(args, j, stop, row);
    }
    for (; row < args.m; ++row) dense_rows<V, D, 1>(args, j, stop, row);
  }
}

}  // namespace headrace
