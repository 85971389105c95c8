#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kSequence = 137, kRows = 274, kHeads = 3, kKvHeads = 2;

struct Rope {
  Rope(DType type, int64_t head_dim, int64_t turned, bool half_split, bool inverse)
      : h("hr.rope"), d(head_dim) {
    x = h.input(type, kRows, cols());
    frequency = h.input(DType::kF32, 1, turned / 2, 2);
    y = h.output(type, kRows, cols());
    std::vector<float> inv_freq;
    for (int64_t i = 0; i < turned / 2; ++i) {
      inv_freq.push_back(static_cast<float>(
          std::pow(10000.0, -2 * static_cast<double>(i) / static_cast<double>(turned))));
    }
    h.put(frequency, inv_freq);
    h.normal(x, 1);
    h.set(Attr::kHeads, kHeads);
    h.set(Attr::kKvHeads, kKvHeads);
    h.set(Attr::kHeadDim, static_cast<double>(d));
    h.set(Attr::kRopeHalfSplit, half_split);
    h.set(Attr::kInverse, inverse);
    h.set(Attr::kSequence, kSequence);
  }
  int64_t cols() const { return (kHeads + 2 * kKvHeads) * d; }
  TrainHarness h;
  int64_t d;
  size_t x, frequency, y;
};

TEST(TrainRope, RotatesQAndKByTheirPositionsAndLeavesVAndTheRestOfAHead) {
  for (DType type : kTrainTypes) {
    for (const auto& [d, turned] : {std::pair(64, 64), std::pair(20, 20), std::pair(80, 32),
                                    std::pair(24, 6), std::pair(9, 8)}) {
      for (bool half_split : {false, true}) {
        for (bool inverse : {false, true}) {
          Rope t(type, d, turned, half_split, inverse);
          t.h.run_everywhere(train_rows_of(kRows));
          const auto x = t.h.values(t.x), f = t.h.values(t.frequency);
          std::vector<double> want = x;
          const int64_t pairs = turned / 2;
          for (int64_t row = 0; row < kRows; ++row) {
            for (int64_t head = 0; head < kHeads + kKvHeads; ++head) {
              for (int64_t i = 0; i < pairs; ++i) {
                const int64_t first = row * t.cols() + head * d;
                const auto a = static_cast<size_t>(first + (half_split ? i : 2 * i));
                const auto b = static_cast<size_t>(first + (half_split ? i + pairs : 2 * i + 1));
                const double turn = static_cast<double>(row % kSequence) *
                                    f[static_cast<size_t>(i)] * (inverse ? -1 : 1);
                want[a] = x[a] * std::cos(turn) - x[b] * std::sin(turn);
                want[b] = x[b] * std::cos(turn) + x[a] * std::sin(turn);
              }
            }
          }
          t.h.expect_near(t.y, want, 2e-5);  // angles up to 137 are rounded to f32
        }
      }
    }
  }
}

TEST(TrainRope, TheInverseUndoesIt) {
  for (bool half_split : {false, true}) {
    Rope there(DType::kF32, 64, 48, half_split, false), back(DType::kF32, 64, 48, half_split, true);
    there.h.run(train_rows_of(kRows));
    const auto turned = there.h.values(there.y);
    back.h.put(back.x, {turned.begin(), turned.end()});
    back.h.run(train_rows_of(kRows));
    back.h.expect_near(back.y, there.h.values(there.x), 1e-6);
  }
}

}  // namespace
}  // namespace headrace::test
