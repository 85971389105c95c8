// What headrace refuses, with which exit code, and what it says.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

constexpr const char* kTiny = HEADRACE_SOURCE_DIR "/tests/data/models/llama.gguf";

class Usage : public ::testing::Test {
 protected:
  // Runs with these arguments, wants `code` and `text` on stderr, and nothing on stdout.
  void refused(std::vector<std::string> args, int code, const std::string& text) {
    const Finished f = headrace(folder_, args);
    EXPECT_EQ(f.code, code) << f.err;
    EXPECT_NE(f.err.find(text), std::string::npos) << f.err;
    EXPECT_EQ(f.out, "");
  }
  Folder folder_;
};

TEST_F(Usage, AVerbIsNeededAndMustExist) {
  refused({}, 2, "a verb is missing: run, serve, train, plan, ");
  refused({"walk"}, 2, "there is no verb 'walk'");
}

TEST_F(Usage, UnknownOptionsAndMissingModelsAreUsageErrors) {
  refused({"run", kTiny, "--prompt", "x", "--speed", "9"}, 2, "--speed");
  refused({"run"}, 2, "model");
  refused({"run", kTiny, "--prompt", "x", "--tokens", "-4"}, 2, "--tokens");
  refused({"run", kTiny, "--prompt", "x", "--threads", "0"}, 2, "--threads");
}

TEST_F(Usage, ServeRefusesOptionsThatWouldDoNothing) {
  for (const char* origin :
       {"localhost", "http://localhost:3000/", "https://Example.org", "://x"}) {
    refused({"serve", kTiny, "--cors", origin}, 2, "is no origin like http://localhost:3000");
  }
  refused({"serve", kTiny, "--prefix-limit", "1GiB"}, 2, "--prefix-store");
  refused({"serve", kTiny, "--draft-memory", "1GiB"}, 2, "--draft");
  refused({"serve", kTiny, "--draft", kTiny, "--speculate", "0"}, 2, "--speculate 0");
}

TEST_F(Usage, BudgetsThatAreNoSizesShowTheValidForms) {
  for (const char* size : {"0", "-5MiB", "banana", "12XB", "1e400"}) {
    refused({"run", kTiny, "--prompt", "x", std::string("--memory=") + size}, 2,
            "512MiB");
  }
}

TEST_F(Usage, APromptIsNeededAndOnlyOne) {
  refused({"run", kTiny}, 2, "--prompt TEXT, --prompt-file FILE or --stdin");
  refused({"run", kTiny, "--chat"}, 2, "no prompt");
  refused({"run", kTiny, "--prompt", "x", "--stdin"}, 2, "give one of");
  refused({"run", kTiny, "--prompt", "x", "--system", "y"}, 2, "--system needs --chat");
}

TEST_F(Usage, SamplingOptionsOutOfRangeAreNamed) {
  refused({"run", kTiny, "--prompt", "x", "--temperature", "-1"}, 2, "temperature");
  refused({"run", kTiny, "--prompt", "x", "--top-p", "1.5"}, 2, "top-p");
  refused({"run", kTiny, "--prompt", "x", "--min-p", "2"}, 2, "min-p");
  refused({"run", kTiny, "--prompt", "x", "--repeat-penalty", "0"}, 2, "repeat-penalty");
}

TEST_F(Usage, APromptLongerThanTheContextIsAUsageError) {
  refused({"run", kTiny, "--prompt", std::string(300, 'x'), "--context", "100",
           "--memory", "64MiB"},
          2, "the context only 100");
}

TEST_F(Usage, FilesThatAreNotThereAreIoErrors) {
  refused({"run", folder_ / "none.gguf", "--prompt", "x"}, 5, "none.gguf");
  refused({"run", kTiny, "--prompt-file", folder_ / "none.txt"}, 5, "none.txt");
  refused({"run", kTiny, "--prompt", "x", "--machine", folder_ / "none.json"}, 5,
          "none.json");
}

TEST_F(Usage, BrokenFilesAreNamed) {
  const std::string whole = slurp(kTiny);
  const std::string cut = folder_ / "cut.gguf";
  for (const size_t bytes : {size_t{0}, size_t{3}, size_t{100}, whole.size() - 1}) {
    write_file(cut, std::string_view(whole).substr(0, bytes));
    refused({"run", cut, "--prompt", "x"}, 4, "cut.gguf");
  }
  write_file(folder_ / "machine.json", "{\"threads\": 1}");
  refused({"run", kTiny, "--prompt", "x", "--machine", folder_ / "machine.json"}, 4,
          "machine.json");
}

TEST_F(Usage, AnUnsupportedArchitectureIsNamed) {
  GgufWriter gguf;
  gguf.text("general.architecture", "quantumformer");
  gguf.write(folder_ / "q.gguf");
  refused({"run", folder_ / "q.gguf", "--prompt", "x"}, 4, "quantumformer");
  refused({"inspect", folder_ / "q.gguf"}, 4, "quantumformer");
}

TEST_F(Usage, ChatWithoutATemplateIsUnsupported) {
  refused({"run", kTiny, "--chat", "--prompt", "x", "--memory", "64MiB"}, 4,
          "chat template");
}

TEST_F(Usage, TheAdviceForABudgetTooSmallIsTrue) {
  const std::string model = folder_ / "model.gguf";
  write_streamed_model(model);
  const std::vector<std::string> job = {"run",      model, "--prompt",  "x",
                                        "--tokens", "4",   "--context", "4096",
                                        "--kv-dir", "none"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = job;
    all.insert(all.end(), more.begin(), more.end());
    return headrace(folder_, all);
  };
  const Finished small = with({"--memory", "20MiB"});
  EXPECT_EQ(small.code, 3);
  EXPECT_NE(small.err.find("are missing; the least budget is"), std::string::npos)
      << small.err;
  const auto option = [&](const std::string& name) {
    const size_t at = small.err.find("  " + name + " ");
    if (at == std::string::npos) return std::string();
    const size_t begin = at + 3 + name.size();
    return small.err.substr(begin, small.err.find(' ', begin) - begin);
  };
  const std::string memory = option("--memory"), context = option("--context");
  ASSERT_FALSE(memory.empty()) << small.err;
  ASSERT_FALSE(context.empty()) << small.err;
  EXPECT_EQ(with({"--memory", memory}).code, 0) << memory;
  EXPECT_EQ(headrace(folder_, {"run", model, "--prompt", "x", "--tokens", "4",
                               "--context", context, "--memory", "20MiB", "--kv-dir", "none"})
                .code,
            0)
      << context;
}

TEST_F(Usage, PlanTellsWhatRunWouldDo) {
  const std::string model = folder_ / "model.gguf";
  write_streamed_model(model);
  const Finished text = headrace(folder_, {"plan", model, "--memory", "24MiB"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("other budgets"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("built-in defaults"), std::string::npos) << text.out;
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const Finished json = headrace(folder_, {"plan", model, "--memory", "24MiB", "--json"});
  const Json plan = Json::parse(json.out);
  EXPECT_EQ(plan["budget_bytes"], 24 << 20);
  EXPECT_GT(plan["decode"]["streamed_bytes"], 0);
  EXPECT_EQ(plan["budgets"].back()["streamed_bytes"], 0);
}

TEST_F(Usage, InspectShowsTheModel) {
  const Finished text = headrace(folder_, {"inspect", kTiny, "--tensors"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("blk.0.attn_q.weight"), std::string::npos);
  const Json json = Json::parse(headrace(folder_, {"inspect", kTiny, "--json"}).out);
  EXPECT_EQ(json["config"]["family"], "llama");
  EXPECT_EQ(json["config"]["layers"], 2);
  EXPECT_EQ(json["tokenizer"]["size"], 512);
  EXPECT_EQ(json["tokenizer"]["model"], "byte BPE");
  refused({"inspect", kTiny, "--template"}, 4, "no chat template");
}

TEST_F(Usage, ProbeWritesAMachineFileThatPlanUses) {
  const std::string model = folder_ / "model.gguf";
  write_streamed_model(model);
  const Finished probe = headrace(folder_, {"probe", "--file", model, "--threads", "1"});
  ASSERT_EQ(probe.code, 0) << probe.err;
  const Json machine = Json::parse(slurp(folder_ / "headrace/machine.json"));
  EXPECT_GT(machine["memory_bytes_per_s"], 0);
  EXPECT_GT(machine["matmul_per_s"]["q4_1"], 0);
  const Finished plan =
      headrace(folder_, {"plan", model, "--memory", "24MiB", "--threads", "1"});
  EXPECT_NE(plan.out.find("measured 20"), std::string::npos) << plan.out;
}

TEST_F(Usage, HelpAndVersionGoToStdout) {
  EXPECT_NE(headrace(folder_, {"--help"}).out.find("run"), std::string::npos);
  EXPECT_NE(headrace(folder_, {"run", "--help"}).out.find("--memory"), std::string::npos);
  EXPECT_EQ(headrace(folder_, {"--version"}).out.rfind("headrace ", 0), 0u);
}

}  // namespace
}  // namespace headrace::testing
