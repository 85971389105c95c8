// hr.patches, hr.prefix, hr.select, hr.mean_rows and their gradients: what image transformers have
// beside their layers (Dosovitskiy et al., arXiv 2010.11929).
#include <algorithm>
#include <cstring>

#include "headrace/kernel/half.h"
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Columns a worker takes at least: a cache line of f32.
constexpr int64_t kColumnGrain = 16;
// hr.mean_rows: rows that are summed from 0, columns of a worker at a time.
constexpr int64_t kChunkRows = 64;
constexpr int64_t kColumns = 64;

// Elements of type c from f32, rounded to nearest even.
void store(const float* from, int64_t n, DType type, std::byte* to) {
  if (type == DType::kF32) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = type == DType::kBF16 ? f32_to_bf16(from[i]) : f32_to_f16(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

void copy_row(const std::byte* from, const Tensor& type, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(row_bytes(type.dtype, type.cols)));
}

// Where the `rows` rows of a part lie in the rows of all: hr.select and what is like it.
struct Window {
  const int64_t sequence, first, rows;

  Window(const OpContext& ctx, const Tensor& all, const Tensor& part)
      : sequence(ctx.op.iattr(Attr::kSequence)),
        first(ctx.op.iattr(Attr::kFirst)),
        rows(part.rows / (all.rows / sequence)) {
    HR_CHECK(first + rows <= sequence, "the rows are in the sequence");
  }
};

}  // namespace

// A patch is a run of `patch` elements in each of its lines, and lines of a channel are one below
// another.
void train_patches(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const int64_t channels = ctx.op.iattr(Attr::kChannels), patch = ctx.op.iattr(Attr::kPatch);
  const int64_t height = ctx.op.iattr(Attr::kHeight);
  const int64_t width = input_tensor(ctx, 0).cols / channels / height;
  const int64_t across = width / patch, patches = height / patch * across;
  const Bytes run = row_bytes(out.dtype, patch);
  each_output_row(ctx, out.cols, [&](int64_t row) {
    const int64_t at = row % patches, y = at / across * patch, x = at % across * patch;
    const float* image = f32_row(ctx.inputs[0], row / patches, channels * height * width);
    std::byte* to = output_row(ctx, 0, row);
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t line = y; line < y + patch; ++line) {
        store(image + (channel * height + line) * width + x, patch, out.dtype, to);
        to += run;
      }
    }
  });
}

void train_prefix(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const int64_t sequence = ctx.op.iattr(Attr::kSequence);
  const auto weights = static_cast<size_t>(ctx.op.iattr(Attr::kWeights));
  const bool positions = ctx.op.iattr(Attr::kPositions) == 1;
  const TypedTrainRows& rows = train_rows().of(out.dtype);
  int64_t before = 0;  // rows of all prefixes
  for (size_t i = 1; i <= weights; ++i) before += input_tensor(ctx, i).rows;
  // Row `position` of a sequence, below `before`.
  const auto prefix = [&](int64_t position) {
    size_t i = 1;
    for (; position >= input_tensor(ctx, i).rows; ++i) position -= input_tensor(ctx, i).rows;
    return input_row(ctx, i, position);
  };
  each_output_row(ctx, out.cols, [&](int64_t row) {
    const int64_t position = row % sequence;
    const int64_t x = row / sequence * (sequence - before) + position - before;
    const std::byte* from = position < before ? prefix(position) : input_row(ctx, 0, x);
    std::byte* to = output_row(ctx, 0, row);
    if (!positions) return copy_row(from, out, to);
    rows.add(from, input_row(ctx, 1 + weights, position), to, out.cols);
  });
}

// Rows are added one by one in the order of sequences, as embeddings are. Split over columns.
void train_prefix_grad(const OpContext& ctx) {
  const Tensor& dy = input_tensor(ctx, 0);
  const Targets targets(ctx);
  const int64_t n = dy.cols, sequence = ctx.op.iattr(Attr::kSequence);
  const int64_t first = ctx.op.iattr(Attr::kFirst), all = targets.tensor(0).rows;
  const int64_t used = std::min(all, sequence - first);
  const TypedTrainRows& rows = train_rows().of(dy.dtype);
  ctx.pool.for_range(n, kColumnGrain, [&](int64_t begin, int64_t end, int) {
    float* sums = targets.data(0);
    for (int64_t i = 0; !targets.add && i < all; ++i) {
      std::fill(sums + i * n + begin, sums + i * n + end, 0.0f);
    }
    for (int64_t start = first; start < dy.rows; start += sequence) {
      for (int64_t i = 0; i < used; ++i) {
        rows.add_to(input_row(ctx, 0, start + i) + row_bytes(dy.dtype, begin),
                    sums + i * n + begin, end - begin);
      }
    }
  });
}

void train_select(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const Window window(ctx, input_tensor(ctx, 0), out);
  each_output_row(ctx, out.cols, [&](int64_t row) {
    const int64_t from = row / window.rows * window.sequence + window.first + row % window.rows;
    copy_row(input_row(ctx, 0, from), out, output_row(ctx, 0, row));
  });
}

void train_select_grad(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const Window window(ctx, out, input_tensor(ctx, 0));
  each_output_row(ctx, out.cols, [&](int64_t row) {
    const int64_t at = row % window.sequence - window.first;
    std::byte* to = output_row(ctx, 0, row);
    if (at < 0 || at >= window.rows) {
      std::memset(to, 0, static_cast<size_t>(row_bytes(out.dtype, out.cols)));
      return;
    }
    copy_row(input_row(ctx, 0, row / window.sequence * window.rows + at), out, to);
  });
}

// Sums of kChunkRows rows, each from 0, added in ascending order, over how many rows there are.
void train_mean_rows(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const int64_t sequence = ctx.op.iattr(Attr::kSequence), first = ctx.op.iattr(Attr::kFirst);
  const int64_t blocks = (out.cols + kColumns - 1) / kColumns;
  const TypedTrainRows& rows = train_rows().of(out.dtype);
  ctx.pool.for_range(out.rows * blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t column = unit % blocks * kColumns, start = unit / blocks * sequence;
      const int64_t n = std::min(kColumns, out.cols - column);
      const Bytes skip = row_bytes(out.dtype, column);
      float total[kColumns] = {};
      for (int64_t chunk = first; chunk < sequence; chunk += kChunkRows) {
        float sum[kColumns] = {};
        for (int64_t i = chunk; i < std::min(chunk + kChunkRows, sequence); ++i) {
          rows.add_to(input_row(ctx, 0, start + i) + skip, sum, n);
        }
        for (int64_t j = 0; j < n; ++j) total[j] += sum[j];
      }
      for (int64_t j = 0; j < n; ++j) total[j] /= static_cast<float>(sequence - first);
      store(total, n, out.dtype, output_row(ctx, 0, unit / blocks) + skip);
    }
  });
}

// The rows of a sequence are one row, made once.
void train_mean_rows_grad(const OpContext& ctx) {
  const Tensor& out = output_tensor(ctx);
  const int64_t sequence = ctx.op.iattr(Attr::kSequence), first = ctx.op.iattr(Attr::kFirst);
  const TypedTrainRows& rows = train_rows().of(out.dtype);
  ctx.pool.for_range(input_tensor(ctx, 0).rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t s = begin; s < end; ++s) {
      std::byte* to = output_row(ctx, 0, s * sequence);
      const Bytes row = row_bytes(out.dtype, out.cols);
      std::memset(to, 0, static_cast<size_t>(first * row));
      std::byte* made = to + first * row;
      for (int64_t column = 0; column < out.cols; column += kColumns) {
        const int64_t n = std::min(kColumns, out.cols - column);
        const Bytes skip = row_bytes(out.dtype, column);
        float values[kColumns] = {};
        rows.add_to(input_row(ctx, 0, s) + skip, values, n);
        for (int64_t j = 0; j < n; ++j) values[j] /= static_cast<float>(sequence - first);
        store(values, n, out.dtype, made + skip);
      }
      for (int64_t i = first + 1; i < sequence; ++i) copy_row(made, out, to + i * row);
    }
  });
}

}  // namespace headrace
