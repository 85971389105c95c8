#include "headrace/cost/predictor.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headrace {
namespace {

using Features = std::array<double, kKernelFeatures>;
constexpr int kSweeps = 2000;  // of coordinate descent; most fits settle in tens
// The part of a kernel's time that does not grow with size is its launch: 10 to 30 us where
// measured. Without this limit kernels of one large size alone would seem to take as long at any
// size.
constexpr double kMostConstantSeconds = 20e-6;

Features features_of(const KernelWork& w) {
  return {1.0, w.traffic, w.output_bytes, w.flops, w.volume};
}

double dot(const Features& a, const Features& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Weights w >= 0, the first at most `most_constant`, that minimise the mean of
// (x.w / y - 1)^2 + ridge |w scaled|^2, where each feature is scaled to a mean square of one.
Features fit(const std::vector<Features>& x, const std::vector<double>& y, double most_constant,
             double ridge) {
  const double n = static_cast<double>(x.size());
  Features scale{};
  std::vector<Features> a(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t f = 0; f < kKernelFeatures; ++f) {
      a[i][f] = x[i][f] / y[i];
      scale[f] += a[i][f] * a[i][f] / n;
    }
  }
  // Normal equations of the scaled problem: gram v = target.
  std::array<Features, kKernelFeatures> gram{};
  Features target{}, v{};
  for (size_t f = 0; f < kKernelFeatures; ++f) scale[f] = std::sqrt(scale[f]);
  for (const Features& row : a) {
    for (size_t f = 0; f < kKernelFeatures; ++f) {
      if (scale[f] == 0) continue;
      target[f] += row[f] / scale[f] / n;
      for (size_t g = 0; g < kKernelFeatures; ++g) {
        if (scale[g] != 0) gram[f][g] += row[f] / scale[f] * row[g] / scale[g] / n;
      }
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double moved = 0;
    for (size_t f = 0; f < kKernelFeatures; ++f) {
      if (scale[f] == 0) continue;
      const double rest = target[f] - dot(gram[f], v) + gram[f][f] * v[f];
      const double most = f == 0 ? most_constant * scale[f] : HUGE_VAL;
      const double next = std::clamp(rest / (gram[f][f] + ridge), 0.0, most);
      moved = std::max(moved, std::abs(next - v[f]));
      v[f] = next;
    }
    if (moved < 1e-10) break;
  }
  Features w{};
  for (size_t f = 0; f < kKernelFeatures; ++f) w[f] = scale[f] == 0 ? 0 : v[f] / scale[f];
  return w;
}

KernelModel fit_kernel(const std::vector<const KernelSample*>& samples, double ridge) {
  KernelModel model;
  std::vector<Features> x;
  std::vector<double> y;
  for (const KernelSample* s : samples) {
    if (!(s->seconds > 0)) continue;
    x.push_back(features_of(s->work));
    y.push_back(s->seconds);
  }
  model.samples = static_cast<int64_t>(samples.size());
  if (!x.empty()) model.seconds = fit(x, y, kMostConstantSeconds, ridge);
  x.clear();
  y.clear();
  for (const KernelSample* s : samples) {
    if (s->workspace <= 0) continue;
    x.push_back(features_of(s->work));
    y.push_back(static_cast<double>(s->workspace));
  }
  if (!x.empty()) model.workspace = fit(x, y, HUGE_VAL, ridge);
  return model;
}

using ByKernel = std::map<std::string, std::vector<const KernelSample*>>;

ByKernel by_kernel(const std::vector<KernelSample>& samples) {
  ByKernel out;
  for (const KernelSample& s : samples) {
    if (s.seconds > 0 || s.workspace >= 0) out[s.kernel].push_back(&s);
  }
  return out;
}

struct Sums {
  PredictorScore score;
  double measured = 0;

  void add(const Machine& m, const KernelSample& s, const KernelModel* model) {
    const double roofline = roofline_seconds(m, s.work);
    const double learned = model == nullptr ? roofline : predicted_seconds(*model, s.work);
    ++score.kernels;
    score.roofline_error += std::abs(roofline - s.seconds) / s.seconds;
    score.learned_error += std::abs(learned - s.seconds) / s.seconds;
    score.roofline_total += roofline;
    score.learned_total += learned;
    measured += s.seconds;
  }

  PredictorScore finish() {
    if (score.kernels == 0) return score;
    score.roofline_error /= static_cast<double>(score.kernels);
    score.learned_error /= static_cast<double>(score.kernels);
    score.roofline_total /= measured;
    score.learned_total /= measured;
    return score;
  }
};

}  // namespace

double roofline_seconds(const Machine& m, const KernelWork& w) {
  const double compute = w.flops / (2 * m.matmul_per_s[static_cast<size_t>(w.dtype)]);
  return std::max(compute, w.traffic / m.memory_bytes_per_s) +
         static_cast<double>(m.op_overhead_ns) * 1e-9;
}

double predicted_seconds(const KernelModel& model, const KernelWork& work) {
  return dot(model.seconds, features_of(work));
}

std::vector<KernelSample> samples_of(const Graph& graph) {
  std::vector<KernelSample> out;
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kKernel || !(op.attr(Attr::kSeconds) > 0)) continue;
    out.push_back({op.kernel, work_of(graph, op), op.attr(Attr::kSeconds), op.workspace});
  }
  return out;
}

std::map<std::string, KernelModel> train_kernels(const std::vector<KernelSample>& samples,
                                                 double ridge) {
  std::map<std::string, KernelModel> out;
  for (const auto& [kernel, list] : by_kernel(samples)) out[kernel] = fit_kernel(list, ridge);
  return out;
}

Bytes predicted_workspace(const Machine& m, const Graph& g, const Op& op) {
  const auto model = m.kernels.find(op.kernel);
  if (op.kind != OpKind::kKernel || model == m.kernels.end()) return 0;
  const double bytes = dot(model->second.workspace, features_of(work_of(g, op)));
  return static_cast<Bytes>(std::ceil(std::min(bytes, 1e15)));
}

int64_t fill_workspaces(const Machine& m, Graph* graph) {
  int64_t set = 0;
  for (Op& op : graph->ops) {
    if (op.workspace != 0) continue;
    op.workspace = predicted_workspace(m, *graph, op);
    if (op.workspace != 0) ++set;
  }
  return set;
}

PredictorScore cross_validate(const Machine& m, const std::vector<KernelSample>& samples,
                              double ridge) {
  Sums sums;
  for (const auto& [kernel, list] : by_kernel(samples)) {
    std::map<Features, std::vector<const KernelSample*>> shapes;
    for (const KernelSample* s : list) {
      if (s->seconds > 0) shapes[features_of(s->work)].push_back(s);
    }
    for (const auto& [shape, left_out] : shapes) {
      std::vector<const KernelSample*> others;
      for (const auto& [other, its] : shapes) {
        if (other != shape) others.insert(others.end(), its.begin(), its.end());
      }
      const KernelModel model = others.empty() ? KernelModel{} : fit_kernel(others, ridge);
      for (const KernelSample* s : left_out) sums.add(m, *s, others.empty() ? nullptr : &model);
    }
  }
  return sums.finish();
}

PredictorScore score_on(const Machine& m, const std::vector<KernelSample>& known,
                        const std::vector<KernelSample>& unseen, double ridge) {
  const auto models = train_kernels(known, ridge);
  Sums sums;
  for (const KernelSample& s : unseen) {
    const auto model = models.find(s.kernel);
    if (s.seconds > 0) sums.add(m, s, model == models.end() ? nullptr : &model->second);
  }
  return sums.finish();
}

}  // namespace headrace
