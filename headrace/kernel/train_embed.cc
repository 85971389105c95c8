// hr.embed and hr.embed_grad.
#include <algorithm>
#include <cstring>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Tiles of a table in row order.
struct TileRow {
  size_t tile;
  int64_t row;
};
template <typename RowsOfTile>
TileRow find_row(int64_t row, size_t tiles, RowsOfTile&& rows_of) {
  for (size_t tile = 0; tile < tiles; ++tile) {
    const int64_t rows = rows_of(tile);
    if (row < rows) return {tile, row};
    row -= rows;
  }
  HR_CHECK(false, "a token is in the embedding table");
  return {};
}

int32_t token_of(const OpContext& ctx, int64_t row) {
  const int32_t token = ctx.rows.tokens[static_cast<size_t>(ctx.op.iattr(Attr::kRowBegin) + row)];
  HR_CHECK(token >= 0, "a token is not negative");
  return token;
}

// Columns a worker takes at least: a cache line of f32.
constexpr int64_t kColumnGrain = 16;

}  // namespace

void train_embed(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const bool positions = ctx.op.iattr(Attr::kPositions) == 1;
  const size_t tiles = ctx.inputs.size() - (positions ? 1 : 0);
  const int64_t sequence = ctx.op.iattr(Attr::kSequence, out.rows);
  const int64_t skipped = ctx.op.iattr(Attr::kFirst);
  const TypedTrainRows& rows = train_rows().of(out.dtype);
  each_output_row(ctx, out.cols, [&](int64_t row) {
    const TileRow at = find_row(token_of(ctx, row), tiles,
                                [&](size_t tile) { return input_tensor(ctx, tile).rows; });
    const std::byte* from = input_row(ctx, at.tile, at.row);
    std::byte* to = output_row(ctx, 0, row);
    if (positions) {
      rows.add(from, input_row(ctx, tiles, skipped + row % sequence), to, out.cols);
    } else {
      std::memcpy(to, from, static_cast<size_t>(row_bytes(out.dtype, out.cols)));
    }
  });
}

// Rows of dx are added to the targets one by one in the order of tokens, so several micro-batches
// that update give the bits of one. Split over columns: every worker sees every token.
void train_embed_grad(const OpContext& ctx) {
  const Tensor& dx = input_tensor(ctx, 0);
  const Targets targets(ctx);
  const bool positions = ctx.op.iattr(Attr::kPositions) == 1;
  const size_t tiles = targets.size() - (positions ? 1 : 0);
  const int64_t sequence = ctx.op.iattr(Attr::kSequence, dx.rows), n = dx.cols;
  const int64_t skipped = ctx.op.iattr(Attr::kFirst);
  const TypedTrainRows& rows = train_rows().of(dx.dtype);
  ctx.pool.for_range(n, kColumnGrain, [&](int64_t begin, int64_t end, int) {
    for (size_t i = 0; !targets.add && i < targets.size(); ++i) {
      for (int64_t row = 0; row < targets.tensor(i).rows; ++row) {
        std::fill(targets.data(i) + row * n + begin, targets.data(i) + row * n + end, 0.0f);
      }
    }
    for (int64_t row = 0; row < dx.rows; ++row) {
      const std::byte* from = input_row(ctx, 0, row) + row_bytes(dx.dtype, begin);
      if (tiles > 0) {
        const TileRow at = find_row(token_of(ctx, row), tiles,
                                    [&](size_t tile) { return targets.tensor(tile).rows; });
        rows.add_to(from, targets.data(at.tile) + at.row * n + begin, end - begin);
      }
      if (!positions) continue;
      rows.add_to(from, targets.data(tiles) + (skipped + row % sequence) * n + begin,
                  end - begin);
    }
  });
}

}  // namespace headrace
