// Sessions and a prefix store: what was read once is restored bit for bit, or computed as if there
// were no store.
#include "headrace/session/prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <thread>

#include "tests/kv/prefix_files.h"
#include "tests/session/small_models.h"
#include "tests/train/file_faults.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using test::same;
using test::SmallModel;
using testing::FaultyCalls;
using testing::file_text;
using testing::names_in;
using testing::write_text;
using Tokens = std::span<const int32_t>;

constexpr int64_t kVocab = 320;

// Beside the folder that the model lies in.
class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "headrace_prefix_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const std::string path_;
};

SessionOptions options_of(KvFormat format = KvFormat::kF16) {
  SessionOptions o;
  o.context = 2048;
  o.prompt_tokens = 700;
  o.new_tokens = 100;
  o.chunk = 64;
  o.kv_format = format;
  // A disk that is always worth reading from: no tile is computed in the 200 us of an entry.
  o.machine.tiers[1].load_bytes_per_s = 1e12;
  return o;
}

std::unique_ptr<Session> begin(const Model& model, SessionOptions o, Bytes above = 64 * kMiB) {
  const auto least = least_memory(model, o);
  EXPECT_TRUE(least.ok()) << least.status().message();
  o.memory_bytes = *least + above;
  auto session = test::start_session(model, o);
  HR_CHECK(session != nullptr, "a session starts");
  return session;
}

std::unique_ptr<SessionPrefix> store_of(const Model& model, Session& session,
                                        const std::string& folder, Bytes limit = 0) {
  auto prefix = SessionPrefix::open(model, session, {folder, "small", limit});
  HR_CHECK(prefix.ok(), prefix.status().message().c_str());
  return std::move(*prefix);
}

// Reads what the session does not hold of `tokens`, keeping after each step; the last logits.
std::vector<float> read(Session& session, SessionPrefix& prefix, Tokens tokens) {
  session.on_step([&](int64_t) {
    const Status kept = prefix.keep(tokens);
    EXPECT_TRUE(kept.ok()) << kept.message();
  });
  auto out = test::logits_of(session, tokens.subspan(static_cast<size_t>(session.position())));
  session.on_step(nullptr);
  return out;
}

struct Answer {
  int64_t restored = 0;
  std::vector<float> logits;
  PrefixStats stats;
};
// A session of its own: restores, reads, keeps all.
Answer answer(const Model& model, const SessionOptions& o, const std::string& folder, Tokens tokens,
              Bytes limit = 0) {
  const auto session = begin(model, o);
  const auto prefix = store_of(model, *session, folder, limit);
  Answer out;
  const auto restored = prefix->restore(tokens);
  EXPECT_TRUE(restored.ok()) << restored.status().message();
  out.restored = restored.ok() ? *restored : -1;
  EXPECT_EQ(session->position(), out.restored);
  out.logits = read(*session, *prefix, tokens);
  EXPECT_TRUE(prefix->finish(tokens).ok());
  out.stats = prefix->stats();
  return out;
}

std::vector<float> computed(const Model& model, const SessionOptions& o, Tokens tokens) {
  return test::logits_of(*begin(model, o), tokens);
}

Tokens first(const std::vector<int32_t>& tokens, size_t n) { return Tokens(tokens).first(n); }

// `a` for `n` tokens, then `b` from there on.
std::vector<int32_t> joined(const std::vector<int32_t>& a, size_t n,
                            const std::vector<int32_t>& b) {
  std::vector<int32_t> out(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n));
  out.insert(out.end(), b.begin() + static_cast<std::ptrdiff_t>(n), b.end());
  return out;
}

class PrefixSession : public ::testing::TestWithParam<KvFormat> {};

TEST_P(PrefixSession, ARestoredBeginningHasTheBitsOfAComputedOne) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of(GetParam());
  const auto tokens = test::prompt_of(700, kVocab);
  const auto want = computed(*m.model, o, tokens);
  const Answer fresh = answer(*m.model, o, folder / "store", tokens);
  EXPECT_EQ(fresh.restored, 0);
  EXPECT_TRUE(same(fresh.logits, want));
  EXPECT_EQ(fresh.stats.written.entries, 3) << fresh.stats.not_writing;
  for (const int64_t chunk : {1, 64, 512}) {
    SessionOptions other = o;
    other.chunk = chunk;
    const Answer again = answer(*m.model, other, folder / "store", tokens);
    EXPECT_EQ(again.restored, 640) << chunk;
    EXPECT_TRUE(same(again.logits, want)) << chunk;
    EXPECT_EQ(again.stats.hits, 1);
    EXPECT_EQ(again.stats.hit_tokens, 640);
  }
}

TEST_P(PrefixSession, WhatOneReadInMemoryAnotherRestoresToADiskAndTheOtherWayRound) {
  const Folder folder;
  std::filesystem::create_directory(folder / "kv");
  const SmallModel m(test::streamed_llama());
  SessionOptions in_memory = options_of(GetParam()), moved = in_memory;
  moved.context = 65536;
  moved.segment_tokens = 128;
  moved.kv_folder = folder / "kv";
  const auto tokens = test::prompt_of(700, kVocab), other = test::prompt_of(700, kVocab, 4);
  const auto ask = [&](const SessionOptions& o, Tokens asked) {
    const auto session = begin(*m.model, o, 2 * kMiB);
    EXPECT_EQ(session->plan().kv_streamed, !o.kv_folder.empty());
    const auto prefix = store_of(*m.model, *session, folder / "store");
    Answer out;
    out.restored = prefix->restore(asked).value();
    out.logits = read(*session, *prefix, asked);
    EXPECT_TRUE(prefix->finish(asked).ok());
    return out;
  };
  const Answer a = ask(in_memory, tokens), b = ask(moved, tokens);
  EXPECT_EQ(b.restored, 640);
  EXPECT_TRUE(same(a.logits, b.logits));
  const Answer c = ask(moved, other), d = ask(in_memory, other);
  EXPECT_EQ(c.restored, 0);
  EXPECT_EQ(d.restored, 640);
  EXPECT_TRUE(same(c.logits, d.logits));
  EXPECT_TRUE(same(d.logits, computed(*m.model, in_memory, other)));
}

INSTANTIATE_TEST_SUITE_P(Formats, PrefixSession,
                         ::testing::Values(KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8,
                                           KvFormat::kQ4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(PrefixSessionWindow, IsKeptStepByStepWhileTheWindowPassesAndRestored) {
  const Folder folder;
  const SmallModel m(test::streamed_gemma3_q4k());
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kQ8}) {
    const SessionOptions o = options_of(format);
    const auto tokens = test::prompt_of(1000, kVocab);
    const auto want = computed(*m.model, o, tokens);
    const Answer fresh = answer(*m.model, o, folder / "store", tokens);
    EXPECT_EQ(fresh.restored, 0);
    EXPECT_TRUE(same(fresh.logits, want));
    const Answer again = answer(*m.model, o, folder / "store", tokens);
    EXPECT_EQ(again.restored, 960);
    EXPECT_TRUE(same(again.logits, want));
    // A beginning that ends where the window of what was read since has long passed.
    const Answer part = answer(*m.model, o, folder / "store", first(tokens, 300));
    EXPECT_EQ(part.restored, 256);
    EXPECT_TRUE(same(part.logits, computed(*m.model, o, first(tokens, 300))));
  }
}

TEST(PrefixSessionWindow, WhatTheWindowHasPassedIsNotKeptAndNothingWrongInItsPlace) {
  const Folder folder;
  const SmallModel m(test::streamed_gemma3_q4k());
  const SessionOptions o = options_of();
  const auto tokens = test::prompt_of(1000, kVocab);
  {
    const auto session = begin(*m.model, o);
    const auto prefix = store_of(*m.model, *session, folder / "store");
    test::logits_of(*session, tokens);
    EXPECT_FALSE(session->holds_kv(0));
    ASSERT_TRUE(prefix->finish(tokens).ok());
    EXPECT_EQ(prefix->stats().written.entries, 0);
  }
  const Answer again = answer(*m.model, o, folder / "store", tokens);
  EXPECT_EQ(again.restored, 0);
  EXPECT_TRUE(same(again.logits, computed(*m.model, o, tokens)));
}

TEST(PrefixSession, APromptThatLeavesTheOtherFindsTheWholeEntriesOfBoth) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of();
  const auto tokens = test::prompt_of(900, kVocab), end = test::prompt_of(900, kVocab, 77);
  answer(*m.model, o, folder / "store", tokens);
  for (const auto& [common, restored] : std::vector<std::pair<size_t, int64_t>>{
           {600, 512}, {300, 256}, {512, 512}, {511, 256}, {255, 0}, {0, 0}}) {
    const auto other = joined(tokens, common, end);
    const Answer got = answer(*m.model, o, folder / "store", first(other, 800));
    EXPECT_EQ(got.restored, restored) << common;
    EXPECT_TRUE(same(got.logits, computed(*m.model, o, first(other, 800)))) << common;
    std::filesystem::remove_all(folder / "store");
    answer(*m.model, o, folder / "store", tokens);
  }
}

TEST(PrefixSession, TheEndIsKeptDownToATileAndTheLastTokenIsAlwaysComputed) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of();
  const auto tokens = test::prompt_of(900, kVocab);
  int i = 0;
  for (const auto& [read, then, restored] : std::vector<std::tuple<size_t, size_t, int64_t>>{
           {63, 900, 0},    {64, 900, 64},   {127, 900, 64},  {330, 900, 320}, {449, 900, 448},
           {330, 330, 320}, {320, 320, 256}, {512, 512, 256}, {64, 64, 0},     {513, 513, 512}}) {
    const std::string store = folder / std::to_string(i++);
    answer(*m.model, o, store, first(tokens, read));
    const Answer got = answer(*m.model, o, store, first(tokens, then));
    EXPECT_EQ(got.restored, restored) << read << ", then " << then;
    EXPECT_TRUE(same(got.logits, computed(*m.model, o, first(tokens, then)))) << read;
  }
}

TEST(PrefixSession, WhatTheContextHasNoRoomForIsNotRestored) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const auto tokens = test::prompt_of(1000, kVocab);
  answer(*m.model, options_of(), folder / "store", tokens);
  for (const auto& [context, restored] :
       std::vector<std::pair<int64_t, int64_t>>{{512, 256}, {600, 512}, {256, 0}, {70, 0}}) {
    SessionOptions o = options_of();
    o.context = context;
    o.prompt_tokens = context - 1;
    o.new_tokens = 1;
    const auto session = begin(*m.model, o);
    const auto prefix = store_of(*m.model, *session, folder / "store");
    const auto there = prefix->restore(tokens);
    ASSERT_TRUE(there.ok()) << there.status().message();
    EXPECT_EQ(*there, restored) << context;
    // The rest is refused as ever, and what has room goes on.
    const auto rest = Tokens(tokens).subspan(static_cast<size_t>(*there));
    EXPECT_EQ(session->append(rest).status().code(), Code::kUsage);
    const auto fits = first(tokens, static_cast<size_t>(context));
    EXPECT_TRUE(same(read(*session, *prefix, fits), computed(*m.model, options_of(), fits)));
  }
}

TEST(PrefixSession, AnotherModelOrFormatNeverHits) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  testing::TinyShape shape = test::streamed_llama();
  shape.seed = 5;
  test::write_model(shape, folder / "other.gguf");
  const auto other = load_model(folder / "other.gguf");
  ASSERT_TRUE(other.ok());
  const auto tokens = test::prompt_of(600, kVocab);
  answer(*m.model, options_of(), folder / "store", tokens);
  const Answer others = answer(**other, options_of(), folder / "store", tokens);
  EXPECT_EQ(others.restored, 0);
  EXPECT_TRUE(same(others.logits, computed(**other, options_of(), tokens)));
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4}) {
    const SessionOptions o = options_of(format);
    const Answer got = answer(*m.model, o, folder / "store", tokens);
    EXPECT_EQ(got.restored, 0) << name_of(format);
    EXPECT_TRUE(same(got.logits, computed(*m.model, o, tokens))) << name_of(format);
  }
  // All of them lie side by side.
  EXPECT_EQ(answer(*m.model, options_of(), folder / "store", tokens).restored, 576);
  EXPECT_EQ(answer(**other, options_of(), folder / "store", tokens).restored, 576);
}

TEST(PrefixSession, DamagedAndCutEntriesAreComputedAndKeptAgain) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of(KvFormat::kQ8);
  const auto tokens = test::prompt_of(700, kVocab);
  const Answer fresh = answer(*m.model, o, folder / "store", tokens);
  const std::string store = folder / "store";
  const auto names = names_in(store);
  ASSERT_EQ(names.size(), 3u);
  SplitMix random(3);
  for (int i = 0; i < 24; ++i) {
    const std::string path = store + "/" + names[static_cast<size_t>(i % 3)];
    std::string text = file_text(path);
    const auto at = static_cast<size_t>(random.below(static_cast<int32_t>(text.size())));
    if (i % 4 == 3) {
      text.resize(at);
    } else {
      // Any byte, of headers and zeros between layers too.
      text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
    }
    write_text(path, text);
    const Answer got = answer(*m.model, o, store, tokens);
    ASSERT_TRUE(same(got.logits, fresh.logits)) << i << " byte " << at;
    ASSERT_EQ(names_in(store), names) << i;
    const Answer after = answer(*m.model, o, store, tokens);
    EXPECT_EQ(after.restored, 640) << "what was damaged is kept again, " << i << " byte " << at;
    ASSERT_TRUE(same(after.logits, fresh.logits)) << i;
  }
}

TEST(PrefixSession, AStoreThatIsReadOnlyIsReadAndOneThatIsFullChangesNothing) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of();
  const auto tokens = test::prompt_of(500, kVocab), other = test::prompt_of(500, kVocab, 8);
  const Answer fresh = answer(*m.model, o, folder / "store", tokens);
  const auto names = names_in(folder / "store");
  {
    FaultyCalls faults;
    faults.fault = FaultyCalls::Fault::kError;
    faults.at = 0;  // the lock file
    faults.reason = EROFS;
    const Answer got = answer(*m.model, o, folder / "store", tokens);
    EXPECT_EQ(got.restored, 448);
    EXPECT_TRUE(same(got.logits, fresh.logits));
    EXPECT_THAT(got.stats.not_writing, HasSubstr("only read"));
  }
  const auto want = computed(*m.model, o, other);
  {
    FaultyCalls faults;
    faults.fault = FaultyCalls::Fault::kDiskFull;
    faults.at = 0;
    const Answer got = answer(*m.model, o, folder / "store", other);
    EXPECT_EQ(got.restored, 0);
    EXPECT_TRUE(same(got.logits, want));
    EXPECT_THAT(got.stats.not_writing, HasSubstr("No space left"));
  }
  EXPECT_EQ(names_in(folder / "store"), names) << "nothing half is left";
  // A limit that is smaller than an entry.
  const Answer limited = answer(*m.model, o, folder / "none", other, 64 * kKiB);
  EXPECT_TRUE(same(limited.logits, want));
  EXPECT_EQ(limited.stats.written.entries, 0);
  EXPECT_GT(limited.stats.written.dropped, 0);
}

TEST(PrefixSession, AStepOfManyEntriesIsKeptWholeInTheEnd) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  SessionOptions o = options_of();
  o.chunk = 2048;  // eight entries at once, and three may wait
  o.prompt_tokens = 2000;
  const auto tokens = test::prompt_of(2000, kVocab);
  const Answer fresh = answer(*m.model, o, folder / "store", tokens);
  const Answer again = answer(*m.model, o, folder / "store", tokens);
  EXPECT_EQ(again.restored, 1984);
  EXPECT_TRUE(same(again.logits, fresh.logits));
}

// A conversation goes back and is said otherwise.
TEST(PrefixSession, ASessionThatGoesBackKeepsWhatItHoldsAndNotWhatItHeld) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of();
  const auto a = test::prompt_of(1000, kVocab), b = test::prompt_of(1000, kVocab, 21);
  for (const size_t back : {700u, 300u, 100u, 0u}) {
    std::filesystem::remove_all(folder / "store");
    const auto said = joined(a, back, b);
    {
      const auto session = begin(*m.model, o);
      const auto prefix = store_of(*m.model, *session, folder / "store");
      ASSERT_EQ(*prefix->restore(a), 0);
      read(*session, *prefix, first(a, 900));
      session->rewind(static_cast<int64_t>(back));
      read(*session, *prefix, first(said, 950));
      ASSERT_TRUE(prefix->finish(first(said, 950)).ok());
    }
    // What was held, what is held, and what never was: the first of one, the end of the other.
    for (const auto& tokens : {a, said, joined(a, 512, said), joined(said, 512, a),
                               joined(a, 768, b), joined(b, 256, said)}) {
      const auto asked = first(tokens, 990);
      std::filesystem::remove_all(folder / "copy");
      std::filesystem::copy(folder / "store", folder / "copy");
      const Answer got = answer(*m.model, o, folder / "copy", asked);
      ASSERT_TRUE(same(got.logits, computed(*m.model, o, asked))) << back;
      EXPECT_TRUE(tokens != said || got.restored == 896) << back << ": " << got.restored;
    }
  }
}

TEST(PrefixSession, SessionsThatShareAStoreAtOnceAllComputeTheSame) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of(KvFormat::kQ8);
  const auto a = test::prompt_of(700, kVocab), b = joined(a, 512, test::prompt_of(700, kVocab, 2));
  const auto want_a = computed(*m.model, o, a), want_b = computed(*m.model, o, b);
  const auto work = [&](bool which, std::atomic<int>* wrong) {
    for (int i = 0; i < 4; ++i) {
      const Answer got = answer(*m.model, o, folder / "store", which ? a : b);
      if (!same(got.logits, which ? want_a : want_b)) ++*wrong;
      which = !which;
    }
  };
  std::atomic<int> wrong = 0;
  std::thread one(work, false, &wrong), two(work, true, &wrong);
  one.join();
  two.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(answer(*m.model, o, folder / "store", a).restored, 640);
  EXPECT_EQ(answer(*m.model, o, folder / "store", b).restored, 640);
}

// Entries go between what is looked up and what is read, and while others are written behind.
TEST(PrefixSession, WhatIsEvictedMeanwhileIsComputed) {
  const Folder folder;
  const SmallModel m(test::streamed_llama());
  const SessionOptions o = options_of(KvFormat::kQ8);
  const auto a = test::prompt_of(700, kVocab), b = joined(a, 300, test::prompt_of(700, kVocab, 2));
  const auto want_a = computed(*m.model, o, a), want_b = computed(*m.model, o, b);
  const std::string store = folder / "store";
  answer(*m.model, o, store, a);
  std::atomic<bool> done = false;
  std::thread evictor([&] {
    SplitMix random(6);
    while (!done) {
      const auto lock = FileLock::take(prefix_lock_path(store), true);
      if (lock.ok()) {
        (void)evict_prefixes(store, random.below(3) * 200 * kKiB, random.below(4), {});
      }
    }
  });
  for (int i = 0; i < 12; ++i) {
    const Answer got = answer(*m.model, o, store, i % 2 == 0 ? a : b);
    EXPECT_TRUE(same(got.logits, i % 2 == 0 ? want_a : want_b)) << i;
    EXPECT_EQ(got.stats.corrupted, 0);
  }
  done = true;
  evictor.join();
}

}  // namespace
}  // namespace headrace
