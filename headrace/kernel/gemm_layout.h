// How gemm_part_* cuts its part and its scratch; shared by gemm.cc and gemm_inl.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "headrace/kernel/gemm.h"

namespace headrace::gemm_layout {

// Packed operands are made of units of 4 bytes: one f32 (or f16, as f32), or two bf16
// that follow each other in k.
inline int64_t units(DType type, int64_t depth) {
  return type == DType::kBF16 ? (depth + 1) / 2 : depth;
}

constexpr int64_t kMaxPanelRows = 16;  // of A; of every instruction set
constexpr int64_t kMaxPanelCols = 32;  // of B
// Where a panel of A is stored row by row: one constant stride, so that every address is one
// register and a constant, and 64 bytes more than the block so that rows differ in cache set.
constexpr int64_t kRowStride = kGemmBlock + 16;
// From panel to panel; a line more than its `width` floats a unit, so that the same units of all
// panels, which are packed together, differ in cache set.
constexpr int64_t panel_floats(int64_t units, int64_t width) { return units * width + 16; }
// Columns of a block of B: 1.5 MiB with kGemmBlock elements of k. A is packed once for each, so 256
// are 5 to 15 % slower although they fit an L2.
constexpr int64_t kTileCols = 768;
// Rows of a tile whose sums wait in scratch for the next block.
constexpr int64_t kTileRows = 512;
// Panels of A packed at once where A is stored with k as rows, so that whole lines are read.
constexpr int64_t kGroupPanels = 8;

// Sums of unfinished tiles are kept in C itself where nothing there is needed any more.
inline bool keeps_sums_apart(const GemmArgs& g) {
  return g.k > kGemmBlock &&
         (g.add || g.out_type != DType::kF32 || (g.residual != nullptr && g.residual == g.c));
}

// Parts of the scratch, in this order, each of kLine-aligned size.
struct Scratch {
  Bytes b = 0;     // one block of B
  Bytes a = 0;     // panels of A
  Bytes bias = 0;  // f32 [kTileCols]
  Bytes sums = 0;  // f32 [at most kTileRows, cols]
  int64_t cols = 0;  // of the widest tile
  Bytes total() const { return b + a + bias + sums; }
};

inline Scratch scratch_of(const GemmArgs& g) {
  const int64_t depth = units(g.type, std::min(g.k, kGemmBlock));
  const int64_t cols = std::min(round_up(g.n, kMaxPanelCols), kTileCols);
  Scratch s;
  s.b = round_up((depth * cols + cols) * 4, kLine);
  const int64_t group = kGroupPanels * panel_floats(depth, kMaxPanelRows);
  s.a = 4 * (g.layout == GemmLayout::kDw ? group : kMaxPanelRows * kRowStride);
  s.bias = cols * 4;
  s.cols = cols;
  s.sums = keeps_sums_apart(g) ? round_up(std::min(g.m, kTileRows) * cols * 4, kLine) : 0;
  return s;
}

// Addresses of B's stored rows, asked for in ascending order.
class RowCursor {
 public:
  explicit RowCursor(const GemmArgs& g)
      : rows_(g.b), row_bytes_((g.layout == GemmLayout::kLinear ? g.k : g.n) * element(g.type)) {}
  int64_t row_bytes() const { return row_bytes_; }
  static int64_t element(DType type) { return type == DType::kF32 ? 4 : 2; }

  const std::byte* at(int64_t row) {
    seek(row);
    return rows_[piece_].data + (row - first_) * row_bytes_;
  }
  // 0 where the piece has no bias.
  float bias(int64_t row) {
    seek(row);
    if (rows_[piece_].bias == nullptr) return 0;
    float value;
    std::memcpy(&value, rows_[piece_].bias + (row - first_) * 4, 4);
    return value;
  }

 private:
  void seek(int64_t row) {
    while (row - first_ >= rows_[piece_].rows) first_ += rows_[piece_++].rows;
  }
  std::span<const GemmRows> rows_;
  int64_t row_bytes_;
  size_t piece_ = 0;
  int64_t first_ = 0;  // row of B that the piece starts with
};

}  // namespace headrace::gemm_layout
