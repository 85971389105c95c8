#include "headrace/report/whatif.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "headrace/base/system_memory.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

constexpr size_t kSteps = 5;
constexpr int64_t kMostSteps = 64;

// A machine whose link is that fast.
Machine with_rate(const Machine& machine, size_t link, double bytes_per_s) {
  Machine m = machine;
  const int32_t group = m.tiers[link].group;
  for (size_t i = 1; i < m.tiers.size(); ++i) {
    if (i != link && (group < 0 || m.tiers[i].group != group)) continue;
    m.tiers[i].load_bytes_per_s = m.tiers[i].store_bytes_per_s = bytes_per_s;
  }
  return m;
}

struct Planned {
  bool fits = false;
  Program program;
  Nanos ns = 0;
};

// The faster one of the two neighbours below on a machine with `tiers`; null: none fits.
const Program* better(const Planned* less, const Planned* slower,
                      const std::vector<TierInfo>& tiers) {
  SimOptions options;
  options.tiers = tiers;
  const Program* best = nullptr;
  Nanos least = 0;
  for (const Planned* p : {less, slower}) {
    if (p == nullptr || !p->fits) continue;
    const Nanos ns = simulate(p->program, options).total_ns;
    if (best != nullptr && ns >= least) continue;
    best = &p->program;
    least = ns;
  }
  return best;
}

// "A..B:N" into its parts; N is kSteps when it is not said, 1 when there is no range.
Status split_range(const std::string& text, std::string* from, std::string* to, size_t* steps) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos) {
    *from = *to = text;
    *steps = 1;
    return {};
  }
  *from = text.substr(0, dots);
  *to = text.substr(dots + 2);
  *steps = kSteps;
  const size_t colon = to->find(':');
  if (colon == std::string::npos) return {};
  int64_t n = 0;
  const char* end = to->data() + to->size();
  const auto read = std::from_chars(to->data() + colon + 1, end, n);
  if (read.ec != std::errc() || read.ptr != end || n < 2 || n > kMostSteps) {
    return error(Code::kUsage, "%s: the number of steps after ':' must be 2 to %lld", text.c_str(),
                 static_cast<long long>(kMostSteps));
  }
  *steps = static_cast<size_t>(n);
  to->resize(colon);
  return {};
}

Result<double> gigabytes(const std::string& text) {
  double x = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), x);
  const bool good = read.ec == std::errc() && read.ptr == text.data() + text.size() &&
                    std::isfinite(x) && x > 0 && x < 1e6;
  if (good) return x * 1e9;
  return error(Code::kUsage, "'%s' is no bandwidth; write GB/s like 16..128, 16..128:7 or 33.6",
               text.c_str());
}

}  // namespace

Result<std::vector<Bytes>> parse_budgets(const std::string& text) {
  std::string from, to;
  size_t steps = 0;
  HR_TRY(split_range(text, &from, &to, &steps));
  HR_ASSIGN(const Bytes least, parse_size(from, 0));
  HR_ASSIGN(const Bytes most, parse_size(to, 0));
  if (most < least) return error(Code::kUsage, "%s: the range must ascend", text.c_str());
  std::vector<Bytes> out;
  for (size_t i = 0; i < steps; ++i) {
    const double part = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    Bytes b = least + static_cast<Bytes>(part * static_cast<double>(most - least));
    if (i > 0 && i + 1 < steps && most - least > 4 * kMostSteps * kMiB) b = round_down(b, kMiB);
    if (i + 1 == steps) b = most;
    if (out.empty() || b > out.back()) out.push_back(b);
  }
  return out;
}

Result<std::vector<double>> parse_bandwidths(const std::string& text) {
  std::string from, to;
  size_t steps = 0;
  HR_TRY(split_range(text, &from, &to, &steps));
  HR_ASSIGN(const double least, gigabytes(from));
  HR_ASSIGN(const double most, gigabytes(to));
  if (most < least) return error(Code::kUsage, "%s: the range must ascend", text.c_str());
  std::vector<double> out;
  for (size_t i = 0; i < steps; ++i) {
    const double part = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    const double b = i + 1 == steps ? most : least * std::pow(most / least, part);
    if (out.empty() || b > out.back()) out.push_back(b);
  }
  return out;
}

Result<Whatif> what_if(const StepRequest& request, const std::string& link,
                       const std::vector<Bytes>& budgets, const std::vector<double>& bandwidths,
                       const std::function<bool(size_t done)>& before) {
  const std::vector<TierInfo>& tiers = request.machine->tiers;
  size_t tier = 1;
  while (tier < tiers.size() && tiers[tier].name != link) ++tier;
  if (tier >= tiers.size()) {
    std::string names;
    for (size_t i = 1; i < tiers.size(); ++i) names += (i > 1 ? ", " : "") + tiers[i].name;
    return error(Code::kUsage, "'%s' has no link to a tier '%s' (it has %s)",
                 request.machine->name.c_str(), link.c_str(), names.c_str());
  }
  Whatif w;
  w.workload = request.name;
  w.machine = request.machine->name;
  w.link = link;
  w.budgets = budgets;
  w.bandwidths = bandwidths;
  std::vector<Planned> row(budgets.size());  // of the bandwidth before, replaced as we go
  for (double bandwidth : bandwidths) {
    const Machine machine = with_rate(*request.machine, tier, bandwidth);
    for (size_t i = 0; i < budgets.size(); ++i) {
      if (!before(w.points.size())) return error(Code::kCancelled, "stopped on request");
      StepRequest r = request;
      r.machine = &machine;
      r.budget = budgets[i];
      const bool first = w.points.size() < budgets.size();
      r.inherit = better(i > 0 ? &row[i - 1] : nullptr, first ? nullptr : &row[i], machine.tiers);
      HR_ASSIGN(StepResult result, plan_step(r));
      WhatifPoint point{budgets[i], bandwidth};
      if (auto* plan = std::get_if<StepPlan>(&result)) {
        point.fits = true;
        point.predicted_ns = plan->predicted.total_ns;
        point.bound_ns = plan->bound.total_ns;
        point.moved_bytes = plan->predicted.loaded_bytes + plan->predicted.stored_bytes;
        for (const Considered& c : plan->portfolio)
          if (c.policy == "inherited" && c.fits && c.predicted_ns == point.predicted_ns)
            point.inherited = true;
        row[i] = {true, std::move(plan->program), point.predicted_ns};
      } else {
        row[i] = {};
      }
      w.points.push_back(point);
    }
  }
  return w;
}

}  // namespace headrace
