// kAttention: cuts a step into blocks and spreads them over the workers.
//
// A block is a run of rows of one sequence at consecutive positions; with one kv head it
// is a unit. Units and their split over workers shape time only, never a result (see
// attention_block.h).
#include "headrace/kernel/attention_block.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/op_workspace.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"

namespace headrace {
namespace {

// Queries (rows x heads of a group) of a block at most: enough that converting a tile of
// K and V to f32 is small beside using it, few enough that their state stays in the L2
// cache.
constexpr int64_t kBlockQueries = 64;

// Rows of f32 output held at a time when the output is act_q8: a wave of them is
// computed, then quantised. Enough units for many workers, little memory (2 MiB at 4096
// columns).
constexpr int64_t kWaveRows = 128;

int64_t wave_rows(const Graph& graph) {
  return kWaveRows < graph.max_rows ? kWaveRows : graph.max_rows;
}

int64_t block_rows(int64_t group, int64_t max_rows) {
  const int64_t rows = group < kBlockQueries ? kBlockQueries / group : 1;
  return rows < max_rows ? rows : max_rows;
}

Bytes worker_scratch_bytes(const Graph& graph, const Op& op) {
  const int64_t group = op.iattr(Attr::kHeads) / op.iattr(Attr::kKvHeads);
  return attention_scratch_bytes(op.iattr(Attr::kHeadDim),
                                 group * block_rows(group, graph.max_rows));
}

struct Attention {
  explicit Attention(const OpContext& context);

  struct Rows {
    int64_t begin, end;
  };
  // Computes the rows of `wave` and writes them from `out` on.
  void run_wave(const Rows& wave, std::byte* out);

 private:
  Rows next_block(int64_t begin) const;
  void run(const Rows& rows, int64_t head, int64_t heads, int worker) const;
  void run_head_range(int64_t begin, int64_t end, int worker) const;
  void run_units(int worker) const;

  const OpContext& ctx;
  AttentionShape shape;
  int64_t heads, group, segments;
  Bytes scratch_bytes;
  Rows wave_{0, 0};
  float* out_ = nullptr;
  void (*block_fn)(const AttentionShape&, const AttentionBlock&);
};

auto block_function() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni:
      return attention_block_avx512;
    case Isa::kAvx2:
      return attention_block_avx2;
    case Isa::kScalar:
      break;
  }
  return attention_block_reference;
}

Attention::Attention(const OpContext& context)
    : ctx(context),
      heads(ctx.op.iattr(Attr::kHeads)),
      segments(ctx.op.iattr(Attr::kSegments, 1)),
      scratch_bytes(worker_scratch_bytes(ctx.graph, ctx.op)),
      block_fn(block_function()) {
  shape.kv = {ctx.op.iattr(Attr::kKvHeads), ctx.op.iattr(Attr::kHeadDim),
              ctx.op.iattr(Attr::kSegmentTokens)};
  shape.scale = static_cast<float>(ctx.op.attr(Attr::kScale, 1));
  shape.softcap = static_cast<float>(ctx.op.attr(Attr::kSoftcap));
  shape.window = ctx.op.iattr(Attr::kWindow);
  HR_CHECK(shape.kv.head_dim <= kMaxHeadDim, "a head fits the kernel's stack");
  HR_CHECK(heads % shape.kv.kv_heads == 0, "query heads share kv heads evenly");
  HR_CHECK(shape.kv.segment_tokens % kKvTile == 0, "a segment is whole tiles");
  group = heads / shape.kv.kv_heads;
}

// Rows [begin, end) are one sequence at consecutive positions, and fit a block.
Attention::Rows Attention::next_block(int64_t begin) const {
  const int64_t most = begin + block_rows(group, ctx.graph.max_rows);
  int64_t end = begin + 1;
  const auto at = [](const std::vector<int32_t>& v, int64_t i) {
    return v[static_cast<size_t>(i)];
  };
  while (end < wave_.end && end < most &&
         at(ctx.rows.sequences, end) == at(ctx.rows.sequences, begin) &&
         at(ctx.rows.positions, end) == at(ctx.rows.positions, end - 1) + 1) {
    ++end;
  }
  return {begin, end};
}

// Query heads [head, head + count) of the rows; all of one kv head.
void Attention::run(const Rows& block_of, int64_t head, int64_t count, int worker) const {
  const int64_t row = block_of.begin, d = shape.kv.head_dim;
  AttentionBlock block;
  block.rows = block_of.end - block_of.begin;
  block.position = ctx.rows.positions[static_cast<size_t>(row)];
  block.heads = count;
  block.kv_head = head / group;
  block.q = f32_row(ctx.inputs[0], row, heads * d) + head * d;
  block.out = out_ + ((row - wave_.begin) * heads + head) * d;
  block.row_stride = heads * d;
  const int64_t first_slot = 1 + ctx.rows.sequences[static_cast<size_t>(row)] * segments;
  HR_CHECK(first_slot + segments <= static_cast<int64_t>(ctx.inputs.size()),
           "every segment of a sequence is an input");
  block.segments = ctx.inputs.data() + first_slot;
  block.scratch = reinterpret_cast<float*>(ctx.workspace.data() + worker * scratch_bytes);
  block_fn(shape, block);
}

// Queries [begin, end) of all (block, head) pairs, blocks outermost.
void Attention::run_head_range(int64_t begin, int64_t end, int worker) const {
  int64_t first = 0;  // pair of (this block, head 0)
  for (int64_t row = wave_.begin; row < wave_.end && first < end; first += heads) {
    const Rows block = next_block(row);
    row = block.end;
    int64_t head = begin > first ? begin - first : 0;
    const int64_t head_end = end - first < heads ? end - first : heads;
    while (head < head_end) {
      const int64_t group_end = (head / group + 1) * group;
      const int64_t stop = group_end < head_end ? group_end : head_end;
      run(block, head, stop - head, worker);
      head = stop;
    }
  }
}

// Units in order, dealt out forth and back: later blocks see more positions and cost
// more.
void Attention::run_units(int worker) const {
  const int64_t deal = 2 * ctx.pool.size();
  int64_t unit = 0;
  for (int64_t row = wave_.begin; row < wave_.end;) {
    const Rows block = next_block(row);
    row = block.end;
    for (int64_t g = 0; g < shape.kv.kv_heads; ++g, ++unit) {
      const int64_t card = unit % deal;
      if (card == worker || card == deal - 1 - worker)
        run(block, g * group, group, worker);
    }
  }
}

void Attention::run_wave(const Rows& wave, std::byte* out) {
  wave_ = wave;
  out_ = reinterpret_cast<float*>(out);
  int64_t blocks = 0, work = 0;
  for (int64_t row = wave_.begin; row < wave_.end; ++blocks) {
    const Rows block = next_block(row);
    const int64_t last = ctx.rows.positions[static_cast<size_t>(block.end - 1)];
    work += (block.end - block.begin) * (last + 1 - shape.first_visible(last));
    row = block.end;
  }
  work *= heads * shape.kv.head_dim;
  constexpr int64_t kTinyWork =
      64 * 1024;  // multiply-adds: about 2 us, a barrier's worth
  const int workers = ctx.pool.size();
  if (workers == 1 || work < kTinyWork) {
    run_head_range(0, blocks * heads, 0);
  } else if (blocks * shape.kv.kv_heads < 4 * workers) {
    ctx.pool.for_range(blocks * heads, 1, [&](int64_t begin, int64_t end, int worker) {
      run_head_range(begin, end, worker);
    });
  } else {
    ctx.pool.run([&](int worker) { run_units(worker); });
  }
}

}  // namespace

Bytes attention_workspace(const Graph& graph, const Op& op, int threads) {
  const Tensor& output = graph.at(op.outputs[0]);
  const Bytes f32_rows = output.dtype == DType::kActQ8
                             ? round_up(wave_rows(graph) * output.cols * 4, kLine)
                             : 0;
  return threads * worker_scratch_bytes(graph, op) + f32_rows;
}

void attention_cpu(const OpContext& ctx) {
  Attention attention(ctx);
  const Tensor& output = output_tensor(ctx);
  const int64_t rows = ctx.rows.rows(), cols = output.cols;
  if (output.dtype == DType::kF32) return attention.run_wave({0, rows}, ctx.outputs[0]);
  HR_CHECK(output.dtype == DType::kActQ8, "attention writes f32 or act_q8 rows");
  const Bytes stride = row_bytes(output.dtype, cols);
  std::byte* made =
      ctx.workspace.data() + ctx.pool.size() * worker_scratch_bytes(ctx.graph, ctx.op);
  for (int64_t first = 0; first < rows; first += kWaveRows) {
    const int64_t last = first + kWaveRows < rows ? first + kWaveRows : rows;
    attention.run_wave({first, last}, made);
    ctx.pool.for_range(last - first, row_grain(cols),
                       [&](int64_t begin, int64_t end, int) {
                         for (int64_t row = begin; row < end; ++row) {
                           quantize_row(f32_row(made, row, cols), cols,
                                        ctx.outputs[0] + (first + row) * stride);
                         }
                       });
  }
}

}  // namespace headrace
