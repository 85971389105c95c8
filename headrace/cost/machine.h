// Machine: a computer as the planner sees it, numbers only; a data file (machine.json).
//
// Vocabulary: a link is the path between the device and one other tier; a rate is bytes or
// multiply-adds a second as measured by `headrace probe` with `threads` workers.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/ir/program.h"

namespace headrace {

struct Machine {
  std::string name = "built-in defaults";  // where the numbers come from, for people
  int threads = 1;
  double memory_bytes_per_s = 10e9;   // device memory read by all threads together
  // Multiply-adds a second of a matmul with many rows, by weight type.
  std::array<double, kDTypeCount> matmul_per_s{};
  // Weight bytes a second that a matmul with one row gets through, by weight type.
  std::array<double, kDTypeCount> matvec_bytes_per_s{};
  double vector_per_s = 4e9;          // elements a second of norms, activations, attention
  Nanos op_overhead_ns = 2000;        // start and end of one op on all threads
  std::vector<TierInfo> tiers;        // [0] device, [1] file

  // Conservative numbers for a machine nobody has measured.
  static Machine defaults(int threads);
};

// The machine file: one JSON object, keys as the members above.
std::string to_json(const Machine& machine);
Result<Machine> machine_from_json(std::string_view text);

// Predicted duration of `op` with `rows` rows, of which each sees `positions` KV positions.
struct CostQuery {
  int64_t rows = 1;
  int64_t positions = 0;
};
Nanos op_cost(const Machine& machine, const Graph& graph, const Op& op, const CostQuery& query);

}  // namespace headrace
