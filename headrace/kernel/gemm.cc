#include "headrace/kernel/gemm.h"

#include <atomic>

#include "headrace/kernel/gemm_layout.h"

namespace headrace {
namespace {

// Parts are rows x cols of C for each of down x across workers.
struct Grid {
  int64_t down = 1, across = 1, rows = 0, cols = 0;
};

// The cheapest way to cut C: multiply-adds, plus packing A once for every tile of columns and
// packing B once, in the same unit (an element of A costs about 4 multiply-adds, one of B 8).
Grid grid_of(const GemmArgs& g, int64_t threads) {
  using gemm_layout::kMaxPanelCols, gemm_layout::kTileCols;
  Grid best;
  int64_t least = 0;
  for (int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    Grid grid{down, threads / down, 0, 0};
    grid.rows = (g.m + grid.down - 1) / grid.down;
    grid.cols = round_up((g.n + grid.across - 1) / grid.across, kMaxPanelCols);
    const int64_t cols = std::min(grid.cols, g.n), tiles = (cols + kTileCols - 1) / kTileCols;
    const int64_t cost = grid.rows * cols + 4 * grid.rows * tiles + 8 * cols;
    if (best.rows == 0 || cost < least) {
      best = grid;
      least = cost;
    }
  }
  return best;
}

GemmPartFn part_fn(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return gemm_part_scalar;
    case Isa::kAvx2: return gemm_part_avx2;
    case Isa::kAvx512Vnni: return gemm_part_avx512;
  }
  return gemm_part_scalar;
}

bool has_bf16_dot() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

std::atomic<bool>& bf16_dot() {
  static std::atomic<bool> on{has_bf16_dot()};
  return on;
}

}  // namespace

bool gemm_uses_bf16_dot() { return bf16_dot().load(std::memory_order_relaxed); }
void gemm_set_bf16_dot(bool on) { bf16_dot() = on && has_bf16_dot(); }

Bytes gemm_workspace(const GemmArgs& args, int threads) {
  return gemm_layout::scratch_of(args).total() * threads;
}

void gemm(const GemmArgs& args, std::span<std::byte> workspace, ThreadPool& pool) {
  HR_CHECK(!args.add || args.out_type == DType::kF32, "only f32 sums are added to");
  HR_CHECK(args.k > 0, "a product of no terms");
  if (args.m == 0 || args.n == 0) return;
  const Bytes scratch = gemm_layout::scratch_of(args).total();
  HR_CHECK(static_cast<Bytes>(workspace.size()) >= scratch * pool.size(), "gemm workspace");
  const GemmPartFn part_of = part_fn(current_isa());
  const Grid grid = grid_of(args, pool.size());
  pool.run([&](int worker) {
    const int64_t i = worker / grid.across, j = worker % grid.across;
    const GemmPart part{i * grid.rows, std::min((i + 1) * grid.rows, args.m), j * grid.cols,
                        std::min((j + 1) * grid.cols, args.n)};
    if (part.row_begin >= part.row_end || part.col_begin >= part.col_end) return;
    part_of(args, part, workspace.data() + worker * scratch);
  });
}

}  // namespace headrace
