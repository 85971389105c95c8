// Machine: a computer as the planner sees it, numbers only; a data file (machine.json).
//
// Vocabulary: a link is the path between the device and one other tier; a rate is bytes or
// multiply-adds a second as measured by `headrace probe` with `threads` workers, or as the
// profile's `sources` say (profiles.h).
//
// How long an op takes is known in this order: measured (the op says `seconds`), learned (a
// KernelModel of its kernel's name), analytic (a roofline of FLOPs and bytes: Williams, Waterman
// and Patterson, "Roofline", CACM 2009).
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/ir/program.h"

namespace headrace {

// What a kernel's time and workspace are predicted from; cost/predictor.h trains them.
constexpr int kKernelFeatures = 5;
struct KernelModel {
  int64_t samples = 0;                              // that it was trained with
  std::array<double, kKernelFeatures> seconds{};    // a weight for each feature, none below zero
  std::array<double, kKernelFeatures> workspace{};  // the same for bytes; all 0: never seen
  bool operator==(const KernelModel&) const = default;
};

struct Machine {
  std::string name = "built-in defaults";  // where the numbers come from, for people
  int threads = 1;
  double memory_bytes_per_s = 10e9;  // device memory read by all threads together
  // Multiply-adds a second of a matmul with many rows, by weight type.
  std::array<double, kDTypeCount> matmul_per_s{};
  // Weight bytes a second that a matmul with one row gets through, by weight type.
  std::array<double, kDTypeCount> matvec_bytes_per_s{};
  double vector_per_s = 4e9;                   // elements a second of norms, activations, attention
  Nanos op_overhead_ns = 2000;                 // start and end of one op on all threads
  std::vector<TierInfo> tiers;                 // [0] device; [1] where weights are loaded from
  std::map<std::string, KernelModel> kernels;  // by Op::kernel
  // Where each number is from, by its key ("memory_bytes_per_s", "tiers.remote"): free text, for
  // people. Numbers that nobody has a source for say "assumed".
  std::map<std::string, std::string> sources;

  // Conservative numbers for a machine nobody has measured.
  static Machine defaults(int threads);
};

// Ok, or what cannot be, by name: a rate that is not above zero or not finite (NaN), a negative
// latency or capacity, fewer than two tiers, two tiers of one name, a group whose links differ in
// kind. A capacity of 0 means that nobody has said.
Status verify(const Machine& machine);

// The machine file: one JSON object, keys as the members above.
std::string to_json(const Machine& machine);
// kBadFile for what is no machine file, or not ok by verify().
Result<Machine> machine_from_json(std::string_view text);

// What a roofline needs to know of a kernel: as its attributes say, else from its operands.
struct KernelWork {
  double flops = 0;         // multiply-adds count two; 0 when the op does not say
  double traffic = 0;       // device bytes read and written
  double output_bytes = 0;  // of outputs and updates
  // sqrt(a b c) of the bytes of the two largest tensors read and the largest written: grows like
  // the multiply-adds of a product of matrices when nobody has said how many those are.
  double volume = 0;
  DType dtype = DType::kF32;  // of the arithmetic: of the first operand that is a plain float
};
KernelWork work_of(const Graph& graph, const Op& op);

// Predicted duration of `op` with `rows` rows, of which each sees `positions` KV positions. kKernel
// ops have no rows. At least 1 ns for those, and to the nearest.
struct CostQuery {
  int64_t rows = 1;
  int64_t positions = 0;
};
Nanos op_cost(const Machine& machine, const Graph& graph, const Op& op, const CostQuery& query);

}  // namespace headrace
