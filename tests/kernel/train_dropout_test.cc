#include <gtest/gtest.h>

#include "headrace/kernel/philox.h"
#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

// Known answers of Random123's kat_vectors file.
TEST(Philox, GivesTheKnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffffull),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ull),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct Dropped {
  explicit Dropped(DType type, int64_t rows, int64_t n, double p) : h("hr.dropout") {
    x = h.input(type, rows, n);
    y = h.output(type, rows, n);
    h.set(Attr::kProbability, p);
    h.set(Attr::kStream, 7);
    h.set(Attr::kRowBegin, 3);
    h.normal(x, 1);
  }
  TrainHarness h;
  size_t x, y;
};

TEST(TrainDropout, KeepsWhatItsGeneratorSaysAndScalesIt) {
  for (DType type : kTrainTypes) {
    for (int64_t n : {1, 20, 63, 64, 200}) {
      Dropped t(type, 40, n, 0.25);
      const StepRows step = train_rows_of(43);
      t.h.run_everywhere(step);
      const auto x = t.h.values(t.x);
      std::vector<double> want;
      for (int64_t row = 0; row < 40; ++row) {
        for (int64_t j = 0; j < n; ++j) {
          const auto block = static_cast<uint32_t>(j / 64 * 16 + j % 16);
          const auto words = philox4x32({block, static_cast<uint32_t>(3 + row), 7, 0}, step.seed);
          const uint32_t word = words[static_cast<size_t>(j % 64 / 16)];
          const bool dropped = word >> 8 < (1u << 22);
          want.push_back(dropped ? 0 : x[static_cast<size_t>(row * n + j)] / 0.75);
        }
      }
      t.h.expect_near(t.y, want, 1e-6);
    }
  }
}

TEST(TrainDropout, DropsTheFractionAskedFor) {
  for (double p : {0.0, 0.1, 0.5, 0.9}) {
    Dropped t(DType::kF32, 500, 768, p);
    t.h.run(train_rows_of(503));
    double dropped = 0;
    for (double y : t.h.values(t.y)) dropped += y == 0;
    EXPECT_NEAR(dropped / (500 * 768), p, 4 * std::sqrt(p * (1 - p) / (500 * 768)));
  }
}

TEST(TrainDropout, RowsDoNotDependOnTheMicroBatchTheyAreIn) {
  Dropped whole(DType::kF32, 40, 100, 0.5), part(DType::kF32, 10, 100, 0.5);
  whole.h.run(train_rows_of(43));
  part.h.set(Attr::kRowBegin, 33);
  part.h.put(part.x, [&] {
    const auto all = whole.h.values(whole.x);
    return std::vector<float>(all.begin() + 3000, all.end());
  }());
  part.h.run(train_rows_of(43));
  EXPECT_EQ(part.h.bits(part.y), whole.h.bits(whole.y).substr(3000 * 4));
}

TEST(TrainDropout, AnotherSeedOrStreamDropsOthers) {
  Dropped t(DType::kF32, 40, 100, 0.5);
  StepRows step = train_rows_of(43);
  t.h.run(step);
  const std::string first = t.h.bits(t.y);
  t.h.set(Attr::kStream, 8);
  t.h.run(step);
  const std::string second = t.h.bits(t.y);
  t.h.set(Attr::kStream, 7);
  step.seed += uint64_t{1} << 32;
  t.h.run(step);
  EXPECT_NE(first, second);
  EXPECT_NE(first, t.h.bits(t.y));
}

TEST(TrainDropout, AnEvaluationDropsNothing) {
  Dropped t(DType::kF32, 40, 100, 0.5);
  StepRows step = train_rows_of(43);
  step.update = false;
  t.h.run_everywhere(step);
  EXPECT_EQ(t.h.bits(t.y), t.h.bits(t.x));
}

}  // namespace
}  // namespace headrace::test
