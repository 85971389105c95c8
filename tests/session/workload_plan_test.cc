// Workloads planned for this machine: the tiers, the alignment, the refusals.
#include "headrace/session/workload_plan.h"

#include <gtest/gtest.h>

#include "headrace/cost/profiles.h"
#include "headrace/model/workload.h"
#include "tests/model/scratch.h"

namespace headrace {
namespace {

Workload stack() {
  std::string tensors, ops, back;
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    tensors += text_of("%s{\"name\": \"s%d\", \"bytes\": %d}", i > 0 ? ", " : "", i, 1000000 + i);
    ops += "{\"name\": \"pack" + n + "\", \"kernel\": \"Pack\", \"outputs\": [\"s" + n +
           "\"], \"seconds\": 0.01}, ";
    tensors += ", {\"name\": \"after" + n + "\", \"bytes\": 64}";
    back = "{\"name\": \"unpack" + n + "\", \"kernel\": \"Unpack\", \"inputs\": [\"s" + n +
           "\"], \"outputs\": [\"after" + n + "\"], \"seconds\": 0.01}" +
           (back.empty() ? "" : ", " + back);
  }
  auto w = parse_workload("{\"headrace_workload\": 1, \"name\": \"stack\", \"cyclic\": true, "
                          "\"tensors\": [" + tensors + "], \"ops\": [" + ops + back + "]}");
  EXPECT_TRUE(w.ok()) << w.status().message();
  return std::move(w).value();
}

WorkloadPlanOptions within(const std::string& folder, Bytes budget) {
  WorkloadPlanOptions o;
  o.budget = budget;
  o.folder = folder;
  o.recompute = false;
  return o;
}

TEST(WorkloadPlan, InAFolderTheMachineIsTheDeviceAndAScratchFile) {
  const testing::Scratch scratch;
  Machine fast = Machine::defaults(1);
  fast.tiers[1].load_bytes_per_s = fast.tiers[1].store_bytes_per_s = 3e9;
  WorkloadPlanOptions o = within(scratch.path("."), 3'000'000);
  o.machine = &fast;
  auto result = plan_workload(stack(), o);
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_TRUE(std::holds_alternative<WorkloadPlan>(*result));
  const WorkloadPlan& plan = std::get<WorkloadPlan>(*result);
  ASSERT_EQ(plan.plan.program.tiers.size(), 2u);
  EXPECT_EQ(plan.plan.program.tiers[1].name, "scratch");
  EXPECT_EQ(plan.plan.program.tiers[1].load_bytes_per_s, 3e9);
  EXPECT_EQ(plan.plan.program.tiers[1].alignment, kPage);
  EXPECT_LE(plan.plan.program.arena_bytes, 3'000'000);
  EXPECT_GT(plan.plan.predicted.stored_bytes, 0);
  for (const Tensor& t : plan.plan.program.graph->tensors) {
    EXPECT_EQ(t.alignment, t.bytes < kPage / 2 ? kLine : kPage) << t.name;
  }
  EXPECT_TRUE(verify(plan.plan.program).ok());
}

TEST(WorkloadPlan, AMachineWithoutAFolderKeepsItsTiers) {
  const auto machine = machine_by_name("a100-pcie3");
  ASSERT_TRUE(machine.ok());
  WorkloadPlanOptions o = within("", 3'000'000);
  o.machine = &*machine;
  auto result = plan_workload(stack(), o);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const WorkloadPlan& plan = std::get<WorkloadPlan>(*result);
  EXPECT_EQ(plan.plan.program.tiers.size(), machine->tiers.size());
  EXPECT_EQ(plan.folder, "");
}

TEST(WorkloadPlan, WhatDoesNotFitIsAValueWithNumbersAndWords) {
  const testing::Scratch scratch;
  auto result = plan_workload(stack(), within(scratch.path("."), 10'000));
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_TRUE(std::holds_alternative<WorkloadRefusal>(*result));
  const WorkloadRefusal& no = std::get<WorkloadRefusal>(*result);
  EXPECT_GE(no.why.needed_bytes, 1'000'000);
  EXPECT_NE(no.text.find("stack"), std::string::npos) << no.text;
  EXPECT_TRUE(std::holds_alternative<WorkloadPlan>(
      *plan_workload(stack(), within(scratch.path("."), no.why.needed_bytes))));
}

TEST(WorkloadPlan, FoldersThatAreNotThereOrInMemoryAreRefused) {
  const auto nowhere = plan_workload(stack(), within("/nowhere/at/all", 3'000'000));
  EXPECT_EQ(nowhere.status().code(), Code::kIo) << nowhere.status().message();
  const auto memory = plan_workload(stack(), within("/dev/shm", 3'000'000));
  EXPECT_EQ(memory.status().code(), Code::kUsage) << memory.status().message();
  EXPECT_NE(memory.status().message().find("/dev/shm"), std::string::npos);
}

}  // namespace
}  // namespace headrace
