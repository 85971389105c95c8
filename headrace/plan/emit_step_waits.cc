// The stage `waits` of emit. Plays the instructions with a map from bytes to the transfers that may
// still use them; whoever begins to write bytes waits for those of other streams. In a cyclic
// Program two cycles are played, and the waits are those of the second.
#include <algorithm>
#include <array>
#include <map>

#include "headrace/plan/emit_step.h"

namespace headrace::plan {
namespace {

// Transfers with one tier in one direction complete in the order in which they are issued: having
// waited for one, one has waited for those before it. `key` numbers tier and direction.
struct Pending {
  int32_t key = 0;
  int64_t at = 0;  // cycle x steps + step
};

// Bytes of a tier, and the latest transfer of each key that uses them.
class ByteMap {
 public:
  // All pending transfers on [begin, end).
  template <typename Visit>
  void visit(Bytes begin, Bytes end, Visit visit) {
    for (auto it = first(begin); it != nodes_.end() && it->first < end; ++it) {
      if (it->second.end <= begin) continue;
      for (const Pending& pending : it->second.pending) visit(pending);
    }
  }

  void add(Bytes begin, Bytes end, Pending pending) {
    cut(begin);
    cut(end);
    Bytes at = begin;
    for (auto it = nodes_.lower_bound(begin); at < end; ++it) {
      const Bytes next = it == nodes_.end() ? end : std::min(it->first, end);
      if (next > at) it = nodes_.emplace_hint(it, at, Node{next, {}});
      merge(it->second.pending, pending);
      at = it->second.end;
    }
  }

  void clear(Bytes begin, Bytes end) {
    cut(begin);
    cut(end);
    nodes_.erase(nodes_.lower_bound(begin), nodes_.lower_bound(end));
  }

 private:
  struct Node {
    Bytes end = 0;
    std::vector<Pending> pending;
  };
  using Nodes = std::map<Bytes, Node>;

  Nodes::iterator first(Bytes begin) {
    auto it = nodes_.upper_bound(begin);
    return it == nodes_.begin() ? it : std::prev(it);
  }
  void cut(Bytes at) {
    auto it = nodes_.lower_bound(at);
    if (it == nodes_.begin()) return;
    --it;
    if (it->second.end <= at) return;
    Node right = it->second;
    it->second.end = at;
    nodes_.emplace(at, std::move(right));
  }
  static void merge(std::vector<Pending>& list, Pending pending) {
    for (Pending& p : list) {
      if (p.key != pending.key) continue;
      p.at = std::max(p.at, pending.at);
      return;
    }
    list.push_back(pending);
  }

  Nodes nodes_;
};

class Waits {
 public:
  explicit Waits(Draft& d)
      : d_(d), p_(d.program), n_(static_cast<int64_t>(d.program.instrs.size())),
        keys_(2 * p_.tiers.size()), maps_(p_.tiers.size()) {}

  void run() {
    index();
    const int64_t cycles = p_.cyclic ? 2 : 1;
    for (int64_t cycle = 0; cycle < cycles; ++cycle) {
      for (int64_t s = 0; s < n_; ++s) visit(cycle * n_ + s, cycle + 1 == cycles);
    }
    for (Instr& i : p_.instrs) {
      std::sort(i.waits.begin(), i.waits.end());
      i.waits.erase(std::unique(i.waits.begin(), i.waits.end()), i.waits.end());
    }
  }

 private:
  static bool is_store(const Instr& i) { return i.kind == InstrKind::kStore; }
  static int32_t key_of(const Instr& i) { return 2 * i.tier.value + (is_store(i) ? 1 : 0); }

  // Tables: the residencies that begin at each step, the uses of each step, offsets of blocks.
  void index() {
    begins_.resize(static_cast<size_t>(n_));
    for (size_t r = 0; r < p_.residencies.size(); ++r) {
      const Residency& residency = p_.residencies[r];
      if (residency.begin.valid()) begins_[residency.begin.index()].push_back(r);
      base_.resize(std::max(base_.size(), static_cast<size_t>(d_.blocks)), 0);
      base_[static_cast<size_t>(d_.block[r])] = residency.offset - residency.range.begin;
    }
    std::stable_sort(d_.uses.begin(), d_.uses.end(),
                     [](const ByteUse& a, const ByteUse& b) { return a.instr < b.instr; });
    use_at_.assign(static_cast<size_t>(n_) + 1, d_.uses.size());
    for (size_t u = d_.uses.size(); u-- > 0;) {
      use_at_[static_cast<size_t>(d_.uses[u].instr)] = u;
    }
    for (size_t s = static_cast<size_t>(n_); s-- > 0;) {
      use_at_[s] = std::min(use_at_[s], use_at_[s + 1]);
    }
    const size_t streams = 2 * p_.tiers.size() + 1;
    known_.assign(streams, std::vector<int64_t>(keys_, -1));
  }

  // The execution that a wait of the instruction at `now` on step w means.
  int64_t execution(int64_t now, Step w) const {
    const int64_t cycle = now / n_;
    return (w.value < now % n_ ? cycle : cycle - 1) * n_ + w.value;
  }

  void visit(int64_t now, bool write) {
    const size_t s = static_cast<size_t>(now % n_);
    Instr& i = p_.instrs[s];
    // A transfer waits for the op before it, and so for all that the compute stream has waited for.
    std::vector<int64_t>& mine = known_[i.stream.index()];
    if (i.stream != kComputeStream) {
      for (size_t k = 0; k < keys_; ++k) mine[k] = std::max(mine[k], known_[0][k]);
    }
    std::vector<int64_t>* known = i.kind == InstrKind::kDetach ? nullptr : &mine;
    wanted_.clear();
    for (Step w : i.waits) {
      const Instr& on = p_.instrs[w.index()];
      HR_CHECK(is_transfer(on.kind), "data waits are for transfers");
      want({key_of(on), execution(now, w)}, mine);
    }
    if (write) i.waits.clear();
    if (write && is_transfer(i.kind) && last_compute_ >= 0) {
      i.waits.push_back(Step(last_compute_ % n_));
    }
    if (i.stream == kComputeStream && i.kind != InstrKind::kDetach) last_compute_ = now;
    for (size_t r : begins_[s]) {
      const Residency& residency = p_.residencies[r];
      Bytes begin = residency.offset, end = begin + residency.bytes;
      collect(residency.tier, begin, end, i, mine);
    }
    for (size_t u = use_at_[s]; u < use_at_[s + 1]; ++u) {
      const ByteUse& use = d_.uses[u];
      if (is_transfer(i.kind)) continue;
      const Bytes base = base_[static_cast<size_t>(use.block)];
      collect(use.tier, base + use.begin, base + use.end, i, mine);
    }
    for (const Pending& p : wanted_) {
      if (write) i.waits.push_back(Step(p.at % n_));
      if (known != nullptr) learn(*known, p.key, p.at);
    }
    for (size_t r : begins_[s]) {
      const Residency& residency = p_.residencies[r];
      maps_[residency.tier.index()].clear(residency.offset, residency.offset + residency.bytes);
    }
    if (!is_transfer(i.kind)) return;
    for (size_t u = use_at_[s]; u < use_at_[s + 1]; ++u) {
      const ByteUse& use = d_.uses[u];
      const Bytes base = base_[static_cast<size_t>(use.block)];
      maps_[use.tier.index()].add(base + use.begin, base + use.end, {key_of(i), now});
    }
  }

  static void learn(std::vector<int64_t>& known, int32_t key, int64_t at) {
    known[static_cast<size_t>(key)] = std::max(known[static_cast<size_t>(key)], at);
  }

  // Latest pending transfer of each key on these bytes that is of another stream and may be
  // unfinished.
  void collect(TierId tier, Bytes begin, Bytes end, const Instr& i,
               const std::vector<int64_t>& known) {
    maps_[tier.index()].visit(begin, end, [&](const Pending& p) {
      const Instr& on = p_.instrs[static_cast<size_t>(p.at % n_)];
      if (on.stream != i.stream) want(p, known);
    });
  }

  void want(Pending p, const std::vector<int64_t>& known) {
    if (p.at <= known[static_cast<size_t>(p.key)]) return;
    for (Pending& w : wanted_) {
      if (w.key != p.key) continue;
      w.at = std::max(w.at, p.at);
      return;
    }
    wanted_.push_back(p);
  }

  Draft& d_;
  Program& p_;
  const int64_t n_;
  const size_t keys_;
  std::vector<ByteMap> maps_;                  // by tier
  std::vector<std::vector<int64_t>> known_;    // by stream, by key: complete up to here
  std::vector<std::vector<size_t>> begins_;    // by step
  std::vector<size_t> use_at_;                 // by step: first of its uses
  std::vector<Bytes> base_;                    // by block: offset of its begin
  std::vector<Pending> wanted_;
  int64_t last_compute_ = -1;                  // the latest instruction of the compute stream
};

}  // namespace

void add_room_waits(Draft& d, Bytes budget) {
  Program& p = d.program;
  const size_t n = p.instrs.size();
  std::vector<Bytes> begin(n + 1, 0), end(n + 1, 0);
  Bytes held = 0;  // room that is taken, what pending stores still read included
  for (const Residency& r : p.residencies) {
    if (r.tier != kDevice) continue;
    if (r.begin == kEntry) {
      held += r.bytes;
    } else {
      begin[r.begin.index()] += r.bytes;
    }
    end[r.end.index()] += r.bytes;
  }
  std::vector<std::pair<Step, Bytes>> pending;  // store, bytes that its end sets free
  size_t oldest = 0;
  for (size_t s = 0; s < n; ++s) {
    Instr& i = p.instrs[s];
    const bool stored = i.kind == InstrKind::kDetach && !i.waits.empty();
    if (stored) {
      pending.push_back({*std::max_element(i.waits.begin(), i.waits.end()), end[s]});
    } else {
      held -= end[s];
    }
    held += begin[s];
    while (begin[s] > 0 && held > budget && oldest < pending.size()) {
      if (pending[oldest].first.value < static_cast<int32_t>(s)) {
        i.waits.push_back(pending[oldest].first);
      }
      held -= pending[oldest++].second;
    }
  }
}

void add_byte_waits(Draft& draft) {
  if (!draft.program.instrs.empty()) Waits(draft).run();
}

}  // namespace headrace::plan
