#include "headrace/report/hotspots.h"

#include <algorithm>
#include <map>
#include <set>

namespace headrace {
namespace {

// The best case of a transfer out and back; -1: no such tier.
Nanos round_trip(const Program& p, Bytes bytes, std::string* tier) {
  Nanos best = -1;
  for (size_t i = 1; i < p.tiers.size(); ++i) {
    const TierInfo& t = p.tiers[i];
    if (TierId(static_cast<int64_t>(i)) == p.source_tier && t.capacity == 0) continue;  // read-only
    if (t.load_bytes_per_s <= 0 || t.store_bytes_per_s <= 0) continue;
    const double s = static_cast<double>(bytes) / t.load_bytes_per_s +
                     static_cast<double>(bytes) / t.store_bytes_per_s;
    const Nanos ns = static_cast<Nanos>(s * 1e9) + 2 * t.latency_ns;
    if (best >= 0 && ns >= best) continue;
    best = ns;
    *tier = t.name;
  }
  return best;
}

class Finder {
 public:
  explicit Finder(const Timeline& t) : t_(t), p_(*t.program), touches_(p_.graph->tensors.size()) {
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      if (p_.instrs[s].kind != InstrKind::kCompute) continue;
      const Op& op = p_.graph->at(p_.instrs[s].op);
      for (const auto* list : {&op.inputs, &op.outputs, &op.updates})
        for (TensorId x : *list)
          if (x.valid()) touches_[x.index()].push_back(static_cast<int32_t>(s));
    }
  }

  Hotspots find() {
    totals();
    held_at_peak();
    needs();
    layers();
    stalls();
    advise();
    return std::move(h_);
  }

 private:
  const TimelineEvent& event(int32_t s) const { return t_.events[static_cast<size_t>(s)]; }
  const Instr& instr(int32_t s) const { return p_.instrs[static_cast<size_t>(s)]; }

  void totals() {
    h_.program = p_.name;
    h_.total_ns = t_.total_ns;
    h_.compute_ns = t_.compute_ns;
    h_.stall_ns = t_.stall_ns;
    h_.again_ns = t_.again_ns;
    const TimelineTier& device = t_.tiers[0];
    h_.peak = device.peak;
    h_.capacity = device.capacity;
    h_.at_peak = device.at_peak;
    h_.peak_step = device.peak_step;
    h_.peak_ns = t_.issue_ns[static_cast<size_t>(device.peak_step)];
    // The op that runs then: the next compute instruction at or after the step.
    for (size_t s = static_cast<size_t>(h_.peak_step); s < p_.instrs.size(); ++s) {
      if (p_.instrs[s].kind != InstrKind::kCompute) continue;
      peak_compute_ = static_cast<int32_t>(s);
      h_.peak_op = p_.graph->at(p_.instrs[s].op).name;
      break;
    }
  }

  // How long `tensor` goes untouched around the peak; 0: the op of the peak touches it.
  Nanos gap_of(TensorId tensor) const {
    const auto& list = touches_[tensor.index()];
    const auto next = std::lower_bound(list.begin(), list.end(), peak_compute_);
    if (next != list.end() && *next == peak_compute_) return 0;
    const Nanos from = next == list.begin() ? (p_.cyclic && !list.empty()
                                                   ? event(list.back()).end_ns - t_.total_ns
                                                   : 0)
                                            : event(*std::prev(next)).end_ns;
    const Nanos to = next == list.end()
                         ? t_.total_ns + (p_.cyclic && !list.empty() ? event(list[0]).begin_ns : 0)
                         : event(*next).begin_ns;
    return std::max<Nanos>(1, to - from);
  }

  void held_at_peak() {
    for (const Residency& r : p_.residencies) {
      if (r.tier != kDevice || std::max(0, r.begin.value) > h_.peak_step ||
          r.end.value <= h_.peak_step)
        continue;
      HotTensor x;
      x.memory_class = memory_class_of(p_, r);
      x.bytes = r.bytes;
      if (r.tensor.valid()) {
        x.name = p_.graph->at(r.tensor).name;
        x.gap_ns = peak_compute_ >= 0 ? gap_of(r.tensor) : 0;
        x.idle = x.gap_ns > 0;
        if (x.idle) {
          x.round_trip_ns = round_trip(p_, r.bytes, &x.tier);
          h_.idle_at_peak += r.bytes;
        }
      } else {
        x.name = "workspace of " + p_.graph->at(r.op).name;
      }
      layer_bytes_[layer_name(r.tensor.valid() ? x.name : p_.graph->at(r.op).name)] += r.bytes;
      h_.tensors.push_back(std::move(x));
    }
    std::stable_sort(h_.tensors.begin(), h_.tensors.end(),
                     [](const HotTensor& a, const HotTensor& b) { return a.bytes > b.bytes; });
  }

  void needs() {
    std::vector<bool> seen(p_.graph->ops.size(), false);
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      const Instr& i = p_.instrs[s];
      if (i.kind != InstrKind::kCompute || seen[i.op.index()]) continue;
      seen[i.op.index()] = true;
      const Op& op = p_.graph->at(i.op);
      std::set<TensorId> operands;
      for (const auto* list : {&op.inputs, &op.outputs, &op.updates})
        for (TensorId x : *list)
          if (x.valid()) operands.insert(x);
      HotOp o{op.name, static_cast<int32_t>(s), op.workspace, op.workspace};
      for (TensorId x : operands) o.needs += device_bytes(p_.graph->at(x));
      h_.ops.push_back(std::move(o));
    }
    std::stable_sort(h_.ops.begin(), h_.ops.end(),
                     [](const HotOp& a, const HotOp& b) { return a.needs > b.needs; });
    if (!h_.ops.empty()) h_.least = h_.ops[0].needs;
  }

  static std::string layer_name(const std::string& name) {
    const std::string layer = layer_of(name);
    return layer.empty() ? "(no layer)" : layer;
  }

  void layers() {
    std::map<std::string, HotLayer> by_name;
    for (const auto& [name, bytes] : layer_bytes_) by_name[name].at_peak = bytes;
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      if (p_.instrs[s].kind != InstrKind::kCompute) continue;
      const TimelineEvent& e = t_.events[s];
      HotLayer& layer = by_name[layer_name(p_.graph->at(p_.instrs[s].op).name)];
      layer.compute_ns += e.end_ns - e.begin_ns;
      layer.stall_ns += e.stall_ns;
    }
    for (auto& [name, layer] : by_name) {
      layer.name = name;
      h_.layers.push_back(layer);
    }
    std::stable_sort(h_.layers.begin(), h_.layers.end(), [](const HotLayer& a, const HotLayer& b) {
      return std::pair(a.at_peak, a.compute_ns) > std::pair(b.at_peak, b.compute_ns);
    });
  }

  // By step of a transfer: the end of the one before it on its link, without its latency.
  std::vector<Nanos> link_free() const {
    std::vector<Nanos> free(p_.instrs.size(), 0), last(t_.lanes.size(), 0);
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      if (!is_transfer(p_.instrs[s].kind)) continue;
      Nanos& lane = last[static_cast<size_t>(t_.events[s].lane)];
      free[s] = lane;
      lane = t_.events[s].end_ns - p_.tiers[p_.instrs[s].tier.index()].latency_ns;
    }
    return free;
  }

  void stalls() {
    const std::vector<Nanos> free = link_free();
    std::map<std::pair<int32_t, int>, std::pair<HotStall, Nanos>> groups;  // longest beside it
    for (size_t s = 0; s < p_.instrs.size(); ++s) {
      const TimelineEvent& e = t_.events[s];
      if (e.lane != 0 || e.stall_ns <= 0) continue;
      std::pair<int32_t, int> key{-1, 0};
      if (e.blame >= 0) key = {instr(e.blame).tensor.value, static_cast<int>(instr(e.blame).kind)};
      auto& [group, longest] = groups[key];
      ++group.count;
      group.total_ns += e.stall_ns;
      if (e.stall_ns <= longest) continue;
      longest = e.stall_ns;
      group.step = static_cast<int32_t>(s);
      group.op = subject_of(p_, p_.instrs[s]);
      describe(e.blame, free, &group);
    }
    for (auto& [key, group] : groups) {
      if (group.first.cause == StallCause::kLinkBusy)
        busy_[group.first.lane] += group.first.total_ns;
      if (group.first.cause == StallCause::kIssuedLate) late_ns_ += group.first.total_ns;
      if (group.first.cause == StallCause::kStoreTime) store_ns_ += group.first.total_ns;
      h_.stalls.push_back(std::move(group.first));
    }
    std::stable_sort(h_.stalls.begin(), h_.stalls.end(), [](const HotStall& a, const HotStall& b) {
      return a.total_ns > b.total_ns;
    });
  }

  void describe(int32_t blame, const std::vector<Nanos>& free, HotStall* stall) const {
    if (blame < 0) {
      stall->waits_for = "no transfer";
      return;
    }
    const Instr& b = instr(blame);
    const char* way = b.kind == InstrKind::kStore ? " to " : " from ";
    stall->waits_for = std::string(verb_of(b.kind)) + " " + subject_of(p_, b) + way +
                       p_.tiers[b.tier.index()].name;
    stall->lane = t_.lanes[static_cast<size_t>(event(blame).lane)].name;
    stall->bytes = event(blame).bytes;
    const bool queued = free[static_cast<size_t>(blame)] >= event(blame).begin_ns &&
                        event(blame).begin_ns > 0;
    stall->cause = queued                            ? StallCause::kLinkBusy
                   : b.kind == InstrKind::kStore ? StallCause::kStoreTime
                                                 : StallCause::kIssuedLate;
  }

  void advise() {
    for (const auto& [lane, ns] : busy_) {
      h_.advice.push_back({text_of("'%s' is the bottleneck: %s of stalls stood in its queue; a "
                                   "faster link, more device memory or recomputing what it moves would "
                                   "save up to that", lane.c_str(), human_time(ns).c_str()),
                           ns, 0});
    }
    if (late_ns_ > 0) {
      h_.advice.push_back({text_of("%s of stalls waited for Loads that started late although "
                                   "their link was free: more device memory would let them start "
                                   "earlier", human_time(late_ns_).c_str()), late_ns_, 0});
    }
    if (store_ns_ > 0) {
      h_.advice.push_back({text_of("%s of stalls waited for room until a Store was over: more "
                                   "device memory, a faster link, or storing something that is idle "
                                   "earlier", human_time(store_ns_).c_str()), store_ns_, 0});
    }
    if (t_.again_ns > 0) {
      h_.advice.push_back({text_of("ops that run again take %s; more device memory or a faster "
                                   "link would save up to that", human_time(t_.again_ns).c_str()),
                           t_.again_ns, 0});
    }
    std::stable_sort(h_.advice.begin(), h_.advice.end(),
                     [](const Advice& a, const Advice& b) { return a.saves_ns > b.saves_ns; });
    advise_bytes();
  }

  void advise_bytes() {
    Bytes movable = 0;
    const HotTensor* largest = nullptr;
    for (const HotTensor& x : h_.tensors) {
      if (!x.idle || x.round_trip_ns < 0 || x.round_trip_ns > x.gap_ns) continue;
      movable += x.bytes;
      if (largest == nullptr) largest = &x;
    }
    if (largest != nullptr) {
      h_.advice.push_back(
          {text_of("%s at the peak are idle for longer than a round trip to '%s' takes, first '%s' "
                   "(%s, idle for %s, there and back in %s): a smaller budget may cost little",
                   human_bytes(movable).c_str(), largest->tier.c_str(), largest->name.c_str(),
                   human_bytes(largest->bytes).c_str(), human_time(largest->gap_ns).c_str(),
                   human_time(largest->round_trip_ns).c_str()),
           0, movable});
    }
    if (!h_.ops.empty() && 10 * h_.ops[0].needs >= 9 * h_.peak) {
      h_.advice.push_back(
          {text_of("'%s' alone needs %s: below that only a smaller batch or an op that works in "
                   "parts would help", h_.ops[0].name.c_str(),
                   human_bytes(h_.ops[0].needs).c_str()), 0, 0});
    }
  }

  const Timeline& t_;
  const Program& p_;
  Hotspots h_;
  std::vector<std::vector<int32_t>> touches_;  // steps of computes, by tensor
  int32_t peak_compute_ = -1;
  std::map<std::string, Bytes> layer_bytes_;
  std::map<std::string, Nanos> busy_;
  Nanos late_ns_ = 0, store_ns_ = 0;
};

}  // namespace

const char* name_of(StallCause cause) {
  switch (cause) {
    case StallCause::kLinkBusy: return "link busy";
    case StallCause::kIssuedLate: return "started late";
    case StallCause::kStoreTime: return "takes its time";
    case StallCause::kNoTransfer: return "no transfer";
  }
  return "";
}

Hotspots find_hotspots(const Timeline& timeline) { return Finder(timeline).find(); }

}  // namespace headrace
