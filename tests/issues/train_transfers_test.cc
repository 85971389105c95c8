// Training: what users of other systems ran into where state moves, one test a report, named in the
// comment before it. README.md has the whole list.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <random>
#include <string>

#include "headrace/tier/emulated_tier.h"
#include "headrace/tier/fault_tier.h"
#include "headrace/tier/file_tier.h"
#include "tests/tier/scripted_backend.h"
#include "tests/train/hook_tier.h"
#include "tests/train/test_run.h"

namespace headrace {
namespace {

using test::HookTier;
using test::TestRun;
using test::TransferLog;
using ::testing::HasSubstr;
using testing_tier::Answer;
using testing_tier::Script;
using testing_tier::ScriptedBackend;

constexpr int kTickets = 1024;

// State on a disk, in 70 % of the room that would hold all of it.
void use_disk(TestRun& run) {
  run.o.tiers = {{"disk", run.o.config.out, 0}};
  run.plan_tight(0.7);
}

// The engine's scratch file is replaced by one with this backend around the real system calls.
EngineOptions scripted(const TestRun& run, Script script, FileMethod method = FileMethod::kBest) {
  EngineOptions options;
  options.wrap = [folder = run.folder.path(), script = std::move(script), method](
                     std::unique_ptr<Tier> inner, size_t) -> std::unique_ptr<Tier> {
    const auto* file = dynamic_cast<const FileTier*>(inner.get());
    EXPECT_NE(file, nullptr);
    FileTierOptions o;
    o.access = FileAccess::kScratch;
    o.scratch_bytes = file->object_bytes(0);
    o.method = method;
    o.queue_depth = 4;
    o.chunk_bytes = 8 * kKiB;
    o.max_tickets = kTickets;
    o.register_buffers = false;
    if (script) {
      o.wrap_backend = [script](std::unique_ptr<IoBackend> real) {
        return std::make_unique<ScriptedBackend>(std::move(real), script);
      };
    }
    auto tier = open_file_tier({folder + "/scripted"}, nullptr, o);
    EXPECT_TRUE(tier.ok()) << tier.status().message();
    if (!tier.ok()) return inner;
    return std::move(tier).value();
  };
  return options;
}

// NVIDIA/Megatron-LM #7398, meta-pytorch/torchtune #1867: what is reloaded is read while it is
// still being written, or freed while it is still being copied; nothing raises. Here what is freed
// is NaN at once, what is loaded is NaN until its ticket has been waited for, and transfers are
// late and out of order.
TEST(TrainTransfers, LateTransfersAndPoisonInFreedMemoryTogetherChangeNothing) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  run.o.paranoid = true;
  use_disk(run);
  for (uint64_t seed : {1, 2, 3}) {
    EngineOptions options;
    options.wrap = [seed](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = 10;
      faults.reorder_polls = 50;
      faults.seed = seed;
      faults.max_tickets = kTickets;
      return make_fault_tier(std::move(inner), faults);
    };
    EXPECT_TRUE(run.outcome(4, options) == want) << seed;
  }
}

// deepspeed #2272: with the optimizer on NVMe the loss falls less. Whatever way the disk is used,
// past the page cache or through it, the bits are the same.
TEST(TrainTransfers, EveryWayToUseADiskGivesTheSameBits) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(6);
  use_disk(run);
  for (FileMethod method :
       {FileMethod::kBest, FileMethod::kPreadDirect, FileMethod::kPreadBuffered}) {
    EXPECT_TRUE(run.outcome(6, scripted(run, nullptr, method)) == want)
        << static_cast<int>(method);
  }
}

// deepspeed #4888: "Assertion n_completes >= min_completes" aborts the run.
TEST(TrainTransfers, ShortTransfersAndInterruptsChangeNothing) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  use_disk(run);
  std::mt19937_64 random(1);
  int64_t troubles = 0;
  const Script trouble = [&](const IoRequest& r, int64_t) {
    const uint64_t kind = random() % 6;
    troubles += kind < 3 ? 1 : 0;
    if (kind == 0) return Answer{-EINTR};
    if (kind == 1) return Answer{-EAGAIN};
    return kind == 2 ? Answer{1 + static_cast<int64_t>(random() % static_cast<uint64_t>(r.bytes))}
                     : Answer{};
  };
  EXPECT_TRUE(run.outcome(4, scripted(run, trouble)) == want);
  EXPECT_GT(troubles, 100);
}

// The same, and a disk that is full or gone: an error that says which step, tensor, tier, file and
// errno; nothing runs after it, and the checkpoint on the disk stays good.
TEST(TrainTransfers, AFullOrBrokenDiskIsATypedErrorAndTheCheckpointStaysGood) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  use_disk(run);
  auto first = run.start();
  ASSERT_TRUE(first.ok()) << first.status().message();
  (void)TestRun::finish(**first, 2);
  ASSERT_TRUE((*first)->save().ok());
  first->reset();
  auto checkpoint = latest_checkpoint(run.o.config.out);
  ASSERT_TRUE(checkpoint.ok());
  struct Case {
    bool write;
    int64_t answer;
    const char* text;
  };
  for (const Case& c : {Case{true, -ENOSPC, "No space left"}, Case{true, -EIO, "errno 5"},
                        Case{false, -EIO, "errno 5"}, Case{false, 0, "end of file"}}) {
    for (int64_t k : {0, 7, 40}) {
      bool running = false;
      int64_t n = 0;
      const Script script = [&](const IoRequest& r, int64_t) {
        return running && r.write == c.write && n++ == k ? Answer{c.answer} : Answer{};
      };
      auto t = run.start(*checkpoint, scripted(run, script));
      ASSERT_TRUE(t.ok()) << t.status().message();
      running = true;
      Status status;
      while (status.ok() && (*t)->done() < 30) status = (*t)->step().status();
      EXPECT_EQ(status.code(), Code::kIo) << c.text << k;
      for (const char* part : {c.text, "step ", "tier 'disk'", "scripted"}) {
        EXPECT_THAT(status.message(), HasSubstr(part));
      }
      EXPECT_FALSE((*t)->step().ok()) << "nothing runs after an error";
      EXPECT_FALSE((*t)->save().ok()) << "what is broken is not saved";
    }
  }
  auto again = run.start(*checkpoint);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(TestRun::finish(**again, 4).state == want.state);
}

// deepspeed #4905, transformers #39275: hangs after some steps. A device that never answers ends
// the run with the tensor it was waited for.
TEST(TrainTransfers, ADeviceThatNeverDeliversIsAnErrorWithANameAndNoHang) {
  TestRun run;
  use_disk(run);
  bool gone = false;
  const Script script = [&](const IoRequest&, int64_t) {
    return gone ? Answer{-EAGAIN} : Answer{};
  };
  auto t = run.start("", scripted(run, script));
  ASSERT_TRUE(t.ok());
  ASSERT_TRUE((*t)->step().ok());
  gone = true;
  Status status;
  while (status.ok() && (*t)->done() < 5) status = (*t)->step().status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_THAT(status.message(), HasSubstr("in a row"));
  EXPECT_THAT(status.message(), HasSubstr("tier 'disk'"));
}

// LMCache #2942 and deepspeed #4905 again: a tier with hardly any slots may be slow, never stuck.
TEST(TrainTransfers, ATierWithOneSlotIsNeitherADeadlockNorAnotherResult) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(3);
  run.plan_tight();
  for (int slots : {1, 2, 3}) {
    EngineOptions options;
    options.wrap = [slots](std::unique_ptr<Tier> inner, size_t) {
      FaultPlan faults;
      faults.delay_polls = 2;
      faults.max_tickets = slots;
      return make_fault_tier(std::move(inner), faults);
    };
    EXPECT_TRUE(run.outcome(3, options) == want) << slots;
  }
}

// deepspeed #4871: swapping to a slow disk stalls and RAM grows by 0.1 GiB/s. What is under way
// has its place in the arena: a disk of 20 MB/s makes steps slow, not large.
TEST(TrainTransfers, BytesInFlightToASlowDiskAreBoundedByTheArena) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(3);
  use_disk(run);
  TransferLog log;
  EngineOptions options;
  options.wrap = [&log](std::unique_ptr<Tier> inner, size_t) -> std::unique_ptr<Tier> {
    LinkModel model;
    model.bytes_per_s = 20e6;
    model.duplex = false;
    auto link = std::make_shared<EmulatedLink>(model);
    auto slow = open_emulated_tier(std::move(inner), std::move(link), kTickets);
    return std::make_unique<HookTier>(std::move(*slow), &log);
  };
  EXPECT_TRUE(run.outcome(3, options) == want);
  EXPECT_GT(log.started, 100);
  EXPECT_GT(log.most_in_flight, 0);
  EXPECT_LE(log.most_in_flight, run.planned->arena_bytes);
  EXPECT_LE(log.most_tickets, kTickets);
  EXPECT_EQ(log.in_flight, 0);
}

// Descriptors of this process that are open on a removed file under `folder`.
std::vector<std::string> removed_files(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string to = std::filesystem::read_symlink(entry.path(), gone).string();
    if (to.starts_with(folder) && to.ends_with("(deleted)")) out.push_back(entry.path().string());
  }
  return out;
}

// Silent corruption on the way to the disk and back: with --paranoid it is found and named.
TEST(TrainTransfers, AChangedBlockOfTheScratchFileIsFoundAndNamed) {
  TestRun run;
  run.o.paranoid = true;
  use_disk(run);
  auto t = run.start();
  ASSERT_TRUE(t.ok()) << t.status().message();
  ASSERT_TRUE((*t)->step().ok());
  (void)TestRun::state(**t);  // waits for every transfer: none may meet what is written here
  const std::vector<std::string> files = removed_files(run.o.config.out);
  ASSERT_EQ(files.size(), 1u);
  const int fd = ::open(files[0].c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  const off_t size = ::lseek(fd, 0, SEEK_END);
  for (off_t page = 0; page < size; page += kPage) {
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, page + 5), 1);
    byte = static_cast<char>(byte ^ 0x10);
    ASSERT_EQ(::pwrite(fd, &byte, 1, page + 5), 1);
  }
  ASSERT_EQ(::fsync(fd), 0);
  ::close(fd);
  Status status;
  while (status.ok() && (*t)->done() < 4) status = (*t)->step().status();
  EXPECT_EQ(status.code(), Code::kIo);
  for (const char* part : {"the checksum differs", "load of '", "tier 'disk'"}) {
    EXPECT_THAT(status.message(), HasSubstr(part));
  }
}

// deepspeed #2082, PR #4416, #4707: swap files are left behind and grow from run to run. Killed in
// the middle of a transfer, a run leaves its checkpoints alone; the next goes on bit for bit.
TEST(TrainTransfers, AKillInTheMiddleOfAStepLeavesNoScratchAndTheRunGoesOn) {
  TestRun run;
  const TestRun::Outcome want = run.outcome(4);
  use_disk(run);
  ASSERT_TRUE(run.open_data().ok());
  for (int64_t k : {40, 200, 400}) {
    const pid_t child = ::fork();
    if (child == 0) {
      TransferLog log;
      EngineOptions options;
      options.wrap = [&log](std::unique_ptr<Tier> inner, size_t) -> std::unique_ptr<Tier> {
        return std::make_unique<HookTier>(std::move(inner), &log);
      };
      auto t = run.start("", options);
      if (!t.ok() || !(*t)->step().ok() || !(*t)->save().ok()) ::_exit(1);
      log.before = [&, at = log.started + k](int64_t number, bool) {
        if (number >= at) ::kill(::getpid(), SIGKILL);
      };
      while ((*t)->done() < 1000) (void)(*t)->step();
      ::_exit(2);
    }
    int ended = 0;
    ASSERT_EQ(::waitpid(child, &ended, 0), child);
    ASSERT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL) << ended;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run.o.config.out)) {
      EXPECT_THAT(entry.path().string(), Not(HasSubstr("scratch")));
    }
    auto checkpoint = latest_checkpoint(run.o.config.out);
    ASSERT_TRUE(checkpoint.ok());
    auto t = run.start(*checkpoint);
    ASSERT_TRUE(t.ok()) << t.status().message();
    EXPECT_EQ((*t)->done(), 1);
    EXPECT_TRUE(TestRun::finish(**t, 4).state == want.state) << k;
    t->reset();
    std::filesystem::remove_all(run.o.config.out + "/checkpoints");
  }
}

}  // namespace
}  // namespace headrace
