#include <algorithm>
#include <unordered_map>

#include "headrace/plan/plan.h"

namespace headrace {
namespace {

// How many bytes of loads may be issued ahead of their use: enough to keep the link busy during
// the longest op, little enough that the ring's own loads do not queue behind the whole model.
constexpr Bytes kLookahead = 16 * kMiB;

struct Missing {
  size_t residency = 0;  // index in target.residencies
  int32_t first_use = 0; // step of target
  Bytes bytes = 0;
  TierId from;
  int32_t load_step = -1; // in the bridge
};

// What an op reads: its inputs and what it updates.
template <typename Fn>
void for_each_operand(const Op& op, Fn fn) {
  for (const auto* list : {&op.inputs, &op.updates}) {
    for (TensorId t : *list) {
      if (t.valid()) fn(t);
    }
  }
}

class Bridge {
 public:
  Bridge(const Program& target, const std::vector<Placed>& state, Ending ending)
      : target_(target), graph_(*target.graph), dropped_(target.instrs.size(), false) {
    for (const Placed& p : state) have_.emplace(p.name, p.offset);
    if (ending == Ending::kCycle) return;
    for (const Residency& r : target.residencies) {
      if (for_next_cycle(r)) dropped_[r.begin.index()] = true;
    }
  }

  Result<Program> run() {
    HR_TRY(find_missing());
    out_.name = "bridge to " + target_.name;
    out_.graph = target_.graph;
    out_.cyclic = false;
    out_.arena_bytes = target_.arena_bytes;
    out_.tiers = target_.tiers;
    copy_instructions();
    copy_waits();
    copy_residencies();
    return std::move(out_);
  }

 private:
  // Begun by a load of this cycle, used in the next.
  bool for_next_cycle(const Residency& r) const {
    return r.begin != kEntry && r.tier == kDevice && r.end == target_.exit() &&
           target_.instrs[r.begin.index()].kind == InstrKind::kLoad;
  }

  Status find_missing() {
    std::vector<std::vector<int32_t>> uses(graph_.tensors.size());
    for (int32_t s = 0; s < target_.exit().value; ++s) {
      const Instr& i = target_.instrs[static_cast<size_t>(s)];
      if (i.kind != InstrKind::kCompute) continue;
      for_each_operand(graph_.at(i.op), [&](TensorId t) { uses[t.index()].push_back(s); });
    }
    std::unordered_map<TensorId, TierId> copies;
    for (const Residency& r : target_.residencies) {
      if (r.tier != kDevice && r.begin == kEntry) copies.emplace(r.tensor, r.tier);
    }
    for (size_t k = 0; k < target_.residencies.size(); ++k) {
      const Residency& r = target_.residencies[k];
      if (!r.tensor.valid() || r.begin != kEntry || r.tier != kDevice) continue;
      const Tensor& t = graph_.at(r.tensor);
      const auto found = have_.find(t.name);
      const bool here = found != have_.end() && found->second == r.offset;
      const auto copy = copies.find(r.tensor);
      if (t.role == Role::kState && found != have_.end() && !here && copy == copies.end()) {
        return error(Code::kUnsupported, "'%s' would have to move from %lld to %lld",
                     t.name.c_str(), static_cast<long long>(found->second),
                     static_cast<long long>(r.offset));
      }
      if (here || (t.role != Role::kWeight && copy == copies.end())) continue;
      // What this Program keeps for another one is loaded last.
      const auto& used = uses[r.tensor.index()];
      const TierId from = copy == copies.end() ? TierId(1) : copy->second;
      missing_.push_back({k, used.empty() ? target_.exit().value : used.front(), r.bytes, from, -1});
    }
    std::stable_sort(missing_.begin(), missing_.end(), [](const Missing& a, const Missing& b) {
      return a.first_use < b.first_use;
    });
    return {};
  }

  void copy_instructions() {
    size_t issued = 0, used = 0;
    Bytes ahead = 0;
    for (int32_t s = 0; s <= target_.exit().value; ++s) {
      for (; issued < missing_.size(); ++issued) {
        while (used < issued && missing_[used].first_use <= s) ahead -= missing_[used++].bytes;
        if (missing_[issued].first_use > s && ahead >= kLookahead) break;
        add_load(missing_[issued]);
        ahead += missing_[issued].bytes;
      }
      new_step_.push_back(static_cast<int32_t>(out_.instrs.size()));
      if (s == target_.exit().value || dropped_[static_cast<size_t>(s)]) continue;
      out_.instrs.push_back(target_.instrs[static_cast<size_t>(s)]);
    }
  }

  void add_load(Missing& m) {
    Instr load;
    load.kind = InstrKind::kLoad;
    load.tensor = target_.residencies[m.residency].tensor;
    load.tier = m.from;
    load.stream = link_stream(out_.tiers, m.from, InstrKind::kLoad);
    m.load_step = static_cast<int32_t>(out_.instrs.size());
    out_.instrs.push_back(std::move(load));
  }

  // Waits on the cycle before fall away; what they stood for is a load of this bridge or has been
  // there from the start.
  void copy_waits() {
    for (int32_t s = 0; s < target_.exit().value; ++s) {
      if (dropped_[static_cast<size_t>(s)]) continue;
      std::vector<Step> waits;
      for (Step w : target_.instrs[static_cast<size_t>(s)].waits) {
        if (w.value < s) waits.push_back(Step(new_step_[w.index()]));
      }
      out_.instrs[static_cast<size_t>(new_step_[static_cast<size_t>(s)])].waits = waits;
    }
    std::unordered_map<TensorId, const Missing*> loads;
    for (const Missing& m : missing_) loads[target_.residencies[m.residency].tensor] = &m;
    for (int32_t s = 0; s < target_.exit().value; ++s) {
      if (dropped_[static_cast<size_t>(s)]) continue;
      Instr& i = out_.instrs[static_cast<size_t>(new_step_[static_cast<size_t>(s)])];
      if (i.kind != InstrKind::kCompute) continue;
      for_each_operand(graph_.at(i.op), [&](TensorId t) {
        const auto found = loads.find(t);
        if (found == loads.end()) return;
        const Residency& r = target_.residencies[found->second->residency];
        const Step load(found->second->load_step);
        const bool covers = s < r.end.value;
        if (covers && std::find(i.waits.begin(), i.waits.end(), load) == i.waits.end()) {
          i.waits.push_back(load);
        }
      });
      std::sort(i.waits.begin(), i.waits.end());
    }
  }

  void copy_residencies() {
    out_.residencies = target_.residencies;
    for (Residency& r : out_.residencies) {
      if (r.begin != kEntry) r.begin = Step(new_step_[r.begin.index()]);
      r.end = Step(new_step_[r.end.index()]);
    }
    for (const Missing& m : missing_) out_.residencies[m.residency].begin = Step(m.load_step);
    for (size_t k = target_.residencies.size(); k-- > 0;) {
      const Residency& r = target_.residencies[k];
      if (r.begin == kEntry || !dropped_[r.begin.index()]) continue;
      out_.residencies.erase(out_.residencies.begin() + static_cast<std::ptrdiff_t>(k));
    }
    std::stable_sort(out_.residencies.begin(), out_.residencies.end(),
                     [](const Residency& a, const Residency& b) {
                       return a.begin != b.begin ? a.begin < b.begin : a.offset < b.offset;
                     });
  }

  const Program& target_;
  const Graph& graph_;
  std::unordered_map<std::string, Bytes> have_;
  std::vector<bool> dropped_;      // by step of target: loads that nobody would use
  std::vector<Missing> missing_;   // by first use
  std::vector<int32_t> new_step_;  // step of target -> step of bridge
  Program out_;
};

}  // namespace

Result<Program> plan_bridge(const Program& target, const std::vector<Placed>& state,
                            Ending ending) {
  return Bridge(target, state, ending).run();
}

}  // namespace headrace
