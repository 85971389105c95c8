// Where a plan's machine comes from: a profile, a quick probe that is kept, learned kernels.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

constexpr const char* kStep = HEADRACE_SOURCE_DIR "/examples/planning/two_layers.json";

// Files of the quick probe in the cache of this test.
std::vector<std::filesystem::path> kept(const Folder& folder) {
  std::vector<std::filesystem::path> out;
  const std::filesystem::path cache = std::filesystem::path(folder.path()) / "headrace";
  if (!std::filesystem::exists(cache)) return out;
  for (const auto& entry : std::filesystem::directory_iterator(cache)) {
    if (entry.path().filename().string().rfind("quick-", 0) == 0) out.push_back(entry.path());
  }
  return out;
}

TEST(MachineOfAStep, IsAQuickProbeThatIsKeptAndNamedWithoutMachine) {
  const Folder folder;
  const Finished first = headrace(folder, {"plan", kStep, "--memory", "260MiB"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.out.find("quick probe"), std::string::npos) << first.out;
  ASSERT_EQ(kept(folder).size(), 1u);
  std::ifstream in(kept(folder)[0]);
  const Json machine = Json::parse(in, nullptr, false);
  ASSERT_TRUE(machine.is_object());
  EXPECT_TRUE(machine["sources"].contains("rates"));
  EXPECT_TRUE(machine["sources"].contains("tiers.file"));
  const Finished second = headrace(folder, {"plan", kStep, "--memory", "260MiB"});
  EXPECT_EQ(second.out, first.out) << "the same numbers, since they were kept";
}

TEST(MachineOfAStep, KeptNumbersThatAreNoMachineAreMeasuredAgain) {
  const Folder folder;
  ASSERT_EQ(headrace(folder, {"plan", kStep, "--memory", "260MiB"}).code, 0);
  ASSERT_EQ(kept(folder).size(), 1u);
  std::ofstream(kept(folder)[0]) << "{\"name\": \"torn";
  const Finished f = headrace(folder, {"plan", kStep, "--memory", "260MiB"});
  EXPECT_EQ(f.code, 0) << f.err;
  std::ifstream in(kept(folder)[0]);
  EXPECT_TRUE(Json::parse(in, nullptr, false).is_object());
}

TEST(MachineOfAStep, LearnsKernelsFromMeasuredWorkloads) {
  const Folder folder;
  const std::string trace = folder / "trace.json", machine = folder / "learned.json";
  std::ofstream(trace) << R"({"name": "t", "time_unit": "s", "kernels": [
      {"id": 0, "name": "Copy", "t": 0.001, "in": [0], "out": [1]},
      {"id": 1, "name": "Copy", "t": 0.002, "in": [2], "out": [3]}],
      "tensors": {
        "0": {"bytes": 1000000, "persistent": 1}, "1": {"bytes": 1000000, "persistent": 0},
        "2": {"bytes": 2000000, "persistent": 1}, "3": {"bytes": 2000000, "persistent": 0}}})";
  const Finished f =
      headrace(folder, {"probe", "--learn", trace, "--machine", "gh200", "-o", machine});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("left out"), std::string::npos) << f.out;
  std::ifstream in(machine);
  const Json j = Json::parse(in, nullptr, false);
  ASSERT_TRUE(j.is_object());
  EXPECT_EQ(j["kernels"]["Copy"]["samples"], 2);
  EXPECT_EQ(j["sources"]["kernels"], "learned from trace.json");
  // The example says FLOPs of its products and has no measured time: nothing to learn from them
  // alone.
  EXPECT_EQ(headrace(folder, {"probe", "--learn", kStep, "--machine", "gh200"}).code, 2);
  EXPECT_EQ(headrace(folder, {"plan", kStep, "--memory", "260MiB", "--machine", machine}).code, 0);
}

}  // namespace
}  // namespace headrace::testing
