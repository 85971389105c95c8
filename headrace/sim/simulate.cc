#include "headrace/sim/simulate.h"

#include <algorithm>

namespace headrace {
namespace {

// Cycles after which a steady state is taken for granted.
constexpr int kMaxCycles = 12;

class Player {
 public:
  explicit Player(const Program& p)
      : p_(p), finish_(p.instrs.size(), 0), link_free_(streams(p), 0) {}

  Trace cycle() {
    Trace trace;
    trace.records.resize(p_.instrs.size());
    const Nanos start = now_;
    for (size_t s = 0; s < p_.instrs.size(); ++s) play(s, start, trace);
    trace.total_ns = now_ - start;
    return trace;
  }

 private:
  static size_t streams(const Program& p) {
    int32_t most = 0;
    for (const Instr& i : p.instrs) most = std::max(most, i.stream.value);
    return static_cast<size_t>(most) + 1;
  }

  void play(size_t s, Nanos start, Trace& trace) {
    const Instr& i = p_.instrs[s];
    TraceRecord& r = trace.records[s];
    Nanos ready = 0;
    for (Step w : i.waits) ready = std::max(ready, finish_[w.index()]);
    if (i.kind == InstrKind::kDetach) {
      finish_[s] = now_;
      return;
    }
    if (i.kind == InstrKind::kCompute) {
      r.stall_ns = std::max<Nanos>(0, ready - now_);
      r.begin_ns = now_ + r.stall_ns - start;
      now_ += r.stall_ns + i.cost_ns;
      r.end_ns = now_ - start;
      finish_[s] = now_;
      trace.stall_ns += r.stall_ns;
      return;
    }
    const TierInfo& tier = p_.tiers[i.tier.index()];
    const Tensor& t = p_.graph->at(i.tensor);
    const bool store = i.kind == InstrKind::kStore;
    r.bytes = i.kind == InstrKind::kLoad ? load_extent(t.source).bytes : device_bytes(t);
    const double rate = store ? tier.store_bytes_per_s : tier.load_bytes_per_s;
    Nanos& link = link_free_[i.stream.index()];
    const Nanos begin = std::max({link, now_, ready});
    link = begin + static_cast<Nanos>(static_cast<double>(r.bytes) / rate * 1e9);
    finish_[s] = link + tier.latency_ns;
    r.begin_ns = begin - start;
    r.end_ns = finish_[s] - start;
    if (i.kind == InstrKind::kLoad) trace.loaded_bytes += r.bytes;
    if (i.kind == InstrKind::kGather) trace.gathered_bytes += r.bytes;
    if (store) trace.stored_bytes += r.bytes;
  }

  const Program& p_;
  Nanos now_ = 0;
  std::vector<Nanos> finish_;     // by step: end of its latest execution
  std::vector<Nanos> link_free_;  // by stream
};

}  // namespace

Trace simulate(const Program& program, const SimOptions&) {
  Player player(program);
  Trace trace = player.cycle();
  for (int i = 1; program.cyclic && i < kMaxCycles; ++i) {
    Trace next = player.cycle();
    const bool steady = next.total_ns == trace.total_ns && i > 2;
    trace = std::move(next);
    if (steady) break;
  }
  return trace;
}

}  // namespace headrace
