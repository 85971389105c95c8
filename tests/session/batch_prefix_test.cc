// Prefix stores of batch sessions: what comes back is what was computed, by whomever.
#include "headrace/session/batch_prefix.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/session/batch_models.h"

namespace headrace {
namespace {

using test::BlockFolder;
using test::SmallModel;
using test::start_batch;
using test::Texts;

constexpr int64_t kLength = 700;
constexpr double kDear = 1;  // seconds to compute a token: reading it always pays

BatchOptions options() {
  BatchOptions o;
  o.places = 3;
  o.context = kLength;
  o.step_rows = 128;
  o.blocks = 9;
  return o;
}

struct Fixture {
  Fixture() : texts(*m.model, KvFormat::kF16, kLength, {0, 300}) {
    settings.folder = folder.folder();
    settings.label = "small";
  }
  // A session of its own, with the store.
  void begin() {
    prefix.reset();
    batch = start_batch(*m.model, options());
    ASSERT_NE(batch, nullptr);
    auto opened = BatchPrefix::open(*m.model, *batch, settings);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    prefix = std::move(*opened);
  }
  // Reads on to `end`; the last token's logits are those of a Session.
  void read(KvSequence s, size_t text, int64_t end) {
    for (int64_t at = batch->length(s); at < end; at = batch->length(s)) {
      const int64_t n = std::min<int64_t>(128, end - at);
      BatchSession::Part part{s, texts.tokens(text, at, n), 1};
      const auto logits = batch->step({&part, 1});
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      EXPECT_TRUE(texts.are(*logits, text, at + n - 1)) << at;
      ASSERT_TRUE(prefix->keep(s, texts.tokens(text, 0, at + n), kDear).ok());
    }
  }

  const SmallModel m{test::streamed_llama()};
  const Texts texts;
  const BlockFolder folder;
  PrefixSettings settings;
  std::unique_ptr<BatchSession> batch;
  std::unique_ptr<BatchPrefix> prefix;
};

TEST(BatchPrefix, TheNextRunGoesOnFromWhatThisOneRead) {
  Fixture f;
  f.begin();
  f.read(*f.batch->open(), 0, 600);
  ASSERT_TRUE(f.prefix->flush().ok());
  EXPECT_EQ(f.prefix->stats().written.entries, 2);
  f.begin();
  const KvSequence s = *f.batch->open(), other = *f.batch->open();
  EXPECT_EQ(*f.prefix->restore(s, f.texts.tokens(0, 0, 650)), 512);
  EXPECT_EQ(f.batch->length(s), 512);
  f.read(s, 0, 650);
  EXPECT_EQ(*f.prefix->restore(other, f.texts.tokens(1, 0, 650)), 256) << "alike for 300 tokens";
  f.read(other, 1, 650);
  ASSERT_TRUE(f.prefix->flush().ok());
  EXPECT_EQ(f.prefix->stats().written.entries, 1) << "the second block of the other text";
  EXPECT_TRUE(f.batch->cache().verify().ok());
}

TEST(BatchPrefix, BlocksComeOneByOneWithStepsOfOthersInBetween) {
  Fixture f;
  f.begin();
  f.read(*f.batch->open(), 0, 600);
  ASSERT_TRUE(f.prefix->flush().ok());
  f.begin();
  const KvSequence s = *f.batch->open(), other = *f.batch->open();
  const auto text = f.texts.tokens(0, 0, 650);
  EXPECT_EQ(f.prefix->restore_next(s, text), 0) << "nothing was looked up";
  EXPECT_EQ(*f.prefix->look_up(s, text), 2);
  EXPECT_EQ(f.batch->length(s), 0);
  EXPECT_EQ(f.prefix->restore_next(s, text), 1);
  EXPECT_EQ(f.batch->length(s), 256);
  f.read(other, 1, 100);
  EXPECT_EQ(f.prefix->restore_next(s, text), 0);
  EXPECT_EQ(f.batch->length(s), 512);
  f.read(s, 0, 650);
  f.read(other, 1, 200);
  // One that is read on, or cut, in between computes the rest.
  for (const int64_t length : {300, 192}) {
    const KvSequence changed = *f.batch->open();
    EXPECT_EQ(*f.prefix->look_up(changed, text), 2);
    EXPECT_EQ(f.prefix->restore_next(changed, text), 1);
    if (length > 256) f.read(changed, 0, length);
    else EXPECT_EQ(*f.batch->truncate(changed, length), length);
    EXPECT_EQ(f.prefix->restore_next(changed, text), 0);
    EXPECT_EQ(f.batch->length(changed), length);
    f.read(changed, 0, 650);
    f.prefix->forget(changed);
    ASSERT_TRUE(f.batch->close(changed).ok());
  }
  EXPECT_TRUE(f.batch->cache().verify().ok());
}

TEST(BatchPrefix, TheLastTokenIsComputedAndWhatIsHeldIsNotReadAgain) {
  Fixture f;
  f.begin();
  f.read(*f.batch->open(), 0, 512);
  ASSERT_TRUE(f.prefix->flush().ok());
  f.begin();
  const KvSequence s = *f.batch->open();
  EXPECT_EQ(*f.prefix->restore(s, f.texts.tokens(0, 0, 512)), 256);
  EXPECT_EQ(*f.prefix->restore(s, f.texts.tokens(0, 0, 513)), 512);
  EXPECT_EQ(*f.prefix->restore(s, f.texts.tokens(0, 0, 513)), 512);
  f.read(s, 0, 513);
  EXPECT_EQ(f.prefix->restore(s, f.texts.tokens(0, 0, 600)).status().code(), Code::kUsage);
}

TEST(BatchPrefix, ASequenceThatGoesAnotherWayKeepsWhatItHoldsNow) {
  Fixture f;
  f.begin();
  const KvSequence s = *f.batch->open();
  f.read(s, 0, 600);
  ASSERT_EQ(*f.batch->truncate(s, 256), 256);
  f.read(s, 1, 600);
  ASSERT_TRUE(f.prefix->flush().ok());
  EXPECT_EQ(f.prefix->stats().written.entries, 3);
  f.prefix->forget(s);
  f.begin();
  for (size_t text : {0, 1}) {
    const KvSequence again = *f.batch->open();
    EXPECT_EQ(*f.prefix->restore(again, f.texts.tokens(text, 0, 600)), 512);
    f.read(again, text, 600);
  }
}

TEST(BatchPrefix, SessionsAndBatchesFindEachOthersEntries) {
  Fixture f;
  SessionOptions o;
  o.context = kLength;
  o.prompt_tokens = kLength - 1;
  o.new_tokens = 1;
  o.chunk = 64;
  o.machine = Machine::defaults(1);
  o.memory_bytes = *least_memory(*f.m.model, o) + 64 * kMiB;
  const auto read_alone = [&](size_t text, int64_t restored) {
    const auto session = test::start_session(*f.m.model, o);
    auto prefix = SessionPrefix::open(*f.m.model, *session, f.settings);
    ASSERT_TRUE(prefix.ok()) << prefix.status().message();
    const auto all = f.texts.tokens(text, 0, 600);
    const auto held = (*prefix)->restore(all);
    ASSERT_TRUE(held.ok());
    if (restored >= 0) {
      EXPECT_EQ(*held, restored);
    }
    const auto logits = session->append(all.subspan(static_cast<size_t>(*held)));
    ASSERT_TRUE(logits.ok());
    EXPECT_TRUE(f.texts.are(*logits, text, 599));
    ASSERT_TRUE((*prefix)->finish(all).ok());
  };
  read_alone(0, 0);
  f.begin();
  const KvSequence s = *f.batch->open();
  // What a Session measured as its time may be too short for reading to pay: then it is computed.
  const auto held = f.prefix->restore(s, f.texts.tokens(0, 0, 600));
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(f.prefix->stats().hits, 1);
  EXPECT_EQ(f.prefix->stats().hit_tokens, 576) << "two blocks, and the end of a text";
  f.read(s, 0, 600);
  const KvSequence other = *f.batch->open();
  f.read(other, 1, 600);
  ASSERT_TRUE(f.prefix->flush().ok());
  f.prefix.reset();
  read_alone(1, 512);
}

TEST(BatchPrefix, WhereNoBlockIsFreeTheRestIsComputedLater) {
  Fixture f;
  f.begin();
  const KvSequence s = *f.batch->open(), second = *f.batch->open();
  f.read(s, 0, 600);
  f.read(second, 1, 600);
  ASSERT_TRUE(f.prefix->flush().ok());
  f.prefix.reset();
  BatchOptions o = options();
  o.blocks = 3;
  f.batch = start_batch(*f.m.model, o);
  auto opened = BatchPrefix::open(*f.m.model, *f.batch, f.settings);
  ASSERT_TRUE(opened.ok());
  f.prefix = std::move(*opened);
  const KvSequence a = *f.batch->open(), b = *f.batch->open();
  EXPECT_EQ(*f.prefix->restore(a, f.texts.tokens(0, 0, 600)), 512);
  EXPECT_EQ(*f.prefix->restore(b, f.texts.tokens(1, 0, 600)), 256);
  EXPECT_TRUE(f.batch->cache().verify().ok());
  ASSERT_TRUE(f.batch->close(a).ok());
  f.read(b, 1, 600);
}

TEST(BatchPrefix, BlocksOfAnotherSizeAreRefused) {
  Fixture f;
  BatchOptions o = options();
  o.block_tokens = 64;
  o.blocks = 40;
  f.batch = start_batch(*f.m.model, o);
  EXPECT_EQ(BatchPrefix::open(*f.m.model, *f.batch, f.settings).status().code(), Code::kUsage);
}

}  // namespace
}  // namespace headrace
