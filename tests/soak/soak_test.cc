// Long runs: thousands of tokens at several budgets hold every budget and say the same.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

// `tokens` drawn with a fixed seed at each budget: inside it, and always the same text.
void sweep(const std::string& model, const std::vector<int>& budgets_mib, int tokens) {
  Folder folder;
  std::string text;
  for (const int mib : budgets_mib) {
    const std::string budget = std::to_string(mib) + "MiB";
    const Finished f = headrace(
        folder, {"run", model, "--memory", budget, "--context", "2048", "--prompt",
                 "The quick brown fox", "--tokens", std::to_string(tokens),
                 "--ignore-eos", "--temperature", "0.8", "--seed", "7",
                 "--repeat-penalty", "1.1", "--report", folder / "report.json"});
    ASSERT_EQ(f.code, 0) << budget << ": " << f.err;
    const Json r = Json::parse(slurp(folder / "report.json"));
    EXPECT_LE(r["peak_rss_bytes"], r["budget_bytes"]) << budget;
    EXPECT_EQ(r["tokens"].size(), static_cast<size_t>(tokens)) << budget;
    if (text.empty()) text = f.out;
    EXPECT_EQ(f.out, text) << budget;
  }
}

TEST(Soak, TwoThousandTokensHoldEveryBudgetAndAreTheSame) {
  Folder folder;
  write_streamed_model(folder / "model.gguf");
  sweep(folder / "model.gguf", {40, 48, 56, 64, 96}, 2000);
}

TEST(Soak, TwoThousandTokensOfARealModelHoldTheBudgetAndAreTheSame) {
  const std::string model = real_model();
  if (model.empty()) {
    GTEST_SKIP()
        << "HEADRACE_MODELS names no folder with SmolLM2-135M-Instruct.Q4_1.gguf";
  }
  sweep(model, {80, 120, 200}, 2000);
}

}  // namespace
}  // namespace headrace::testing
