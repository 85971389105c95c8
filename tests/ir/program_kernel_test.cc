// verify(Program) on steps of kernels: good ones, and each thing that can go wrong with copies in
// other tiers, parts, codecs, versions, recomputation and the order between streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "headrace/ir/program.h"
#include "tests/ir/kernel_programs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

Program parsed(const char* text) {
  Result<Program> p = parse_program(text);
  EXPECT_TRUE(p.ok()) << p.status().message();
  return *p;
}

Residency& at(Program& p, int tensor, int begin, int tier = 0) {
  for (Residency& r : p.residencies) {
    if (r.tensor.value == tensor && r.begin.value == begin && r.tier.value == tier) return r;
  }
  ADD_FAILURE() << "t" << tensor << " does not begin at " << begin;
  return p.residencies[0];
}
void drop(Program& p, int tensor, int begin, int tier = 0) {
  std::erase_if(p.residencies, [&](const Residency& r) {
    return r.tensor.value == tensor && r.begin.value == begin && r.tier.value == tier;
  });
}
void waits(Program& p, size_t step, std::vector<int> on) {
  p.instrs[step].waits.clear();
  for (int w : on) p.instrs[step].waits.push_back(Step(w));
}
void change_graph(Program& p, const std::function<void(Graph&)>& change) {
  auto g = std::make_shared<Graph>(*p.graph);
  change(*g);
  p.graph = g;
}
// Takes the instruction out; everything later moves up.
void erase_step(Program& p, int step) {
  p.instrs.erase(p.instrs.begin() + step);
  for (Instr& i : p.instrs) {
    std::erase_if(i.waits, [&](Step w) { return w.value == step; });
    for (Step& w : i.waits) w.value -= w.value > step ? 1 : 0;
  }
  for (Residency& r : p.residencies) {
    r.begin.value -= r.begin.value > step ? 1 : 0;
    r.end.value -= r.end.value > step ? 1 : 0;
  }
}

struct Broken {
  const char* what;
  std::function<void(Program&)> breaks;
  const char* message;
};

void expect_refused(const char* text, const std::vector<Broken>& all) {
  for (const Broken& broken : all) {
    Program p = parsed(text);
    broken.breaks(p);
    const Status s = verify(p);
    ASSERT_FALSE(s.ok()) << broken.what;
    EXPECT_EQ(s.code(), Code::kBadFile);
    EXPECT_THAT(s.message(), HasSubstr(broken.message)) << broken.what;
  }
}
void expect_good(Program p, const char* what) {
  const Status s = verify(p);
  EXPECT_TRUE(s.ok()) << what << ": " << s.message();
}

TEST(VerifyStep, AStepThatStoresEncodesAndRecomputesIsGood) {
  const Program p = parsed(test::kStepProgram);
  expect_good(p, "step");
  EXPECT_EQ(to_text(*parse_program(to_text(p))), to_text(p));
}

TEST(VerifyStep, AStateThatLivesInAnotherTierIsGood) {
  expect_good(parsed(test::kStateProgram), "state");
}

TEST(VerifyStep, AChainOfWaitsAndTheOrderOfAStreamAreEnough) {
  Program p = parsed(test::kStepProgram);
  waits(p, 9, {8});  // the second load comes after the first
  expect_good(p, "a later load of the same stream");
  waits(p, 4, {3});  // a detach completes with its waits
  expect_good(p, "through a detach");
  waits(p, 8, {});   // after the load before it
  expect_good(p, "order of a stream");
}

TEST(VerifyStep, OpsMayRunInAnotherOrderThanTheGraphs) {
  Program p = parsed(test::kStateProgram);
  change_graph(p, [](Graph& g) {
    Op other;
    other.kind = OpKind::kKernel;
    other.name = "other";
    other.updates = {TensorId(1)};
    g.ops.push_back(other);  // after "change", which reads x
    g.ops[1].inputs = {};
  });
  Instr i;
  i.op = OpId(2);
  p.instrs.insert(p.instrs.begin() + 2, i);  // before it
  for (Residency& r : p.residencies) {
    if (r.begin.value >= 2) ++r.begin.value;
    if (r.end.value >= 2) ++r.end.value;
  }
  waits(p, 0, {4});
  waits(p, 4, {3});
  waits(p, 5, {4});
  expect_good(p, "independent ops");
  change_graph(p, [](Graph& g) { g.ops[1].inputs = {TensorId(1)}; });
  EXPECT_THAT(verify(p).message(), HasSubstr("step 3 (compute 'change'): 'x' is stale: version 2"));
}

TEST(VerifyStep, RefusesInstructionsThatDoNotWaitForOthers) {
  expect_refused(test::kStepProgram, {
    {"a store before its op has written", [](Program& p) { waits(p, 1, {}); },
     "step 1 (store 'a'): does not wait for the write of 'a' at step 0"},
    {"an op over bytes that a store still reads", [](Program& p) { waits(p, 4, {}); },
     "step 4 (compute 'f3'): bytes of 'a' may still be in use by step 1"},
    {"a load before the copy is there",
     [](Program& p) {
       waits(p, 4, {});
       at(p, 3, 4).offset = at(p, 3, 12).offset = 1408;
       std::erase_if(p.residencies, [](const Residency& r) { return !r.tensor.valid(); });
       change_graph(p, [](Graph& g) { g.ops[3].workspace = 0; });
     },
     "step 7 (load 'a'): does not wait for the store of 'a' at step 1"},
    {"a load over bytes that encode still reads", [](Program& p) { waits(p, 7, {1}); },
     "bytes of 'b' may still be in use by step 2"},
    {"an op before its load", [](Program& p) { waits(p, 9, {}); },
     "does not wait for the load of 'a' at step 7"},
    {"an op before the second part of its load", [](Program& p) { waits(p, 9, {7}); },
     "does not wait for the load of 'a' at step 8"},
  });
  expect_refused(test::kStateProgram, {
    {"a load before the store of the cycle before", [](Program& p) { waits(p, 0, {}); },
     "step 0 (load 'm'): does not wait for the store of 'm' at step 3"},
    {"an op before the load", [](Program& p) { waits(p, 1, {}); },
     "does not wait for the load of 'm'"},
    {"a store before the change", [](Program& p) { waits(p, 3, {1}); },
     "does not wait for the write of 'm' at step 2"},
  });
}

TEST(VerifyStep, RefusesAnUpdateOfWhatAStoreStillReads) {
  Program p = parsed(test::kStateProgram);
  // Stored before the change, and again after it; the second change is of other bytes' reader.
  Instr early = p.instrs[3];
  early.waits = {Step(0)};
  p.instrs.insert(p.instrs.begin() + 2, early);
  for (Residency& r : p.residencies) {
    if (r.begin.value >= 2) ++r.begin.value;
    if (r.end.value > 2) ++r.end.value;
  }
  at(p, 0, -1, 1).end = Step(2);
  p.residencies.push_back({TensorId(0), OpId(), 0, 256, Step(2), Step(4), TierId(1)});
  waits(p, 0, {4});
  waits(p, 4, {3});
  waits(p, 5, {4});
  EXPECT_THAT(verify(p).message(),
              HasSubstr("step 3 (compute 'change'): bytes of 'm' may still be in use by step 2"));
  waits(p, 3, {2});
  expect_good(p, "with the wait");
}

TEST(VerifyStep, RefusesBytesThatAreNotThere) {
  expect_refused(test::kStepProgram, {
    {"a detach before the last use",
     [](Program& p) {
       std::swap(p.instrs[2], p.instrs[3]);
       at(p, 1, 0).end = Step(2);
       at(p, 2, 2).begin = Step(3);
     },
     "step 3 (compute 'f2'): 'a' is not resident"},
    {"no store",
     [](Program& p) {
       erase_step(p, 1);
       drop(p, 1, 1, 1);
     },
     "(load 'a'): 'a' has no copy in tier 'host'"},
    {"a store into nothing", [](Program& p) { drop(p, 1, 1, 1); },
     "store without a residency"},
    {"a copy that ends before its load", [](Program& p) { at(p, 1, 1, 1).end = Step(8); },
     "step 8 (load 'a'): 'a' has no copy"},
    {"a copy that nobody stores", [](Program& p) { at(p, 1, 1, 1).begin = Step(2); },
     "store without a residency"},
    {"a copy out of nothing",
     [](Program& p) {
       p.residencies.push_back({TensorId(4), OpId(), 512, 256, Step(9), Step(12), TierId(1)});
     },
     "copy of 'd' begins without a store"},
    {"a store of half of the copy", [](Program& p) { p.instrs[1].range = {0, 128}; },
     "store of other bytes than its residency has"},
    {"a load of half",
     [](Program& p) {
       drop(p, 1, 8);
       erase_step(p, 8);
     },
     "(compute 'b2'): 'a' is not resident"},
    {"parts apart from each other", [](Program& p) { at(p, 1, 8).offset = 1472; },
     "step 9 (compute 'b2'): 'a' is not in one piece"},
    {"a load of other bytes than its residency",
     [](Program& p) { p.instrs[8].range = {64, -1}; },
     "load of other bytes than its residency has"},
    {"a load of bytes beside its residency", [](Program& p) { p.instrs[8].range = {0, 128}; },
     "load of other bytes"},
    {"an encoded form that ends too early",
     [](Program& p) { at(p, 2, 5).end = Step(11); },
     "step 11 (decode 'b'): 'b' as bf16 is not resident"},
    {"no encode",
     [](Program& p) {
       drop(p, 2, 5);
       erase_step(p, 5);
       waits(p, 6, {4});
       waits(p, 7, {4});
     },
     "(decode 'b'): 'b' as bf16 is not resident"},
    {"an encoded form without a place", [](Program& p) { drop(p, 2, 5); },
     "encode without a residency"},
    {"a decoded form without a place", [](Program& p) { drop(p, 2, 11); },
     "decode without a residency"},
    {"no place for the recomputed value", [](Program& p) { drop(p, 3, 12); },
     "step 12 (compute 'f3'): 'c' is not resident"},
    {"a detach of a part alone", [](Program& p) { p.instrs[10].range = {0, 128}; },
     "residency of 'c' ends, but is not detached"},
    {"a value in two places",
     [](Program& p) {
       Residency twice = at(p, 1, 1, 1);
       twice.offset = 512;
       p.residencies.push_back(twice);
     },
     "'a' is in two places"},
    {"no workspace",
     [](Program& p) {
       std::erase_if(p.residencies, [](const Residency& r) { return !r.tensor.valid(); });
     },
     "no workspace"},
    {"an activation before it is written", [](Program& p) { at(p, 1, 0).begin = kEntry; },
     "begins without a load or an op"},
    {"a state that is nowhere at the end",
     [](Program& p) {
       at(p, 0, -1).end = Step(14);
       Instr detach = p.instrs[10];
       detach.tensor = TensorId(0);
       p.instrs.push_back(detach);
     },
     "state 'w' has no valid copy at the end"},
    {"a state that ends by itself", [](Program& p) { at(p, 0, -1).end = Step(13); },
     "ends without a detach"},
  });
}

TEST(VerifyStep, RefusesStaleVersions) {
  expect_refused(test::kStateProgram, {
    {"a state stored before it changes",
     [](Program& p) {
       std::swap(p.instrs[2], p.instrs[3]);
       waits(p, 2, {0});
       waits(p, 3, {2});
       waits(p, 4, {2});
       waits(p, 0, {2});
       at(p, 0, 3, 1).begin = Step(2);
       at(p, 0, -1, 1).end = Step(2);
     },
     "state 'm' has no valid copy at the end"},
    {"a copy that is not stored again",
     [](Program& p) {
       drop(p, 0, 3, 1);
       at(p, 0, -1, 1).end = Step(5);
       erase_step(p, 3);
       waits(p, 0, {2});
     },
     "state 'm' has no valid copy at the end"},
    {"an op that reads a state after its change",
     [](Program& p) {
       change_graph(p, [](Graph& g) {
         g.ops[1].inputs = {};
         std::swap(g.ops[0], g.ops[1]);
       });
     },
     "step 1 (compute 'change')"},
  });
  // Loaded back from a copy made before the change.
  Program p = parsed(test::kStateProgram);
  Instr again = p.instrs[0];
  again.waits = {Step(3)};
  p.instrs[3] = p.instrs[4];  // detach
  p.instrs[3].waits.clear();
  p.instrs[4] = again;        // load
  p.instrs[4].waits = {Step(2)};
  drop(p, 0, 3, 1);
  at(p, 0, -1, 1).end = Step(5);
  at(p, 0, 0).end = Step(3);
  p.residencies.push_back({TensorId(0), OpId(), 0, 256, Step(4), Step(5), kDevice});
  waits(p, 0, {2});
  p.cyclic = false;
  EXPECT_THAT(verify(p).message(), HasSubstr("step 4 (load 'm'): 'm' is stale: version 0, not 1"));
}

// The first cycle finds the copy that was there at entry; the second would find the one before.
TEST(VerifyStep, RefusesACopyThatIsStaleFromTheSecondCycleOn) {
  Program p = parsed(test::kStateProgram);
  std::rotate(p.instrs.begin(), p.instrs.begin() + 4, p.instrs.end());  // detach first
  p.instrs.pop_back();                                                  // no store
  waits(p, 0, {});
  waits(p, 1, {3});
  waits(p, 2, {1});
  waits(p, 3, {});
  p.residencies.clear();
  const auto reside = [&](int t, Bytes offset, int begin, int end, int tier) {
    p.residencies.push_back({TensorId(t), OpId(), offset, 256, Step(begin), Step(end),
                             TierId(tier)});
  };
  reside(0, 0, -1, 0, 0);
  reside(0, 0, 1, 4, 0);
  reside(1, 256, 2, 4, 0);
  reside(0, 0, -1, 4, 1);
  EXPECT_THAT(verify(p).message(), HasSubstr("step 1 (load 'm'): 'm' is stale"));
  p.cyclic = false;
  expect_good(p, "once");
}

TEST(VerifyStep, RefusesRecomputationThatWouldNotGiveTheSame) {
  expect_refused(test::kStepProgram, {
    {"an op that must run once",
     [](Program& p) {
       change_graph(p, [](Graph& g) { g.ops[2].attrs[Attr::kRecompute] = 0; });
     },
     "step 12 (compute 'f3'): 'f3' runs twice"},
    {"an op with updates",
     [](Program& p) {
       change_graph(p, [](Graph& g) { g.ops[2].updates = {TensorId(0)}; });
     },
     "'f3' runs twice"},
    {"an output that has changed since",
     [](Program& p) {
       change_graph(p, [](Graph& g) { g.ops[3].updates = {TensorId(3)}; });
     },
     "'c' has been changed since"},
    {"an input that has changed since",
     [](Program& p) {
       change_graph(p, [](Graph& g) {
         g.ops[2].inputs.push_back(TensorId(0));
         g.ops[3].updates = {TensorId(0)};
       });
     },
     "step 12 (compute 'f3'): 'w' is stale: version 1, not 0"},
    {"an op that never runs", [](Program& p) { erase_step(p, 13); }, "'b1' never runs"},
    {"an op before its operand",
     [](Program& p) {
       std::swap(p.instrs[0].op, p.instrs[2].op);
       at(p, 1, 0).begin = Step(2);
       at(p, 2, 2).begin = Step(0);
       erase_step(p, 1);
     },
     "step 0 (compute 'f2'): 'a' is not resident"},
  });
}

TEST(VerifyStep, RefusesExtentsOutsideTheirTier) {
  expect_refused(test::kStepProgram, {
    {"a tier that is full", [](Program& p) { p.tiers[1].capacity = 128; },
     "extent of 'a' is outside tier 'host'"},
    {"a copy before the tier", [](Program& p) { at(p, 1, 1, 1).offset = -64; }, "outside tier"},
    {"a copy that is too small", [](Program& p) { at(p, 1, 1, 1).bytes = 192; },
     "extent of 'a' is too small"},
    {"a copy on no line", [](Program& p) { at(p, 1, 1, 1).offset = 32; }, "misaligned"},
    {"an encoded form that is too small", [](Program& p) { at(p, 2, 5).bytes = 64; },
     "extent of 'b' as bf16 is too small"},
    {"a part over the other", [](Program& p) { at(p, 1, 8).offset = 576; },
     "'a' and 'a' share bytes at step 8"},
    {"an encoded form over the plain", [](Program& p) { at(p, 2, 5).offset = 640; },
     "share bytes at step 5"},
    {"workspace over an operand",
     [](Program& p) {
       for (Residency& r : p.residencies) {
         if (!r.tensor.valid()) r.offset = 896;
       }
     },
     "'d' and workspace of 'b2' share bytes at step 9"},
    {"workspace in another tier",
     [](Program& p) {
       for (Residency& r : p.residencies) {
         if (!r.tensor.valid()) r.tier = TierId(1);
       }
     },
     "workspace of 'b2' is not plain bytes of the device"},
  });
  Program p = parsed(test::kStateProgram);  // two copies in one slot
  p.tiers[1].capacity = 1024;
  change_graph(p, [](Graph& g) {
    Tensor more = g.tensors[0];
    more.name = "n";
    g.add(more);
  });
  p.residencies.push_back({TensorId(2), OpId(), 192, 256, kEntry, p.exit(), TierId(1)});
  EXPECT_THAT(verify(p).message(), HasSubstr("'m' and 'n' share bytes at step -1"));
}

TEST(VerifyStep, RefusesWhatNoInstructionCanMean) {
  expect_refused(test::kStepProgram, {
    {"a store on the stream of loads", [](Program& p) { p.instrs[1].stream = StreamId(1); },
     "stream of the wrong kind"},
    {"an encode on a link", [](Program& p) { p.instrs[5].stream = StreamId(1); }, "wrong kind"},
    {"an encode by no codec", [](Program& p) { p.instrs[5].codec = Codec::kNone; },
     "encodes 'b' as nothing"},
    {"an encode of part", [](Program& p) { p.instrs[5].range = {0, 64}; }, "only done as a whole"},
    {"an op with a codec", [](Program& p) { p.instrs[0].codec = Codec::kBf16; }, "a codec where"},
    {"an encode of bytes",
     [](Program& p) {
       change_graph(p, [](Graph& g) {
         g.tensors[2].dtype = DType::kI8;
         g.tensors[2].bytes = g.tensors[2].cols = 256;
       });
     },
     "'b' cannot be encoded as bf16"},
    {"a range off the lines", [](Program& p) { p.instrs[8].range = {100, -1}; }, "a range [100,"},
    {"a range before the tensor", [](Program& p) { p.instrs[8].range = {-64, 64}; },
     "a range [-64"},
    {"a range past the end", [](Program& p) { p.instrs[8].range = {128, 192}; }, "a range [128"},
    {"a range that overflows", [](Program& p) { p.instrs[8].range = {128, INT64_MAX}; },
     "a range [128"},
    {"an empty range", [](Program& p) { p.instrs[8].range = {128, 0}; }, "a range [128, +0)"},
    {"a residency of an empty range", [](Program& p) { at(p, 1, 8).range.bytes = 0; },
     "a range [128, +0)"},
    {"a residency in no tier", [](Program& p) { at(p, 1, 1, 1).tier = TierId(9); },
     "a tier that does not exist"},
    {"a tier that takes nothing", [](Program& p) { p.tiers[1].store_bytes_per_s = 0; },
     "nothing can be stored to 'host'"},
    {"a link without bandwidth", [](Program& p) { p.tiers[1].load_bytes_per_s = 0; },
     "impossible rates"},
    {"a link of endless bandwidth", [](Program& p) { p.tiers[1].load_bytes_per_s = HUGE_VAL; },
     "impossible rates"},
    {"a tier of less than nothing", [](Program& p) { p.tiers[1].capacity = -1; }, "no capacity"},
    {"a group of two kinds",
     [](Program& p) {
       p.tiers[1].group = 1;
       p.tiers.push_back({"remote", 1, 1, 1, 0, false, 1});
     },
     "share a link but not its kind"},
    {"files in the device", [](Program& p) { p.source_tier = kDevice; }, "files are in no tier"},
    {"an arena of less than nothing", [](Program& p) { p.arena_bytes = -1; }, "impossible arena"},
  });
}

TEST(VerifyStep, ACyclicProgramEndsWhereItBeganInEveryTier) {
  expect_refused(test::kStateProgram, {
    {"a copy at another place",
     [](Program& p) {
       p.tiers[1].capacity = 1024;
       at(p, 0, 3, 1).offset = 256;
     },
     "does not end where it began"},
    {"a state that stays",
     [](Program& p) {
       at(p, 0, 0).end = Step(4);
       erase_step(p, 4);
     },
     "does not end where it began"},
    {"an output that is gone", [](Program& p) { at(p, 1, 1).end = Step(3); },
     "output 'x' is gone before the end"},
  });
  // The same bytes in two parts are the same bytes.
  Program p = parsed(test::kStateProgram);
  Residency& whole = at(p, 0, -1, 1);
  whole.range = {0, 128};
  whole.bytes = 128;
  Residency rest = whole;
  rest.range = {128, 128};
  rest.offset = 128;
  p.residencies.push_back(rest);
  expect_good(p, "a copy in two parts at entry, in one at exit");
}

TEST(VerifyStep, ATensorOfSeveralTilesIsReadableAfterAllOfThem) {
  Program p = parsed(test::kTilesProgram);
  expect_good(p, "tiles");
  std::swap(p.instrs[2].op, p.instrs[3].op);
  expect_good(p, "tiles in any order");
  expect_refused(test::kTilesProgram, {
    {"a read between the tiles",
     [](Program& p) {
       std::swap(p.instrs[3].op, p.instrs[4].op);
       at(p, 5, 4).begin = Step(3);
     },
     "step 3 (compute 'cap'): 'y' is not fully written"},
    {"one tile twice, the other never", [](Program& p) { p.instrs[3].op = OpId(1); },
     "'y' is not fully written"},
    {"a weight that is encoded",
     [](Program& p) {
       Instr encode;
       encode.kind = InstrKind::kEncode;
       encode.tensor = TensorId(2);
       encode.codec = Codec::kBf16;
       p.instrs.push_back(encode);
     },
     "'w0' cannot be encoded as bf16"},
    {"an output of which a copy is left",
     [](Program& p) {
       Instr store;
       store.kind = InstrKind::kStore;
       store.tensor = TensorId(5);
       store.tier = TierId(1);
       store.stream = StreamId(1);
       store.waits = {Step(4)};
       p.instrs.push_back(store);
       p.instrs.push_back(p.instrs[0]);
       p.instrs.back().kind = InstrKind::kDetach;
       p.instrs.back().tensor = TensorId(5);
       p.instrs.back().tier = TierId();
       p.instrs.back().stream = kComputeStream;
       p.tiers[1].capacity = 64;
       at(p, 5, 4).end = Step(6);
       for (int t : {2, 3}) at(p, t, -1).end = Step(7);
       p.residencies.push_back({TensorId(5), OpId(), 0, 64, Step(5), Step(7), TierId(1)});
     },
     "output 'z' is gone before the end"},
  });
}

TEST(LinkStream, NumbersDirectionsAndGroupsInTheOrderOfTiers) {
  const std::vector<TierInfo> tiers = {{"device"},
                                       {"host", 0, 1, 1, 0, true, 5},
                                       {"file", 0, 1, 1, 0, false, -1},
                                       {"remote", 0, 1, 1, 0, true, 5},
                                       {"far", 0, 1, 1, 0, true, -1}};
  const auto stream = [&](int tier, InstrKind kind) {
    return link_stream(tiers, TierId(tier), kind).value;
  };
  EXPECT_EQ(stream(1, InstrKind::kLoad), 1);
  EXPECT_EQ(stream(1, InstrKind::kStore), 2);
  EXPECT_EQ(stream(2, InstrKind::kLoad), 3);
  EXPECT_EQ(stream(2, InstrKind::kGather), 3);
  EXPECT_EQ(stream(2, InstrKind::kStore), 3);
  EXPECT_EQ(stream(3, InstrKind::kLoad), 1);
  EXPECT_EQ(stream(3, InstrKind::kStore), 2);
  EXPECT_EQ(stream(4, InstrKind::kLoad), 4);
  EXPECT_EQ(stream(4, InstrKind::kStore), 5);
}

}  // namespace
}  // namespace headrace
