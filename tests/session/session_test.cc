// Promise 1 of session.h: logits do not depend on budget, chunk, threads or where bytes
// were.
#include "headrace/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "headrace/session/generate.h"
#include "tests/session/small_models.h"

namespace headrace {
namespace {

using test::session_options;
using test::Setting;
using test::SmallModel;
using test::start_session;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // after the prompt and after each token
  bool operator==(const Outcome& o) const {
    return tokens == o.tokens && logits.size() == o.logits.size() &&
           std::memcmp(logits.data(), o.logits.data(), logits.size() * sizeof(float)) ==
               0;
  }
};

// Greedy by hand, so that every step's logits are seen.
Outcome greedy(Session& session, const std::vector<int32_t>& prompt, int count) {
  Outcome out;
  auto logits = session.append(prompt);
  for (int i = 0;; ++i) {
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    if (!logits.ok()) return out;
    out.logits.insert(out.logits.end(), logits->begin(), logits->end());
    if (i == count) return out;
    int32_t best = 0;
    for (size_t t = 1; t < logits->size(); ++t) {
      if ((*logits)[t] > (*logits)[static_cast<size_t>(best)])
        best = static_cast<int32_t>(t);
    }
    out.tokens.push_back(best);
    logits = session.append(std::span<const int32_t>(&out.tokens.back(), 1));
  }
}

struct Family {
  const char* name;
  testing::TinyShape shape;
};

// For the lists of tests.
void PrintTo(const Family& family, std::ostream* out) { *out << family.name; }

class SessionBits : public ::testing::TestWithParam<Family> {};

TEST_P(SessionBits, AreTheSameAtEveryBudgetChunkAndThreadCount) {
  const SmallModel m(GetParam().shape);
  const auto prompt = test::prompt_of(40, GetParam().shape.vocab);
  Outcome reference;
  int streamed_plans = 0, whole_plans = 0;
  for (int threads : {1, 2, 3}) {
    for (int64_t chunk : {1, 16, 32, 512}) {
      for (double share : {0.0, 0.05, 0.25, 1.0}) {
        const auto options = session_options(*m.model, {share, chunk, threads});
        const auto session = start_session(*m.model, options);
        ASSERT_NE(session, nullptr);
        const SessionPlan& plan = session->plan();
        for (const Program* p : {&plan.decode, &plan.prefill, &plan.prefill_body}) {
          if (p->graph == nullptr) continue;
          ASSERT_TRUE(verify(*p).ok()) << verify(*p).message();
        }
        EXPECT_LE(plan.ledger.reserved(), options.memory_bytes);
        const Bytes streamed = summarize(plan.decode).streamed_bytes;
        ++(streamed > 0 ? streamed_plans : whole_plans);
        const Outcome got = greedy(*session, prompt, 8);
        if (reference.tokens.empty()) reference = got;
        ASSERT_TRUE(got == reference)
            << "threads " << threads << " chunk " << chunk << " share " << share;
        // What a steady step read is what the plan says (a busy disk may have led to a
        // new one).
        if (session->replans() > 0) continue;
        EXPECT_EQ(session->last_trace().loaded_bytes, streamed);
      }
    }
  }
  EXPECT_GT(streamed_plans, 0);
  EXPECT_GT(whole_plans, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Families, SessionBits,
    ::testing::Values(Family{"llama_f32", test::streamed_llama()},
                      Family{"qwen3_q8_0", test::streamed_qwen3_q8()},
                      Family{"gemma3_q4_k", test::streamed_gemma3_q4k()}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Session, AllLogitsAreThoseOfOneTokenAtATime) {
  const SmallModel m(test::streamed_llama());
  const auto prompt = test::prompt_of(20, 320);
  Setting setting{0.1, 32, 2};
  setting.all_logits = true;
  const auto whole = start_session(*m.model, session_options(*m.model, setting));
  const auto all = whole->append(prompt);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 20u * 320u);
  const auto single = start_session(*m.model, session_options(*m.model, {0.1, 1, 1}));
  for (size_t i = 0; i < prompt.size(); ++i) {
    const auto one = single->append(std::span<const int32_t>(&prompt[i], 1));
    ASSERT_TRUE(one.ok());
    ASSERT_EQ(std::memcmp(one->data(), all->data() + i * 320, 320 * sizeof(float)), 0)
        << i;
  }
}

TEST(Session, ResetAndRewindForgetExactlyWhatTheyShould) {
  const SmallModel m(test::streamed_llama());
  const auto prompt = test::prompt_of(30, 320);
  const auto session = start_session(*m.model, session_options(*m.model, {0.05, 16, 1}));
  const Outcome first = greedy(*session, prompt, 6);
  session->reset();
  EXPECT_EQ(session->position(), 0);
  EXPECT_TRUE(greedy(*session, prompt, 6) == first);
  session->rewind(20);
  EXPECT_EQ(session->position(), 20);
  const std::vector<int32_t> rest(prompt.begin() + 20, prompt.end());
  EXPECT_TRUE(greedy(*session, rest, 6) == first);
}

TEST(Session, AFullContextIsAUsageErrorAndTheSessionGoesOn) {
  const SmallModel m(test::streamed_llama());
  SessionOptions options = session_options(*m.model, {0.05, 16, 1});
  options.context = 256;
  const auto session = start_session(*m.model, options);
  EXPECT_EQ(session->plan().context, 256);
  ASSERT_TRUE(session->append(test::prompt_of(250, 320)).ok());
  const auto over = session->append(test::prompt_of(7, 320));
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.status().code(), Code::kUsage);
  EXPECT_THAT(over.status().message(), HasSubstr("7 tokens after position 250"));
  EXPECT_THAT(over.status().message(), HasSubstr("context of 256"));
  EXPECT_EQ(session->position(), 250);
  EXPECT_TRUE(session->append(test::prompt_of(6, 320)).ok());
  EXPECT_FALSE(session->append(test::prompt_of(1, 320)).ok());
}

TEST(Session, TokensOutsideTheVocabularyAreNamedAndTheSessionGoesOn) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {0.05, 16, 1}));
  for (int32_t bad : {-1, 320, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> tokens = {1, 2, bad};
    const auto r = session->append(tokens);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), Code::kUsage);
    EXPECT_THAT(r.status().message(), HasSubstr("token " + std::to_string(bad)));
    EXPECT_EQ(session->position(), 0);
  }
  EXPECT_TRUE(session->append(std::vector<int32_t>{1, 2}).ok());
}

TEST(Session, AppendingNothingIsAUsageError) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {1, 16, 1}));
  const auto r = session->append({});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kUsage);
}

TEST(Session, CancelIsReportedAsSuch) {
  const SmallModel m(test::streamed_llama());
  auto plan = plan_session(*m.model, session_options(*m.model, {0.05, 16, 1}));
  ASSERT_TRUE(plan.ok());
  std::atomic<bool> cancel{false};
  auto session = Session::start(*m.model, std::move(*plan), &cancel);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->append(test::prompt_of(20, 320)).ok());
  cancel = true;
  const auto r = (*session)->append(test::prompt_of(1, 320));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kCancelled);
}

TEST(Session, AModelFileChangedWhileRunningIsNoticed) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {0.05, 16, 1}));
  ASSERT_TRUE(session->append(test::prompt_of(20, 320)).ok());
  EXPECT_TRUE(session->check_files().ok());
  std::filesystem::resize_file(m.path(), 100'000);
  EXPECT_EQ(session->check_files().code(), Code::kIo);
  // And what is streamed from beyond the new end is an error, not old bytes.
  auto r = session->append(test::prompt_of(1, 320));
  for (int i = 0; i < 3 && r.ok(); ++i) r = session->append(test::prompt_of(1, 320));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kIo);
  EXPECT_THAT(r.status().message(), HasSubstr("model.gguf"));
}

TEST(Session, APlanForTooLittleMemoryNamesTheShortfallAndTheLeast) {
  const SmallModel m(test::streamed_llama());
  SessionOptions options = session_options(*m.model, {0, 0, 1});
  options.memory_bytes = *least_memory(*m.model, options) - kMiB;
  const auto plan = plan_session(*m.model, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(plan.status().message(), HasSubstr("missing"));
  EXPECT_THAT(plan.status().message(), HasSubstr("--memory"));
  for (Bytes absurd : {Bytes{0}, Bytes{1}, kMiB}) {
    options.memory_bytes = absurd;
    EXPECT_EQ(plan_session(*m.model, options).status().code(), Code::kDoesNotFit);
  }
}

TEST(Session, APromptLongerThanTheContextIsRefusedBeforeAnyWork) {
  const SmallModel m(test::streamed_llama());
  SessionOptions options = session_options(*m.model, {1, 0, 1});
  options.prompt_tokens = 300;
  options.context = 200;
  const auto plan = plan_session(*m.model, options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kUsage);
  EXPECT_THAT(plan.status().message(), HasSubstr("300"));
}

TEST(SessionPlan, TheLedgersItemsAddUpToAtMostTheBudgetAtEveryBudget) {
  const SmallModel m(test::streamed_qwen3_q8());
  for (double share : {0.0, 0.1, 0.3, 0.6, 1.0, 3.0}) {
    const auto options = session_options(*m.model, {share, 0, 2});
    const auto plan = plan_session(*m.model, options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LE(plan->ledger.reserved(), options.memory_bytes);
    EXPECT_EQ(plan->ledger.total(), options.memory_bytes);
    EXPECT_EQ(plan->ledger.items().back().name, "arena");
    EXPECT_EQ(plan->ledger.items().back().bytes, plan->arena_bytes);
    EXPECT_LE(plan->decode.arena_bytes, plan->arena_bytes);
    EXPECT_LE(plan->prefill.arena_bytes, plan->arena_bytes);
  }
}

// ---- generate
// ---------------------------------------------------------------------------------

TEST(Generate, GreedyTokensAreTheArgmaxOfEachStep) {
  const SmallModel m(test::streamed_llama());
  const auto prompt = test::prompt_of(40, 320);
  const auto by_hand = start_session(*m.model, session_options(*m.model, {1, 0, 1}));
  const Outcome want = greedy(*by_hand, prompt, 12);
  const auto session = start_session(*m.model, session_options(*m.model, {0.05, 0, 2}));
  GenerateOptions options;
  options.max_tokens = 12;
  options.ignore_end = true;
  GenerateStats stats;
  std::vector<int32_t> told;
  const Status s = generate(
      *session, m.model->tokenizer, prompt, options,
      [&](int32_t t) {
        told.push_back(t);
        return true;
      },
      &stats);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(stats.tokens, want.tokens);
  EXPECT_EQ(told, want.tokens);
  EXPECT_EQ(stats.prompt_tokens, 40);
  if (session->replans() == 0) {  // a busy disk may have led to a new plan
    EXPECT_EQ(stats.steady_steps, 10);
    EXPECT_EQ(stats.steady_loaded,
              stats.steady_steps * summarize(session->plan().decode).streamed_bytes);
  }
}

TEST(Generate, StopsWhenTheCallbackSaysSo) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {1, 0, 1}));
  GenerateOptions options;
  options.ignore_end = true;
  GenerateStats stats;
  int calls = 0;
  ASSERT_TRUE(generate(
                  *session, m.model->tokenizer, test::prompt_of(5, 320), options,
                  [&](int32_t) { return ++calls < 3; }, &stats)
                  .ok());
  EXPECT_EQ(stats.tokens.size(), 3u);
}

TEST(Generate, WithoutALimitFillsTheContextAndEndsWell) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {1, 0, 2}));
  GenerateOptions options;
  options.max_tokens = 0;
  options.ignore_end = true;
  GenerateStats stats;
  const Status s = generate(
      *session, m.model->tokenizer, test::prompt_of(200, 320), options,
      [](int32_t) { return true; }, &stats);
  ASSERT_TRUE(s.ok()) << s.message();
  EXPECT_EQ(stats.tokens.size(), 57u);  // the last needs no position
}

TEST(Generate, APromptBeyondTheContextIsAUsageErrorWithAndWithoutALimit) {
  const SmallModel m(test::streamed_llama());
  for (int64_t limit : {0, 5}) {
    const auto session = start_session(*m.model, session_options(*m.model, {1, 0, 1}));
    GenerateOptions options;
    options.max_tokens = limit;
    GenerateStats stats;
    const Status s = generate(
        *session, m.model->tokenizer, test::prompt_of(600, 320), options,
        [](int32_t) { return true; }, &stats);
    EXPECT_EQ(s.code(), Code::kUsage);
    EXPECT_TRUE(stats.tokens.empty());
  }
}

TEST(Generate, AnEmptyPromptAndBadOptionsAreUsageErrors) {
  const SmallModel m(test::streamed_llama());
  const auto session = start_session(*m.model, session_options(*m.model, {1, 0, 1}));
  GenerateOptions options;
  GenerateStats stats;
  const auto go = [](int32_t) { return true; };
  EXPECT_EQ(generate(*session, m.model->tokenizer, {}, options, go, &stats).code(),
            Code::kUsage);
  for (double top_p : {-0.01, 1.01}) {
    options.sampling.top_p = top_p;
    EXPECT_EQ(
        generate(*session, m.model->tokenizer, test::prompt_of(3, 320), options, go, &stats)
            .code(),
        Code::kUsage);
  }
}

}  // namespace
}  // namespace headrace
