// Tiles16: the 16-bit tiles that a step writes, as kRopeKv and kAttention find them among their
// operands: tails, one tensor a sequence or one of all, and open tiles (ir/kv.h).
#pragma once

#include "headrace/kernel/kernel.h"
#include "headrace/kernel/kv_layout.h"

namespace headrace {

// Tiles after a run's first that it reaches: its open tiles.
inline int64_t open_tiles(const KvRun& run) { return run.last() / kKvTile - run.first_tile(); }

// f(run) for every run of a step, in order.
template <typename F>
void each_run(const StepRows& rows, F f) {
  int64_t open = 0;
  for (int64_t row = 0; row < rows.rows();) {
    const KvRun run = kv_run_at(rows, row, open);
    f(run);
    row = run.end;
    open += open_tiles(run);
  }
}

struct Tiles16 {
  KvLayout kv;
  std::byte* const* tails = nullptr;
  bool one_tensor = false;  // of all sequences
  std::byte* open = nullptr;  // null when the step can have none

  uint16_t* tail(int64_t sequence) const {
    std::byte* at = one_tensor ? tails[0] + sequence * kv.tile_elements() * 2 : tails[sequence];
    return reinterpret_cast<uint16_t*>(at);
  }
  // Tile `tile` of the run's sequence, one that rows of the run lie in.
  uint16_t* at(const KvRun& run, int64_t tile) const {
    if (tile == run.first_tile()) return tail(run.sequence);
    HR_CHECK(open != nullptr, "there is room for the tiles that a step opens");
    return reinterpret_cast<uint16_t*>(open) +
           (run.open + tile - run.first_tile() - 1) * kv.tile_elements();
  }
};

// Those of the op in `ctx`, whose first updates are tails; `open` is null when it has none.
inline Tiles16 tiles16_of(const OpContext& ctx, const KvLayout& kv, std::byte* open) {
  HR_CHECK(!ctx.op.updates.empty(), "there are tails");
  const bool one_tensor = ctx.graph.at(ctx.op.updates[0]).rows > 2 * kKvTile * kv.kv_heads;
  return {kv, ctx.updates.data(), one_tensor, open};
}

}  // namespace headrace
