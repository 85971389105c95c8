// hr.attention and hr.attention_grad: shapes, scratch, and the split over workers.
#include "headrace/kernel/train_attention.h"

#include "headrace/kernel/lanes_scalar.h"
#include "headrace/kernel/train.h"
#include "headrace/kernel/train_attention_inl.h"
#include "headrace/kernel/train_operands.h"

namespace headrace {
namespace {

TrainAttentionShape shape_of(const Graph& graph, const Op& op) {
  const DType type = graph.at(op.outputs[0]).dtype;
  HR_CHECK(type == DType::kF32 || type == DType::kBF16 || type == DType::kF16,
           "attention is of f32, bf16 or f16");
  TrainAttentionShape shape;
  shape.heads = op.iattr(Attr::kHeads);
  shape.kv_heads = op.iattr(Attr::kKvHeads);
  shape.head_dim = op.iattr(Attr::kHeadDim);
  shape.sequence = op.iattr(Attr::kSequence);
  shape.scale = static_cast<float>(op.attr(Attr::kScale, 1));
  shape.causal = op.iattr(Attr::kCausal, 1) == 1;
  shape.window = op.iattr(Attr::kWindow);
  shape.type = type;
  HR_CHECK(shape.heads % shape.kv_heads == 0, "query heads share kv heads evenly");
  return shape;
}

const TrainAttentionOps& attention_ops() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni: return avx512_train_attention();
    case Isa::kAvx2: return avx2_train_attention();
    case Isa::kScalar: break;
  }
  return scalar_train_attention();
}

float* scratch_of(const OpContext& ctx, int worker, Bytes bytes) {
  HR_CHECK(static_cast<Bytes>(ctx.workspace.size()) >= (worker + 1) * bytes,
           "the workspace holds every worker's scratch");
  return reinterpret_cast<float*>(ctx.workspace.data() + worker * bytes);
}

}  // namespace

const TrainAttentionOps& scalar_train_attention() { return kTrainAttention; }

Bytes train_attention_forward_bytes(const TrainAttentionShape& shape) {
  const int64_t block = kTrainBlock * shape.padded();
  return round_up((4 * block + kTrainBlock * kTrainBlock + 3 * kTrainBlock) * 4, kLine);
}

Bytes train_attention_backward_bytes(const TrainAttentionShape& shape) {
  const int64_t block = kTrainBlock * shape.padded();
  return round_up(((7 + 2 * shape.blocks()) * block + 2 * kTrainBlock * kTrainBlock +
                   2 * kTrainBlock) * 4, kLine);
}

Bytes train_attention_workspace(const Graph& graph, const Op& op, int threads) {
  return threads * train_attention_forward_bytes(shape_of(graph, op));
}

Bytes train_attention_grad_workspace(const Graph& graph, const Op& op, int threads) {
  return threads * train_attention_backward_bytes(shape_of(graph, op));
}

void train_attention(const OpContext& ctx) {
  const TrainAttentionShape shape = shape_of(ctx.graph, ctx.op);
  const int64_t rows = output_tensor(ctx).rows, blocks = shape.blocks();
  HR_CHECK(rows % shape.sequence == 0, "rows are whole sequences");
  const Bytes scratch_bytes = train_attention_forward_bytes(shape);
  const TrainAttentionOps& ops = attention_ops();
  const int64_t units = rows / shape.sequence * shape.heads * blocks;
  ctx.pool.for_range(units, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = scratch_of(ctx, worker, scratch_bytes);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t head = unit / blocks % shape.heads;
      const int64_t row = unit / blocks / shape.heads * shape.sequence;
      TrainAttentionSequence sequence;
      sequence.qkv = input_row(ctx, 0, row);
      sequence.o = output_row(ctx, 0, row);
      sequence.lse = f32_row(ctx.outputs[1], row, shape.heads);
      ops.forward(shape, sequence, head, unit % blocks, scratch);
    }
  });
}

void train_attention_grad(const OpContext& ctx) {
  const TrainAttentionShape shape = shape_of(ctx.graph, ctx.op);
  const int64_t rows = output_tensor(ctx).rows;
  HR_CHECK(rows % shape.sequence == 0, "rows are whole sequences");
  const Bytes scratch_bytes = train_attention_backward_bytes(shape);
  const TrainAttentionOps& ops = attention_ops();
  const int64_t units = rows / shape.sequence * shape.kv_heads;
  ctx.pool.for_range(units, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = scratch_of(ctx, worker, scratch_bytes);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / shape.kv_heads * shape.sequence;
      TrainAttentionSequence sequence;
      sequence.d_o = input_row(ctx, 0, row);
      sequence.qkv = input_row(ctx, 1, row);
      // Backward only reads these two.
      sequence.o = const_cast<std::byte*>(input_row(ctx, 2, row));
      sequence.lse = const_cast<float*>(f32_row(ctx.inputs[3], row, shape.heads));
      sequence.dqkv = output_row(ctx, 0, row);
      ops.backward(shape, sequence, unit % shape.kv_heads, scratch);
    }
  });
}

}  // namespace headrace
