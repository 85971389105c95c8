// Training: what users of other systems ran into with optimizers, groups, data and checkpoints, one
// test a report, named in the comment before it. README.md has the whole list.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/train/test_run.h"

namespace headrace {
namespace {

using test::small_llama;
using test::TestRun;

// Half of the room, with a small tier and a disk behind it.
void use_tiers(TestRun& run) {
  run.o.tiers = {{"small", "", 64 * kKiB}, {"disk", run.o.config.out, 0}};
  run.plan_tight(0.7);
}

// The bytes of the parameters whose names contain `match`.
std::string parameters(Trainer& t, const std::string& match) {
  std::string out;
  const Graph& g = t.plan().step->workload.graph;
  for (const Parameter& p : t.plan().step->parameters) {
    if (!p.trainable || p.name.find(match) == std::string::npos) continue;
    const Tensor& tensor = g.at(p.param);
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    EXPECT_TRUE(t.engine().read(tensor.name, 0, bytes).ok());
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

ParameterGroup group(const std::string& match, double scale) {
  ParameterGroup g;
  g.match = match;
  g.rate_scale = scale;
  return g;
}

// deepspeed #7905, #7925, #7627: KeyError with two parameter groups. ao #959, #1209, PR #1649: an
// offloaded optimizer takes no schedule and no groups. 1, 2 and 5 groups, each with a schedule, for
// both optimizers; a run interrupted in the middle of the warm-up goes on with the same rates.
TEST(TrainRuns, AnyNumberOfGroupsWithAScheduleIsTheSameOnEveryTier) {
  const std::vector<ParameterGroup> all = {group("layers.0", 0), group("layers.1.self_attn", 0.1),
                                           group("layers.1.mlp", 2), group("norm", 0.5),
                                           group("lm_head", 1)};
  for (const char* kind : {"adamw", "sgd"}) {
    for (const int count : {0, 1, 5}) {
      TestRun run;
      run.o.config.optimizer.kind = kind;
      run.o.config.optimizer.schedule = count == 1 ? "linear" : "cosine";
      run.o.config.optimizer.warmup_steps = 3;
      run.o.config.optimizer.clip_norm = 0.5;
      run.o.config.optimizer.groups.assign(all.begin(), all.begin() + count);
      auto t = run.start();
      ASSERT_TRUE(t.ok()) << t.status().message();
      const std::string held = parameters(**t, "layers.0"), moved = parameters(**t, "layers.1");
      const TestRun::Outcome want = TestRun::finish(**t, 4);
      EXPECT_EQ(parameters(**t, "layers.0") == held, count > 0) << "a rate of 0 is group 0's";
      EXPECT_NE(parameters(**t, "layers.1"), moved);
      use_tiers(run);
      auto first = run.start();
      ASSERT_TRUE(first.ok()) << first.status().message();
      (void)TestRun::finish(**first, 2);
      ASSERT_TRUE((*first)->save().ok());
      first->reset();
      auto second = run.start(*latest_checkpoint(run.o.config.out));
      ASSERT_TRUE(second.ok()) << second.status().message();
      const TestRun::Outcome got = TestRun::finish(**second, 4);
      EXPECT_TRUE(got.state == want.state) << kind << " " << count;
      EXPECT_EQ(got.losses[1], want.losses[3]) << kind << " " << count;
    }
  }
}

// pytorch #148532, Automodel PR #3461: clipping fails when gradients are not on the device.
// deepspeed PR #7302, #5241, #5422, #5538: the norm leaves out what is offloaded or unused. Rows of
// the tables that no token names have no gradient and keep their bits; the norm is the same
// wherever gradients wait.
TEST(TrainRuns, ClippingCountsEveryGradientOnceWhereverItWaitsAndUnusedRowsStay) {
  StepModel model = small_llama();
  model.table_tile = kKiB;  // 8 rows of 32 floats: whole tiles are never named
  TestRun run(model);
  run.o.config.optimizer.weight_decay = 0;
  run.o.config.optimizer.clip_norm = 0.1;
  std::ofstream data(run.o.config.data.files[0], std::ios::binary | std::ios::trunc);
  for (int i = 0; i < 2000; ++i) {
    const uint16_t token = static_cast<uint16_t>(i * i % 23);
    data.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  data.close();
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  const size_t row = 32 * sizeof(float);
  const std::string before = parameters(**t, "embed_tokens");
  const TestRun::Outcome want = TestRun::finish(**t, 4);
  const std::string after = parameters(**t, "embed_tokens");
  EXPECT_EQ(before.substr(23 * row), after.substr(23 * row));
  EXPECT_NE(before.substr(0, 23 * row), after.substr(0, 23 * row));
  for (double norm : want.norms) EXPECT_GT(norm, 0.1) << "this clips";
  use_tiers(run);
  EXPECT_TRUE(run.outcome(4) == want);
  // Twice the loss over twice the sequences: the same norm without the tables cut.
  TestRun whole;
  whole.o = run.o;
  whole.o.arena_bytes = 0;
  auto once = whole.start();
  ASSERT_TRUE(once.ok());
  auto step = (*once)->step();
  ASSERT_TRUE(step.ok());
  EXPECT_NEAR(*step->gradient_norm, want.norms[0], 1e-6 * want.norms[0]);
}

// modelscope/ms-swift PR #9844, NeMo-RL PR #2279: a forward without gradients corrupts what is
// offloaded.
TEST(TrainRuns, EvaluationsBetweenStepsOfAnOffloadedRunChangeNothing) {
  TestRun run;
  run.model.dropout = 0.1;
  const TestRun::Outcome want = run.outcome(4);
  use_tiers(run);
  auto t = run.start();
  ASSERT_TRUE(t.ok());
  for (int step = 0; step < 4; ++step) {
    for (int times = 0; times < step; ++times) ASSERT_TRUE((*t)->evaluate().ok());
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->loss, want.losses[static_cast<size_t>(step)]);
  }
  EXPECT_TRUE(TestRun::state(**t) == want.state);
}

// Stochastic rounding that is another one on every run cannot be resumed: bits depend on the seed
// and the step alone.
TEST(TrainRuns, StochasticRoundingIsTheSameOnEveryTierAndAfterAResume) {
  StepModel model = small_llama();
  model.precision = Precision::kBf16Stochastic;
  TestRun run(model);
  const TestRun::Outcome want = run.outcome(4);
  use_tiers(run);
  run.o.threads = 1;
  auto first = run.start();
  ASSERT_TRUE(first.ok()) << first.status().message();
  (void)TestRun::finish(**first, 3);
  ASSERT_TRUE((*first)->save().ok());
  first->reset();
  auto second = run.start(*latest_checkpoint(run.o.config.out));
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(TestRun::finish(**second, 4).state == want.state);
  TestRun other(model);
  other.o.config.seed = 2;
  EXPECT_FALSE(other.outcome(4).state == want.state);
}

// The same tokens as 2 bytes, 4 bytes or text, in one file or three, are the same run.
TEST(TrainRuns, EveryFileFormatGivesTheSameSteps) {
  const auto token = [](int i) { return 1 + i * i * 7 % 66; };
  std::vector<double> want;
  for (const char* format : {"u16", "u32", "text"}) {
    for (const int files : {1, 3}) {
      TestRun run;
      run.o.config.data.format = format;
      run.o.config.data.tokenizer = "bytes";
      run.o.config.data.files.clear();
      for (int f = 0; f < files; ++f) {
        const std::string path = run.folder.file("part" + std::to_string(f));
        run.o.config.data.files.push_back(path);
        std::ofstream out(path, std::ios::binary);
        for (int i = 1200 * f / files; i < 1200 * (f + 1) / files; ++i) {
          const uint32_t bits = static_cast<uint32_t>(token(i));
          const int width = format[0] == 't' ? 1 : format[1] == '1' ? 2 : 4;
          out.write(reinterpret_cast<const char*>(&bits), width);
        }
      }
      const TestRun::Outcome out = run.outcome(3);
      ASSERT_EQ(out.losses.size(), 3u) << format;
      if (want.empty()) want = out.losses;
      EXPECT_EQ(out.losses, want) << format << " in " << files;
    }
  }
}

// deepspeed #7549: two ranks that save at once end in FileExistsError, and what is loaded hangs.
TEST(TrainRuns, TwoRunsSaveIntoOneFolderAtOnceAndWhatIsThereCanBeLoadedAndStepped) {
  TestRun one, two;
  const TestRun::Outcome want = one.outcome(5);
  two.o.config = one.o.config;
  const auto train = [](TestRun* run, int64_t* saved) {
    auto t = run->start();
    if (!t.ok()) return;
    while ((*t)->done() < 4) {
      if (!(*t)->step().ok() || !(*t)->save().ok()) return;
      ++*saved;
    }
  };
  ASSERT_TRUE(one.open_data().ok() && two.open_data().ok());
  int64_t saved[2] = {0, 0};
  std::thread other(train, &one, &saved[0]);
  train(&two, &saved[1]);
  other.join();
  EXPECT_EQ(saved[0], 4);
  EXPECT_EQ(saved[1], 4);
  auto checkpoint = latest_checkpoint(one.o.config.out);
  ASSERT_TRUE(checkpoint.ok());
  auto t = one.start(*checkpoint);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_TRUE(TestRun::finish(**t, 5).state == want.state);
}

// Bytes of all files, and how many there are.
std::pair<int64_t, Bytes> size_of(const std::string& folder) {
  std::pair<int64_t, Bytes> out = {0, 0};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    ++out.first;
    out.second += static_cast<Bytes>(entry.file_size());
  }
  return out;
}

// deepspeed #2082, PR #4416, #4707: swap files named by an address: the disk fills run by run.
TEST(TrainRuns, TwentyRunsLeaveAsMuchOnTheDiskAsOne) {
  TestRun run;
  use_tiers(run);
  std::pair<int64_t, Bytes> first;
  for (int i = 0; i < 20; ++i) {
    auto t = run.start();
    ASSERT_TRUE(t.ok()) << t.status().message();
    (void)TestRun::finish(**t, 1);
    ASSERT_TRUE((*t)->save().ok());
    t->reset();
    if (i == 0) first = size_of(run.o.config.out);
    EXPECT_EQ(size_of(run.o.config.out).first, first.first) << i;
    // The manifest counts the saves: a digit more.
    EXPECT_LE(std::abs(size_of(run.o.config.out).second - first.second), 2) << i;
  }
}

}  // namespace
}  // namespace headrace
