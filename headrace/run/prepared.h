// Internal to run/: a Program with every name, kernel and address resolved.
#pragma once

#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "headrace/kernel/codec.h"
#include "headrace/run/executor.h"

namespace headrace {

// Weights that outlive a step are known across Programs by name; this is their number.
using HeldId = int32_t;

// `waits` of all kinds of step: the transfers that must have ended, by step. Computes are left out
// (they run on the walking thread, in order), a Detach stands for what it waits for itself.
struct ComputeStep {
  KernelFn kernel = nullptr;
  const Op* op = nullptr;
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  std::vector<std::byte*> updates;
  std::span<std::byte> workspace;
  std::vector<int32_t> waits;
  std::vector<HeldId> weights;  // inputs that a Program before this one may still be loading
};

struct CodecStep {
  bool encodes = true;
  Codec codec = Codec::kNone;
  std::span<std::byte> plain;
  std::span<std::byte> encoded;
  std::vector<int32_t> waits;
};

struct TransferStep {
  InstrKind kind = InstrKind::kLoad;
  Tier* tier = nullptr;
  int32_t stream = 0;
  const Tensor* tensor = nullptr;
  TierExtent far;             // in the tier; not of a gather
  std::span<std::byte> near;  // in the arena; of a gather all rows
  HeldId held = -1;           // of a Load of a weight
  // A KV slot and its copy: what moves depends on the rows of the step, see moved_part().
  bool kv = false;
  Bytes kv_begin = 0;         // the byte of the slot that `near` and `far` begin with
  // Of a Load of a slot that is used once and then given up: where the step says, before it is issued,
  // whether it attends the slot (kSelectKv); null: it always does.
  const float* selected = nullptr;
  std::vector<int32_t> waits;
};

// Bytes [begin, end) of `near` and of `far`.
struct MovedPart {
  Bytes begin = 0, end = 0;
  Bytes bytes() const { return end - begin; }
};
// What a Load or Store moves in a step with these rows; nothing: it has ended once it is its turn.
MovedPart moved_part(const TransferStep& transfer, const StepRows& rows);

// Bytes [begin, end) of a state tensor in one form and tier: byte b is at b + distance.
struct StatePlace {
  HeldId held = -1;
  TierId tier;
  Codec codec = Codec::kNone;
  Bytes begin = 0, end = 0;
  Bytes distance = 0;
  auto key() const { return std::tuple(held, tier.value, codec, begin, end, distance); }
};
// True when all bytes of `place` are at its place by `places`, which are sorted by key().
bool covers(const std::vector<StatePlace>& places, const StatePlace& place);

struct PreparedProgram {
  Program program;
  std::vector<int32_t> index;  // by step: into the list of its kind (detach: a HeldId or -1)
  std::vector<ComputeStep> computes;
  std::vector<CodecStep> codecs;
  std::vector<TransferStep> transfers;
  bool stores = false;  // has a Store
  struct Place {
    HeldId held = -1;
    Bytes offset = 0;
  };
  std::vector<Place> entry, exit;  // weights on the device then
  // State then, on the device and as copies; sorted.
  std::vector<StatePlace> state_entry, state_exit;
  std::vector<int32_t> output_loads;  // by step: of what outputs are at exit; no op may wait for them
  struct Constant {
    const std::vector<float>* values = nullptr;
    std::byte* to = nullptr;
  };
  std::vector<Constant> constants;
  std::vector<std::vector<std::span<std::byte>>> freed;  // by step, when freed bytes are poisoned
  std::unique_ptr<CodecScratch> scratch;

  const TransferStep& transfer(int32_t step) const {
    return transfers[static_cast<size_t>(index[static_cast<size_t>(step)])];
  }
};

// Shared with the executor, which may still have transfers of it in flight.
class Prepared {
 public:
  std::shared_ptr<PreparedProgram> body;
};

// Numbers for names, the same for every Program of an executor.
class HeldNames {
 public:
  HeldId id_of(const std::string& name) {
    const auto [at, fresh] = ids_.emplace(name, static_cast<HeldId>(ids_.size()));
    if (fresh) names_.push_back(&at->first);
    return at->second;
  }
  const std::string& name_of(HeldId id) const { return *names_[static_cast<size_t>(id)]; }
  size_t size() const { return ids_.size(); }

 private:
  std::unordered_map<std::string, HeldId> ids_;
  std::vector<const std::string*> names_;  // keys of ids_, which stay where they are
};

// What preparing takes from the executor; all borrowed.
struct PrepareContext {
  const Arena& arena;
  const std::vector<Tier*>& tiers;
  const ExecutorOptions& options;
  HeldNames& names;
};
Result<PreparedPtr> prepare_program(Program program, const PrepareContext& context);

}  // namespace headrace
