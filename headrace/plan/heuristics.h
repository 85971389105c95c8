// The well-known policies, re-implemented, each giving a Schedule: the portfolio that no plan may
// be worse than. Internal to plan/.
//
// A policy decides about whole values and whole gaps; none knows of more than one tier, the fastest
// that a value may be stored in. All obey rules: what is pinned stays, and what must be remote is
// moved.
#pragma once

#include <string>
#include <vector>

#include "headrace/plan/problem.h"

namespace headrace::plan {

enum class Policy : uint8_t {
  kKeepEverything,
  // Swap out by distance: the gaps with the most ops in them first, reloaded a fixed number of ops
  // early (Le et al., "TFLMS", arXiv 1807.02037; vDNN, Rhu et al., MICRO 2016).
  kOffloadByDistance,
  // At each position over the budget the largest idle tensors leave, reloaded a fixed number of ops
  // early (SwapAdvisor's starting point, Huang et al., ASPLOS 2020; G10, MICRO 2023, with its fixed
  // prefetch window).
  kOffloadAtPeak,
  // Largest tensors first; the op waits for its operands (vDNN without prefetch; the synchronous
  // mode of ZeRO-Offload, Ren et al., USENIX ATC 2021).
  kLargestFirstSynchronous,
  // First produced, first out; reloads start as early as a link of constant 50 GB/s would need
  // (the constant of a shipped memory scheduler; order as in FlexGen, Sheng et al., ICML 2023).
  kFifoConstantBandwidth,
  // On demand: when bytes are needed, the value used again latest leaves; loaded when used (Belady,
  // IBM Systems Journal 1966; as Capuchin's on-demand mode, Peng et al., ASPLOS 2020).
  kBelady,
  // Keep the ends of sqrt(n) blocks, recompute the rest (Chen et al., arXiv 1604.06174).
  kCheckpointBlocks,
  // Keep nothing that an op can bring back.
  kRecomputeEverything,
  // Every op loads what it reads and stores what it wrote: the least memory there is.
  kSpillEverything,
};
constexpr int kPolicyCount = 9;
const char* name_of(Policy policy);

struct PolicySchedule {
  bool fits = false;      // in problem.budget, by schedule_profile
  Schedule schedule;
  Bytes peak_bytes = 0;   // of schedule_profile; of the plan that came closest when it does not fit
  int64_t work = 0;       // gaps and actions considered
  std::string reason;     // why not, in words; empty when it fits
};

// Deterministic; O((ops + touches) log n). The recomputing policies stop at kMostReruns x ops runs.
constexpr int64_t kMostReruns = 4;
PolicySchedule run_policy(const Problem& problem, Policy policy);

// The tier that a value is stored in by the policies: of those that can be stored in and that its
// rule allows, the one that loads fastest. Invalid: none.
TierId storing_tier(const Problem& problem, const Value& value);

}  // namespace headrace::plan
