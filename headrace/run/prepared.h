// Internal to run/: a Program with every name, kernel and address resolved.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "headrace/run/executor.h"

namespace headrace {

// Tensors that outlive a step are known across Programs by name; this is their number.
using HeldId = int32_t;

struct ComputeStep {
  KernelFn kernel = nullptr;
  const Op* op = nullptr;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::vector<std::byte*> updates;
  std::span<std::byte> workspace;
  std::vector<HeldId> weights;  // inputs that a transfer may still be bringing
  bool gathered = false;        // reads gathered rows
};

struct TransferStep {
  HeldId held = -1;          // of a load or detach
  TierExtent from;           // page-rounded; of a load
  std::span<std::byte> to;   // the extent
  const Tensor* tensor = nullptr;
};

class Prepared {
 public:
  uint64_t id = 0;  // never used twice by one executor, unlike an address
  Program program;
  std::vector<int32_t> index;  // by step: into computes or transfers
  std::vector<ComputeStep> computes;
  std::vector<TransferStep> transfers;
  struct Entry {
    HeldId held = -1;
    Bytes offset = 0;
  };
  std::vector<Entry> entry;    // weights resident at entry
  struct Constant {
    const std::vector<float>* values = nullptr;
    std::byte* to = nullptr;
  };
  std::vector<Constant> constants;
};

// Numbers for names, the same for every Program of an executor.
class HeldNames {
 public:
  HeldId id_of(const std::string& name) {
    return ids_.emplace(name, static_cast<HeldId>(ids_.size())).first->second;
  }
  size_t size() const { return ids_.size(); }

 private:
  std::unordered_map<std::string, HeldId> ids_;
};

Result<PreparedPtr> prepare_program(Program program, const Arena& arena, HeldNames& names);

}  // namespace headrace
