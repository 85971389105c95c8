#include "headrace/snapshot/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "headrace/base/split_mix.h"
#include "headrace/model/workload.h"
#include "headrace/snapshot/pickle_data.h"

namespace headrace {
namespace {

using testing::HasSubstr;

constexpr Bytes kUnit = kMiB;

std::string real_pickle() {
  std::ifstream file(HEADRACE_SOURCE_DIR "/tests/data/snapshots/training_end.pickle",
                     std::ios::binary);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

// A snapshot made event by event: addresses are numbers of buffers.
class Story {
 public:
  Story() { s_.traces.resize(1); }

  int32_t stack(std::vector<StackFrame> frames) {
    std::vector<int32_t> numbers;
    for (StackFrame& f : frames) {
      s_.frames.push_back(std::move(f));
      numbers.push_back(static_cast<int32_t>(s_.frames.size() - 1));
    }
    s_.stacks.push_back(std::move(numbers));
    return static_cast<int32_t>(s_.stacks.size() - 1);
  }
  int32_t forward() { return stack({{"at::_ops::mm::call", "", 0}, {"forward", "net.py", 7}}); }
  int32_t backward() {
    return stack({{"at::_ops::mm::call", "", 0},
                  {"torch::autograd::generated::MmBackward0::apply(x)", "", 0},
                  {"torch::autograd::Engine::thread_main()", "", 0}});
  }
  void alloc(int64_t address, Bytes size, int32_t stack) {
    add(EventKind::kAlloc, address, size, stack);
  }
  void free(int64_t address, Bytes size) {
    add(EventKind::kFreeRequested, address, size, -1);
    add(EventKind::kFreeCompleted, address, size, -1);
  }
  void add(EventKind kind, int64_t address, Bytes size, int32_t stack) {
    s_.traces[0].push_back({kind, address, size, 0, time_ += 100, stack});
  }
  void segment(Bytes bytes, std::vector<SnapshotBlock> blocks) {
    SnapshotSegment s;
    s.bytes = bytes;
    s.blocks = std::move(blocks);
    s_.segments.push_back(std::move(s));
  }
  MemorySnapshot& snapshot() { return s_; }

 private:
  MemorySnapshot s_;
  int64_t time_ = 0;
};

const Finding* find(const Diagnosis& d, FindingGroup group, std::string_view part) {
  for (const Finding& f : d.findings) {
    if (f.group == group && f.title.find(part) != std::string::npos) return &f;
  }
  return nullptr;
}

TEST(MemorySnapshot, ARealOneIsReadAndWrittenAgain) {
  const auto s = parse_snapshot(real_pickle());
  ASSERT_TRUE(s.ok()) << s.status().message();
  ASSERT_EQ(s->traces.size(), 1u);
  EXPECT_EQ(s->traces[0].size(), 1200u);
  EXPECT_EQ(s->segments.size(), 400u);
  const std::string again = to_pickle(*s);
  const auto t = parse_snapshot(again);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(to_pickle(*t), again);
  EXPECT_EQ(t->frames, s->frames);
  EXPECT_EQ(t->stacks, s->stacks);
  for (size_t i = 0; i < s->traces[0].size(); ++i) {
    EXPECT_EQ(t->traces[0][i].kind, s->traces[0][i].kind);
    EXPECT_EQ(t->traces[0][i].address, s->traces[0][i].address);
    EXPECT_EQ(t->traces[0][i].time_us, s->traces[0][i].time_us);
    EXPECT_EQ(t->traces[0][i].stack, s->traces[0][i].stack);
  }
}

// Its numbers were counted with Python: 6,838,108,672 bytes active in 12,660,506,624 reserved.
TEST(Doctor, ARealTrainingStepHasTheNumbersThatPythonCounts) {
  const auto s = parse_snapshot(real_pickle());
  ASSERT_TRUE(s.ok());
  const auto d = diagnose(*s);
  ASSERT_TRUE(d.ok()) << d.status().message();
  ASSERT_EQ(d->devices.size(), 1u);
  const DeviceReport& r = d->devices[0];
  EXPECT_EQ(r.reserved, 12'660'506'624);
  EXPECT_EQ(r.active, 6'838'108'672);
  EXPECT_EQ(r.peak_live, 7'041'925'632);
  EXPECT_GE(r.packed, r.peak_live);
  EXPECT_LE(r.packed, r.peak_live + r.peak_live / 500);
  EXPECT_NE(find(*d, FindingGroup::kRetention, "optimizer state"), nullptr);
  EXPECT_NE(find(*d, FindingGroup::kMinimum, "reserved"), nullptr);
  Bytes shares = 0;
  for (const PeakShare& share : r.shares) shares += share.bytes;
  EXPECT_EQ(shares, r.peak_live);
  for (size_t i = 1; i < d->findings.size(); ++i) {
    EXPECT_LE(d->findings[i].bytes, d->findings[i - 1].bytes);
  }
  const std::string text = diagnosis_text(*d, {}, {});
  EXPECT_THAT(text, HasSubstr("11.8 GiB"));
  EXPECT_THAT(diagnosis_json(*d, {}), HasSubstr("\"peak_live_bytes\": 7041925632"));
}

TEST(Doctor, LiveBytesAreThoseOfTheBuffersThatOverlap) {
  Story run;
  const int32_t f = run.forward();
  run.alloc(1, 4 * kUnit, f);
  run.alloc(2, 8 * kUnit, f);
  run.free(1, 4 * kUnit);
  run.alloc(3, 2 * kUnit, f);
  run.free(9, 1 * kUnit);  // given out before the trace
  const Lifetimes l = lifetimes_of(run.snapshot(), 0);
  ASSERT_EQ(l.buffers.size(), 4u);
  EXPECT_EQ(l.buffers[0].begin, -1);
  EXPECT_EQ(l.peak_live, 13 * kUnit);
  EXPECT_EQ(l.live.back(), 10 * kUnit);
}

TEST(Doctor, WhatTheForwardPassLeavesBehindIsFound) {
  Story run;
  const int32_t f = run.forward(), b = run.backward();
  for (int i = 0; i < 10; ++i) run.alloc(i, 4 * kUnit, f);
  for (int i = 9; i >= 1; --i) {
    run.alloc(100 + i, kUnit, b);
    run.free(i, 4 * kUnit);
    run.free(100 + i, kUnit);
  }
  run.segment(64 * kUnit, {{0, 4 * kUnit, 4 * kUnit, BlockState::kActive, -1},
                           {4 * kUnit, 60 * kUnit, 0, BlockState::kFree, -1}});
  const auto d = diagnose(run.snapshot());
  ASSERT_TRUE(d.ok());
  const Finding* kept = find(*d, FindingGroup::kRetention, "net.py:7 forward");
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->bytes, 4 * kUnit);
  const Finding* cut = find(*d, FindingGroup::kPatterns, "cannot be given back");
  ASSERT_NE(cut, nullptr);
  EXPECT_EQ(cut->bytes, 60 * kUnit);
}

TEST(Doctor, AFailedAllocationIsExplained) {
  Story run;
  const int32_t f = run.forward();
  run.alloc(1, 4 * kUnit, f);
  run.add(EventKind::kOom, 3 * kUnit, 16 * kUnit, f);
  run.segment(32 * kUnit, {{1, 4 * kUnit, 4 * kUnit, BlockState::kActive, -1},
                           {2, 28 * kUnit, 0, BlockState::kFree, -1}});
  const auto d = diagnose(run.snapshot());
  ASSERT_TRUE(d.ok());
  const Finding* oom = find(*d, FindingGroup::kPatterns, "1 allocations failed");
  ASSERT_NE(oom, nullptr);
  EXPECT_EQ(oom->bytes, 16 * kUnit);
  EXPECT_THAT(oom->detail, HasSubstr("28.0 MiB were reserved"));
  EXPECT_THAT(oom->advice, HasSubstr("fragments"));
}

TEST(Doctor, DevicesThatDifferAreFound) {
  MemorySnapshot s;
  for (int device = 0; device < 2; ++device) {
    SnapshotSegment segment;
    segment.device = device;
    segment.bytes = 64 * kUnit;
    segment.blocks = {{0, (device == 0 ? 60 : 20) * kUnit, 0, BlockState::kActive, -1}};
    s.segments.push_back(segment);
  }
  const auto d = diagnose(s);
  ASSERT_TRUE(d.ok());
  const Finding* f = find(*d, FindingGroup::kParallel, "device 1 only");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->bytes, 20 * kUnit);
}

TEST(Doctor, AnEmptySnapshotSaysWhatToCall) {
  const auto d = diagnose(MemorySnapshot{});
  ASSERT_FALSE(d.ok());
  EXPECT_THAT(d.status().message(), HasSubstr("_record_memory_history"));
}

TEST(MemorySnapshot, WhatIsNoSnapshotIsRefusedByName) {
  PickleWriter w;
  w.begin_dict();
  w.end();
  const std::string empty = w.take();
  const auto s = parse_snapshot(empty);
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.status().message(), HasSubstr("segments"));
}

TEST(MemorySnapshot, RandomDamageIsReadOrRefused) {
  const std::string whole = real_pickle();
  SplitMix random(11);
  for (int round = 0; round < 60; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 8; ++i) {
      damaged[random.next() % damaged.size()] = static_cast<char>(random.next());
    }
    const auto s = parse_snapshot(damaged);
    if (s.ok()) (void)lifetimes_of(*s, 0);
  }
}

// An activation that is used again only at the end of a long step: a plan moves it away.
TEST(Replay, APlanNeedsLessWhereBuffersWait) {
  Story run;
  const int32_t f = run.forward(), b = run.backward();
  for (int i = 0; i < 60; ++i) run.alloc(i, 4 * kUnit, f);
  for (int i = 59; i >= 0; --i) {
    run.alloc(100 + i, kUnit, b);
    run.free(i, 4 * kUnit);
    run.free(100 + i, kUnit);
  }
  const auto w = replay_workload(run.snapshot(), 0);
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->graph.ops.size(), 120u);
  EXPECT_TRUE(verify(w->graph).ok()) << verify(w->graph).message();
  Machine machine = Machine::defaults(1);
  machine.tiers[1].load_bytes_per_s = machine.tiers[1].store_bytes_per_s = 1e12;
  machine.tiers[1].duplex = true;
  machine.tiers[1].latency_ns = 0;
  machine.tiers[1].capacity = Bytes{1} << 40;
  const auto fit = would_fit(*w, machine, 0.03, [] { return true; });
  ASSERT_TRUE(fit.ok()) << fit.status().message();
  EXPECT_EQ(fit->unlimited_bytes, 241 * kUnit);
  EXPECT_LT(fit->budget, 80 * kUnit);
  EXPECT_GE(fit->budget, fit->least);
  EXPECT_LE(fit->slowdown, 0.03);
  EXPECT_GT(fit->moved_bytes, 0);
  const auto again = parse_workload(to_workload_json(*w));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->graph.ops.size(), w->graph.ops.size());
}

TEST(Replay, StoppingIsObeyed) {
  Story run;
  run.alloc(1, kUnit, run.forward());
  const auto w = replay_workload(run.snapshot(), 0);
  ASSERT_TRUE(w.ok());
  const auto fit = would_fit(*w, Machine::defaults(1), 0.03, [] { return false; });
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace headrace
