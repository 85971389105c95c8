// Long training runs, and many broken ones: memory does not grow, and whatever fails or is killed,
// a run that goes on ends with the bits of one that nothing ever happened to.
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <random>

#include "headrace/base/system_memory.h"
#include "headrace/tier/fault_tier.h"
#include "tests/e2e/process.h"
#include "tests/train/hook_tier.h"
#include "tests/train/test_run.h"

namespace headrace {
namespace {

using test::HookTier;
using test::TestRun;
using test::TransferLog;

constexpr int64_t kSteps = 60;  // of a run that is broken again and again

struct SoakRun : TestRun {
  SoakRun() {
    o.config.optimizer.clip_norm = 0.5;
    o.config.keep_checkpoints = 2;
    model.dropout = 0.1;
  }
  void use_disk() {
    o.tiers = {{"disk", o.config.out, 0}};
    o.threads = 2;
    plan_tight(0.7);
  }
  // From the newest checkpoint, or from the start.
  Result<std::unique_ptr<Trainer>> go_on(const EngineOptions& options = {}) {
    HR_ASSIGN(const std::string checkpoint, latest_checkpoint(o.config.out));
    return start(checkpoint, options);
  }
};

// deepspeed #4905, transformers #39275: hangs after some steps; #4871: memory that grows.
TEST(TrainSoak, TwoThousandStepsDoNotGrowAndAreThoseOfARunThatMovesNothing) {
  SoakRun run;
  const TestRun::Outcome want = run.outcome(2000);
  run.use_disk();
  auto t = run.start();
  ASSERT_TRUE(t.ok()) << t.status().message();
  Bytes early = 0;
  size_t held = 0;
  for (size_t step = 0; step < 2000; ++step) {
    auto r = (*t)->step();
    ASSERT_TRUE(r.ok()) << r.status().message();
    ASSERT_EQ(r->loss, want.losses[step]) << step;
    if (step == 100) {
      early = process_memory().rss;
      held = ::mallinfo2().uordblks;
    }
  }
  EXPECT_LE(process_memory().rss, early + 256 * kKiB);  // the kernel's counting is not exact
  EXPECT_EQ(::mallinfo2().uordblks, held);
  EXPECT_TRUE(TestRun::state(**t) == want.state);
}

TEST(TrainSoak, TransfersThatFailAtRandomNeverSpoilARun) {
  SoakRun run;
  const TestRun::Outcome want = run.outcome(kSteps);
  run.use_disk();
  std::mt19937_64 random(7);
  int failures = 0;
  for (;;) {
    FaultPlan faults;
    faults.seed = random();
    faults.delay_polls = static_cast<int>(random() % 8);
    faults.reorder_polls = static_cast<int>(random() % 30);
    faults.fail_at = failures < 100 ? 1 + static_cast<int64_t>(random() % 250) : 0;
    faults.fail_at_submit = random() % 2 == 0;
    faults.error_number = random() % 2 == 0 ? EIO : ENOSPC;
    faults.max_tickets = random() % 2 == 0 ? 4 : 1024;
    EngineOptions options;
    options.wrap = [&](std::unique_ptr<Tier> inner, size_t) {
      return make_fault_tier(std::move(inner), faults);
    };
    auto t = run.go_on(options);
    Status status = t.status();
    while (status.ok() && (*t)->done() < kSteps) {
      status = (*t)->step().status();
      const bool last = status.ok() && (*t)->done() == kSteps;
      if (last || (status.ok() && random() % 2 == 0)) status = (*t)->save();
    }
    if (status.ok()) break;
    EXPECT_EQ(status.code(), Code::kIo);
    ++failures;
  }
  auto t = run.go_on();
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->done(), kSteps);
  EXPECT_TRUE(TestRun::state(**t) == want.state);
  EXPECT_GT(failures, 10);
}

// The child trains and saves after every step until it is killed, at a transfer or at a moment.
TEST(TrainSoak, KillsAtRandomMomentsLoseAtMostTheStepUnderWay) {
  SoakRun run;
  const TestRun::Outcome want = run.outcome(kSteps);
  run.use_disk();
  ASSERT_TRUE(run.open_data().ok());
  std::mt19937_64 random(11);
  int64_t before = 0;
  for (int round = 0; round < 40; ++round) {
    const int64_t transfer = round % 2 == 0 ? 1 + static_cast<int64_t>(random() % 3000) : 0;
    const auto microseconds = static_cast<useconds_t>(random() % 120'000);
    int saved[2];
    ASSERT_EQ(::pipe(saved), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      TransferLog log;
      log.before = [&](int64_t number, bool) {
        if (number == transfer) ::kill(::getpid(), SIGKILL);
      };
      EngineOptions options;
      options.wrap = [&](std::unique_ptr<Tier> inner, size_t) -> std::unique_ptr<Tier> {
        return std::make_unique<HookTier>(std::move(inner), &log);
      };
      auto t = run.go_on(options);
      if (!t.ok()) ::_exit(1);
      while ((*t)->done() < kSteps) {
        if (!(*t)->step().ok() || !(*t)->save().ok()) ::_exit(2);
        const int64_t done = (*t)->done();
        if (::write(saved[1], &done, sizeof done) != sizeof done) ::_exit(3);
      }
      ::_exit(0);
    }
    ::close(saved[1]);
    if (transfer == 0) {
      ::usleep(microseconds);
      ::kill(child, SIGKILL);
    }
    int ended = 0;
    ASSERT_EQ(::waitpid(child, &ended, 0), child);
    ASSERT_TRUE(WIFSIGNALED(ended) || WEXITSTATUS(ended) == 0) << WEXITSTATUS(ended);
    int64_t said = before;
    for (int64_t n; ::read(saved[0], &n, sizeof n) == sizeof n;) said = n;
    ::close(saved[0]);
    auto checkpoint = latest_checkpoint(run.o.config.out);
    ASSERT_TRUE(checkpoint.ok());
    int64_t step = 0;
    if (!checkpoint->empty()) {
      auto info = read_checkpoint_info(*checkpoint);
      ASSERT_TRUE(info.ok()) << info.status().message();
      step = info->step;
    }
    EXPECT_GE(step, said) << "what was saved is there, round " << round;
    EXPECT_LE(step, said + 1) << round;
    before = step;
  }
  auto t = run.go_on();
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_TRUE(TestRun::finish(**t, kSteps).state == want.state);
}

// 100 steps of the program at several budgets: each is held, the losses are the same.
TEST(TrainSoak, TheProgramHoldsEveryBudgetAndTheLossesAreTheSame) {
  using Json = nlohmann::json;
  const testing::Folder folder(HEADRACE_BINARY_DIR);
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 2000; ++i) text << "The licensee shall keep notice " << i * i << " intact.\n";
  text.close();
  Json losses;
  for (const int mib : {64, 48, 40}) {
    const Json config = {
        {"name", "soak"},
        {"model", {{"family", "llama"}, {"layers", 4}, {"hidden", 128}, {"heads", 4},
                   {"ffn", 352}, {"vocab", 256}, {"tied_embeddings", true}}},
        {"data", {{"files", {"text.txt"}}, {"tokenizer", "bytes"}}},
        {"optimizer", {{"rate", 1e-3}, {"clip_norm", 1}}},
        {"batch", 4}, {"sequence", 128}, {"steps", 100}, {"checkpoint_every", 25},
        {"out", "run" + std::to_string(mib)}};
    std::ofstream(folder / "train.json") << config.dump();
    const testing::Finished f = testing::headrace(
        folder, {"train", folder / "train.json", "--memory", std::to_string(mib) + "MiB",
                 "--threads", "2", "--no-profile", "--report", folder / "report.json"});
    ASSERT_EQ(f.code, 0) << mib << ": " << f.err;
    const Json r = Json::parse(testing::slurp(folder / "report.json"));
    EXPECT_LE(r["peak_rss_bytes"], r["budget_bytes"]) << mib;
    if (losses.is_null()) losses = r["losses"];
    EXPECT_EQ(r["losses"].size(), 100u) << mib;
    EXPECT_EQ(r["losses"], losses) << mib;
  }
}

}  // namespace
}  // namespace headrace
