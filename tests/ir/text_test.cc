// Round trips of the text forms, and what their parsers refuse.
#include "headrace/ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headrace/ir/program.h"
#include "tests/ir/small_program.h"
#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(TextNumber, ReadsBackAsExactlyTheSameValue) {
  for (double v : {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e-5, 1e300, 5e-324, 123456789.125,
                   static_cast<double>(0.1f), std::numeric_limits<double>::infinity()}) {
    const std::string written = text::number(v);
    text::Reader in(written);
    ASSERT_TRUE(in.next_line());
    const Result<double> back = in.real();
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, v);
  }
}

TEST(TextReader, SkipsBlankLinesAndCommentsAndCountsThem) {
  text::Reader in("\n# one\n   # two\n\r\n  a b\t c\r\n");
  ASSERT_TRUE(in.next_line());
  EXPECT_EQ(*in.word(), "a");
  EXPECT_EQ(*in.word(), "b");
  EXPECT_EQ(*in.word(), "c");
  EXPECT_EQ(in.word().status().message(), "line 5: the line ends too early");
  EXPECT_FALSE(in.next_line());
}

const std::vector<std::string> kOddNames = {"",
                                            " ",
                                            "a b",
                                            "\"",
                                            "\\",
                                            "\\\"",
                                            "#",
                                            "# not a comment",
                                            "out",
                                            "file",
                                            "slot",
                                            "values",
                                            "-",
                                            "t0",
                                            "op",
                                            "graph",
                                            "a\nb",
                                            "\n",
                                            "a\rb",
                                            "\\n",
                                            "\t",
                                            "Ünïcödé 模型 🙂",
                                            "trailing\\",
                                            "\ngraph \"x\" max_rows 1",
                                            std::string("nul\0inside", 10),
                                            "attrs",
                                            "workspace"};

TEST(TextReader, AnyNameSurvivesQuoting) {
  for (const std::string& name : kOddNames) {
    const std::string line = "head " + text::quoted(name) + " tail";
    text::Reader in(line);
    ASSERT_TRUE(in.next_line());
    ASSERT_TRUE(in.expect("head").ok());
    const Result<std::string> word = in.word();
    ASSERT_TRUE(word.ok()) << word.status().message();
    EXPECT_EQ(*word, name);
    EXPECT_TRUE(in.expect("tail").ok());
    EXPECT_FALSE(in.next_line());
  }
}

TEST(GraphText, RoundTripsTheSmallGraph) {
  const Result<Graph> g = parse_graph(test::kSmallGraph);
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->tensors.size(), 12u);
  EXPECT_EQ(g->ops.size(), 6u);
  EXPECT_EQ(to_text(*g), test::kSmallGraph);
}

TEST(GraphText, RoundTripsRandomGraphs) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Graph g = *test::random_graph(seed).graph;
    const Result<Graph> back = parse_graph(to_text(g));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, g) << "seed " << seed;
    EXPECT_EQ(fingerprint(*back), fingerprint(g));
  }
}

TEST(GraphText, RoundTripsOddNamesOfGraphTensorsAndOps) {
  Graph g = *parse_graph(test::kSmallGraph);
  for (const std::string& name : kOddNames) {
    g.name = g.tensors[1].name = g.tensors[4].name = g.ops[2].name = name;
    g.tensors[6].name = g.tensors[9].name = name;
    const Result<Graph> back = parse_graph(to_text(g));
    ASSERT_TRUE(back.ok()) << "'" << name << "': " << back.status().message();
    EXPECT_EQ(*back, g) << "'" << name << "'";
  }
}

TEST(GraphText, FingerprintsTellGraphsApart) {
  Graph g = *parse_graph(test::kSmallGraph);
  const uint64_t before = fingerprint(g);
  g.tensors[4].constant[1] = std::nextafter(0.5f, 1.0f);
  EXPECT_NE(fingerprint(g), before);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

struct Bad {
  std::string from, to;
  std::string message;
};

TEST(GraphText, RefusesWhatItCannotReadAndNamesTheLine) {
  const std::vector<Bad> bads = {
      {"graph \"small\"", "grpah \"small\"", "line 1: expected 'graph', found 'grpah'"},
      {"max_rows 1", "max_rows one", "line 1: 'one' is not an integer"},
      {"max_rows 1", "max_rows 1.5", "line 1: '1.5' is not an integer"},
      {"max_rows 1", "max_rows 99999999999999999999", "line 1: '99999999999999999999'"},
      {"t0 gathered", "t1 gathered", "line 2: expected t0 or op, found 't1'"},
      {"t3 activation", "t3 activaton", "line 5: unknown word 'activaton'"},
      {"weight f32", "weight f33", "line 4: no element type is called 'f33'"},
      {"[ 12 4 ]", "[ 12 4", "line 4: expected ']', found 'bytes'"},
      {"[ 12 4 ]", "( 12 4 ]", "line 4: expected '[', found '('"},
      {"file 0", "file 4294967296", "line 2: '4294967296' is beyond 32 bits"},
      {"slot 0 0 0", "slot 0 0", "line 13: 'class' is not an integer"},
      {"values 1 0.5", "values 1", "line 6: 'inv_freq' is not a number"},
      {"values 1 0.5", "values 1 0.5 2", "line 6: 'inv_freq' is left over"},
      {"[ 1 2 ] bytes 8 values", "[ 9999999999 99999999999 ] bytes 8 values",
       "line 6: a constant of impossible shape"},
      {"\"inv_freq\"", "\"inv_freq", "line 6: a quote is not closed"},
      {"\"logits\"", "", "line 12: the line ends too early"},
      {"op embed", "op embde", "line 14: unknown word 'embde'"},
      {"op embed", "po embed", "line 14: expected t12 or op, found 'po'"},
      {"in t0", "in u0", "line 14: 'u0' is not a tensor"},
      {"in t0", "in t", "line 14: 't' is not a tensor"},
      {"in t0", "in t0x", "line 14: 't0x' is not a tensor"},
      {"in t0", "in t-3", "line 14: 't-3' is not a tensor"},
      {"in t0", "in t99999999999", "line 14: 't99999999999' is not a tensor"},
      {"attrs scale 1", "attrs scael 1", "line 14: unknown word 'scael'"},
      {"attrs scale 1", "attrs scale x", "line 14: 'x' is not a number"},
      {"attrs scale 1 workspace 0", "attrs scale 1",
       "line 14: expected 'workspace', found ''"},
      {"attrs scale 1 workspace 0", "attrs scale 1 workspace 0 0",
       "line 14: '0' is left over"},
  };
  for (const Bad& bad : bads) {
    const Result<Graph> g = parse_graph(replaced(test::kSmallGraph, bad.from, bad.to));
    ASSERT_FALSE(g.ok()) << bad.to;
    EXPECT_EQ(g.status().code(), Code::kBadFile);
    EXPECT_THAT(g.status().message(), HasSubstr(bad.message)) << bad.to;
  }
  EXPECT_FALSE(parse_graph("").ok());
  EXPECT_FALSE(parse_graph("\n# only a comment\n").ok());
}

TEST(GraphText, EveryTruncationIsReadOrRefusedButNeverCrashes) {
  const std::string whole = test::kSmallGraph;
  for (size_t n = 0; n < whole.size(); ++n) {
    const Result<Graph> g = parse_graph(whole.substr(0, n));
    if (g.ok()) (void)verify(*g);
  }
}

bool same(const Program& a, const Program& b) {
  return a.name == b.name && *a.graph == *b.graph && a.cyclic == b.cyclic &&
         a.arena_bytes == b.arena_bytes && a.tiers == b.tiers && a.instrs == b.instrs &&
         a.residencies == b.residencies && a.source_tier == b.source_tier &&
         a.machine == b.machine;
}

TEST(ProgramText, RoundTripsTheSmallProgram) {
  const Result<Program> p = parse_program(test::small_program_text());
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->instrs.size(), 11u);
  EXPECT_EQ(p->residencies.size(), 14u);
  const Result<Program> back = parse_program(to_text(*p));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(same(*p, *back));
  EXPECT_EQ(to_text(*back), to_text(*p));
}

TEST(ProgramText, RoundTripsOddNames) {
  Program p = *parse_program(test::small_program_text());
  for (const std::string& name : kOddNames) {
    p.name = p.tiers[1].name = name;
    Graph g = *p.graph;
    g.name = g.tensors[9].name = g.ops[1].name = name;
    p.graph = std::make_shared<const Graph>(g);
    const Result<Program> back = parse_program(to_text(p));
    ASSERT_TRUE(back.ok()) << "'" << name << "': " << back.status().message();
    EXPECT_TRUE(same(p, *back)) << "'" << name << "'";
  }
}

// Every field that a default leaves out of the text.
TEST(ProgramText, RoundTripsTiersRangesCodecsAndTheMachine) {
  Program p = *parse_program(test::small_program_text());
  p.machine = "H200 \"PCIe 5\"";
  p.source_tier = TierId(2);
  p.tiers[1].duplex = true;
  p.tiers.push_back({"remote", 1 << 30, 33.6e9, 1e9 / 3, 1500, true, 7});
  for (InstrKind kind : {InstrKind::kLoad, InstrKind::kStore, InstrKind::kDetach,
                         InstrKind::kEncode, InstrKind::kDecode}) {
    for (Codec codec : {Codec::kNone, Codec::kBf16, Codec::kInt8Block, Codec::kMask,
                        Codec::kBytePlane}) {
      Instr i;
      i.kind = kind;
      i.tensor = TensorId(3);
      i.codec = codec;
      i.range = {4096, codec == Codec::kNone ? -1 : 64};
      if (is_transfer(kind)) {
        i.tier = TierId(2);
        i.stream = StreamId(4);
      }
      if (kind == InstrKind::kEncode || kind == InstrKind::kDecode) i.cost_ns = 77;
      i.waits = {Step(1), Step(3)};
      p.instrs.push_back(i);
      p.residencies.push_back({TensorId(3), OpId(), 64, 128, Step(2), Step(5), TierId(2),
                               i.range, codec});
    }
  }
  const std::string text = to_text(p);
  const Result<Program> back = parse_program(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_TRUE(same(p, *back));
  EXPECT_EQ(to_text(*back), text);
  EXPECT_THAT(text, HasSubstr("store t3 tier 2 stream 4 range 4096 64 codec bf16 waits 1 3\n"));
  EXPECT_THAT(text, HasSubstr("steps 2 5 tier 2 range 4096 64 codec mask\n"));
  EXPECT_THAT(text, HasSubstr(" latency 1500 duplex group 7\n"));
  EXPECT_THAT(text, HasSubstr(" source 2 machine \"H200 \\\"PCIe 5\\\"\"\n"));
}

TEST(ProgramText, LeavesOutWhatIsTheDefault) {
  const std::string text = to_text(*parse_program(test::small_program_text()));
  for (const char* word : {"source", "machine", "duplex", "group", "range", "codec",
                           "kernel", "encode"}) {
    EXPECT_EQ(text.find(word), std::string::npos) << word;
  }
}

TEST(ProgramText, RefusesWhatItCannotReadAndNamesTheLineOfTheFile) {
  const std::vector<Bad> bads = {
      {"program \"small\"", "prog \"small\"", "line 1: expected 'program'"},
      {"cyclic 1", "cyclic yes", "line 1: 'yes' is not an integer"},
      {"capacity 28672", "size 28672", "line 2: expected 'capacity', found 'size'"},
      {"load 1e9", "load fast", "line 3: 'fast' is not a number"},
      {"gather t0", "gahter t0", "line 4: unknown instruction 'gahter'"},
      {"gather t0", "gather op0", "line 4: expected tNUMBER, found 'op0'"},
      {"tier 1", "tier 4294967297", "line 4: '4294967297' is beyond 32 bits"},
      {"waits 8", "after 8", "line 4: expected 'waits', found 'after'"},
      {"compute op0", "compute op9999999999", "line 5: expected opNUMBER"},
      {"compute op0 cost 10", "compute op0", "line 5: expected 'cost', found 'waits'"},
      {"steps -1 4", "steps -1", "line 17: the line ends too early"},
      {"steps -1 4", "steps -1 4 5", "line 17: '5' is left over"},
      {"workspace op4", "workspace t4", "line 27: expected opNUMBER, found 't4'"},
      {"detach t2", "detach t2 codec zip", "line 8: there is no codec 'zip'"},
      {"detach t2", "detach t2 range 5", "line 8: the line ends too early"},
      {"detach t2", "decode t2 codec bf16", "line 8: expected 'cost', found ''"},
      {"detach t2", "detach t2 tier 1", "line 8: expected 'waits', found 'tier'"},
      {"arena 28672", "arena 28672 source file", "line 1: 'file' is not an integer"},
      {"latency 100", "latency 100 group", "line 3: the line ends too early"},
      {"t3 activation", "t3 activaton", "line 34: unknown word 'activaton'"},
  };
  for (const Bad& bad : bads) {
    const Result<Program> p =
        parse_program(replaced(test::small_program_text(), bad.from, bad.to));
    ASSERT_FALSE(p.ok()) << bad.to;
    EXPECT_EQ(p.status().code(), Code::kBadFile);
    EXPECT_THAT(p.status().message(), HasSubstr(bad.message)) << bad.to;
  }
  EXPECT_THAT(parse_program(test::kSmallProgram).status().message(),
              HasSubstr("holds no graph"));
  EXPECT_FALSE(parse_program("").ok());
  EXPECT_FALSE(parse_program("\n" + std::string(test::kSmallGraph)).ok());
}

// Programs are files that one can mail: whatever is in them is refused or is a Program.
TEST(ProgramText, EveryTruncationAndEveryDamagedByteIsRefusedOrVerified) {
  const std::string whole = test::small_program_text();
  for (size_t n = 0; n < whole.size(); ++n) {
    const Result<Program> p = parse_program(whole.substr(0, n));
    if (p.ok()) (void)verify(*p);
  }
  for (size_t n = 0; n < whole.size(); ++n) {
    for (char c : {'0', '9', '-', ' ', '\n', '"'}) {
      std::string damaged = whole;
      damaged[n] = c;
      const Result<Program> p = parse_program(damaged);
      if (p.ok()) (void)verify(*p);
    }
  }
}

TEST(DType, NamesRoundTripAndUnknownOnesAreNamed) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const DType type = static_cast<DType>(i);
    const Result<DType> back = dtype_from_name(name_of(type));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, type);
  }
  EXPECT_EQ(dtype_from_name("q9_z").status().message(),
            "no element type is called 'q9_z'");
}

TEST(DType, RowBytesAreThoseOfTheGgufBlocks) {
  const std::vector<std::pair<DType, Bytes>> rows_of_256 = {
      {DType::kF32, 1024}, {DType::kF16, 512},  {DType::kBF16, 512}, {DType::kI8, 256},
      {DType::kI32, 1024}, {DType::kQ4_0, 144}, {DType::kQ4_1, 160}, {DType::kQ5_0, 176},
      {DType::kQ5_1, 192}, {DType::kQ8_0, 272}, {DType::kQ2_K, 84},  {DType::kQ3_K, 110},
      {DType::kQ4_K, 144}, {DType::kQ5_K, 176}, {DType::kQ6_K, 210}};
  for (const auto& [type, bytes] : rows_of_256) {
    EXPECT_EQ(row_bytes(type, 256), bytes) << name_of(type);
  }
  EXPECT_EQ(row_bytes(DType::kActQ8, 100) % kLine, 0);
}

}  // namespace
}  // namespace headrace
