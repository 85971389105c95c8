// What the system says about folders.
#include "headrace/base/system.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace headrace {
namespace {

TEST(Folders, SayWhetherTheyAreInMemoryAndWhatIsFree) {
  const auto disk = look_at_folder(HEADRACE_BINARY_DIR);
  ASSERT_TRUE(disk.ok()) << disk.status().message();
  EXPECT_GT(disk->free_bytes, 0);
  const auto memory = look_at_folder("/dev/shm");
  if (memory.ok()) EXPECT_TRUE(memory->in_memory);
  const auto nowhere = look_at_folder("/nowhere/at/all");
  EXPECT_EQ(nowhere.status().code(), Code::kIo);
  EXPECT_NE(nowhere.status().message().find("/nowhere/at/all"), std::string::npos);
}

TEST(Folders, ScratchGoesToTheFirstOneOnADisk) {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  const auto disk = look_at_folder(HEADRACE_BINARY_DIR);
  ASSERT_TRUE(disk.ok());
  ::setenv("TMPDIR", HEADRACE_BINARY_DIR, 1);
  if (!disk->in_memory) EXPECT_EQ(scratch_folder(), HEADRACE_BINARY_DIR);
  ::setenv("TMPDIR", "/nowhere/at/all", 1);
  EXPECT_NE(scratch_folder(), "/nowhere/at/all");
  if (before == nullptr) {
    ::unsetenv("TMPDIR");
  } else {
    ::setenv("TMPDIR", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace headrace
