#include "headrace/train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/model/scratch.h"
#include "tests/train/file_faults.h"

namespace headrace {
namespace {

using testing::FaultyCalls;
using testing::Scratch;

// Tensors whose bytes follow from (step, tensor, position).
CheckpointInfo info_of(int64_t step) {
  CheckpointInfo info;
  info.step = step;
  info.next_sample = 8 * step;
  info.loss_scale = 0.1 * static_cast<double>(step);
  info.good_steps = step + 5;
  info.config = "{\"steps\": 3,\n \"name\": \"\xc3\xa9\"}";
  info.tensors = {{"embed", "f32", 1100, 1000, 4'400'000},
                  {"norm", "f32", 1, 7, 28},
                  {"empty", "f32", 0, 7, 0},
                  {"head", "bf16", 2048, 2048, 2 * 2048 * 2048}};
  return info;
}

std::byte byte_of(int64_t step, size_t tensor, Bytes position) {
  const uint64_t mixed =
      (static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15u) ^ (static_cast<uint64_t>(step) << 9);
  return static_cast<std::byte>((mixed >> 29) + tensor);
}

ReadPart source(int64_t step) {
  return [step](size_t index, Bytes begin, std::span<std::byte> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = byte_of(step, index, begin + static_cast<Bytes>(i));
    }
    return Status();
  };
}

std::vector<std::byte>& block() {
  static std::vector<std::byte> bytes(kCheckpointBlock);
  return bytes;
}

Status save(const std::string& run, int64_t step, int64_t keep = 8) {
  return write_checkpoint(run, info_of(step), keep, block(), source(step));
}

// Ok when the checkpoint holds exactly what save(step) writes.
Status check(const std::string& folder) {
  HR_ASSIGN(const CheckpointInfo info, read_checkpoint_info(folder));
  const CheckpointInfo wanted = info_of(info.step);
  EXPECT_EQ(info.next_sample, wanted.next_sample);
  EXPECT_EQ(info.loss_scale, wanted.loss_scale);
  EXPECT_EQ(info.good_steps, wanted.good_steps);
  EXPECT_EQ(info.config, wanted.config);
  EXPECT_EQ(info.tensors.size(), wanted.tensors.size());
  Bytes seen = 0, reported = 0;
  HR_TRY(read_checkpoint(
      folder, info, block(),
      [&](size_t index, Bytes begin, std::span<const std::byte> in) {
        seen += static_cast<Bytes>(in.size());
        for (size_t i = 0; i < in.size(); ++i) {
          if (in[i] != byte_of(info.step, index, begin + static_cast<Bytes>(i))) {
            return error(Code::kBadFile, "other bytes");
          }
        }
        return Status();
      },
      [&](Bytes done, Bytes) { reported = done; }));
  Bytes total = 0;
  for (const CheckpointTensor& t : info.tensors) total += t.bytes;
  EXPECT_EQ(seen, total);
  EXPECT_EQ(reported, total);
  return {};
}

std::vector<int64_t> steps_of(const std::string& run) {
  std::vector<int64_t> out;
  const auto all = list_checkpoints(run);
  EXPECT_TRUE(all.ok()) << all.status().message();
  for (const std::string& folder : *all) {
    EXPECT_TRUE(check(folder).ok()) << check(folder).message();
    out.push_back(read_checkpoint_info(folder)->step);
  }
  return out;
}

// Names in RUN/checkpoints, without the lock.
std::vector<std::string> names_of(const std::string& run) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(run + "/checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name != "lock") out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

using Names = std::vector<std::string>;
using Steps = std::vector<int64_t>;

TEST(Checkpoint, WhatIsWrittenIsReadBack) {
  const Scratch scratch;
  const std::string run = scratch.path("a/run");
  EXPECT_EQ(*latest_checkpoint(run), "");
  Bytes last = 0, total = 0;
  ASSERT_TRUE(write_checkpoint(run, info_of(3), 1, block(), source(3), [&](Bytes d, Bytes t) {
                EXPECT_GE(d, last);
                last = d, total = t;
              }).ok());
  EXPECT_EQ(last, total);
  EXPECT_EQ(*latest_checkpoint(run), run + "/checkpoints/step-00000003");
  EXPECT_EQ(steps_of(run), Steps{3});
}

TEST(Checkpoint, AllButTheNewestAreRemoved) {
  const Scratch scratch;
  for (int64_t step = 1; step <= 4; ++step) ASSERT_TRUE(save(scratch.folder(), step, 2).ok());
  EXPECT_EQ(names_of(scratch.folder()), (Names{"step-00000003", "step-00000004"}));
}

TEST(Checkpoint, ARunThatWentBackHasItsNewCheckpointAsTheLatest) {
  const Scratch scratch;
  for (const int64_t step : {5, 10, 6}) ASSERT_TRUE(save(scratch.folder(), step).ok());
  EXPECT_EQ(steps_of(scratch.folder()), (Steps{6, 10, 5}));
  ASSERT_TRUE(save(scratch.folder(), 7, 2).ok());
  EXPECT_EQ(steps_of(scratch.folder()), (Steps{7, 6}));
}

TEST(Checkpoint, TheSameStepAgainReplacesIt) {
  const Scratch scratch;
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  ASSERT_TRUE(save(scratch.folder(), 2).ok());
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  EXPECT_EQ(names_of(scratch.folder()), (Names{"step-00000001", "step-00000002"}));
  EXPECT_EQ(steps_of(scratch.folder()), (Steps{1, 2}));
}

TEST(Checkpoint, AnErrorOfTheSourceLeavesNothing) {
  const Scratch scratch;
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  int parts = 0;
  const Status status = write_checkpoint(
      scratch.folder(), info_of(2), 8, block(), [&](size_t, Bytes, std::span<std::byte>) {
        return ++parts == 3 ? error(Code::kIo, "tier lost") : Status();
      });
  EXPECT_EQ(status.message(), "tier lost");
  EXPECT_EQ(names_of(scratch.folder()), Names{"step-00000001"});
}

// Fails every call of writing a checkpoint in turn, with each reason.
TEST(Checkpoint, WhateverCallFailsWhatWasThereStandsAndNothingElseIsLeft) {
  const Scratch scratch(true);
  const std::string run = scratch.folder();
  ASSERT_TRUE(save(run, 1).ok());
  int all = 0;
  {
    FaultyCalls counting;
    ASSERT_TRUE(save(run, 2, 1).ok());
    all = counting.calls;
  }
  ASSERT_GT(all, 20);
  for (const int reason : {EIO, ENOSPC}) {
    for (int at = 0; at < all; ++at) {
      std::filesystem::remove_all(run);
      ASSERT_TRUE(save(run, 1).ok());
      Status status;
      {
        FaultyCalls calls;
        calls.fault = FaultyCalls::Fault::kError;
        calls.at = at;
        calls.reason = reason;
        status = save(run, 2, 1);
      }
      if (!status.ok()) {
        EXPECT_EQ(status.code(), Code::kIo) << at;
        EXPECT_NE(status.message().find(std::strerror(reason)), std::string::npos)
            << status.message();
      }
      // A failure after the rename leaves both, which is as good.
      const Steps steps = steps_of(run);
      ASSERT_TRUE(steps == Steps{1} || steps == Steps{2} || steps == (Steps{2, 1})) << at;
      if (status.ok()) {
        EXPECT_EQ(steps.front(), 2);
      }
      ASSERT_TRUE(save(run, 3, 1).ok());
      ASSERT_EQ(names_of(run), Names{"step-00000003"}) << at;
    }
  }
}

TEST(Checkpoint, AFullDiskLeavesTheOldOneAndNothingElse) {
  const Scratch scratch(true);
  const std::string run = scratch.folder();
  ASSERT_TRUE(save(run, 1).ok());
  for (int at = 0; at < 40; ++at) {
    Status status;
    {
      FaultyCalls calls;
      calls.fault = FaultyCalls::Fault::kDiskFull;
      calls.at = at;
      status = save(run, 2, 1);
    }
    if (status.ok()) break;  // its writes were over
    EXPECT_EQ(status.code(), Code::kIo);
    ASSERT_EQ(names_of(run), Names{"step-00000001"}) << at;
    ASSERT_EQ(steps_of(run), Steps{1});
  }
}

TEST(Checkpoint, ShortWritesShortReadsAndInterruptsAreGoneOnWith) {
  const Scratch scratch;
  FaultyCalls calls;
  calls.short_io = true;
  calls.interrupts = true;
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  ASSERT_TRUE(save(scratch.folder(), 2).ok());
  EXPECT_EQ(steps_of(scratch.folder()), (Steps{2, 1}));
}

TEST(Checkpoint, AKillAtAnyCallLeavesWholeCheckpointsAndTheNextSaveCleansUp) {
  const Scratch scratch(true);
  const std::string run = scratch.folder();
  int all = 0;
  ASSERT_TRUE(save(run, 1).ok());
  {
    FaultyCalls counting;
    ASSERT_TRUE(save(run, 2, 1).ok());
    all = counting.calls;
  }
  int killed = 0;
  for (int at = 0; at < all; ++at) {
    for (const bool after : {false, true}) {
      for (const int64_t step : {1, 2}) {  // the same step again, and the next
        std::filesystem::remove_all(run);
        ASSERT_TRUE(save(run, 1).ok());
        const pid_t child = ::fork();
        if (child == 0) {
          FaultyCalls calls;
          calls.fault = after ? FaultyCalls::Fault::kKillAfter : FaultyCalls::Fault::kKill;
          calls.at = at;
          ::_exit(save(run, step, 1).ok() ? 0 : 1);
        }
        int how = 0;
        ASSERT_EQ(::waitpid(child, &how, 0), child);
        killed += WIFSIGNALED(how);
        const Steps steps = steps_of(run);
        ASSERT_FALSE(steps.empty()) << at;
        for (const int64_t s : steps) ASSERT_TRUE(s == 1 || s == step);
        ASSERT_TRUE(save(run, 3, 1).ok());
        ASSERT_EQ(names_of(run), Names{"step-00000003"}) << at;
      }
    }
  }
  EXPECT_GT(killed, 3 * all);
}

TEST(Checkpoint, TwoRunsMaySaveIntoOneFolderAtOnce) {
  const Scratch scratch;
  const std::string run = scratch.folder();
  std::vector<pid_t> children;
  for (int64_t who = 0; who < 3; ++who) {
    const pid_t child = ::fork();
    if (child == 0) {
      bool good = true;
      for (int64_t i = 0; i < 6; ++i) good = good && save(run, 100 + 2 * i + (i + who) % 2, 2).ok();
      ::_exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
  }
  EXPECT_EQ(steps_of(run).size(), 2u);
  EXPECT_EQ(names_of(run).size(), 2u);
}

TEST(Checkpoint, TwentyRunsLeaveAFolderOfConstantSize) {
  const Scratch scratch;
  for (int64_t step = 1; step <= 20; ++step) ASSERT_TRUE(save(scratch.folder(), step, 1).ok());
  EXPECT_EQ(names_of(scratch.folder()), Names{"step-00000020"});
}

// One byte of the data or the manifest changed.
void damage(const std::string& path, Bytes at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int old = file.get();
  file.seekp(at);
  file.put(static_cast<char>(old ^ 1));
}

TEST(Checkpoint, ADamagedBlockIsToldByTheTensorsName) {
  const Scratch scratch;
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  ASSERT_TRUE(save(scratch.folder(), 2).ok());
  const std::string folder = *latest_checkpoint(scratch.folder());
  const auto size = static_cast<Bytes>(std::filesystem::file_size(folder + "/data"));
  damage(folder + "/data", size - 5);
  const Status status = check(folder);
  EXPECT_EQ(status.code(), Code::kBadFile);
  EXPECT_NE(status.message().find("'head'"), std::string::npos) << status.message();
  // The one before is next in the list, and whole.
  const auto all = list_checkpoints(scratch.folder());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_TRUE(check((*all)[1]).ok());
  const auto reader = CheckpointReader::open(folder);
  ASSERT_TRUE(reader.ok());
  std::byte one;
  EXPECT_TRUE((*reader)->read(0, 17, std::span(&one, 1)).ok());
  EXPECT_EQ((*reader)->read(3, 8 * kMiB - 5, std::span(&one, 1)).code(), Code::kBadFile);
}

TEST(Checkpoint, ADamagedManifestOrShortDataLetsTheOneBeforeBeTheLatest) {
  const Scratch scratch;
  ASSERT_TRUE(save(scratch.folder(), 1).ok());
  ASSERT_TRUE(save(scratch.folder(), 2).ok());
  ASSERT_TRUE(save(scratch.folder(), 3).ok());
  const std::string newest = *latest_checkpoint(scratch.folder());
  std::filesystem::resize_file(newest + "/data", std::filesystem::file_size(newest + "/data") - 1);
  EXPECT_EQ(check(newest).code(), Code::kBadFile);
  EXPECT_EQ(steps_of(scratch.folder()), (Steps{2, 1}));
  const std::string next = *latest_checkpoint(scratch.folder());
  const auto size = static_cast<Bytes>(std::filesystem::file_size(next + "/manifest.json"));
  for (Bytes at = 0; at < size; at += std::max<Bytes>(1, size / 31)) {
    damage(next + "/manifest.json", at);
    EXPECT_EQ(steps_of(scratch.folder()), Steps{1}) << at;
    EXPECT_EQ(read_checkpoint_info(next).status().code(), Code::kBadFile);
    damage(next + "/manifest.json", at);
  }
  std::filesystem::resize_file(next + "/manifest.json", 0);
  EXPECT_EQ(steps_of(scratch.folder()), Steps{1});
  // Broken ones do not count as kept.
  ASSERT_TRUE(save(scratch.folder(), 4, 2).ok());
  EXPECT_EQ(names_of(scratch.folder()), (Names{"step-00000001", "step-00000004"}));
}

TEST(Checkpoint, AReaderGivesAnyPartOfATensor) {
  const Scratch scratch;
  ASSERT_TRUE(save(scratch.folder(), 4).ok());
  const auto reader = CheckpointReader::open(*latest_checkpoint(scratch.folder()));
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ((*reader)->find("head"), 3);
  EXPECT_EQ((*reader)->find("tail"), -1);
  for (const Bytes begin : {Bytes{0}, kCheckpointBlock - 3, Bytes{100}, 2 * kCheckpointBlock - 9}) {
    std::vector<std::byte> out(9);
    ASSERT_TRUE((*reader)->read(3, begin, out).ok());
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], byte_of(4, 3, begin + static_cast<Bytes>(i)));
    }
  }
}

}  // namespace
}  // namespace headrace
