// The passes `live ranges` and `offsets`, against a brute-force checker.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "headrace/plan/passes.h"
#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using plan::Buffer;

Buffer buffer(Bytes bytes, int32_t first, int32_t last, Bytes alignment = kLine) {
  Buffer b;
  b.bytes = bytes;
  b.first = first;
  b.last = last;
  b.alignment = alignment;
  return b;
}

// Every pair that lives at the same op has bytes of its own; offsets are aligned; all are
// inside.
void expect_apart(const std::vector<Buffer>& buffers, Bytes height) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& a = buffers[i];
    EXPECT_EQ(a.offset % a.alignment, 0) << i;
    EXPECT_GE(a.offset, 0) << i;
    EXPECT_LE(a.offset + a.bytes, height) << i;
    for (size_t j = 0; j < i; ++j) {
      const Buffer& b = buffers[j];
      if (a.shares == static_cast<int32_t>(j) || b.shares == static_cast<int32_t>(i))
        continue;
      const bool together = a.first <= b.last && b.first <= a.last;
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      EXPECT_FALSE(together && overlap) << i << " and " << j;
    }
  }
}

Bytes most_alive(const std::vector<Buffer>& buffers) {
  Bytes most = 0;
  for (const Buffer& at : buffers) {
    Bytes alive = 0;
    for (const Buffer& b : buffers) {
      if (b.shares < 0 && b.first <= at.first && at.first <= b.last) alive += b.bytes;
    }
    most = std::max(most, alive);
  }
  return most;
}

// The least height of any order of placing each buffer at its lowest free offset: optimal
// for so few buffers (some order of the offsets of an optimal packing gives it).
Bytes optimal_height(std::vector<Buffer> buffers) {
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Bytes best = INT64_MAX;
  do {
    Bytes height = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      Buffer& b = buffers[order[k]];
      b.offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t m = 0; m < k; ++m) {
          const Buffer& p = buffers[order[m]];
          const bool together = p.first <= b.last && b.first <= p.last;
          if (together && b.offset < p.offset + p.bytes &&
              p.offset < b.offset + b.bytes) {
            b.offset = p.offset + p.bytes;
            moved = true;
          }
        }
      }
      height = std::max(height, b.offset + b.bytes);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(AssignOffsets, OfNothingIsNothing) {
  std::vector<Buffer> none;
  EXPECT_EQ(plan::assign_offsets(none), 0);
}

TEST(AssignOffsets, BuffersThatNeverMeetShareOneExtent) {
  std::vector<Buffer> b = {buffer(4096, 0, 1), buffer(4096, 2, 3), buffer(4096, 4, 4)};
  EXPECT_EQ(plan::assign_offsets(b), 4096);
  expect_apart(b, 4096);
}

TEST(AssignOffsets, LivesAreClosedIntervals) {
  std::vector<Buffer> b = {buffer(4096, 0, 2), buffer(4096, 2, 3)};
  EXPECT_EQ(plan::assign_offsets(b), 8192);
}

TEST(AssignOffsets, KeepsAlignmentWithinAMixture) {
  std::vector<Buffer> b = {buffer(64, 0, 9), buffer(8192, 0, 9, kPage), buffer(128, 0, 9),
                           buffer(4096, 0, 9, kPage)};
  const Bytes height = plan::assign_offsets(b);
  expect_apart(b, height);
  EXPECT_EQ(height % kPage, 0);
}

TEST(AssignOffsets, ASharedExtentLivesForAllWhoShareIt) {
  // b takes over a, c takes over b; d lives with all three, e after a but with c.
  std::vector<Buffer> b = {buffer(256, 0, 2), buffer(256, 2, 4), buffer(256, 4, 6),
                           buffer(256, 0, 6), buffer(256, 5, 6)};
  b[1].shares = 0;
  b[2].shares = 1;
  const Bytes height = plan::assign_offsets(b);
  EXPECT_EQ(b[0].offset, b[1].offset);
  EXPECT_EQ(b[0].offset, b[2].offset);
  EXPECT_NE(b[3].offset, b[0].offset);
  EXPECT_NE(b[4].offset, b[0].offset);
  EXPECT_EQ(height, kPage);
}

TEST(AssignOffsets, RandomCasesNeverOverlapAndAreNearTheOptimum) {
  Bytes sum = 0, best_sum = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int n) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
    };
    std::vector<Buffer> b;
    const int count = 2 + draw(5);
    for (int i = 0; i < count; ++i) {
      const int32_t first = draw(8);
      b.push_back(buffer(kPage * (1 + draw(8)), first, first + draw(5), kPage));
    }
    const Bytes height = plan::assign_offsets(b);
    expect_apart(b, height);
    EXPECT_GE(height, most_alive(b));
    const Bytes best = optimal_height(b);
    EXPECT_GE(height, best) << "seed " << seed;
    EXPECT_LE(height, 2 * best) << "seed " << seed;
    sum += height;
    best_sum += best;
  }
  EXPECT_LE(static_cast<double>(sum), 1.05 * static_cast<double>(best_sum));
}

TEST(AssignOffsets, ManyRandomBuffersNeverOverlap) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<Buffer> b;
    for (int i = 0; i < 300; ++i) {
      const int32_t first = static_cast<int32_t>(random() % 500);
      const int32_t life = random() % 10 == 0 ? 400 : static_cast<int32_t>(random() % 6);
      b.push_back(
          buffer(kLine * (1 + static_cast<Bytes>(random() % 300)), first, first + life));
    }
    const Bytes height = plan::assign_offsets(b);
    expect_apart(b, height);
    EXPECT_GE(height, most_alive(b));
  }
}

// ---- live ranges
// ------------------------------------------------------------------------------

const Buffer& of(const Graph& g, const std::vector<Buffer>& buffers,
                 const std::string& name) {
  for (const Buffer& b : buffers) {
    if (b.tensor.valid() && g.at(b.tensor).name == name) return b;
  }
  ADD_FAILURE() << name;
  return buffers[0];
}

TEST(LiveRanges, LastFromTheFirstWriterToTheLastReader) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);                        // op 0
  const TensorId n = b.norm("n", x, b.weight("w", 1, 64));  // op 1
  const TensorId m = b.matmul("m", n, 64, 3);               // ops 2 3 4
  const TensorId c = b.constant("c", std::vector<float>(64, 1));
  const TensorId s = b.activation("s", 64);
  b.op(OpKind::kAdd, "s", {m, c}, s);                  // op 5
  const auto g = b.finish(b.matmul("out", s, 64, 1));  // op 6
  const auto buffers = plan::live_ranges(*g);
  const auto life = [&](const char* name) {
    const Buffer& found = of(*g, buffers, name);
    return std::pair(found.first, found.last);
  };
  EXPECT_EQ(life("table.rows"), std::pair(0, 0));
  EXPECT_EQ(life("x"), std::pair(0, 1));
  EXPECT_EQ(life("n"), std::pair(1, 4));
  EXPECT_EQ(life("m"), std::pair(2, 5));
  EXPECT_EQ(life("c"), std::pair(0, 6));    // written at entry, kept for every cycle
  EXPECT_EQ(life("out"), std::pair(6, 6));  // to the end: the caller reads it
  for (const Buffer& buffer : buffers) {
    EXPECT_NE(g->at(buffer.tensor).role, Role::kWeight);
  }
}

TEST(LiveRanges, WorkspaceLivesWithItsOp) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);
  const TensorId m = b.matmul("m", x, 64, 2);
  b.g.ops[2].workspace = 100;
  const auto g = b.finish(b.matmul("out", m, 64, 1));
  int found = 0;
  for (const Buffer& buffer : plan::live_ranges(*g)) {
    if (buffer.tensor.valid()) continue;
    ++found;
    EXPECT_EQ(buffer.op, OpId(2));
    EXPECT_EQ(buffer.bytes, 128);
    EXPECT_EQ(buffer.first, 2);
    EXPECT_EQ(buffer.last, 2);
  }
  EXPECT_EQ(found, 1);
}

TEST(LiveRanges, ASumIsWrittenOverAResidualThatNobodyReadsAgain) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);
  const TensorId n = b.norm("n", x, b.weight("w", 1, 64));
  const TensorId y = b.matmul("y", n, 64, 2, x);
  const auto g = b.finish(b.matmul("out", y, 64, 1));
  const auto buffers = plan::live_ranges(*g);
  const int32_t shares = of(*g, buffers, "y").shares;
  ASSERT_GE(shares, 0);
  EXPECT_EQ(buffers[static_cast<size_t>(shares)].tensor, x);
}

TEST(LiveRanges, AResidualThatIsReadAgainKeepsItsBytes) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);
  const TensorId n = b.norm("n", x, b.weight("w", 1, 64));
  const TensorId y = b.matmul("y", n, 64, 2, x);
  const TensorId z = b.activation("z", 64);
  b.op(OpKind::kAdd, "z", {y, x}, z);
  const auto g = b.finish(b.matmul("out", z, 64, 1));
  EXPECT_EQ(of(*g, plan::live_ranges(*g), "y").shares, -1);
}

TEST(LiveRanges, AResidualThatIsAlsoTheLeftOperandKeepsItsBytes) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);
  const TensorId y =
      b.matmul("y", x, 64, 2, x);  // tile 1 reads all of x after tile 0 has written
  const auto g = b.finish(b.matmul("out", y, 64, 1));
  EXPECT_EQ(of(*g, plan::live_ranges(*g), "y").shares, -1);
}

TEST(LiveRanges, AnOutputIsNeverAResidualToBeOverwritten) {
  test::GraphBuilder b("g");
  const TensorId x = b.embed(4, 64);
  const TensorId o = b.norm("o", x, b.weight("w", 1, 64));
  const TensorId y = b.matmul("y", x, 64, 1, o);
  (void)y;
  b.g.tensors[o.index()].role = Role::kOutput;
  const auto g = std::make_shared<const Graph>(b.g);
  EXPECT_EQ(of(*g, plan::live_ranges(*g), "y").shares, -1);
}

}  // namespace
}  // namespace headrace
