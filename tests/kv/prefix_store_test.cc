// A folder of KV of long prompts: what is found, what is refused, what goes first.
#include "headrace/kv/prefix_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kv/prefix_files.h"
#include "tests/model/scratch.h"
#include "tests/train/file_faults.h"

namespace headrace {
namespace {

using testing::bytes_of;
using testing::FaultyCalls;
using testing::file_text;
using testing::names_in;
using testing::put_all;
using testing::Read;
using testing::read_back;
using testing::restored;
using testing::Scratch;
using testing::small_options;
using testing::tokens_of;
using testing::write_text;

std::unique_ptr<PrefixStore> opened(const std::string& folder,
                                    const PrefixOptions& options = small_options()) {
  auto store = PrefixStore::open(folder, options);
  HR_CHECK(store.ok(), store.status().message().c_str());
  return std::move(*store);
}

void saved(const std::string& folder, std::span<const int32_t> tokens) {
  const auto store = opened(folder);
  put_all(*store, tokens);
  ASSERT_TRUE(store->flush().ok());
}

Bytes whole_entry() { return prefix_file_bytes(small_options().layout, kChainTokens); }

TEST(PrefixStore, WhatIsReadEqualsWhatWasPutForRandomChains) {
  const Scratch scratch(true);
  SplitMix random(7);
  for (int i = 0; i < 60; ++i) {
    const auto tokens = tokens_of(random.next(), 64 + random.below(1500));
    const int64_t whole = round_down(static_cast<int64_t>(tokens.size()), kKvTile);
    {
      const auto store = opened(scratch.folder());
      EXPECT_EQ(store->lookup(tokens).tokens, 0);
      put_all(*store, tokens);
      ASSERT_TRUE(store->flush().ok());
      EXPECT_EQ(put_all(*store, tokens), PrefixPut::kThere);
    }
    const auto store = opened(scratch.folder());
    EXPECT_EQ(restored(*store, tokens), whole);
    // A prompt that leaves the chain finds what both have: whole entries of it.
    auto other = tokens;
    const auto at = static_cast<size_t>(random.below(other.size()));
    other[at] ^= 1;
    const auto same = static_cast<int64_t>(at);
    EXPECT_EQ(restored(*store, other), same < whole ? round_down(same, kChainTokens) : whole);
  }
}

TEST(PrefixStore, AShorterPromptFindsTheWholeEntriesItHas) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 768);
  saved(scratch.folder(), tokens);
  const auto store = opened(scratch.folder());
  EXPECT_EQ(restored(*store, std::span(tokens).first(767)), 512);
  EXPECT_EQ(restored(*store, std::span(tokens).first(255)), 0);
  EXPECT_EQ(store->stats().hits, 1);
  EXPECT_EQ(store->stats().misses, 1);
}

TEST(PrefixStore, LayersAreReadOneByOneOnAndOffPages) {
  const Scratch scratch;
  const auto tokens = tokens_of(1, 256);
  saved(scratch.folder(), tokens);
  const auto store = opened(scratch.folder());
  const PrefixEntry entry = store->lookup(tokens).entries.at(0);
  const auto memory = make_page_bytes(5 * kPage);
  const auto tiles = small_options().layout.tile_bytes;
  for (size_t layer = 0; layer < tiles.size(); ++layer) {
    const auto bytes = static_cast<size_t>(4 * tiles[layer]);
    for (const size_t shift : {0, 64}) {
      const std::span<std::byte> out(memory.get() + shift, bytes);
      ASSERT_TRUE(store->read_layer(entry, layer, out).ok());
      const auto want = bytes_of(entry.hash, layer, bytes);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), want.begin()));
    }
  }
}

TEST(PrefixStore, AnotherModelFormatSaltOrTileSizeFindsNothing) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 512);
  saved(scratch.folder(), tokens);
  PrefixOptions other = small_options();
  other.layout.model += 1;
  EXPECT_EQ(opened(scratch.folder(), other)->lookup(tokens).tokens, 0);
  other = small_options();
  other.layout.format = KvFormat::kQ4;
  EXPECT_EQ(opened(scratch.folder(), other)->lookup(tokens).tokens, 0);
  other = small_options();
  other.layout.salt = 9;
  EXPECT_EQ(opened(scratch.folder(), other)->lookup(tokens).tokens, 0);
  other = small_options();
  other.layout.tile_bytes[0] += 64;
  EXPECT_EQ(opened(scratch.folder(), other)->lookup(tokens).tokens, 0);
  EXPECT_EQ(restored(*opened(scratch.folder()), tokens), 512);
}

TEST(PrefixStore, AFlippedBitAnywhereIsAMissOrAffectsNothingAndVerifyNamesIt) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(3, 256);
  saved(scratch.folder(), tokens);
  const std::string path = scratch.path(names_in(scratch.folder()).at(0));
  const std::string whole = file_text(path);
  const auto buffer = make_page_bytes(4 * kMiB);
  const std::span<std::byte> room(buffer.get(), 4 * kMiB);
  ASSERT_TRUE(PrefixFile::open(path, true)->verify(room).ok());
  PrefixOptions reading = small_options();
  reading.staging_bytes = 0;  // what is damaged stays
  const auto store = opened(scratch.folder(), reading);
  // Every byte of the header's fields, tokens and records; of zeros and payload every 37th.
  for (size_t at = 0; at < whole.size(); at += at < 1400 ? 1 : 37) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    write_text(path, damaged);
    // The use record says only what goes first; zeros between layers are not used.
    const bool used = (at < kUseOffset || at >= kUseOffset + 16) && whole[at] != 0;
    const int64_t tokens_read = restored(*store, tokens);
    ASSERT_TRUE(tokens_read == 0 || (tokens_read == 256 && !used)) << at;
    const auto file = PrefixFile::open(path, true);
    ASSERT_FALSE(file.ok() && file->verify(room).ok()) << at;
  }
  write_text(path, whole);
  EXPECT_EQ(restored(*store, tokens), 256);
  EXPECT_GT(store->stats().corrupted, 1400);
}

TEST(PrefixStore, CutGrownEmptyForeignAndFutureFilesAreMissesAndAreReplaced) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(3, 512);
  saved(scratch.folder(), tokens);
  const std::string path = prefix_path(
      scratch.folder(), chain_next(opened(scratch.folder())->root(), std::span(tokens).first(256)));
  const std::string whole = file_text(path);
  std::string future = whole;
  future[8] = 2;
  const std::string second = file_text(scratch.path(names_in(scratch.folder()).at(0)) == path
                                           ? scratch.path(names_in(scratch.folder()).at(1))
                                           : scratch.path(names_in(scratch.folder()).at(0)));
  for (const std::string& text :
       {std::string(), whole.substr(0, 100), whole.substr(0, 4096), whole + "x",
        whole.substr(0, whole.size() - 1), std::string(20000, 'x'), std::string(20000, '\0'),
        future, second}) {
    write_text(path, text);
    const auto store = opened(scratch.folder());
    EXPECT_EQ(store->lookup(tokens).tokens, 0);
    put_all(*store, tokens);
    ASSERT_TRUE(store->flush().ok());
    EXPECT_EQ(restored(*store, tokens), 512);
  }
}

TEST(PrefixStore, ADamagedEntryIsRemovedWhenItIsMetAndKeptAgain) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(3, 256);
  saved(scratch.folder(), tokens);
  const std::string path = scratch.path(names_in(scratch.folder()).at(0));
  std::string damaged = file_text(path);
  damaged[9000] = static_cast<char>(damaged[9000] ^ 1);
  write_text(path, damaged);
  const auto store = opened(scratch.folder());
  EXPECT_EQ(restored(*store, tokens), 0);
  EXPECT_EQ(store->stats().corrupted, 1);
  EXPECT_TRUE(names_in(scratch.folder()).empty());
  EXPECT_EQ(put_all(*store, tokens), PrefixPut::kQueued);
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(restored(*store, tokens), 256);
}

TEST(PrefixStore, AnEntryThatIsGoneAfterTheLookUpIsAMiss) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(3, 256);
  saved(scratch.folder(), tokens);
  const auto store = opened(scratch.folder());
  const PrefixEntry entry = store->lookup(tokens).entries.at(0);
  std::filesystem::remove(prefix_path(scratch.folder(), entry.hash));
  EXPECT_EQ(read_back(*store, entry), Read::kMiss);
  EXPECT_EQ(store->stats().corrupted, 0);
}

TEST(PrefixStore, TheErrorOfWhoTakesTheBytesIsNoDamage) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(3, 256);
  saved(scratch.folder(), tokens);
  const auto store = opened(scratch.folder());
  const PrefixEntry entry = store->lookup(tokens).entries.at(0);
  const Status status =
      store->read(entry, [](size_t, std::span<const std::byte>) {
        return error(Code::kBadFile, "no");
      });
  EXPECT_EQ(status.message(), "no");
  EXPECT_EQ(store->stats().corrupted, 0);
  EXPECT_EQ(restored(*store, tokens), 256);
}

TEST(PrefixStore, LeavesOfLeastValueGoFirstAndNoEntryOutlivesItsParent) {
  const Scratch scratch(true);
  PrefixOptions options = small_options();
  options.limit_bytes = 6 * whole_entry() + whole_entry() / 2;
  const auto cheap = tokens_of(1, 768), dear = tokens_of(2, 768), next = tokens_of(3, 512);
  const auto store = opened(scratch.folder(), options);
  put_all(*store, cheap, 0.1);
  put_all(*store, dear, 1.0);
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(store->stats().written.evicted, 0);
  put_all(*store, next, 0.5);
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(store->stats().written.evicted, 2);
  EXPECT_EQ(restored(*store, cheap), 256);  // its last two went
  EXPECT_EQ(restored(*store, dear), 768);
  EXPECT_EQ(restored(*store, next), 512);
  EXPECT_LE(prefix_usage(scratch.folder())->bytes, options.limit_bytes);
}

TEST(PrefixStore, WhatNobodyReadsAgesHoweverDearItWas) {
  const Scratch scratch(true);
  PrefixOptions options = small_options();
  options.limit_bytes = 4 * whole_entry() + whole_entry() / 2;
  const auto store = opened(scratch.folder(), options);
  const auto dear = tokens_of(1, 256);
  put_all(*store, dear, 1.0);
  int64_t lived = 0;
  for (uint64_t i = 0; i < 40; ++i) {
    put_all(*store, tokens_of(100 + i, 256), 0.3);
    ASSERT_TRUE(store->flush().ok());
    if (store->lookup(dear).tokens > 0) lived = static_cast<int64_t>(i);
  }
  EXPECT_GT(lived, 4);   // longer than by the order of use alone
  EXPECT_LT(lived, 39);  // but not for ever
}

TEST(PrefixStore, AFolderOfTooManyFilesIsBroughtBelowItsMostAtOnceAndDamagedOnesGoFirst) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 768);
  saved(scratch.folder(), tokens);
  for (int64_t i = 0; i <= kMostPrefixEntries; ++i) {
    write_text(scratch.path(text_of("%032llx.kv", static_cast<unsigned long long>(i))), "");
  }
  const auto store = opened(scratch.folder());
  put_all(*store, tokens_of(2, 512));
  ASSERT_TRUE(store->flush().ok());
  // One look at them makes room for many: the second entry needed none.
  const PrefixWritten written = store->stats().written;
  EXPECT_EQ(written.entries, 2);
  EXPECT_EQ(written.evicted, kMostPrefixEntries / 32 + 4);
  EXPECT_EQ(prefix_usage(scratch.folder())->entries,
            kMostPrefixEntries - kMostPrefixEntries / 32 + 2);
  EXPECT_EQ(restored(*store, tokens), 768);
}

TEST(PrefixStore, APromptLargerThanTheLimitKeepsItsBeginning) {
  const Scratch scratch(true);
  PrefixOptions options = small_options();
  options.limit_bytes = 4 * whole_entry() + whole_entry() / 2;
  const auto tokens = tokens_of(1, 256 * 10);
  const auto store = opened(scratch.folder(), options);
  put_all(*store, tokens);
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(restored(*store, tokens), 256 * 4);
  EXPECT_EQ(store->stats().written.dropped, 6);
}

TEST(PrefixStore, WhatStagingHasNoRoomForIsDroppedAndCountedAndItsChildrenToo) {
  const Scratch scratch(true);
  PrefixOptions options = small_options();
  options.staging_bytes = whole_entry() - 1;
  const auto store = opened(scratch.folder(), options);
  const auto tokens = tokens_of(1, 512 + 64);
  put_all(*store, tokens);  // only the last, which is small, has room; its parent is not there
  EXPECT_TRUE(store->flush().ok());
  EXPECT_EQ(store->stats().written.dropped, 3);
  EXPECT_TRUE(names_in(scratch.folder()).empty());
}

TEST(PrefixStore, AFullDiskLeavesNothingHalfAndWhatIsThereIsRead) {
  const Scratch scratch(true);
  const auto first = tokens_of(1, 512), second = tokens_of(2, 512);
  saved(scratch.folder(), first);
  FaultyCalls faults;
  faults.fault = FaultyCalls::Fault::kDiskFull;
  const auto store = opened(scratch.folder());
  faults.at = faults.calls;
  put_all(*store, second);
  EXPECT_EQ(store->flush().code(), Code::kIo);
  EXPECT_NE(store->stats().not_writing.find("No space left"), std::string::npos);
  EXPECT_EQ(put_all(*store, second), PrefixPut::kDropped);
  EXPECT_EQ(names_in(scratch.folder()).size(), 2u);
  EXPECT_EQ(restored(*store, first), 512);
}

TEST(PrefixStore, ADiskThatRefusedIsTriedNowAndThenAndWritingGoesOnWhenItTakesAgain) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 512);
  const std::span<const int32_t> one = std::span(tokens).first(256);
  const auto store = opened(scratch.folder());
  FaultyCalls faults;
  faults.fault = FaultyCalls::Fault::kDiskFull;
  faults.at = 0;
  int tried = 0;
  for (int64_t i = 0; i < 1 + 10 * (kRefusalPause + 1); ++i) {
    tried += put_all(*store, one) == PrefixPut::kQueued;
    EXPECT_EQ(store->flush().code(), Code::kIo);
  }
  EXPECT_EQ(tried, 11);  // the first one, and one after each pause
  EXPECT_TRUE(names_in(scratch.folder()).empty());
  faults.fault = FaultyCalls::Fault::kNone;
  for (int64_t i = 0; i < kRefusalPause; ++i) {
    ASSERT_EQ(put_all(*store, one), PrefixPut::kDropped);
  }
  EXPECT_FALSE(store->stats().not_writing.empty());
  // Its parent is not there: nothing is learnt of the disk, so the next is tried at once.
  const auto nothing = [](size_t, std::span<std::byte>) { return Status(); };
  const ChainHash parent = chain_next(store->root(), one);
  ASSERT_EQ(*store->put(parent, 256, std::span(tokens).last(256), 1, nothing), PrefixPut::kQueued);
  EXPECT_FALSE(store->flush().ok());
  EXPECT_EQ(put_all(*store, tokens), PrefixPut::kQueued);
  EXPECT_TRUE(store->flush().ok());
  EXPECT_TRUE(store->stats().not_writing.empty());
  EXPECT_EQ(restored(*store, tokens), 512);
}

TEST(PrefixStore, EveryFileCallThatFailsIsAReasonOrAMissAndNothingHalf) {
  const auto tokens = tokens_of(1, 320);
  for (int at = 0; at < 24; ++at) {
    const Scratch scratch(true);
    FaultyCalls faults;
    faults.fault = FaultyCalls::Fault::kError;
    faults.at = at;
    auto store = PrefixStore::open(scratch.folder(), small_options());
    if (!store.ok()) continue;
    put_all(**store, tokens);
    (void)(*store)->flush();
    for (const std::string& name : names_in(scratch.folder())) EXPECT_TRUE(name.ends_with(".kv"));
    EXPECT_GE(restored(**store, tokens), 0);
  }
}

TEST(PrefixStore, AFolderThatCannotBeWrittenToIsRead) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 512);
  saved(scratch.folder(), tokens);
  FaultyCalls faults;
  faults.fault = FaultyCalls::Fault::kError;
  faults.at = 0;  // the lock file
  faults.reason = EROFS;
  const auto store = opened(scratch.folder());
  EXPECT_NE(store->stats().not_writing.find("only read"), std::string::npos);
  EXPECT_EQ(restored(*store, tokens), 512);
  EXPECT_EQ(put_all(*store, tokens_of(2, 512)), PrefixPut::kDropped);
  EXPECT_EQ(names_in(scratch.folder()).size(), 2u);
}

TEST(PrefixStore, LeftoversOfTheDeadGoAndThoseOfTheLivingStay) {
  const Scratch scratch(true);
  const std::string name(32, 'a');
  write_text(scratch.path(name + ".kv.partial"), "half");
  write_text(scratch.path("my.partial"), "not ours");
  auto living = AtomicFile::create(scratch.path(std::string(32, 'b') + ".kv"));
  ASSERT_TRUE(living.ok());
  (void)opened(scratch.folder());
  EXPECT_EQ(names_in(scratch.folder()),
            (std::vector<std::string>{std::string(32, 'b') + ".kv.partial", "my.partial"}));
}

TEST(PrefixStore, AKillWhileWritingNeverMakesAWrongHit) {
  const Scratch scratch;
  SplitMix random(5);
  int64_t found = 0;
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PrefixOptions options = small_options();
      options.limit_bytes = 20 * whole_entry();
      const auto store = opened(scratch.folder(), options);
      for (uint64_t i = 0;; ++i) {
        put_all(*store, tokens_of((static_cast<uint64_t>(round) + i) % 12, 1024 + 64));
        (void)store->flush();
      }
    }
    ::usleep(static_cast<useconds_t>(random.below(15000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto store = opened(scratch.folder());
    for (const std::string& name : names_in(scratch.folder())) ASSERT_TRUE(name.ends_with(".kv"));
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const int64_t tokens = restored(*store, tokens_of(seed, 1024 + 64));
      ASSERT_GE(tokens, 0) << round;
      found += tokens;
    }
    ASSERT_EQ(store->stats().corrupted, 0) << round;
  }
  EXPECT_GT(found, 0);
}

TEST(PrefixStore, ProcessesThatPutReadAndEvictAtOnceNeverReadWrongBytes) {
  const Scratch scratch(true);
  std::vector<pid_t> children;
  for (uint64_t process = 0; process < 4; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PrefixOptions options = small_options();
      options.limit_bytes = 12 * whole_entry();
      const auto store = opened(scratch.folder(), options);
      SplitMix random(process);
      bool right = true;
      int64_t found = 0;
      for (int i = 0; i < 150 && right; ++i) {
        const auto tokens = tokens_of(static_cast<uint64_t>(random.below(6)), 1024);
        const int64_t read = restored(*store, tokens);
        right = read >= 0;
        found += read;
        put_all(*store, tokens, 0.1 * random.unit());
        if (i % 8 == 0) (void)store->flush();
      }
      right = right && store->stats().corrupted == 0 && store->stats().not_writing.empty();
      ::_exit(right && found > 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  // N processes at most N/16 above the limit, and an entry each.
  EXPECT_LE(prefix_usage(scratch.folder())->bytes, 12 * whole_entry() * 5 / 4 + 4 * whole_entry());
}

TEST(PrefixStore, NamesBringBackTheirTokensForTheirModelOnly) {
  const Scratch scratch(true);
  const auto tokens = tokens_of(1, 777);
  const auto store = opened(scratch.folder());
  ASSERT_TRUE(store->save_name("talk-1", tokens).ok());
  EXPECT_EQ(*store->load_name("talk-1"), tokens);
  EXPECT_EQ(store->load_name("talk-2").status().code(), Code::kUsage);
  for (const char* name : {"", ".x", "a/b", "a b", "..", "\xc3\xa9"}) {
    EXPECT_EQ(store->save_name(name, tokens).code(), Code::kUsage) << name;
  }
  PrefixOptions other = small_options();
  other.layout.model = 5;
  EXPECT_EQ(opened(scratch.folder(), other)->load_name("talk-1").status().code(),
            Code::kUnsupported);
  const std::string path = scratch.path("talk-1.prefix");
  const std::string whole = file_text(path);
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 16);
    write_text(path, damaged);
    ASSERT_FALSE(store->load_name("talk-1").ok()) << at;
  }
}

TEST(PrefixStore, RestoringPaysWhenReadingIsFasterThanComputing) {
  PrefixHit hit;
  EXPECT_FALSE(restore_pays(hit, 1e9));
  hit.entries.resize(10);
  hit.tokens = 2560;
  hit.bytes = 100'000'000;
  hit.recompute_seconds = 0.11;
  EXPECT_TRUE(restore_pays(hit, 1e9));
  EXPECT_FALSE(restore_pays(hit, 1e9, 1e-3));
  EXPECT_FALSE(restore_pays(hit, 0.9e9));
  EXPECT_FALSE(restore_pays(hit, 0));
}

TEST(PrefixStore, LayoutsThatNoEntryHasAreRefused) {
  const Scratch scratch(true);
  PrefixOptions options = small_options();
  options.layout.tile_bytes.clear();
  EXPECT_EQ(PrefixStore::open(scratch.folder(), options).status().code(), Code::kUsage);
  options.layout.tile_bytes = {-1};
  EXPECT_EQ(PrefixStore::open(scratch.folder(), options).status().code(), Code::kUsage);
  write_text(scratch.path("file"), "x");
  EXPECT_EQ(PrefixStore::open(scratch.path("file"), small_options()).status().code(), Code::kIo);
}

}  // namespace
}  // namespace headrace
