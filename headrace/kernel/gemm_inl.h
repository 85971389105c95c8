// GEMM of gemm.h, written once over Lanes. Included by gemm_avx2.cc and gemm_avx512.cc, each after
// its lanes_*.h and after saying how large a tile its registers hold (kMr rows, kNv Lanes) and how
// pairs of bf16 are taken apart.
//
// Loops, outermost first: tiles of rows (only where sums are kept apart), tiles of kTileCols
// columns, blocks of k (B packed), panels of up to kMr rows (A packed), panels of columns.
#pragma once

#include <array>
#include <utility>

#include "headrace/kernel/gemm_pack_inl.h"

namespace headrace {
namespace {

constexpr int64_t kNr = 16 * kNv;
using gemm_layout::kRowStride;
constexpr int64_t kColStride = gemm_layout::kMaxPanelRows;
static_assert(kMr <= gemm_layout::kMaxPanelRows && kNr <= gemm_layout::kMaxPanelCols);

constexpr int64_t kAhead = 16 * kNr;  // how far B is asked for in advance

// What a micro kernel reads and where its sums go.
struct MicroArgs {
  int64_t units;
  const float* a;         // a panel of A
  const float* b;         // [units][kNr]
  const std::byte* next;  // 4 bytes a unit that will be read next: of the next panel of A
  float* out;             // where the sums of the block go
  int64_t out_stride;     // floats from row to row
  const float* more;      // what they are added to; null: nothing
  int64_t more_stride;
};
using Micro = void (*)(const MicroArgs& args);

template <typename Multiply, int Rows, int Vectors, bool ByRow>
void micro(const MicroArgs& args) {
  constexpr int64_t kRow = ByRow ? kRowStride : 1, kUnit = ByRow ? 1 : kColStride;
  const float *a = args.a, *b = args.b;
  const std::byte* next = args.next;
  Lanes c[Rows][Vectors];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) c[r][v] = Lanes::zero();
  }
  for (int64_t u = args.units; u > 0; --u, a += kUnit, b += kNr, next += 4) {
    __builtin_prefetch(next, 0, 2);
    Lanes column[Vectors];
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      column[v] = Lanes::load(b + 16 * v);
      __builtin_prefetch(b + 16 * v + kAhead);  // from L2
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const Lanes row = Lanes::splat(a[r * kRow]);
#pragma GCC unroll 2
      for (int v = 0; v < Vectors; ++v) c[r][v] = Multiply::add(row, column[v], c[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v) {
      if (args.more != nullptr) {
        c[r][v] = Lanes::load(args.more + r * args.more_stride + 16 * v) + c[r][v];
      }
      c[r][v].store(args.out + r * args.out_stride + 16 * v);
    }
  }
}

struct MultiplyF32 {
  static Lanes add(Lanes a, Lanes b, Lanes c) { return fma(a, b, c); }
};

// Pairs of bf16, the two steps one after the other; to be called with FTZ and DAZ set.
struct MultiplyPairs {
  static Lanes add(Lanes a, Lanes b, Lanes c) {
    return fma(low_half(a), low_half(b), fma(high_half(a), high_half(b), c));
  }
};

// [rows - 1][vectors - 1]
using MicroTable = std::array<std::array<Micro, kNv>, kMr>;

template <typename Multiply, bool ByRow>
constexpr MicroTable micro_table() {
  return []<size_t... R>(std::index_sequence<R...>) {
    constexpr auto vectors = []<int Rows, size_t... V>(std::integral_constant<int, Rows>,
                                                       std::index_sequence<V...>) {
      return std::array<Micro, kNv>{micro<Multiply, Rows, static_cast<int>(V) + 1, ByRow>...};
    };
    return MicroTable{vectors(std::integral_constant<int, static_cast<int>(R) + 1>{},
                              std::make_index_sequence<kNv>{})...};
  }(std::make_index_sequence<kMr>{});
}

struct Micros {
  MicroTable by_row, by_unit;  // how a panel of A is stored
};
template <typename Multiply>
constexpr Micros micros_of() {
  return {micro_table<Multiply, true>(), micro_table<Multiply, false>()};
}

// Part of one row of C, from column j on.
struct Finish {
  const GemmArgs& g;
  bool first, last;   // block of k
  bool has_bias;
  int64_t i;          // row of C

  // sums: where this row's unfinished sums are; bias: of column j.
  template <typename Size>
  void row(const float* tile, float* sums, const float* bias, int64_t j, Size size) const {
    Lanes v = Lanes::load(tile);
    if (!first) v = Lanes::load(sums, size) + v;
    if (!last) {
      v.store(sums, size);
      return;
    }
    v = v * Lanes::splat(g.scale);
    if (has_bias) v = v + Lanes::load(bias);
    const int64_t at = i * g.c_stride + j;
    if (g.out_type == DType::kBF16) {
      if (g.residual != nullptr) v = v + Lanes::load_bf16(g.residual + at * 2, size);
      v.store_bf16(g.c + at * 2, size);
      return;
    }
    if (g.out_type == DType::kF16) {
      if (g.residual != nullptr) v = v + Lanes::load_f16(g.residual + at * 2, size);
      v.store_f16(g.c + at * 2, size);
      return;
    }
    float* c = reinterpret_cast<float*>(g.c) + at;
    const float* residual = reinterpret_cast<const float*>(g.residual);
    if (residual != nullptr) v = v + Lanes::load(residual + at, size);
    if (g.add) v = Lanes::load(c, size) + v;
    v.store(c, size);
  }
};

class PartRun {
 public:
  // flush: whether the micro kernels need FTZ and DAZ.
  PartRun(const GemmArgs& g, const GemmPart& part, std::byte* scratch, const Micros& micros,
          bool flush)
      : g_(g), part_(part), flush_(flush), apart_(gemm_layout::keeps_sums_apart(g)),
        has_bias_(g.layout == GemmLayout::kLinear && g.b[0].bias != nullptr),
        as_is_(g.scale == 1 && !has_bias_ && g.out_type == DType::kF32),
        micros_(g.layout == GemmLayout::kDw ? micros.by_unit : micros.by_row) {
    const gemm_layout::Scratch s = gemm_layout::scratch_of(g);
    b_ = reinterpret_cast<float*>(scratch);
    a_ = reinterpret_cast<float*>(scratch + s.b);
    bias_ = reinterpret_cast<float*>(scratch + s.b + s.a);
    sums_ = reinterpret_cast<float*>(scratch + s.b + s.a + s.bias);
    sums_stride_ = s.cols;
  }

  void run() {
    const int64_t rows = part_.row_end - part_.row_begin, cols = part_.col_end - part_.col_begin;
    const int64_t tile_rows = apart_ ? gemm_layout::kTileRows : rows;
    const int64_t tiles = (cols + gemm_layout::kTileCols - 1) / gemm_layout::kTileCols;
    const int64_t width = round_up((cols + tiles - 1) / tiles, kNr);
    for (int64_t i = part_.row_begin; i < part_.row_end; i += tile_rows) {
      for (int64_t j = part_.col_begin; j < part_.col_end; j += width) {
        tile({i, std::min(i + tile_rows, part_.row_end), j, std::min(j + width, part_.col_end)});
      }
    }
  }

 private:
  void tile(const GemmPart& t) {
    const int64_t cols = t.col_end - t.col_begin;
    if (has_bias_) {
      RowCursor biases(g_);
      for (int64_t c = 0; c < cols; ++c) bias_[c] = biases.bias(t.col_begin + c);
    }
    for (int64_t p = 0; p < g_.k; p += kGemmBlock) {
      const int64_t depth = std::min(kGemmBlock, g_.k - p);
      if (g_.layout == GemmLayout::kLinear) {
        pack_weight(g_, p, depth, t.col_begin, cols, kNr, b_);
      } else {
        pack_rows(g_.type, RowCursor(g_), p, depth, {t.col_begin, cols, cols, kNr, kNr}, b_);
      }
      block(t, p, depth);
    }
  }

  // All panels of A times the packed block of B.
  void block(const GemmPart& t, int64_t p, int64_t depth) {
    const int64_t rows = t.row_end - t.row_begin, panels = (rows + kMr - 1) / kMr;
    const int64_t height = (rows + panels - 1) / panels;
    const int64_t units = gemm_layout::units(g_.type, depth);
    const bool by_row = g_.layout != GemmLayout::kDw;
    const int64_t group = by_row ? 1 : gemm_layout::kGroupPanels;
    for (int64_t i = t.row_begin; i < t.row_end; i += group * height) {
      const int64_t end = std::min(i + group * height, t.row_end);
      if (by_row) {
        pack_a_rows(i, end - i, p, depth);
      } else {
        pack_a_columns(i, end - i, height, p, depth);
      }
      for (int64_t r = i; r < end; r += height) {
        const float* panel = a_ + (r - i) / height * panel_floats(units, kColStride);
        multiply(t, r, std::min(height, end - r), p, units, panel);
      }
    }
  }

  void pack_a_columns(int64_t i, int64_t rows, int64_t height, int64_t p, int64_t depth) {
    const GemmRows stored{g_.a, g_.k, nullptr};
    GemmArgs a;
    a.layout = GemmLayout::kDx;
    a.type = g_.type;
    a.b = {&stored, 1};
    a.n = g_.a_stride;
    const Columns columns{i, rows, g_.m - i, height, kColStride};
    pack_rows(g_.type, RowCursor(a), p, depth, columns, a_);
  }

  void pack_a_rows(int64_t i, int64_t rows, int64_t p, int64_t depth) {
    const int64_t element = RowCursor::element(g_.type);
    for (int64_t r = 0; r < rows; ++r) {
      const std::byte* row = g_.a + ((i + r) * g_.a_stride + p) * element;
      if (g_.type == DType::kF16) {
        pack_row<DType::kF16>(row, nullptr, depth, depth, a_ + r * kRowStride);
      } else {
        pack_bytes(row, depth * element, a_ + r * kRowStride);
      }
    }
  }

  void multiply(const GemmPart& t, int64_t i, int64_t rows, int64_t p, int64_t units,
                const float* panel) {
    const int64_t cols = t.col_end - t.col_begin;
    const bool by_row = g_.layout != GemmLayout::kDw;
    for (int64_t c = 0; c < cols; c += kNr) {
      // Each panel of columns brings one row of the next panel of A.
      const int64_t next = std::min(i + rows + c / kNr, t.row_end - 1);
      const std::byte* row = g_.a + (next * g_.a_stride + p) * RowCursor::element(g_.type);
      MicroArgs args;
      args.units = units;
      args.a = panel;
      args.b = b_ + c / kNr * panel_floats(units, kNr);
      args.next = by_row ? row : reinterpret_cast<const std::byte*>(panel);
      product(t, {i, rows, c, std::min(kNr, cols - c), p == 0, p + kGemmBlock >= g_.k}, args);
    }
  }

  // A micro kernel's part of C: rows from row i of C on, columns from column c of the tile on.
  struct Piece {
    int64_t i, rows, c, cols;
    bool first, last;  // block of k
  };

  void product(const GemmPart& t, const Piece& x, MicroArgs args) {
    alignas(64) float tile[kMr * kNr];
    const int64_t vectors = (x.cols + 15) / 16;
    float* kept = apart_ ? sums_ + (x.i - t.row_begin) * sums_stride_ + x.c
                         : c_floats() + x.i * g_.c_stride + t.col_begin + x.c;
    const int64_t kept_stride = apart_ ? sums_stride_ : g_.c_stride;
    const bool straight = x.cols == 16 * vectors && goes_straight(x);
    args.out = straight ? kept : tile;
    args.out_stride = straight ? kept_stride : kNr;
    args.more = !straight || (x.first && !(x.last && g_.add)) ? nullptr : kept;
    args.more_stride = kept_stride;
    if (straight && x.last && g_.residual != nullptr) {
      args.more = reinterpret_cast<const float*>(g_.residual) + (kept - c_floats());
    }
    ask_for(t, x);
    const unsigned mode = _mm_getcsr();
    if (flush_) _mm_setcsr(mode | 0x8040);  // FTZ, DAZ
    micros_[static_cast<size_t>(x.rows - 1)][static_cast<size_t>(vectors - 1)](args);
    if (flush_) _mm_setcsr(mode);
    if (straight) return;
    for (int64_t r = 0; r < x.rows; ++r, kept += kept_stride) {
      const Finish finish{g_, x.first, x.last, has_bias_, x.i + r};
      for (int64_t v = 0; v < x.cols; v += 16) {
        const float *from = tile + r * kNr + v, *bias = bias_ + x.c + v;
        const int64_t j = t.col_begin + x.c + v;
        if (x.cols - v >= 16) {
          finish.row(from, kept + v, bias, j, Full{});
        } else {
          finish.row(from, kept + v, bias, j, Part{x.cols - v});
        }
      }
    }
  }

  float* c_floats() const { return reinterpret_cast<float*>(g_.c); }

  // Whether the micro kernel itself can store, and add the one thing there is to be added:
  // unfinished sums, C, or the residual. Not what it would add with FTZ and DAZ set.
  bool goes_straight(const Piece& x) const {
    if (!x.last) return x.first || !flush_;
    if (!as_is_) return false;
    const int more = (x.first ? 0 : 1) + (g_.add ? 1 : 0) + (g_.residual != nullptr ? 1 : 0);
    return more == 0 || (more == 1 && !flush_);
  }

  // Asks for the lines that sums go to or are added to, before they are made. (Inlined by force:
  // GCC takes a function that only prefetches for one without effects, and drops the call.)
  [[gnu::always_inline]] inline void ask_for(const GemmPart& t, const Piece& x) {
    struct Lines {
      const void* at;
      int64_t stride, bytes;
    };
    Lines lines[3];
    int count = 0;
    const int64_t element = RowCursor::element(g_.out_type), stride = g_.c_stride * element;
    const int64_t at = (x.i * g_.c_stride + t.col_begin + x.c) * element;
    if (apart_) {
      const float* sums = sums_ + (x.i - t.row_begin) * sums_stride_ + x.c;
      lines[count++] = {sums, sums_stride_ * 4, kNr * 4};
    }
    if (x.last || !apart_) lines[count++] = {g_.c + at, stride, kNr * element};
    if (x.last && g_.residual != nullptr) {
      lines[count++] = {g_.residual + at, stride, kNr * element};
    }
    for (int i = 0; i < count; ++i) {
      const std::byte* row = static_cast<const std::byte*>(lines[i].at);
      for (int64_t r = 0; r < x.rows; ++r, row += lines[i].stride) {
        for (int64_t b = 0; b < lines[i].bytes; b += 64) __builtin_prefetch(row + b);
      }
    }
  }

  const GemmArgs& g_;
  const GemmPart& part_;
  bool flush_, apart_, has_bias_;
  bool as_is_;  // neither scale nor bias nor rounding: totals are added or stored as they are
  const MicroTable& micros_;
  float *b_, *a_, *bias_, *sums_;
  int64_t sums_stride_;
};

constexpr Micros kF32Micros = micros_of<MultiplyF32>(), kPairMicros = micros_of<MultiplyPairs>();

inline void run_part(const GemmArgs& g, const GemmPart& part, std::byte* scratch) {
  const bool pairs = g.type == DType::kBF16;
  PartRun(g, part, scratch, pairs ? kPairMicros : kF32Micros, pairs).run();
}

}  // namespace
}  // namespace headrace
