// TrainRows: the loops over one row that the training ops are made of, one table an instruction
// set, as RowOps is for inference. The ops (train_norm.cc, train_act.cc, ...) say which rows.
//
// Promises
//   1. All tables give the same bits: train_rows_inl.h is compiled for each of them.
//   2. Rows may have any address and may be the same address for a result and for an input.
// Rows of type c (f32, bf16 or f16) are given as bytes; arithmetic is f32, results of two bytes are
// rounded once, to nearest even. No function allocates or keeps a pointer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/base/status.h"
#include "headrace/ir/graph.h"

namespace headrace {

// Those of hr.act, by its attribute.
enum class TrainAct : uint8_t {
  kSilu, kGeluTanh,               // gated: f(gate) * up
  kPlainGeluTanh, kPlainGelu, kPlainRelu, kPlainSilu,
  kGelu,                          // gated
  kPlainQuickGelu,
};
constexpr int64_t kTrainActs = 8;

// RMS norm (stat: 1 / sqrt(mean x^2 + eps)) or layer norm (stat: mean, 1 / sqrt(var + eps)).
struct NormKind {
  int64_t n = 0;
  bool layer = false;
  double eps = 0;
  bool add_one = false;  // weights are 1 + weight
};

// Which random numbers: see philox.h.
struct Draw {
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint32_t row = 0;
};

// The loops over rows of one type c.
struct TypedTrainRows {
  // y = normalised x * weight (+ bias, unless null); sums in double lanes.
  void (*norm)(NormKind kind, const std::byte* x, const std::byte* weight, const std::byte* bias,
               std::byte* y, float* stat);
  // dx = gradient of it (+ add, unless null).
  void (*norm_dx)(NormKind kind, const std::byte* dy, const std::byte* x, const std::byte* weight,
                  const float* stat, const std::byte* add, std::byte* dx);
  // dweight[j] += dy[j] * normalised x[j] and, unless null, dbias[j] += dy[j], for kind.n columns.
  void (*norm_dw)(NormKind kind, const std::byte* dy, const std::byte* x, const float* stat,
                  float* dweight, float* dbias);
  // out[i] = x[i] * cosines[i] + x[partner of i] * sines[i], see RowOps::rotate. `out` is not x.
  void (*rotate)(const std::byte* x, const float* cosines, const float* sines, std::byte* out,
                 int64_t n, bool half_split);
  // See hr.act: n is the columns of y.
  void (*act)(const std::byte* x, std::byte* y, int64_t n, TrainAct act);
  void (*act_grad)(const std::byte* dy, const std::byte* x, std::byte* dx, int64_t n, TrainAct act);
  // y = x * scale where the word drawn is not below threshold * 2^32, else 0.
  void (*dropout)(const std::byte* x, std::byte* y, int64_t n, Draw draw, float threshold,
                  float scale);
  // y = scale * x (* weight, f32, unless null).
  void (*scale)(const std::byte* x, const std::byte* weight, std::byte* y, int64_t n, float scale);
  void (*add)(const std::byte* a, const std::byte* b, std::byte* out, int64_t n);
  // sum[i] += x[i].
  void (*add_to)(const std::byte* x, float* sum, int64_t n);
};

// One optimizer step over flat arrays; constants are made in double and rounded once.
struct AdamwStep {
  const float* gradient = nullptr;
  std::byte* param = nullptr;  // f32, or bf16 rounded stochastically by `draw`
  float* m = nullptr;
  float* v = nullptr;
  std::byte* copy = nullptr;  // bf16 or f16; may be null
  bool f16_copy = false;
  bool bf16_param = false;
  float factor = 1;                    // of the gradient
  float beta1 = 0, rest1 = 1;          // rest: 1 - beta
  float beta2 = 0, rest2 = 1;
  float step = 0;                      // rate / (1 - beta1^t)
  float root = 1;                      // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float keep = 1;                      // 1 - rate * weight_decay
  Draw draw;                           // row 0 of as many values as there are
};
struct SgdStep {
  const float* gradient = nullptr;
  std::byte* param = nullptr;
  float* momentum = nullptr;  // may be null
  std::byte* copy = nullptr;
  bool f16_copy = false;
  bool bf16_param = false;
  float factor = 1, rate = 0, decay = 0, keep_momentum = 0;
  Draw draw;
};

struct TrainRows {
  TypedTrainRows f32, bf16, f16;
  // Of elements [begin, end); begin is a multiple of 64.
  void (*adamw)(const AdamwStep& step, int64_t begin, int64_t end);
  void (*sgd)(const SgdStep& step, int64_t begin, int64_t end);

  const TypedTrainRows& of(DType type) const {
    if (type == DType::kF16) return f16;
    HR_CHECK(type == DType::kF32 || type == DType::kBF16, "training rows are f32, bf16 or f16");
    return type == DType::kF32 ? f32 : bf16;
  }
};

const TrainRows& scalar_train_rows();
// Only to be called where supported() says so.
const TrainRows& avx2_train_rows();
const TrainRows& avx512_train_rows();
// The table of current_isa().
const TrainRows& train_rows();

}  // namespace headrace
