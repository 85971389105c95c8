// A run of a Program in the format of PyTorch's memory snapshots, for its viewers.
#pragma once

#include "headrace/report/timeline.h"
#include "headrace/snapshot/memory_snapshot.h"

namespace headrace {

// Each tier is a device, in the Program's order, with one segment: the arena, or the room that
// copies take. A holding is given out when it begins and given back when it ends; its stack is the
// tensor's name, its class, and the instruction that fills it; addresses are offsets, times whole
// microseconds. What shares bytes with a holding that is there already is left out. Blocks are those
// at exit.
MemorySnapshot snapshot_of(const Timeline& timeline);

}  // namespace headrace
