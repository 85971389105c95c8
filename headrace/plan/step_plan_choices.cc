// Choices, read off the instructions: what happened to a tensor between two of its uses.
#include <algorithm>
#include <map>
#include <tuple>

#include "headrace/plan/step_pipeline.h"

namespace headrace::plan {
namespace {

class Reader {
 public:
  Reader(const Program& p, const Trace& trace, const std::vector<Choice>& alternatives)
      : p_(p), trace_(trace), g_(*p.graph), uses_(g_.tensors.size()) {
    for (const Choice& c : alternatives) known_[key(c)] = &c;
  }

  std::vector<Choice> run() {
    index_uses();
    std::vector<bool> ran(g_.ops.size(), false);
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      const Instr& i = p_.instrs[s];
      if (i.kind != InstrKind::kCompute && i.kind != InstrKind::kStore) see(i, static_cast<int32_t>(s));
      if (i.kind != InstrKind::kCompute) continue;
      const bool again = ran[i.op.index()];
      ran[i.op.index()] = true;
      if (!again) continue;
      for (TensorId t : g_.at(i.op).outputs) returned(t, static_cast<int32_t>(s), Way::kRecompute, i);
    }
    for (auto& [tensor, open] : away_) {
      for (Choice& c : open) {
        if (c.way != Way::kRecompute || persistent(tensor)) push(c, -1);
      }
    }
    std::stable_sort(out_.begin(), out_.end(), [](const Choice& a, const Choice& b) {
      return weight(a) > weight(b);
    });
    return std::move(out_);
  }

 private:
  using Key = std::tuple<int32_t, int32_t, int32_t>;
  static Key key(const Choice& c) { return {c.tensor.value, c.after.value, c.before.value}; }
  static double weight(const Choice& c) {
    return static_cast<double>(c.freed_bytes) * static_cast<double>(c.gap_ns);
  }
  bool persistent(TensorId t) const {
    return g_.at(t).role == Role::kState || g_.at(t).role == Role::kWeight;
  }

  // By tensor: the steps whose op uses it.
  void index_uses() {
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      if (p_.instrs[s].kind != InstrKind::kCompute) continue;
      const Op& op = g_.at(p_.instrs[s].op);
      for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
        for (TensorId t : *list) {
          if (t.valid()) uses_[t.index()].push_back(static_cast<int32_t>(s));
        }
      }
    }
  }

  int32_t use_before(TensorId t, int32_t step) const {
    const auto& u = uses_[t.index()];
    const auto at = std::lower_bound(u.begin(), u.end(), step);
    return at == u.begin() ? -1 : *std::prev(at);
  }
  int32_t use_from(TensorId t, int32_t step) const {
    const auto& u = uses_[t.index()];
    const auto at = std::lower_bound(u.begin(), u.end(), step);
    return at == u.end() ? -1 : *at;
  }

  void see(const Instr& i, int32_t step) {
    if (i.kind == InstrKind::kDetach) return left(i, step);
    if (i.kind == InstrKind::kLoad) {
      if (i.codec == Codec::kNone) returned(i.tensor, step, Way::kMove, i);
      if (i.codec != Codec::kNone) compressed_load_[i.tensor.value] = {step, i.tier};
    }
    if (i.kind == InstrKind::kDecode) {
      const auto loaded = compressed_load_.find(i.tensor.value);
      Instr from = i;
      const bool moved = loaded != compressed_load_.end();
      if (moved) from.tier = loaded->second.second;
      returned(i.tensor, step, moved ? Way::kMoveCompressed : Way::kCompress, from);
      if (moved) compressed_load_.erase(loaded);
    }
  }

  // The plain form, or a part of it, goes.
  void left(const Instr& i, int32_t step) {
    if (i.codec != Codec::kNone) return;
    Choice c;
    c.tensor = i.tensor;
    c.range = i.range;
    c.freed_bytes = range_bytes(g_.at(i.tensor), i.range);
    const int32_t before = use_before(i.tensor, step);
    if (before >= 0) c.after = p_.instrs[static_cast<size_t>(before)].op;
    c.gap_ns = before >= 0 ? trace_.records[static_cast<size_t>(before)].end_ns : 0;  // for now
    c.way = use_from(i.tensor, step) < 0 && !persistent(i.tensor) ? Way::kRecompute : Way::kMove;
    away_[i.tensor].push_back(c);
  }

  void returned(TensorId t, int32_t step, Way way, const Instr& i) {
    const auto at = away_.find(t);
    if (at == away_.end() || at->second.empty()) {
      if (way == Way::kMove) came_in(t, step, i);
      return;
    }
    const Bytes begin = way == Way::kMove ? i.range.begin : 0;
    const Bytes end = begin + (way == Way::kMove ? range_bytes(g_.at(t), i.range)
                                                 : device_bytes(g_.at(t)));
    std::vector<Choice> rest;
    for (Choice& c : at->second) {
      const Bytes b = c.range.begin, e = b + range_bytes(g_.at(t), c.range);
      if (b >= end || e <= begin) {
        rest.push_back(c);
        continue;
      }
      // What went in one piece may come in several: a choice each, the rest stays away.
      Choice part = c;
      part.range = whole_or(t, std::max(b, begin), std::min(e, end));
      part.freed_bytes = std::min(e, end) - std::max(b, begin);
      part.way = way;
      part.tier = way == Way::kMove || way == Way::kMoveCompressed ? i.tier : TierId();
      part.codec = way == Way::kCompress || way == Way::kMoveCompressed ? i.codec : Codec::kNone;
      if (way == Way::kCompress) {
        part.freed_bytes -= std::min(part.freed_bytes, range_bytes(g_.at(t), {}, i.codec));
      }
      push(part, step);
      if (b < begin) rest.push_back(cut(c, t, b, begin));
      if (e > end) rest.push_back(cut(c, t, end, e));
    }
    at->second = std::move(rest);
    if (at->second.empty()) away_.erase(at);
  }

  Range whole_or(TensorId t, Bytes begin, Bytes end) const {
    if (begin == 0 && end == device_bytes(g_.at(t))) return {};
    return {begin, end - begin};
  }
  Choice cut(Choice c, TensorId t, Bytes begin, Bytes end) const {
    c.range = whole_or(t, begin, end);
    c.freed_bytes = end - begin;
    return c;
  }

  // A load of what was not there at entry: away since the step's begin.
  void came_in(TensorId t, int32_t step, const Instr& i) {
    Choice c;
    c.tensor = t;
    c.range = i.range;
    c.tier = i.tier;
    c.freed_bytes = range_bytes(g_.at(t), i.range);
    push(c, step);
  }

  // `back`: the step that brings it; -1: it stays away.
  void push(Choice c, int32_t back) {
    const int32_t use = back < 0 ? -1 : use_from(c.tensor, back + (c.way == Way::kRecompute ? 1 : 0));
    const Nanos from = c.gap_ns;
    Nanos to = trace_.total_ns;
    if (use >= 0) {
      const TraceRecord& r = trace_.records[static_cast<size_t>(use)];
      c.before = p_.instrs[static_cast<size_t>(use)].op;
      to = r.begin_ns;
      const TraceRecord& brought = trace_.records[static_cast<size_t>(back)];
      if (c.way == Way::kMove) {
        c.lead_ns = std::max<Nanos>(0, r.begin_ns - brought.end_ns);
        // The op stood still until this came.
        if (r.stall_ns > 0 && brought.end_ns + kSlack >= r.begin_ns) c.added_ns = r.stall_ns;
      } else {
        c.added_ns = brought.end_ns - brought.begin_ns;
      }
    }
    c.gap_ns = std::max<Nanos>(0, to - from);
    const auto known = known_.find(key(c));
    if (known != known_.end()) {
      c.move_ns = known->second->move_ns;
      c.recompute_ns = known->second->recompute_ns;
      c.compress_ns = known->second->compress_ns;
    }
    out_.push_back(c);
  }

  static constexpr Nanos kSlack = 1;  // of rounding
  const Program& p_;
  const Trace& trace_;
  const Graph& g_;
  std::vector<std::vector<int32_t>> uses_;
  std::map<Key, const Choice*> known_;
  std::map<TensorId, std::vector<Choice>> away_;
  std::map<int32_t, std::pair<int32_t, TierId>> compressed_load_;
  std::vector<Choice> out_;
};

}  // namespace

std::vector<Choice> choices_of(const Program& program, const Trace& trace,
                               const std::vector<Choice>& alternatives) {
  return Reader(program, trace, alternatives).run();
}

Status check_rules(const Workload& w, const Program& p) {
  for (const PlacementRule& rule : w.rules) {
    const Tensor& t = w.graph.at(rule.tensor);
    bool left = false, moved = false;
    std::vector<int> runs(w.graph.ops.size(), 0);
    for (const Instr& i : p.instrs) {
      if (i.kind == InstrKind::kCompute && !rule.recompute) ++runs[i.op.index()];
      if (i.kind == InstrKind::kCompute || i.tensor != rule.tensor) continue;
      left = left || i.kind == InstrKind::kDetach;
      moved = moved || i.kind == InstrKind::kStore || i.kind == InstrKind::kLoad;
      if (is_transfer(i.kind)) {
        for (const std::string& no : rule.forbidden_tiers) {
          if (p.tiers[i.tier.index()].name != no) continue;
          return error(Code::kUsage, "'%s' would use tier '%s', which its rule forbids",
                       t.name.c_str(), no.c_str());
        }
      }
      const bool allowed = i.codec == Codec::kNone ||
                           std::count(rule.codecs.begin(), rule.codecs.end(), i.codec) > 0;
      if (!allowed) {
        return error(Code::kUsage, "'%s' would be encoded by %s, which its rule does not list",
                     t.name.c_str(), name_of(i.codec));
      }
    }
    if (rule.pinned && left) return error(Code::kUsage, "'%s' is pinned and leaves", t.name.c_str());
    if (rule.remote && !(left && moved)) {
      return error(Code::kUsage, "'%s' must spend its longest idle time outside the device, and has "
                   "no time when it could", t.name.c_str());
    }
    if (rule.recompute) continue;
    for (size_t o = 0; o < runs.size(); ++o) {
      const auto& outs = w.graph.ops[o].outputs;
      if (runs[o] > 1 && std::count(outs.begin(), outs.end(), rule.tensor) > 0) {
        return error(Code::kUsage, "the op of '%s' would run again, which its rule forbids",
                     t.name.c_str());
      }
    }
  }
  return {};
}

}  // namespace headrace::plan
