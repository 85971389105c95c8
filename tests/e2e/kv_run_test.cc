// What a user sees of `headrace run` when KV does not fit, and of a prefix store.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

class KvRun : public ::testing::Test {
 protected:
  void SetUp() override {
    write_streamed_model(folder_ / "model.gguf");
    std::filesystem::create_directory(folder_ / "kv");
    std::string text;
    for (int i = 0; i < 120; ++i) text += "Line " + std::to_string(i * i) + ". ";
    std::ofstream(folder_ / "prompt.txt") << text;
  }
  std::vector<std::string> args(std::vector<std::string> more) const {
    std::vector<std::string> out = {"run",      folder_ / "model.gguf", "--prompt-file",
                                    folder_ / "prompt.txt", "--ignore-eos", "--tokens", "16",
                                    "--context", "65536",  "--report", folder_ / "report.json"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  Json run(const std::vector<std::string>& more) const {
    const Finished f = headrace(folder_, args(more));
    EXPECT_EQ(f.code, 0) << f.err;
    return f.code == 0 ? Json::parse(slurp(folder_ / "report.json")) : Json();
  }
  // The least budget by its own word, in MiB.
  int least(const std::vector<std::string>& more) const {
    std::vector<std::string> all = args(more);
    all.insert(all.end(), {"--memory", "12MiB"});
    const Finished f = headrace(folder_, all);
    EXPECT_EQ(f.code, 3) << f.err;
    const size_t at = f.err.find("--memory ");
    return at == std::string::npos ? 0 : std::atoi(f.err.c_str() + at + 9);
  }
  std::string kv() const { return folder_ / "kv"; }

  Folder folder_;
};

TEST_F(KvRun, StaysInsideItsBudgetAndSaysTheSameAtEachOfThem) {
  for (const char* format : {"f16", "q8"}) {
    const std::vector<std::string> common = {"--kv", format, "--kv-dir", kv()};
    const int from = least(common);
    ASSERT_GT(from, 0);
    Json first;
    for (const int more : {1, 4, 16}) {
      std::vector<std::string> all = common;
      all.insert(all.end(), {"--memory", std::to_string(from + more) + "MiB"});
      const Json r = run(all);
      EXPECT_LE(r["peak_rss_bytes"], r["budget_bytes"]) << format << " " << from + more;
      EXPECT_GT(r["kv_stored_bytes"], 0) << "some of KV is on the disk";
      if (first.is_null()) first = r;
      EXPECT_EQ(r["tokens"], first["tokens"]) << format << " " << from + more;
    }
    EXPECT_TRUE(std::filesystem::is_empty(kv())) << "a scratch file is left";
  }
}

TEST_F(KvRun, ATextThatWasReadIsRestoredWithTheSameAnswerInsideTheBudget) {
  const std::string store = folder_ / "store";
  const std::vector<std::string> plain = {"--kv-dir", kv(), "--prefix-store", store, "--memory",
                                          "64MiB"};
  const Json before = run({"--kv-dir", kv(), "--memory", "64MiB"});
  const Json first = run(plain), second = run(plain);
  EXPECT_EQ(first["prefix_tokens"], 0);
  EXPECT_GE(second["prefix_tokens"], 256);
  EXPECT_EQ(first["tokens"], before["tokens"]);
  EXPECT_EQ(second["tokens"], before["tokens"]);
  EXPECT_LE(first["peak_rss_bytes"], first["budget_bytes"]);
  EXPECT_LE(second["peak_rss_bytes"], second["budget_bytes"]);
  // Damaged entries are as if they were not there.
  for (const auto& entry : std::filesystem::directory_iterator(store)) {
    if (entry.path().extension() != ".kv") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(9000);
    file.put('\x55');
  }
  const Json damaged = run(plain);
  EXPECT_EQ(damaged["tokens"], before["tokens"]);
}

TEST_F(KvRun, WhatCannotBeIsRefusedByName) {
  const auto refused = [&](std::vector<std::string> more, int code, const std::string& part) {
    const Finished f = headrace(folder_, args(std::move(more)));
    EXPECT_EQ(f.code, code) << f.err;
    EXPECT_NE(f.err.find(part), std::string::npos) << f.err;
  };
  refused({"--kv", "q5"}, 2, "f16, bf16, q8 or q4");
  refused({"--kv-dir", folder_ / "nowhere"}, 5, "nowhere");
  refused({"--prefix-store", folder_ / "s", "--prefix-limit", "much"}, 2, "--prefix-limit");
  refused({"--memory", "20MiB", "--kv-dir", "none"}, 3, "--context");
  if (std::filesystem::is_directory("/dev/shm")) refused({"--kv-dir", "/dev/shm"}, 2, "in memory");
}

}  // namespace
}  // namespace headrace::testing
