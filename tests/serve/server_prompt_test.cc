// From requests to jobs: seeds, and what is too long.
#include "headrace/serve/server_prompt.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/serve/fox_model.h"

namespace headrace {
namespace {

class PromptEncoderTest : public test::FoxModelTest {
 protected:
  std::vector<Job> jobs(const GenerateRequest& request, uint64_t seed) const {
    auto made = PromptEncoder(*model_, 512, 100).jobs(request, seed);
    if (const ApiError* e = std::get_if<ApiError>(&made)) ADD_FAILURE() << e->message;
    return std::get<std::vector<Job>>(std::move(made));
  }
};

TEST_F(PromptEncoderTest, EqualPromptsWithoutASeedAreDrawnEachWithItsOwn) {
  GenerateRequest r;
  r.n = 3;
  r.prompts = {{"The fox", {}, false}, {"The fox", {}, false}, {"The fox", {}, false}};
  std::set<uint64_t> seeds;  // a choice draws with its job's and its number
  for (const Job& job : jobs(r, UINT64_MAX - 1)) {
    for (int i = 0; i < job.n; ++i) seeds.insert(job.sampling.seed + static_cast<uint64_t>(i));
  }
  EXPECT_EQ(seeds.size(), 9u);
}

TEST_F(PromptEncoderTest, ASeedThatIsGivenMeansTheSameForEachPromptAsAlone) {
  GenerateRequest r;
  r.sampling.seed = 5;
  r.seed_given = true;
  r.prompts = {{"The fox", {}, false}, {"The dog", {}, false}};
  for (const Job& job : jobs(r, 77)) EXPECT_EQ(job.sampling.seed, 5u);
}

TEST_F(PromptEncoderTest, OfSeveralPromptsTheOneThatIsTooLongIsNamed) {
  GenerateRequest r;
  r.prompts = {{"The fox", {}, false}, {std::string(600, 'x'), {}, false}};
  const auto refused = PromptEncoder(*model_, 512, 100).jobs(r, 1);
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "prompt[1]");
  EXPECT_EQ(std::get<ApiError>(refused).code, "context_length_exceeded");
}

}  // namespace
}  // namespace headrace
