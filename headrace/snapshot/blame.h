// Blame: from a stack of 60 frames to the line of the user's program and the part of a step it was.
#pragma once

#include <string>

#include "headrace/snapshot/memory_snapshot.h"

namespace headrace {

// What part of a training or inference step an allocation belongs to.
enum class StepPart : uint8_t {
  kForward, kBackward, kGradient, kOptimizer, kCommunication, kOther, kUnknown,
};
const char* name_of(StepPart part);

// By the names that PyTorch's own frames have: AccumulateGrad and the autograd engine, files called
// optimizer.py (and what is below them), NCCL and c10d, a Python `forward`. kUnknown: no stack.
StepPart part_of(const MemorySnapshot& snapshot, int32_t stack);

// "train.py:42 step": the innermost Python frame that is not of PyTorch or another package, else
// the innermost Python frame; without any the autograd node ("MulBackward0") or the operator. "not
// recorded" where there is none of these.
std::string blame(const MemorySnapshot& snapshot, int32_t stack);

// "add_Tensor": the ATen operator that asked; empty when no frame names one.
std::string operator_of(const MemorySnapshot& snapshot, int32_t stack);

}  // namespace headrace
