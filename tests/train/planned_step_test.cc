// Planned training steps, executed: losses and states are those of the plain step,
// bit for bit, whatever moves between tiers and in whatever order micro-batches come.
#include <gtest/gtest.h>

#include "headrace/plan/step_plan.h"
#include "tests/run/step_testing.h"
#include "tests/train/plain_step.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

using test::hashed_rows;
using test::Kind;
using test::PlainTrainStep;
using test::set_hashed_parameters;
using test::StepCase;
using test::StepRig;

constexpr int kSteps = 3;

std::vector<StepCase> cases() {
  std::vector<StepCase> out = test::step_cases();
  for (const size_t i : {0, 4}) {
    out[i].optimizer.clip_norm = 0.5;
    out[i].model.table_tile = 4096;
  }
  out.push_back(out[3]);
  out[5].model.name = "small gpt2, f16";
  out[5].model.precision = Precision::kF16;
  out[5].optimizer.clip_norm = 0;
  for (StepCase& c : out) c.model.layers = c.model.dropout > 0 ? 1 : 2;
  return out;
}

TrainStep built(const StepCase& c, MicroOrder order) {
  StepShape shape = c.shape;
  shape.order = order;
  Result<TrainStep> step = build_train_step(c.model, shape, c.optimizer, {.guard = true});
  EXPECT_TRUE(step.ok()) << step.status().message();
  return std::move(*step);
}

// At the least budget and at one between that and what everything needs.
std::vector<Program> planned(const TrainStep& step, const Machine& machine) {
  StepRequest request;
  request.workload = std::make_shared<Workload>(step.workload);
  request.machine = &machine;
  request.goal = Goal::kThroughput;
  request.budget = 1;
  Result<StepResult> none = plan_step(request);
  EXPECT_TRUE(none.ok()) << none.status().message();
  const Bytes least = std::get<Infeasible>(*none).needed_bytes;
  request.budget = Bytes{1} << 30;
  Result<StepResult> all = plan_step(request);
  const Bytes most = std::get<StepPlan>(*all).unconstrained_peak_bytes;
  std::vector<Program> out;
  for (const Bytes budget : {least, least + (most - least) / 2}) {
    request.budget = budget;
    Result<StepResult> result = plan_step(request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(std::holds_alternative<StepPlan>(*result)) << budget;
    out.push_back(std::get<StepPlan>(*result).program);
  }
  return out;
}

std::vector<std::byte> bytes_of(const std::string& bits) {
  const auto* from = reinterpret_cast<const std::byte*>(bits.data());
  return {from, from + bits.size()};
}

// What lies in file 0: the frozen tiles.
std::vector<std::byte> frozen_file(const PlainTrainStep& plain) {
  std::vector<std::byte> file(static_cast<size_t>(frozen_bytes(plain.step().parameters)));
  for (const Parameter& p : plain.step().parameters) {
    if (p.trainable) continue;
    const auto bytes = bytes_of(plain.bits(p.param));
    std::copy(bytes.begin(), bytes.end(), file.begin() + p.frozen.offset);
  }
  return file;
}

std::vector<TensorId> states_of(const Graph& g) {
  std::vector<TensorId> out;
  for (size_t i = 0; i < g.tensors.size(); ++i) {
    if (g.tensors[i].role == Role::kState) out.emplace_back(static_cast<int64_t>(i));
  }
  return out;
}

TEST(PlannedTrainStep, IsBitEqualToThePlainStepAtEveryBudgetAndInBothOrders) {
  Machine machine = Machine::defaults(2);
  machine.tiers = {{"device", 0, 0, 0, 0},
                   {"file", Bytes{1} << 30, 2e9, 1e9, 1000},
                   {"host", Bytes{1} << 18, 8e9, 8e9, 1000}};
  for (const StepCase& c : cases()) {
    PlainTrainStep plain(built(c, MicroOrder::kBatchMajor));
    set_hashed_parameters(plain);
    const PlainTrainStep& start = plain;
    const std::vector<std::byte> file = frozen_file(start);
    std::map<std::string, std::vector<std::byte>> first;
    for (const TensorId t : states_of(plain.graph())) {
      first[plain.graph().at(t).name] = bytes_of(plain.bits(t));
    }
    std::vector<StepRows> rows;
    std::vector<float> losses;
    for (int step = 0; step < kSteps; ++step) {
      rows.push_back(hashed_rows(c.shape.sequences * c.shape.sequence, c.model.vocab, step));
      plain.run(rows.back());
      losses.push_back(plain.loss());
    }
    for (const MicroOrder order : {MicroOrder::kBatchMajor, MicroOrder::kLayerMajor}) {
      if (order == MicroOrder::kBatchMajor && c.optimizer.clip_norm == 0) continue;
      const TrainStep step = built(c, order);
      for (const Program& program : planned(step, machine)) {
        const std::string where = c.model.name + ", " + name_of(order) + ", " +
                                  human_bytes(program.arena_bytes);
        ExecutorOptions options;
        options.poison_freed = true;
        StepRig rig(program, {Kind::kHost, Kind::kHost}, file, options);
        ASSERT_NE(rig.prepared, nullptr) << where;
        ASSERT_TRUE(rig.executor->load_entry_state(*rig.prepared).ok()) << where;
        for (const auto& [name, bytes] : first) {
          const Status s = rig.executor->write_state(*rig.prepared, name, bytes);
          ASSERT_TRUE(s.ok()) << where << ": " << s.message();
        }
        for (int i = 0; i < kSteps; ++i) {
          const Status s = rig.executor->run(*rig.prepared, rows[static_cast<size_t>(i)], nullptr);
          ASSERT_TRUE(s.ok()) << where << ": " << s.message();
          ASSERT_EQ(rig.executor->output(*rig.prepared, "loss")[0], losses[static_cast<size_t>(i)])
              << where << ", step " << i;
        }
        for (const TensorId t : states_of(plain.graph())) {
          const std::string& name = plain.graph().at(t).name;
          Result<std::vector<std::byte>> got = rig.executor->read_state(*rig.prepared, name);
          ASSERT_TRUE(got.ok()) << where << ": " << got.status().message();
          EXPECT_TRUE(*got == bytes_of(plain.bits(t))) << where << ": " << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
