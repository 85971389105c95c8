// Sessions that attend selected segments of the past: exact where all are selected and in every 64th
// step, less read elsewhere, the same after a restored past; refused by name where it cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>


#include "headrace/ir/kv.h"
#include "headrace/session/session.h"
#include "tests/session/small_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::logits_of;
using test::same;
using test::SmallModel;
using testing::Scratch;

constexpr int64_t kContext = 2048;
constexpr int64_t kPrompt = 1500;  // 23 tiles and 28 positions of the next

SessionOptions sparse_options(KvFormat format, const std::string& folder, int64_t sparse) {
  SessionOptions o;
  o.context = kContext;
  o.prompt_tokens = kPrompt;
  o.new_tokens = 100;
  o.kv_format = format;
  o.kv_folder = folder;
  o.sparse_tokens = sparse;
  if (sparse > 0) o.segment_tokens = 64;
  return o;
}

std::unique_ptr<Session> begin(const Model& model, SessionOptions o, Bytes above) {
  const auto least = least_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  if (!least.ok()) return nullptr;
  o.memory_bytes = *least + above;
  auto session = test::start_session(model, o);
  if (session == nullptr) return nullptr;
  for (const Program* p : {&session->plan().decode, &session->plan().prefill}) {
    if (p->graph == nullptr) continue;
    EXPECT_TRUE(verify(*p).ok()) << verify(*p).message();
  }
  return session;
}

class SparseSession : public ::testing::TestWithParam<KvFormat> {};

TEST_P(SparseSession, WithRoomForAllSegmentsHasTheBitsOfAnExactOne) {
  const Scratch scratch;
  const SmallModel m(test::streamed_llama());
  const auto exact = begin(*m.model, sparse_options(GetParam(), "", 0), 64 * kMiB);
  const auto all =
      begin(*m.model, sparse_options(GetParam(), scratch.folder(), kContext), 2 * kMiB);
  ASSERT_TRUE(exact != nullptr && all != nullptr);
  const auto ids = test::prompt_of(kPrompt + 70, 320);
  const std::span<const int32_t> tokens(ids);
  ASSERT_TRUE(same(logits_of(*all, tokens.first(kPrompt)), logits_of(*exact, tokens.first(kPrompt))));
  for (size_t i = kPrompt; i < ids.size(); ++i) {
    ASSERT_TRUE(same(logits_of(*all, tokens.subspan(i, 1)), logits_of(*exact, tokens.subspan(i, 1))))
        << i;
  }
  EXPECT_EQ(all->sparse_recall().checks, 0);
}

// The same token at the same place, again and again: 63 times as selected, then once exactly.
TEST_P(SparseSession, Every64thStepIsExactAndMeasuresWhatTheOthersMissAndLoad) {
  const Scratch scratch;
  const SmallModel m(test::streamed_llama());
  const auto exact = begin(*m.model, sparse_options(GetParam(), "", 0), 64 * kMiB);
  const auto sparse = begin(*m.model, sparse_options(GetParam(), scratch.folder(), 512), 2 * kMiB);
  ASSERT_TRUE(exact != nullptr && sparse != nullptr);
  const auto ids = test::prompt_of(kPrompt + 1, 320);
  const std::span<const int32_t> tokens(ids), prompt = tokens.first(kPrompt);
  // Prompts are read exactly.
  ASSERT_TRUE(same(logits_of(*sparse, prompt), logits_of(*exact, prompt)));
  const auto want = logits_of(*exact, tokens.subspan(kPrompt, 1));
  const Tensor* slot = nullptr;
  for (const Tensor& t : sparse->plan().decode.graph->tensors) {
    if (t.slot.layer >= 0) slot = &t;
  }
  ASSERT_NE(slot, nullptr);
  std::vector<float> first;
  Bytes loaded = 0, selected_bytes = 0;
  for (int i = 1; i <= 128; ++i) {
    const auto got = logits_of(*sparse, tokens.subspan(kPrompt, 1));
    const Bytes now = sparse->moved().kv_loaded - loaded;
    loaded = sparse->moved().kv_loaded;
    if (i == 1) first = got;
    ASSERT_TRUE(same(got, i % 64 == 0 ? want : first)) << i;
    ASSERT_EQ(sparse->rewind(kPrompt), kPrompt);
    if (i == 1) continue;  // the way from the prompt's Program
    const Bytes each = round_up(slot->bytes, kPage);
    if (i % 64 != 0) {
      selected_bytes = now;
      EXPECT_LE(now, 8 * 6 * each) << i;
    } else {
      EXPECT_GT(now, 2 * selected_bytes) << i;
    }
  }
  EXPECT_FALSE(same(first, want)) << "nothing was left out";
  const Session::SparseRecall recall = sparse->sparse_recall();
  EXPECT_EQ(recall.selected, 8);
  EXPECT_EQ(recall.segments, kContext / 64);
  EXPECT_EQ(recall.checks, 2);
  EXPECT_GT(recall.recall, 0.25);
  EXPECT_LT(recall.recall, 1);
}

TEST_P(SparseSession, APastThatWasWrittenIsSelectedFromAsOneThatWasRead) {
  const Scratch scratch;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = sparse_options(GetParam(), scratch.folder(), 512);
  const auto a = begin(*m.model, o, 2 * kMiB), b = begin(*m.model, o, 3 * kMiB);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const int64_t tiles = 22;
  const auto ids = test::prompt_of(tiles * kKvTile + 40, 320);
  const std::span<const int32_t> tokens(ids);
  logits_of(*a, tokens.first(static_cast<size_t>(tiles * kKvTile)));
  const ModelConfig& c = m.model->config;
  const Bytes tile = kv_tile_bytes(GetParam(), c.kv_heads, c.head_dim);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (int64_t t = 0; t < tiles;) {
      const int64_t end = std::min(t + 4, tiles);
      std::vector<std::byte> bytes(static_cast<size_t>((end - t) * tile));
      ASSERT_TRUE(a->read_kv(layer, t, end, bytes).ok());
      ASSERT_TRUE(b->write_kv(layer, t, end, bytes).ok());
      t = end;
    }
  }
  ASSERT_TRUE(b->set_position(tiles * kKvTile).ok());
  for (size_t i = static_cast<size_t>(tiles * kKvTile); i < ids.size(); ++i) {
    ASSERT_TRUE(same(logits_of(*a, tokens.subspan(i, 1)), logits_of(*b, tokens.subspan(i, 1)))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SparseSession,
                         ::testing::Values(KvFormat::kF16, KvFormat::kQ8, KvFormat::kQ4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(SparseSessionPlan, WhatCannotSelectIsRefusedByName) {
  const Scratch scratch;
  const SmallModel m(test::streamed_llama());
  const auto refusal = [&](SessionOptions o) {
    o.memory_bytes = 256 * kMiB;
    const auto plan = plan_session(*m.model, o);
    return plan.ok() ? std::string("accepted") : plan.status().message();
  };
  EXPECT_THAT(refusal(sparse_options(KvFormat::kF16, "", 512)), HasSubstr("--kv-dir"));
  EXPECT_THAT(refusal(sparse_options(KvFormat::kF16, scratch.folder(), 192)),
              HasSubstr("at least 256, four segments of 64"));
  SessionOptions small = sparse_options(KvFormat::kF16, scratch.folder(), 512);
  small.prompt_tokens = 10;
  small.new_tokens = 10;
  small.context = 64;
  EXPECT_THAT(refusal(small), HasSubstr("nothing to select from"));
  EXPECT_EQ(refusal(sparse_options(KvFormat::kF16, scratch.folder(), 512)), "accepted");
}

}  // namespace
}  // namespace headrace
