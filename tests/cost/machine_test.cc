// The machine file and the cost of single ops.
#include "headrace/cost/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/plan/small_graphs.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(Machine, DefaultsAreUsableForAnyNumberOfThreads) {
  for (int threads : {1, 2, 64, 1024}) {
    const Machine m = Machine::defaults(threads);
    EXPECT_EQ(m.threads, threads);
    EXPECT_GT(m.memory_bytes_per_s, 0);
    EXPECT_GT(m.vector_per_s, 0);
    ASSERT_GE(m.tiers.size(), 2u);
    EXPECT_EQ(m.tiers[0].name, "device");
    EXPECT_EQ(m.tiers[1].name, "file");
    EXPECT_GT(m.tiers[1].load_bytes_per_s, 0);
    for (int i = 0; i < kDTypeCount; ++i) {
      EXPECT_GT(m.matmul_per_s[static_cast<size_t>(i)], 0);
      EXPECT_GT(m.matvec_bytes_per_s[static_cast<size_t>(i)], 0);
    }
  }
}

TEST(Machine, TheFileRoundTrips) {
  Machine m = Machine::defaults(3);
  m.name = "a \"name\" with 模型";
  m.tiers[1].latency_ns = 123'456;
  m.tiers.push_back({"remote", 7 * kGiB, 5.5e9, 4.5e9, 900});
  m.matmul_per_s[static_cast<size_t>(DType::kQ4_K)] = 1.25e11;
  m.matvec_bytes_per_s[static_cast<size_t>(DType::kF16)] = 2.5e10;
  const Result<Machine> back = machine_from_json(to_json(m));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->name, m.name);
  EXPECT_EQ(back->threads, 3);
  EXPECT_EQ(back->tiers, m.tiers);
  EXPECT_EQ(back->matmul_per_s, m.matmul_per_s);
  EXPECT_EQ(back->matvec_bytes_per_s, m.matvec_bytes_per_s);
  EXPECT_EQ(back->op_overhead_ns, m.op_overhead_ns);
  EXPECT_EQ(to_json(*back), to_json(m));
}

TEST(Machine, ANameThatIsNoTextIsWrittenAnyway) {
  Machine m = Machine::defaults(1);
  m.name = "\xff\xfe";
  EXPECT_TRUE(machine_from_json(to_json(m)).ok());
}

TEST(Machine, AFileThatIsNoMachineIsRefusedWithAReason) {
  const std::string good = to_json(Machine::defaults(2));
  const auto refused = [](const std::string& text, const char* part) {
    const Result<Machine> m = machine_from_json(text);
    ASSERT_FALSE(m.ok()) << text.substr(0, 80);
    EXPECT_THAT(m.status().message(), HasSubstr(part));
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  refused("", "the machine file: not valid JSON");
  refused("{\n  \"name\": oops}", "not valid JSON at line 2, column 11, near 'oops}'");
  refused("[]", "machine file");
  refused("{}", "machine file");
  refused("null", "machine file");
  refused(replaced("\"threads\": 2", "\"threads\": 0"), "above zero");
  refused(replaced("\"threads\": 2", "\"threads\": \"two\""), "machine file");
  refused(replaced("\"vector_per_s\"", "\"vector\""), "vector_per_s");
  refused(replaced("\"q4_k\"", "\"q4_z\""), "q4_z");
  refused(replaced("\"load_bytes_per_s\": 1200000000.0", "\"load_bytes_per_s\": 0"),
          "above zero");
  refused(replaced("\"q4_k\": 120000000000.0", "\"q4_k\": 0"), "matmul_per_s of q4_k");
  refused(replaced("\"q4_k\": 20000000000.0", "\"q4_k\": -1"),
          "matvec_bytes_per_s of q4_k");
  for (size_t n = 0; n + 2 < good.size(); n += 7) {
    EXPECT_FALSE(machine_from_json(good.substr(0, n)).ok());
  }
}

TEST(OpCost, OfAMatmulIsTheSlowerOfStreamAndArithmetic) {
  Machine m = Machine::defaults(1);
  m.op_overhead_ns = 100;
  m.matvec_bytes_per_s.fill(1e9);
  m.matmul_per_s.fill(1e9);
  test::GraphBuilder b("g", 1000);
  const TensorId x = b.embed(4, 64);
  b.matmul("m", x, 128, 1);  // 32768 bytes, 8192 multiply-adds a row
  const Op& op = b.g.ops.back();
  EXPECT_EQ(op_cost(m, b.g, op, {1, 0}), 100 + 32768);
  EXPECT_EQ(op_cost(m, b.g, op, {4, 0}), 100 + 32768);
  EXPECT_EQ(op_cost(m, b.g, op, {10, 0}), 100 + 81920);
}

TEST(OpCost, GrowsWithRowsAndPositionsAndStopsAtTheWindow) {
  const Machine m = Machine::defaults(2);
  test::GraphBuilder b("g", 16);
  Op op;
  op.kind = OpKind::kAttention;
  op.outputs = {b.activation("y", 512)};
  const Graph& g = b.g;
  op.attrs = {{Attr::kHeads, 8}, {Attr::kKvHeads, 2}, {Attr::kHeadDim, 64}};
  const Nanos near = op_cost(m, g, op, {1, 100}), far = op_cost(m, g, op, {1, 10'000});
  EXPECT_LT(near, far);
  EXPECT_LT(far, op_cost(m, g, op, {16, 10'000}));
  op.attrs[Attr::kWindow] = 100;
  EXPECT_EQ(op_cost(m, g, op, {1, 10'000}), near);
}

TEST(OpCost, OfEveryOpOfEveryRandomGraphIsPositiveAndMonotoneInRows) {
  const Machine m = Machine::defaults(1);
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const auto small = test::random_graph(seed);
    for (const Op& op : small.graph->ops) {
      const Nanos one = op_cost(m, *small.graph, op, {1, 1});
      EXPECT_GT(one, 0);
      EXPECT_GE(op_cost(m, *small.graph, op, {64, 1}), one);
    }
  }
}

}  // namespace
}  // namespace headrace
