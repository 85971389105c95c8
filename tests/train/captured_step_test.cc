// CapturedStep: what is written down as JSON gives the bits that build_train_step() gives, whatever
// the budget; the caller's layout; accumulation, clipping, what is not finite.
#include "headrace/train/captured_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "headrace/base/system_memory.h"
#include "headrace/train/captured_graph.h"
#include "tests/train/captured_text.h"
#include "tests/train/plain_step.h"
#include "tests/train/step_models.h"

namespace headrace {
namespace {

using nlohmann::json;
using test::captured_json;
using test::captured_optimizer;
using test::hashed_parameters;
using test::hashed_rows;
using test::PlainTrainStep;
using test::StepCase;
using ::testing::HasSubstr;

constexpr int kSteps = 5;

CapturedOptions options(Bytes arena = 0) {
  CapturedOptions o;
  o.memory_bytes = 4 * kGiB;
  o.tiers = {{"host", "", kGiB}};
  o.machine = Machine::defaults(1);
  o.machine.tiers[1].store_bytes_per_s = o.machine.tiers[1].load_bytes_per_s;
  o.profile = false;
  o.arena_bytes = arena;
  return o;
}

std::unique_ptr<CapturedStep> planned(const json& forward, const json& optimizer,
                                      Bytes arena = 0) {
  auto step = CapturedStep::plan(forward.dump(), optimizer.dump(), options(arena));
  EXPECT_TRUE(step.ok()) << step.status().message();
  return step.ok() ? std::move(*step) : nullptr;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

std::vector<float> read_all(CapturedStep& step, const std::string& name,
                            ParameterState state = ParameterState::kValue) {
  auto bytes = step.bytes_of(name, state);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  std::vector<float> out(static_cast<size_t>(*bytes) / sizeof(float));
  if (out.empty()) return out;  // it has no such state
  const Status s = step.read(name, state, 0, std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(s.ok()) << s.message();
  return out;
}

void write_all(CapturedStep& step, const std::string& name, const std::vector<float>& values,
               ParameterState state = ParameterState::kValue) {
  const Status s = step.write(name, state, 0, bytes_of(values));
  ASSERT_TRUE(s.ok()) << s.message();
}

// [rows, cols] as [cols, rows].
std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t cols) {
  std::vector<float> out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * cols + c)];
    }
  }
  return out;
}

// Values of a whole parameter's state in the plain step, as the caller of a captured one has them.
std::vector<float> plain_values(const PlainTrainStep& plain, const std::string& name,
                                ParameterState state) {
  std::vector<float> out;
  const Parameter* first = nullptr;
  for (const Parameter& p : plain.step().parameters) {
    if (p.name != name) continue;
    if (first == nullptr) first = &p;
    TensorId id = state == ParameterState::kFirst ? p.m : p.v;
    if (state == ParameterState::kValue) id = p.master.valid() ? p.master : p.param;
    if (!id.valid()) return {};
    const std::vector<float> tile = plain.get(id);
    out.insert(out.end(), tile.begin(), tile.end());
  }
  return first->transposed ? turned(out, first->rows, first->cols) : out;
}

PlainTrainStep plain_step(const StepCase& c) {
  auto step = build_train_step(c.model, c.shape, c.optimizer, {.guard = true});
  EXPECT_TRUE(step.ok()) << step.status().message();
  PlainTrainStep plain(std::move(*step));
  test::set_hashed_parameters(plain);
  return plain;
}

void write_hashed(CapturedStep& step) {
  const std::vector<Parameter>& parameters = step.train_plan().step->parameters;
  for (const auto& [name, values] : hashed_parameters(parameters)) {
    const auto p = std::find_if(parameters.begin(), parameters.end(),
                                [&](const Parameter& q) { return q.name == name; });
    write_all(step, name, p->transposed ? turned(values, p->rows, p->cols) : values);
  }
}

CapturedRows captured(const StepRows& rows, std::span<const double> rates) {
  return {.tokens = rows.tokens, .targets = rows.targets, .rates = rates, .seed = rows.seed};
}

TEST(CapturedStep, GivesTheBitsOfTheStepThatIsBuiltHereAtEveryBudget) {
  const std::vector<double> rates = {0.01, 0.01};
  std::vector<StepCase> cases = test::step_cases();
  for (const size_t i : {0, 4}) cases[i].shape.micro_batches = 1;
  for (const StepCase& c : cases) {
    PlainTrainStep plain = plain_step(c);
    std::vector<StepRows> rows;
    std::vector<double> losses, norms;
    for (int i = 0; i < kSteps; ++i) {
      rows.push_back(hashed_rows(c.shape.sequences * c.shape.sequence, c.model.vocab, i));
      plain.run(rows.back());
      losses.push_back(static_cast<double>(plain.loss()));
      norms.push_back(static_cast<double>(plain.get(plain.step().clip)[1]));
    }
    const json forward = captured_json(c.model, c.shape);
    const json optimizer = captured_optimizer(c.optimizer);
    const auto whole = planned(forward, optimizer);
    ASSERT_NE(whole, nullptr) << c.model.name;
    int budgets = 0;
    for (const double share : {1.0, 0.6, 0.35}) {
      const Bytes arena = round_up(
          static_cast<Bytes>(share * static_cast<double>(whole->train_plan().arena_bytes)), kPage);
      auto tight = CapturedStep::plan(forward.dump(), optimizer.dump(), options(arena));
      if (!tight.ok()) continue;
      ++budgets;
      CapturedStep& step = **tight;
      const std::string where = c.model.name + ", " + human_bytes(arena);
      ASSERT_TRUE(step.start().ok()) << where;
      write_hashed(step);
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto got = step.run(captured(rows[i], rates));
        ASSERT_TRUE(got.ok()) << where << ": " << got.status().message();
        EXPECT_EQ(got->loss, losses[i]) << where << ", step " << i;
        EXPECT_EQ(got->losses.size(), static_cast<size_t>(c.shape.micro_batches)) << where;
        ASSERT_EQ(got->gradient_norm.has_value(), c.optimizer.clip_norm > 0) << where;
        if (got->gradient_norm) {
          EXPECT_EQ(*got->gradient_norm, norms[i]) << where;
        }
      }
      EXPECT_EQ(step.done(), kSteps);
      for (const json& p : forward["parameters"]) {
        const std::string name = p["name"];
        for (const ParameterState state :
             {ParameterState::kValue, ParameterState::kFirst, ParameterState::kSecond}) {
          EXPECT_TRUE(read_all(step, name, state) == plain_values(plain, name, state))
              << where << ": " << name_of(state) << " of " << name;
        }
      }
    }
    EXPECT_GE(budgets, 2) << c.model.name;
  }
}

TEST(CapturedStep, HasTheOpsOfTheStepThatIsBuiltHere) {
  for (const StepModel& model : {test::small_llama(), test::small_gpt2()}) {
    const StepShape shape = test::small_shape();
    const auto step = planned(captured_json(model, shape), captured_optimizer({}));
    ASSERT_NE(step, nullptr);
    const auto built = build_train_step(model, shape, {}, {.guard = true});
    ASSERT_TRUE(built.ok());
    const Graph& a = step->train_plan().step->workload.graph;
    const Graph& b = built->workload.graph;
    ASSERT_EQ(a.ops.size(), b.ops.size());
    for (size_t i = 0; i < a.ops.size(); ++i) {
      EXPECT_EQ(a.ops[i].kernel, b.ops[i].kernel) << i;
      EXPECT_EQ(a.ops[i].name, b.ops[i].name) << i;
      EXPECT_EQ(a.ops[i].inputs.size(), b.ops[i].inputs.size()) << a.ops[i].name;
    }
  }
}

TEST(CapturedStep, TablesAreCutIntoTilesAndReadAsOne) {
  StepModel model = test::small_llama();
  model.layers = 1;
  model.vocab = 300'000;  // of 32 floats: 36.6 MiB
  const auto step = planned(captured_json(model, test::small_shape()), captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  int tiles = 0;
  for (const Parameter& p : step->train_plan().step->parameters) {
    tiles += p.name == "lm_head.weight";
  }
  EXPECT_EQ(tiles, 3);
  ASSERT_TRUE(step->start().ok());
  std::vector<float> values(static_cast<size_t>(model.vocab * model.hidden));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 8191);
  write_all(*step, "lm_head.weight", values);
  EXPECT_TRUE(read_all(*step, "lm_head.weight") == values);
  // Across the end of the first tile.
  std::vector<float> part(1000);
  const Bytes begin = kTableTile - 2000;
  ASSERT_TRUE(step->read("lm_head.weight", ParameterState::kValue, begin,
                         std::as_writable_bytes(std::span(part))).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + begin / 4));
}

TEST(CapturedStep, PartsOfATransposedParameterAreReadAndWrittenInTheCallersLayout) {
  const auto step =
      planned(captured_json(test::small_gpt2(), test::small_shape()), captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  ASSERT_TRUE(step->start().ok());
  const std::string name = "transformer.h.1.attn.c_attn.weight";  // [32, 96] for the caller
  std::vector<float> values(32 * 96);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  write_all(*step, name, values);
  EXPECT_TRUE(read_all(*step, name) == values);
  const std::vector<float> some(250, -1.0f);
  ASSERT_TRUE(step->write(name, ParameterState::kValue, 4 * 301, bytes_of(some)).ok());
  std::copy(some.begin(), some.end(), values.begin() + 301);
  EXPECT_TRUE(read_all(*step, name) == values);
  std::vector<float> part(100);
  ASSERT_TRUE(step->read(name, ParameterState::kValue, 4 * 500,
                         std::as_writable_bytes(std::span(part))).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 500));
}

TEST(CapturedStep, ParametersInBf16AreReadAndWrittenAsBf16) {
  StepModel model = test::small_llama();
  model.precision = Precision::kBf16;
  json forward = captured_json(model, test::small_shape());
  for (json& p : forward["parameters"]) p["dtype"] = "bf16";
  const auto step = planned(forward, captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  ASSERT_TRUE(step->start().ok());
  for (const char* name : {"model.norm.weight", "lm_head.weight"}) {
    const auto bytes = step->bytes_of(name, ParameterState::kValue);
    ASSERT_TRUE(bytes.ok());
    std::vector<uint16_t> values(static_cast<size_t>(*bytes) / 2), back(values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(0x3f00 + i % 97);
    ASSERT_TRUE(step->write(name, ParameterState::kValue, 0, bytes_of(values)).ok());
    ASSERT_TRUE(step->read(name, ParameterState::kValue, 0,
                           std::as_writable_bytes(std::span(back))).ok());
    EXPECT_TRUE(values == back) << name;
  }
  // The master has more bits than the caller's value.
  const std::string head = "lm_head.weight", norm = "model.norm.weight";
  EXPECT_TRUE(read_all(*step, norm, ParameterState::kMaster).empty());
  std::vector<float> master = read_all(*step, head, ParameterState::kMaster);
  ASSERT_EQ(master.size(), 67u * 32u);
  EXPECT_EQ(master[3], bf16_to_f32(0x3f03));
  master[3] += 0x1p-12f;
  write_all(*step, head, master, ParameterState::kMaster);
  EXPECT_TRUE(read_all(*step, head, ParameterState::kMaster) == master);
  uint16_t rounded = 0;
  ASSERT_TRUE(step->read(head, ParameterState::kValue, 6,
                         std::as_writable_bytes(std::span(&rounded, 1))).ok());
  EXPECT_EQ(rounded, 0x3f03);
}

// SGD's change of a parameter is the gradient: that of two micro-batches with means of their own is
// the sum of what each gives alone, scaled.
TEST(CapturedStep, AccumulatesMeansOfMicroBatchesWithDifferentCountsAsPyTorchDoes) {
  const StepModel model = test::small_llama();
  OptimizerConfig sgd;
  sgd.kind = "sgd";
  sgd.momentum = sgd.weight_decay = 0;
  json both = captured_json(model, test::small_shape(2));
  for (json& op : both["micro_batches"][0]["ops"]) {
    if (op["op"] == "hr.loss") op["attrs"].update({{"own_mean", 1}, {"scale", 0.5}});
  }
  StepShape half = test::small_shape();
  half.sequences = 2;
  StepRows rows = hashed_rows(48, model.vocab, 0);
  std::fill(rows.targets.begin(), rows.targets.begin() + 17, -1);
  const std::vector<double> rates = {1.0, 1.0};
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const auto run = [&](const json& forward, int64_t begin, int64_t count,
                       std::vector<double>* losses) {
    const auto step = planned(forward, captured_optimizer(sgd));
    EXPECT_TRUE(step->start().ok());
    write_hashed(*step);
    const std::vector<float> before = read_all(*step, name);
    const auto n = static_cast<size_t>(count), at = static_cast<size_t>(begin);
    const auto got = step->run({.tokens = std::span(rows.tokens).subspan(at, n),
                                .targets = std::span(rows.targets).subspan(at, n),
                                .rates = rates});
    EXPECT_TRUE(got.ok()) << got.status().message();
    *losses = got->losses;
    std::vector<float> change = read_all(*step, name);
    for (size_t i = 0; i < change.size(); ++i) change[i] -= before[i];
    return change;
  };
  std::vector<double> losses, one, two;
  const std::vector<float> sum = run(both, 0, 48, &losses);
  const json alone = captured_json(model, half);
  std::vector<float> expected = run(alone, 0, 24, &one);
  const std::vector<float> second = run(alone, 24, 24, &two);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = 0.5f * (expected[i] + second[i]);
  EXPECT_LT(test::distance(sum, expected), 1e-5);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_NEAR(losses[0], one[0], 1e-6);
  EXPECT_NEAR(losses[1], two[0], 1e-6);
  EXPECT_GT(std::abs(one[0] - two[0]), 1e-3);
}

TEST(CapturedStep, AStepThatIsNotFiniteChangesNothingAndDoesNotCount) {
  for (const double clip : {0.0, 1.0}) {
    OptimizerConfig optimizer;
    optimizer.clip_norm = clip;
    const auto step = planned(captured_json(test::small_llama(), test::small_shape()),
                              captured_optimizer(optimizer));
    ASSERT_NE(step, nullptr);
    ASSERT_TRUE(step->start().ok());
    write_hashed(*step);
    const std::string norm = "model.norm.weight", other = "lm_head.weight";
    const std::vector<float> good = read_all(*step, norm), before = read_all(*step, other);
    write_all(*step, norm, std::vector<float>(32, std::numeric_limits<float>::infinity()));
    const StepRows rows = hashed_rows(48, 67, 0);
    const std::vector<double> rates = {0.01, 0.01};
    auto got = step->run(captured(rows, rates));
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_TRUE(got->skipped);
    EXPECT_EQ(step->done(), 0);
    EXPECT_TRUE(read_all(*step, other) == before);
    write_all(*step, norm, good);
    got = step->run(captured(rows, rates));
    ASSERT_TRUE(got.ok());
    EXPECT_FALSE(got->skipped);
    EXPECT_EQ(step->done(), 1);
    EXPECT_FALSE(read_all(*step, other) == before);
  }
}

TEST(CapturedStep, GroupsHaveRatesAndNumbersOfTheirOwn) {
  json optimizer = captured_optimizer({});
  const auto step = planned(captured_json(test::small_llama(), test::small_shape()), optimizer);
  ASSERT_NE(step, nullptr);
  ASSERT_TRUE(step->start().ok());
  write_hashed(*step);
  const std::vector<float> norm = read_all(*step, "model.norm.weight");
  const std::vector<float> head = read_all(*step, "lm_head.weight");
  const std::vector<double> rates = {0.01, 0.0};
  ASSERT_TRUE(step->run(captured(hashed_rows(48, 67, 0), rates)).ok());
  EXPECT_TRUE(read_all(*step, "model.norm.weight") == norm);
  EXPECT_FALSE(read_all(*step, "lm_head.weight") == head);
}

// Moments and the number of steps go to another step that goes on as the first would have.
TEST(CapturedStep, GoesOnFromStateThatIsReadAndWritten) {
  const json forward = captured_json(test::small_gpt2(), test::small_shape());
  const json optimizer = captured_optimizer({});
  const std::vector<double> rates = {0.01, 0.01};
  const auto a = planned(forward, optimizer), b = planned(forward, optimizer);
  ASSERT_TRUE(a->start().ok());
  ASSERT_TRUE(b->start().ok());
  write_hashed(*a);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(a->run(captured(hashed_rows(48, 67, i), rates)).ok());
  const auto copy = [&](CapturedStep& from, CapturedStep& to) {
    for (const json& p : forward["parameters"]) {
      for (const ParameterState state :
           {ParameterState::kValue, ParameterState::kFirst, ParameterState::kSecond}) {
        write_all(to, p["name"], read_all(from, p["name"], state), state);
      }
    }
    to.set_done(from.done());
  };
  copy(*a, *b);
  const auto x = a->run(captured(hashed_rows(48, 67, 2), rates));
  const auto y = b->run(captured(hashed_rows(48, 67, 2), rates));
  ASSERT_TRUE(x.ok() && y.ok());
  EXPECT_EQ(x->loss, y->loss);
  for (const json& p : forward["parameters"]) {
    EXPECT_TRUE(read_all(*a, p["name"]) == read_all(*b, p["name"])) << p["name"];
  }
}

TEST(CapturedStep, TiedParametersAreKnownByEveryName) {
  json forward = captured_json(test::small_gpt2(), test::small_shape());
  forward["parameters"][0]["aliases"] = {"lm_head.weight"};
  for (json& op : forward["micro_batches"][0]["ops"]) {
    if (op["op"] == "hr.loss") op["in"][1] = "lm_head.weight";
  }
  const auto step = planned(forward, captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  ASSERT_TRUE(step->start().ok());
  write_hashed(*step);
  EXPECT_TRUE(read_all(*step, "lm_head.weight") == read_all(*step, "transformer.wte.weight"));
}

TEST(CapturedStep, InputsAreWrittenBeforeAStepAndReadByIt) {
  json forward = captured_json(test::small_llama(), test::small_shape(2));
  json& ops = forward["micro_batches"][0]["ops"];
  const std::string first = ops[1]["in"][0];
  for (size_t i = 1; i < ops.size(); ++i) {
    for (json& in : ops[i]["in"]) {
      if (in == first) in = "shifted";
    }
  }
  json shift = {{"op", "hr.add"}, {"name", "shift"}, {"in", {first, "pixels"}}};
  shift["out"].push_back({{"name", "shifted"}, {"shape", {24, 32}}});
  ops.insert(ops.begin() + 1, shift);
  forward["inputs"] = {{{"name", "pixels"}, {"shape", {24, 32}}, {"count", 2}}};
  const auto step = planned(forward, captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  ASSERT_TRUE(step->start().ok());
  write_hashed(*step);
  const std::vector<double> none = {0.0, 0.0};
  const auto losses = [&](float a, float b) {
    EXPECT_TRUE(step->write_input("pixels", 0, bytes_of(std::vector<float>(24 * 32, a))).ok());
    EXPECT_TRUE(step->write_input("pixels", 1, bytes_of(std::vector<float>(24 * 32, b))).ok());
    const auto got = step->run(captured(hashed_rows(48, 67, 0), none));
    EXPECT_TRUE(got.ok()) << got.status().message();
    return got->losses;
  };
  const std::vector<double> zero = losses(0, 0), second = losses(0, 1), again = losses(0, 0);
  EXPECT_EQ(zero, again);
  EXPECT_EQ(zero[0], second[0]);
  EXPECT_NE(zero[1], second[1]);
  EXPECT_THAT(step->write_input("pixels", 2, {}).message(), HasSubstr("number 2 of 2"));
  EXPECT_THAT(step->write_input("sound", 0, {}).message(), HasSubstr("no input 'sound'"));
}

TEST(CapturedStep, RemoteParametersLeaveMemoryOnceAStep) {
  json forward = captured_json(test::small_llama(), test::small_shape());
  for (json& p : forward["parameters"]) {
    if (p["name"] != "lm_head.weight") continue;
    p["remote_memory"] = {{"max_size", 0}, {"prefetch_priority", 3}};
  }
  const auto step = planned(forward, captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  const Program& program = step->train_plan().plan.program;
  const auto& instrs = program.instrs;
  const bool loaded = std::any_of(instrs.begin(), instrs.end(), [&](const Instr& i) {
    return i.kind == InstrKind::kLoad && program.graph->at(i.tensor).name == "lm_head.weight";
  });
  EXPECT_TRUE(loaded);
}

TEST(CapturedStep, SaysWhatARunOrACallCannotBe) {
  const auto step =
      planned(captured_json(test::small_llama(), test::small_shape()), captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  const std::vector<double> rates = {0.01, 0.01}, one = {0.01};
  StepRows rows = hashed_rows(48, 67, 0);
  EXPECT_THAT(step->run(captured(rows, rates)).status().message(), HasSubstr("not been started"));
  ASSERT_TRUE(step->start().ok());
  EXPECT_FALSE(step->start().ok());
  EXPECT_THAT(step->run(captured(rows, one)).status().message(), HasSubstr("2 rates, not"));
  rows.tokens[5] = 67;
  EXPECT_THAT(step->run(captured(rows, rates)).status().message(),
              HasSubstr("op 'embed': token 67 of row 5 is not from 0 to below 67"));
  rows.tokens[5] = 0;
  rows.targets[3] = -100;
  EXPECT_THAT(step->run(captured(rows, rates)).status().message(),
              HasSubstr("target -100 of row 3"));
  float value = 0;
  const auto out = std::as_writable_bytes(std::span(&value, 1));
  EXPECT_THAT(step->read("nothing", ParameterState::kValue, 0, out).message(),
              HasSubstr("no parameter 'nothing'"));
  EXPECT_THAT(step->read("model.norm.weight", ParameterState::kValue, 2, out).message(),
              HasSubstr("whole elements"));
  EXPECT_THAT(step->read("model.norm.weight", ParameterState::kValue, 128, out).message(),
              HasSubstr("bytes 128 to 132 of 128"));
}

TEST(CapturedStep, ABudgetThatIsTooSmallIsRefusedWithWhatWouldDo) {
  CapturedOptions o = options();
  o.memory_bytes = kMiB;
  const json forward = captured_json(test::small_llama(), test::small_shape());
  o.baseline_bytes = process_memory().rss;
  const std::string text = forward.dump(), optimizer = captured_optimizer({}).dump();
  TrainRefusal refusal;
  const Status s = CapturedStep::plan(text, optimizer, o, &refusal).status();
  EXPECT_EQ(s.code(), Code::kDoesNotFit);
  EXPECT_THAT(s.message(), HasSubstr("it takes at least memory=\""));
  EXPECT_GT(refusal.needed_bytes, kMiB);
  EXPECT_FALSE(refusal.options.empty());
  o.memory_bytes = refusal.needed_bytes;
  o.baseline_bytes = process_memory().rss;
  const auto step = CapturedStep::plan(text, optimizer, o);
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_LE((*step)->train_plan().ledger.reserved(), o.memory_bytes);
}

TEST(CapturedStep, TheTableSaysWhereTheBudgetGoes) {
  const auto step =
      planned(captured_json(test::small_llama(), test::small_shape()), captured_optimizer({}));
  ASSERT_NE(step, nullptr);
  const std::string text = step->plan_text();
  for (const char* part : {"small llama", "4 x 12 tokens a step", "growth so far", "arena"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace headrace
