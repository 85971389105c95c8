#include "headrace/plan/order.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include "headrace/plan/order_graph.h"
#include "headrace/plan/problem.h"

namespace headrace::plan {
namespace {

constexpr int kMostWindows = 24;

std::vector<OpId> ids_of(const std::vector<int32_t>& order) {
  std::vector<OpId> ids;
  ids.reserve(order.size());
  for (int32_t o : order) ids.push_back(OpId(o));
  return ids;
}

// Always the ready op that adds the fewest bytes, what it allocates less what dies with it; ties
// by index. A tensor's last reader is known by the exclusive or of those that are left. O(touches
// log n).
class LeastMemoryFirst {
 public:
  explicit LeastMemoryFirst(const OrderGraph& g)
      : g_(g), needs_(g.needs), begun_(g.lives.size(), false), left_(g.lives.size(), 0),
        rest_(g.lives.size(), 0), change_(g.n, 0), done_(g.n, false) {
    for (size_t l = 0; l < g.lives.size(); ++l) {
      left_[l] = g.users[l].size();
      for (int32_t u : g.users[l]) rest_[l] ^= u;
    }
    for (size_t o = 0; o < g.n; ++o) change_[o] = change_now(o);
  }

  std::vector<int32_t> run() {
    for (size_t o = 0; o < g_.n; ++o) {
      if (needs_[o] == 0) ready_.insert({change_[o], static_cast<int32_t>(o)});
    }
    std::vector<int32_t> order;
    order.reserve(g_.n);
    while (!ready_.empty()) {
      const int32_t o = ready_.begin()->second;
      ready_.erase(ready_.begin());
      order.push_back(o);
      finish(static_cast<size_t>(o));
    }
    return order;
  }

 private:
  Bytes change_now(size_t o) const {
    Bytes bytes = 0;
    for (int32_t l : g_.touches[o]) {
      const size_t i = static_cast<size_t>(l);
      if (!begun_[i]) bytes += g_.lives[i].bytes;
      if (left_[i] == 1 && !g_.lives[i].stays) bytes -= g_.lives[i].bytes;
    }
    return bytes;
  }

  void add(size_t o, Bytes delta) {
    if (done_[o] || delta == 0) return;
    if (needs_[o] == 0) ready_.erase({change_[o], static_cast<int32_t>(o)});
    change_[o] += delta;
    if (needs_[o] == 0) ready_.insert({change_[o], static_cast<int32_t>(o)});
  }

  // Each tensor begins once and has one last user: O(touches) changes in all.
  void finish(size_t o) {
    done_[o] = true;
    for (int32_t l : g_.touches[o]) {
      const size_t i = static_cast<size_t>(l);
      const bool first = !begun_[i];
      begun_[i] = true;
      --left_[i];
      rest_[i] ^= static_cast<int32_t>(o);
      const Bytes bytes = g_.lives[i].bytes;
      if (left_[i] == 1 && !g_.lives[i].stays) add(static_cast<size_t>(rest_[i]), -bytes);
      if (!first || left_[i] == 0) continue;
      for (int32_t u : g_.users[i]) add(static_cast<size_t>(u), -bytes);
    }
    for (int32_t to : g_.after[o]) {
      if (--needs_[static_cast<size_t>(to)] > 0) continue;
      ready_.insert({change_[static_cast<size_t>(to)], to});
    }
  }

  const OrderGraph& g_;
  std::vector<int32_t> needs_;
  std::vector<bool> begun_;
  std::vector<size_t> left_;    // by life: users to come
  std::vector<int32_t> rest_;   // by life: exclusive or of those
  std::vector<Bytes> change_;   // by op
  std::vector<bool> done_;
  std::set<std::pair<Bytes, int32_t>> ready_;
};

// Ready ops last in, first out (depth first) or first in, first out (breadth first).
std::vector<int32_t> by_readiness(const OrderGraph& g, bool depth_first) {
  std::vector<int32_t> needs = g.needs;
  std::deque<int32_t> ready;
  for (size_t o = 0; o < g.n; ++o) {
    if (needs[o] == 0) ready.push_back(static_cast<int32_t>(o));
  }
  if (depth_first) std::reverse(ready.begin(), ready.end());
  std::vector<int32_t> order;
  order.reserve(g.n);
  while (!ready.empty()) {
    const int32_t o = depth_first ? ready.back() : ready.front();
    if (depth_first) {
      ready.pop_back();
    } else {
      ready.pop_front();
    }
    order.push_back(o);
    const auto& after = g.after[static_cast<size_t>(o)];
    for (size_t i = 0; i < after.size(); ++i) {
      // Depth first: the first of those that became ready is the next to run.
      const int32_t to = depth_first ? after[after.size() - 1 - i] : after[i];
      if (--needs[static_cast<size_t>(to)] == 0) ready.push_back(to);
    }
  }
  return order;
}

}  // namespace

Bytes swept_peak(const Graph& graph, const std::vector<OpId>& order) {
  std::vector<int32_t> ids;
  for (OpId o : order) ids.push_back(o.value);
  return peak_of(held_by_order(OrderGraph(graph), ids));
}

std::vector<OrderChoice> choose_orders(const StepRequest& request, size_t most) {
  const Graph& graph = request.workload->graph;
  std::vector<OrderChoice> chosen;
  OrderChoice program;
  program.order = program_order(graph);
  program.name = "program order";
  if (!request.reorder || graph.ops.size() < 3) {
    chosen.push_back(std::move(program));
    return chosen;
  }
  const OrderGraph g(graph);
  std::vector<int32_t> own;
  for (OpId o : program.order) own.push_back(o.value);
  program.peak_bytes = peak_of(held_by_order(g, own));
  program.work = static_cast<int64_t>(g.n);
  chosen.push_back(program);
  if (program.peak_bytes <= request.budget) return chosen;  // nothing needs to move
  struct Named {
    const char* name;
    std::vector<int32_t> order;
  };
  std::array<Named, 4> named{{{"least memory first", LeastMemoryFirst(g).run()},
                              {"depth first", by_readiness(g, true)},
                              {"breadth first", by_readiness(g, false)},
                              {"program order, windows", own}}};
  for (Named& each : named) {
    OrderChoice c;
    c.name = each.name;
    c.work = static_cast<int64_t>(g.n) + improve_windows(g, kMostWindows, each.order);
    HR_CHECK(valid_order(g, each.order), "an order obeys the graph");
    c.peak_bytes = peak_of(held_by_order(g, each.order));
    c.order = ids_of(each.order);
    chosen.push_back(std::move(c));
  }
  // Those that need less than the program's own, the least first.
  std::stable_sort(chosen.begin() + 1, chosen.end(), [](const auto& a, const auto& b) {
    return a.peak_bytes < b.peak_bytes;
  });
  std::vector<OrderChoice> kept;
  for (OrderChoice& c : chosen) {
    const bool known = std::any_of(kept.begin(), kept.end(),
                                   [&](const OrderChoice& k) { return k.order == c.order; });
    const bool less = kept.empty() || c.peak_bytes < kept[0].peak_bytes;
    if (kept.size() < most && !known && less) kept.push_back(std::move(c));
  }
  return kept;
}

}  // namespace headrace::plan
