#include "headrace/plan/infeasible.h"

#include <algorithm>

#include "headrace/plan/heuristics.h"

namespace headrace::plan {
namespace {

constexpr size_t kMostNamed = 4;  // tensors named in a sentence

bool can_leave(const Problem& p, const Value& v) {
  const Role role = p.graph->at(v.tensor).role;
  if (role == Role::kGathered || (v.rule != nullptr && v.rule->pinned)) return false;
  // Codecs free a part, or all where the form moves: no certificate may deny it.
  if (v.rule != nullptr && !v.rule->codecs.empty()) return true;
  return v.home.valid() || storing_tier(p, v).valid() || v.can_recompute;
}

// First and last position that a value which cannot leave is held at.
std::pair<int32_t, int32_t> span(const Problem& p, const Value& v) {
  const bool pinned = v.rule != nullptr && v.rule->pinned;
  const bool always = v.persistent && !pinned;
  const int32_t first = v.producer >= 0 ? v.producer : always || v.touches.empty()
                                                           ? 0 : v.touches.front();
  const int32_t last = always || v.touches.empty() ? p.size() - 1 : v.touches.back();
  return {v.on_device_at_entry ? 0 : first, last};
}

void add_entry(const Problem& p, Need& need) {
  Bytes entry = p.fixed_bytes;
  for (const Value& v : p.values) entry += v.on_device_at_entry ? v.bytes : 0;
  if (entry <= need.bytes) return;
  need.bytes = entry;
  need.position = -1;
  need.workspace = 0;
}

std::vector<int32_t> live_at(const Problem& p, int32_t position) {
  std::vector<int32_t> live;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const Value& v = p.values[i];
    bool there = position < 0 ? v.on_device_at_entry
                              : std::binary_search(v.touches.begin(), v.touches.end(), position);
    if (position >= 0 && !there && !can_leave(p, v)) {
      const auto [first, last] = span(p, v);
      there = (v.persistent || !v.touches.empty()) && first <= position && position <= last;
    }
    if (there) live.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(live.begin(), live.end(), [&](int32_t a, int32_t b) {
    return p.values[static_cast<size_t>(a)].bytes > p.values[static_cast<size_t>(b)].bytes;
  });
  return live;
}

}  // namespace

std::vector<Bytes> least_by_position(const Problem& p) {
  const size_t n = static_cast<size_t>(p.size());
  std::vector<Bytes> change(n + 1, 0), least(n, 0);
  for (const Value& v : p.values) {
    if (v.touches.empty() && !v.persistent) continue;
    if (!can_leave(p, v)) {
      const auto [first, last] = span(p, v);
      change[static_cast<size_t>(first)] += v.bytes;
      change[static_cast<size_t>(last) + 1] -= v.bytes;
      continue;
    }
    for (int32_t k : v.touches) {
      change[static_cast<size_t>(k)] += v.bytes;
      change[static_cast<size_t>(k) + 1] -= v.bytes;
    }
  }
  Bytes held = p.fixed_bytes;
  for (size_t k = 0; k < n; ++k) {
    held += change[k];
    least[k] = held + p.workspace[k];
  }
  return least;
}

Need irreducible(const Problem& p) {
  const std::vector<Bytes> least = least_by_position(p);
  Need need;
  for (size_t k = 0; k < least.size(); ++k) {
    if (need.position >= 0 && least[k] <= need.bytes) continue;
    need.bytes = least[k];
    need.position = static_cast<int32_t>(k);
    need.workspace = p.workspace[k];
  }
  add_entry(p, need);
  need.live = live_at(p, need.position);
  return need;
}

namespace {

std::string named(const Problem& p, const std::vector<int32_t>& live) {
  std::string out;
  for (size_t i = 0; i < live.size() && i < kMostNamed; ++i) {
    const Value& v = p.values[static_cast<size_t>(live[i])];
    out += (i == 0 ? "" : ", ") + std::string("'") + p.graph->at(v.tensor).name + "' " +
           human_bytes(v.bytes);
  }
  if (live.size() > kMostNamed) out += text_of(" and %zu more", live.size() - kMostNamed);
  return out;
}

std::vector<std::string> options_of(const Problem& p, const Need& need, Bytes least) {
  std::vector<std::string> options;
  options.push_back(text_of("a budget of %lld bytes (%s) or more", static_cast<long long>(least),
                            human_bytes(least).c_str()));
  const Value* pinned = nullptr;
  bool storable = false, rerun = false;
  for (size_t t = 1; t < p.machine->tiers.size(); ++t) {
    storable = storable || p.machine->tiers[t].store_bytes_per_s > 0;
  }
  for (int32_t i : need.live) {
    const Value& v = p.values[static_cast<size_t>(i)];
    const bool touched = need.position >= 0 && std::binary_search(v.touches.begin(),
                                                                  v.touches.end(), need.position);
    if (v.rule != nullptr && v.rule->pinned && !touched && pinned == nullptr) pinned = &v;
  }
  for (const Value& v : p.values) rerun = rerun || v.can_recompute;
  if (pinned != nullptr) {
    options.push_back(text_of("unpin '%s' (%s)", p.graph->at(pinned->tensor).name.c_str(),
                              human_bytes(pinned->bytes).c_str()));
  }
  if (!p.request->recompute && rerun) options.push_back("allow recomputation");
  if (!storable) options.push_back("add a tier that tensors can be stored in");
  if (need.position >= 0 && need.workspace > need.bytes / 4) {
    options.push_back(text_of("a kernel for '%s' with less workspace than %s",
                              p.graph->at(p.order[static_cast<size_t>(need.position)]).name.c_str(),
                              human_bytes(need.workspace).c_str()));
  }
  if (need.position < 0) {
    options.push_back("a cyclic plan (goal throughput), in which states need not start on the device");
  }
  options.push_back("a smaller batch, or smaller tiles of the largest tensors");
  return options;
}

}  // namespace

Infeasible explain_infeasible(const Problem& p, const Need& need, Bytes least) {
  Infeasible out;
  out.budget = p.request->budget;
  out.needed_bytes = std::max(need.bytes, least);
  out.workspace = need.workspace;
  if (need.position >= 0) out.op = p.order[static_cast<size_t>(need.position)];
  for (int32_t v : need.live) out.live.push_back(p.values[static_cast<size_t>(v)].tensor);
  const std::string where =
      need.position < 0 ? "at the entry of the step"
                        : "at op '" + p.graph->at(out.op).name + "'";
  out.reason = text_of("%s, %s must be on the device at the same time: %s%s; the budget is %s",
                       where.c_str(), human_bytes(need.bytes).c_str(),
                       named(p, need.live).c_str(),
                       need.workspace > 0
                           ? (", workspace " + human_bytes(need.workspace)).c_str() : "",
                       human_bytes(out.budget).c_str());
  if (need.bytes <= out.budget) {
    out.reason = text_of("no plan found holds less than %s: %s, more is needed for the values that "
                         "live across it, and for extents that do not overlap; the budget is %s",
                         human_bytes(out.needed_bytes).c_str(), out.reason.c_str(),
                         human_bytes(out.budget).c_str());
  }
  out.options = options_of(p, need, out.needed_bytes);
  return out;
}

}  // namespace headrace::plan
