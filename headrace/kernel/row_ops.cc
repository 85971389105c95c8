#include "headrace/kernel/row_ops.h"

#include <cmath>

#include "headrace/kernel/float_math.h"
#include "headrace/kernel/half.h"

namespace headrace {
namespace {

double tree_sum(double (&lane)[16]) {
  for (int width = 8; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  }
  return lane[0];
}

double sum_squares(const float* x, int64_t n) {
  double lane[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    lane[i % 16] = std::fma(v, v, lane[i % 16]);
  }
  return tree_sum(lane);
}

void scale_weight(const float* x, float scale, const float* weight, const float* residual,
                  float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float y = x[i] * scale * weight[i];
    out[i] = residual != nullptr ? residual[i] + y : y;
  }
}

void rotate(const float* x, const float* cosines, const float* sines, float* out,
            int64_t n, bool half_split) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t partner = !half_split ? (i ^ 1) : i < n / 2 ? i + n / 2 : i - n / 2;
    out[i] = x[i] * cosines[i] + x[partner] * sines[i];
  }
}

void to_half(const float* x, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_f16(x[i]);
}

void gated(const float* gate, const float* up, float* out, int64_t n, Act act) {
  for (int64_t i = 0; i < n; ++i) {
    const float a = act == Act::kSilu ? silu_f32(gate[i]) : gelu_tanh_f32(gate[i]);
    out[i] = a * up[i];
  }
}

void add(const float* a, const float* b, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

void scale(const float* x, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

void softcap(const float* x, float cap, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = softcap_f32(x[i], cap);
}

double sum_exp(const float* x, int64_t n) {
  double lane[16] = {};
  for (int64_t i = 0; i < n; ++i) lane[i % 16] += static_cast<double>(exp_f32(x[i]));
  return tree_sum(lane);
}

}  // namespace

const RowOps& reference_row_ops() {
  static constexpr RowOps kOps{sum_squares, scale_weight, rotate,  to_half, gated,
                               add,         scale,        softcap, sum_exp};
  return kOps;
}

const RowOps& row_ops() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni:
      return avx512_row_ops();
    case Isa::kAvx2:
      return avx2_row_ops();
    case Isa::kScalar:
      break;
  }
  return reference_row_ops();
}

}  // namespace headrace
