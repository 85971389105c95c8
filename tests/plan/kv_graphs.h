// Graphs with KV for tests of the planner: layers of attention in parts over slots, as
// model/build_graph makes them, without a model.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headrace/ir/kv.h"
#include "tests/plan/small_graphs.h"

namespace headrace::test {

struct KvShape {
  int layers = 2;
  int window_layers = 0;  // the last of them: one op, fewer slots, which never move
  int64_t rows = 1;
  int64_t sequences = 1;
  int64_t segments = 4;   // a sequence
  int64_t segment_tokens = 128;
  int64_t kv_heads = 1;
  int64_t heads = 2;
  int64_t head_dim = 32;
  int64_t cols = 64;      // of x
  int64_t ff = 0;         // columns of the feed-forward; 0: none
  KvFormat format = KvFormat::kF16;
  int64_t sparse_tokens = 0;  // of one row and sequence: slots are selected
};

class KvGraphBuilder {
 public:
  explicit KvGraphBuilder(const KvShape& shape) : s_(shape), b_("kv", shape.rows) {}

  std::shared_ptr<const Graph> build() {
    TensorId x = b_.embed(8, s_.cols);
    rope_ = b_.activation("rope", s_.head_dim);
    const std::vector<float> ones(static_cast<size_t>(s_.head_dim / 2), 1.0f);
    b_.op(OpKind::kRopeTable, "rope", {b_.constant("inv_freq", ones)}, rope_)
        .attrs[Attr::kMscale] = 1;
    for (layer_ = 0; layer_ < s_.layers; ++layer_) x = layer(x);
    return b_.finish(b_.matmul("out", x, 128, 1));
  }

 private:
  std::string blk(const char* what) const {
    return "blk." + std::to_string(layer_) + "." + what;
  }
  bool local() const { return layer_ >= s_.layers - s_.window_layers; }
  int64_t padded() const { return round_up(s_.head_dim, 16); }

  TensorId add(const std::string& name, DType type, Role role, int64_t rows, int64_t cols,
               KvSlot slot = {}) {
    Tensor t;
    t.name = name;
    t.dtype = type;
    t.role = role;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(type, cols);
    t.slot = slot;
    t.data_class = role == Role::kState ? DataClass::kKv : DataClass::kActivation;
    if (slot.layer >= 0) t.alignment = kPage;
    return b_.g.add(std::move(t));
  }

  void heads(Op* op) const {
    op->attrs[Attr::kHeads] = static_cast<double>(s_.heads);
    op->attrs[Attr::kKvHeads] = static_cast<double>(s_.kv_heads);
    op->attrs[Attr::kHeadDim] = static_cast<double>(s_.head_dim);
    op->attrs[Attr::kKvFormat] = static_cast<double>(s_.format);
  }

  TensorId layer(TensorId x) {
    const int64_t kv = s_.kv_heads * s_.head_dim, q_cols = s_.heads * s_.head_dim;
    const TensorId qkv = b_.matmul(blk("qkv"), x, q_cols + 2 * kv, 1);
    const std::string l = std::to_string(layer_);
    segments_ = local() ? std::max<int64_t>(1, s_.segments / 2) : s_.segments;
    tails_.clear();
    slots_.clear();
    for (int64_t s = 0; s < s_.sequences; ++s) {
      const std::string at = l + "." + std::to_string(s);
      tails_.push_back(add("kv.tail." + at, DType::kF16, Role::kState,
                           2 * kKvTile * s_.kv_heads, padded()));
      for (int64_t g = 0; g < segments_; ++g) {
        slots_.push_back(add("kv." + at + "." + std::to_string(g), DType::kI8, Role::kState,
                             s_.segment_tokens / kKvTile,
                             kv_tile_bytes(s_.format, s_.kv_heads, s_.head_dim),
                             {layer_, static_cast<int32_t>(s), static_cast<int32_t>(g)}));
      }
    }
    keys_ = mask_ = open_ = TensorId();
    const bool sparse = s_.sparse_tokens > 0 && !local() && segments_ > 1;
    if (sparse) {
      keys_ = add("kv.keys." + l + ".0", DType::kF32, Role::kState, segments_ + 1,
                  2 * s_.kv_heads * padded());
    }
    const TensorId q = b_.activation(blk("q"), q_cols);
    const int64_t open = kv_open_tiles(s_.rows, s_.sequences);
    if (open > 0) {
      open_ = add(blk("open"), DType::kF16, Role::kActivation,
                  open * 2 * kKvTile * s_.kv_heads, padded());
    }
    Op& rope = b_.op(OpKind::kRopeKv, blk("rope_kv"), {qkv, rope_}, q);
    heads(&rope);
    rope.updates = tails_;
    if (open_.valid()) rope.outputs.push_back(open_);
    if (sparse) mask_ = select(q);
    const TensorId attn = attention(q);
    x = b_.matmul(blk("proj"), attn, s_.cols, 1, x);
    if (s_.ff == 0) return x;
    const TensorId up = b_.matmul(blk("up"), x, s_.ff, 2);
    return b_.matmul(blk("down"), up, s_.cols, 1, x);
  }

  void scores(Op* op) const {
    heads(op);
    op->attrs[Attr::kScale] = 1;
    op->attrs[Attr::kSegmentTokens] = static_cast<double>(s_.segment_tokens);
    op->attrs[Attr::kSegments] = static_cast<double>(segments_);
    if (keys_.valid()) op->attrs[Attr::kSparseTokens] = static_cast<double>(s_.sparse_tokens);
  }

  TensorId select(TensorId q) {
    const TensorId mask = b_.activation(blk("mask"), segments_);
    scores(&b_.op(OpKind::kSelectKv, blk("select"), {q, keys_}, mask));
    return mask;
  }

  TensorId attention(TensorId q) {
    const TensorId out = b_.activation(blk("attn"), s_.heads * s_.head_dim);
    const int64_t parts = local() ? 1 : segments_, count = segments_ / parts;
    TensorId state;
    if (parts > 1) {
      state = b_.activation(blk("attn.state"),
                            s_.heads * (padded() + (mask_.valid() ? 3 : 2)));
    }
    for (int64_t part = 0; part < parts; ++part) {
      const bool first = part == 0, last = part + 1 == parts;
      std::vector<TensorId> inputs = {q};
      if (open_.valid() || mask_.valid()) inputs.push_back(open_);
      if (mask_.valid()) inputs.push_back(mask_);
      Op& op = b_.op(OpKind::kAttention, blk("attn:") + std::to_string(part), inputs,
                     last ? out : state);
      if (!first && !last) op.outputs.clear();
      op.updates = tails_;
      for (int64_t s = 0; s < s_.sequences; ++s) {
        const auto from = slots_.begin() + s * segments_ + part;
        op.updates.insert(op.updates.end(), from, from + count);
      }
      if (keys_.valid()) op.updates.push_back(keys_);
      if (!first) op.updates.push_back(state);
      scores(&op);
      op.attrs[Attr::kSegmentBegin] = static_cast<double>(part);
      op.attrs[Attr::kSegmentCount] = static_cast<double>(count);
      if (local()) op.attrs[Attr::kWindow] = 32;
    }
    return out;
  }

  const KvShape s_;
  GraphBuilder b_;
  int32_t layer_ = 0;
  int64_t segments_ = 0;
  TensorId rope_, open_, keys_, mask_;
  std::vector<TensorId> tails_, slots_;
};

inline std::shared_ptr<const Graph> kv_graph(const KvShape& shape) {
  return KvGraphBuilder(shape).build();
}

// Any of them: slots of half a page to some hundred KiB, weights that are streamed or not.
inline KvShape random_kv_shape(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  KvShape s;
  s.layers = static_cast<int>(draw(1, 5));
  s.window_layers = draw(0, 2) == 0 ? static_cast<int>(draw(0, s.layers - 1)) : 0;
  s.segments = draw(1, 7);
  s.segment_tokens = kKvTile * draw(1, 6);
  s.kv_heads = draw(1, 3);
  s.heads = s.kv_heads * draw(1, 3);
  s.head_dim = 16 * draw(1, 4);
  s.cols = 32 * draw(1, 8);
  s.ff = draw(0, 1) * 128 * draw(1, 12);
  s.format = static_cast<KvFormat>(draw(0, kKvFormatCount - 1));
  s.sequences = draw(0, 3) == 0 ? 2 : 1;
  s.rows = draw(0, 1) == 0 ? 1 : draw(2, 200);
  if (s.rows == 1 && s.sequences == 1 && draw(0, 3) == 0) s.sparse_tokens = s.segment_tokens * 3;
  return s;
}

}  // namespace headrace::test
