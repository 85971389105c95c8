// Batch sessions: steps of several sequences, what is refused, and what a fault costs.
#include "headrace/session/batch_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "headrace/tier/fault_tier.h"
#include "tests/kv/flaky_tier.h"
#include "tests/session/batch_models.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::BlockFolder;
using test::SmallModel;
using test::start_batch;
using test::Texts;
using testing::Flaky;
using testing::FlakyTier;
using Part = BatchSession::Part;

constexpr int64_t kLength = 300;

BatchOptions options(const std::string& folder = "") {
  BatchOptions o;
  o.places = 4;
  o.context = kLength;
  o.step_rows = 96;
  o.speculate = 3;
  o.block_tokens = 64;
  o.typical_tokens = 200;
  o.kv_folder = folder;
  return o;
}

// A sequence that has read the first `length` tokens of a text.
struct Reader {
  KvSequence id;
  size_t text = 0;
  int64_t length = 0;
};

// Appends `count` tokens of each reader's text; all rows' logits must be those of a Session.
void expect_step(BatchSession& batch, const Texts& texts, std::vector<Reader*> readers,
                 std::vector<int64_t> counts, int64_t outputs = 1) {
  std::vector<Part> parts;
  for (size_t i = 0; i < readers.size(); ++i) {
    const Reader& r = *readers[i];
    parts.push_back({r.id, texts.tokens(r.text, r.length, counts[i]),
                     std::min(outputs, counts[i])});
  }
  const auto logits = batch.step(parts);
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  const auto vocab = static_cast<size_t>(320);
  size_t row = 0;
  for (size_t i = 0; i < readers.size(); ++i) {
    Reader& r = *readers[i];
    ASSERT_TRUE(parts[i].status.ok()) << parts[i].status.message();
    r.length += counts[i];
    EXPECT_EQ(batch.length(r.id), r.length);
    for (int64_t k = parts[i].outputs; k > 0; --k, ++row) {
      EXPECT_TRUE(texts.are(logits->subspan(row * vocab, vocab), r.text, r.length - k))
          << "sequence " << i << ", position " << r.length - k;
    }
  }
  ASSERT_EQ(logits->size(), row * vocab);
}

struct Fixture {
  explicit Fixture(const std::string& folder = "", const test::BatchSetting& setting = {},
                   BatchOptions o = {})
      : texts(*m.model, KvFormat::kF16, kLength, {0, 70, 0}) {
    if (o.context == 0) o = options(folder);
    batch = start_batch(*m.model, o, setting);
  }
  Reader open(size_t text = 0) { return {*batch->open(), text, 0}; }
  const SmallModel m{test::streamed_llama()};
  const Texts texts;
  std::unique_ptr<BatchSession> batch;
};

TEST(BatchSession, RaggedPartsHaveTheBitsOfEachSequenceAlone) {
  Fixture f;
  Reader a = f.open(0), b = f.open(1), c = f.open(2);
  expect_step(*f.batch, f.texts, {&a, &b, &c}, {50, 3, 43}, 2);
  expect_step(*f.batch, f.texts, {&c, &a}, {1, 95}, 3);
  for (int i = 0; i < 20; ++i) expect_step(*f.batch, f.texts, {&a, &b, &c}, {1, 20 - i, 2});
  Reader d = {*f.batch->fork(a.id, 100), a.text, 100};
  d.length = f.batch->length(d.id);
  EXPECT_EQ(d.length, 64) << "a tile before the tail's";
  expect_step(*f.batch, f.texts, {&d, &a}, {70, 2}, 4);
  EXPECT_GT(f.batch->moved().loaded, 0);
}

TEST(BatchSession, DraftedTokensThatAreRefusedLeaveNothingBehind) {
  Fixture f;
  Reader a = f.open(0);
  expect_step(*f.batch, f.texts, {&a}, {65});
  const std::vector<int32_t> wrong = {1, 2, 3};
  for (int i = 0; i < 40; ++i) {
    const auto next = f.texts.tokens(0, a.length, 1);
    std::vector<int32_t> draft = {next[0], wrong[0], wrong[1], wrong[2]};
    const auto k = std::min<int64_t>(3, (a.length / kKvTile + 1) * kKvTile - a.length - 2);
    draft.resize(static_cast<size_t>(1 + std::max<int64_t>(k, 0)));
    std::vector<Part> parts = {{a.id, draft, static_cast<int64_t>(draft.size())}};
    const auto logits = f.batch->step(parts);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    EXPECT_TRUE(f.texts.are(logits->first(320), 0, a.length)) << i;
    ++a.length;
    EXPECT_EQ(*f.batch->truncate(a.id, a.length), a.length);
  }
}

TEST(BatchSession, StepsThatCannotBeAreRefusedAndChangeNothing) {
  Fixture f;
  Reader a = f.open(0), b = f.open(1);
  expect_step(*f.batch, f.texts, {&a, &b}, {40, 40});
  const auto refused = [&](std::vector<Part> parts, const char* why) {
    const auto logits = f.batch->step(parts);
    EXPECT_EQ(logits.status().code(), Code::kUsage) << why;
    EXPECT_THAT(logits.status().message(), HasSubstr(why));
    EXPECT_FALSE(f.batch->failed());
    EXPECT_EQ(f.batch->length(a.id), 40);
  };
  const std::vector<int32_t> outside = {5, 320}, negative = {-1};
  const auto of = [&](int64_t count) { return f.texts.tokens(0, 0, count); };
  refused({}, "a step of 0 rows");
  refused({{a.id, of(97), 1}}, "a step of 97 rows with logits of 1: at most 96 and 16");
  refused({{a.id, of(17), 17}}, "logits of 17: at most 96 and 16");
  refused({{a.id, of(2), 3}}, "the last 3 of 2 rows");
  refused({{a.id, of(2), -1}}, "the last -1 of 2 rows");
  refused({{a.id, outside, 1}}, "token 320 is outside the vocabulary of 320");
  refused({{a.id, negative, 1}}, "token -1");
  refused({{a.id, of(2), 1}, {a.id, of(2), 1}}, "twice");
  refused({{a.id, of(2), 1}, {b.id, {}, 0}}, "no rows");
  refused({{KvSequence(77), of(2), 1}}, "not open");
  expect_step(*f.batch, f.texts, {&a}, {96});
  expect_step(*f.batch, f.texts, {&a}, {96});
  expect_step(*f.batch, f.texts, {&a}, {60});
  const auto full = [&] {
    std::vector<Part> parts = {{a.id, of(9), 1}, {b.id, of(1), 1}};
    return f.batch->step(parts).status();
  }();
  EXPECT_EQ(full.code(), Code::kUsage);
  EXPECT_THAT(full.message(), HasSubstr("9 tokens after position 292 exceed the context of 300"));
  expect_step(*f.batch, f.texts, {&a, &b}, {8, 1});
}

TEST(BatchSession, BlocksThatAreMissingAreSaidWithNumbersAndNothingChanges) {
  BatchOptions o = options();
  o.blocks = 5;  // of one sequence
  Fixture f("", {}, o);
  Reader a = f.open(0), b = f.open(2);
  expect_step(*f.batch, f.texts, {&a}, {96});
  expect_step(*f.batch, f.texts, {&a}, {96});
  expect_step(*f.batch, f.texts, {&a, &b}, {30, 65});
  std::vector<Part> parts = {{a.id, f.texts.tokens(0, a.length, 50), 1},
                             {b.id, {}, 1}};
  // Nothing but these two sequences could leave, and there is nowhere to go.
  for (int i = 0; i < 3; ++i) expect_step(*f.batch, f.texts, {&b}, {20});
  parts[1].tokens = f.texts.tokens(2, b.length, 40);
  const auto none = f.batch->step(parts);
  EXPECT_EQ(none.status().code(), Code::kDoesNotFit) << none.status().message();
  EXPECT_THAT(none.status().message(), HasSubstr("blocks"));
  EXPECT_FALSE(f.batch->failed());
  EXPECT_EQ(f.batch->length(a.id), 222);
  EXPECT_TRUE(f.batch->cache().verify().ok());
  EXPECT_EQ(f.batch->preempt(b.id).status().code(), Code::kUnsupported);
  ASSERT_TRUE(f.batch->close(b.id).ok());
  expect_step(*f.batch, f.texts, {&a}, {50});
}

TEST(BatchSession, MoreSequencesThanPlacesAreRefused) {
  Fixture f;
  for (int i = 0; i < 4; ++i) (void)f.open();
  EXPECT_EQ(f.batch->open().status().code(), Code::kDoesNotFit);
}

TEST(BatchSession, PreemptedSequencesGoOnAsIfNothingHadBeen) {
  const BlockFolder folder;
  BatchOptions o = options(folder.folder());
  o.blocks = 5;
  Fixture f(folder.folder(), {}, o);
  std::vector<Reader> readers = {f.open(0), f.open(1), f.open(2)};
  for (Reader& r : readers) {
    expect_step(*f.batch, f.texts, {&r}, {90});
    EXPECT_EQ(*f.batch->preempt(r.id), 0);
  }
  for (int turn = 0; turn < 6; ++turn) {
    Reader& r = readers[static_cast<size_t>(turn % 3)];
    std::vector<Part> parts = {{r.id, f.texts.tokens(r.text, r.length, 1), 1}};
    EXPECT_EQ(f.batch->step(parts).status().code(), Code::kUsage) << "preempted";
    ASSERT_TRUE(f.batch->resume(r.id).ok());
    expect_step(*f.batch, f.texts, {&r}, {70}, 3);
    expect_step(*f.batch, f.texts, {&r}, {1});
    EXPECT_EQ(*f.batch->preempt(r.id), 0);
    EXPECT_TRUE(f.batch->cache().verify().ok());
  }
  EXPECT_GT(f.batch->cache().counts().loads, 10);
  EXPECT_TRUE(std::filesystem::is_empty(folder.folder())) << "a file of blocks is left";
}

// --- Faults.

test::BatchSetting on_flaky_weights(const Flaky* flaky) {
  test::BatchSetting s;
  s.above = kMiB / 2;
  s.wrap_weights = [flaky](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
    return std::unique_ptr<Tier>(new FlakyTier(std::move(inner), flaky));
  };
  return s;
}

TEST(BatchSession, AStepThatFailsIsRetriedAfterRecoveryWithTheSameBits) {
  Flaky flaky;
  Fixture f("", on_flaky_weights(&flaky));
  Reader a = f.open(0), b = f.open(1);
  expect_step(*f.batch, f.texts, {&a, &b}, {50, 20});
  for (int i = 0; i < 4; ++i) {
    const Bytes moved = f.batch->moved().loaded;
    flaky.fail_one_in = 1 + 3 * i;
    std::vector<Part> parts = {{a.id, f.texts.tokens(0, a.length, 3), 1},
                               {b.id, f.texts.tokens(1, b.length, 1), 1}};
    Status failed = f.batch->step(parts).status();
    for (int k = 0; k < 100 && failed.ok(); ++k) {
      a.length += 3, b.length += 1;
      parts[0].tokens = f.texts.tokens(0, a.length, 3);
      parts[1].tokens = f.texts.tokens(1, b.length, 1);
      failed = f.batch->step(parts).status();
    }
    ASSERT_EQ(failed.code(), Code::kIo) << failed.message();
    EXPECT_THAT(failed.message(), HasSubstr("injected"));
    EXPECT_TRUE(f.batch->failed());
    EXPECT_EQ(f.batch->step(parts).status().code(), Code::kUsage);
    EXPECT_EQ(f.batch->length(b.id), b.length);
    a.length = f.batch->length(a.id);
    flaky.fail_one_in = 0;
    ASSERT_TRUE(f.batch->recover().ok());
    EXPECT_FALSE(f.batch->failed());
    expect_step(*f.batch, f.texts, {&a, &b}, {3, 1}, 2);
    EXPECT_GE(f.batch->moved().loaded, moved);
  }
}

TEST(BatchSession, AFailedStepThatWouldHaveCompletedATileGoesBackToItsBeginning) {
  Flaky flaky;
  Fixture f("", on_flaky_weights(&flaky));
  Reader a = f.open(0), b = f.open(2);
  expect_step(*f.batch, f.texts, {&a, &b}, {60, 10});
  expect_step(*f.batch, f.texts, {&a}, {61});
  std::vector<Part> parts = {{a.id, f.texts.tokens(0, a.length, 8), 1},
                             {b.id, f.texts.tokens(2, b.length, 8), 1}};
  flaky.fail_one_in = 1;
  Status failed;
  while ((failed = f.batch->step(parts).status()).ok()) {
    parts[0].tokens = f.texts.tokens(0, f.batch->length(a.id), 8);
    parts[1].tokens = f.texts.tokens(2, f.batch->length(b.id), 8);
    ASSERT_LT(f.batch->length(a.id), 200);
  }
  EXPECT_EQ(f.batch->length(a.id) % 64, 0);
  EXPECT_NE(f.batch->length(b.id) % 64, 0);
  flaky.fail_one_in = 0;
  ASSERT_TRUE(f.batch->recover().ok());
  a.length = f.batch->length(a.id);
  b.length = f.batch->length(b.id);
  expect_step(*f.batch, f.texts, {&a, &b}, {70, 8}, 4);
}

TEST(BatchSession, WhatWasStoppedGoesOnAfterRecovery) {
  std::atomic<bool> stop = false;
  test::BatchSetting setting;
  setting.cancel = &stop;
  Fixture f("", setting);
  Reader a = f.open(0);
  expect_step(*f.batch, f.texts, {&a}, {20});
  stop = true;
  std::vector<Part> parts = {{a.id, f.texts.tokens(0, 20, 3), 1}};
  EXPECT_EQ(f.batch->step(parts).status().code(), Code::kCancelled);
  stop = false;
  ASSERT_TRUE(f.batch->recover().ok());
  ASSERT_TRUE(f.batch->recover().ok()) << "of what runs: nothing";
  expect_step(*f.batch, f.texts, {&a}, {3}, 3);
}

TEST(BatchSession, DoesNotRecoverWithWeightsThatWereChanged) {
  Flaky flaky;
  Fixture f("", on_flaky_weights(&flaky));
  Reader a = f.open(0);
  expect_step(*f.batch, f.texts, {&a}, {20});
  EXPECT_TRUE(f.batch->check_files().ok());
  flaky.fail_one_in = 1;
  Status failed;
  while (failed.ok()) {
    std::vector<Part> parts = {{a.id, f.texts.tokens(0, f.batch->length(a.id), 1), 1}};
    failed = f.batch->step(parts).status();
  }
  flaky.fail_one_in = 0;
  { std::ofstream(f.m.path(), std::ios::app) << "more"; }
  const Status status = f.batch->recover();
  EXPECT_EQ(status.code(), Code::kIo) << status.message();
  EXPECT_TRUE(f.batch->failed());
  EXPECT_EQ(f.batch->check_files().code(), Code::kIo);
}

TEST(BatchSession, ABlockThatComesBackWrongCostsItsSequenceAlone) {
  const BlockFolder folder;
  Flaky flaky;
  test::BatchSetting setting;
  setting.wrap_blocks = [&](std::unique_ptr<Tier> inner) -> Result<std::unique_ptr<Tier>> {
    return std::unique_ptr<Tier>(new FlakyTier(std::move(inner), &flaky));
  };
  Fixture f(folder.folder(), setting);
  Reader a = f.open(0), b = f.open(2);
  for (const bool flips : {true, false}) {
    expect_step(*f.batch, f.texts, {&a, &b}, {65 - a.length % 64, 5});
    ASSERT_EQ(*f.batch->preempt(a.id), 0);
    ASSERT_TRUE(f.batch->resume(a.id).ok());
    (flips ? flaky.flip = true : (flaky.fail_one_in = 1) == 1);
    std::vector<Part> parts = {{a.id, f.texts.tokens(0, a.length, 2), 2},
                               {b.id, f.texts.tokens(2, b.length, 2), 2}};
    const auto logits = f.batch->step(parts);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    flaky = {};
    EXPECT_EQ(parts[0].status.code(), flips ? Code::kBadFile : Code::kIo)
        << parts[0].status.message();
    EXPECT_TRUE(parts[1].status.ok());
    ASSERT_EQ(logits->size(), 2u * 320);
    EXPECT_TRUE(f.texts.are(logits->first(320), 2, b.length));
    EXPECT_TRUE(f.texts.are(logits->subspan(320), 2, b.length + 1));
    b.length += 2;
    EXPECT_EQ(f.batch->length(a.id), a.length);
    EXPECT_EQ(*f.batch->truncate(a.id, parts[0].sound), parts[0].sound);
    a.length = parts[0].sound;
    EXPECT_EQ(a.length, 0);
  }
  expect_step(*f.batch, f.texts, {&a, &b}, {80, 1}, 5);
  EXPECT_TRUE(f.batch->cache().verify().ok());
}

// --- Blocks out and in.

TEST(BatchSession, ABlockThatIsReadContinuesAnotherSession) {
  Fixture one, two;
  Reader a = one.open(0);
  expect_step(*one.batch, one.texts, {&a}, {96});
  expect_step(*one.batch, one.texts, {&a}, {40});
  const BatchPlan& plan = one.batch->plan();
  std::vector<std::byte> block(static_cast<size_t>(plan.block_bytes));
  Reader b = two.open(0);
  for (int64_t g = 0; g < 2; ++g) {
    ASSERT_TRUE(one.batch->read_block(a.id, g, block).ok());
    const auto fill = [&](const BatchSession::BlockPart& part) -> Status {
      size_t at = 0;
      for (int64_t layer = 0; layer < 6; ++layer) {
        const auto to = part(layer);
        std::copy_n(block.begin() + static_cast<std::ptrdiff_t>(at), to.size(), to.begin());
        at += to.size();
      }
      return {};
    };
    const auto fails = [](const BatchSession::BlockPart&) { return error(Code::kIo, "gone"); };
    const auto tokens = two.texts.tokens(0, g * 64, 64);
    EXPECT_EQ(two.batch->append_block(b.id, tokens, fails).code(), Code::kIo);
    EXPECT_EQ(two.batch->length(b.id), g * 64);
    ASSERT_TRUE(two.batch->append_block(b.id, tokens, fill).ok());
    b.length += 64;
    EXPECT_EQ(two.batch->append_block(b.id, tokens.first(63), fill).code(), Code::kUsage);
  }
  expect_step(*two.batch, two.texts, {&b}, {80}, 9);
  EXPECT_EQ(one.batch->read_block(a.id, 2, block).code(), Code::kUsage);
  EXPECT_EQ(one.batch->read_block(a.id, 0, std::span(block).first(7)).code(), Code::kUsage);
  EXPECT_EQ(two.batch->append_block(b.id, two.texts.tokens(0, 0, 64), nullptr).code(),
            Code::kUsage);
}

}  // namespace
}  // namespace headrace
