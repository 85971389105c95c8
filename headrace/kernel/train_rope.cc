// hr.rope: rotary position embedding (Su et al., arXiv 2104.09864) of q and k, of all of a head or
// of its first elements, or its transpose.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "headrace/kernel/train.h"
#include "headrace/kernel/train_operands.h"
#include "headrace/kernel/train_rows.h"

namespace headrace {
namespace {

// Floats of a table of cosines or sines: 32 KiB of stack for both, 64 positions of heads of 64.
constexpr int64_t kTable = 4096;

struct Rope {
  const OpContext& ctx;
  const int64_t head_dim, turned;  // of a head, the first `turned` elements are rotated
  const int64_t rotated, all, sequence;  // rotated, all: heads of a row
  const bool half_split, inverse;
  const TypedTrainRows& rows;
  const Bytes head_bytes, turned_bytes;

  explicit Rope(const OpContext& context)
      : ctx(context),
        head_dim(ctx.op.iattr(Attr::kHeadDim)),
        turned(2 * input_tensor(ctx, 1).cols),
        rotated(ctx.op.iattr(Attr::kHeads) + ctx.op.iattr(Attr::kKvHeads)),
        all(rotated + ctx.op.iattr(Attr::kKvHeads)),
        sequence(ctx.op.iattr(Attr::kSequence)),
        half_split(ctx.op.iattr(Attr::kRopeHalfSplit) == 1),
        inverse(ctx.op.iattr(Attr::kInverse) == 1),
        rows(train_rows().of(output_tensor(ctx).dtype)),
        head_bytes(row_bytes(output_tensor(ctx).dtype, head_dim)),
        turned_bytes(row_bytes(output_tensor(ctx).dtype, turned)) {
    HR_CHECK(turned <= kTable && turned <= head_dim, "what is rotated is of a head, fits a table");
    HR_CHECK(output_tensor(ctx).rows % sequence == 0, "rows are whole sequences");
  }

  // As rope_table.cc: the angle is an f32, its cosine and sine are rounded from double once.
  void table(int64_t position, float* cosines, float* sines) const {
    const int64_t half = turned / 2;
    for (int64_t i = 0; i < half; ++i) {
      float frequency;
      std::memcpy(&frequency, ctx.inputs[1] + 4 * i, 4);
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency);
      const auto c = static_cast<float>(std::cos(angle));
      const auto s = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
      const int64_t a = half_split ? i : 2 * i, b = half_split ? half + i : 2 * i + 1;
      cosines[a] = cosines[b] = c;
      sines[a] = -s;
      sines[b] = s;
    }
  }

  void row(int64_t row, const float* cosines, const float* sines) const {
    const std::byte* from = input_row(ctx, 0, row);
    std::byte* to = output_row(ctx, 0, row);
    for (int64_t head = 0; head < rotated; ++head) {
      const Bytes at = head * head_bytes;
      rows.rotate(from + at, cosines, sines, to + at, turned, half_split);
      std::memcpy(to + at + turned_bytes, from + at + turned_bytes,
                  static_cast<size_t>(head_bytes - turned_bytes));
    }
    const Bytes at = rotated * head_bytes;
    std::memcpy(to + at, from + at, static_cast<size_t>((all - rotated) * head_bytes));
  }

  // Rows at positions [begin, end) of every sequence. A position's angles are made once, for as
  // many positions at a time as the tables hold, so that rows that are adjacent are read together.
  void positions(int64_t begin, int64_t end) const {
    float cosines[kTable], sines[kTable];
    const int64_t step = kTable / turned;
    for (int64_t first = begin; first < end; first += step) {
      const int64_t count = std::min(step, end - first);
      for (int64_t i = 0; i < count; ++i) {
        table(first + i, cosines + i * turned, sines + i * turned);
      }
      for (int64_t start = first; start < output_tensor(ctx).rows; start += sequence) {
        for (int64_t i = 0; i < count; ++i) {
          row(start + i, cosines + i * turned, sines + i * turned);
        }
      }
    }
  }
};

}  // namespace

void train_rope(const OpContext& ctx) {
  const Rope rope(ctx);
  ctx.pool.for_range(rope.sequence, 1, [&](int64_t begin, int64_t end, int) {
    rope.positions(begin, end);
  });
}

}  // namespace headrace
