// Choices and refusals in words.
#include <algorithm>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/step_report.h"
#include "headrace/report/timeline.h"

namespace headrace {
namespace {

constexpr int kWidth = 100;

std::string shown(const std::string& name) { return terminal_text(valid_utf8(name)); }

std::string added(Nanos ns) { return ns <= 0 ? "nothing" : human_time(ns); }

// Which part of the tensor, when not all of it.
std::string part_of(const Program& p, const Choice& c) {
  if (c.range.whole()) return "";
  const Bytes all = p.graph->at(c.tensor).bytes;
  const Bytes bytes = range_bytes(p.graph->at(c.tensor), c.range, c.codec);
  return text_of("%s of ", human_bytes(std::min(bytes, all)).c_str());
}

std::string what_happened(const Program& p, const Choice& c) {
  const std::string tier = c.tier.valid() ? "'" + shown(p.tiers[c.tier.index()].name) + "'" : "?";
  switch (c.way) {
    case Way::kKeep: return "stays on the device";
    case Way::kMove: return c.tier.valid() ? "moves to " + tier : "is given up";
    case Way::kRecompute: return "is dropped and computed again";
    case Way::kCompress: return std::string("stays compressed (") + name_of(c.codec) + ")";
    case Way::kMoveCompressed:
      return "moves to " + tier + " compressed (" + name_of(c.codec) + ")";
  }
  return "";
}

std::string where_from(const Program& p, const Choice& c) {
  const auto op = [&](OpId id) { return "'" + shown(p.graph->at(id).name) + "'"; };
  if (c.after.valid() && c.after == c.before) return "until " + op(c.after) + " runs again";
  if (c.after.valid() && c.before.valid())
    return "between " + op(c.after) + " and " + op(c.before);
  if (c.after.valid()) return "from " + op(c.after) + " to the end of the step";
  if (c.before.valid()) return "from the begin of the step to " + op(c.before);
  return "throughout the step";
}

bool comes_back_by_link(Way way) { return way == Way::kMove || way == Way::kMoveCompressed; }

std::string way_back(const Program& p, const Choice& c) {
  if (!c.before.valid()) return "";
  if (!comes_back_by_link(c.way)) {
    return c.way == Way::kRecompute ? " Its op runs again just before it is needed." : "";
  }
  if (c.lead_ns <= 0) return " It is back just in time.";
  std::string out = " It is back " + human_time(c.lead_ns) + " before it is needed";
  const TierInfo& tier = p.tiers[c.tier.index()];
  const Bytes bytes = range_bytes(p.graph->at(c.tensor), c.range, c.codec);
  if (tier.load_bytes_per_s > 0 && bytes > 0) {
    const double copy = static_cast<double>(bytes) / tier.load_bytes_per_s * 1e9;
    const double times = static_cast<double>(c.lead_ns) / copy;
    out += times < 1.5 ? text_of(" (%.0f %% of the time that the copy takes)", 100 * times)
                       : " (" + human_number(times) + " times as long as the copy takes)";
  }
  return out + ".";
}

std::string alternatives(const Choice& c) {
  struct Other {
    const char* what;
    Nanos ns;
    bool chosen;
  };
  const Other others[] = {{"moving it", c.move_ns, comes_back_by_link(c.way)},
                          {"computing it again", c.recompute_ns, c.way == Way::kRecompute},
                          {"keeping it compressed", c.compress_ns, c.way == Way::kCompress}};
  std::string costs, never;
  for (const Other& o : others) {
    if (o.chosen) continue;
    if (o.ns == Choice::kNever) {
      never += (never.empty() ? "" : " or ") + std::string(o.what);
    } else {
      costs += (costs.empty() ? "" : ", ") + std::string(o.what) + " would have added " +
               added(o.ns);
    }
  }
  std::string out;
  if (!costs.empty()) out += " Instead, " + costs + ".";
  if (!never.empty()) out += " Not possible: " + never + ".";
  return out;
}

// The bytes that are live while each compute instruction runs, were everything kept from its first
// touch to its last; persistent tensors throughout.
std::vector<Bytes> kept_profile(const Program& p, const std::vector<int32_t>& order) {
  const Graph& g = *p.graph;
  const auto n = static_cast<int32_t>(order.size());
  std::vector<int32_t> first(g.tensors.size(), n), last(g.tensors.size(), -1);
  for (int32_t k = 0; k < n; ++k) {
    const Op& op = g.ops[static_cast<size_t>(order[static_cast<size_t>(k)])];
    for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId t : *list) {
        if (!t.valid()) continue;
        first[t.index()] = std::min(first[t.index()], k);
        last[t.index()] = k;
      }
    }
  }
  std::vector<Bytes> bytes(order.size() + 1, 0);
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (last[t] < 0) continue;
    const Role role = g.tensors[t].role;
    const bool always = role == Role::kState || role == Role::kWeight || role == Role::kConstant;
    bytes[always ? 0 : static_cast<size_t>(first[t])] += device_bytes(g.tensors[t]);
    if (!always) bytes[static_cast<size_t>(last[t]) + 1] -= device_bytes(g.tensors[t]);
  }
  for (size_t k = 1; k < bytes.size(); ++k) bytes[k] += bytes[k - 1];
  for (int32_t k = 0; k < n; ++k)
    bytes[static_cast<size_t>(k)] +=
        g.ops[static_cast<size_t>(order[static_cast<size_t>(k)])].workspace;
  bytes.resize(order.size());
  return bytes;
}

// The most in any range of positions, in constant time after n log n.
class RangeMost {
 public:
  explicit RangeMost(std::vector<Bytes> values) {
    levels_.push_back(std::move(values));
    for (size_t w = 1; 2 * w <= levels_[0].size(); w *= 2) {
      const auto& below = levels_.back();
      std::vector<Bytes> level;
      for (size_t i = 0; i + 2 * w <= levels_[0].size(); ++i)
        level.push_back(std::max(below[i], below[i + w]));
      levels_.push_back(std::move(level));
    }
  }
  // Of [begin, end); 0 when it is empty.
  Bytes most(int64_t begin, int64_t end) const {
    end = std::min<int64_t>(end, static_cast<int64_t>(levels_[0].size()));
    if (begin >= end) return 0;
    size_t level = 0;
    while ((int64_t{2} << level) <= end - begin) ++level;
    const auto& l = levels_[level];
    return std::max(l[static_cast<size_t>(begin)],
                    l[static_cast<size_t>(end - (int64_t{1} << level))]);
  }

 private:
  std::vector<std::vector<Bytes>> levels_;
};

}  // namespace

std::vector<Bytes> over_by_choice(const StepPlan& plan, Bytes budget) {
  const Program& p = plan.program;
  // Ops by their first run.
  std::vector<int32_t> order, position(p.graph->ops.size(), -1);
  for (const Instr& i : p.instrs) {
    if (i.kind != InstrKind::kCompute || position[i.op.index()] >= 0) continue;
    position[i.op.index()] = static_cast<int32_t>(order.size());
    order.push_back(i.op.value);
  }
  const auto n = static_cast<int64_t>(order.size());
  const RangeMost most(kept_profile(p, order));
  std::vector<Bytes> over;
  over.reserve(plan.choices.size());
  for (const Choice& c : plan.choices) {
    const int64_t from = c.after.valid() ? position[c.after.index()] + 1 : 0;
    const int64_t to = c.before.valid() ? position[c.before.index()] : n;
    // Away across the end of a cycle: what lies before `to` and what lies after `from`.
    const Bytes held = from <= to ? most.most(from, to)
                                  : std::max(most.most(from, n), most.most(0, to));
    over.push_back(held - budget);
  }
  return over;
}

std::string explain_choice(const Program& p, const Choice& c, Bytes over) {
  const Tensor& t = p.graph->at(c.tensor);
  std::string out = part_of(p, c) + "'" + shown(t.name) + "' (" + human_bytes(t.bytes) + ", " +
                    name_of(shown_class(t)) + ") " + what_happened(p, c) + ": nothing touches it " +
                    where_from(p, c);
  if (c.gap_ns > 0) out += ", for " + human_time(c.gap_ns);
  out += ".";
  if (over > 0) {
    out += " Were everything kept, the step would be up to " + human_bytes(over) +
           " over its budget then: this frees " + human_bytes(c.freed_bytes) + " of them.";
  } else if (c.freed_bytes > 0) {
    out += " This frees " + human_bytes(c.freed_bytes) + ".";
  }
  out += way_back(p, c);
  out += " It adds " + added(c.added_ns) + " to the step.";
  return out + alternatives(c);
}

std::string explain_text(const StepPlan& plan, Bytes budget, size_t limit,
                         const TextStyle& style) {
  if (plan.choices.empty()) return "Everything stays on the device: nothing had to be decided.\n";
  const std::vector<Bytes> over = over_by_choice(plan, budget);
  const size_t all = plan.choices.size(), n = std::min(limit, all);
  std::string out = bold(all == 1 ? "Why one idle gap is spent as it is"
                                  : text_of("Why %s idle gaps are spent as they are",
                                            grouped(static_cast<int64_t>(all)).c_str()),
                         style) +
                    (n < all ? text_of(", the first %zu (--all shows all)\n", n) : "\n");
  for (size_t i = 0; i < n; ++i) {
    const std::string text = explain_choice(plan.program, plan.choices[i], over[i]);
    out += pad_left(std::to_string(i + 1), 4) + ". " + wrapped(text, kWidth, 6).substr(6);
  }
  return out;
}

std::string infeasible_text(const Infeasible& r, const Graph& g, const StepRequestFacts& facts) {
  constexpr size_t kLive = 12;
  std::string out = text_of("%s do not hold a step of %s, whatever is moved or computed again",
                            human_bytes(r.budget).c_str(), shown(facts.workload).c_str());
  if (r.needed_bytes > 0) {
    out += text_of("\nthe least budget is %s (%lld bytes); %s are missing",
                   human_bytes(r.needed_bytes).c_str(), static_cast<long long>(r.needed_bytes),
                   human_bytes(r.needed_bytes - r.budget).c_str());
  }
  if (!r.reason.empty()) {
    std::string lines = wrapped(shown(r.reason), kWidth, 0);
    while (!lines.empty() && lines.back() == '\n') lines.pop_back();
    out += "\n" + lines;
  }
  if (r.op.valid()) {
    out += "\nwhile '" + shown(g.at(r.op).name) + "' runs, these are on the device together:";
    for (size_t i = 0; i < std::min(kLive, r.live.size()); ++i) {
      const Tensor& t = g.at(r.live[i]);
      out += "\n  " + pad_left(human_bytes(device_bytes(t)), 12) + "  " +
             pad_right(name_of(shown_class(t)), 12) + shown(t.name);
    }
    if (r.live.size() > kLive) {
      Bytes rest = 0;
      for (size_t i = kLive; i < r.live.size(); ++i) rest += device_bytes(g.at(r.live[i]));
      out += "\n  " + pad_left(human_bytes(rest), 12) + "  " +
             text_of("and %zu smaller ones", r.live.size() - kLive);
    }
    if (r.workspace > 0) out += "\n  " + pad_left(human_bytes(r.workspace), 12) + "  workspace";
  }
  if (!r.options.empty()) {
    out += "\nwhat would make it fit:";
    for (const std::string& option : r.options) {
      std::string lines = wrapped(shown(option), kWidth, 2);
      while (!lines.empty() && lines.back() == '\n') lines.pop_back();
      out += "\n" + lines;
    }
  }
  return out;
}

}  // namespace headrace
