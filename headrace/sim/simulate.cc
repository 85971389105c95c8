#include "headrace/sim/simulate.h"

#include <algorithm>
#include <map>

#include "headrace/base/split_mix.h"
#include "headrace/ir/kv.h"

namespace headrace {
namespace {

// Cycles after which a steady state is taken for granted.
constexpr int kMaxCycles = 12;
// Times stop here (127 years), so that no sum of them overflows, however slow the link.
constexpr Nanos kEndOfTime = 4'000'000'000'000'000'000;

Nanos clamped(double ns) {
  return ns < static_cast<double>(kEndOfTime) ? static_cast<Nanos>(ns) : kEndOfTime;
}
Nanos later(Nanos time, Nanos by) { return std::min(kEndOfTime, time + std::min(by, kEndOfTime)); }

// What is drawn depends on the key alone, not on what was drawn before.
uint64_t hash_of(uint64_t x) { return mixed(x + kSplitMixStep); }

// The instruction's cost under noise. The same op has the same factor wherever it stands, whenever
// it runs again and in every plan of its graph, so that plans face the same world.
Nanos noisy_cost(const Instr& i, const SimOptions& options) {
  if (options.noise == 0) return i.cost_ns;
  const int32_t id = i.kind == InstrKind::kCompute ? i.op.value : i.tensor.value;
  const uint64_t what = static_cast<uint64_t>(id) * 64 + static_cast<uint64_t>(i.kind) * 8 +
                        static_cast<uint64_t>(i.codec);
  const uint64_t bits = hash_of(hash_of(options.seed) ^ what);
  const double factor = 1 - options.noise + 2 * options.noise * unit_of(bits);
  return clamped(static_cast<double>(i.cost_ns) * std::max(0.0, factor) + 0.5);
}

class Player {
 public:
  Player(const Program& p, const SimOptions& options)
      : p_(p), options_(options), tiers_(options.tiers.empty() ? p.tiers : options.tiers),
        finish_(p.instrs.size(), 0) {
    HR_CHECK(tiers_.size() == p.tiers.size(), "other tiers, but as many");
    for (size_t t = 1; t < tiers_.size() && !options.tiers.empty(); ++t) {
      const TierId tier(static_cast<int64_t>(t));
      load_stream_.push_back(link_stream(tiers_, tier, InstrKind::kLoad));
      store_stream_.push_back(link_stream(tiers_, tier, InstrKind::kStore));
    }
    int32_t most = 0;
    for (const Instr& i : p.instrs) most = std::max(most, stream_of(i).value);
    links_.resize(static_cast<size_t>(most) + 1);
    for (const Op& op : p.graph->ops) {
      if (op.kind != OpKind::kAttention || op.inputs.size() < 3) continue;
      for (TensorId t : op.updates) {
        if (p.graph->at(t).slot.layer >= 0) selected_[t] = op.iattr(Attr::kSparseTokens);
      }
    }
    moved_.resize(p.instrs.size(), 0);
    for (size_t s = 0; s < p.instrs.size(); ++s) {
      const Instr& i = p.instrs[s];
      if (is_transfer(i.kind)) moved_[s] = moved_bytes(i, i.kind == InstrKind::kStore);
    }
  }

  Trace cycle() {
    Trace trace;
    trace.records.resize(p_.instrs.size());
    const Nanos start = now_;
    for (size_t s = 0; s < p_.instrs.size(); ++s) play(s, start, trace);
    trace.total_ns = now_ - start;
    return trace;
  }

 private:
  struct Link {
    Nanos free = 0;      // when the last transfer has left it
    Nanos complete = 0;  // when that has arrived
  };

  // The Program's own streams, or those that other links give.
  StreamId stream_of(const Instr& i) const {
    if (!is_transfer(i.kind) || load_stream_.empty()) return i.stream;
    return (i.kind == InstrKind::kStore ? store_stream_ : load_stream_)[i.tier.index() - 1];
  }

  void play(size_t s, Nanos start, Trace& trace) {
    const Instr& i = p_.instrs[s];
    TraceRecord& r = trace.records[s];
    Nanos ready = 0;
    for (Step w : i.waits) ready = std::max(ready, finish_[w.index()]);
    if (i.kind == InstrKind::kDetach) {
      finish_[s] = std::max(now_, ready);
      r.begin_ns = r.end_ns = finish_[s] - start;
    } else if (is_transfer(i.kind)) {
      transfer(s, ready, start, trace);
    } else {
      r.stall_ns = std::max<Nanos>(0, ready - now_);
      now_ = std::max(now_, ready);
      r.begin_ns = now_ - start;
      now_ = later(now_, noisy_cost(i, options_));
      r.end_ns = now_ - start;
      finish_[s] = now_;
      trace.stall_ns += r.stall_ns;
    }
  }

  Bytes moved_bytes(const Instr& i, bool store) const {
    const Tensor& t = p_.graph->at(i.tensor);
    const bool slot = options_.rows != nullptr && t.slot.layer >= 0 && t.role == Role::kState;
    if (!slot) return range_bytes(t, i.range, i.codec);
    const KvPart part = kv_part(t, store, *options_.rows);
    const Bytes bytes = part.empty() ? 0 : part.end - part.begin;
    const auto sparse = selected_.find(i.tensor);
    if (store || options_.rows->dense || sparse == selected_.end()) return bytes;
    const int64_t positions = options_.rows->positions.back() + 1;
    return positions <= sparse->second ? bytes : bytes * sparse->second / positions;
  }

  void transfer(size_t s, Nanos ready, Nanos start, Trace& trace) {
    const Instr& i = p_.instrs[s];
    TraceRecord& r = trace.records[s];
    const TierInfo& tier = tiers_[i.tier.index()];
    const bool store = i.kind == InstrKind::kStore;
    r.bytes = moved_[s];
    const double rate = store ? tier.store_bytes_per_s : tier.load_bytes_per_s;
    Link& link = links_[stream_of(i).index()];
    const Nanos begin = std::max({link.free, now_, ready});
    if (r.bytes == 0) {  // keeps its place in the order, takes nothing of the link
      finish_[s] = std::max({now_, ready, link.complete});
      r.begin_ns = r.end_ns = finish_[s] - start;
      return;
    }
    link.free = later(begin, clamped(static_cast<double>(r.bytes) / rate * 1e9));
    // In the order listed, also where tiers of one link have different latencies.
    link.complete = std::max(link.complete, later(link.free, tier.latency_ns));
    finish_[s] = link.complete;
    r.begin_ns = begin - start;
    r.end_ns = finish_[s] - start;
    if (i.kind == InstrKind::kLoad) trace.loaded_bytes += r.bytes;
    if (i.kind == InstrKind::kGather) trace.gathered_bytes += r.bytes;
    if (store) trace.stored_bytes += r.bytes;
  }

  const Program& p_;
  const SimOptions& options_;
  const std::vector<TierInfo>& tiers_;
  std::vector<StreamId> load_stream_, store_stream_;  // by tier - 1; empty: the Program's
  Nanos now_ = 0;
  std::vector<Nanos> finish_;  // by step: end of its latest execution
  std::vector<Link> links_;    // by stream
  std::vector<Bytes> moved_;   // by step, of transfers: the rows are the same in each cycle
  std::map<TensorId, int64_t> selected_;  // slots of attention with a mask: positions selected
};

}  // namespace

Trace simulate(const Program& program, const SimOptions& options) {
  Player player(program, options);
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
