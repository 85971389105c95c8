#include "headrace/snapshot/program_snapshot.h"

#include <gtest/gtest.h>

#include "headrace/snapshot/lifetimes.h"
#include "tests/report/small_step.h"

namespace headrace {
namespace {

TEST(ProgramSnapshot, TheViewersEventsAreThePlansBytes) {
  const auto program = parse_program(test::kTwoLayers);
  ASSERT_TRUE(program.ok()) << program.status().message();
  const Timeline t = make_timeline(*program, simulate(*program));
  const MemorySnapshot s = snapshot_of(t);
  ASSERT_EQ(s.traces.size(), 2u);
  ASSERT_EQ(s.segments.size(), 2u);
  EXPECT_EQ(s.segments[0].bytes, program->arena_bytes);
  const Lifetimes device = lifetimes_of(s, 0);
  // Two weights, x twice, six tensors of the step.
  EXPECT_EQ(device.buffers.size(), 10u);
  EXPECT_EQ(device.peak_live, program->arena_bytes);
  const Lifetimes host = lifetimes_of(s, 1);
  ASSERT_EQ(host.buffers.size(), 1u);
  EXPECT_EQ(host.peak_live, 64 * kMiB);
  EXPECT_EQ(s.frames[static_cast<size_t>(s.stacks[static_cast<size_t>(
                s.traces[1][0].stack)][0])].name, "x");
  // State stays: its blocks are those given out at the end.
  Bytes active = 0;
  for (const SnapshotBlock& b : s.segments[0].blocks) {
    if (b.state == BlockState::kActive) active += b.size;
  }
  EXPECT_EQ(active, 96 * kMiB);  // two weights and the gradient that stays to the end
  const auto again = parse_snapshot(to_pickle(s));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->traces[0].size(), s.traces[0].size());
}

}  // namespace
}  // namespace headrace
