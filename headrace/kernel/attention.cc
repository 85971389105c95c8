// kAttention: seals the tiles that the step completes, cuts the step into blocks and spreads them
// over the workers, and leaves the new tails.
//
// A block is a run of rows of one sequence at consecutive positions of one tile; with one kv head
// it is a unit. Units and their split over workers shape time only, never a result (see
// attention_block.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/kernel/attention_block.h"
#include "headrace/kernel/kv_codec.h"
#include "headrace/kernel/kv_tiles.h"
#include "headrace/kernel/op_rows.h"
#include "headrace/kernel/op_workspace.h"
#include "headrace/kernel/ops_cpu.h"
#include "headrace/kernel/quant.h"
#include "headrace/kernel/select_kv.h"

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

int64_t wave_rows(const Graph& graph) { return std::min(kWaveRows, graph.max_rows); }

int64_t block_rows(int64_t group, int64_t max_rows) {
  return std::min(std::max<int64_t>(kBlockQueries / group, 1), max_rows);
}

Bytes worker_scratch_bytes(const Graph& graph, const Op& op) {
  const int64_t group = op.iattr(Attr::kHeads) / op.iattr(Attr::kKvHeads);
  return attention_scratch_bytes(op.iattr(Attr::kHeadDim),
                                 group * block_rows(group, graph.max_rows));
}

// The f32 rows that an act_q8 output is quantised from.
bool has_quantised_output(const Graph& graph, const Op& op) {
  return !op.outputs.empty() && graph.at(op.outputs[0]).dtype == DType::kActQ8;
}

struct Attention {
  explicit Attention(const OpContext& context);

  struct Rows {
    int64_t begin, end;
  };
  // Puts the tiles of this op's segments that the step completes into their slots.
  void seal() const;
  // Computes the rows of `wave` and writes them from `out` on; null when the op has no such output.
  void run_wave(const Rows& wave, std::byte* out);
  // Copies each run's last open tile to the tail of its sequence.
  void leave_tails() const;
  // Of a dense step of a graph that selects: what the selected segments had (last part only).
  void leave_recall() const;

 private:
  // What the run's tiles are to this op.
  struct Part {
    int64_t begin, end;  // tiles
  };
  SealedTiles sealed_of(int64_t sequence) const;
  int64_t first_sealed(const KvRun& run) const { return std::max(run.first_tile(), part_.begin); }
  int64_t sealed_count(const KvRun& run) const {
    return std::max<int64_t>(std::min(run.sealed_end(), part_.end) - first_sealed(run), 0);
  }
  void check_room(const KvRun& run) const;
  void bound_keys() const;
  // The rows' sealed tiles here are not attended.
  bool passed_over() const {
    return mask_ != nullptr && !ctx.rows.dense && mask_[segment_begin] == 0;
  }
  void add_selected(const AttentionBlock& block) const;
  template <typename F>
  void each_block(F f) const;  // f(run, Rows)
  Part tiles_of(const KvRun& run, const Rows& rows) const;
  void run(const KvRun& run, const Rows& rows, int64_t head, int64_t count, int worker) const;
  void run_head_range(int64_t begin, int64_t end, int worker) const;
  void run_units(int worker) const;

  const OpContext& ctx;
  AttentionShape shape;
  int64_t heads, group;
  int64_t segments;  // a sequence
  int64_t segment_begin, segment_count, tiles;
  bool pool;
  Part part_{0, 0};
  Tiles16 tiles16;
  size_t first_slot = 0;  // of the updates
  float* state = nullptr;
  float* keys = nullptr;  // [segments + 1][key_bounds_cols]; null: nothing is ever selected
  const float* mask_ = nullptr;  // [segments]
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
      segment_begin(ctx.op.iattr(Attr::kSegmentBegin)),
      segment_count(ctx.op.iattr(Attr::kSegmentCount, segments)),
      tiles(ctx.op.iattr(Attr::kSegmentTokens) / kKvTile),
      pool(ctx.op.iattr(Attr::kPoolBlocks) > 0),
      scratch_bytes(worker_scratch_bytes(ctx.graph, ctx.op)),
      block_fn(block_function()) {
  shape.kv = {ctx.op.iattr(Attr::kKvHeads), ctx.op.iattr(Attr::kHeadDim)};
  shape.format = static_cast<KvFormat>(ctx.op.iattr(Attr::kKvFormat));
  shape.part_bytes = kv_tile_bytes(shape.format, 1, shape.kv.head_dim) / 2;
  shape.scale = static_cast<float>(ctx.op.attr(Attr::kScale, 1));
  shape.softcap = static_cast<float>(ctx.op.attr(Attr::kSoftcap));
  shape.window = ctx.op.iattr(Attr::kWindow);
  shape.heads = heads;
  shape.first = segment_begin == 0;
  shape.last = segment_begin + segment_count == segments;
  HR_CHECK(shape.kv.head_dim <= kMaxHeadDim, "a head fits the kernel's stack");
  HR_CHECK(heads % shape.kv.kv_heads == 0, "query heads share kv heads evenly");
  HR_CHECK(tiles > 0, "a segment is whole tiles");
  group = heads / shape.kv.kv_heads;
  // The last part takes what is beyond: with a window, slots are used over and over.
  part_ = {segment_begin * tiles, shape.last ? std::numeric_limits<int64_t>::max()
                                             : (segment_begin + segment_count) * tiles};
  const std::byte* open = optional_input(ctx, 1);
  tiles16 = tiles16_of(ctx, shape.kv, const_cast<std::byte*>(open));
  if (!shape.first) {
    state = reinterpret_cast<float*>(ctx.updates.back());
  } else if (!shape.last) {
    state = reinterpret_cast<float*>(ctx.outputs[0]);
  }
  const size_t state_updates = shape.first ? 0 : 1;
  if (ctx.op.iattr(Attr::kSparseTokens) > 0) {
    keys = reinterpret_cast<float*>(ctx.updates[ctx.updates.size() - 1 - state_updates]);
    mask_ = reinterpret_cast<const float*>(optional_input(ctx, 2));
    shape.selects = mask_ != nullptr;
  }
  const size_t others = state_updates + (pool ? 1 : 0) + (keys != nullptr ? 1 : 0);
  const size_t per_sequence = 1 + (pool ? 0 : static_cast<size_t>(segment_count));
  first_slot = tiles16.one_tensor ? 1 : (ctx.updates.size() - others) / per_sequence;
}

SealedTiles Attention::sealed_of(int64_t sequence) const {
  SealedTiles out;
  out.segment_begin = segment_begin;
  out.segments = segment_count;
  out.tiles = tiles;
  out.tile_bytes = shape.kv.kv_heads * 2 * shape.part_bytes;
  if (pool) {
    HR_CHECK(static_cast<int64_t>(ctx.rows.blocks.size()) >= (sequence + 1) * segments,
             "a step of a pool names its blocks");
    out.pool = ctx.updates[first_slot];
    out.blocks = ctx.rows.blocks.data() + sequence * segments;
    return out;
  }
  const size_t first = first_slot + static_cast<size_t>(sequence * segment_count);
  HR_CHECK(first + static_cast<size_t>(segment_count) + (shape.first ? 0 : 1) <=
               ctx.updates.size(),
           "every segment of a sequence is an update");
  out.slots = ctx.updates.data() + first;
  return out;
}

// What the step seals replaces nothing that a row of it sees, and lies in the slots.
void Attention::check_room(const KvRun& run) const {
  const int64_t replaced = run.sealed_end() - 1 - segments * tiles;
  HR_CHECK(shape.window > 0 || replaced < 0, "a position lies in a segment of its sequence");
  HR_CHECK(replaced < shape.first_visible(run.first) / kKvTile,
           "slots of a window are not used again while a row sees them");
}

void Attention::seal() const {
  int64_t count = 0;
  each_run(ctx.rows, [&](const KvRun& run) {
    if (shape.last) check_room(run);
    count += sealed_count(run);
  });
  if (count == 0) return;
  const int64_t kv_heads = shape.kv.kv_heads;
  ctx.pool.for_range(count * kv_heads, 1, [&](int64_t begin, int64_t end, int) {
    int64_t unit = 0;
    each_run(ctx.rows, [&](const KvRun& run) {
      const int64_t first = unit, tile = first_sealed(run);
      unit += sealed_count(run) * kv_heads;
      for (int64_t u = std::max(begin, first); u < std::min(end, unit); ++u) {
        const int64_t t = tile + (u - first) / kv_heads, g = (u - first) % kv_heads;
        const uint16_t* from = tiles16.at(run, t);
        std::byte* to = sealed_of(run.sequence).at(t) + 2 * g * shape.part_bytes;
        const int64_t d = shape.kv.head_dim;
        kv_encode_part(shape.format, from + shape.kv.k_offset(g, 0), d, to);
        kv_encode_part(shape.format, from + shape.kv.v_offset(g, 0), d, to + shape.part_bytes);
      }
    });
  });
  if (keys != nullptr) bound_keys();
}

// The tiles just sealed, as they are read from now on, widen the bounds of their segments' keys.
void Attention::bound_keys() const {
  const int64_t d = padded_head_dim(shape.kv.head_dim);
  const int64_t cols = key_bounds_cols(shape.kv.kv_heads, shape.kv.head_dim);
  ctx.pool.for_range(shape.kv.kv_heads, 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = reinterpret_cast<float*>(ctx.workspace.data() + worker * scratch_bytes);
    each_run(ctx.rows, [&](const KvRun& run) {
      const SealedTiles sealed = sealed_of(run.sequence);
      for (int64_t i = 0; i < sealed_count(run); ++i) {
        const int64_t t = first_sealed(run) + i;
        for (int64_t g = begin; g < end; ++g) {
          add_key_bounds(shape.format, sealed.at(t) + 2 * g * shape.part_bytes, shape.kv.head_dim,
                         t % tiles == 0, keys + t / tiles * cols + 2 * g * d, scratch);
        }
      }
    });
  });
}

void Attention::leave_tails() const {
  each_run(ctx.rows, [&](const KvRun& run) {
    if (open_tiles(run) == 0) return;
    std::memcpy(tiles16.tail(run.sequence), tiles16.at(run, run.last() / kKvTile),
                static_cast<size_t>(shape.kv.tile_elements()) * 2);
  });
}

// Blocks of the wave, in order.
template <typename F>
void Attention::each_block(F f) const {
  const int64_t most = block_rows(group, ctx.graph.max_rows);
  each_run(ctx.rows, [&](const KvRun& run) {
    const int64_t stop = std::min(run.end, wave_.end);
    for (int64_t row = std::max(run.begin, wave_.begin); row < stop;) {
      const int64_t in_tile = (run.first + row - run.begin) % kKvTile;
      const Rows rows{row, std::min({stop, row + most, row + kKvTile - in_tile})};
      f(run, rows);
      row = rows.end;
    }
  });
}

// The tiles that the rows, of one tile, see in this op, their own included.
Attention::Part Attention::tiles_of(const KvRun& run, const Rows& rows) const {
  const int64_t position = run.first + rows.begin - run.begin;
  const int64_t first = passed_over() ? position : shape.first_visible(position);
  return {std::max(first / kKvTile, part_.begin), std::min(position / kKvTile + 1, part_.end)};
}

// Query heads [head, head + count) of the rows; all of one kv head.
void Attention::run(const KvRun& run, const Rows& rows, int64_t head, int64_t count,
                    int worker) const {
  const bool measured = shape.selects && ctx.rows.dense;
  if (measured && count > 1) {
    for (int64_t h = head; h < head + count; ++h) this->run(run, rows, h, 1, worker);
    return;
  }
  const Part seen = tiles_of(run, rows);
  // Neither the start nor the end of a softmax, and nothing to add.
  if (seen.begin >= seen.end && !shape.first && !shape.last) return;
  const int64_t d = shape.kv.head_dim;
  AttentionBlock block;
  block.rows = rows.end - rows.begin;
  block.position = run.first + rows.begin - run.begin;
  block.heads = count;
  block.head = head;
  block.kv_head = head / group;
  block.q = f32_row(ctx.inputs[0], rows.begin, heads * d) + head * d;
  if (out_ != nullptr) block.out = out_ + ((rows.begin - wave_.begin) * heads + head) * d;
  block.row_stride = heads * d;
  if (state != nullptr) block.state = state + rows.begin * state_stride(shape);
  block.sealed = sealed_of(run.sequence);
  block.tile_begin = seen.begin;
  block.tile_end = std::min(seen.end, block.own_tile());
  if (seen.begin < seen.end && seen.end == block.own_tile() + 1) {
    block.own = tiles16.at(run, block.own_tile()) + shape.kv.k_offset(block.kv_head, 0);
  }
  block.scratch = reinterpret_cast<float*>(ctx.workspace.data() + worker * scratch_bytes);
  measured ? add_selected(block) : block_fn(shape, block);
}

// One query: attends the block and keeps what share of the softmax's sum selected segments have.
void Attention::add_selected(const AttentionBlock& block) const {
  HR_CHECK(state != nullptr, "segments are selected where attention is in parts");
  const SoftmaxState s = state_of(shape, block, 0, 0);
  const float max = *s.max, sum = *s.sum;
  block_fn(shape, block);
  double kept = 0;  // share of the sum that was there before
  if (!shape.first && sum > 0 && *s.sum > 0) {
    kept = static_cast<double>(sum) * std::exp(static_cast<double>(max) - *s.max) / *s.sum;
  }
  const double before = shape.first ? 0 : *s.selected;
  *s.selected = static_cast<float>(before * kept + (mask_[segment_begin] != 0 ? 1 - kept : 0));
}

void Attention::leave_recall() const {
  if (!shape.selects || !ctx.rows.dense) return;
  AttentionBlock block;
  block.state = state;
  double sum = 0;
  for (int64_t h = 0; h < heads; ++h) sum += *state_of(shape, block, 0, h).selected;
  keys[segments * key_bounds_cols(shape.kv.kv_heads, shape.kv.head_dim)] =
      static_cast<float>(sum / static_cast<double>(heads));
}

// Queries [begin, end) of all (block, head) pairs, blocks outermost.
void Attention::run_head_range(int64_t begin, int64_t end, int worker) const {
  int64_t first = 0;  // pair of (this block, head 0)
  each_block([&](const KvRun& run, const Rows& rows) {
    int64_t head = std::max<int64_t>(begin - first, 0);
    const int64_t head_end = std::min(end - first, heads);
    while (head < head_end) {
      const int64_t stop = std::min((head / group + 1) * group, head_end);
      this->run(run, rows, head, stop - head, worker);
      head = stop;
    }
    first += heads;
  });
}

// Units in order, dealt out forth and back: later blocks see more positions and cost
// more.
void Attention::run_units(int worker) const {
  const int64_t deal = 2 * ctx.pool.size();
  int64_t unit = 0;
  each_block([&](const KvRun& run, const Rows& rows) {
    for (int64_t g = 0; g < shape.kv.kv_heads; ++g, ++unit) {
      const int64_t card = unit % deal;
      if (card == worker || card == deal - 1 - worker)
        this->run(run, rows, g * group, group, worker);
    }
  });
}

void Attention::run_wave(const Rows& wave, std::byte* out) {
  wave_ = wave;
  out_ = reinterpret_cast<float*>(out);
  int64_t blocks = 0, work = 0;
  each_block([&](const KvRun& run, const Rows& rows) {
    ++blocks;
    const Part seen = tiles_of(run, rows);
    work += (rows.end - rows.begin) * std::max<int64_t>(seen.end - seen.begin, 0) * kKvTile;
  });
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
  Bytes f32_rows = 0;
  if (has_quantised_output(graph, op)) {
    f32_rows = round_up(wave_rows(graph) * graph.at(op.outputs[0]).cols * 4, kLine);
  }
  return threads * worker_scratch_bytes(graph, op) + f32_rows;
}

void attention_cpu(const OpContext& ctx) {
  Attention attention(ctx);
  attention.seal();
  const int64_t rows = ctx.rows.rows();
  const int64_t begin = ctx.op.iattr(Attr::kSegmentBegin), all = ctx.op.iattr(Attr::kSegments, 1);
  const bool last = begin + ctx.op.iattr(Attr::kSegmentCount, all) == all;
  if (!last) return attention.run_wave({0, rows}, nullptr);
  if (!has_quantised_output(ctx.graph, ctx.op)) {
    attention.run_wave({0, rows}, ctx.outputs[0]);
    attention.leave_recall();
    return attention.leave_tails();
  }
  const int64_t cols = output_tensor(ctx).cols;
  const Bytes stride = row_bytes(DType::kActQ8, cols);
  std::byte* made =
      ctx.workspace.data() + ctx.pool.size() * worker_scratch_bytes(ctx.graph, ctx.op);
  for (int64_t first = 0; first < rows; first += kWaveRows) {
    const int64_t stop = std::min(first + kWaveRows, rows);
    attention.run_wave({first, stop}, made);
    ctx.pool.for_range(stop - first, row_grain(cols),
                       [&](int64_t begin_row, int64_t end_row, int) {
                         for (int64_t row = begin_row; row < end_row; ++row) {
                           quantize_row(f32_row(made, row, cols), cols,
                                        ctx.outputs[0] + (first + row) * stride);
                         }
                       });
  }
  attention.leave_recall();
  attention.leave_tails();
}

}  // namespace headrace
