// What a session decides about its KV: how large slots are, the disk that they may be on, and how
// many positions fit.
#pragma once

#include "headrace/session/session_plan.h"

namespace headrace {

// The tier of slots that do not stay in memory, in the Machine and the Programs of a session.
constexpr TierId kScratchTier{2};

// Positions of a slot, whole tiles; `o` says context and format. Slots that are moved are large
// enough that a transfer is all bandwidth, 1 MiB where the context has eight of them, and at most 32
// a layer; of those that are not, there are at most 16 a layer, so that plans stay small.
int64_t kv_segment_tokens(const ModelConfig& config, const GraphOptions& o, bool moved);

// Positions of a slot where `selected` of them are attended: an eighth of what is selected, at most
// 256, and at most 128 slots a layer.
int64_t sparse_segment_tokens(int64_t context, int64_t selected);
constexpr int64_t kLeastSelected = 4;  // segments

// The machine with a tier 2 called "scratch" that has room for `bytes`: its own one where it is
// known, else the disk that the weights come from, on the same link.
Machine with_scratch(Machine machine, Bytes bytes);

// The most positions, a multiple of 64, whose KV `measure` says to be at most `room`; 0: none.
int64_t positions_that_fit(const ModelConfig& config, GraphOptions options, Bytes room,
                           Bytes (KvBytes::*measure)() const);

// kDoesNotFit when the slots of this context are more than kv_folder has room for; kIo when the
// folder cannot be looked at.
Status check_kv_folder(const ModelConfig& config, const GraphOptions& graph,
                       const SessionOptions& options);

}  // namespace headrace
