// The passes `residents` and `ring`.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "headrace/plan/passes.h"
#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using plan::Layout;
using plan::Cached;

// A chain of `n` weights of `rows` x 128 f32, used one after another.
std::shared_ptr<const Graph> chain(int n, int64_t rows = 256) {
  test::GraphBuilder b("chain");
  TensorId x = b.embed(4, 128);
  x = b.matmul("all", x, rows * n, n);
  return b.finish(x);
}

TEST(KeepOrder, HoldsEveryWeightOnce) {
  for (int n : {1, 2, 3, 7, 8, 9, 100}) {
    const auto g = chain(n);
    std::set<TensorId> seen;
    for (const Cached& w : plan::keep_order(*g, false)) seen.insert(w.tensor);
    EXPECT_EQ(seen.size(), static_cast<size_t>(n));
  }
}

// Any prefix is spread over the step: of k kept weights, a window that holds a share f of
// the step holds f k of them, within the discrepancy of the van der Corput sequence.
TEST(KeepOrder, EveryPrefixIsSpreadEvenly) {
  for (int n : {16, 61, 100, 128, 250}) {
    const auto g = chain(n);
    const auto order = plan::keep_order(*g, false);
    std::vector<bool> kept(static_cast<size_t>(n), false);
    for (size_t k = 0; k < order.size(); ++k) {
      kept[static_cast<size_t>(order[k].first - 1)] = true;  // op 0 embeds
      for (int width : {n / 8, n / 4, n / 2}) {
        if (width == 0) continue;
        for (int begin = 0; begin + width <= n; ++begin) {
          const auto from = kept.begin() + begin;
          const double inside = static_cast<double>(std::count(from, from + width, true));
          const double fair = static_cast<double>(k + 1) * width / n;
          ASSERT_NEAR(inside, fair, 3.5)
              << n << " prefix " << k + 1 << " window " << begin;
        }
      }
    }
  }
}

TEST(KeepOrder, SmallWeightsComeFirstAndStayWhateverTheBudget) {
  const auto small = test::layered_graph(3);
  const auto order = plan::keep_order(*small.graph, false);
  bool large_seen = false;
  int always = 0;
  for (const Cached& w : order) {
    if (plan::always_resident(w)) {
      EXPECT_FALSE(large_seen);
      ++always;
    }
    large_seen |= !plan::always_resident(w);
  }
  EXPECT_EQ(always, 3);  // one norm a layer
}

TEST(KeepOrder, IsTheSameForEveryRowCount) {
  const auto a = test::layered_graph(5, 128, 1), b = test::layered_graph(5, 128, 4);
  const auto x = plan::keep_order(*a.graph, false), y = plan::keep_order(*b.graph, false);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(a.graph->at(x[i].tensor).name, b.graph->at(y[i].tensor).name);
  }
}

// Two that are in use at once cannot take turns in a ring.
TEST(KeepOrder, WeightsInUseAtTheSameTimeArePinnedButOne) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 128);
  const TensorId early = b.weight("early and late", 256, 128);
  b.matmul_of("first", x, {early});
  b.matmul("middle", x, 256 * 4, 4);
  const auto g = b.finish(b.matmul_of("last", x, {early}));
  int pinned = 0;
  for (const Cached& w : plan::keep_order(*g, false)) {
    EXPECT_EQ(w.pinned, g->at(w.tensor).name == "early and late");
    pinned += w.pinned ? 1 : 0;
  }
  EXPECT_EQ(pinned, 1);
}

TEST(KeepOrder, ATableReadWholeByOneOpIsPinnedButForOneTile) {
  test::GraphBuilder b("g");
  std::vector<TensorId> tiles;
  for (int t = 0; t < 4; ++t)
    tiles.push_back(b.weight("table:" + std::to_string(t), 256, 128));
  const TensorId x = b.activation("x", 128);
  b.op(OpKind::kEmbed, "embed", tiles, x).attrs[Attr::kScale] = 1;
  const auto g = b.finish(b.matmul("out", x, 256, 1));
  int pinned = 0;
  for (const Cached& w : plan::keep_order(*g, false)) pinned += w.pinned ? 1 : 0;
  EXPECT_EQ(pinned, 3);
}

Bytes total_of(const std::vector<Cached>& weights) {
  Bytes total = 0;
  for (const Cached& w : weights) total += w.bytes;
  return total;
}

// What place_cached decided, checked by playing three cycles over the bytes of the
// region.
void expect_ring_works(const Graph& g, std::vector<Cached> weights,
                       const Layout& layout) {
  std::sort(weights.begin(), weights.end(),
            [](const Cached& a, const Cached& b) { return a.first < b.first; });
  std::map<Bytes, TensorId> page_owner;
  const auto take = [&](const Cached& w) {
    for (Bytes at = w.offset; at < w.offset + w.bytes; at += kPage)
      page_owner[at] = w.tensor;
  };
  const auto whole = [&](const Cached& w) {
    for (Bytes at = w.offset; at < w.offset + w.bytes; at += kPage) {
      if (page_owner[at] != w.tensor) return false;
    }
    return true;
  };
  for (const Cached& w : weights) {
    EXPECT_GE(w.offset, layout.weight_begin());
    EXPECT_LE(w.offset + w.bytes, layout.weight_end());
    if (w.resident || w.wraps) take(w);
  }
  const int32_t ops = static_cast<int32_t>(g.ops.size());
  for (int cycle = 0; cycle < 3; ++cycle) {
    for (int32_t o = 0; o < ops; ++o) {
      for (const Cached& w : weights) {
        if (w.first <= o && o <= w.last) {
          ASSERT_TRUE(whole(w)) << g.at(w.tensor).name << " at op " << o;
        }
      }
      for (const Cached& w : weights) {
        if (!w.resident && w.release == o) take(w);  // the load may land at once
      }
    }
  }
}

TEST(PlaceWeights, EveryRingPlaysForEveryRoom) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto g = test::random_graph(seed).graph;
    std::vector<Cached> weights = plan::keep_order(*g, false);
    Bytes largest = 0, pinned = 0;
    for (const Cached& w : weights) {
      if (plan::always_resident(w))
        pinned += w.bytes;
      else
        largest = std::max(largest, w.bytes);
    }
    Layout layout;
    layout.state_bytes = 8192;
    layout.activation_bytes = 4096;
    for (Bytes room = pinned + largest; room <= total_of(weights) + kPage;
         room += 4 * kPage) {
      layout.arena_bytes = room + 12288;
      for (Bytes ring = largest; ring <= room; ring *= 2) {
        const bool placed = plan::place_cached(*g, weights, layout, ring);
        if (ring == largest) {
          EXPECT_TRUE(placed) << "seed " << seed << " room " << room;
        }
        if (placed) expect_ring_works(*g, weights, layout);
        if (ring == 0) break;
      }
    }
  }
}

TEST(PlaceWeights, WithRoomForAllNothingIsStreamed) {
  const auto g = chain(10);
  std::vector<Cached> weights = plan::keep_order(*g, false);
  Layout layout;
  layout.arena_bytes = total_of(weights);
  ASSERT_TRUE(plan::place_cached(*g, weights, layout, weights[0].bytes));
  for (const Cached& w : weights) EXPECT_TRUE(w.resident);
}

TEST(PlaceWeights, ALargerRoomKeepsASupersetAtTheSameOffsets) {
  const auto g = chain(40);
  std::vector<Cached> weights = plan::keep_order(*g, false);
  Layout layout;
  const Bytes ring = 2 * weights[0].bytes;
  std::map<TensorId, Bytes> before;
  for (Bytes room = 3 * weights[0].bytes; room < total_of(weights); room += kPage) {
    layout.arena_bytes = room;
    ASSERT_TRUE(plan::place_cached(*g, weights, layout, ring));
    std::map<TensorId, Bytes> now;
    for (const Cached& w : weights) {
      if (w.resident) now[w.tensor] = w.offset;
    }
    for (const auto& [tensor, offset] : before) {
      ASSERT_TRUE(now.count(tensor));
      EXPECT_EQ(now[tensor], offset);
    }
    before = now;
  }
}

}  // namespace
}  // namespace headrace
