// What a folder holds, by name, and which of its files are named bad.
#include "headrace/kv/prefix_list.h"

#include <gtest/gtest.h>

#include "tests/kv/prefix_files.h"
#include "tests/model/scratch.h"

namespace headrace {
namespace {

using testing::file_text;
using testing::put_all;
using testing::Scratch;
using testing::small_options;
using testing::tokens_of;
using testing::write_text;

// Two prompts that share their first 256 tokens, and a name.
void fill(const std::string& folder) {
  auto store = PrefixStore::open(folder, small_options());
  ASSERT_TRUE(store.ok());
  auto tokens = tokens_of(1, 700);
  put_all(**store, tokens);
  ASSERT_TRUE((*store)->save_name("talk", tokens).ok());
  tokens[300] ^= 1;
  put_all(**store, std::span(tokens).first(512));
  ASSERT_TRUE((*store)->flush().ok());
}

PrefixListing listed(const std::string& folder, bool verify) {
  auto list = list_prefixes(folder, verify, {});
  HR_CHECK(list.ok(), "the folder is read");
  return std::move(*list);
}

TEST(PrefixList, EntriesPromptsAndNamesAreListed) {
  const Scratch scratch(true);
  fill(scratch.folder());
  for (const bool verify : {false, true}) {
    const PrefixListing list = listed(scratch.folder(), verify);
    ASSERT_EQ(list.entries.size(), 4u);
    ASSERT_EQ(list.chains.size(), 2u);
    EXPECT_EQ(list.chains[0].tokens + list.chains[1].tokens, 640 + 512);
    EXPECT_EQ(list.entries[0].label, "tiny");
    EXPECT_TRUE(list.entries[0].reachable);
    ASSERT_EQ(list.names.size(), 1u);
    EXPECT_EQ(list.names[0].tokens, 700);
    EXPECT_EQ(list.names[0].kept_tokens, 640);
    EXPECT_EQ(list.entry_bytes, prefix_usage(scratch.folder())->bytes);
    EXPECT_TRUE(list.bad.empty());
  }
}

TEST(PrefixList, DamagedForeignAndTemporaryFilesAreNamed) {
  const Scratch scratch(true);
  fill(scratch.folder());
  const PrefixListing before = listed(scratch.folder(), true);
  std::string file;
  for (const ListedEntry& e : before.entries) {
    if (e.first == 0) file = prefix_path(scratch.folder(), e.hash);
  }
  std::string damaged = file_text(file);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);  // a zero behind the last layer
  write_text(file, damaged);
  write_text(scratch.path(std::string(32, '0') + ".kv"), "not an entry");
  write_text(scratch.path(std::string(32, '1') + ".kv.partial"), "half");
  write_text(scratch.path("holiday.jpg"), "a photo");
  write_text(scratch.path("broken.prefix"), "x");
  std::filesystem::create_directory(scratch.path(std::string(32, '2') + ".kv"));
  const PrefixListing list = listed(scratch.folder(), true);
  ASSERT_EQ(list.bad.size(), 3u);
  EXPECT_EQ(list.bad[0].why, "ends inside the header");
  EXPECT_EQ(list.temporary.size(), 1u);
  EXPECT_EQ(list.foreign, (std::vector<std::string>{std::string(32, '2') + ".kv", "holiday.jpg"}));
  ASSERT_EQ(list.entries.size(), 3u);
  for (const ListedEntry& e : list.entries) EXPECT_FALSE(e.reachable);
  EXPECT_TRUE(list.chains.empty());
  EXPECT_EQ(list.names[0].kept_tokens, 0);
  // Without reading every byte only what the headers say is known.
  EXPECT_EQ(listed(scratch.folder(), false).bad.size(), 2u);
}

TEST(PrefixList, PruningRemovesDamagedFilesThenLeavesAndNothingForeign) {
  const Scratch scratch(true);
  fill(scratch.folder());
  write_text(scratch.path(std::string(32, '0') + ".kv"), "not an entry");
  write_text(scratch.path("holiday.jpg"), "a photo");
  const Bytes entry = prefix_file_bytes(small_options().layout, kChainTokens);
  ASSERT_TRUE(evict_prefixes(scratch.folder(), 2 * entry, kMostPrefixEntries, {}).ok());
  const PrefixListing list = listed(scratch.folder(), true);
  EXPECT_TRUE(list.bad.empty());
  EXPECT_EQ(list.entries.size(), 2u);
  EXPECT_EQ(list.chains.size(), 1u);
  EXPECT_EQ(list.foreign.size(), 1u);
  EXPECT_EQ(evict_prefixes(scratch.folder(), 0, kMostPrefixEntries, {})->left.entries, 0);
  EXPECT_EQ(list_prefixes(scratch.path("none"), false, {}).status().code(), Code::kIo);
}

}  // namespace
}  // namespace headrace
