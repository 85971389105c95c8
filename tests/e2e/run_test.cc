// What a user sees of `headrace run`: text, report, budget, interruptions.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "headrace/cost/machine.h"
#include "tests/e2e/model.h"
#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

class Run : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new Folder;
    write_streamed_model(*shared_ / "model.gguf");
  }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }

  static std::string model() { return *shared_ / "model.gguf"; }
  std::vector<std::string> args(std::vector<std::string> more) const {
    std::vector<std::string> out = {"run", model(), "--prompt", "The quick brown fox",
                                    "--ignore-eos"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  Json report() const { return Json::parse(slurp(folder_ / "report.json")); }
  std::string report_path() const { return folder_ / "report.json"; }

  static Folder* shared_;
  Folder folder_;
};
Folder* Run::shared_ = nullptr;

TEST_F(Run, StdoutHoldsOnlyTheTextThatTheReportHolds) {
  const Finished f = headrace(
      folder_, args({"--memory", "24MiB", "--tokens", "24", "--report", report_path()}));
  ASSERT_EQ(f.code, 0) << f.err;
  const Json r = report();
  EXPECT_EQ(f.out, r["text"].get<std::string>());
  EXPECT_EQ(r["tokens"].size(), 24u);
  EXPECT_EQ(r["exit_reason"], "length");
  EXPECT_EQ(r["exit_code"], 0);
  EXPECT_NE(f.err.find("weights, resident"), std::string::npos);
  EXPECT_NE(f.err.find("budget"), std::string::npos);
  EXPECT_EQ(f.err.find('\r'), std::string::npos) << "progress belongs on terminals";
  EXPECT_EQ(f.err.find('\x1b'), std::string::npos) << "colours belong on terminals";
}

TEST_F(Run, NoLineOfThePlanTableIsWiderThan80Columns) {
  const Finished f = headrace(folder_, args({"--memory", "24MiB", "--tokens", "2"}));
  std::istringstream lines(f.err);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(Run, TheReportHasEveryKeyThatIsPromised) {
  const Finished f = headrace(
      folder_, args({"--memory", "24MiB", "--tokens", "8", "--report", report_path()}));
  ASSERT_EQ(f.code, 0) << f.err;
  const Json r = report();
  for (const char* key : {"budget_bytes",
                          "peak_rss_bytes",
                          "model_bytes",
                          "resident_bytes",
                          "streamed_bytes_per_token",
                          "read_bytes_per_token",
                          "loaded_bytes_per_token",
                          "gathered_bytes_per_token",
                          "prefill_tokens_per_s",
                          "decode_tokens_per_s",
                          "decode_seconds_total",
                          "bound_tokens_per_s",
                          "bound_source",
                          "stall_fraction",
                          "time_to_first_token_s",
                          "tokens",
                          "text",
                          "exit_reason",
                          "exit_code",
                          "context",
                          "chunk",
                          "tier_method",
                          "threads",
                          "version"}) {
    EXPECT_TRUE(r.contains(key)) << key;
  }
  for (const char* key : {"ledger", "decode", "prefill", "machine"}) {
    EXPECT_TRUE(r["plan"].contains(key)) << key;
  }
  int64_t reserved = 0;
  for (const Json& item : r["plan"]["ledger"]) reserved += item["bytes"].get<int64_t>();
  EXPECT_LE(reserved, r["budget_bytes"].get<int64_t>());
}

TEST_F(Run, MemoryAndTextAreRightAtEveryBudget) {
  std::string text;
  for (const int mib : {17, 18, 20, 24, 28, 32, 40, 48, 64, 128, 200}) {
    const std::string budget = std::to_string(mib) + "MiB";
    const Finished f = headrace(
        folder_, args({"--memory", budget, "--tokens", "24", "--report", report_path()}));
    ASSERT_EQ(f.code, 0) << budget << ": " << f.err;
    const Json r = report();
    EXPECT_LE(r["peak_rss_bytes"], r["budget_bytes"]) << budget;
    if (r["steady_steps"] > 0) {
      EXPECT_EQ(r["loaded_bytes_per_token"], r["streamed_bytes_per_token"]) << budget;
    }
    if (text.empty()) text = f.out;
    EXPECT_EQ(f.out, text) << budget;
  }
}

TEST_F(Run, TextDoesNotDependOnChunkOrThreads) {
  const std::string prompt(100, 'x');
  std::string text;
  for (const char* chunk : {"1", "7", "64", "512"}) {
    for (const char* threads : {"1", "2", "3"}) {
      const Finished f = headrace(
          folder_, {"run", model(), "--memory", "64MiB", "--prompt", prompt, "--tokens",
                    "16", "--ignore-eos", "--chunk", chunk, "--threads", threads});
      ASSERT_EQ(f.code, 0) << f.err;
      if (text.empty()) text = f.out;
      EXPECT_EQ(f.out, text) << "chunk " << chunk << ", threads " << threads;
    }
  }
}

TEST_F(Run, SeedsRepeatAndDiffer) {
  const auto sampled = [&](const char* seed) {
    return headrace(folder_, args({"--memory", "64MiB", "--tokens", "32", "--temperature",
                                   "1.5", "--seed", seed}))
        .out;
  };
  const std::string one = sampled("1");
  EXPECT_EQ(sampled("1"), one);
  EXPECT_NE(sampled("2"), one);
}

TEST_F(Run, ThePromptMayComeFromAFileOrFromStdin) {
  const std::string text = "The quick brown fox";
  std::ofstream(folder_ / "prompt") << text;
  const std::vector<std::string> common = {"run",   model(),    "--memory",
                                           "64MiB", "--tokens", "8"};
  const auto with = [&](std::vector<std::string> more, const std::string& input) {
    std::vector<std::string> all = common;
    all.insert(all.end(), more.begin(), more.end());
    return headrace(folder_, all, input).out;
  };
  const std::string expected = with({"--prompt", text}, "");
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(with({"--prompt-file", folder_ / "prompt"}, ""), expected);
  EXPECT_EQ(with({"--stdin"}, text), expected);
}

TEST_F(Run, ChatRendersTheTemplateAroundThePrompt) {
  const std::vector<std::string> common = {
      "run", model(), "--memory", "64MiB", "--tokens", "8", "--report", report_path()};
  std::vector<std::string> chat = common, plain = common;
  chat.insert(chat.end(), {"--chat", "--system", "be brief", "--prompt", "hi"});
  plain.insert(plain.end(), {"--prompt", "system: be brief\nuser: hi\nassistant:"});
  const std::string expected = headrace(folder_, plain).out;
  const Finished f = headrace(folder_, chat);
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(f.out, expected);
}

TEST_F(Run, GenerationEndsWhenTheContextIsFull) {
  const Finished f =
      headrace(folder_, args({"--memory", "64MiB", "--context", "256", "--tokens", "0",
                              "--report", report_path()}));
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(report()["exit_reason"], "context_full");
  EXPECT_EQ(report()["tokens"].size(), 256u - 20u + 1u);
}

TEST_F(Run, WithoutALimitTheContextIsThatOfAConversation) {
  Process p(folder_, args({"--memory", "64MiB", "--tokens", "0", "--report",
                           report_path()}));
  ASSERT_TRUE(p.wait_for_output(3));
  p.send(SIGINT);
  EXPECT_EQ(p.wait().code, 130);
  const int64_t trained = report()["plan"]["trained_context"];
  EXPECT_EQ(report()["context"], trained > 0 ? std::min<int64_t>(trained, 2048) : 2048);
}

TEST_F(Run, AContextBeyondTheTrainedOneIsAWarning) {
  const Finished f = headrace(
      folder_, args({"--memory", "900MiB", "--context", "10000", "--tokens", "1"}));
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("warning: a context of 10,000 goes beyond"), std::string::npos)
      << f.err;
}

TEST_F(Run, BytesReadAreThoseThatThePlanStreams) {
  const Finished f = headrace(
      folder_, args({"--memory", "24MiB", "--tokens", "40", "--report", report_path()}));
  ASSERT_EQ(f.code, 0) << f.err;
  const Json r = report();
  if (r["tier_method"].get<std::string>().find("O_DIRECT") == std::string::npos) {
    GTEST_SKIP()
        << "the disk of the temporary folder refuses O_DIRECT: reads may be cached";
  }
  ASSERT_FALSE(r["read_bytes_per_token"].is_null());
  const auto loaded = r["loaded_bytes_per_token"].get<int64_t>();
  const auto gathered = r["gathered_bytes_per_token"].get<int64_t>();
  EXPECT_GT(loaded, 0);
  EXPECT_NEAR(r["read_bytes_per_token"].get<double>(),
              static_cast<double>(loaded + gathered), 1.0);
}

// A machine file that is far off makes the session plan again, once it is bound by the
// link for some steps; on a disk that is never waited for, it does not.
TEST_F(Run, SteadyFiguresAreThoseSinceTheLastSwapOfPlans) {
  for (const double rate : {1e6, 1e12}) {
    Machine machine = Machine::defaults(1);
    machine.tiers[1].load_bytes_per_s = rate;
    std::ofstream(folder_ / "machine.json") << to_json(machine);
    const Finished f = headrace(
        folder_, args({"--memory", "24MiB", "--tokens", "60", "--machine",
                       folder_ / "machine.json", "--report", report_path()}));
    ASSERT_EQ(f.code, 0) << f.err;
    const Json r = report();
    if (r["replans"] > 0) {
      EXPECT_LT(r["steady_steps"], 58);
    }
    if (r["steady_steps"] == 0) continue;
    const auto weights = r["loaded_bytes_per_token"].get<int64_t>() -
                         r["kv_loaded_bytes_per_token"].get<int64_t>();
    EXPECT_NEAR(weights, r["streamed_bytes_per_token"].get<int64_t>(), 1) << "each is rounded down";
    EXPECT_NE(r["bound_source"], "machine file") << "nothing measured that file";
  }
}

TEST_F(Run, TheTraceIsJsonWithOneEventAnInstruction) {
  const std::string trace = folder_ / "trace.json";
  const Finished f =
      headrace(folder_, args({"--memory", "24MiB", "--tokens", "4", "--trace", trace}));
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_GT(Json::parse(slurp(trace))["traceEvents"].size(), 16u);
}

TEST_F(Run, AnInterruptStopsWithTheReportWritten) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Process p(folder_, args({"--memory", "64MiB", "--context", "2048", "--tokens", "0",
                             "--report", report_path()}));
    ASSERT_TRUE(p.wait_for_output(3));
    p.send(signal);
    const Finished f = p.wait();
    EXPECT_EQ(f.code, 130) << f.err;
    const Json r = report();
    EXPECT_EQ(r["exit_reason"], "cancelled");
    EXPECT_EQ(r["exit_code"], 130);
    EXPECT_GE(r["tokens"].size(), 1u);
    std::filesystem::remove(report_path());
  }
}

TEST_F(Run, AnInterruptWhileThePromptIsReadLeavesAReportToo) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  Process::Options options;
  // Open for writing as well: reading waits, it meets no end.
  options.in_child = [&] { ::dup2(::open(fifo.c_str(), O_RDWR | O_CLOEXEC), 0); };
  Process p(folder_,
            {"run", model(), "--memory", "64MiB", "--stdin", "--report", report_path()},
            options);
  ASSERT_TRUE(p.wait_for_sleep());
  p.send(SIGINT);
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 130) << f.err;
  const Json r = report();
  EXPECT_EQ(r["exit_reason"], "cancelled");
  EXPECT_EQ(r["exit_code"], 130);
  EXPECT_EQ(r["budget_bytes"], 64 << 20);
  EXPECT_TRUE(r["plan"].is_null());
}

TEST_F(Run, ARefusalLeavesAReportToo) {
  const Finished f =
      headrace(folder_, args({"--memory", "4MiB", "--report", report_path()}));
  EXPECT_EQ(f.code, 3) << f.err;
  EXPECT_NE(f.err.find("the least budget is"), std::string::npos) << f.err;
  EXPECT_EQ(report()["exit_code"], 3);
  EXPECT_NE(report()["error"].get<std::string>().find("MiB"), std::string::npos);
}

// Stopped for longer than the ten seconds between two lines.
TEST_F(Run, ProgressInALogIsAPlainLineEveryTenSeconds) {
  Process p(folder_, args({"--memory", "64MiB", "--context", "2048", "--tokens", "0"}));
  ASSERT_TRUE(p.wait_for_output(3));
  p.send(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(10500));
  p.send(SIGCONT);
  EXPECT_TRUE(p.wait_for_error("headrace: text "));
  p.send(SIGINT);
  const Finished f = p.wait();
  EXPECT_EQ(f.err.find('\r'), std::string::npos);
  EXPECT_EQ(f.err.find('\x1b'), std::string::npos);
}

TEST_F(Run, TheFiguresStandApartFromTheTextOnATerminal) {
  Process::Options options;
  options.terminal = options.stdout_terminal = true;
  const Finished f =
      Process(folder_,
              args({"--memory", "64MiB", "--tokens", "8", "--report", report_path()}),
              options)
          .wait();
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("\r\n\r\n8 tokens, "), std::string::npos) << f.err;
}

TEST_F(Run, AClosedStdoutEndsTheRunWithoutAnError) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Process::Options options;
  options.stdout_descriptor = ends[1];
  Process p(folder_,
            args({"--memory", "64MiB", "--context", "2048", "--tokens", "0", "--report",
                  report_path()}),
            options);
  ::close(ends[1]);
  char five[5];
  size_t got = 0;
  while (got < sizeof(five)) {
    const ssize_t n = ::read(ends[0], five + got, sizeof(five) - got);
    ASSERT_GT(n, 0);
    got += static_cast<size_t>(n);
  }
  ::close(ends[0]);
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_EQ(report()["exit_reason"], "stdout_closed");
}

TEST_F(Run, AFullStdoutIsAnIoError) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "no /dev/full";
  Process::Options options;
  options.stdout_descriptor = full;
  const Finished f =
      Process(folder_, args({"--memory", "64MiB", "--tokens", "8"}), options).wait();
  ::close(full);
  EXPECT_EQ(f.code, 5) << f.err;
  EXPECT_NE(f.err.find("standard output"), std::string::npos) << f.err;
}

TEST_F(Run, AReportThatCannotBeWrittenIsNamed) {
  for (const std::string& path :
       {std::string("/dev/full"), folder_ / "missing/report.json"}) {
    const Finished f =
        headrace(folder_, args({"--memory", "64MiB", "--tokens", "2", "--report", path}));
    EXPECT_EQ(f.code, 5) << f.err;
    EXPECT_NE(f.err.find("cannot write " + path), std::string::npos) << f.err;
  }
}

TEST_F(Run, AModelReplacedDuringTheRunIsAnError) {
  const std::string copy = folder_ / "copy.gguf";
  std::filesystem::copy_file(model(), copy);
  Process p(folder_, {"run", copy, "--memory", "24MiB", "--prompt", "x", "--context",
                      "512", "--tokens", "0", "--ignore-eos", "--report", report_path()});
  ASSERT_TRUE(p.wait_for_output(3));
  std::filesystem::copy_file(model(), folder_ / "other.gguf");
  std::filesystem::rename(folder_ / "other.gguf", copy);
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 5) << f.err;
  EXPECT_NE(f.err.find(copy), std::string::npos) << f.err;
  EXPECT_EQ(report()["exit_reason"], "error");
}

TEST_F(Run, AModelTruncatedDuringTheRunIsAnError) {
  const std::string copy = folder_ / "copy.gguf";
  std::filesystem::copy_file(model(), copy);
  Process p(folder_, {"run", copy, "--memory", "24MiB", "--prompt", "x", "--context",
                      "512", "--tokens", "0", "--ignore-eos", "--report", report_path()});
  ASSERT_TRUE(p.wait_for_output(3));
  std::filesystem::resize_file(copy, 1 << 20);
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 5) << f.err;
  EXPECT_NE(f.err.find(copy), std::string::npos) << f.err;
  EXPECT_EQ(report()["exit_reason"], "error");
}

TEST_F(Run, AConversationOnATerminalAppendsOnlyWhatIsNew) {
  Process::Options options;
  options.terminal = true;
  Process p(folder_,
            {"run", model(), "--memory", "64MiB", "--chat", "--tokens", "6",
             "--ignore-eos", "--context", "512", "--report", report_path()},
            options);
  size_t at = p.wait_for_screen("> ");
  ASSERT_GT(at, 0u);
  p.type("hello\n");
  at = p.wait_for_screen("> ", at);
  ASSERT_GT(at, 0u);
  p.type("again\n");
  ASSERT_GT(p.wait_for_screen("> ", at), 0u);
  p.type("\x04");
  const Finished f = p.wait();
  ASSERT_EQ(f.code, 0) << f.err;
  const Json r = report();
  EXPECT_EQ(r["exit_reason"], "end_of_input");
  EXPECT_EQ(r["tokens"].size(), 12u);
  // A byte a token. The first turn is begin, "user: hello\n" and "assistant:"; the second
  // renders all that again.
  EXPECT_GE(r["prompt_tokens"], 23 + 23);
  EXPECT_LT(r["prompt_tokens"], 23 + 23 + 23);
  EXPECT_EQ(f.out.back(), '\n');
}

TEST_F(Run, CtrlCEndsAnAnswerAndThenTheConversation) {
  Process::Options options;
  options.terminal = true;
  Process p(folder_,
            {"run", model(), "--memory", "64MiB", "--chat", "--tokens", "1900",
             "--ignore-eos", "--context", "2048", "--report", report_path()},
            options);
  size_t at = p.wait_for_screen("> ");
  ASSERT_GT(at, 0u);
  p.type("hello\n");
  ASSERT_TRUE(p.wait_for_output(1));
  p.type("\x03");
  ASSERT_GT(p.wait_for_screen("> ", at), 0u);
  p.type("\x03");
  const Finished f = p.wait();
  EXPECT_EQ(f.code, 130) << f.err;
  EXPECT_LT(report()["tokens"].size(), 1900u);
}

// The limit of the process's own group equals its budget: nothing may be killed.
TEST_F(Run, AControlGroupOfTheBudgetNeverKills) {
  const std::string group =
      "/sys/fs/cgroup/memory/headrace-e2e-" + std::to_string(::getpid());
  if (::geteuid() != 0 || ::mkdir(group.c_str(), 0755) != 0) {
    GTEST_SKIP() << "no memory control group (v1) may be made here";
  }
  for (const int mib : {17, 24, 40}) {
    std::ofstream(group + "/memory.limit_in_bytes") << mib * 1024 * 1024;
    Process::Options options;
    options.in_child = [&] { std::ofstream(group + "/cgroup.procs") << ::getpid(); };
    Process p(folder_,
              args({"--memory", std::to_string(mib) + "MiB", "--tokens", "24", "--report",
                    report_path()}),
              options);
    const Finished f = p.wait();
    EXPECT_EQ(f.signal, 0) << mib << " MiB: killed";
    EXPECT_EQ(f.code, 0) << f.err;
  }
  ::rmdir(group.c_str());
}

TEST(RealModel, SmolLm2HoldsEveryBudgetAndSaysTheSame) {
  const std::string model = real_model();
  if (model.empty()) {
    GTEST_SKIP()
        << "HEADRACE_MODELS names no folder with SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  Folder folder;
  for (const int mib : {24, 32, 48, 64, 96, 128, 200}) {
    const std::string budget = std::to_string(mib) + "MiB";
    const Finished f = headrace(
        folder, {"run", model, "--memory", budget, "--prompt", "The capital of France is",
                 "--tokens", "12", "--report", folder / "report.json"});
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.out.substr(0, 7), " Paris.") << budget;
    const Json r = Json::parse(slurp(folder / "report.json"));
    EXPECT_LE(r["peak_rss_bytes"], r["budget_bytes"]) << budget;
  }
}

}  // namespace
}  // namespace headrace::testing
