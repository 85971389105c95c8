// Doctor: what a memory snapshot says about why a run needs its memory, and what to do.
//
// Findings come in four groups, those of the questions to ask of an out-of-memory error:
//   minimum    how little would do for the same run: the largest load of what was alive together,
//              and what a packing of all buffers needs; the difference to what was reserved
//   patterns   short spikes, blocks that are cut so that free memory cannot be used, rounding,
//              churn, allocations that failed
//   parallel   devices that hold more than others, communication buffers
//   retention  what stays although its part of the step is over
// Each has the bytes that could be had, an upper bound, and they are ranked by them.
#pragma once

#include <string>
#include <vector>

#include "headrace/report/text_style.h"
#include "headrace/snapshot/blame.h"
#include "headrace/snapshot/lifetimes.h"
#include "headrace/snapshot/replay.h"

namespace headrace {

enum class FindingGroup : uint8_t { kMinimum, kPatterns, kParallel, kRetention };
const char* name_of(FindingGroup group);

struct Finding {
  FindingGroup group = FindingGroup::kMinimum;
  int32_t device = 0;
  Bytes bytes = 0;        // that could be had, at most; 0: only worth knowing
  std::string title;      // one line with numbers
  std::string detail;     // why, where: names of lines of the program
  std::string advice;     // what to do
};

// Who holds what at the peak: buffers of one line of the program in one part of the step.
struct PeakShare {
  StepPart part = StepPart::kUnknown;
  std::string where;      // blame()
  std::string op;         // operator_of() the largest
  Bytes bytes = 0;
  int64_t buffers = 0;
};

struct DeviceReport {
  int32_t device = 0;
  int64_t events = 0, buffers = 0;
  Bytes reserved = 0;        // of segments, when the snapshot was taken
  Bytes active = 0;          // given out then
  Bytes peak_reserved = 0;
  Bytes peak_live = 0;       // no allocator and no order of addresses can do with less
  Bytes packed = 0;          // a static layout of these lifetimes needs; 0: not tried
  Bytes before = 0;          // of peak_live, given out before the trace began
  int64_t span_us = 0;       // from the first event to the last
  std::vector<PeakShare> shares;  // largest first
};

struct Diagnosis {
  std::vector<DeviceReport> devices;
  std::vector<Finding> findings;  // by bytes, largest first
};

// kUsage when the snapshot has no device that holds or did anything.
Result<Diagnosis> diagnose(const MemorySnapshot& snapshot);

// What a plan would have needed, of one device, beside the diagnosis.
struct ReplayAnswer {
  int32_t device = 0;
  std::string machine;
  WouldFit fit;
};
// The answers for all devices that have a trace; `before` as in would_fit.
Result<std::vector<ReplayAnswer>> replay_devices(const MemorySnapshot& snapshot,
                                                 const Diagnosis& diagnosis,
                                                 const Machine& machine, double slowdown,
                                                 const std::function<bool()>& before);
// For people, at most 100 columns; `answers` may be empty.
std::string diagnosis_text(const Diagnosis& diagnosis, const std::vector<ReplayAnswer>& answers,
                           const TextStyle& style);
std::string diagnosis_json(const Diagnosis& diagnosis, const std::vector<ReplayAnswer>& answers);

}  // namespace headrace
