// The pass `order`: in which order the ops run. Internal to plan/.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::plan {

struct OrderChoice {
  std::vector<OpId> order;
  std::string name;       // "program", "least memory first", ...
  Bytes peak_bytes = 0;   // when everything is kept
  int64_t work = 0;       // ops considered
};

// The most bytes held at any position in this order when everything is kept. O(n).
Bytes swept_peak(const Graph& graph, const std::vector<OpId>& order);

// The program's order first, then others worth a placement, best first, none twice. `most` of them.
std::vector<OrderChoice> choose_orders(const StepRequest& request, size_t most);

// Steps of up to 32 ops: hill climbing over orders from each of `orders`, judged by placement
// without local search; the best that it finds is added. At most 400 placements from each start.
Status search_orders(const StepRequest& request, std::vector<OrderChoice>& orders);

}  // namespace headrace::plan
