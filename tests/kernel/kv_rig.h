// KvRig: kAttention over the KV of some sequences, step by step, as a session runs it: rows of K
// and V go to tails and open tiles, as kRopeKv writes them, then each part of the attention runs.
//
// K, V and q are functions of (sequence, position) alone, so that the same position in another
// chunk, batch or layout must give the same bits. Everything starts as garbage.
#pragma once

#include <algorithm>
#include <cmath>

#include "headrace/ir/kv.h"
#include "headrace/kernel/half.h"
#include "tests/kernel/op_harness.h"

namespace headrace::test {

struct RigShape {
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;
  double softcap = 0;
};

struct RigOptions {
  RigShape shape;
  int64_t max_rows = 1;
  KvFormat format = KvFormat::kF16;
  std::vector<int64_t> parts = {3};  // segments of each
  int64_t segment_tokens = 128;
  int64_t sequences = 2;
  std::vector<int32_t> blocks;  // not empty: a pool, and the block of each (sequence, segment)
  DType out = DType::kF32;
  int garbage = 0xFF;
  float q_scale = 1;
  int64_t sparse_tokens = 0;  // > 0: keys are bounded
  bool masked = false;        // and segments have a mask, see mask()
};

class KvRig {
 public:
  explicit KvRig(RigOptions options) : o(std::move(options)) {
    graph.max_rows = o.max_rows;
    padded_ = round_up(o.shape.head_dim, 16);
    for (int64_t count : o.parts) segments_ += count;
    q_ = tensor(DType::kF32, o.max_rows, o.shape.heads * o.shape.head_dim);
    out_ = tensor(o.out, o.max_rows, o.shape.heads * o.shape.head_dim);
    const int64_t open = kv_open_tiles(o.max_rows, o.sequences);
    if (open > 0) open_ = tensor(DType::kF16, open * tile_rows(), padded_);
    add_kv();
    if (o.sparse_tokens > 0) {
      keys_ = tensor(DType::kF32, segments_ + 1, 2 * o.shape.kv_heads * padded_, Role::kState);
    }
    if (o.masked) mask_ = tensor(DType::kF32, 1, segments_);
    const TensorId state =
        tensor(DType::kF32, o.max_rows, o.shape.heads * (padded_ + (o.masked ? 3 : 2)));
    int64_t begin = 0;
    for (int64_t count : o.parts) {
      add_part(begin, count, state);
      begin += count;
    }
  }

  std::vector<float> k_row(int64_t sequence, int64_t position, int64_t kv_head) const {
    return kv_values(sequence, position, kv_head, 0);
  }
  std::vector<float> v_row(int64_t sequence, int64_t position, int64_t kv_head) const {
    return kv_values(sequence, position, kv_head, 1);
  }
  std::vector<float> q_row(int64_t sequence, int64_t position) const {
    return normal_values(o.shape.heads * o.shape.head_dim,
                         static_cast<uint32_t>(500000 + sequence * 10000 + position), o.q_scale);
  }
  uint16_t to16(float x) const {
    return o.format == KvFormat::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(o.shape.head_dim)); }

  // Bits of the output rows.
  std::string step(StepRows rows, int threads = 1) {
    rows.blocks = o.blocks;
    write_rows(rows);
    ThreadPool pool(threads, false);
    for (const Op& op : ops) run(op, rows, pool);
    const Buffer& b = buffers[out_.index()];
    const Bytes bytes = rows.rows() * row_bytes(o.out, o.shape.heads * o.shape.head_dim);
    return {reinterpret_cast<const char*>(b.data()), static_cast<size_t>(bytes)};
  }
  // Positions [begin, end) of a sequence in steps of `chunk` rows.
  std::string feed(int64_t begin, int64_t end, int64_t chunk, int32_t sequence = 0,
                   int threads = 1) {
    std::string out;
    for (int64_t at = begin; at < end; at += chunk) {
      out += step(step_of(std::min(chunk, end - at), at, sequence), threads);
    }
    return out;
  }

  float* mask() { return reinterpret_cast<float*>(buffers[mask_.index()].data()); }
  // [segments + 1][2 kv_heads padded]
  float* keys() { return reinterpret_cast<float*>(buffers[keys_.index()].data()); }
  float recall() { return keys()[segments_ * 2 * o.shape.kv_heads * padded_]; }

  RigOptions o;
  Graph graph;
  std::vector<Op> ops;
  std::vector<Buffer> buffers;

 private:
  int64_t tile_rows() const { return 2 * kKvTile * o.shape.kv_heads; }

  TensorId tensor(DType dtype, int64_t rows, int64_t cols, Role role = Role::kActivation) {
    Tensor t;
    t.name = "t" + std::to_string(graph.tensors.size());
    t.dtype = dtype;
    t.role = role;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(dtype, cols);
    buffers.emplace_back(t.bytes);
    buffers.back().fill(o.garbage);
    return graph.add(t);
  }

  void add_kv() {
    const int64_t tiles = o.segment_tokens / kKvTile;
    const Bytes tile = kv_tile_bytes(o.format, o.shape.kv_heads, o.shape.head_dim);
    if (!o.blocks.empty()) {
      const int64_t most = *std::max_element(o.blocks.begin(), o.blocks.end()) + 1;
      tails_ = {tensor(DType::kF16, o.sequences * tile_rows(), padded_, Role::kState)};
      slots_ = {tensor(DType::kI8, most * tiles, tile, Role::kState)};
      return;
    }
    for (int64_t s = 0; s < o.sequences; ++s) {
      tails_.push_back(tensor(DType::kF16, tile_rows(), padded_, Role::kState));
      for (int64_t g = 0; g < segments_; ++g) {
        slots_.push_back(tensor(DType::kI8, tiles, tile, Role::kState));
      }
    }
  }

  void add_part(int64_t begin, int64_t count, TensorId state) {
    const bool first = begin == 0, last = begin + count == segments_;
    Op op;
    op.kind = OpKind::kAttention;
    op.inputs = {q_};
    if (open_.valid() || mask_.valid()) op.inputs.push_back(open_);
    if (mask_.valid()) op.inputs.push_back(mask_);
    if (last) op.outputs = {out_};
    if (first && !last) op.outputs = {state};
    op.updates = tails_;
    if (!o.blocks.empty()) {
      op.updates.push_back(slots_[0]);
    } else {
      for (int64_t s = 0; s < o.sequences; ++s) {
        const auto from = slots_.begin() + s * segments_ + begin;
        op.updates.insert(op.updates.end(), from, from + count);
      }
    }
    if (keys_.valid()) op.updates.push_back(keys_);
    if (!first) op.updates.push_back(state);
    const auto number = [](int64_t x) { return static_cast<double>(x); };
    op.attrs = {{Attr::kHeads, number(o.shape.heads)},
                {Attr::kKvHeads, number(o.shape.kv_heads)},
                {Attr::kHeadDim, number(o.shape.head_dim)},
                {Attr::kScale, scale()},
                {Attr::kWindow, number(o.shape.window)},
                {Attr::kSoftcap, o.shape.softcap},
                {Attr::kSegmentTokens, number(o.segment_tokens)},
                {Attr::kSegments, number(segments_)},
                {Attr::kSegmentBegin, number(begin)},
                {Attr::kSegmentCount, number(count)},
                {Attr::kKvFormat, static_cast<double>(o.format)},
                {Attr::kPoolBlocks, o.blocks.empty() ? 0.0 : 1.0},
                {Attr::kSparseTokens, number(o.sparse_tokens)}};
    ops.push_back(op);
  }

  std::vector<float> kv_values(int64_t sequence, int64_t position, int64_t kv_head,
                               int64_t which) const {
    return normal_values(
        o.shape.head_dim,
        static_cast<uint32_t>(((sequence * 2000 + position) * 20 + kv_head) * 2 + which));
  }

  // Where rows lie is worked out here anew, position by position.
  void write_rows(const StepRows& rows) {
    int64_t opened = -1, first_tile = 0, tile = 0;
    for (int64_t r = 0; r < rows.rows(); ++r) {
      const auto i = static_cast<size_t>(r);
      const int64_t sequence = rows.sequences[i], position = rows.positions[i];
      if (r == 0 || rows.sequences[i - 1] != rows.sequences[i]) {
        first_tile = tile = position / kKvTile;
      } else if (position / kKvTile != tile) {
        tile = position / kKvTile;
        ++opened;
      }
      const TensorId tail = tails_[tails_.size() > 1 ? i_(sequence) : 0];
      const TensorId in = tile != first_tile ? open_ : tail;
      auto* at = reinterpret_cast<uint16_t*>(buffers[in.index()].data());
      if (tile != first_tile) at += opened * tile_rows() * padded_;
      if (tile == first_tile && tails_.size() == 1) at += sequence * tile_rows() * padded_;
      write_kv(at, sequence, position);
      const auto q = q_row(sequence, position);
      std::copy(q.begin(), q.end(),
                reinterpret_cast<float*>(buffers[q_.index()].data()) +
                    r * static_cast<int64_t>(q.size()));
    }
  }
  static size_t i_(int64_t i) { return static_cast<size_t>(i); }

  void write_kv(uint16_t* tile, int64_t sequence, int64_t position) {
    for (int64_t g = 0; g < o.shape.kv_heads; ++g) {
      for (int64_t which = 0; which < 2; ++which) {
        uint16_t* row = tile + ((2 * g + which) * kKvTile + position % kKvTile) * padded_;
        const auto x = kv_values(sequence, position, g, which);
        for (int64_t i = 0; i < padded_; ++i) {
          row[i] = i < o.shape.head_dim ? to16(x[i_(i)]) : uint16_t{0};
        }
      }
    }
  }

  void run(const Op& op, const StepRows& rows, ThreadPool& pool) {
    Buffer workspace(workspace_bytes(graph, op, pool.size()));
    workspace.fill(o.garbage);
    run_op(graph, op, buffers, rows, pool, workspace);
  }

  int64_t padded_ = 0, segments_ = 0;
  TensorId q_, out_, open_, keys_, mask_;
  std::vector<TensorId> tails_, slots_;
};

}  // namespace headrace::test
