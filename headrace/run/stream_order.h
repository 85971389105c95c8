// Internal to run/: what the order of a stream promises (program.h, "order") where a tier may carry
// several of its transfers at once.
#pragma once

#include "headrace/run/prepared.h"

namespace headrace {

// Adds to the waits of each transfer the earlier ones of its stream (of the cycle before, too) that
// touch the same bytes, of the device or of copies, unless both only read them: on a link that
// serves one transfer at a time those would have ended. Independent transfers stay independent, so
// that queues stay deep. O(n log n).
void add_stream_waits(PreparedProgram& p);

}  // namespace headrace
