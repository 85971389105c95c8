// verify(Program): a good small program, and every promise of program.h broken once.
#include "headrace/ir/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "headrace/ir/trace.h"
#include "tests/ir/small_program.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

Program small() {
  Result<Program> p = parse_program(test::small_program_text());
  EXPECT_TRUE(p.ok()) << p.status().message();
  return *p;
}

TEST(VerifyProgram, TheSmallProgramIsGood) {
  const Status s = verify(small());
  EXPECT_TRUE(s.ok()) << s.message();
}

struct Broken {
  const char* what;
  std::function<void(Program&)> breaks;
  const char* message;
};

class VerifyProgramBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(VerifyProgramBroken, IsRefusedWithAReason) {
  Program p = small();
  GetParam().breaks(p);
  const Status s = verify(p);
  ASSERT_FALSE(s.ok()) << GetParam().what;
  EXPECT_EQ(s.code(), Code::kBadFile);
  EXPECT_THAT(s.message(), HasSubstr(GetParam().message)) << GetParam().what;
}

// The residency of `tensor` that begins at `begin`.
Residency& at(Program& p, int tensor, int begin) {
  for (Residency& r : p.residencies) {
    if (r.tensor.value == tensor && r.begin.value == begin) return r;
  }
  ADD_FAILURE() << "t" << tensor << " does not begin at " << begin;
  return p.residencies[0];
}
void drop(Program& p, int tensor, int begin) {
  std::erase_if(p.residencies, [&](const Residency& r) {
    return r.tensor.value == tensor && r.begin.value == begin;
  });
}
Instr& step(Program& p, size_t i) { return p.instrs[i]; }
void change_graph(Program& p, const std::function<void(Graph&)>& change) {
  auto g = std::make_shared<Graph>(*p.graph);
  change(*g);
  p.graph = g;
}

const std::vector<Broken> kResident = {
    {"promise 1: an activation that is nowhere", [](Program& p) { drop(p, 1, 1); },
     "step 1 (compute 'embed'): 'x' is not resident"},
    {"promise 1: an activation that ends too early",
     [](Program& p) { at(p, 1, 1).end = Step(8); },
     "step 8 (compute 'out'): 'x' is not resident"},
    {"promise 1: an activation that begins too late",
     [](Program& p) { at(p, 3, 3).begin = Step(4); }, "step 3 (compute 'qkv'): 'qkv'"},
    {"promise 1: a value in two places one after the other",
     [](Program& p) {
       Residency second = at(p, 1, 1);
       at(p, 1, 1).end = Step(4);
       second.begin = Step(6);
       second.offset = 21120;
       p.residencies.push_back(second);
     },
     "residency of 'x' begins without a load or an op"},
    {"promise 1: no workspace",
     [](Program& p) {
       std::erase_if(p.residencies, [](const Residency& r) { return !r.tensor.valid(); });
     },
     "no workspace"},
    {"promise 1: a wait for the load is missing",
     [](Program& p) { step(p, 8).waits.clear(); },
     "does not wait for the load of 'out.weight'"},
    {"promise 1: a wait for the gather is missing",
     [](Program& p) { step(p, 1).waits.clear(); },
     "does not wait for the load of 'table.rows'"},
    {"promise 1: a weight that begins without a load",
     [](Program& p) { at(p, 9, 5).begin = Step(6); }, "load without a residency"},
    {"promise 1: rows that nobody gathers",
     [](Program& p) { at(p, 0, 0).begin = kEntry; },
     "'table.rows' begins without a load"},
    {"a load of what is here already",
     [](Program& p) {
       drop(p, 2, 10);
       at(p, 2, -1).end = Step(11);
       p.instrs[4] = p.instrs[10];
     },
     "share"},
    {"KV with a gap", [](Program& p) { at(p, 11, -1).end = Step(10); },
     "residency of 'kv.0.0.0' ends without a detach"},
    {"a constant that is overwritten later",
     [](Program& p) { at(p, 4, -1).end = Step(3); },
     "constant 'inv_freq' is not resident"},
    {"an output that is gone before it can be read",
     [](Program& p) { at(p, 10, 8).end = Step(9); }, "output 'logits' is gone"},
};
INSTANTIATE_TEST_SUITE_P(Resident, VerifyProgramBroken, ::testing::ValuesIn(kResident));

const std::vector<Broken> kBytes = {
    {"promise 2: two activations share bytes",
     [](Program& p) { at(p, 7, 6).offset = 20672; },
     "'qkv' and 'q' share bytes at step 6"},
    {"promise 2: one byte is enough", [](Program& p) { at(p, 1, 1).bytes = 65; },
     "'x' and 'rope' share bytes"},
    {"promise 2: workspace over an activation",
     [](Program& p) { at(p, 8, 7).offset = 20864; }, "share bytes at step 7"},
    {"promise 2: a weight over KV", [](Program& p) { at(p, 9, 5).offset = 0; },
     "share bytes"},
    {"promise 2: a load into bytes that compute still reads",
     [](Program& p) { step(p, 5).waits = {Step(2)}; },
     "'qkv.weight' may still be in use by step 3"},
    {"promise 2: a load that waits for nobody",
     [](Program& p) { step(p, 5).waits.clear(); }, "may still be in use by step 3"},
    {"promise 2: a load for the next cycle into bytes in use",
     [](Program& p) { step(p, 10).waits = {Step(7)}; },
     "'out.weight' may still be in use by step 8"},
    {"promise 2: a residual that others read afterwards is no place for the sum",
     [](Program& p) {
       change_graph(p, [](Graph& g) { g.ops[5].inputs[0] = TensorId(1); });
       at(p, 10, 8).offset = at(p, 1, 1).offset;
     },
     "'x' and 'logits' share bytes at step 8"},
    {"promise 3: a detach of KV", [](Program& p) { step(p, 9).tensor = TensorId(6); },
     "ends without"},
    {"promise 3: a detach of what is used later",
     [](Program& p) { std::swap(p.instrs[8], p.instrs[9]); }, "ends without a detach"},
    {"promise 3: a detach of what is not here",
     [](Program& p) {
       p.instrs.push_back(step(p, 9));
       for (Residency& r : p.residencies) {
         if (r.end == Step(11)) r.end = Step(12);
       }
     },
     "step 11 (detach 'out.weight'): detach of what is not resident"},
    {"promise 3: a load without an extent",
     [](Program& p) {
       drop(p, 9, 5);
       step(p, 9).tensor = TensorId(2);
     },
     "step 5 (load 'out.weight'): load without a residency"},
    {"promise 3: a residency that ends by itself",
     [](Program& p) { at(p, 9, 5).end = Step(10); }, "ends without a detach"},
    {"promise 3: a residency that goes on after the detach",
     [](Program& p) {
       drop(p, 2, 10);
       p.instrs.pop_back();
       step(p, 3).waits.clear();
       for (Residency& r : p.residencies) {
         if (r.end == Step(11)) r.end = Step(10);
       }
       at(p, 9, 5).end = Step(10);
       at(p, 2, -1).end = Step(4);
     },
     "goes on after the detach"},
    {"promise 4: past the end of the arena", [](Program& p) { p.arena_bytes = 24576; },
     "'kv.0.0.0' is outside the arena"},
    {"promise 4: before its begin", [](Program& p) { at(p, 6, -1).offset = -4096; },
     "outside"},
    {"promise 4: an offset that overflows",
     [](Program& p) { at(p, 8, 7).offset = INT64_MAX - 63; }, "outside the arena"},
    {"an extent too small", [](Program& p) { at(p, 3, 3).bytes = 0; },
     "'qkv' is too small"},
    {"an extent without its edge pages", [](Program& p) { at(p, 9, 5).bytes = 4096; },
     "'out.weight' is too small"},
    {"a load to no page boundary", [](Program& p) { at(p, 9, 5).offset = 4160; },
     "'out.weight' is misaligned"},
    {"an activation to no line boundary", [](Program& p) { at(p, 8, 7).offset = 20804; },
     "'attn' is misaligned"},
};
INSTANTIATE_TEST_SUITE_P(Bytes, VerifyProgramBroken, ::testing::ValuesIn(kBytes));

const std::vector<Broken> kForm = {
    {"promise 5: a weight at another place at exit",
     [](Program& p) { at(p, 2, 10).offset = 8192; }, "does not end where it began"},
    {"promise 5: a weight that is not loaded again",
     [](Program& p) {
       drop(p, 2, 10);
       p.instrs.pop_back();
       step(p, 3).waits.clear();
       for (Residency& r : p.residencies) {
         if (r.end == Step(11)) r.end = Step(10);
       }
     },
     "does not end where it began"},
    {"no graph", [](Program& p) { p.graph = nullptr; }, "without a graph"},
    {"a graph that is broken itself",
     [](Program& p) { change_graph(p, [](Graph& g) { g.ops[0].outputs.clear(); }); },
     "not exactly one output"},
    {"no tiers", [](Program& p) { p.tiers.clear(); }, "without a device"},
    {"a tier without bandwidth", [](Program& p) { p.tiers[1].load_bytes_per_s = 0; },
     "tier 'file' has impossible rates"},
    {"an op that does not exist", [](Program& p) { step(p, 1).op = OpId(6); },
     "op that does not"},
    {"a compute step of no op", [](Program& p) { step(p, 1).op = OpId(); },
     "op that does not"},
    {"a tensor that does not exist", [](Program& p) { step(p, 5).tensor = TensorId(12); },
     "tensor that does not"},
    {"a tier that does not exist", [](Program& p) { step(p, 5).tier = TierId(2); },
     "tier that does"},
    {"a load from the device", [](Program& p) { step(p, 5).tier = kDevice; },
     "tier that does"},
    {"a load on the compute stream",
     [](Program& p) { step(p, 5).stream = kComputeStream; }, "stream of the wrong kind"},
    {"a load on a stream of nobody",
     [](Program& p) { step(p, 5).stream = StreamId(2'000'000'000); },
     "stream of the wrong kind"},
    {"compute on a link", [](Program& p) { step(p, 1).stream = StreamId(1); },
     "wrong kind"},
    {"a wait for no step", [](Program& p) { step(p, 8).waits = {Step(11)}; },
     "wait names a step"},
    {"a wait for the entry", [](Program& p) { step(p, 8).waits = {Step(-1)}; },
     "wait names a step"},
    {"a load of KV", [](Program& p) { step(p, 5).tensor = TensorId(6); },
     "begins without a load"},
    {"a load of a whole table", [](Program& p) { step(p, 0).kind = InstrKind::kLoad; },
     "which is no weight"},
    {"a gather of a weight", [](Program& p) { step(p, 5).kind = InstrKind::kGather; },
     "which is no table"},
    {"a step that takes less than no time", [](Program& p) { step(p, 1).cost_ns = -5; },
     "no time"},
    {"a residency of nothing", [](Program& p) { at(p, 8, 7).tensor = TensorId(); },
     "of nothing"},
    {"a residency of an unknown tensor",
     [](Program& p) { at(p, 8, 7).tensor = TensorId(44); }, "of nothing"},
    {"a residency that ends before it begins",
     [](Program& p) { at(p, 8, 7).end = Step(7); }, "impossible steps"},
    {"a residency past the exit", [](Program& p) { at(p, 10, 8).end = Step(12); },
     "impossible"},
    {"a residency from before the entry",
     [](Program& p) { at(p, 4, -1).begin = Step(-2); }, "impossible steps"},
    {"a weight twice at entry",
     [](Program& p) {
       Residency twice = at(p, 2, -1);
       twice.offset = 8192;
       p.residencies.push_back(twice);
     },
     "'qkv.weight' is in two places"},
};
INSTANTIATE_TEST_SUITE_P(Form, VerifyProgramBroken, ::testing::ValuesIn(kForm));

TEST(VerifyProgram, AMatmulMayWriteItsSumOverTheResidual) {
  Program p = small();
  at(p, 10, 8).offset = at(p, 1, 1).offset;
  const Status s = verify(p);
  EXPECT_TRUE(s.ok()) << s.message();
}

TEST(ProgramState, EntryAndExitNameWeightsAndKvByOffset) {
  const Program p = small();
  const std::vector<Placed> both = {
      {"kv.tail.0.0", 0, 4096}, {"qkv.weight", 4096, 4096}, {"kv.0.0.0", 24576, 4096}};
  EXPECT_EQ(entry_state(p), both);
  EXPECT_EQ(exit_state(p), both);
}

TEST(LoadExtent, IsThePageRoundedSuperset) {
  const LoadExtent aligned = load_extent({0, 8192, 4096});
  EXPECT_EQ(aligned.offset, 8192);
  EXPECT_EQ(aligned.bytes, 4096);
  EXPECT_EQ(aligned.skew, 0);
  const LoadExtent across = load_extent({0, 8160, 64});
  EXPECT_EQ(across.offset, 4096);
  EXPECT_EQ(across.bytes, 8192);
  EXPECT_EQ(across.skew, 4064);
  const LoadExtent inside = load_extent({0, 100, 10});
  EXPECT_EQ(inside.offset, 0);
  EXPECT_EQ(inside.bytes, 4096);
  EXPECT_EQ(inside.skew, 100);
}

TEST(MemoryCurve, IsTheSumOfExtentsAtEachChange) {
  const Program p = small();
  std::vector<std::pair<int32_t, Bytes>> got;
  for (const MemoryPoint& m : memory_curve(p)) got.push_back({m.step, m.bytes});
  const Bytes base = 4096 + 4096 + 64;  // tail, slot, constant
  const std::vector<std::pair<int32_t, Bytes>> want = {
      {-1, base + 4096},
      {0, base + 4096 + 8192},
      {1, base + 4096 + 8192 + 64},
      {2, base + 4096 + 128},
      {3, base + 4096 + 192},
      {4, base + 192},
      {5, base + 8192 + 192},
      {6, base + 8192 + 256},
      {7, base + 8192 + 64 + 64 + 64 + 128},
      {8, base + 8192 + 192},
      {9, base + 64},
      {10, base + 4096 + 64},
      {11, 0}};
  EXPECT_EQ(got, want);
  EXPECT_EQ(peak_bytes(p), 28672);
}

TEST(MemoryCurve, CountsASharedByteOnce) {
  Program p = small();
  at(p, 10, 8).offset = at(p, 1, 1).offset;
  for (const MemoryPoint& m : memory_curve(p)) {
    if (m.step != 8) continue;
    EXPECT_EQ(m.bytes, 4096 + 4096 + 64 + 8192 + 64 + 64);
  }
}

TEST(ChromeTrace, HasOneEventAnInstructionAndEscapesNames) {
  Program p = small();
  change_graph(p, [](Graph& g) { g.ops[0].name = "a \"quoted\"\n\\name"; });
  Trace trace;
  trace.records.resize(p.instrs.size());
  trace.records[1] = {1500, 2500, 7, 0};
  const std::string json = to_chrome_json(p, trace);
  EXPECT_THAT(json, HasSubstr("a \\\"quoted\\\"\\n\\\\name"));
  EXPECT_THAT(
      json,
      HasSubstr(
          "\"ts\":1.500,\"dur\":1.000,\"args\":{\"step\":1,\"bytes\":0,\"stall_ns\":7}"));
  size_t events = 0;
  for (size_t i = 0; (i = json.find("\"ph\":\"X\"", i)) != std::string::npos; ++i)
    ++events;
  EXPECT_EQ(events, p.instrs.size() - 2);  // detaches take no time and are left out
}

}  // namespace
}  // namespace headrace
