// Graphs for the tests of ir, sim, plan and run: a builder, and layered graphs drawn at
// random.
//
// They compute from tokens: an embedding table read by rows, then norms, matmuls cut into
// tiles, gates, sums. Weights lie in one file, one after another, at offsets that are
// multiples of 32 (as in GGUF files), so that nearly all of them start inside a page.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headrace/ir/graph.h"

namespace headrace::test {

class GraphBuilder {
 public:
  explicit GraphBuilder(const std::string& name, int64_t max_rows = 1) {
    g.name = name;
    g.max_rows = max_rows;
    g.max_output_rows = max_rows;
  }

  Bytes file_bytes() const { return round_up(file_at_, kPage); }

  TensorId weight(const std::string& name, int64_t rows, int64_t cols,
                  DType dtype = DType::kF32) {
    Tensor t = tensor(name, dtype, Role::kWeight, rows, cols);
    t.source = {0, file_at_, t.bytes};
    file_at_ += round_up(t.bytes, 32);
    return g.add(std::move(t));
  }
  TensorId constant(const std::string& name, std::vector<float> values) {
    Tensor t = tensor(name, DType::kF32, Role::kConstant, 1,
                      static_cast<int64_t>(values.size()));
    t.constant = std::move(values);
    return g.add(std::move(t));
  }
  TensorId activation(const std::string& name, int64_t cols, DType dtype = DType::kF32) {
    return g.add(tensor(name, dtype, Role::kActivation, g.max_rows, cols));
  }

  // x = rows of a table [vocab, cols] that the tokens name.
  TensorId embed(int64_t vocab, int64_t cols) {
    Tensor t = tensor("table.rows", DType::kF32, Role::kGathered, g.max_rows, cols);
    t.source = {0, file_at_, vocab * row_bytes(DType::kF32, cols)};
    file_at_ += round_up(t.source.bytes, 32);
    t.bytes = t.rows * gathered_row_stride(t);
    const TensorId rows = g.add(std::move(t));
    const TensorId x = activation("x", cols);
    op(OpKind::kEmbed, "embed", {rows}, x).attrs[Attr::kScale] = 1;
    return x;
  }

  Op& op(OpKind kind, const std::string& name, std::vector<TensorId> inputs,
         TensorId output) {
    Op o;
    o.kind = kind;
    o.name = name;
    o.inputs = std::move(inputs);
    o.outputs = {output};
    g.ops.push_back(std::move(o));
    return g.ops.back();
  }
  TensorId norm(const std::string& name, TensorId x, TensorId weight,
                DType out = DType::kF32) {
    const TensorId y = activation(name, g.at(x).cols, out);
    op(OpKind::kRmsNorm, name, {x, weight}, y).attrs = {{Attr::kEps, 1e-5}};
    return y;
  }
  // y = x . w^T (+ residual), w in `tiles` tiles of `dtype`.
  TensorId matmul(const std::string& name, TensorId x, int64_t rows, int tiles,
                  TensorId residual = TensorId(), DType dtype = DType::kF32) {
    std::vector<TensorId> weights;
    for (int t = 0; t < tiles; ++t) {
      weights.push_back(weight(name + ".weight:" + std::to_string(t),
                               rows * (t + 1) / tiles - rows * t / tiles, g.at(x).cols,
                               dtype));
    }
    return matmul_of(name, x, weights, residual);
  }
  TensorId matmul_of(const std::string& name, TensorId x,
                     const std::vector<TensorId>& tiles, TensorId residual = TensorId()) {
    int64_t rows = 0;
    for (TensorId w : tiles) rows += g.at(w).rows;
    const TensorId y = activation(name, rows);
    int64_t column = 0;
    for (size_t t = 0; t < tiles.size(); ++t) {
      std::vector<TensorId> inputs = {x, tiles[t]};
      if (residual.valid()) inputs.insert(inputs.end(), {TensorId(), residual});
      op(OpKind::kMatMul, name + ":" + std::to_string(t), std::move(inputs), y)
          .attrs[Attr::kColBegin] = static_cast<double>(column);
      column += g.at(tiles[t]).rows;
    }
    return y;
  }

  // Makes `out` the output and hands the graph over.
  std::shared_ptr<const Graph> finish(TensorId out) {
    g.tensors[out.index()].role = Role::kOutput;
    g.tensors[out.index()].name = "out";
    return std::make_shared<const Graph>(std::move(g));
  }

  Graph g;

 private:
  static Tensor tensor(const std::string& name, DType dtype, Role role, int64_t rows,
                       int64_t cols) {
    Tensor t;
    t.name = name;
    t.dtype = dtype;
    t.role = role;
    t.rows = rows;
    t.cols = cols;
    t.bytes = rows * row_bytes(dtype, cols);
    return t;
  }
  Bytes file_at_ = 96;
};

struct SmallGraph {
  std::shared_ptr<const Graph> graph;
  Bytes file_bytes = 0;
  int64_t vocab = 0;
};

// `layers` layers of norm, two tiled matmuls and a residual; weights of 64 to about 200
// KiB.
inline SmallGraph layered_graph(int layers, int64_t cols = 128, int64_t max_rows = 2) {
  GraphBuilder b("layered", max_rows);
  TensorId x = b.embed(32, cols);
  for (int l = 0; l < layers; ++l) {
    const std::string p = "blk." + std::to_string(l) + ".";
    const TensorId n = b.norm(p + "norm", x, b.weight(p + "norm.weight", 1, cols));
    const TensorId up = b.matmul(p + "up", n, 4 * cols, 2);
    x = b.matmul(p + "down", up, cols, 2, x);
  }
  const Bytes bytes = b.file_bytes();
  return {b.finish(x), bytes, 32};
}

// A random layered graph: every op kind that needs no KV, weights shared between layers
// now and then, residuals at a distance, activations read again much later. `workspace`
// is set by the caller where kernels need it.
inline SmallGraph random_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  GraphBuilder b("random " + std::to_string(seed), draw(1, 4));
  const int64_t cols = 64 * draw(1, 4);
  const int64_t vocab = draw(4, 40);
  std::vector<TensorId> past = {b.embed(vocab, cols)};  // all [rows, cols] f32
  std::vector<std::vector<TensorId>> used_tiles;  // of [cols, cols] f32, to be shared
  const auto any = [&] {
    return past[past.size() - 1 -
                static_cast<size_t>(draw(
                    0, std::min<int64_t>(5, static_cast<int64_t>(past.size()) - 1)))];
  };
  const int64_t blocks = draw(2, 14);
  for (int64_t i = 0; i < blocks; ++i) {
    const std::string p = "b" + std::to_string(i) + ".";
    const TensorId x = any();
    const TensorId residual = draw(0, 1) ? any() : TensorId();
    switch (draw(0, 6)) {
      case 0:
        past.push_back(b.norm(p + "norm", x, b.weight(p + "norm.w", 1, cols)));
        break;
      case 1: {
        const TensorId sum = b.activation(p + "sum", cols);
        b.op(OpKind::kAdd, p + "add", {x, any()}, sum);
        past.push_back(sum);
        break;
      }
      case 2: {
        const TensorId capped = b.activation(p + "capped", cols);
        b.op(OpKind::kSoftcap, p + "softcap", {x}, capped).attrs[Attr::kSoftcap] = 3;
        past.push_back(capped);
        break;
      }
      case 3: {  // quantised weights
        const TensorId q =
            b.norm(p + "q8", x, b.weight(p + "q8.w", 1, cols), DType::kActQ8);
        past.push_back(b.matmul(p + "q", q, cols, static_cast<int>(draw(1, 3)), residual,
                                draw(0, 1) ? DType::kQ8_0 : DType::kQ4_1));
        break;
      }
      case 4: {  // gated feed-forward
        const int64_t ff = 64 * draw(1, 6);
        const TensorId gate_up =
            b.matmul(p + "gate_up", x, 2 * ff, static_cast<int>(draw(1, 4)));
        const TensorId gated = b.activation(p + "gated", ff);
        b.op(OpKind::kGatedAct, p + "act", {gate_up}, gated);
        past.push_back(
            b.matmul(p + "down", gated, cols, static_cast<int>(draw(1, 2)), residual));
        break;
      }
      case 5:  // a weight used again
        if (!used_tiles.empty() && draw(0, 1)) {
          const auto& tiles = used_tiles[static_cast<size_t>(
              draw(0, static_cast<int64_t>(used_tiles.size()) - 1))];
          past.push_back(b.matmul_of(p + "again", x, tiles, residual));
          break;
        }
        [[fallthrough]];
      default: {
        std::vector<TensorId> tiles;
        const int64_t n = draw(1, 4);
        for (int64_t t = 0; t < n; ++t) {
          tiles.push_back(b.weight(p + "w:" + std::to_string(t),
                                   cols * (t + 1) / n - cols * t / n, cols));
        }
        used_tiles.push_back(tiles);
        past.push_back(b.matmul_of(p + "mm", x, tiles, residual));
      }
    }
  }
  // The output reads the newest, so at least that chain is used.
  const TensorId out =
      b.matmul("out", past.back(), 16 * draw(1, 8), static_cast<int>(draw(1, 3)));
  const Bytes bytes = b.file_bytes();
  return {b.finish(out), bytes, vocab};
}

}  // namespace headrace::test
