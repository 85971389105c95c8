// Batch sessions: the bits of a Session alone, whatever runs beside and wherever KV has been.
#include "headrace/session/batch_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/session/batch_models.h"

namespace headrace {
namespace {

using test::Alone;
using test::BlockFolder;
using test::SmallModel;
using test::start_batch;

BatchOptions options(KvFormat format = KvFormat::kF16) {
  BatchOptions o;
  o.places = 4;
  o.context = 512;
  o.step_rows = 96;
  o.kv_format = format;
  o.typical_tokens = 200;
  return o;
}

std::vector<float> row_of(std::span<const float> logits, size_t row, int64_t vocab) {
  const auto n = static_cast<size_t>(vocab);
  return {logits.begin() + static_cast<std::ptrdiff_t>(row * n),
          logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * n)};
}

TEST(BatchSession, TwoSequencesInOneStepHaveTheBitsOfEachAlone) {
  const SmallModel m(test::streamed_llama());
  const auto batch = start_batch(*m.model, options(), 3 * kMiB);
  ASSERT_NE(batch, nullptr);
  Alone alone(*m.model, KvFormat::kF16, 512);
  const int64_t vocab = m.model->config.vocab;
  std::vector<int32_t> a = test::prompt_of(50, vocab, 1), b = test::prompt_of(31, vocab, 2);
  const KvSequence first = *batch->open(), second = *batch->open();
  size_t at_a = 0, at_b = 0;
  for (int i = 0; i < 40; ++i) {
    std::vector<BatchSession::Part> parts = {
        {first, std::span(a).subspan(at_a), 1}, {second, std::span(b).subspan(at_b), 1}};
    const auto logits = batch->step(parts);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    ASSERT_EQ(logits->size(), static_cast<size_t>(2 * vocab));
    ASSERT_TRUE(test::same(row_of(*logits, 0, vocab), alone.after(a))) << i;
    ASSERT_TRUE(test::same(row_of(*logits, 1, vocab), alone.after(b))) << i;
    at_a = a.size();
    at_b = b.size();
    a.push_back(static_cast<int32_t>(7 * i % 300));
    b.push_back(static_cast<int32_t>(11 * i % 300));
    b.push_back(static_cast<int32_t>(13 * i % 300));
  }
}

}  // namespace
}  // namespace headrace
