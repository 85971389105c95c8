// What a user sees of `headrace train`, `plan` of a training config and `export`.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// A byte-level model of 100K parameters that learns one text. Runs lie beside the program: the
// folder for temporary files may be in memory, where a run is refused.
class Train : public ::testing::Test {
 protected:
  Train() {
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 400; ++i) {
      text << "The licensee shall keep notice " << i * i << " intact.\n";
    }
    config_ = {{"name", "tiny"},
               {"model", {{"family", "llama"}, {"layers", 2}, {"hidden", 64}, {"heads", 4},
                          {"ffn", 128}, {"vocab", 256}, {"tied_embeddings", true}}},
               {"data", {{"files", {"text.txt"}}, {"tokenizer", "bytes"}}},
               {"optimizer", {{"rate", 3e-3}, {"clip_norm", 1}}},
               {"batch", 2}, {"sequence", 64}, {"steps", 12}, {"checkpoint_every", 4},
               {"out", "run"}};
  }

  std::string path(const std::string& name) const { return folder_ / name; }
  // Writes the config; the name of its file.
  std::string config(const Json& changes = {}) const {
    Json c = config_;
    if (!changes.is_null()) c.merge_patch(changes);
    std::ofstream(path("train.json")) << c.dump();
    return path("train.json");
  }
  Finished train(const Json& changes, std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {"train", config(changes), "--memory", "64MiB", "--threads",
                                     "2", "--no-profile"};
    args.insert(args.end(), more.begin(), more.end());
    return headrace(folder_, args);
  }
  std::vector<Json> metrics(const std::string& run) const {
    std::ifstream in(path(run + "/metrics.jsonl"));
    std::vector<Json> out;
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> out;
    for (const Json& line : metrics(run)) {
      if (line.contains("loss")) out.push_back(line["loss"]);
    }
    return out;
  }
  std::string state(const std::string& run, const std::string& step) const {
    return slurp(path(run + "/checkpoints/step-" + step + "/data"));
  }
  std::set<std::string> files() const {
    std::set<std::string> out;
    for (const auto& f : fs::directory_iterator(folder_.path())) {
      const std::string name = f.path().filename();
      if (name != "headrace" && name != "stdin" && name != "stdout" && name != "stderr") {
        out.insert(name);
      }
    }
    return out;
  }

  Folder folder_{HEADRACE_BINARY_DIR};
  Json config_;
};

TEST_F(Train, TheLossFallsAndTheReportSaysWhatTheRunTook) {
  const Finished f = train({{"steps", 30}}, {"--report", path("report.json")});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out, "");
  const Json r = Json::parse(slurp(path("report.json")));
  EXPECT_EQ(r["exit_reason"], "steps_done");
  EXPECT_EQ(r["budget_bytes"], 64 << 20);
  EXPECT_LE(r["peak_rss_bytes"], 64 << 20);
  EXPECT_GT(r["s_per_step"], 0);
  EXPECT_GT(r["cpu_s_per_step"], 0);
  const std::vector<double> seen = losses("run");
  ASSERT_EQ(seen.size(), 30u);
  EXPECT_EQ(r["losses"].get<std::vector<double>>(), seen);
  EXPECT_LT(seen.back(), 0.7 * seen.front());
  EXPECT_NE(f.err.find("step 30/30"), std::string::npos) << f.err;
  EXPECT_EQ(f.err.find('\r'), std::string::npos) << "progress belongs on terminals";
  EXPECT_EQ(slurp(path("run/metrics.html")).compare(0, 9, "<!doctype"), 0);
}

TEST_F(Train, TheItemsOfTheMemoryTableAddUpToTheBudget) {
  const Finished f = train({}, {"--report", path("report.json")});
  ASSERT_EQ(f.code, 0) << f.err;
  int64_t sum = 0;
  const Json report = Json::parse(slurp(path("report.json")));
  for (const auto& [name, bytes] : report["plan"]["memory"].items()) {
    sum += bytes.get<int64_t>();
    EXPECT_NE(f.err.find(name), std::string::npos) << name;
  }
  EXPECT_LE(sum, 64 << 20);
  EXPECT_NE(f.err.find("not needed"), std::string::npos) << f.err;
}

TEST_F(Train, ARunInTwoPartsIsTheRunInOne) {
  ASSERT_EQ(train({{"out", "whole"}}).code, 0);
  ASSERT_EQ(train({}, {"--steps", "5"}).code, 0);
  // At another budget and number of threads.
  const Finished second = headrace(folder_, {"train", config(), "--memory", "32MiB", "--threads",
                                             "1", "--resume", "--no-profile"});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(losses("run"), losses("whole"));
  const std::string end = state("whole", "00000012");
  ASSERT_FALSE(end.empty());
  EXPECT_TRUE(state("run", "00000012") == end);
}

TEST_F(Train, SigintFinishesTheStepSavesAndEndsWith130) {
  const std::string file = config({{"steps", 100000}, {"checkpoint_every", 0}});
  Process p(folder_, {"train", file, "--memory", "64MiB", "--report", path("report.json")});
  ASSERT_TRUE(p.wait_for_error("step 3/"));
  p.send(SIGINT);
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 130) << f.err;
  EXPECT_NE(f.err.find("--resume goes on"), std::string::npos) << f.err;
  const Json r = Json::parse(slurp(path("report.json")));
  EXPECT_EQ(r["exit_reason"], "cancelled");
  const int64_t done = r["steps"];
  ASSERT_GE(done, 3);
  const std::string to = std::to_string(done + 2);
  ASSERT_EQ(train({{"out", "whole"}}, {"--steps", to}).code, 0);
  ASSERT_EQ(train({}, {"--steps", to, "--resume"}).code, 0);
  EXPECT_EQ(losses("run"), losses("whole"));
}

TEST_F(Train, AKilledRunGoesOnFromItsCheckpointBitForBit) {
  ASSERT_EQ(train({{"out", "whole"}}, {"--steps", "60"}).code, 0);
  for (const char* at : {"step 7/", "step 21/", "step 42/"}) {
    Process p(folder_, {"train", config(), "--memory", "64MiB", "--steps", "60", "--resume"});
    ASSERT_TRUE(p.wait_for_error(at)) << at;
    p.send(SIGKILL);
    EXPECT_EQ(p.wait().signal, SIGKILL);
  }
  const Finished f = train({}, {"--steps", "60", "--resume"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(losses("run"), losses("whole"));
  EXPECT_TRUE(state("run", "00000060") == state("whole", "00000060"));
  EXPECT_EQ(files(), (std::set<std::string>{"run", "text.txt", "train.json", "whole"}));
}

TEST_F(Train, ADiskThatIsFullLeavesTheCheckpointBeforeAsItWas) {
  ASSERT_EQ(train({}, {"--steps", "4"}).code, 0);
  const std::string before = state("run", "00000004");
  Process::Options small;
  small.in_child = [] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};  // a checkpoint takes 1.2 MB
    ::setrlimit(RLIMIT_FSIZE, &limit);
  };
  const Finished f = Process(folder_, {"train", config(), "--memory", "64MiB", "--resume",
                                       "--no-profile"}, small).wait();
  EXPECT_EQ(f.code, 5) << f.err;
  EXPECT_NE(f.err.find("File too large"), std::string::npos) << f.err;
  EXPECT_TRUE(state("run", "00000004") == before);
  ASSERT_EQ(train({{"out", "whole"}}).code, 0);
  ASSERT_EQ(train({}, {"--resume"}).code, 0);
  EXPECT_TRUE(state("run", "00000012") == state("whole", "00000012"));
}

TEST_F(Train, ASecondProcessDoesNotTrainInTheSameFolderAtTheSameTime) {
  const std::string file = config({{"steps", 100000}, {"checkpoint_every", 0}});
  Process first(folder_, {"train", file, "--memory", "64MiB"});
  ASSERT_TRUE(first.wait_for_error("step 2/"));
  const Folder other(HEADRACE_BINARY_DIR);
  const Finished second = headrace(other, {"train", file, "--memory", "64MiB", "--resume"});
  EXPECT_EQ(second.code, 2);
  EXPECT_NE(second.err.find("another process is training in"), std::string::npos) << second.err;
  first.send(SIGINT);
  EXPECT_EQ(first.wait().code, 130);
}

TEST_F(Train, WhatWasTrainedIsExportedAndGeneratesTheText) {
  ASSERT_EQ(train({{"steps", 60}}).code, 0);
  const Finished e = headrace(folder_, {"export", path("run"), "-o", path("small.gguf")});
  ASSERT_EQ(e.code, 0) << e.err;
  const Finished f = headrace(folder_, {"run", path("small.gguf"), "--memory", "64MiB", "--prompt",
                                        "The licensee", "--tokens", "7"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find(" shall"), std::string::npos) << f.out;
}

TEST_F(Train, APlanOfAConfigStartsNothingAndLeavesNothing) {
  const std::set<std::string> before = {"text.txt", "train.json"};
  const std::string file = config();
  const Finished text = headrace(folder_, {"plan", file, "--memory", "64MiB", "--explain"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("activations"), std::string::npos) << text.out;
  EXPECT_EQ(files(), before);
  const Finished json = headrace(folder_, {"plan", file, "--memory", "64MiB", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json plan = Json::parse(json.out);
  EXPECT_EQ(plan["budget_bytes"], 64 << 20);
  EXPECT_GT(plan["predicted_s_per_step"], 0);
  EXPECT_EQ(files(), before);
  const Finished foreign = headrace(folder_, {"plan", file, "--context", "9"});
  EXPECT_EQ(foreign.code, 2);
  EXPECT_NE(foreign.err.find("--context is for models"), std::string::npos) << foreign.err;
}

// Which change, which exit code, what the message names.
struct BadConfig {
  const char* name;
  Json changes;
  std::vector<std::string> args;
  int code;
  const char* message;
};

TEST_F(Train, WhatCannotBeTrainedIsRefusedBeforeAnythingIsLeftBehind) {
  std::ofstream(path("empty.txt"));
  std::ofstream(path("short.txt")) << "abc";
  std::ofstream(path("binary.txt")) << std::string(500, '\0');
  const auto data = [](const char* file) { return Json{{"data", {{"files", {file}}}}}; };
  const auto optimizer = [](const Json& o) { return Json{{"optimizer", o}}; };
  const std::vector<BadConfig> all = {
      {"no such data", data("absent.txt"), {}, 5, "absent.txt"},
      {"empty data", data("empty.txt"), {}, 4, "empty.txt: the file is empty"},
      {"binary data", data("binary.txt"), {}, 4, "byte 0 is NUL"},
      {"too little data", data("short.txt"), {}, 4, "3 tokens"},
      {"small vocabulary", {{"model", {{"vocab", 100}}}}, {}, 4, "vocab is 100"},
      {"negative rate", optimizer({{"rate", -1}}), {}, 4, "'rate' is -1"},
      {"rate of text", optimizer({{"rate", "NaN"}}), {}, 4, "'rate' is not a number"},
      {"group of nothing", optimizer({{"groups", {{{"match", "zzz"}}}}}), {}, 2, "'zzz'"},
      {"unknown key", {{"optimiser", 1}}, {}, 4, "'optimiser'"},
      {"heads", {{"model", {{"heads", 5}}}}, {}, 4, "not a multiple of heads 5"},
      {"no model", {{"model", {{"from", "absent.gguf"}}}}, {}, 4, "from"},
      {"no steps", {{"steps", 0}}, {}, 4, "'steps' is 0"},
      {"small budget", {{"sequence", 1024}, {"batch", 8}}, {"--memory", "24MiB"}, 3,
       "\"batch\": 1 with \"accumulation\": 8"},
      {"no budget at all", {}, {"--memory", "1MiB"}, 3, "at least --memory"},
      {"report", {}, {"--report", path("absent/r.json")}, 5, "absent/r.json"},
  };
  const std::set<std::string> before = files();
  for (const BadConfig& bad : all) {
    std::vector<std::string> args = {"train", config(bad.changes), "--no-profile"};
    if (bad.args.empty() || bad.args[0] != "--memory") {
      args.insert(args.end(), {"--memory", "64MiB"});
    }
    args.insert(args.end(), bad.args.begin(), bad.args.end());
    const Finished f = headrace(folder_, args);
    EXPECT_EQ(f.code, bad.code) << bad.name << ": " << f.err;
    EXPECT_NE(f.err.find(bad.message), std::string::npos) << bad.name << ": " << f.err;
    fs::remove(path("train.json"));
    EXPECT_EQ(files(), before) << bad.name;
  }
}

TEST_F(Train, AFolderThatHoldsARunIsNotOverwrittenAndAnotherModelDoesNotGoOnWithIt) {
  ASSERT_EQ(train({}).code, 0);
  const std::string end = state("run", "00000012");
  const Finished again = train({});
  EXPECT_EQ(again.code, 2);
  EXPECT_NE(again.err.find("--resume"), std::string::npos) << again.err;
  const Finished other =
      train({{"model", {{"hidden", 128}}}}, {"--resume", "--steps", "20"});
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("[256, 64]"), std::string::npos) << other.err;
  EXPECT_TRUE(state("run", "00000012") == end);
  const Finished slower = train({{"optimizer", {{"rate", 1e-3}}}}, {"--resume"});
  EXPECT_EQ(slower.code, 0);
  EXPECT_NE(slower.err.find("has changed: optimizer\n"), std::string::npos) << slower.err;
  const Finished done = train({}, {"--resume"});
  EXPECT_EQ(done.err.find("has changed"), std::string::npos) << done.err;
  EXPECT_EQ(done.code, 0);
  EXPECT_NE(done.err.find("12 steps have been done"), std::string::npos) << done.err;
}

}  // namespace
}  // namespace headrace::testing
