// A folder of the running test's own, removed when it ends.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace headrace::testing {

class Scratch {
 public:
  // In memory (where the system has /dev/shm) for tests that write thousands of files:
  // readers drop page cache behind them, and for a fresh file on a disk that waits for
  // the disk.
  explicit Scratch(bool in_memory = false) {
    const bool shm = in_memory && std::filesystem::is_directory("/dev/shm");
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = (shm ? "/dev/shm/" : ::testing::TempDir()) + "headrace_" +
              std::to_string(::getpid()) + "_" + test->test_suite_name() + "_" +
              test->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code ec;
    std::filesystem::remove_all(folder_, ec);
  }
  Scratch(const Scratch&) = delete;
  const std::string& folder() const { return folder_; }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

}  // namespace headrace::testing
