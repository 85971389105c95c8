// Which op must run after which, and how many bytes an order holds. Internal to order*.cc.
#pragma once

#include <vector>

#include "headrace/plan/order.h"

namespace headrace::plan {

// Ops and the tensors that live and die with their uses, in flat tables.
struct OrderGraph {
  explicit OrderGraph(const Graph& graph);

  struct Life {
    Bytes bytes = 0;
    int32_t writers = 0;  // ops that write it
    bool stays = false;   // held from its first write to the end, or throughout
  };
  const Graph& g;
  size_t n = 0;
  std::vector<std::vector<int32_t>> after;    // by op: ops that need it done
  std::vector<int32_t> needs;                 // by op: how many must be done before
  std::vector<std::vector<int32_t>> touches;  // by op: lives, each once
  std::vector<Life> lives;
  std::vector<std::vector<int32_t>> users;    // by life: ops that touch it
  Bytes always = 0;                           // constants, weights and states
};

// The bytes held at each position of `order`. O(touches).
std::vector<Bytes> held_by_order(const OrderGraph& graph, const std::vector<int32_t>& order);
bool valid_order(const OrderGraph& graph, const std::vector<int32_t>& order);

// Improves `order` by exact search over windows of up to kWindow ops around its highest positions:
// dynamic programming over the subsets that have run (as Bellman, 1962, does for sequencing).
// Returns the number of subsets looked at. At most `windows` windows.
constexpr int kWindow = 12;
int64_t improve_windows(const OrderGraph& graph, int windows, std::vector<int32_t>& order);

}  // namespace headrace::plan
