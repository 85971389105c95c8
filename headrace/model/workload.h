// Workloads: steps described in a file, with measured or predictable op times, for anyone who wants
// their own model planned. docs/guide/workload.md is the format for people.
//
// Two formats are read, told apart by their keys:
//   {"headrace_workload": 1, "name", "cyclic", "tensors": [...], "ops": [...]}    ours
//   {"name", "time_unit": "s", "kernels": [...], "tensors": {...}}                kernel traces as the
//     G10 artifact (Zhang et al., MICRO 2023) gives them, converted to JSON
// Ops become kKernel ops; persistent tensors become kState.
#pragma once

#include <string_view>

#include "headrace/ir/rules.h"

namespace headrace {

// kBadFile with the op's or tensor's name: cycles, dangling ids, sizes not above zero, times that are
// negative or not numbers, more than 2,000,000 ops. Linear in time and memory.
Result<Workload> parse_workload(std::string_view json);
std::string to_workload_json(const Workload& workload);

// True when the text looks like a workload of either format (or a step config, step_graph.h).
bool looks_like_workload(std::string_view json);

}  // namespace headrace
