// plan of a step, sim, timeline, hotspots and whatif, from the command line.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

constexpr const char* kTiny = HEADRACE_SOURCE_DIR "/tests/data/models/llama.gguf";

constexpr const char* kWorkload = R"({"headrace_workload": 1, "name": "two layers", "tensors": [
 {"name": "w1", "bytes": 33554432, "persistent": true, "class": "weight"},
 {"name": "w2", "bytes": 33554432, "persistent": true, "class": "weight"},
 {"name": "x", "bytes": 67108864, "class": "input"},
 {"name": "a", "bytes": 67108864}, {"name": "y", "bytes": 67108864},
 {"name": "dy", "bytes": 67108864, "class": "gradient"},
 {"name": "da", "bytes": 67108864, "class": "gradient"}],
"ops": [
 {"name": "read", "kernel": "Input", "outputs": ["x"], "seconds": 0, "recompute": false},
 {"name": "layer1", "kernel": "F", "inputs": ["x", "w1"], "outputs": ["a"], "seconds": 0.004},
 {"name": "layer2", "kernel": "F", "inputs": ["a", "w2"], "outputs": ["y"], "seconds": 0.004},
 {"name": "loss", "kernel": "L", "inputs": ["y"], "outputs": ["dy"], "seconds": 0.0004},
 {"name": "back2", "kernel": "B", "inputs": ["a", "dy"], "outputs": ["da"], "updates": ["w2"], "seconds": 0.008},
 {"name": "back1", "kernel": "B", "inputs": ["x", "da"], "updates": ["w1"], "seconds": 0.008}]})";

class StepVerbs : public ::testing::Test {
 protected:
  StepVerbs() {
    std::ofstream(folder_ / "w.json") << kWorkload;
    std::ofstream(folder_ / "bad.json") << "{\"hello\": 1}";
  }
  void refused(std::vector<std::string> args, int code, const std::string& text) {
    const Finished f = headrace(folder_, args);
    EXPECT_EQ(f.code, code) << f.err;
    EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
    EXPECT_EQ(f.out, "");
  }
  std::string planned() {
    const std::string program = folder_ / "p.program";
    const Finished f = headrace(folder_, {"plan", folder_ / "w.json", "--memory", "256MiB",
                                          "--machine", "h200-pcie5", "-o", program});
    EXPECT_EQ(f.code, 0) << f.err;
    return program;
  }
  Folder folder_;
};

TEST_F(StepVerbs, PlanExplainsWritesAProgramAndAPage) {
  const std::string page = folder_ / "plan.html";
  const Finished f = headrace(folder_, {"plan", folder_ / "w.json", "--memory", "256MiB", "--machine",
                                        "h200-pcie5", "--explain", "--html", page});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("no plan is below"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("idle gap"), std::string::npos) << f.out;
  EXPECT_NE(slurp(page).find("headrace-data"), std::string::npos);
  const Json json = Json::parse(headrace(folder_, {"plan", folder_ / "w.json", "--memory", "256MiB",
                                                   "--machine", "h200-pcie5", "--json"}).out);
  EXPECT_EQ(json["fits"], true);
  EXPECT_LE(json["arena_bytes"], 256 << 20);
}

TEST_F(StepVerbs, WhatCannotFitIsRefusedWithACertificate) {
  refused({"plan", folder_ / "w.json", "--memory", "100MiB", "--machine", "h200-pcie5"}, 3,
          "the least budget is");
}

TEST_F(StepVerbs, AProgramIsPlayedDrawnAndRanked) {
  const std::string program = planned(), trace = folder_ / "t.json";
  const Finished sim =
      headrace(folder_, {"sim", program, "--noise", "0.25", "--seed", "3", "-o", trace, "--json"});
  ASSERT_EQ(sim.code, 0) << sim.err;
  EXPECT_GT(Json::parse(sim.out)["total_s"], 0);
  for (const std::string& input : {program, trace}) {
    const Finished drawn = headrace(folder_, {"timeline", input, "-o", folder_ / "t.html"});
    EXPECT_EQ(drawn.code, 0) << drawn.err;
    EXPECT_NE(slurp(folder_ / "t.html").find("<canvas"), std::string::npos);
    const Finished ranked = headrace(folder_, {"hotspots", input, "--json"});
    ASSERT_EQ(ranked.code, 0) << ranked.err;
    EXPECT_GT(Json::parse(ranked.out)["peak_bytes"], 0);
  }
  // The trace says what happened, not what would without noise.
  EXPECT_EQ(Json::parse(headrace(folder_, {"hotspots", trace, "--json"}).out)["total_s"],
            Json::parse(sim.out)["total_s"]);
}

TEST_F(StepVerbs, WhatifSweepsAndWritesCsv) {
  const Finished f = headrace(folder_, {"whatif", folder_ / "w.json", "--memory", "200MiB..400MiB:3",
                                        "--bandwidth", "10..40:3", "--machine", "h200-pcie5", "-o",
                                        folder_ / "w.csv"});
  ASSERT_EQ(f.code, 0) << f.err;
  const std::string csv = slurp(folder_ / "w.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 10);
}

TEST_F(StepVerbs, FilesOfAnotherKindAreNamed) {
  const std::string program = planned();
  refused({"hotspots", kTiny}, 4, "is a model; this wants a Program");
  refused({"timeline", folder_ / "w.json", "-o", folder_ / "t.html"}, 4,
          "is a workload or a step config; this wants a Program");
  refused({"sim", folder_ / "bad.json"}, 4, "bad.json is none of the files");
  refused({"plan", folder_ / "bad.json", "--memory", "1GiB"}, 4, "a step is JSON with");
  refused({"plan", program, "--memory", "1GiB"}, 4, "is a Program; this wants a model, a workload");
  refused({"whatif", program, "--memory", "1GiB"}, 4, "is a Program");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "t.html"));
}

TEST_F(StepVerbs, BadOptionsAreUsageErrorsAndMissingFilesIoErrors) {
  const std::string w = folder_ / "w.json";
  refused({"plan", w, "--memory", "1GiB", "--goal", "speed"}, 2, "fit, latency and throughput");
  refused({"plan", w, "--memory", "1GiB", "--machine", "nowhere"}, 2, "h200-pcie5");
  refused({"plan", w, "--memory", "1GiB", "--context", "5"}, 2, "--context is for models");
  refused({"plan", kTiny, "--explain"}, 2, "--explain is for steps");
  refused({"whatif", w, "--memory", "4GiB..1GiB"}, 2, "must ascend");
  refused({"whatif", w, "--memory", "1GiB", "--bandwidth", "0"}, 2, "is no bandwidth");
  refused({"plan", w, "--memory", "1GiB", "--tier", "device=" + (folder_ / ".")}, 2,
          "that is the device");
  refused({"sim", planned(), "--noise", "nan"}, 2, "is not a number from 0 to 0.999");
  refused({"sim", folder_ / "none"}, 5, "none");
  refused({"timeline", planned(), "-o", folder_ / "no/such/t.html"}, 5, "cannot write");
}

}  // namespace
}  // namespace headrace::testing
