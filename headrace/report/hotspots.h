// Hotspots: what holds the peak of device memory, what the stalls wait for, and what would help,
// ranked. For text and for programs.
//
// Vocabulary
//   idle     at the peak: held, but not touched by the op that runs then.
//   gap      of an idle tensor: from the end of its touch before the peak to the next one after it.
//   needs    of an op: its operands and its workspace; no plan can hold less while it runs.
#pragma once

#include <string>
#include <vector>

#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"
#include "headrace/report/timeline.h"

namespace headrace {

struct HotTensor {
  std::string name;       // "workspace of OP" for workspace
  int memory_class = 0;
  Bytes bytes = 0;        // held on the device at the peak
  bool idle = false;
  Nanos gap_ns = 0;       // idle ones
  Nanos round_trip_ns = -1;  // out and back over the fastest link; -1: there is no other tier
  std::string tier;       // the tier of that link
};

struct HotOp {
  std::string name;
  int32_t step = 0;
  Bytes needs = 0;
  Bytes workspace = 0;
};

struct HotLayer {
  std::string name;       // layer_of; "(no layer)"
  Bytes at_peak = 0;
  Nanos compute_ns = 0;
  Nanos stall_ns = 0;
};

// Why a stalled op's transfer came late.
enum class StallCause : uint8_t {
  kLinkBusy,    // it stood in the queue of its link
  kIssuedLate,  // the link was free, but it started too late: no room earlier, or no earlier issue
  kStoreTime,   // a Store that was not queued: the room was wanted before its copy was over
  kNoTransfer,  // what it waited for is no transfer
};
const char* name_of(StallCause cause);

// All stalls that waited for the transfers of one tensor.
struct HotStall {
  std::string waits_for;  // "Load x from host"
  std::string lane;
  StallCause cause = StallCause::kNoTransfer;  // of the longest
  int32_t step = 0;       // the longest one's
  std::string op;         // and its op
  int64_t count = 0;
  Nanos total_ns = 0;
  Bytes bytes = 0;        // moved by the transfer of the longest
};

struct Advice {
  std::string text;
  Nanos saves_ns = 0;     // at most; 0: saves bytes
  Bytes saves_bytes = 0;
};

struct Hotspots {
  std::string program;
  Nanos total_ns = 0, compute_ns = 0, stall_ns = 0, again_ns = 0;
  Bytes peak = 0, capacity = 0;
  Nanos peak_ns = 0;      // when
  int32_t peak_step = 0;
  std::string peak_op;    // that runs then
  ClassBytes at_peak{};
  Bytes idle_at_peak = 0;
  Bytes least = 0;        // the most that any op needs
  // All of them, the largest first.
  std::vector<HotTensor> tensors;
  std::vector<HotOp> ops;         // by needs, each op once
  std::vector<HotLayer> layers;   // by bytes at the peak, then time
  std::vector<HotStall> stalls;   // by time
  std::vector<Advice> advice;     // by seconds, then bytes
};

// Ranks what a timeline shows. Linear in its records, but for sorting.
Hotspots find_hotspots(const Timeline& timeline);

// At most 100 columns; `limit` rows of each list.
std::string hotspots_text(const Hotspots& hotspots, size_t limit, const TextStyle& style);
std::string hotspots_json(const Hotspots& hotspots, size_t limit);

}  // namespace headrace
