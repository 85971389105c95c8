#include "headrace/snapshot/doctor.h"

#include <algorithm>
#include <map>
#include <set>

#include "headrace/plan/allocation.h"

namespace headrace {
namespace {

// Below this share of what is reserved a finding is not worth a line.
constexpr double kWorthTelling = 0.01;
// The caching allocator rounds sizes to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize).
constexpr Bytes kAllocatorUnit = 512;

double share(Bytes part, Bytes whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}
std::string percent(double x) { return text_of("%.1f %%", 100 * x); }

class DeviceDoctor {
 public:
  DeviceDoctor(const MemorySnapshot& snapshot, int32_t device)
      : s_(snapshot), device_(device), lives_(lifetimes_of(snapshot, device)) {
    if (static_cast<size_t>(device) < s_.traces.size()) {
      events_ = s_.traces[static_cast<size_t>(device)];
    }
  }

  bool empty() const { return lives_.buffers.empty() && lives_.peak_reserved == 0; }

  Result<DeviceReport> look(std::vector<Finding>* findings) {
    findings_ = findings;
    HR_TRY(measure());
    find_gap();
    find_spike();
    find_cut_blocks();
    find_rounding();
    find_failures();
    find_churn();
    find_communication();
    find_retention();
    return std::move(r_);
  }

 private:
  Status measure() {
    r_.device = device_;
    r_.events = static_cast<int64_t>(events_.size());
    r_.buffers = static_cast<int64_t>(lives_.buffers.size());
    for (const SnapshotSegment& s : s_.segments) {
      if (s.device != device_) continue;
      r_.reserved += s.bytes;
      for (const SnapshotBlock& b : s.blocks)
        if (b.state != BlockState::kFree) r_.active += b.size;
    }
    r_.peak_reserved = lives_.peak_reserved;
    r_.peak_live = lives_.peak_live;
    if (!events_.empty()) r_.span_us = events_.back().time_us - events_.front().time_us;
    share_out_peak();
    return pack();
  }

  bool alive_at(const SnapshotBuffer& b, int32_t moment) const {
    return b.begin <= moment && b.end > moment;
  }

  void share_out_peak() {
    std::map<std::pair<StepPart, std::string>, PeakShare> shares;
    std::map<std::pair<StepPart, std::string>, Bytes> largest;
    for (const SnapshotBuffer& b : lives_.buffers) {
      if (!alive_at(b, lives_.peak_moment)) continue;
      if (b.begin < 0) r_.before += b.size;
      const auto key = std::make_pair(part_of(s_, b.stack), blame(s_, b.stack));
      PeakShare& share = shares[key];
      share.part = key.first;
      share.where = key.second;
      share.bytes += b.size;
      ++share.buffers;
      if (b.size > largest[key]) {
        largest[key] = b.size;
        share.op = operator_of(s_, b.stack);
      }
    }
    for (auto& [key, share] : shares) r_.shares.push_back(std::move(share));
    std::stable_sort(r_.shares.begin(), r_.shares.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  }

  Status pack() {
    AllocProblem problem;
    problem.alignment = kAllocatorUnit;
    for (const SnapshotBuffer& b : lives_.buffers) {
      // Moments from 0 on: -1 becomes 0.
      if (b.size <= 0) continue;
      problem.buffers.push_back({b.begin + 1, std::max(b.end, b.begin + 1) + 1, b.size});
    }
    if (problem.buffers.empty()) return {};
    HR_ASSIGN(const AllocSolution solution, allocate(problem, {}));
    r_.packed = solution.height;
    return {};
  }

  void add(FindingGroup group, Bytes bytes, std::string title, std::string detail,
           std::string advice) {
    findings_->push_back({group, device_, bytes, std::move(title), std::move(detail),
                          std::move(advice)});
  }
  bool worth_telling(Bytes bytes) const { return share(bytes, r_.peak_reserved) >= kWorthTelling; }

  void find_gap() {
    const Bytes gap = r_.peak_reserved - r_.packed;
    if (!worth_telling(gap)) return;
    add(FindingGroup::kMinimum, gap,
        text_of("%s reserved, %s would do (%s more than needed)",
                human_bytes(r_.peak_reserved).c_str(), human_bytes(r_.packed).c_str(),
                percent(share(gap, r_.packed)).c_str()),
        text_of("At no moment of the trace was more than %s given out at the same time; laid out "
                "in advance, all buffers fit in %s. The rest is cache and fragments.",
                human_bytes(r_.peak_live).c_str(), human_bytes(r_.packed).c_str()),
        s_.expandable_segments
            ? "torch.cuda.empty_cache() once after warm-up, or offsets that are planned "
              "(headrace plan): they have no fragments"
            : "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or offsets that are planned "
              "(headrace plan): they have no fragments");
  }

  // A peak that lasts for a small part of the trace, and who makes it.
  void find_spike() {
    if (lives_.live.size() < 100 || lives_.peak_moment < 0) return;
    std::vector<Bytes> sorted = lives_.live;
    const size_t rank = sorted.size() * 98 / 100;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(rank),
                     sorted.end());
    const Bytes usual = sorted[rank];
    const Bytes above = r_.peak_live - usual;
    if (above < r_.peak_live / 20) return;
    const SnapshotBuffer* largest = nullptr;
    for (const SnapshotBuffer& b : lives_.buffers) {
      if (!alive_at(b, lives_.peak_moment) || b.begin < 0) continue;
      if (static_cast<size_t>(b.end - b.begin) > lives_.live.size() / 50) continue;
      if (largest == nullptr || b.size > largest->size) largest = &b;
    }
    if (largest == nullptr) return;
    add(FindingGroup::kPatterns, above,
        text_of("a short spike: %s of the peak are there for 2 %% of the trace or less",
                human_bytes(above).c_str()),
        text_of("At the peak a buffer of %s is alive for %d events only: %s (%s, %s).",
                human_bytes(largest->size).c_str(), largest->end - largest->begin,
                blame(s_, largest->stack).c_str(), name_of(part_of(s_, largest->stack)),
                operator_of(s_, largest->stack).c_str()),
        "do this operation in pieces (chunked loss or attention, foreach=False or fused=True in "
        "the optimizer), or in place");
  }

  void find_cut_blocks() {
    Bytes free = 0, largest = 0, stuck = 0;
    int64_t segments = 0;
    for (const SnapshotSegment& s : s_.segments) {
      if (s.device != device_) continue;
      Bytes here = 0;
      bool used = false;
      for (const SnapshotBlock& b : s.blocks) {
        used |= b.state != BlockState::kFree;
        if (b.state != BlockState::kFree) continue;
        here += b.size;
        largest = std::max(largest, b.size);
      }
      free += here;
      if (!used || here == 0) continue;
      stuck += here;
      ++segments;
    }
    if (!worth_telling(stuck)) return;
    add(FindingGroup::kPatterns, stuck,
        text_of("%s are free in %lld segments that cannot be given back",
                human_bytes(stuck).c_str(), static_cast<long long>(segments)),
        text_of("Of %s that are free the largest block has %s: an allocation above that fails or "
                "grows the reserve, although the sum would do.",
                human_bytes(free).c_str(), human_bytes(largest).c_str()),
        s_.expandable_segments ? "fewer different sizes: pad sequences to buckets"
                               : "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (or "
                                 "max_split_size_mb:128); pad sequences to buckets");
  }

  void find_rounding() {
    Bytes waste = 0;
    for (const SnapshotSegment& s : s_.segments) {
      if (s.device != device_) continue;
      for (const SnapshotBlock& b : s.blocks)
        if (b.state == BlockState::kActive && b.requested > 0) waste += b.size - b.requested;
    }
    if (!worth_telling(waste)) return;
    add(FindingGroup::kPatterns, waste,
        text_of("%s are lost to the rounding of sizes", human_bytes(waste).c_str()),
        "Blocks that are given out are that much larger than what was asked for.",
        "check roundup_power2_divisions; join many small tensors into one");
  }

  void find_failures() {
    int64_t oom = 0, returned = 0;
    const SnapshotEvent* worst = nullptr;
    size_t at = 0;
    for (size_t i = 0; i < events_.size(); ++i) {
      const SnapshotEvent& e = events_[i];
      if (e.kind == EventKind::kSegmentFree) ++returned;
      if (e.kind != EventKind::kOom) continue;
      ++oom;
      if (worst == nullptr || e.size > worst->size) {
        worst = &e;
        at = i;
      }
    }
    if (worst != nullptr) {
      const Bytes idle = lives_.reserved[at] - lives_.live[at];
      add(FindingGroup::kPatterns, std::min(idle, worst->size),
          text_of("%lld allocations failed, the largest of %s", static_cast<long long>(oom),
                  human_bytes(worst->size).c_str()),
          text_of("Asked for by %s. The device had %s free, and %s were reserved but not given out "
                  "at that moment.",
                  blame(s_, worst->stack).c_str(), human_bytes(worst->address).c_str(),
                  human_bytes(idle).c_str()),
          idle >= worst->size ? "fragments, not size: expandable_segments:True"
                              : "less at the peak: see who holds it, below");
    }
    if (returned > 0) {
      add(FindingGroup::kPatterns, 0,
          text_of("segments were given back to the device %lld times during the trace",
                  static_cast<long long>(returned)),
          "Each time the device stands still (cudaFree) and memory is asked for anew.",
          "a budget that the run fits into; do not call empty_cache() in the loop");
    }
  }

  // One line of the program that allocates and frees most of all bytes.
  void find_churn() {
    std::map<std::string, std::pair<Bytes, int64_t>> by_line;
    Bytes all = 0;
    for (const SnapshotBuffer& b : lives_.buffers) {
      if (b.begin < 0 || b.end >= r_.events) continue;
      auto& [bytes, count] = by_line[blame(s_, b.stack)];
      bytes += b.size;
      ++count;
      all += b.size;
    }
    for (const auto& [where, sum] : by_line) {
      if (sum.second < 1000 || share(sum.first, all) < 0.25) continue;
      add(FindingGroup::kPatterns, 0,
          text_of("%s allocated and freed %lld times: %s, %s of all traffic", where.c_str(),
                  static_cast<long long>(sum.second), human_bytes(sum.first).c_str(),
                  percent(share(sum.first, all)).c_str()),
          "No memory is lost by that, but time; and it cuts blocks.",
          "reuse buffers (out=, in-place operations), or torch.compile");
    }
  }

  void find_communication() {
    Bytes bytes = 0;
    for (const PeakShare& s : r_.shares)
      if (s.part == StepPart::kCommunication) bytes += s.bytes;
    if (!worth_telling(bytes)) return;
    add(FindingGroup::kParallel, bytes,
        text_of("%s of the peak are buffers of communication", human_bytes(bytes).c_str()),
        "Gradients or parameters are held a second time while they travel.",
        "smaller buckets (bucket_cap_mb), gradient_as_bucket_view=True, set_to_none=True");
  }

  struct Kept {
    Bytes bytes = 0;
    int64_t buffers = 0;
    std::set<int32_t> begins;
  };

  void find_retention() {
    if (events_.empty()) return;
    // Buffers of the forward pass that are there after the backward pass, or after the last event
    // where a line allocates again and again and frees nothing.
    int32_t last_backward = -1;
    std::map<std::pair<StepPart, std::string>, Kept> kept;
    std::map<std::string, int64_t> freed;
    for (const SnapshotBuffer& b : lives_.buffers) {
      if (b.begin < 0) continue;
      const StepPart part = part_of(s_, b.stack);
      if (part == StepPart::kBackward) last_backward = std::max(last_backward, b.begin);
      const std::string where = blame(s_, b.stack);
      if (b.end < r_.events) {
        ++freed[where];
        continue;
      }
      Kept& k = kept[{part, where}];
      k.bytes += b.size;
      ++k.buffers;
      k.begins.insert(b.begin);
    }
    for (const auto& [key, k] : kept) {
      const auto& [part, where] = key;
      const bool after_backward = part == StepPart::kForward && last_backward >= 0 &&
                                  *k.begins.begin() < last_backward;
      // From one end of the trace to the other.
      const bool grows = k.buffers >= 3 && freed[where] == 0 &&
                         *k.begins.begin() < r_.events / 3 &&
                         *k.begins.rbegin() > 2 * r_.events / 3;
      if (part == StepPart::kOptimizer || part == StepPart::kGradient) {
        tell_state(part, where, k);
      } else if ((after_backward || grows) && worth_telling(k.bytes)) {
        add(FindingGroup::kRetention, k.bytes,
            text_of("%s in %lld buffers stay: %s", human_bytes(k.bytes).c_str(),
                    static_cast<long long>(k.buffers), where.c_str()),
            after_backward ? "They were made by the forward pass and are still there after the "
                             "backward pass has ended."
                           : "This line allocates again and again in the trace and never frees.",
            "something refers to them: a list of losses or outputs that keeps the graph alive "
            "(append(loss.item()) or .detach()), retain_graph=True, a hook, a global");
      }
    }
  }

  // State that is meant to stay, but had not been there when the trace began.
  void tell_state(StepPart part, const std::string& where, const Kept& k) {
    if (!worth_telling(k.bytes)) return;
    const bool optimizer = part == StepPart::kOptimizer;
    add(FindingGroup::kRetention, k.bytes,
        text_of("%s in %lld buffers stay as %s: %s", human_bytes(k.bytes).c_str(),
                static_cast<long long>(k.buffers), optimizer ? "optimizer state" : "gradients",
                where.c_str()),
        optimizer ? "Made during the trace and kept, as optimizers do: it was the first step, or "
                    "state was made anew."
                  : "Gradients that are kept between steps cost as much as the parameters.",
        optimizer ? "an optimizer with less state (8-bit or factored moments)"
                  : "optimizer.zero_grad(set_to_none=True) right after step()");
  }

  const MemorySnapshot& s_;
  const int32_t device_;
  const Lifetimes lives_;
  std::vector<SnapshotEvent> events_;
  DeviceReport r_;
  std::vector<Finding>* findings_ = nullptr;
};

// Devices of one run that hold very different amounts.
void find_imbalance(const std::vector<DeviceReport>& devices, std::vector<Finding>* findings) {
  if (devices.size() < 2) return;
  const auto less = [](const auto& a, const auto& b) { return a.peak_live < b.peak_live; };
  const auto [least, most] = std::minmax_element(devices.begin(), devices.end(), less);
  const Bytes gap = most->peak_live - least->peak_live;
  if (gap < most->peak_live / 10) return;
  findings->push_back(
      {FindingGroup::kParallel, most->device, gap / 2,
       text_of("device %d holds %s at its peak, device %d only %s", most->device,
               human_bytes(most->peak_live).c_str(), least->device,
               human_bytes(least->peak_live).c_str()),
       "The fullest device decides what fits.",
       "other cuts between pipeline stages, or shard parameters and optimizer state (FSDP, ZeRO)"});
}

}  // namespace

const char* name_of(FindingGroup group) {
  static constexpr const char* kNames[] = {"minimum", "patterns", "parallel", "retention"};
  return kNames[static_cast<size_t>(group)];
}

Result<Diagnosis> diagnose(const MemorySnapshot& snapshot) {
  std::set<int32_t> numbers;
  for (const SnapshotSegment& s : snapshot.segments) numbers.insert(s.device);
  for (size_t d = 0; d < snapshot.traces.size(); ++d) {
    if (!snapshot.traces[d].empty()) numbers.insert(static_cast<int32_t>(d));
  }
  Diagnosis out;
  for (const int32_t device : numbers) {
    DeviceDoctor doctor(snapshot, device);
    if (doctor.empty()) continue;
    HR_ASSIGN(DeviceReport report, doctor.look(&out.findings));
    out.devices.push_back(std::move(report));
  }
  if (out.devices.empty()) {
    return error(Code::kUsage, "the snapshot is empty: no device holds or did anything. Call "
                               "torch.cuda.memory._record_memory_history() before the steps");
  }
  find_imbalance(out.devices, &out.findings);
  std::stable_sort(out.findings.begin(), out.findings.end(),
                   [](const Finding& a, const Finding& b) { return a.bytes > b.bytes; });
  return out;
}

Result<std::vector<ReplayAnswer>> replay_devices(const MemorySnapshot& snapshot,
                                                 const Diagnosis& diagnosis,
                                                 const Machine& machine, double slowdown,
                                                 const std::function<bool()>& before) {
  std::vector<ReplayAnswer> answers;
  for (const DeviceReport& d : diagnosis.devices) {
    const auto replay = replay_workload(snapshot, d.device);
    if (!replay.ok()) continue;  // a device without a trace: the report says "0 events"
    HR_ASSIGN(const WouldFit fit, would_fit(*replay, machine, slowdown, before));
    answers.push_back({d.device, machine.name, fit});
  }
  return answers;
}

}  // namespace headrace
