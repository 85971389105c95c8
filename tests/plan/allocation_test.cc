// Static allocation: against brute force on tiny problems, and validate() on everything else.
#include "headrace/plan/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plan/allocation_problems.h"

namespace headrace {
namespace {

AllocSolution solved(const AllocProblem& p, AllocOptions options = {}) {
  Result<AllocSolution> s = allocate(p, options);
  EXPECT_TRUE(s.ok()) << s.status().message();
  const Status valid = validate(p, s->offsets, s->height);
  EXPECT_TRUE(valid.ok()) << valid.message();
  EXPECT_LE(s->lower_bound, s->height);
  return *s;
}

Code code_of(const AllocProblem& p) { return allocate(p, {}).status().code(); }

TEST(Allocate, OfNothingIsNothing) {
  const AllocSolution s = solved({});
  EXPECT_EQ(s.height, 0);
  EXPECT_EQ(s.lower_bound, 0);
  EXPECT_TRUE(s.fits);
}

TEST(Allocate, BuffersThatNeverMeetShareTheirBytes) {
  AllocProblem p;
  p.buffers = {{0, 2, 10}, {2, 4, 7}, {4, 5, 10}};
  EXPECT_EQ(solved(p).height, 10);
}

TEST(Allocate, ABufferOfNoBytesNeedsNoRoom) {
  AllocProblem p;
  p.buffers = {{0, 2, 10}, {0, 2, 0}, {0, 1, 0}};
  EXPECT_EQ(solved(p, {.capacity = 10}).height, 10);
}

TEST(Allocate, EveryBlockBeginsAtTheAlignment) {
  AllocProblem p;
  p.alignment = 64;
  p.buffers = {{0, 4, 1}, {0, 4, 65}, {0, 4, 64}, {1, 3, 3}};
  const AllocSolution s = solved(p);
  for (const Bytes offset : s.offsets) EXPECT_EQ(offset % 64, 0);
  EXPECT_LE(s.height, 64 + 128 + 64 + 64);
  EXPECT_GE(s.height, 64 + 128 + 64 + 1);  // the highest may leave its last unit unused
  EXPECT_EQ(s.lower_bound, 64 + 128 + 64 + 1);
}

TEST(Allocate, ABlockMovesAsOne) {
  AllocProblem p;
  // A tensor of 30 bytes whose middle is away at [1, 2): another one may lie there.
  p.buffers = {{0, 3, 10, 7, 0}, {0, 1, 10, 7, 10}, {2, 3, 10, 7, 10}, {0, 3, 10, 7, 20},
               {1, 2, 10}};
  const AllocSolution s = solved(p);
  EXPECT_EQ(s.offsets[1] - s.offsets[0], 10);
  EXPECT_EQ(s.offsets[2] - s.offsets[0], 10);
  EXPECT_EQ(s.offsets[3] - s.offsets[0], 20);
  EXPECT_EQ(s.height, 30);
}

TEST(Allocate, MeaninglessProblemsAreRefused) {
  AllocProblem p;
  p.buffers = {{3, 3, 1}};
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{4, 3, 1}};
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{0, 3, -1}};
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{0, 3, 10, 1, 0}, {2, 4, 10, 1, 5}};  // a block that overlaps itself
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{0, 3, 10, 1, -10}};
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{0, 3, INT64_MAX}, {5, 6, INT64_MAX}};
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.buffers = {{0, 3, 8}};
  p.alignment = 0;
  EXPECT_EQ(code_of(p), Code::kUsage);
  p.alignment = 16;
  p.buffers = {{0, 3, 8, 1, 8}};  // a distance between aligned offsets
  EXPECT_EQ(code_of(p), Code::kUsage);
}

TEST(Allocate, TheWholeRangeOfTimesIsPossible) {
  AllocProblem p;
  p.buffers = {{INT32_MIN, INT32_MAX, 5}, {-7, 9, 5}, {INT32_MAX - 1, INT32_MAX, 5}};
  EXPECT_EQ(solved(p).height, 10);
}

TEST(Allocate, SaysWhereItDoesNotFit) {
  AllocProblem p;
  p.buffers = {{0, 9, 10}, {3, 5, 10}, {4, 6, 10}};
  const AllocSolution s = solved(p, {.capacity = 29});
  EXPECT_FALSE(s.fits);
  EXPECT_EQ(s.lower_bound, 30);
  EXPECT_GE(s.worst_time, 3);
  EXPECT_LT(s.worst_time, 6);
}

TEST(Allocate, TinyProblemsAreNeverBelowTheOptimumAndNearIt) {
  Bytes sum = 0, best_sum = 0;
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    const AllocProblem p = test::tiny_problem(seed);
    const AllocSolution s = solved(p);
    const Bytes best = test::brute_force_height(p);
    EXPECT_LE(s.lower_bound, best) << "seed " << seed;
    EXPECT_GE(s.height, best) << "seed " << seed;
    sum += s.height;
    best_sum += best;
  }
  EXPECT_LE(static_cast<double>(sum), 1.01 * static_cast<double>(best_sum));
}

TEST(Allocate, RandomProblemsWithBlocksAreValid) {
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    solved(test::composite_problem(seed));
    solved(test::random_problem(seed));
  }
}

TEST(Allocate, TheSameProblemGetsTheSameOffsets) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    const AllocProblem p = test::random_problem(seed);
    EXPECT_EQ(solved(p).offsets, solved(p).offsets);
  }
}

TEST(Validate, FindsEveryKindOfMistake) {
  AllocProblem p;
  p.alignment = 2;
  p.buffers = {{0, 4, 10}, {3, 6, 10}, {4, 9, 10, 5, 0}, {8, 9, 2, 5, 10}};
  EXPECT_TRUE(validate(p, {0, 10, 0, 10}, 20).ok());
  EXPECT_FALSE(validate(p, {0, 10, 0, 10}, 19).ok());   // above the capacity
  EXPECT_FALSE(validate(p, {0, 8, 20, 30}, 99).ok());   // 0 and 1 share bytes
  EXPECT_FALSE(validate(p, {0, 10, 12, 22}, 99).ok());  // 1 and 2 share bytes
  EXPECT_FALSE(validate(p, {0, 11, 30, 40}, 99).ok());  // not aligned
  EXPECT_FALSE(validate(p, {0, 10, 0, 12}, 99).ok());   // the block is torn
  EXPECT_FALSE(validate(p, {-2, 10, 0, 10}, 99).ok());
  EXPECT_FALSE(validate(p, {0, 10, 0}, 99).ok());
}

TEST(Validate, AgreesWithAComparisonOfAllPairs) {
  int wrong = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    const AllocProblem p = test::composite_problem(seed);
    AllocSolution s = solved(p);
    const size_t i = seed % p.buffers.size();
    const int32_t block = p.buffers[i].block;
    for (size_t j = 0; j < p.buffers.size(); ++j) {
      if (j == i || (block >= 0 && p.buffers[j].block == block)) s.offsets[j] += p.alignment;
    }
    const bool apart = test::all_pairs_apart(p, s.offsets);
    EXPECT_EQ(validate(p, s.offsets, s.height + p.alignment).ok(), apart) << seed;
    wrong += apart ? 0 : 1;
  }
  EXPECT_GT(wrong, 30);
}

TEST(Allocate, TheSearchFindsTheOptimumOfTinyProblemsAndProvesIt) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    const AllocProblem p = test::tiny_problem(seed);
    const AllocSolution s = solved(p, {.search_nodes = 1'000'000});
    const Bytes best = test::brute_force_height(p);
    if (p.alignment == 1) {
      EXPECT_EQ(s.height, best) << "seed " << seed;
      EXPECT_EQ(s.lower_bound, best) << "seed " << seed;
    } else {
      EXPECT_LE(s.lower_bound, best) << "seed " << seed;
      EXPECT_LT(s.height, best + p.alignment) << "seed " << seed;
    }
  }
}

TEST(Allocate, FitsATinyProblemIntoItsOptimumAndIntoAnythingLarger) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    AllocProblem p = test::tiny_problem(seed);
    p.alignment = 1;
    const Bytes best = test::brute_force_height(p);
    for (Bytes capacity = best - 1; capacity <= best + 5; ++capacity) {
      const AllocSolution s = solved(p, {.capacity = capacity, .search_nodes = 1'000'000});
      EXPECT_EQ(s.fits, capacity >= best) << "seed " << seed << " capacity " << capacity;
    }
  }
}

TEST(Allocate, MoreRoomNeverHurts) {
  for (uint32_t seed = 1; seed <= 25; ++seed) {
    const AllocProblem p = test::random_problem(seed);
    const Bytes load = max_load(p);
    bool fitted = false;
    for (int permille = 0; permille <= 120; permille += 4) {
      AllocOptions options;
      options.capacity = load + load * permille / 1000;
      options.search_nodes = 1;  // the shortest search
      options.greedy_work = 1'000'000;
      const AllocSolution s = solved(p, options);
      EXPECT_TRUE(s.fits || !fitted) << "seed " << seed << " at +" << permille << " permille";
      fitted = fitted || s.fits;
    }
  }
}

TEST(Allocate, ALongRowOfBuffersThatEachOverlapTheNextIsNoStaircase) {
  // A forward and a backward pass of 100,000 layers: what is kept is nested, what is handed on
  // overlaps its neighbours.
  AllocProblem p;
  const int32_t layers = 100'000;
  for (int32_t k = 0; k < layers; ++k) {
    p.buffers.push_back({k, 2 * layers - k, kMiB, -1, 0});
    p.buffers.push_back({2 * layers - k, 2 * layers - k + 2, kMiB, -1, 0});
  }
  AllocOptions options;
  options.greedy_work = 1'000'000;  // too little for anything but the skyline
  const AllocSolution s = solved(p, options);
  EXPECT_LE(s.height, max_load(p) + 4 * kMiB);
}

}  // namespace
}  // namespace headrace
