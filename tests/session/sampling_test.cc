// The sampler against a plain implementation, and its distribution.
#include "headrace/session/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

std::vector<float> random_logits(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> out(n);
  for (float& v : out) v = normal(random);
  return out;
}

// What the options allow and with which probability, step by step as the header lists
// them; in descending order of probability, ties by id.
std::vector<std::pair<int32_t, double>> plain_distribution(
    const SamplingOptions& o, std::vector<float> logits,
    const std::vector<int32_t>& history) {
  const size_t back = std::min(history.size(), static_cast<size_t>(o.repeat_last));
  for (int32_t t : std::set<int32_t>(history.end() - static_cast<std::ptrdiff_t>(back),
                                     history.end())) {
    float& l = logits[static_cast<size_t>(t)];
    const float penalty = static_cast<float>(o.repeat_penalty);
    l = l > 0 ? l / penalty : l * penalty;
  }
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  if (o.temperature == 0) return {{ids[0], 1.0}};
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < ids.size()) {
    ids.resize(static_cast<size_t>(o.top_k));
  }
  std::vector<double> p;
  double sum = 0;
  for (int32_t id : ids) {
    p.push_back(std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) -
                          static_cast<double>(logits[static_cast<size_t>(ids[0])])) /
                         o.temperature));
    sum += p.back();
  }
  size_t keep = 0;
  for (double mass = 0; keep < p.size() && (keep == 0 || mass < o.top_p * sum); ++keep)
    mass += p[keep];
  while (keep > 1 && p[keep - 1] < o.min_p * p[0]) --keep;
  const double kept =
      std::accumulate(p.begin(), p.begin() + static_cast<std::ptrdiff_t>(keep), 0.0);
  std::vector<std::pair<int32_t, double>> out;
  for (size_t i = 0; i < keep; ++i) out.push_back({ids[i], p[i] / kept});
  return out;
}

// Pearson's statistic of `draws` draws, for the cells with at least five expected.
void expect_distribution(const SamplingOptions& options, const std::vector<float>& logits,
                         const std::vector<int32_t>& history) {
  constexpr int kDraws = 20'000;
  const auto want = plain_distribution(options, logits, history);
  Sampler sampler(options, static_cast<int64_t>(logits.size()));
  std::map<int32_t, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(logits, history)];
  double chi = 0, cells = 0, rest_expected = 0, rest_seen = 0, total = 0;
  for (const auto& [id, p] : want) {
    const double expected = p * kDraws, seen = counts[id];
    total += seen;
    if (expected < 5) {
      rest_expected += expected;
      rest_seen += seen;
      continue;
    }
    chi += (seen - expected) * (seen - expected) / expected;
    ++cells;
  }
  EXPECT_EQ(total, kDraws) << "a token was drawn that the options exclude";
  if (rest_expected >= 5) {
    chi += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  // Mean n - 1, deviation sqrt(2 (n - 1)): five deviations. The seed is fixed, so no run
  // differs.
  const double freedom = std::max(1.0, cells - 1);
  EXPECT_LE(chi, freedom + 5 * std::sqrt(2 * freedom));
}

TEST(Sampler, GreedyIsTheLargestAndTheSmallestIdAmongEquals) {
  Sampler sampler({}, 5);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 3, 2, 3, 0}, {}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-5, -3, -2, -3, -9}, {}), 2);
}

TEST(Sampler, DrawsFromTheDistributionThatTheOptionsDescribe) {
  const std::vector<float> logits = random_logits(50, 3);
  std::vector<SamplingOptions> all;
  for (double temperature : {0.3, 0.8, 1.0, 2.5}) {
    SamplingOptions o;
    o.temperature = temperature;
    o.seed = 42;
    all.push_back(o);
    o.top_k = 7;
    all.push_back(o);
    o.top_p = 0.8;
    all.push_back(o);
    o.top_k = 0;
    all.push_back(o);
    o.top_p = 1;
    o.min_p = 0.1;
    all.push_back(o);
    o.top_k = 20;
    o.top_p = 0.9;
    o.repeat_penalty = 1.3;
    all.push_back(o);
  }
  for (const SamplingOptions& o : all) {
    SCOPED_TRACE(::testing::Message()
                 << o.temperature << " k " << o.top_k << " p " << o.top_p << " min "
                 << o.min_p << " penalty " << o.repeat_penalty);
    expect_distribution(o, logits, {1, 2, 3, 3, 3, 10});
  }
}

TEST(Sampler, OneSeedIsOneSequenceAndAnotherSeedIsAnother) {
  const std::vector<float> logits = random_logits(100, 1);
  const auto sequence = [&](uint64_t seed) {
    SamplingOptions o;
    o.temperature = 1;
    o.seed = seed;
    Sampler sampler(o, 100);
    std::vector<int32_t> out;
    for (int i = 0; i < 12; ++i) out.push_back(sampler.sample(logits, out));
    return out;
  };
  EXPECT_EQ(sequence(0), sequence(0));
  EXPECT_NE(sequence(0), sequence(1));
  EXPECT_NE(sequence(1), sequence(uint64_t{1} << 63 | 1));
}

// Equal logits: the draw is the 32-bit number itself, so this is the generator's own
// sequence: PCG-XSH-RR 64/32 seeded as its author does (state 0, a step, the seed added,
// a step).
TEST(Sampler, TheSequenceOfASeedNeverChanges) {
  SamplingOptions o;
  o.temperature = 1;
  o.seed = 42;
  Sampler sampler(o, 1000);
  const std::vector<float> equal(1000, 0.0f);
  uint64_t state = 0;
  const auto next = [&state] {
    const uint64_t old = state;
    state = old * 6364136223846793005ull + 1442695040888963407ull;
    const uint32_t mixed = static_cast<uint32_t>(((old >> 18) ^ old) >> 27);
    const uint32_t turn = static_cast<uint32_t>(old >> 59);
    return turn == 0 ? mixed : mixed >> turn | mixed << (32 - turn);
  };
  next();
  state += 42;
  next();
  std::vector<int32_t> got, want;
  for (int i = 0; i < 200; ++i) {
    got.push_back(sampler.sample(equal, {}));
    want.push_back(static_cast<int32_t>(next() / 4294967296.0 * 1000));
  }
  EXPECT_EQ(got, want);
}

TEST(Sampler, TopKOfOneAndTinyTopPAreGreedy) {
  const std::vector<float> logits = random_logits(64, 5);
  const int32_t best = static_cast<int32_t>(
      std::max_element(logits.begin(), logits.end()) - logits.begin());
  SamplingOptions k;
  k.temperature = 5;
  k.top_k = 1;
  SamplingOptions p;
  p.temperature = 5;
  p.top_p = 1e-9;
  SamplingOptions none = p;
  none.top_p = 0;
  SamplingOptions m;
  m.temperature = 5;
  m.min_p = 1;
  for (const SamplingOptions& o : {k, p, none, m}) {
    Sampler sampler(o, 64);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(sampler.sample(logits, {}), best);
  }
}

TEST(Sampler, ATopKBeyondTheVocabularyIsAll) {
  SamplingOptions o;
  o.temperature = 1;
  o.top_k = 1000;
  expect_distribution(o, random_logits(30, 8), {});
}

TEST(Sampler, ThePenaltyAppliesToGreedyToo) {
  SamplingOptions o;
  o.repeat_penalty = 2;
  Sampler sampler(o, 3);
  const std::vector<float> logits = {3, 2.9f, -1};
  EXPECT_EQ(sampler.sample(logits, {}), 0);
  EXPECT_EQ(sampler.sample(logits, std::vector<int32_t>{0}), 1);
  EXPECT_EQ(sampler.sample(logits, std::vector<int32_t>{0, 0, 0, 0}),
            1);  // once, however often
  EXPECT_EQ(sampler.sample(logits, std::vector<int32_t>{0, 1}), 0);
  const std::vector<float> below = {-1, -1.5f, -1.9f};
  EXPECT_EQ(sampler.sample(below, std::vector<int32_t>{0}),
            1);  // -1 becomes -2: further down
}

TEST(Sampler, ThePenaltyLooksBackOnlySoFar) {
  SamplingOptions o;
  o.repeat_penalty = 2;
  o.repeat_last = 2;
  Sampler sampler(o, 3);
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(sampler.sample(logits, std::vector<int32_t>{0, 2, 2}), 0);
  EXPECT_EQ(sampler.sample(logits, std::vector<int32_t>{2, 0, 2}), 1);
  o.repeat_last = 0;
  Sampler none(o, 3);
  EXPECT_EQ(none.sample(logits, std::vector<int32_t>{0}), 0);
}

TEST(Sampler, ExtremeTemperaturesAndLogitsStayInside) {
  for (double temperature : {1e-300, 1e-6, 1e6, 1e300}) {
    SamplingOptions o;
    o.temperature = temperature;
    Sampler sampler(o, 4);
    for (int i = 0; i < 100; ++i) {
      const int32_t t = sampler.sample(std::vector<float>{3e38f, -3e38f, 0, 3e38f}, {});
      EXPECT_TRUE(t >= 0 && t < 4);
      EXPECT_TRUE(temperature >= 1 || t != 1);
    }
  }
}

TEST(Sampler, PresenceAndFrequencyPenaltiesCountWhatWasGenerated) {
  const std::vector<float> logits = {3, 2.5f, 1};
  const auto pick = [&](double presence, double frequency, std::vector<int32_t> history,
                        size_t generated) {
    SamplingOptions o;
    o.presence_penalty = presence;
    o.frequency_penalty = frequency;
    Sampler sampler(o, 3);
    return sampler.sample(logits, history, generated);
  };
  EXPECT_EQ(pick(1, 0, {0}, 1), 1);           // 3 - 1 < 2.5
  EXPECT_EQ(pick(1, 0, {0, 2}, 1), 0);        // 0 is of the prompt
  EXPECT_EQ(pick(0.4, 0, {0, 0, 0}, 3), 0);   // once, however often
  EXPECT_EQ(pick(0, 0.4, {0}, 1), 0);
  EXPECT_EQ(pick(0, 0.4, {0, 0}, 2), 1);      // 3 - 0.8 < 2.5
  EXPECT_EQ(pick(0, 0.4, {0, 0}, 1), 0);      // one of them is of the prompt
  EXPECT_EQ(pick(0.3, 0.3, {0}, 1), 1);       // both: 3 - 0.6
  EXPECT_EQ(pick(-2, 0, {2}, 1), 0);          // below 0 draws to what was there: 1 + 2 = 3, a tie
  EXPECT_EQ(pick(-2, -0.1, {2}, 1), 2);
}

TEST(Sampler, ABiasMovesATokenAndBansAtItsLowest) {
  const std::vector<float> logits = {500, 2.5f, 1};
  SamplingOptions o;
  o.logit_bias = {{0, -100}};
  EXPECT_EQ(Sampler(o, 3).sample(logits, {}), 1) << "a ban holds however large the logit is";
  o.logit_bias = {{0, -99}};
  EXPECT_EQ(Sampler(o, 3).sample(logits, {}), 0);
  o.logit_bias = {{0, -100}, {2, 2}};
  EXPECT_EQ(Sampler(o, 3).sample(logits, {}), 2);
  o.logit_bias = {{0, -100}, {1, -100}, {2, -100}};
  EXPECT_EQ(Sampler(o, 3).sample(logits, {}), 0) << "all banned: the smallest id";
  o.temperature = 1;
  EXPECT_EQ(Sampler(o, 3).sample(logits, {}), 0);
  o.logit_bias = {{0, -100}, {1, -100}};
  Sampler drawn(o, 3);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(drawn.sample(logits, {}), 2);
}

TEST(Sampler, DrawsFollowPenaltiesAndBias) {
  std::vector<float> logits = random_logits(40, 11);
  SamplingOptions o;
  o.temperature = 0.9;
  o.seed = 5;
  o.presence_penalty = 0.7;
  o.frequency_penalty = 0.3;
  o.logit_bias = {{4, 2.5f}, {9, -3}, {12, -100}};
  const std::vector<int32_t> history = {1, 4, 4, 7, 7, 7};  // the first is the prompt's
  std::vector<float> changed = logits;
  for (const auto& [token, count] : std::map<int, int>{{4, 2}, {7, 3}}) {
    changed[static_cast<size_t>(token)] = static_cast<float>(
        changed[static_cast<size_t>(token)] - 0.7 - 0.3 * count);
  }
  changed[4] += 2.5f;
  changed[9] -= 3;
  changed[12] = -1e30f;
  SamplingOptions plain;
  plain.temperature = 0.9;
  plain.seed = 5;
  Sampler sampler(o, 40), same(plain, 40);
  for (int i = 0; i < 5'000; ++i) {
    ASSERT_EQ(sampler.sample(logits, history, 5), same.sample(changed, {}));
  }
}

TEST(Sampler, ManySharingOneScratchDrawAsIfAlone) {
  const std::vector<float> logits = random_logits(200, 4);
  SamplerScratch scratch(200);
  std::vector<Sampler> shared, alone;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SamplingOptions o;
    o.seed = seed;
    o.temperature = 0.4 * static_cast<double>(seed);
    o.top_k = seed % 2 == 0 ? 0 : 20;
    o.frequency_penalty = 0.2;
    shared.emplace_back(o, &scratch);
    alone.emplace_back(o, 200);
  }
  std::vector<std::vector<int32_t>> histories(6);
  for (int i = 0; i < 60; ++i) {
    for (size_t s = 0; s < 6; ++s) {
      const int32_t token = shared[s].sample(logits, histories[s], histories[s].size());
      ASSERT_EQ(token, alone[s].sample(logits, histories[s], histories[s].size()));
      histories[s].push_back(token);
    }
  }
}

TEST(Sampler, ItsRandomStateSavedAndSetAgainRepeatsItsDraws) {
  const std::vector<float> logits = random_logits(100, 2);
  SamplingOptions o;
  o.temperature = 1.5;
  Sampler sampler(o, 100);
  sampler.sample(logits, {});
  const uint64_t state = sampler.random_state();
  std::vector<int32_t> first, again;
  for (int i = 0; i < 20; ++i) first.push_back(sampler.sample(logits, {}));
  sampler.set_random_state(state);
  Sampler other(o, 100);
  other.set_random_state(state);
  for (int i = 0; i < 20; ++i) {
    again.push_back(sampler.sample(logits, {}));
    EXPECT_EQ(other.sample(logits, {}), again.back());
  }
  EXPECT_EQ(first, again);
  SamplingOptions greedy;
  Sampler none(greedy, 100);
  const uint64_t before = none.random_state();
  none.sample(logits, {});
  EXPECT_EQ(none.random_state(), before) << "greedy draws nothing";
}

TEST(LogSoftmax, IsTheLogarithmOfTheSoftmaxOfTheRawLogits) {
  const std::vector<float> logits = random_logits(500, 6);
  std::vector<Logprob> top;
  long double sum = 0;
  for (float l : logits) sum += std::exp(static_cast<long double>(l));
  double total = 0;
  for (int32_t t = 0; t < 500; ++t) {
    const double got = log_softmax(logits, t, 0, nullptr);
    const long double logit = logits[static_cast<size_t>(t)];
    const long double want = logit - std::log(sum);
    EXPECT_NEAR(got, static_cast<double>(want), 1e-12);
    total += std::exp(got);
  }
  EXPECT_NEAR(total, 1, 1e-12);
  std::vector<int32_t> ids(500);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  log_softmax(logits, 3, 20, &top);
  ASSERT_EQ(top.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(top[i].token, ids[i]);
    EXPECT_EQ(top[i].value, log_softmax(logits, ids[i], 0, nullptr));
  }
}

TEST(LogSoftmax, TiesGoToTheSmallerIdAndExtremesStayFinite) {
  std::vector<Logprob> top = {{9, 9}};
  EXPECT_NEAR(log_softmax(std::vector<float>{1, 2, 2, 1, 2}, 1, 4, &top), std::log(1 / 3.74), 0.01);
  ASSERT_EQ(top.size(), 4u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_EQ(top[1].token, 2);
  EXPECT_EQ(top[2].token, 4);
  EXPECT_EQ(top[3].token, 0);
  EXPECT_EQ(log_softmax(std::vector<float>{3e38f, -3e38f}, 0, 5, &top), 0);
  ASSERT_EQ(top.size(), 2u) << "no more than there are";
  EXPECT_TRUE(std::isfinite(top[1].value));
  EXPECT_EQ(log_softmax(std::vector<float>{7}, 0, 0, &top), 0);
  EXPECT_TRUE(top.empty());
}

TEST(SamplingOptions, OutOfRangeOnesAreNamed) {
  const auto refused = [](auto change, const char* name) {
    SamplingOptions o;
    change(o);
    const Status s = check(o);
    EXPECT_EQ(s.code(), Code::kUsage) << name;
    EXPECT_THAT(s.message(), HasSubstr(name));
  };
  EXPECT_TRUE(check({}).ok());
  refused([](auto& o) { o.temperature = -0.1; }, "temperature");
  refused([](auto& o) { o.temperature = std::nan(""); }, "temperature");
  refused([](auto& o) { o.top_k = -1; }, "top-k");
  refused([](auto& o) { o.top_p = -0.01; }, "top-p");
  refused([](auto& o) { o.top_p = 1.01; }, "top-p");
  refused([](auto& o) { o.top_p = std::nan(""); }, "top-p");
  refused([](auto& o) { o.min_p = -0.1; }, "min-p");
  refused([](auto& o) { o.min_p = 1.1; }, "min-p");
  refused([](auto& o) { o.repeat_penalty = 0; }, "repeat-penalty");
  refused([](auto& o) { o.repeat_penalty = std::nan(""); }, "repeat-penalty");
  refused([](auto& o) { o.repeat_last = -1; }, "repeat-last");
  refused([](auto& o) { o.presence_penalty = 2.1; }, "presence-penalty");
  refused([](auto& o) { o.presence_penalty = std::nan(""); }, "presence-penalty");
  refused([](auto& o) { o.frequency_penalty = -2.1; }, "frequency-penalty");
  refused([](auto& o) { o.logit_bias = {{3, 101}}; }, "logit-bias");
  refused([](auto& o) { o.logit_bias = {{3, std::nanf("")}}; }, "logit-bias");
  refused([](auto& o) { o.logit_bias = {{-1, 1}}; }, "logit-bias");
  refused([](auto& o) { o.logit_bias = {{3, 1}, {3, 2}}; }, "logit-bias");
  SamplingOptions o;
  o.logit_bias = {{3, 1}, {9, 2}};
  EXPECT_TRUE(check(o, 10).ok());
  EXPECT_THAT(check(o, 9).message(), HasSubstr("token 9"));
}

}  // namespace
}  // namespace headrace
