// The numbers of a timeline.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "headrace/report/timeline.h"

namespace headrace {
namespace {

// Who touches each tensor on stream 0: computes that name it, decodes for its encoded form.
class Users {
 public:
  explicit Users(const Program& p) : plain_(p.graph->tensors.size()), encoded_(plain_.size()) {
    for (size_t s = 0; s < p.instrs.size(); ++s) {
      const Instr& i = p.instrs[s];
      const auto step = static_cast<int32_t>(s);
      if (i.kind == InstrKind::kDecode) encoded_[i.tensor.index()].push_back(step);
      if (i.kind == InstrKind::kEncode) add(i.tensor, step);
      if (i.kind != InstrKind::kCompute) continue;
      const Op& op = p.graph->at(i.op);
      for (const auto* list : {&op.inputs, &op.outputs, &op.updates})
        for (TensorId t : *list) add(t, step);
    }
  }

  // The first after `step`, in the next cycle when there is none in this one; -1: none.
  int32_t next(TensorId t, Codec form, int32_t step, bool cyclic) const {
    const auto& list = (form == Codec::kNone ? plain_ : encoded_)[t.index()];
    const auto it = std::upper_bound(list.begin(), list.end(), step);
    if (it != list.end()) return *it;
    return cyclic && !list.empty() ? list.front() : -1;
  }

 private:
  void add(TensorId t, int32_t step) {
    if (!t.valid()) return;
    auto& list = plain_[t.index()];
    if (list.empty() || list.back() != step) list.push_back(step);
  }
  std::vector<std::vector<int32_t>> plain_, encoded_;
};

std::string lane_name(const Program& p, StreamId stream,
                      const std::set<std::pair<int, int>>& uses) {
  if (stream == kComputeStream) return "compute";
  std::string name;
  int last = -1;
  for (const auto& [tier, kind] : uses) {
    if (!name.empty()) name += ", ";
    if (tier != last) name += p.tiers[static_cast<size_t>(tier)].name + " ";
    name += name_of(static_cast<InstrKind>(kind));
    last = tier;
  }
  return name;
}

// Lanes by stream, those without instructions left out; `lane_of` by stream.
std::vector<TimelineLane> lanes_of(const Program& p, std::map<int32_t, int32_t>* lane_of) {
  std::map<int32_t, std::set<std::pair<int, int>>> uses;
  uses[kComputeStream.value];
  for (const Instr& i : p.instrs) {
    if (!is_transfer(i.kind)) continue;
    uses[i.stream.value].insert({i.tier.value, static_cast<int>(i.kind)});
  }
  std::vector<TimelineLane> lanes;
  for (const auto& [stream, set] : uses) {
    (*lane_of)[stream] = static_cast<int32_t>(lanes.size());
    TimelineLane lane;
    lane.stream = StreamId(stream);
    lane.name = lane_name(p, lane.stream, set);
    lanes.push_back(lane);
  }
  return lanes;
}

void add_issues(const Program& p, const Trace& trace, Timeline* t) {
  Nanos now = 0;
  t->issue_ns.reserve(p.instrs.size() + 1);
  for (size_t s = 0; s < p.instrs.size(); ++s) {
    t->issue_ns.push_back(now);
    if (p.instrs[s].kind == InstrKind::kCompute || p.instrs[s].kind == InstrKind::kEncode ||
        p.instrs[s].kind == InstrKind::kDecode) {
      now = std::max(now, trace.records[s].end_ns);
    }
  }
  t->issue_ns.push_back(std::max(now, trace.total_ns));
}

// The transfer that ended last among those that a stalled instruction waited for.
int32_t blame_of(const Program& p, const Trace& trace, int32_t step) {
  int32_t worst = -1;
  Nanos latest = 0;
  for (Step w : p.instrs[static_cast<size_t>(step)].waits) {
    const bool before = w.value < step;  // else: of the cycle before
    const Nanos end =
        trace.records[w.index()].end_ns - (before ? 0 : trace.total_ns);
    if (!is_transfer(p.instrs[w.index()].kind) || (worst >= 0 && end <= latest)) continue;
    worst = w.value;
    latest = end;
  }
  return worst;
}

void add_compute(const Program& p, const Trace& trace, int32_t step, std::vector<bool>* ran,
                 Timeline* t) {
  const Instr& i = p.instrs[static_cast<size_t>(step)];
  TimelineEvent& e = t->events[static_cast<size_t>(step)];
  t->compute_ns += e.end_ns - e.begin_ns;
  if (i.kind == InstrKind::kCompute) {
    e.again = (*ran)[i.op.index()];
    (*ran)[i.op.index()] = true;
    if (e.again) t->again_ns += e.end_ns - e.begin_ns;
  }
  if (e.stall_ns > 0) e.blame = blame_of(p, trace, step);
  t->lanes[0].stall_ns += e.stall_ns;
}

void add_events(const Program& p, const Trace& trace, Timeline* t) {
  std::map<int32_t, int32_t> lane_of;
  t->lanes = lanes_of(p, &lane_of);
  const Users users(p);
  std::vector<bool> ran(p.graph->ops.size(), false);
  t->events.resize(p.instrs.size());
  for (size_t s = 0; s < p.instrs.size(); ++s) {
    const Instr& i = p.instrs[s];
    const TraceRecord& r = trace.records[s];
    TimelineEvent& e = t->events[s];
    e = {r.begin_ns, r.end_ns, r.stall_ns, -1, r.bytes};
    const auto step = static_cast<int32_t>(s);
    if (i.kind == InstrKind::kDetach) continue;
    e.lane = lane_of.at(i.stream.value);
    TimelineLane& lane = t->lanes[static_cast<size_t>(e.lane)];
    ++lane.events;
    lane.bytes += e.bytes;
    const Nanos latency = is_transfer(i.kind) ? p.tiers[i.tier.index()].latency_ns : 0;
    lane.busy_ns += std::max<Nanos>(0, e.end_ns - e.begin_ns - latency);
    if (!is_transfer(i.kind)) {
      add_compute(p, trace, step, &ran, t);
      continue;
    }
    if (i.kind == InstrKind::kStore) continue;
    e.used_by = users.next(i.tensor, i.codec, step, p.cyclic);
    if (e.used_by < 0) continue;
    const Nanos use = trace.records[static_cast<size_t>(e.used_by)].begin_ns +
                      (e.used_by > step ? 0 : trace.total_ns);
    e.lead_ns = std::max<Nanos>(0, use - e.end_ns);
  }
}

// The bytes of one tier over the steps. Residencies that share bytes begin at the same offset
// (verify() sees to it); the largest of those alive counts.
class TierCurve {
 public:
  TierCurve(const Program& p, int16_t tier, Timeline* t) : p_(p), tier_(tier), t_(t) {}

  void play(const std::vector<int32_t>& residencies) {
    std::map<int32_t, std::pair<std::vector<int32_t>, std::vector<int32_t>>> at;  // ends, begins
    for (int32_t r : residencies) {
      const Residency& x = p_.residencies[static_cast<size_t>(r)];
      at[std::max(0, x.begin.value)].second.push_back(r);
      if (x.end != p_.exit()) at[std::max(0, x.end.value)].first.push_back(r);
    }
    for (const auto& [step, lists] : at) {
      delta_.fill(0);
      for (int32_t r : lists.first) change(p_.residencies[static_cast<size_t>(r)], false);
      for (int32_t r : lists.second) change(p_.residencies[static_cast<size_t>(r)], true);
      settle(step);
    }
  }

 private:
  using Alive = std::multiset<std::pair<Bytes, int>>;  // bytes, class

  void count(const Alive& alive, int sign) {
    if (alive.empty()) return;
    delta_[static_cast<size_t>(alive.rbegin()->second)] += sign * alive.rbegin()->first;
  }
  void change(const Residency& r, bool begins) {
    Alive& alive = alive_[r.offset];
    const std::pair<Bytes, int> what{r.bytes, memory_class_of(p_, r)};
    count(alive, -1);
    if (begins) {
      alive.insert(what);
    } else if (const auto it = alive.find(what); it != alive.end()) {
      alive.erase(it);
    }
    count(alive, 1);
  }
  void settle(int32_t step) {
    Bytes sum = 0;
    for (int c = 0; c < kMemoryClassCount; ++c) {
      const Bytes d = delta_[static_cast<size_t>(c)];
      if (d != 0) t_->changes.push_back({step, tier_, static_cast<int16_t>(c), d});
      held_[static_cast<size_t>(c)] += d;
      sum += held_[static_cast<size_t>(c)];
    }
    TimelineTier& tier = t_->tiers[static_cast<size_t>(tier_)];
    if (sum <= tier.peak) return;
    tier.peak = sum;
    tier.peak_step = step;
    tier.at_peak = held_;
  }

  const Program& p_;
  int16_t tier_;
  Timeline* t_;
  std::map<Bytes, Alive> alive_;
  ClassBytes delta_{}, held_{};
};

void add_memory(const Program& p, Timeline* t) {
  std::vector<std::vector<int32_t>> of_tier(p.tiers.size());
  for (size_t r = 0; r < p.residencies.size(); ++r) {
    const Residency& x = p.residencies[r];
    t->holdings.push_back({static_cast<int32_t>(r),
                           x.begin.value < 0 ? 0 : t->issue_ns[x.begin.index()],
                           t->issue_ns[x.end.index()]});
    of_tier[x.tier.index()].push_back(static_cast<int32_t>(r));
  }
  for (size_t i = 0; i < p.tiers.size(); ++i) {
    TimelineTier tier;
    tier.name = p.tiers[i].name;
    tier.capacity = i == 0 ? p.arena_bytes : p.tiers[i].capacity;
    t->tiers.push_back(tier);
    TierCurve(p, static_cast<int16_t>(i), t).play(of_tier[i]);
  }
}

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

}  // namespace

const char* memory_class_name(int memory_class) {
  return memory_class == kWorkspaceClass ? "workspace"
                                         : name_of(static_cast<DataClass>(memory_class));
}

int memory_class_of(const Program& program, const Residency& r) {
  return r.tensor.valid() ? static_cast<int>(shown_class(program.graph->at(r.tensor)))
                          : kWorkspaceClass;
}

const std::string& subject_of(const Program& program, const Instr& instr) {
  return instr.kind == InstrKind::kCompute ? program.graph->at(instr.op).name
                                           : program.graph->at(instr.tensor).name;
}

const char* verb_of(InstrKind kind) {
  switch (kind) {
    case InstrKind::kCompute: return "Compute";
    case InstrKind::kLoad: return "Load";
    case InstrKind::kStore: return "Store";
    case InstrKind::kGather: return "Gather";
    case InstrKind::kDetach: return "Detach";
    case InstrKind::kEncode: return "Encode";
    case InstrKind::kDecode: return "Decode";
  }
  return "";
}

std::string layer_of(const std::string& name) {
  for (size_t begin = 0; begin <= name.size();) {
    size_t end = begin;
    while (end < name.size() && (is_letter(name[end]) || is_digit(name[end]) || name[end] == '_'))
      ++end;
    size_t digits = end;
    while (digits > begin && is_digit(name[digits - 1])) --digits;
    // Neither the tile after a colon ("ffn_up.weight:3") nor a lone number or letter ("t12"), nor
    // the serial number at the end of an op of a trace ("Add_Forward.39").
    const bool tile = begin > 0 && name[begin - 1] == ':';
    const bool word = digits == begin ? begin > 0 && end < name.size() : digits - begin > 1;
    if (digits < end && !tile && word) return name.substr(0, end);
    begin = end + 1;
  }
  return "";
}

Timeline make_timeline(const Program& program, const Trace& trace) {
  HR_CHECK(trace.records.size() == program.instrs.size(), "a record an instruction");
  Timeline t;
  t.program = &program;
  t.total_ns = trace.total_ns;
  t.stall_ns = trace.stall_ns;
  t.loaded_bytes = trace.loaded_bytes;
  t.stored_bytes = trace.stored_bytes;
  t.gathered_bytes = trace.gathered_bytes;
  add_issues(program, trace, &t);
  add_events(program, trace, &t);
  add_memory(program, &t);
  return t;
}

}  // namespace headrace
