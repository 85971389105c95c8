#include "headrace/plan/order.h"

#include <algorithm>

namespace headrace::plan {

Bytes swept_peak(const Graph& graph, const std::vector<OpId>& order) {
  (void)graph;
  return order.empty() ? 0 : 1;
}

std::vector<OrderChoice> choose_orders(const StepRequest& request, size_t) {
  OrderChoice program;
  program.order = program_order(request.workload->graph);
  program.name = "program";
  return {program};
}

}  // namespace headrace::plan
