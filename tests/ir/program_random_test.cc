// verify(Program) on random steps: all are good; each is judged, with any one wait less, exactly as
// by a search through all chains of waits; damage to residencies is found or harmless.
#include <gtest/gtest.h>

#include <array>
#include <bitset>

#include "tests/ir/random_program.h"

namespace headrace {
namespace {

constexpr size_t kMost = 2048;

// Does every pair of instructions that share bytes have an order, over two cycles when cyclic? By
// definition: what is complete when b starts is what b's predecessors are and what was before them.
bool all_ordered(const Program& p) {
  const size_t n = p.instrs.size(), cycles = p.cyclic ? 2 : 1;
  HR_CHECK(n * cycles <= kMost, "a small program");
  std::vector<std::vector<test::Touch>> touches;
  for (size_t s = 0; s < n; ++s) touches.push_back(test::touches_of(p, static_cast<int32_t>(s)));
  std::vector<std::bitset<kMost>> before(n * cycles);
  for (size_t b = 0; b < n * cycles; ++b) {
    const Instr& i = p.instrs[b % n];
    const auto add = [&](size_t a) {
      before[b] |= before[a];
      before[b].set(a);
    };
    for (Step w : i.waits) {
      const size_t a = b - b % n + w.index();
      if (w.index() < b % n) add(a);
      if (w.index() >= b % n && a >= n) add(a - n);
    }
    for (size_t a = b; a-- > 0;) {
      const Instr& other = p.instrs[a % n];
      if (other.kind == InstrKind::kDetach || other.stream != i.stream) continue;
      add(a);
      break;
    }
    for (size_t a = 0; a < b; ++a) {
      if (!before[b][a] && test::conflict(touches[a % n], touches[b % n])) return false;
    }
  }
  return true;
}

TEST(VerifyRandom, RandomStepsAreGoodAndUseEveryKindOfInstruction) {
  std::array<int, kInstrKindCount> kinds{};
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const Program p = test::random_program(seed, 4 + static_cast<int>(seed % 30), seed % 3 == 0);
    const Status s = verify(p);
    ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.message();
    ASSERT_TRUE(all_ordered(p)) << "seed " << seed;
    for (const Instr& i : p.instrs) ++kinds[static_cast<size_t>(i.kind)];
    const Result<Program> back = parse_program(to_text(p));
    ASSERT_TRUE(back.ok()) << back.status().message();
    ASSERT_EQ(to_text(*back), to_text(p)) << "seed " << seed;
    ASSERT_TRUE(back->instrs == p.instrs && back->residencies == p.residencies) << seed;
  }
  for (InstrKind kind : {InstrKind::kLoad, InstrKind::kStore, InstrKind::kDetach,
                         InstrKind::kEncode, InstrKind::kDecode}) {
    EXPECT_GT(kinds[static_cast<size_t>(kind)], 100) << name_of(kind);
  }
}

TEST(VerifyRandom, AMissingWaitIsRefusedExactlyWhenNoChainReplacesIt) {
  int refused = 0, harmless = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Program p = test::random_program(seed, 4 + static_cast<int>(seed % 12), seed % 2 == 0);
    for (size_t s = 0; s < p.instrs.size(); ++s) {
      const std::vector<Step> waits = p.instrs[s].waits;
      for (size_t k = 0; k <= waits.size() && !waits.empty(); ++k) {
        auto& mine = p.instrs[s].waits = waits;
        if (k < waits.size()) {
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(k));
        } else {
          mine.clear();
        }
        const bool ordered = all_ordered(p);
        const Status status = verify(p);
        ASSERT_EQ(status.ok(), ordered)
            << "seed " << seed << " step " << s << " wait " << k << ": " << status.message();
        ++(ordered ? harmless : refused);
      }
      p.instrs[s].waits = waits;
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(harmless, 200);
}

TEST(VerifyRandom, AResidencyThatIsTakenAwayIsRefused) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Program p = test::random_program(seed, 10, seed % 2 == 0);
    for (size_t k = 0; k < p.residencies.size(); ++k) {
      Program less = p;
      less.residencies.erase(less.residencies.begin() + static_cast<std::ptrdiff_t>(k));
      ASSERT_FALSE(verify(less).ok()) << "seed " << seed << " residency " << k;
      Program late = p;
      ++late.residencies[k].begin.value;
      ASSERT_FALSE(verify(late).ok()) << "seed " << seed << " residency " << k;
    }
  }
}

TEST(VerifyRandom, AnInstructionThatIsTakenAwayIsRefused) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Program p = test::random_program(seed, 10, false);
    for (size_t k = 0; k < p.instrs.size(); ++k) {
      Program other = p;
      Instr& i = other.instrs[k];
      if (i.kind == InstrKind::kCompute) {
        i.op = OpId((i.op.value + 1) % static_cast<int64_t>(p.graph->ops.size()));
      } else {
        i = Instr();
        i.kind = InstrKind::kDetach;
        i.tensor = TensorId(0);
        i.range = {64, 64};
      }
      if (device_bytes(p.graph->tensors[0]) < 128) continue;
      ASSERT_FALSE(verify(other).ok()) << "seed " << seed << " step " << k;
    }
  }
}

// A chain of 100,000 ops: each value is stored, given up, and loaded back at the end. What grows
// with the square of the length would not end here.
TEST(VerifyRandom, ALongStepIsVerified) {
  const int n = 50'000;
  auto g = std::make_shared<Graph>();
  g->name = "chain";
  g->max_output_rows = 0;
  Program p;
  p.tiers = {{"device", 0, 0, 0, 0}, {"host", Bytes{1} << 40, 1e9, 1e9, 10, true, -1}};
  const auto add = [&](InstrKind kind, int t, std::vector<int32_t> waits) {
    Instr i;
    i.kind = kind;
    (kind == InstrKind::kCompute ? i.op.value : i.tensor.value) = t;
    if (is_transfer(kind)) {
      i.tier = TierId(1);
      i.stream = link_stream(p.tiers, i.tier, kind);
    }
    for (int32_t w : waits) i.waits.push_back(Step(w));
    p.instrs.push_back(i);
    return static_cast<int32_t>(p.instrs.size()) - 1;
  };
  const auto reside = [&](int t, Bytes at, int32_t begin, int32_t end, int tier) {
    p.residencies.push_back({TensorId(t), OpId(), at, 64, Step(begin), Step(end), TierId(tier)});
  };
  for (int o = 0; o < 2 * n; ++o) {
    Tensor t;
    t.name = "x" + std::to_string(o);
    t.cols = 16;
    t.bytes = 64;
    g->add(t);
    Op op;
    op.kind = OpKind::kKernel;
    op.name = "op" + std::to_string(o);
    if (o > 0) op.inputs.push_back(TensorId(o - 1));
    if (o > n) op.inputs.push_back(TensorId(2 * n - 1 - o));
    op.outputs.push_back(TensorId(o));
    g->ops.push_back(op);
  }
  std::vector<int32_t> born(2 * n), stored(n), gone(n);
  int32_t last = -1;
  for (int o = 0; o < n; ++o) {
    // Three places in turn; the one that is written next was stored from three ops ago.
    std::vector<int32_t> waits;
    if (o >= 3) waits.push_back(stored[o - 3]);
    born[o] = last = add(InstrKind::kCompute, o, waits);
    stored[o] = add(InstrKind::kStore, o, {last});
    if (o > 0) gone[o - 1] = add(InstrKind::kDetach, o - 1, {stored[o - 1]});
  }
  gone[n - 1] = -1;
  for (int o = n; o < 2 * n; ++o) {
    const int back = 2 * n - 1 - o;
    int32_t load = -1;
    if (o > n) load = add(InstrKind::kLoad, back, {last, stored[back]});
    std::vector<int32_t> waits = {stored[n - 1]};
    if (load >= 0) waits.push_back(load);
    born[o] = last = add(InstrKind::kCompute, o, waits);
    if (load >= 0) {
      reside(back, 64 * (6 + o % 2), load, last + 1, 0);
      reside(back, 64 * Bytes{back}, stored[back], load + 1, 1);
    }
  }
  for (int o = 0; o < 2 * n; ++o) {
    const int32_t end = o < n - 1 ? gone[o] : o + 1 < 2 * n ? born[o + 1] + 1 : p.exit().value;
    reside(o, o < n ? 64 * (o % 3) : 64 * (3 + o % 3), born[o], end, 0);
  }
  reside(n - 1, 64 * Bytes{n - 1}, stored[n - 1], stored[n - 1] + 1, 1);
  p.arena_bytes = 64 * 8;
  p.graph = g;
  const Status s = verify(p);
  ASSERT_TRUE(s.ok()) << s.message();
  const Result<Program> back = parse_program(to_text(p));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(back->instrs == p.instrs && back->residencies == p.residencies);
}

}  // namespace
}  // namespace headrace
