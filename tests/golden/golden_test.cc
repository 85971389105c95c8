// Golden plans: NAME.graph in, NAME.program out, byte for byte, for the budgets named
// below.
//
// After a wanted change of the planner, write them anew with
//   HEADRACE_WRITE_GOLDEN=1 build/.../tests/test_golden
// and read the difference: the comments say where the regions of the arena are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "headrace/plan/plan.h"

namespace headrace {
namespace {

std::string path_of(const std::string& name) {
  return std::string(HEADRACE_SOURCE_DIR) + "/tests/golden/" + name;
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Machine round_machine() {
  Machine m =
      Machine::defaults(1);  // round numbers, so that costs can be checked by hand
  m.matmul_per_s.fill(1e9);
  m.matvec_bytes_per_s.fill(1e9);
  m.memory_bytes_per_s = 1e9;
  m.vector_per_s = 1e9;
  m.op_overhead_ns = 1000;
  m.tiers = {{"device", 0, 0, 0, 0}, {"file", 0, 1e9, 1e9, 10'000}};
  return m;
}

// The program's text, with a head that says what is where.
std::string annotated(const Program& p) {
  const PlanSummary s = summarize(p);
  const auto line = [](const char* what, Bytes begin, Bytes end) {
    return text_of("# %-22s [%lld, %lld)\n", what, static_cast<long long>(begin),
                   static_cast<long long>(end));
  };
  Bytes kept_end = s.state_bytes, ring_begin = p.arena_bytes, ring_end = 0;
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || p.graph->at(r.tensor).role != Role::kWeight) continue;
    if (r.begin == kEntry && r.end == p.exit()) {
      kept_end = std::max(kept_end, r.offset + r.bytes);
    } else {
      ring_begin = std::min(ring_begin, r.offset);
      ring_end = std::max(ring_end, r.offset + r.bytes);
    }
  }
  std::string head = "# regions of the arena\n";
  head += line("state (KV)", 0, s.state_bytes);
  head += line("weights that stay", s.state_bytes, kept_end);
  if (ring_end > 0) head += line("ring", ring_begin, ring_end);
  head +=
      line("activations, workspace", p.arena_bytes - s.workspace_bytes, p.arena_bytes);
  head += text_of(
      "# a cycle loads %lld bytes of the %lld that it reads, in %lld ns as predicted\n",
      static_cast<long long>(s.streamed_bytes), static_cast<long long>(s.model_bytes),
      static_cast<long long>(s.predicted_ns));
  return head + to_text(p);
}

void expect_golden(const std::string& name, const std::string& text) {
  if (std::getenv("HEADRACE_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path_of(name), std::ios::binary) << text;
    return;
  }
  EXPECT_EQ(contents(path_of(name)), text) << name;
}

struct Golden {
  const char* graph;    // of NAME.graph
  const char* program;  // of NAME.program
  int percent;          // of the way from the least to the full arena
};

class GoldenPlan : public ::testing::TestWithParam<Golden> {};

TEST_P(GoldenPlan, IsTheOneWrittenDown) {
  const Golden& golden = GetParam();
  const Result<Graph> graph =
      parse_graph(contents(path_of(std::string(golden.graph) + ".graph")));
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  ASSERT_TRUE(verify(*graph).ok()) << verify(*graph).message();
  const Bytes least = least_arena_bytes(*graph), full = full_arena_bytes(*graph);
  const Machine machine = round_machine();
  PlanRequest request;
  request.name = golden.program;
  request.graph = std::make_shared<const Graph>(*graph);
  request.machine = &machine;
  request.arena_bytes = least + (full - least) * golden.percent / 100;
  request.cost = {graph->max_rows, 8};
  const Result<Program> program = plan_cyclic(request);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_TRUE(verify(*program).ok()) << verify(*program).message();
  expect_golden(std::string(golden.program) + ".program", annotated(*program));
  const Result<Program> bridge = plan_bridge(*program, {});
  ASSERT_TRUE(bridge.ok()) << bridge.status().message();
  EXPECT_TRUE(verify(*bridge).ok()) << verify(*bridge).message();
  expect_golden(std::string(golden.program) + "_bridge.program", annotated(*bridge));
}

INSTANTIATE_TEST_SUITE_P(Plans, GoldenPlan,
                         ::testing::Values(Golden{"one_layer", "one_layer_least", 0},
                                           Golden{"one_layer", "one_layer_half", 50},
                                           Golden{"one_layer", "one_layer_full", 100}),
                         [](const auto& info) {
                           return std::string(info.param.program);
                         });

}  // namespace
}  // namespace headrace
