#include <gtest/gtest.h>

#include "tests/kernel/train_harness.h"

namespace headrace::test {
namespace {

constexpr int64_t kSequence = 9, kRows = 27, kVocabulary = 20;
constexpr int64_t kFirst = 2;  // of 12 rows of the position table
const std::vector<int64_t> kTiles = {7, 8, 5};

// Tokens with repeats; the op starts at row 2.
StepRows tokens() {
  StepRows step = train_rows_of(kRows + 2);
  for (size_t i = 0; i < step.tokens.size(); ++i) {
    step.tokens[i] = static_cast<int32_t>(i * i * 7 % kVocabulary);
  }
  return step;
}
size_t token(int64_t row) {
  return static_cast<size_t>(tokens().tokens[static_cast<size_t>(row + 2)]);
}

size_t of_position(int64_t row, int64_t j, int64_t n) {
  return static_cast<size_t>((kFirst + row % kSequence) * n + j);
}

TEST(TrainEmbed, TakesTheRowOfTheTokenAndThatOfThePosition) {
  for (DType type : kTrainTypes) {
    for (int64_t n : {3, 40}) {
      for (bool positions : {false, true}) {
        TrainHarness h("hr.embed");
        std::vector<double> table;
        for (int64_t rows : kTiles) {
          const size_t tile = h.input(type, rows, n, 1);
          h.normal(tile, static_cast<uint32_t>(rows));
          for (double x : h.values(tile)) table.push_back(x);
        }
        const size_t position = positions ? h.input(type, 12, n, 3) : 0;
        if (positions) h.normal(position, 1);
        const size_t x = h.output(type, kRows, n);
        h.set(Attr::kPositions, positions);
        h.set(Attr::kRowBegin, 2);
        h.set(Attr::kSequence, kSequence);
        h.set(Attr::kFirst, kFirst);
        h.run_everywhere(tokens());
        const auto at = positions ? h.values(position) : std::vector<double>();
        std::vector<double> want;
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t j = 0; j < n; ++j) {
            const double p = positions ? at[of_position(row, j, n)] : 0;
            want.push_back(table[token(row) * static_cast<size_t>(n) + static_cast<size_t>(j)] + p);
          }
        }
        h.expect_near(x, want, 1e-7);
      }
    }
  }
}

struct EmbedGrad {
  EmbedGrad(DType type, int64_t rows, int64_t n, bool positions, bool update)
      : h("hr.embed_grad") {
    dx = h.input(type, rows, n);
    std::vector<int64_t> tables = kTiles;
    if (positions) tables.push_back(12);
    for (int64_t tile : tables) {
      targets.push_back(update ? h.update(DType::kF32, tile, n) : h.output(DType::kF32, tile, n));
    }
    h.set(Attr::kPositions, positions);
    h.set(Attr::kRowBegin, 2);
    h.set(Attr::kSequence, kSequence);
    h.set(Attr::kFirst, kFirst);
    h.normal(dx, 1);
  }
  TrainHarness h;
  size_t dx;
  std::vector<size_t> targets;
};

TEST(TrainEmbed, GradientsAreSumsOverTheTokensOfARow) {
  for (DType type : kTrainTypes) {
    for (int64_t n : {3, 40}) {
      for (bool update : {false, true}) {
        EmbedGrad t(type, kRows, n, true, update);
        std::vector<double> table(static_cast<size_t>(kVocabulary * n));
        std::vector<double> position(static_cast<size_t>(12 * n));
        if (update) {
          table.clear();
          for (size_t i = 0; i < 4; ++i) t.h.normal(t.targets[i], static_cast<uint32_t>(i));
          for (size_t i = 0; i < 3; ++i) {
            for (double x : t.h.values(t.targets[i])) table.push_back(x);
          }
          position = t.h.values(t.targets[3]);
        }
        const auto g = t.h.values(t.dx);
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t j = 0; j < n; ++j) {
            const double d = g[static_cast<size_t>(row * n + j)];
            table[token(row) * static_cast<size_t>(n) + static_cast<size_t>(j)] += d;
            position[of_position(row, j, n)] += d;
          }
        }
        t.h.run_everywhere(tokens());
        auto from = table.begin();
        for (size_t i = 0; i < 3; ++i) {
          const std::vector<double> want(from, from + kTiles[i] * n);
          from += kTiles[i] * n;
          t.h.expect_near(t.targets[i], want, 1e-6);
        }
        t.h.expect_near(t.targets[3], position, 1e-6);
      }
    }
  }
}

TEST(TrainEmbed, MicroBatchesThatUpdateGiveTheBitsOfOneBatch) {
  EmbedGrad whole(DType::kF32, kRows, 40, false, true);
  for (size_t target : whole.targets) whole.h.normal(target, 9);
  std::vector<std::vector<float>> state;
  for (size_t target : whole.targets) {
    const auto values = whole.h.values(target);
    state.emplace_back(values.begin(), values.end());
  }
  const auto all = whole.h.values(whole.dx);
  whole.h.run(tokens());
  for (int64_t first : {0, 9, 18}) {
    EmbedGrad part(DType::kF32, 9, 40, false, true);
    part.h.put(part.dx, {all.begin() + first * 40, all.begin() + (first + 9) * 40});
    part.h.set(Attr::kRowBegin, static_cast<double>(2 + first));
    for (size_t i = 0; i < 3; ++i) part.h.put(part.targets[i], state[i]);
    part.h.run(tokens(), 2);
    for (size_t i = 0; i < 3; ++i) {
      const auto values = part.h.values(part.targets[i]);
      state[i].assign(values.begin(), values.end());
      if (first == 18) {
        EXPECT_EQ(part.h.bits(part.targets[i]), whole.h.bits(whole.targets[i]));
      }
    }
  }
}

TEST(TrainEmbed, ThePositionTableMayBeAlone) {
  TrainHarness h("hr.embed_grad");
  const size_t dx = h.input(DType::kF32, kRows, 40);
  const size_t position = h.output(DType::kF32, 12, 40);
  h.set(Attr::kPositions, 1);
  h.set(Attr::kRowBegin, 2);
  h.set(Attr::kSequence, kSequence);
  h.normal(dx, 1);
  h.run_everywhere(tokens());
  const auto g = h.values(dx);
  std::vector<double> want(12 * 40);
  for (size_t i = 0; i < g.size(); ++i) want[i / 40 % kSequence * 40 + i % 40] += g[i];
  h.expect_near(position, want, 1e-6);
}

TEST(TrainEmbedDeathTest, ATokenBeyondTheTableIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TrainHarness h("hr.embed");
  h.input(DType::kF32, 4, 8);
  h.output(DType::kF32, 5, 8);
  EXPECT_DEATH(h.run(train_rows_of(5)), "a token is in the embedding table");
}

}  // namespace
}  // namespace headrace::test
