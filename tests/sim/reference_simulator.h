// The simulator once more, slow and with nothing in common but the rules of simulate.h: time moves
// from event to event, and at each the machine's parts are asked what they can do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "headrace/sim/simulate.h"

namespace headrace::test {

class ReferenceMachine {
 public:
  ReferenceMachine(const Program& p, int cycles)
      : p_(p), n_(p.instrs.size()), total_(n_ * static_cast<size_t>(cycles)), begin_(total_, -1),
        end_(total_, -1), stall_(total_, 0), done_(total_, false) {}

  void run() {
    for (;;) {
      while (act()) {
      }
      const Nanos next = next_event();
      if (next < 0) return;
      now_ = next;
    }
  }

  // Of one cycle, relative to its start: the end of the last compute instruction of the one before.
  Trace cycle(int c) const {
    Trace t;
    t.records.resize(n_);
    const Nanos start = c == 0 ? 0 : last_compute(c - 1);
    for (size_t s = 0; s < n_; ++s) {
      const size_t g = static_cast<size_t>(c) * n_ + s;
      t.records[s] = {begin_[g] - start, end_[g] - start, stall_[g], 0};
      t.stall_ns += stall_[g];
    }
    t.total_ns = last_compute(c) - start;
    return t;
  }
  bool finished() const { return std::find(done_.begin(), done_.end(), false) == done_.end(); }

 private:
  struct Link {
    std::deque<size_t> queue;
    Nanos free_at = 0;
    bool busy = false;
    std::deque<std::pair<size_t, Nanos>> flying;  // left the link, not arrived
    Nanos last_arrival = 0;
  };

  const Instr& at(size_t g) const { return p_.instrs[g % n_]; }

  bool ready(size_t g) const {
    for (Step w : at(g).waits) {
      const size_t base = g - g % n_;
      if (w.index() < g % n_ && !done_[base + w.index()]) return false;
      if (w.index() >= g % n_ && base > 0 && !done_[base - n_ + w.index()]) return false;
    }
    return true;
  }

  // Does one thing that can be done now; false when there is none.
  bool act() {
    if (running_ >= 0 && end_[static_cast<size_t>(running_)] == now_) {
      done_[static_cast<size_t>(running_)] = true;
      running_ = -1;
      return true;
    }
    for (auto& [stream, link] : links_) {
      if (!link.flying.empty() && link.flying.front().second == now_) {
        done_[link.flying.front().first] = true;
        link.flying.pop_front();
        return true;
      }
      if (link.busy && link.free_at == now_) {
        link.busy = false;
        return true;
      }
      if (!link.busy && !link.queue.empty() && ready(link.queue.front())) {
        start_transfer(link);
        return true;
      }
    }
    for (size_t k = 0; k < detaches_.size(); ++k) {
      if (!ready(detaches_[k])) continue;
      begin_[detaches_[k]] = end_[detaches_[k]] = now_;
      done_[detaches_[k]] = true;
      detaches_.erase(detaches_.begin() + static_cast<std::ptrdiff_t>(k));
      return true;
    }
    return issue();
  }

  bool issue() {
    if (running_ >= 0 || next_ == total_) return false;
    const Instr& i = at(next_);
    if (is_transfer(i.kind)) {
      links_[i.stream.value].queue.push_back(next_);
    } else if (i.kind == InstrKind::kDetach) {
      detaches_.push_back(next_);
    } else {
      if (blocked_since_ < 0) blocked_since_ = now_;
      if (!ready(next_)) return false;
      stall_[next_] = now_ - blocked_since_;
      blocked_since_ = -1;
      begin_[next_] = now_;
      end_[next_] = now_ + i.cost_ns;
      running_ = static_cast<int64_t>(next_);
    }
    ++next_;
    return true;
  }

  void start_transfer(Link& link) {
    const size_t g = link.queue.front();
    link.queue.pop_front();
    const Instr& i = at(g);
    const TierInfo& tier = p_.tiers[i.tier.index()];
    const double rate =
        i.kind == InstrKind::kStore ? tier.store_bytes_per_s : tier.load_bytes_per_s;
    const Bytes bytes = range_bytes(p_.graph->at(i.tensor), i.range, i.codec);
    begin_[g] = now_;
    link.free_at = now_ + static_cast<Nanos>(static_cast<double>(bytes) / rate * 1e9);
    link.busy = true;
    link.last_arrival = std::max(link.last_arrival, link.free_at + tier.latency_ns);
    end_[g] = link.last_arrival;
    link.flying.push_back({g, end_[g]});
  }

  Nanos next_event() const {
    Nanos next = -1;
    const auto consider = [&](Nanos t) {
      if (t > now_ && (next < 0 || t < next)) next = t;
    };
    if (running_ >= 0) consider(end_[static_cast<size_t>(running_)]);
    for (const auto& [stream, link] : links_) {
      if (link.busy) consider(link.free_at);
      if (!link.flying.empty()) consider(link.flying.front().second);
    }
    return next;
  }

  Nanos last_compute(int c) const {
    Nanos end = 0;
    for (size_t g = 0; g < static_cast<size_t>(c + 1) * n_; ++g) {
      const InstrKind kind = at(g).kind;
      if (!is_transfer(kind) && kind != InstrKind::kDetach) end = std::max(end, end_[g]);
    }
    return end;
  }

  const Program& p_;
  const size_t n_, total_;
  std::vector<Nanos> begin_, end_, stall_;
  std::vector<bool> done_;
  std::map<int32_t, Link> links_;
  std::vector<size_t> detaches_;
  size_t next_ = 0;           // to be issued
  int64_t running_ = -1;      // on stream 0
  Nanos blocked_since_ = -1;  // the next compute instruction has been waiting since
  Nanos now_ = 0;
};

}  // namespace headrace::test
