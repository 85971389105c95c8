// Random steps -> plan_step at many budgets -> verify(): never over budget, never a crash, whatever is
// asked; and what cannot be planned is refused by name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

#include "headrace/plan/step_plan.h"
#include "headrace/sim/simulate.h"

namespace headrace {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // In [low, high].
  int64_t roll(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return roll(1, 100) <= percent; }

 private:
  std::mt19937_64 random_;
};

std::string text(const char* kind, size_t i) { return kind + std::to_string(i); }

TensorId add_tensor(Dice& d, Graph& g, Role role) {
  Tensor t;
  t.name = text("t", g.tensors.size());
  t.role = role;
  if (role == Role::kWeight || d.chance(50)) {
    t.dtype = DType::kI8;
    t.cols = t.bytes = d.chance(20) ? d.roll(1, 100) : d.roll(1, 60'000);
  } else {
    t.dtype = DType::kF32;
    t.rows = d.roll(1, 9);
    t.cols = d.roll(1, 2'000);
    t.bytes = t.rows * t.cols * 4;
  }
  if (role == Role::kWeight) {
    t.source = {0, static_cast<Bytes>(g.tensors.size()) * 100'000 + d.roll(0, 9'000), t.bytes};
    t.data_class = DataClass::kWeight;
  }
  return g.add(std::move(t));
}

void add_rule(Dice& d, Workload& w, TensorId id) {
  PlacementRule r;
  r.tensor = id;
  r.pinned = d.chance(20);
  r.recompute = d.chance(70);
  if (d.chance(20)) r.forbidden_tiers = {"host"};
  const bool f32 = w.graph.at(id).dtype == DType::kF32 && w.graph.at(id).role != Role::kWeight;
  if (f32 && d.chance(60)) r.codecs = {Codec::kBf16};
  if (f32 && d.chance(30)) r.codecs.push_back(Codec::kBytePlane);
  if (f32 && d.chance(30)) r.codecs.push_back(Codec::kInt8Block);
  if (f32 && d.chance(20)) r.codecs.push_back(Codec::kMask);
  r.prefetch_priority = static_cast<int32_t>(d.roll(-2, 2));
  w.rules.push_back(std::move(r));
}

// Codecs for most of what can have them, beside the rules that are there.
void allow_codecs(Dice& d, Workload& w) {
  for (size_t t = 0; t < w.graph.tensors.size(); ++t) {
    const Tensor& tensor = w.graph.tensors[t];
    const TensorId id(static_cast<int64_t>(t));
    const bool ruled = std::any_of(w.rules.begin(), w.rules.end(),
                                   [&](const PlacementRule& r) { return r.tensor == id; });
    if (tensor.dtype != DType::kF32 || tensor.role == Role::kWeight || ruled) continue;
    PlacementRule r;
    r.tensor = id;
    for (Codec c : {Codec::kBf16, Codec::kInt8Block, Codec::kMask, Codec::kBytePlane}) {
      if (d.chance(40)) r.codecs.push_back(c);
    }
    w.rules.push_back(std::move(r));
  }
}

std::shared_ptr<Workload> random_workload(uint64_t seed) {
  Dice d(seed);
  auto w = std::make_shared<Workload>();
  Graph& g = w->graph;
  g.name = text("fuzz", seed);
  w->cyclic = d.chance(25);
  std::vector<TensorId> kept, made;
  for (int64_t i = d.roll(0, 5); i > 0; --i) {
    kept.push_back(add_tensor(d, g, d.chance(60) ? Role::kState : Role::kWeight));
  }
  const int64_t ops = d.roll(1, 26);
  for (int64_t k = 0; k < ops; ++k) {
    Op op;
    op.kind = OpKind::kKernel;
    op.name = text("op", static_cast<size_t>(k));
    op.kernel = text("kernel", static_cast<size_t>(d.roll(0, 4)));
    op.attrs[Attr::kSeconds] = static_cast<double>(d.chance(5) ? 0 : d.roll(1, 200)) * 1e-6;
    if (d.chance(15)) op.attrs[Attr::kRecompute] = 0;
    if (d.chance(20)) op.workspace = d.roll(1, 20'000);
    std::vector<TensorId> free_to_use = made;
    const auto take = [&](std::vector<TensorId>& from) {
      const size_t recent = static_cast<size_t>(d.roll(1, 6));
      const size_t low = d.chance(70) && from.size() > recent ? from.size() - recent : 0;
      const size_t i = static_cast<size_t>(
          d.roll(static_cast<int64_t>(low), static_cast<int64_t>(from.size()) - 1));
      const TensorId id = from[i];
      from.erase(from.begin() + static_cast<ptrdiff_t>(i));
      return id;
    };
    for (int64_t i = d.roll(0, 3); i > 0 && !free_to_use.empty(); --i) {
      (d.chance(12) ? op.updates : op.inputs).push_back(take(free_to_use));
    }
    if (!kept.empty() && d.chance(40)) {
      const TensorId id = kept[static_cast<size_t>(d.roll(0, static_cast<int64_t>(kept.size()) - 1))];
      const bool state = g.at(id).role == Role::kState;
      (state && d.chance(40) ? op.updates : op.inputs).push_back(id);
    }
    for (int64_t i = d.roll(op.updates.empty() ? 1 : 0, 2); i > 0; --i) {
      const TensorId id = add_tensor(d, g, d.chance(8) ? Role::kOutput : Role::kActivation);
      op.outputs.push_back(id);
      made.push_back(id);
    }
    g.ops.push_back(std::move(op));
  }
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (d.chance(8)) add_rule(d, *w, TensorId(static_cast<int64_t>(t)));
  }
  return w;
}

Machine random_machine(uint64_t seed) {
  Dice d(seed * 977 + 5);
  Machine m = Machine::defaults(1);
  m.tiers.resize(1);
  const auto tier = [&](const char* name) {
    TierInfo t;
    t.name = name;
    t.capacity = d.chance(25) ? d.roll(1, 200'000) : Bytes{1} << 40;
    t.load_bytes_per_s = static_cast<double>(d.roll(50, 5'000)) * 1e6;
    t.store_bytes_per_s = static_cast<double>(d.roll(50, 5'000)) * 1e6;
    t.latency_ns = d.chance(50) ? 0 : d.roll(1, 20'000);
    t.duplex = d.chance(60);
    return t;
  };
  m.tiers.push_back(tier("host"));
  if (d.chance(40)) m.tiers.push_back(tier("remote"));
  if (m.tiers.size() == 3 && d.chance(40)) {
    m.tiers[2].duplex = m.tiers[1].duplex;
    m.tiers[1].group = m.tiers[2].group = 0;
  }
  m.tiers.push_back(tier("file"));
  m.tiers.back().capacity = Bytes{1} << 40;
  return m;
}

// Everything that is promised of a plan.
void check_plan(const StepRequest& r, const StepPlan& plan, const std::string& where) {
  const Status good = verify(plan.program);
  ASSERT_TRUE(good.ok()) << where << ": " << good.message();
  ASSERT_LE(plan.program.arena_bytes, r.budget) << where;
  ASSERT_LE(peak_bytes(plan.program), r.budget) << where;
  for (const PassTime& pass : plan.passes) {
    ASSERT_NE(pass.pass, "refused candidates") << where << ": " << pass.work;
  }
  ASSERT_EQ(simulate(plan.program).total_ns, plan.predicted.total_ns) << where;
  ASSERT_LE(plan.bound.compute_ns, plan.predicted.total_ns) << where;
  ASSERT_LE(plan.bound.total_ns, plan.predicted.total_ns) << where << ": " << plan.bound.reason;
  for (const Considered& c : plan.portfolio) {
    if (!c.fits) continue;
    ASSERT_LE(plan.predicted.total_ns, c.predicted_ns) << where << ": " << c.policy;
  }
  for (const PlacementRule& rule : r.workload->rules) {
    for (const Instr& i : plan.program.instrs) {
      if (i.kind == InstrKind::kCompute || i.tensor != rule.tensor) continue;
      const std::string& tier = is_transfer(i.kind) ? r.machine->tiers[i.tier.index()].name : "";
      ASSERT_EQ(std::count(rule.forbidden_tiers.begin(), rule.forbidden_tiers.end(), tier), 0)
          << where << ": a transfer to a forbidden tier";
      const bool coded = i.codec == Codec::kNone ||
                         std::count(rule.codecs.begin(), rule.codecs.end(), i.codec) > 0;
      ASSERT_TRUE(coded) << where << ": a codec that no rule allows";
    }
  }
  for (const Instr& i : plan.program.instrs) {
    if (i.codec == Codec::kNone) continue;
    const bool ruled = std::any_of(r.workload->rules.begin(), r.workload->rules.end(),
                                   [&](const PlacementRule& x) { return x.tensor == i.tensor; });
    ASSERT_TRUE(ruled) << where << ": a codec for what has no rule";
  }
}

// Returns whether a plan was found.
bool plan_at(const StepRequest& r, const std::string& where, Bytes* needed = nullptr) {
  const auto result = plan_step(r);
  EXPECT_TRUE(result.ok()) << where << ": " << result.status().message();
  if (!result.ok()) return false;
  if (const auto* plan = std::get_if<StepPlan>(&*result)) {
    check_plan(r, *plan, where);
    return true;
  }
  const Infeasible& no = std::get<Infeasible>(*result);
  EXPECT_EQ(no.budget, r.budget) << where;
  EXPECT_FALSE(no.reason.empty()) << where;
  if (needed != nullptr) *needed = no.needed_bytes;
  return false;
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoll(value) : otherwise;
}

struct Counts {
  int64_t plans = 0, refused = 0;
};

void plan_at_all_budgets(uint64_t seed, Counts& counts) {
  const auto workload = random_workload(seed);
  ASSERT_TRUE(verify(workload->graph).ok()) << verify(workload->graph).message();
  const Machine machine = random_machine(seed);
  Dice d(seed + 31);
  StepRequest r;
  r.name = workload->graph.name;
  r.workload = workload;
  r.machine = &machine;
  r.reorder = d.chance(50);
  r.recompute = d.chance(80);
  r.goal = static_cast<Goal>(d.roll(0, 2));
  if (seed % 5 == 0) allow_codecs(d, *workload);
  Bytes all = 0;
  for (const Tensor& t : workload->graph.tensors) all += device_bytes(t);
  for (const Op& op : workload->graph.ops) all += round_up(op.workspace, kLine);
  Bytes needed = 0;
  for (const int percent : {100, 70, 50, 35, 20, 0}) {
    r.budget = round_up(all * percent / 100, kLine);
    const std::string where = "seed " + std::to_string(seed) + ", budget " + std::to_string(r.budget);
    if (plan_at(r, where, &needed)) {
      ++counts.plans;
      continue;
    }
    ++counts.refused;
    if (::testing::Test::HasFailure()) return;
    // The least budget that was named is enough, and so is more, unless nothing is.
    if (needed <= r.budget) continue;
    r.budget = needed;
    const bool enough = plan_at(r, where + ", then what was said to be needed");
    EXPECT_TRUE(enough) << where << ": " << needed << " bytes were said to be enough";
    r.budget = round_up(needed * 11 / 10, kLine);
    EXPECT_TRUE(plan_at(r, where + ", then a tenth more")) << where << ": needed " << needed;
    return;
  }
}

TEST(PlanStepFuzz, RandomStepsAreNeverOverBudgetAtAnyBudget) {
  Counts counts;
  const int64_t one = from_environment("HEADRACE_FUZZ_SEED", 0);
  if (one != 0) return plan_at_all_budgets(static_cast<uint64_t>(one), counts);
  const int64_t count = from_environment("HEADRACE_FUZZ_COUNT", 60);
  for (int64_t seed = 1; seed <= count && !HasFailure(); ++seed) {
    plan_at_all_budgets(static_cast<uint64_t>(seed), counts);
  }
  std::printf("%lld plans verified, %lld budgets refused\n", static_cast<long long>(counts.plans),
              static_cast<long long>(counts.refused));
  EXPECT_GT(counts.plans, 2 * count);
}

TEST(PlanStepFuzz, TheSameRequestGivesTheSameBytes) {
  for (uint64_t seed = 200; seed < 215; ++seed) {
    const auto workload = random_workload(seed);
    const Machine machine = random_machine(seed);
    StepRequest r;
    r.name = "again";
    r.workload = workload;
    r.machine = &machine;
    for (const Tensor& t : workload->graph.tensors) r.budget += device_bytes(t);
    r.budget = round_up(r.budget * 6 / 10, kLine);
    const auto first = plan_step(r), second = plan_step(r);
    ASSERT_TRUE(first.ok() && second.ok());
    const auto* a = std::get_if<StepPlan>(&*first);
    const auto* b = std::get_if<StepPlan>(&*second);
    ASSERT_EQ(a == nullptr, b == nullptr);
    if (a == nullptr) continue;
    const std::string written = to_text(a->program);
    EXPECT_EQ(written, to_text(b->program));
    const auto back = parse_program(written);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(simulate(*back).total_ns, a->predicted.total_ns);
  }
}

// ---- bad input ----------------------------------------------------------------------------------

// a -> op0 -> b -> op1 -> c, of 1 MiB each.
struct Small {
  std::shared_ptr<Workload> workload = std::make_shared<Workload>();
  Machine machine = Machine::defaults(1);
  StepRequest request;

  Small() {
    machine.tiers.resize(1);
    machine.tiers.push_back({"host", Bytes{1} << 40, 1e9, 1e9, 0, true});
    Graph& g = workload->graph;
    g.name = "small";
    for (int i = 0; i < 3; ++i) {
      Tensor t;
      t.name = std::string(1, static_cast<char>('a' + i));
      t.dtype = DType::kI8;
      t.cols = t.bytes = kMiB;
      t.role = i == 0 ? Role::kState : Role::kActivation;
      g.add(std::move(t));
    }
    for (int i = 0; i < 2; ++i) {
      Op op;
      op.kind = OpKind::kKernel;
      op.name = text("op", static_cast<size_t>(i));
      op.kernel = "k";
      op.attrs[Attr::kSeconds] = 1e-3;
      op.inputs = {TensorId(i)};
      op.outputs = {TensorId(i + 1)};
      g.ops.push_back(std::move(op));
    }
    request.name = "small";
    request.workload = workload;
    request.machine = &machine;
    request.budget = 64 * kMiB;
  }
  Graph& graph() { return workload->graph; }
  Tensor& tensor(size_t i) { return workload->graph.tensors[i]; }
  Op& op(size_t i) { return workload->graph.ops[i]; }

  // The message of the refusal; empty when there is none.
  std::string refusal() const {
    const auto result = plan_step(request);
    return result.ok() ? "" : result.status().message();
  }
  // What was said to be needed; 0 when a plan was found.
  Bytes needed() const {
    const auto result = plan_step(request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    if (!result.ok()) return 0;
    const auto* no = std::get_if<Infeasible>(&*result);
    if (no == nullptr) check_plan(request, std::get<StepPlan>(*result), "small");
    return no == nullptr ? 0 : no->needed_bytes;
  }
};

TEST(PlanStepBadInput, TheSmallStepItselfIsPlanned) {
  Small s;
  EXPECT_EQ(s.refusal(), "");
  EXPECT_EQ(s.needed(), 0);
}

TEST(PlanStepBadInput, ACycleIsRefused) {
  Small s;
  s.op(0).inputs = {TensorId(2)};
  EXPECT_NE(s.refusal(), "");
}

TEST(PlanStepBadInput, DanglingIdsAreRefused) {
  for (const int64_t id : {3, 1'000'000, -7}) {
    Small s;
    s.op(1).inputs = {TensorId(id)};
    EXPECT_NE(s.refusal(), "") << id;
    Small o;
    o.op(1).outputs = {TensorId(id)};
    EXPECT_NE(o.refusal(), "") << id;
    Small r;
    PlacementRule rule;
    rule.tensor = TensorId(id);
    r.workload->rules.push_back(rule);
    EXPECT_NE(r.refusal(), "") << id;
  }
}

TEST(PlanStepBadInput, SizesThatAreNotAboveZeroAreRefused) {
  for (const Bytes bytes : {Bytes{0}, Bytes{-1}, INT64_MIN}) {
    Small s;
    s.tensor(1).bytes = s.tensor(1).cols = bytes;
    EXPECT_NE(s.refusal(), "") << bytes;
  }
  Small w;
  w.op(0).workspace = -1;
  EXPECT_NE(w.refusal(), "");
  Small huge;
  huge.tensor(0).bytes = huge.tensor(0).cols = INT64_MAX;
  EXPECT_NE(huge.refusal(), "");
}

TEST(PlanStepBadInput, ATensorLargerThanEveryTierIsACertificate) {
  Small s;
  s.machine.tiers[1].capacity = kMiB;
  s.tensor(1).bytes = s.tensor(1).cols = 100 * kMiB;
  EXPECT_GE(s.needed(), 101 * kMiB);
}

TEST(PlanStepBadInput, AnOpThatNeedsMoreThanTheBudgetAloneIsNamed) {
  Small s;
  s.op(1).workspace = 80 * kMiB;
  const auto result = plan_step(s.request);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const auto* no = std::get_if<Infeasible>(&*result);
  ASSERT_NE(no, nullptr);
  EXPECT_EQ(no->op, OpId(1));
  EXPECT_GE(no->needed_bytes, 82 * kMiB);
  EXPECT_NE(no->reason.find("op1"), std::string::npos) << no->reason;
}

TEST(PlanStepBadInput, LinksThatCannotBeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double rate : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    Small s;
    s.machine.tiers[1].load_bytes_per_s = rate;
    EXPECT_NE(s.refusal(), "") << rate;
  }
  Small n;
  n.machine.tiers[1].store_bytes_per_s = nan;
  EXPECT_NE(n.refusal(), "");
  Small l;
  l.machine.tiers[1].latency_ns = -5;
  EXPECT_NE(l.refusal(), "");
  Small none;
  none.machine.tiers.clear();
  EXPECT_NE(none.refusal(), "");
}

TEST(PlanStepBadInput, CostsThatAreNotTimesAreRefused) {
  for (const double cost : {std::nan(""), -1.0, std::numeric_limits<double>::infinity(), 1e30}) {
    Small s;
    s.op(0).attrs[Attr::kSeconds] = cost;
    EXPECT_NE(s.refusal(), "") << cost;
  }
}

TEST(PlanStepBadInput, WhatIsPinnedInTooSmallABudgetIsACertificate) {
  Small s;
  PlacementRule rule;
  rule.tensor = TensorId(0);
  rule.pinned = true;
  s.workload->rules.push_back(rule);
  s.request.budget = kMiB;
  EXPECT_GE(s.needed(), 2 * kMiB);
}

TEST(PlanStepBadInput, RulesThatContradictAreRefused) {
  Small both;
  PlacementRule rule;
  rule.tensor = TensorId(0);
  rule.pinned = rule.remote = true;
  both.workload->rules.push_back(rule);
  EXPECT_NE(both.refusal().find("'a'"), std::string::npos) << both.refusal();
  Small twice;
  rule.remote = false;
  twice.workload->rules = {rule, rule};
  EXPECT_NE(twice.refusal().find("'a'"), std::string::npos);
  Small unknown;
  rule.forbidden_tiers = {"moon"};
  unknown.workload->rules = {rule};
  EXPECT_NE(unknown.refusal().find("moon"), std::string::npos);
}

TEST(PlanStepBadInput, WhenEveryTierIsForbiddenThePlanKeepsOrSaysWhatItNeeds) {
  Small s;
  for (int64_t t = 0; t < 3; ++t) {
    PlacementRule rule;
    rule.tensor = TensorId(t);
    rule.recompute = false;
    rule.forbidden_tiers = {"host"};
    s.workload->rules.push_back(rule);
  }
  EXPECT_EQ(s.needed(), 0);
  s.request.budget = 2 * kMiB;
  EXPECT_GE(s.needed(), 3 * kMiB);
  s.workload->rules[0].remote = true;
  s.request.budget = 64 * kMiB;
  EXPECT_NE(s.refusal().find("'a'"), std::string::npos) << s.refusal();
}

TEST(PlanStepBadInput, BudgetsThatAreNotAreRefused) {
  Small s;
  s.request.budget = -1;
  EXPECT_NE(s.refusal(), "");
  s.request.budget = 0;
  EXPECT_GE(s.needed(), 2 * kMiB);
  s.request.machine = nullptr;
  EXPECT_NE(s.refusal(), "");
}

TEST(PlanStepBadInput, AMillionOpsAreRefusedOrPlannedInBoundedMemory) {
  Small s;
  Graph& g = s.graph();
  g.tensors.resize(1);
  g.ops.clear();
  for (int64_t i = 0; i <= 1'000'000; ++i) {
    Op op;
    op.kind = OpKind::kKernel;
    op.name = "op";
    op.kernel = "k";
    op.updates = {TensorId(0)};
    g.ops.push_back(std::move(op));
  }
  const auto result = plan_step(s.request);
  EXPECT_TRUE(result.ok() || !result.status().message().empty());
}

}  // namespace
}  // namespace headrace
