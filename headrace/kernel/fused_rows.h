// FusedRows: lets an op write f32 rows whether its output is f32 or act_q8.
//
// For an act_q8 output a row is made in f32 in the worker's workspace and then quantised,
// so that the result is that of the op followed by kQuantize, bit for bit.
#pragma once

#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/quant.h"

namespace headrace {

class FusedRows {
 public:
  // `scratch` is this worker's: scratch_bytes() of it, kLine-aligned; unused for an f32
  // output.
  FusedRows(const OpContext& ctx, std::byte* scratch)
      : cols_(output_tensor(ctx).cols),
        stride_(row_bytes(output_tensor(ctx).dtype, cols_)),
        base_(ctx.outputs[0]),
        scratch_(output_tensor(ctx).dtype == DType::kActQ8 ? scratch : nullptr) {
    const DType type = output_tensor(ctx).dtype;
    HR_CHECK(type == DType::kF32 || type == DType::kActQ8,
             "an op writes f32 or act_q8 rows");
  }

  // Workspace bytes a worker of an op with this output.
  static Bytes scratch_bytes(const Tensor& output) {
    return output.dtype == DType::kActQ8 ? round_up(output.cols * 4, kLine) : 0;
  }

  // Where to write row `row` as f32 [cols]; done(row) then puts it in place.
  float* begin(int64_t row) const {
    std::byte* at = scratch_ != nullptr ? scratch_ : base_ + row * stride_;
    return reinterpret_cast<float*>(at);
  }
  void done(int64_t row) const {
    if (scratch_ == nullptr) return;
    quantize_row(reinterpret_cast<const float*>(scratch_), cols_, base_ + row * stride_);
  }

 private:
  int64_t cols_;
  Bytes stride_;
  std::byte* base_;
  std::byte* scratch_;
};

}  // namespace headrace
