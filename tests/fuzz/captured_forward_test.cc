// Deterministic mutation fuzzing of captured forward passes: whatever the bytes, the answer is
// steps that verify, or an error that says something; never a crash or an exception.
#include "headrace/train/captured_forward.h"

#include <gtest/gtest.h>

#include <random>

#include "headrace/train/captured_graph.h"
#include "tests/train/captured_text.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

constexpr int kMutations = 20'000;

std::vector<std::string> forwards() {
  StepModel llama = test::small_llama(), gpt2 = test::small_gpt2();
  llama.layers = gpt2.layers = 1;
  gpt2.dropout = 0.1;
  llama.lora = {.rank = 2, .alpha = 4, .targets = {"q_proj"}};
  const std::string image = R"({"headrace_forward":1,"precision":"f32","rows":2,
"parameters":[{"name":"p","shape":[4,12],"dtype":"f32"},{"name":"pb","shape":[4],"dtype":"bf16",
"remote_memory":{"max_size":4,"prefetch_priority":1}},{"name":"cls","shape":[1,4],"dtype":"f32"},
{"name":"pos","shape":[5,4],"dtype":"f32","trainable":false},{"name":"head","shape":[3,4],
"dtype":"f32","aliases":["tied"]},{"name":"hb","shape":[3],"dtype":"f32"}],
"inputs":[{"name":"images","shape":[2,48],"count":1}],"micro_batches":[{"repeat":1,"ops":[
{"op":"hr.patches","name":"patches","in":["images"],"out":[{"name":"x","shape":[8,12]}],
"attrs":{"channels":3,"height":4,"patch":2}},
{"op":"hr.linear","name":"y","in":["x","p","pb"],"out":[{"name":"y","shape":[8,4]}],
"attrs":{"weights":1,"bias":true,"scale":1}},
{"op":"hr.prefix","name":"z","in":["y","cls","pos"],"out":[{"name":"z","shape":[10,4]}],
"attrs":{"sequence":5,"weights":1,"positions":1}},
{"op":"hr.select","name":"c","in":["z"],"out":[{"name":"c","shape":[2,4]}],
"attrs":{"sequence":5,"first":0}},
{"op":"hr.loss","name":"l","in":["c","tied","hb"],"out":[{"name":"l","shape":[2,1],"dtype":"f32"}],
"attrs":{"bias":1}}]}]})";
  return {test::captured_json(llama, test::small_shape(2)).dump(),
          test::captured_json(gpt2, test::small_shape()).dump(), image};
}

// Whole values, keys and names become others; single bytes change.
std::string mutate(const std::string& from, std::mt19937_64* random) {
  static const std::vector<std::string> kTexts = {
      "\"", "{", "}", "[", "]", ",", "null", "true", "-1", "0", "1", "2", "2.5", "1e308", "1e999",
      "9223372036854775807", "18446744073709551615", "16777216", "65536", "4096", "\"x\"", "\"\"",
      "\\u0000", "\xff", "[]", "{}", "[1]", "[16777216,16777216]", "\"bf16\"", "\"hr.linear\"",
      "\"hr.loss\"", "\"hr.embed\"", "\"hr.norm\"", "\"hr.attention\"", "\"hr.prefix\"",
      "\"hr.qk_norm\"", "\"hr.select\"", "\"hr.mean_rows\"", "\"hr.rope\"", "\"hr.act\"",
      "\"hr.columns\"", "\"hr.scale\"",
      "\"hr.dropout\"", "\"hr.add\"", "\"embed\"", "\"losses\"", "\"loss\"", "\"lm_head.weight\"",
      "\"model.embed_tokens.weight\"", "\"transformer.wte.weight\"", "\"head\"", "\"z\""};
  std::string out = from;
  const int changes = 1 + static_cast<int>((*random)() % 2);
  for (int i = 0; i < changes && !out.empty(); ++i) {
    const size_t at = (*random)() % out.size();
    const std::string& text = kTexts[(*random)() % kTexts.size()];
    switch ((*random)() % 6) {
      case 0: out.insert(at, text); break;
      case 1: out[at] = static_cast<char>(out[at] ^ (1 << (*random)() % 8)); break;
      case 2: out.erase(at, (*random)() % 20); break;
      default: {
        const size_t begin = out.find_first_of(":[,", at);
        const size_t end = begin == out.npos ? begin : out.find_first_of(",]}", begin + 1);
        if (end != out.npos) out.replace(begin + 1, end - begin - 1, text);
        break;
      }
    }
  }
  return out;
}

TEST(CapturedForwardFuzz, BrokenOnesGiveStepsThatVerifyOrAnErrorThatSaysSomething) {
  std::mt19937_64 random(7);
  const std::vector<std::string> bases = forwards();
  const auto optimizer = parse_captured_optimizer(R"({"kind":"adamw","groups":[{},{}]})");
  ASSERT_TRUE(optimizer.ok()) << optimizer.status().message();
  int parsed = 0, built = 0;
  const auto look = [&](const std::string& text) {
    const auto forward = parse_captured_forward(text);
    if (!forward.ok()) {
      EXPECT_FALSE(forward.status().message().empty());
      return;
    }
    ++parsed;
    const auto steps = build_captured_steps(*forward, *optimizer, {.guard = true});
    if (!steps.ok()) {
      EXPECT_FALSE(steps.status().message().empty());
      return;
    }
    ++built;
    for (const auto& step : *steps) {
      const Status s = verify(step->workload.graph);
      EXPECT_TRUE(s.ok()) << s.message();
    }
  };
  for (const std::string& base : bases) look(base);
  EXPECT_EQ(built, static_cast<int>(bases.size()));
  for (int i = 0; i < kMutations; ++i) look(mutate(bases[random() % bases.size()], &random));
  EXPECT_GT(parsed, kMutations / 50);
  EXPECT_GT(built, kMutations / 100);
}

}  // namespace
}  // namespace headrace
