// Sessions whose KV does not fit: the same bits as with all of it in memory, or a typed error.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "headrace/base/split_mix.h"
#include "headrace/ir/kv.h"
#include "headrace/session/kv_choice.h"
#include "headrace/session/session.h"
#include "headrace/tier/fault_tier.h"
#include "tests/session/small_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::logits_of;
using test::same;
using test::SmallModel;

// Beside the folder that the model lies in.
class KvFolder {
 public:
  KvFolder() : folder_(::testing::TempDir() + "headrace_kv_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~KvFolder() { std::filesystem::remove_all(folder_); }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

// As many positions as make 24 MiB of KV and more in every format: with that it never all fits.
int64_t context_of(KvFormat format) {
  return format == KvFormat::kQ4 ? 65536 : format == KvFormat::kQ8 ? 32768 : 16384;
}

SessionOptions kv_options(KvFormat format, const std::string& folder) {
  SessionOptions o;
  o.context = context_of(format);
  o.prompt_tokens = 700;
  o.new_tokens = 100;
  o.kv_format = format;
  o.kv_folder = folder;
  return o;
}

std::unique_ptr<Session> begin(const Model& model, SessionOptions o, Bytes above,
                               const WrapTier& wrap = nullptr) {
  (void)least_memory(model, o);  // what the first question leaves in the allocator is no growth
  const auto least = least_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  if (!least.ok()) return nullptr;
  // This process grows between the question for the least and the plan.
  Result<SessionPlan> plan = error(Code::kDoesNotFit, "not tried");
  for (int i = 0; i < 64 && plan.status().code() == Code::kDoesNotFit; ++i) {
    o.memory_bytes = *least + above + i * 256 * kKiB;
    plan = plan_session(model, o);
  }
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return nullptr;
  EXPECT_EQ(plan->kv_streamed, !o.kv_folder.empty());
  for (const Program* p : {&plan->decode, &plan->prefill, &plan->prefill_body}) {
    if (p->graph == nullptr) continue;
    const Status good = verify(*p);
    EXPECT_TRUE(good.ok()) << good.message();
  }
  EXPECT_LE(plan->ledger.reserved(), o.memory_bytes);
  auto session = Session::start(model, std::move(*plan), nullptr, wrap);
  EXPECT_TRUE(session.ok()) << session.status().message();
  return session.ok() ? std::move(*session) : nullptr;
}

std::unique_ptr<Session> in_memory(const Model& model, KvFormat format) {
  return begin(model, kv_options(format, ""), 64 * kMiB);
}

// A prompt, then tokens one at a time.
std::vector<std::vector<float>> read_and_decode(Session& session, int64_t prompt, int64_t tokens) {
  const auto ids = test::prompt_of(prompt + tokens, 320);
  const std::span<const int32_t> all(ids);
  std::vector<std::vector<float>> out;
  out.push_back(logits_of(session, all.first(static_cast<size_t>(prompt))));
  for (int64_t i = 0; i < tokens; ++i) {
    out.push_back(logits_of(session, all.subspan(static_cast<size_t>(prompt + i), 1)));
  }
  return out;
}

void expect_same(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(same(got[i], want[i])) << what << ", " << i;
}

class KvSession : public ::testing::TestWithParam<KvFormat> {};

TEST_P(KvSession, HasTheBitsOfKvInMemoryAtEveryBudgetChunkAndSlotSize) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  const auto reference = in_memory(*m.model, GetParam());
  ASSERT_NE(reference, nullptr);
  const auto want = read_and_decode(*reference, 700, 70);
  EXPECT_EQ(reference->moved().kv_loaded, 0);
  for (const Bytes above : {3 * kMiB / 2, 5 * kMiB / 2}) {
    for (const int64_t chunk : {16, 64, 512}) {
      for (const int64_t segment : {128, 512}) {
        SessionOptions o = kv_options(GetParam(), scratch.folder());
        o.chunk = chunk;
        o.segment_tokens = segment;
        o.threads = chunk == 64 ? 2 : 1;
        const auto session = begin(*m.model, o, above);
        ASSERT_NE(session, nullptr);
        expect_same(read_and_decode(*session, 700, 70), want,
                    text_of("chunk %d segment %d", static_cast<int>(chunk),
                            static_cast<int>(segment)));
        EXPECT_GT(session->moved().kv_loaded, 0);
        EXPECT_GT(session->moved().kv_stored, 0);
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.folder())) << "a scratch file is left";
}

TEST_P(KvSession, GoesBackAndOnAsKvInMemoryDoes) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  const auto a = in_memory(*m.model, GetParam());
  const auto b = begin(*m.model, kv_options(GetParam(), scratch.folder()), 2 * kMiB);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const auto ids = test::prompt_of(4096, 320);
  uint64_t draw = 7;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(testing::tiny::next(&draw) % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < 60; ++i) {
    if (i % 3 == 2) {
      const int64_t to = a->position() - below(std::min<int64_t>(a->position(), 150) + 1);
      ASSERT_EQ(a->rewind(to), b->rewind(to));
    }
    ASSERT_EQ(a->position(), b->position());
    const auto from = static_cast<size_t>(a->position());
    const auto count = static_cast<size_t>(i % 4 == 0 ? 1 + below(150) : 1 + below(3));
    const auto tokens = std::span<const int32_t>(ids).subspan(from, count);
    ASSERT_TRUE(same(logits_of(*b, tokens), logits_of(*a, tokens))) << i;
  }
}

// One row at a time from the very start gives what is known; rewinding must not change it.
TEST_P(KvSession, ARewindForgetsExactlyWhatItSays) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  const auto session = begin(*m.model, kv_options(GetParam(), scratch.folder()), 2 * kMiB);
  ASSERT_NE(session, nullptr);
  const auto ids = test::prompt_of(300, 320);
  const std::span<const int32_t> all(ids);
  const auto want = logits_of(*session, all);
  for (const int64_t to : {299, 257, 256, 255, 200, 64, 63, 1, 0}) {
    const int64_t at = session->rewind(to);
    ASSERT_LE(at, to);
    ASSERT_GT(at + kKvTile, to);
    ASSERT_TRUE(same(logits_of(*session, all.subspan(static_cast<size_t>(at))), want)) << to;
  }
}

TEST_P(KvSession, TilesReadFromOneSessionContinueInAnother) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  const auto first = begin(*m.model, kv_options(GetParam(), scratch.folder()), 2 * kMiB);
  const auto second = begin(*m.model, kv_options(GetParam(), scratch.folder()), 3 * kMiB);
  const auto third = in_memory(*m.model, GetParam());
  ASSERT_TRUE(first != nullptr && second != nullptr && third != nullptr);
  const auto ids = test::prompt_of(700, 320);
  const std::span<const int32_t> all(ids);
  const auto want = logits_of(*first, all);
  const ModelConfig& c = m.model->config;
  const Bytes tile = kv_tile_bytes(GetParam(), c.kv_heads, c.head_dim);
  std::vector<std::byte> bytes(static_cast<size_t>(10 * tile));
  for (Session* other : {second.get(), third.get()}) {
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      ASSERT_TRUE(first->read_kv(layer, 0, 10, bytes).ok());
      const Status written = other->write_kv(layer, 0, 10, bytes);
      ASSERT_TRUE(written.ok()) << written.message();
    }
    ASSERT_TRUE(other->set_position(640).ok());
    EXPECT_TRUE(same(logits_of(*other, all.subspan(640)), want));
  }
  EXPECT_FALSE(first->read_kv(0, 10, 11, std::span(bytes).first(static_cast<size_t>(tile))).ok());
}

INSTANTIATE_TEST_SUITE_P(Formats, KvSession,
                         ::testing::Values(KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8,
                                           KvFormat::kQ4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(KvSessionWindow, FarPastItsWindowTheBitsAreThoseOfKvInMemory) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_gemma3_q4k());
  SessionOptions one = kv_options(KvFormat::kF16, "");
  one.chunk = 1;
  const auto reference = begin(*m.model, one, 64 * kMiB);
  SessionOptions moved = kv_options(KvFormat::kF16, scratch.folder());
  moved.segment_tokens = 128;
  const auto streamed = begin(*m.model, moved, 2 * kMiB);
  ASSERT_TRUE(reference != nullptr && streamed != nullptr);
  // Their slots are fewer than the context has.
  EXPECT_LT(streamed->plan().kv.windows, 2 * streamed->plan().kv.slots);
  expect_same(read_and_decode(*streamed, 1500, 70), read_and_decode(*reference, 1500, 70), "");
  EXPECT_EQ(streamed->rewind(100), 0) << "what the window saw there is gone";
  const auto ids = test::prompt_of(100, 320);
  reference->reset();
  EXPECT_TRUE(same(logits_of(*streamed, ids), logits_of(*reference, ids)));
}

TEST(KvSessionFaults, DelaysAndOtherOrdersChangeNothing) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  const auto reference = in_memory(*m.model, KvFormat::kQ8);
  ASSERT_NE(reference, nullptr);
  const auto want = read_and_decode(*reference, 400, 40);
  for (const uint64_t seed : {1u, 2u, 3u}) {
    FaultPlan faults;
    faults.delay_polls = 3;
    faults.reorder_polls = 40;
    faults.seed = seed;
    SessionOptions o = kv_options(KvFormat::kQ8, scratch.folder());
    o.segment_tokens = 128;
    const auto session = begin(*m.model, o, 2 * kMiB, [&](std::unique_ptr<Tier> tier) {
      return Result<std::unique_ptr<Tier>>(make_fault_tier(std::move(tier), faults));
    });
    ASSERT_NE(session, nullptr);
    expect_same(read_and_decode(*session, 400, 40), want, text_of("seed %d", static_cast<int>(seed)));
  }
}

TEST(KvSessionFaults, ATransferThatFailsEndsTheSessionWithItsName) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  int met = 0;
  for (const int64_t at : {1, 2, 7, 30, 90, 300}) {
    FaultPlan faults;
    faults.fail_at = at;
    SessionOptions o = kv_options(KvFormat::kF16, scratch.folder());
    o.segment_tokens = 128;
    const auto session = begin(*m.model, o, 2 * kMiB, [&](std::unique_ptr<Tier> tier) {
      return Result<std::unique_ptr<Tier>>(make_fault_tier(std::move(tier), faults));
    });
    ASSERT_NE(session, nullptr);
    const auto ids = test::prompt_of(500, 320);
    auto logits = session->append(ids);
    for (int i = 0; i < 20 && logits.ok(); ++i) {
      logits = session->append(std::span<const int32_t>(ids).first(1));
    }
    if (logits.ok()) continue;
    ++met;
    EXPECT_EQ(logits.status().code(), Code::kIo);
    EXPECT_THAT(logits.status().message(), HasSubstr("kv."));
    EXPECT_THAT(logits.status().message(), HasSubstr("scratch"));
    EXPECT_FALSE(session->append(ids).ok()) << "nothing runs after an error";
    EXPECT_FALSE(session->failed().ok());
  }
  EXPECT_GE(met, 5);
}

// Changes one bit of what the n-th load brings.
class FlipTier : public Tier {
 public:
  FlipTier(std::unique_ptr<Tier> inner, int64_t at) : inner_(std::move(inner)), at_(at) {}
  const TierDescription& describe() const override { return inner_->describe(); }
  TierCounters counters() const override { return inner_->counters(); }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    HR_ASSIGN(const Ticket ticket, inner_->load(from, to));
    if (++loads_ == at_) {
      ticket_ = ticket;
      byte_ = &to[to.size() / 2];
    }
    return ticket;
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    return inner_->store(from, to);
  }
  void poll() override { inner_->poll(); }
  bool done(Ticket ticket) override { return inner_->done(ticket); }
  Status wait(Ticket ticket) override {
    const Status status = inner_->wait(ticket);
    if (byte_ != nullptr && ticket.value == ticket_.value) {
      *byte_ ^= std::byte{4};
      byte_ = nullptr;
    }
    return status;
  }

 private:
  std::unique_ptr<Tier> inner_;
  int64_t at_, loads_ = 0;
  Ticket ticket_;
  std::byte* byte_ = nullptr;
};

TEST(KvSessionFaults, AFlippedBitIsAnErrorAndNeverAWrongToken) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  for (const int64_t at : {1, 5, 40}) {
    SessionOptions o = kv_options(KvFormat::kF16, scratch.folder());
    o.segment_tokens = 128;
    const auto session = begin(*m.model, o, 2 * kMiB, [&](std::unique_ptr<Tier> tier) {
      return Result<std::unique_ptr<Tier>>(std::make_unique<FlipTier>(std::move(tier), at));
    });
    ASSERT_NE(session, nullptr);
    const auto ids = test::prompt_of(500, 320);
    auto logits = session->append(ids);
    for (int i = 0; i < 40 && logits.ok(); ++i) {
      logits = session->append(std::span<const int32_t>(ids).first(1));
    }
    ASSERT_FALSE(logits.ok()) << at;
    EXPECT_EQ(logits.status().code(), Code::kIo);
    EXPECT_THAT(logits.status().message(), HasSubstr("kv."));
  }
}

TEST(KvSessionPlan, AContextThatNoFolderHasRoomForIsRefusedWithWhatWouldFit) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  SessionOptions o = kv_options(KvFormat::kF16, scratch.folder());
  const auto least = least_memory(*m.model, o);
  ASSERT_TRUE(least.ok());
  o.memory_bytes = *least + 2 * kMiB;
  o.kv_disk_bytes = 2 * kMiB;
  const auto plan = plan_session(*m.model, o);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(plan.status().message(), HasSubstr("a context of 16384"));
  EXPECT_THAT(plan.status().message(), HasSubstr("positions (--context "));
}

TEST(KvSessionPlan, WhatFitsStaysInMemoryAndNothingIsOnDisk) {
  const KvFolder scratch;
  const SmallModel m(test::streamed_llama());
  SessionOptions o = kv_options(KvFormat::kF16, scratch.folder());
  const auto least = least_memory(*m.model, o);
  ASSERT_TRUE(least.ok());
  o.memory_bytes = *least + 64 * kMiB;
  const auto plan = plan_session(*m.model, o);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_FALSE(plan->kv_streamed);
  EXPECT_EQ(plan->kv_disk_bytes, 0);
}

}  // namespace
}  // namespace headrace
