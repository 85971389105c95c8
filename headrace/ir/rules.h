// Rules: what the user asks of single tensors. A plan obeys each or is refused with the reason.
#pragma once

#include <vector>

#include "headrace/ir/codec.h"

namespace headrace {

// Applies to one tensor; the defaults ask nothing.
struct PlacementRule {
  TensorId tensor;
  bool pinned = false;             // on the device from its first touch to its last
  bool recompute = true;           // its op may run again
  std::vector<std::string> forbidden_tiers;  // by name
  // Codecs that may stand for it, in no order. Lossy ones and kMask are used only when listed here.
  std::vector<Codec> codecs;
  // Annotation remote_memory{max_size, prefetch_priority}: the tensor must spend its longest idle
  // gap outside the device, and at most `remote_max_bytes` of it (0: all of it). A higher priority
  // is loaded earlier where two Loads want the same time.
  bool remote = false;
  Bytes remote_max_bytes = 0;
  int32_t prefetch_priority = 0;
  bool operator==(const PlacementRule&) const = default;
};

// A step to be planned, and what is asked of it.
struct Workload {
  Graph graph;
  bool cyclic = false;   // runs again and again: persistent tensors end where they began
  // Not cyclic: persistent tensors (kState) start on the device; otherwise the plan chooses.
  std::vector<PlacementRule> rules;
};

}  // namespace headrace
