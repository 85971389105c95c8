#include "headrace/model/graph_kv.h"

#include <algorithm>

#include "headrace/kernel/kv_layout.h"
#include "headrace/kernel/select_kv.h"

namespace headrace {
namespace {

Tensor state(const std::string& name, DType type, int64_t rows, int64_t cols) {
  Tensor t;
  t.name = name;
  t.dtype = type;
  t.role = Role::kState;
  t.rows = rows;
  t.cols = cols;
  t.bytes = rows * row_bytes(type, cols);
  t.data_class = DataClass::kKv;
  return t;
}

// Rows of f16 [padded head_dim] that K and V of a tile in 16 bits are.
int64_t tile_rows_16(const ModelConfig& c) { return 2 * kKvTile * c.kv_heads; }

}  // namespace

int64_t kv_segments(const ModelConfig& config, const GraphOptions& options, int64_t layer) {
  const int64_t all = ceil_div(options.context, options.segment_tokens);
  if (!config.is_local(layer) || options.window_positions == 0) return all;
  return std::min(all, ceil_div(options.window_positions, options.segment_tokens));
}

TensorId GraphKv::tail(const std::string& name, int64_t sequences) {
  return graph_.add(state(name, DType::kF16, sequences * tile_rows_16(c_),
                          padded_head_dim(c_.head_dim)));
}

TensorId GraphKv::slot(const std::string& name, int64_t tiles, KvSlot at) {
  Tensor t = state(name, DType::kI8, tiles,
                   kv_tile_bytes(o_.kv_format, c_.kv_heads, c_.head_dim));
  t.slot = at;
  t.alignment = kPage;
  return graph_.add(std::move(t));
}

GraphKv::Layer GraphKv::layer(int64_t layer) {
  const long long l = layer;
  const int64_t tiles = o_.segment_tokens / kKvTile;
  Layer out;
  out.segments = kv_segments(c_, o_, layer);
  if (o_.pool_blocks > 0) {
    out.tails = {tail(text_of("kv.tails.%lld", l), o_.sequences)};
    out.slots = {slot(text_of("kv.pool.%lld", l), o_.pool_blocks * tiles, KvSlot())};
  }
  for (int64_t s = 0; s < o_.sequences && o_.pool_blocks == 0; ++s) {
    const long long sequence = s;
    out.tails.push_back(tail(text_of("kv.tail.%lld.%lld", l, sequence), 1));
    for (int64_t g = 0; g < out.segments; ++g) {
      out.slots.push_back(slot(text_of("kv.%lld.%lld.%lld", l, sequence, static_cast<long long>(g)),
                               tiles,
                               {static_cast<int32_t>(layer), static_cast<int32_t>(s),
                                static_cast<int32_t>(g)}));
    }
  }
  if (o_.sparse_tokens > 0 && !c_.is_local(layer) && out.segments > 1) {
    out.keys = graph_.add(state(text_of("kv.keys.%lld.0", l), DType::kF32, out.segments + 1,
                                key_bounds_cols(c_.kv_heads, c_.head_dim)));
  }
  const int64_t open_tiles = kv_open_tiles(o_.max_rows, o_.sequences);
  if (open_tiles == 0) return out;
  Tensor open;
  open.name = text_of("blk.%lld.kv_open", l);
  open.dtype = DType::kF16;
  open.rows = open_tiles * tile_rows_16(c_);
  open.cols = padded_head_dim(c_.head_dim);
  open.bytes = open.rows * row_bytes(open.dtype, open.cols);
  out.open = graph_.add(std::move(open));
  return out;
}

TensorId GraphKv::softmax_state(int64_t layer) {
  Tensor t;
  t.name = text_of("blk.%lld.attn.state", static_cast<long long>(layer));
  t.rows = o_.max_rows;
  const bool selects = o_.sparse_tokens > 0 && o_.max_rows == 1;
  t.cols = c_.heads * (padded_head_dim(c_.head_dim) + (selects ? 3 : 2));
  t.bytes = t.rows * row_bytes(t.dtype, t.cols);
  return graph_.add(std::move(t));
}

KvBytes kv_bytes(const ModelConfig& config, const GraphOptions& options) {
  const Bytes tile = kv_tile_bytes(options.kv_format, config.kv_heads, config.head_dim);
  const Bytes segment = options.segment_tokens / kKvTile * tile;
  KvBytes out;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t count = options.pool_blocks > 0
                              ? options.pool_blocks
                              : options.sequences * kv_segments(config, options, layer);
    (config.is_local(layer) ? out.windows : out.slots) += count * segment;
    if (!config.is_local(layer)) out.slot_count += count;
    out.tails += options.sequences * kv_tail_bytes(config.kv_heads, config.head_dim);
  }
  return out;
}

}  // namespace headrace
