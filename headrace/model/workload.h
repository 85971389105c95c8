// Workloads: steps described in a file, with measured or predictable op times, for anyone who wants
// their own model planned. docs/guide/workload.md is the format for people.
//
// Three formats are read, told apart by their keys:
//   {"headrace_workload": 1, "name", "cyclic", "tensors": [...], "ops": [...]}    ours
//   {"name", "time_unit": "s", "kernels": [...], "tensors": {...}}     kernel traces as the G10
//     artifact (Zhang et al., MICRO 2023) gives them, converted to JSON
//   {"step": {...}}                                     a step of a known model (step_graph.h)
//
// What a kernel trace becomes (its kernels are in the order in which they ran)
//   persistent tensors                kState: class weight when a kernel writes them, else input
//   read and written by one kernel    listed under `updates`, persistent or not
//   written again without being read  a new tensor, "t12.v2" after "t12"
//   read but never written            an output of the first kernel that reads it, class input,
//                                     with a rule recompute = false: live from its first use
//   class of the others               gradient when the kernel's name has "Backward" or
//                                     "Gredient" (sic), else activation
// A tensor of which only a size is known is i8 [1, bytes].
#pragma once

#include <string>
#include <string_view>

#include "headrace/ir/rules.h"

namespace headrace {

constexpr int64_t kMostWorkloadOps = 2'000'000;
constexpr double kMostOpSeconds = 3600;
constexpr Bytes kMostTensorBytes = Bytes{1} << 47;  // 128 TiB

// Ops become kKernel ops in the order of the file; persistent tensors become kState, those with a
// place in a file kWeight. kBadFile with the op's or tensor's name: cycles, ops listed before what
// they read, operands that do not exist, tensors written twice, sizes not above zero, times that
// are negative or no numbers, keys that are not known, more than kMostWorkloadOps ops. Linear in
// time and memory; the document is never held as a whole.
Result<Workload> parse_workload(std::string_view json);

// In our format, one tensor or op a line; parse_workload gives the same Workload back.
// Precondition: every op is kKernel and no tensor is kConstant or kGathered.
std::string to_workload_json(const Workload& workload);

}  // namespace headrace
