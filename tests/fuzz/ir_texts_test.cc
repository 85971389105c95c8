// Deterministic mutation fuzzing of what the IR reads: graphs, programs and trace files. Whatever
// the text, the answer is a value that verify() may judge, or an error; never a crash, a loop or memory
// without bound. Run it with -DHEADRACE_SANITIZE=address to see silent damage too.
#include <gtest/gtest.h>

#include <random>

#include "headrace/sim/simulate.h"
#include "tests/ir/kernel_programs.h"
#include "tests/ir/random_program.h"
#include "tests/ir/small_program.h"

namespace headrace {
namespace {

constexpr int kMutations = 20000;

const std::vector<std::string> kWords = {
    "0", "1", "-1", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "1e308", "1e999", "nan", "-nan", "inf", "-0", "t0", "t99", "op0", "op99",
    "-", "\"", "\"\"", "\\", "\n", " ", "range 0 -1", "range 64 64", "codec bf16", "codec mask",
    "tier 1", "tier 0", "waits 0", "waits 99", "class kv", "kernel \"k\"", "duplex", "group 1",
    "detach t1\n", "store t1 tier 1 stream 1\n", "compute op0 cost 5\n", "{", "}", "[", "]", ",",
    ":", "null", "\"step\":0", "\"ph\":\"X\"", "\xff", std::string("\0", 1)};

// One to four changes: a byte, a word in place of another, a cut, a line twice or gone.
std::string mutate(const std::string& from, std::mt19937_64* random) {
  std::string out = from;
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>((*random)() % n); };
  for (size_t change = 1 + below(4); change > 0 && !out.empty(); --change) {
    const size_t at = below(out.size());
    size_t word = out.find_first_of(" \n,:", at);
    if (word == std::string::npos) word = out.size();
    size_t begin = out.rfind('\n', at);
    begin = begin == std::string::npos ? 0 : begin + 1;
    size_t end = out.find('\n', at);
    end = end == std::string::npos ? out.size() : end + 1;
    switch (below(7)) {
      case 0: out[at] = static_cast<char>((*random)()); break;
      case 1: out.insert(at, kWords[below(kWords.size())]); break;
      case 2:
      case 3: out.replace(at, word - at, kWords[below(kWords.size())]); break;
      case 4: out.resize(at); break;
      case 5: out.insert(begin, out.substr(begin, end - begin)); break;
      case 6: out.erase(begin, end - begin); break;
    }
  }
  return out;
}

TEST(IrTextFuzz, DamagedGraphsAreReadOrRefused) {
  std::mt19937_64 random(1);
  const std::vector<std::string> seeds = {test::kSmallGraph,
                                          to_text(test::random_kernel_graph(3, 6))};
  int good = 0;
  for (int i = 0; i < kMutations; ++i) {
    const Result<Graph> g = parse_graph(mutate(seeds[static_cast<size_t>(i) % 2], &random));
    if (!g.ok() || !verify(*g).ok()) continue;
    ++good;
    ASSERT_EQ(to_text(*parse_graph(to_text(*g))), to_text(*g));
  }
  EXPECT_GT(good, 100);
}

TEST(IrTextFuzz, DamagedProgramsAreReadOrRefusedAndWhatPassesCanBePlayed) {
  std::mt19937_64 random(2);
  const std::vector<std::string> seeds = {test::small_program_text(), test::kStepProgram,
                                          test::kStateProgram,
                                          to_text(test::random_program(5, 6, true))};
  int good = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string text = mutate(seeds[static_cast<size_t>(i) % seeds.size()], &random);
    const Result<Program> p = parse_program(text);
    if (!p.ok() || !verify(*p).ok()) continue;
    ++good;
    const Trace trace = simulate(*p);
    ASSERT_GE(trace.total_ns, 0) << text;
    ASSERT_EQ(trace.records.size(), p->instrs.size());
    for (const MemoryPoint& m : memory_curve(*p)) {
      ASSERT_GE(m.bytes, 0);
      ASSERT_LE(m.bytes, p->arena_bytes) << text;
    }
    if (i % 10 == 0) {
      ASSERT_TRUE(parse_chrome_json(to_chrome_json(*p, trace)).ok()) << text;
    }
    ASSERT_EQ(to_text(*parse_program(to_text(*p))), to_text(*p));
  }
  EXPECT_GT(good, 100);
}

TEST(IrTextFuzz, DamagedTraceFilesAreReadOrRefused) {
  std::mt19937_64 random(3);
  const Program p = *parse_program(test::kStateProgram);
  const std::string whole = to_chrome_json(p, simulate(p));
  int good = 0;
  for (int i = 0; i < kMutations; ++i) {
    const Result<TraceFile> file = parse_chrome_json(mutate(whole, &random));
    if (!file.ok()) continue;
    ++good;
    ASSERT_EQ(file->trace.records.size(), file->program.instrs.size());
  }
  EXPECT_GT(good, 100);
}

// Brackets as deep as a stack must not cost one.
TEST(IrTextFuzz, DeepJsonIsRefusedWithoutRecursion) {
  std::string deep = "{\"traceEvents\":";
  deep.append(1'000'000, '[');
  EXPECT_FALSE(parse_chrome_json(deep).ok());
  deep.append(1'000'000, ']');
  EXPECT_FALSE(parse_chrome_json(deep + "}").ok());
}

// A million ops: an operand that does not exist at the very end is found, in time that is linear.
TEST(IrTextFuzz, AGraphOfAMillionOpsIsReadAndItsOneMistakeNamed) {
  std::string text = "graph \"million\" max_rows 1 max_output_rows 0\n";
  const int n = 1'000'000;
  text.reserve(static_cast<size_t>(n) * 140);
  text += "t0 state i8 [ 1 64 ] bytes 64 \"s\"\n";
  for (int i = 1; i <= n; ++i) {
    text += "t" + std::to_string(i) + " activation i8 [ 1 64 ] bytes 64 \"x" + std::to_string(i) +
            "\"\n";
  }
  for (int i = 1; i <= n; ++i) {
    text += "op kernel \"o" + std::to_string(i) + "\" in t" + std::to_string(i - 1) + " out t" +
            std::to_string(i) + " updates attrs seconds 1e-06 workspace 0\n";
  }
  Result<Graph> g = parse_graph(text);
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_TRUE(verify(*g).ok());
  g->ops.back().inputs[0] = TensorId(n + 1);
  EXPECT_EQ(verify(*g).message(),
            "op kernel 'o1000000': operand t1000001 does not exist");
}

}  // namespace
}  // namespace headrace
