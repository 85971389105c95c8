// hr.loss and hr.mean_loss. Tokens go in chunks (train_loss_chunk): logits of the chunk = x . W^T,
// the gradient of the logits in their place, dx = that . W, and dW of each tile += that^T . x.
#include <algorithm>
#include <cstring>

#include "headrace/ir/train_ops.h"
#include "headrace/kernel/gemm.h"
#include "headrace/kernel/train_linear.h"
#include "headrace/kernel/train_loss_rows.h"
#include "headrace/kernel/train_operands.h"

namespace headrace {
namespace {

int64_t counted_targets(std::span<const int32_t> targets) {
  return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
}

// Sizes, products without addresses, and the workspace, in this order: rows of the table, logits,
// scratch of the products.
class Loss {
 public:
  Loss(const Graph& graph, const Op& op) : graph_(graph), op_(op) {
    for (size_t i = 0; i < tiles(); ++i) vocab_ += tile(i).rows;
    chunk_ = std::min(train_loss_chunk(vocab_), x().rows);
    // A line more than the row needs, so that the rows of a column differ in cache set.
    stride_ = round_up(vocab_, 16) + 16;
  }

  const Tensor& x() const { return graph_.at(op_.inputs[0]); }
  const Tensor& tile(size_t i) const { return graph_.at(op_.inputs[1 + i]); }
  bool bias() const { return op_.iattr(Attr::kBias) > 0; }
  size_t tiles() const { return loss_tiles(op_); }
  int64_t vocab() const { return vocab_; }
  int64_t chunk() const { return chunk_; }
  int64_t stride() const { return stride_; }  // floats
  int64_t grad() const { return op_.iattr(Attr::kGrad); }
  // Gradients of logits of two bytes stand where logits of four were.
  int64_t gradient_stride() const { return x().dtype == DType::kF32 ? stride_ : 2 * stride_; }

  Bytes table_bytes() const {
    return round_up(static_cast<Bytes>(tiles() * sizeof(GemmRows)), kLine);
  }
  Bytes logits_bytes() const { return chunk_ * stride_ * 4; }
  Bytes scratch_bytes(int threads) const {
    Bytes most = gemm_workspace(logits(chunk_), threads);
    if (grad() > 0) most = std::max(most, gemm_workspace(dx(chunk_), threads));
    for (size_t i = 0; grad() > 1 && i < tiles(); ++i) {
      most = std::max(most, gemm_workspace(dw(i, chunk_), threads));
    }
    return most;
  }

  GemmArgs logits(int64_t rows) const {
    GemmArgs g;
    g.layout = GemmLayout::kLinear;
    g.type = x().dtype;
    g.m = rows, g.n = vocab_, g.k = x().cols;
    g.a_stride = x().cols;
    g.c_stride = stride_;
    return g;
  }
  GemmArgs dx(int64_t rows) const {
    GemmArgs g;
    g.layout = GemmLayout::kDx;
    g.type = g.out_type = x().dtype;
    g.m = rows, g.n = x().cols, g.k = vocab_;
    g.a_stride = gradient_stride();
    g.c_stride = x().cols;
    return g;
  }
  GemmArgs dw(size_t i, int64_t rows) const {
    GemmArgs g;
    g.layout = GemmLayout::kDw;
    g.type = x().dtype;
    g.m = tile(i).rows, g.n = x().cols, g.k = rows;
    g.a_stride = gradient_stride();
    g.c_stride = x().cols;
    g.add = true;
    return g;
  }

 private:
  const Graph& graph_;
  const Op& op_;
  int64_t vocab_ = 0, chunk_ = 0, stride_ = 0;
};

class LossRun {
 public:
  explicit LossRun(const OpContext& ctx) : ctx_(ctx), loss_(ctx.graph, ctx.op) {
    std::byte* at = ctx.workspace.data();
    GemmRows* table = reinterpret_cast<GemmRows*>(at);
    for (size_t i = 0; i < loss_.tiles(); ++i) {
      const std::byte* bias = loss_.bias() ? ctx.inputs[1 + loss_.tiles() + i] : nullptr;
      table[i] = GemmRows{ctx.inputs[1 + i], loss_.tile(i).rows, bias};
    }
    table_ = {table, loss_.tiles()};
    logits_ = at + loss_.table_bytes();
    scratch_ = ctx.workspace.subspan(
        static_cast<size_t>(loss_.table_bytes() + loss_.logits_bytes()));
    std::span<const int32_t> targets = ctx.rows.targets;
    HR_CHECK(static_cast<int64_t>(targets.size()) >= first_row() + loss_.x().rows,
             "every row of hr.loss has a target, or -1");
    if (ctx.op.iattr(Attr::kOwnMean) == 1) {
      targets = targets.subspan(static_cast<size_t>(first_row()),
                                static_cast<size_t>(loss_.x().rows));
    }
    const double scale = ctx.rows.loss_scale * ctx.op.attr(Attr::kScale, 1);
    if (ctx.op.iattr(Attr::kWeights) == 1) {
      weights_ = reinterpret_cast<const float*>(ctx.inputs.back());
      gradient_ = static_cast<float>(scale);
      return;
    }
    const int64_t counted = counted_targets(targets);
    if (counted > 0) {
      gradient_ = static_cast<float>(scale / static_cast<double>(counted));
    }
  }

  void run() {
    for (int64_t t = 0; t < loss_.x().rows; t += loss_.chunk()) {
      chunk(t, std::min(loss_.chunk(), loss_.x().rows - t));
    }
  }

 private:
  int64_t first_row() const { return ctx_.op.iattr(Attr::kRowBegin); }

  void chunk(int64_t t, int64_t rows) {
    const Bytes x_row = row_bytes(loss_.x().dtype, loss_.x().cols);
    const std::byte* x = ctx_.inputs[0] + t * x_row;
    GemmArgs logits = loss_.logits(rows);
    logits.a = x;
    logits.b = table_;
    logits.c = logits_;
    gemm(logits, scratch_, ctx_.pool);
    ctx_.pool.for_range(rows, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) row(t + r, logits_ + r * loss_.stride() * 4);
    });
    if (loss_.grad() == 0) return;
    GemmArgs dx = loss_.dx(rows);
    dx.a = logits_;
    dx.b = table_;
    dx.c = ctx_.outputs[1] + t * x_row;
    gemm(dx, scratch_, ctx_.pool);
    if (loss_.grad() == 1) return;
    add_to_targets(x, rows, t == 0);
  }

  // The part of a chunk in the gradients of tiles and biases.
  void add_to_targets(const std::byte* x, int64_t rows, bool first_chunk) {
    const DType type = loss_.x().dtype;
    const bool update = !ctx_.op.updates.empty(), add = update || !first_chunk;
    const auto target = [&](size_t i) { return update ? ctx_.updates[i] : ctx_.outputs[2 + i]; };
    const GemmRows x_rows{x, rows, nullptr};
    int64_t first = 0;
    for (size_t i = 0; i < loss_.tiles(); ++i) {
      GemmArgs dw = loss_.dw(i, rows);
      dw.a = logits_ + row_bytes(type, first);
      dw.b = {&x_rows, 1};
      dw.c = target(i);
      dw.add = add;
      gemm(dw, scratch_, ctx_.pool);
      first += loss_.tile(i).rows;
      if (!loss_.bias()) continue;
      column_sums({dw.a, row_bytes(type, dw.a_stride), type, rows, dw.m, add,
                   reinterpret_cast<float*>(target(loss_.tiles() + i))},
                  ctx_.pool);
    }
  }

  void row(int64_t t, std::byte* logits) {
    float* out = reinterpret_cast<float*>(ctx_.outputs[0]) + t;
    const int32_t target = ctx_.rows.targets[static_cast<size_t>(first_row() + t)];
    HR_CHECK(target < loss_.vocab(), "a target is a row of the table");
    if (target < 0) {
      *out = 0;
      std::memset(logits, 0, static_cast<size_t>(loss_.stride()) * 4);
      return;
    }
    LossRow row;
    row.x = reinterpret_cast<float*>(logits);
    row.n = loss_.vocab();
    row.target = target;
    row.grad = loss_.grad() > 0;
    row.type = loss_.x().dtype;
    row.gradient = weights_ == nullptr ? gradient_ : gradient_ * weights_[t];
    row.smoothing = ctx_.op.attr(Attr::kSmoothing);
    *out = loss_row()(row);
  }

  const OpContext& ctx_;
  Loss loss_;
  std::span<const GemmRows> table_;
  std::byte* logits_ = nullptr;
  std::span<std::byte> scratch_;
  const float* weights_ = nullptr;  // [T]
  float gradient_ = 0;
};

}  // namespace

LossRowFn loss_row() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni: return loss_row_avx512;
    case Isa::kAvx2: return loss_row_avx2;
    case Isa::kScalar: break;
  }
  return loss_row_scalar;
}

int64_t train_loss_chunk(int64_t vocab) {
  return std::clamp<int64_t>(32 * kMiB / (vocab * 4) / 16 * 16, 64, 512);
}

Bytes train_loss_workspace(const Graph& graph, const Op& op, int threads) {
  const Loss loss(graph, op);
  return loss.table_bytes() + loss.logits_bytes() + loss.scratch_bytes(threads);
}

void train_loss(const OpContext& ctx) { LossRun(ctx).run(); }

void train_mean_loss(const OpContext& ctx) {
  double sum = 0;
  for (size_t i = 0; i < ctx.inputs.size(); ++i) {
    const float* loss = reinterpret_cast<const float*>(ctx.inputs[i]);
    for (int64_t r = 0; r < input_tensor(ctx, i).rows; ++r) sum += static_cast<double>(loss[r]);
  }
  const int64_t counted = counted_targets(ctx.rows.targets);
  *reinterpret_cast<float*>(ctx.outputs[0]) =
      counted == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(counted));
}

}  // namespace headrace
