#include "headrace/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <numeric>

#include "headrace/tier/emulated_tier.h"
#include "headrace/tier/fault_tier.h"
#include "tests/train/test_run.h"

namespace headrace {
namespace {

using test::small_gpt2;
using test::small_llama;
using test::small_qwen2;
using test::TestRun;
using testing::HasSubstr;

TEST(Trainer, TheLossFalls) {
  for (StepModel m : {small_llama(), small_qwen2(), small_gpt2()}) {
    TestRun run(std::move(m));
    const TestRun::Outcome out = run.outcome(40);
    ASSERT_EQ(out.losses.size(), 40u) << run.model.name;
    EXPECT_NEAR(out.losses[0], std::log(67.0), 0.3) << run.model.name;
    EXPECT_LT(out.losses[39], 0.75 * out.losses[0]) << run.model.name;
  }
}

TEST(Trainer, EveryArenaAndNumberOfThreadsGivesTheSameBits) {
  TestRun run;
  run.o.config.optimizer.clip_norm = 1;
  const TestRun::Outcome want = run.outcome(5);
  const std::vector<Bytes> arenas = run.arenas({0.6, 0.4, 0.25});
  ASSERT_GE(arenas.size(), 3u);
  for (Bytes arena : arenas) {
    for (int threads : {1, 2}) {
      run.o.arena_bytes = arena;
      run.o.threads = threads;
      EXPECT_TRUE(run.outcome(5) == want) << arena << " bytes, " << threads << " threads";
    }
  }
}

TEST(Trainer, WhereStateLivesChangesNothing) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(200);
  run.o.arena_bytes = run.arenas({0.7})[1];  // less would have to move what is smaller than a page
  const StateTier host = {"host", "", kGiB}, small = {"small", "", 64 * kKiB};
  const StateTier disk = {"disk", run.o.config.out, 0};
  const std::vector<std::vector<StateTier>> mixes = {
      {host}, {disk}, {small, disk}, {disk, host}, {small, host, disk}};
  for (const std::vector<StateTier>& mix : mixes) {
    run.o.tiers = mix;
    EXPECT_TRUE(run.outcome(200) == want) << mix.size() << " tiers, first " << mix[0].name;
  }
}

TEST(Trainer, EveryPrecisionIsTheSameAtEveryArena) {
  for (Precision precision :
       {Precision::kBf16, Precision::kBf16Stochastic, Precision::kF16}) {
    StepModel m = small_llama();
    m.precision = precision;
    TestRun run(m);
    const TestRun::Outcome want = run.outcome(4);
    ASSERT_EQ(want.losses.size(), 4u);
    run.plan_tight();
    EXPECT_TRUE(run.outcome(4) == want) << name_of(precision);
  }
}

StepModel f16_llama() {
  StepModel m = small_llama();
  m.precision = Precision::kF16;
  return m;
}

TEST(Trainer, InF16TheLossFallsAsInBf16) {
  TestRun f16(f16_llama());
  StepModel m = small_llama();
  m.precision = Precision::kBf16;
  TestRun bf16(m);
  const TestRun::Outcome got = f16.outcome(40), want = bf16.outcome(40);
  ASSERT_EQ(got.losses.size(), 40u);
  ASSERT_EQ(want.losses.size(), 40u);
  EXPECT_NEAR(got.losses[0], want.losses[0], 0.02);
  EXPECT_LT(got.losses[39], 0.75 * got.losses[0]);
  EXPECT_NEAR(got.losses[39], want.losses[39], 0.1 * want.losses[39]);
}

TEST(Trainer, InF16AStepThatOverflowsChangesNothingAndHalvesTheScale) {
  TestRun run(f16_llama());
  run.o.config.optimizer.loss_scale = kMostLossScale;
  auto t = run.start();
  ASSERT_TRUE(t.ok()) << t.status().message();
  const std::vector<std::byte> before = TestRun::state(**t);
  double scale = kMostLossScale;
  int skipped = 0;
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ((*t)->loss_scale(), scale);
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_TRUE(std::isfinite(r->loss));
    if (!r->skipped) continue;
    ++skipped;
    scale /= 2;
    EXPECT_FALSE(std::isfinite(*r->gradient_norm));
    if (skipped == step + 1) {
      EXPECT_TRUE(TestRun::state(**t) == before);
    }
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 12);
  EXPECT_FALSE(TestRun::state(**t) == before);
}

TEST(Trainer, InF16AStepThatIsNotFiniteAtScaleOneStopsTheRun) {
  TestRun run(f16_llama());
  run.spoiled = "model.layers.1.mlp.up_proj.weight";
  run.o.config.optimizer.loss_scale = 4;
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  for (int step = 0; step < 2; ++step) {
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_TRUE(r->skipped);
  }
  EXPECT_EQ((*t)->loss_scale(), 1);
  auto r = (*t)->step();
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kNotFinite);
  EXPECT_THAT(r.status().message(), HasSubstr("step 3: the loss is"));
}

TEST(Trainer, InF16ARunGoesOnWithTheScaleItHadAndDoublesItInTime) {
  TestRun whole(f16_llama());
  whole.o.config.optimizer.loss_scale = 0x1p23;
  whole.o.config.batch = whole.o.config.accumulation = 1;
  whole.o.config.optimizer.rate = 1e-4;
  const int64_t steps = 2040, stop = 1000;
  whole.o.config.steps = steps;
  TestRun run(f16_llama());
  run.o.config = whole.o.config;
  run.o.config.out = run.folder.path();
  auto one = whole.start();
  ASSERT_TRUE(one.ok()) << one.status().message();
  double scale = (*one)->loss_scale(), scale_at_stop = 0;
  int doubled = 0;
  TestRun::Outcome want;
  while ((*one)->done() < steps) {
    auto r = (*one)->step();
    ASSERT_TRUE(r.ok()) << r.status().message();
    want.losses.push_back(r->loss);
    doubled += (*one)->loss_scale() > scale ? 1 : 0;
    scale = (*one)->loss_scale();
    if ((*one)->done() == stop) scale_at_stop = scale;
  }
  EXPECT_EQ(doubled, 1);
  auto first = run.start();
  ASSERT_TRUE(first.ok()) << first.status().message();
  (void)TestRun::finish(**first, stop);
  ASSERT_TRUE((*first)->save().ok());
  first->reset();
  auto checkpoint = latest_checkpoint(run.o.config.out);
  ASSERT_TRUE(checkpoint.ok());
  run.plan_tight();
  auto second = run.start(*checkpoint);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ((*second)->loss_scale(), scale_at_stop);
  EXPECT_LT(scale_at_stop, 0x1p23);
  const TestRun::Outcome rest = TestRun::finish(**second, steps);
  EXPECT_TRUE(rest.state == TestRun::state(**one));
  EXPECT_EQ(rest.losses, std::vector<double>(want.losses.begin() + stop, want.losses.end()));
  EXPECT_EQ((*second)->loss_scale(), scale);
}

TEST(Trainer, DelaysAndReorderingOfTransfersChangeNothing) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  run.plan_tight();
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    EngineOptions options;
    options.wrap = [seed](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = 3;
      faults.reorder_polls = 20;
      faults.seed = seed;
      faults.max_tickets = 1024;
      return make_fault_tier(std::move(inner), faults);
    };
    EXPECT_TRUE(run.outcome(4, options) == want) << seed;
  }
}

TEST(Trainer, PoisonInFreedMemoryAndChecksumsChangeNothing) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  run.plan_tight();
  run.o.paranoid = true;
  EXPECT_TRUE(run.outcome(4) == want);
}

TEST(Trainer, ARunInterruptedAfterAnyStepGoesOnBitForBit) {
  TestRun whole;
  whole.o.config.optimizer.clip_norm = 0.5;
  whole.model.dropout = 0.1;
  const TestRun::Outcome want = whole.outcome(10);
  const std::vector<Bytes> arenas = whole.arenas();
  for (int64_t stop = 1; stop < 10; ++stop) {
    TestRun run;
    run.o = whole.o;
    run.model = whole.model;
    run.o.config.out = run.folder.path();
    auto first = run.start();
    ASSERT_TRUE(first.ok()) << first.status().message();
    (void)TestRun::finish(**first, stop);
    ASSERT_TRUE((*first)->save().ok());
    first->reset();
    // Another budget, another number of threads.
    run.o.arena_bytes = arenas[static_cast<size_t>(stop) % arenas.size()];
    run.o.threads = 1 + static_cast<int>(stop % 2);
    auto checkpoint = latest_checkpoint(run.o.config.out);
    ASSERT_TRUE(checkpoint.ok());
    ASSERT_FALSE(checkpoint->empty());
    auto second = run.start(*checkpoint);
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ((*second)->done(), stop);
    const TestRun::Outcome rest = TestRun::finish(**second, 10);
    EXPECT_TRUE(rest.state == want.state) << stop;
    EXPECT_EQ(rest.losses, std::vector<double>(want.losses.begin() + stop, want.losses.end()));
  }
}

TEST(Trainer, ACheckpointOfAnotherModelIsRefused) {
  TestRun run;
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  (void)TestRun::finish(**t, 1);
  ASSERT_TRUE((*t)->save().ok());
  auto checkpoint = latest_checkpoint(run.o.config.out);
  ASSERT_TRUE(checkpoint.ok());
  run.model.ffn = 56;
  auto other = run.start(*checkpoint);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.status().code(), Code::kUsage);
  EXPECT_THAT(other.status().message(), HasSubstr("mlp.gate_proj.weight"));
}

TEST(Trainer, AccumulationGivesTheGradientNormOfOneBigBatch) {
  std::vector<double> norms;
  for (int64_t accumulation : {1, 2, 4, 8}) {
    TestRun run;
    run.o.config.accumulation = accumulation;
    run.o.config.batch = 8 / accumulation;
    run.o.config.optimizer.clip_norm = 1e9;
    const TestRun::Outcome out = run.outcome(1);
    ASSERT_EQ(out.norms.size(), 1u);
    norms.push_back(out.norms[0]);
  }
  for (double norm : norms) EXPECT_NEAR(norm, norms[0], 2e-6 * norms[0]);
}

TEST(Trainer, EvaluationsInBetweenChangeNothing) {
  TestRun run;
  run.model.dropout = 0.2;
  const TestRun::Outcome want = run.outcome(4);
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  TestRun::Outcome out;
  std::vector<double> evaluations;
  for (int step = 0; step < 4; ++step) {
    for (int twice = 0; twice < 2; ++twice) {
      auto loss = (*t)->evaluate();
      ASSERT_TRUE(loss.ok()) << loss.status().message();
      evaluations.push_back(*loss);
    }
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok());
    out.losses.push_back(r->loss);
  }
  EXPECT_EQ(out.losses, want.losses);
  EXPECT_TRUE(TestRun::state(**t) == want.state);
  EXPECT_EQ(evaluations[0], evaluations[1]);
  EXPECT_LT(evaluations[6], evaluations[0]);
}

TEST(Trainer, ALossThatIsNotANumberStopsTheRunAndNamesTheOpAndNothingIsSaved) {
  TestRun run;
  run.spoiled = "model.layers.1.mlp.up_proj.weight";
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  auto step = (*t)->step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.status().code(), Code::kNotFinite);
  EXPECT_THAT(step.status().message(), HasSubstr("step 1: the loss is"));
  EXPECT_THAT(step.status().message(), HasSubstr("layers.1."));
  EXPECT_THAT(step.status().message(), HasSubstr("there is no checkpoint"));
  EXPECT_EQ((*t)->done(), 0);
  EXPECT_FALSE((*t)->save().ok());
  EXPECT_FALSE((*t)->step().ok());
}

TEST(Trainer, OnRequestAStepThatIsNotFiniteIsSkippedAndChangesNothing) {
  TestRun run;
  run.spoiled = "model.layers.1.mlp.up_proj.weight";
  run.o.config.on_nan = "skip";
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  const std::vector<std::byte> before = TestRun::state(**t);
  auto step = (*t)->step();
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_TRUE(step->skipped);
  EXPECT_EQ((*t)->done(), 1);
  EXPECT_TRUE(TestRun::state(**t) == before);
}

TEST(Trainer, AFailedTransferEndsTheRunAndLeavesTheCheckpointAsItWas) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  run.plan_tight();
  auto good = run.start();
  ASSERT_TRUE(good.ok());
  (void)TestRun::finish(**good, 2);
  ASSERT_TRUE((*good)->save().ok());
  good->reset();
  auto checkpoint = latest_checkpoint(run.o.config.out);
  ASSERT_TRUE(checkpoint.ok());
  int failed = 0;
  for (int64_t k = 1; k < 4000; k = k * 3 / 2 + 1) {
    EngineOptions options;
    options.wrap = [k](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.fail_at = k;
      faults.max_tickets = 1024;
      return make_fault_tier(std::move(inner), faults);
    };
    auto t = run.start(*checkpoint, options);
    Status status = t.status();
    while (status.ok() && (*t)->done() < 4) status = (*t)->step().status();
    if (status.ok()) break;
    ++failed;
    EXPECT_EQ(status.code(), Code::kIo) << k;
    EXPECT_THAT(status.message(), HasSubstr("injected: object")) << k;
    if (t.ok()) {
      EXPECT_FALSE((*t)->step().ok()) << "nothing runs after an error";
    }
  }
  EXPECT_GT(failed, 3);
  auto again = run.start(*checkpoint);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(TestRun::finish(**again, 4).state == want.state);
}

TEST(Trainer, FrozenAndUnusedParametersAndGroupsDoNotDisturbClipping) {
  StepModel m = small_llama();
  m.frozen = {"embed_tokens", "layers.0.mlp"};
  TestRun run(m);
  run.o.config.optimizer.clip_norm = 0.1;
  ParameterGroup slow;
  slow.match = "layers.1";
  slow.rate_scale = 0.1;
  slow.weight_decay = 0;
  run.o.config.optimizer.groups = {slow};
  const TestRun::Outcome want = run.outcome(5);
  ASSERT_EQ(want.losses.size(), 5u);
  EXPECT_LT(want.losses[4], want.losses[0]);
  run.plan_tight();
  EXPECT_TRUE(run.outcome(5) == want);
}

TEST(Trainer, LoraTrainsItsOwnParametersAloneAtEveryArena) {
  StepModel m = small_llama();
  m.lora.rank = 4;
  m.lora.targets = {"q_proj", "v_proj", "down_proj"};
  TestRun run(m);
  const TestRun::Outcome want = run.outcome(40);
  ASSERT_EQ(want.losses.size(), 40u);
  const auto mean = [&](size_t begin) {
    return std::accumulate(want.losses.begin() + static_cast<std::ptrdiff_t>(begin),
                           want.losses.begin() + static_cast<std::ptrdiff_t>(begin) + 8, 0.0) / 8;
  };
  EXPECT_LT(mean(32), 0.98 * mean(0));
  run.plan_tight();
  EXPECT_TRUE(run.outcome(40) == want);
}

TEST(Trainer, NothingIsLeftInTheFolderButWhatARunIs) {
  TestRun run;
  run.plan_tight();
  for (int i = 0; i < 3; ++i) {
    auto t = run.start();
    ASSERT_TRUE(t.ok());
    (void)TestRun::finish(**t, 1);
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run.o.config.out)) {
    EXPECT_TRUE(entry.is_directory() || entry.path().extension() == ".tokens") << entry.path();
  }
}

TEST(Trainer, APlanMadeForAnotherMachineIsMadeAgainAndChangesNoBit) {
  TestRun run;
  run.o.config.accumulation = 1;
  run.o.config.sequence = 64;
  const TestRun::Outcome want = run.outcome(6);
  run.o.arena_bytes = run.arenas({0.7})[1];
  // Planned for a link that costs nothing; it moves 4 MB/s.
  TierInfo& link = run.o.machine.tiers[1];
  link.load_bytes_per_s = link.store_bytes_per_s = 1e12;
  EngineOptions options;
  options.wrap = [](std::unique_ptr<Tier> inner, size_t) {
    auto slow = open_emulated_tier(
        std::move(inner),
        std::make_shared<EmulatedLink>(LinkModel{4e6, 0, false}, real_clock()), 1024);
    return std::move(slow).value();
  };
  auto t = run.start("", options);
  ASSERT_TRUE(t.ok()) << t.status().message();
  TestRun::Outcome out;
  for (int step = 0; step < 6; ++step) {
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok()) << r.status().message();
    out.losses.push_back(r->loss);
    out.norms.push_back(0);
    if (step != 2) continue;
    auto again = (*t)->replan(1'000'000'000);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(again->swapped);
    EXPECT_LT(again->after_ns, again->before_ns);
    EXPECT_FALSE(std::filesystem::exists(run.o.config.out + "/replan"));
  }
  out.state = TestRun::state(**t);
  EXPECT_TRUE(out == want);
}

TEST(Trainer, ABudgetThatIsTooSmallIsRefusedWithTheLeastThatWouldDo) {
  TestRun run;
  run.o.memory_bytes = kMiB;
  auto p = run.plan();
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(p.status().message(), HasSubstr("1.00 MiB are not enough for"));
  run.o.memory_bytes = 4 * kGiB;
  run.o.arena_bytes = 8 * kPage;
  p = run.plan();
  ASSERT_FALSE(p.ok());
  EXPECT_EQ(p.status().code(), Code::kDoesNotFit);
  EXPECT_THAT(p.status().message(), HasSubstr("it takes at least --memory"));
}

}  // namespace
}  // namespace headrace
