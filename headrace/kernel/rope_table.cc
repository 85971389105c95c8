// kRopeTable: cosines and sines of a step's positions, made once and used by every layer.
#include <cmath>

#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/ops_cpu.h"

namespace headrace {

// The angle is rounded to f32 as Hugging Face transformers does (position.float() *
// inv_freq); its cosine and sine are taken in double and rounded once, so that they do
// not depend on how well a machine's float library rounds.
void rope_table_cpu(const OpContext& ctx) {
  const int64_t cols = output_tensor(ctx).cols, half = cols / 2;
  const float* inv_freq = f32_row(ctx.inputs[0], 0, half);
  const auto mscale = static_cast<float>(ctx.op.attr(Attr::kMscale, 1));
  ctx.pool.for_range(
      ctx.rows.rows(), 1 + 64 / (half + 1), [&](int64_t begin, int64_t end, int) {
        for (int64_t row = begin; row < end; ++row) {
          const auto position =
              static_cast<float>(ctx.rows.positions[static_cast<size_t>(row)]);
          float* out = f32_row(ctx.outputs[0], row, cols);
          for (int64_t i = 0; i < half; ++i) {
            const float angle = position * inv_freq[i];
            out[i] = static_cast<float>(std::cos(static_cast<double>(angle))) * mscale;
            out[half + i] =
                static_cast<float>(std::sin(static_cast<double>(angle))) * mscale;
          }
        }
      });
}

}  // namespace headrace
