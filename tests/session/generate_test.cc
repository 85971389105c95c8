// What the generation loop looks at beside the logits.
#include "headrace/session/generate.h"

#include "tests/session/small_models.h"

namespace headrace {
namespace {

int32_t first_token(const Model& model, std::span<const int32_t> history) {
  const auto session = test::start_session(model, test::session_options(model, {1, 0, 1}));
  GenerateOptions options;
  options.max_tokens = 1;
  options.ignore_end = true;
  options.sampling.repeat_penalty = 100;
  options.history = history;
  GenerateStats stats;
  const Status s = generate(*session, model.tokenizer, test::prompt_of(5, 320), options,
                            [](int32_t) { return true; }, &stats);
  EXPECT_TRUE(s.ok()) << s.message();
  return stats.tokens.empty() ? -1 : stats.tokens[0];
}

TEST(GenerateHistory, TheRepeatPenaltyCountsWhatTheSessionHeldBefore) {
  const test::SmallModel m(test::streamed_llama());
  const int32_t likeliest = first_token(*m.model, {});
  const std::vector<int32_t> said = {likeliest};
  EXPECT_NE(first_token(*m.model, said), likeliest);
  const std::vector<int32_t> other = {(likeliest + 1) % 320};
  EXPECT_EQ(first_token(*m.model, other), likeliest);
}

}  // namespace
}  // namespace headrace
