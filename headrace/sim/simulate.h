// The simulator: plays a Program on the machine it was planned for and returns the Trace that the
// executor is expected to return. Moves no memory.
//
// Model: the compute stream runs its steps in order; each takes its cost. A transfer is issued
// when the device side reaches it in program order, starts when its link is free and its waits are
// over, occupies the link for bytes / bandwidth and completes one latency later. A cyclic Program
// is played until its duration repeats; the last cycle is returned.
#pragma once

#include "headrace/ir/trace.h"

namespace headrace {

Trace simulate(const Program& program);

}  // namespace headrace
