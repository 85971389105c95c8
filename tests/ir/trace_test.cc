// Memory curves by class, tier and time, and trace files that are read back.
#include "headrace/ir/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/ir/kernel_programs.h"
#include "tests/ir/random_program.h"
#include "tests/ir/small_program.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

// Every instruction one after the other, each as long as its number; uneven, so that no two agree.
Trace some_trace(const Program& p) {
  Trace t;
  Nanos now = 0;
  for (size_t s = 0; s < p.instrs.size(); ++s) {
    const bool detach = p.instrs[s].kind == InstrKind::kDetach;
    const Nanos took = detach ? 0 : 1001 + static_cast<Nanos>(s);
    t.records.push_back({now, now + took, static_cast<Nanos>(s % 3), detach ? 0 : 64});
    now += took;
  }
  t.total_ns = now;
  t.stall_ns = 123;
  t.loaded_bytes = 1;
  t.gathered_bytes = 2;
  t.stored_bytes = 3;
  return t;
}

Bytes sum_of(const std::array<Bytes, kDataClassCount + 1>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), Bytes{0});
}
Bytes of(const std::array<Bytes, kDataClassCount + 1>& bytes, DataClass c) {
  return bytes[static_cast<size_t>(c)];
}

TEST(ShownClass, IsTheTensorsOwnOrThatOfItsRole) {
  Tensor t;
  EXPECT_EQ(shown_class(t), DataClass::kActivation);
  t.role = Role::kWeight;
  EXPECT_EQ(shown_class(t), DataClass::kWeight);
  t.role = Role::kState;
  EXPECT_EQ(shown_class(t), DataClass::kActivation);
  t.slot = {0, 0, 0};
  EXPECT_EQ(shown_class(t), DataClass::kKv);
  t.data_class = DataClass::kGradient;
  EXPECT_EQ(shown_class(t), DataClass::kGradient);
}

TEST(ClassCurve, CountsEachTierApartAndWorkspaceAsAClassOfItsOwn) {
  const Program p = *parse_program(test::kStepProgram);
  const auto device = class_curve(p);
  EXPECT_EQ(device.front().step, -1);
  EXPECT_EQ(of(device.front().bytes, DataClass::kWeight), 256);
  for (const ClassPoint& point : device) {
    if (point.step != 9) continue;
    EXPECT_EQ(of(point.bytes, DataClass::kWeight), 256);
    // c, b as bf16, both parts of a, d.
    EXPECT_EQ(of(point.bytes, DataClass::kActivation), 256 + 128 + 256 + 256);
    EXPECT_EQ(point.bytes[kWorkspaceSlot], 64);
  }
  EXPECT_EQ(device.back().step, p.exit().value);
  EXPECT_EQ(sum_of(device.back().bytes), 0);
  const auto host = memory_curve(p, TierId(1));
  ASSERT_EQ(host.size(), 2u);
  EXPECT_EQ(host[0].step, 1);
  EXPECT_EQ(host[0].bytes, 256);
  EXPECT_EQ(host[1].step, 9);
  EXPECT_EQ(host[1].bytes, 0);
  EXPECT_EQ(peak_bytes(p, TierId(1)), 256);
  EXPECT_EQ(peak_bytes(p), 1472);
}

TEST(ClassCurve, AgreesWithASumOverResidenciesAtEveryStep) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Program p = test::random_program(seed, 20, seed % 2 == 0);
    for (int tier = 0; tier < 3; ++tier) {
      const auto curve = class_curve(p, TierId(tier));
      for (int32_t s = -1; s < p.exit().value; ++s) {
        std::array<Bytes, kDataClassCount + 1> want{}, got{};
        for (const Residency& r : p.residencies) {
          if (r.tier.value != tier || s < r.begin.value || s >= r.end.value) continue;
          want[r.tensor.valid() ? static_cast<size_t>(shown_class(p.graph->at(r.tensor)))
                                : kWorkspaceSlot] += r.bytes;
        }
        for (const ClassPoint& point : curve) {
          if (point.step <= s) got = point.bytes;
        }
        ASSERT_EQ(got, want) << "seed " << seed << " tier " << tier << " step " << s;
      }
    }
  }
}

TEST(TimeCurve, FollowsTheRecordsOfWhatFillsAndGivesUp) {
  const Program p = *parse_program(test::kStepProgram);
  const Trace t = some_trace(p);
  const auto host = time_curve(p, t, TierId(1));
  ASSERT_EQ(host.size(), 2u);
  EXPECT_EQ(host[0].time_ns, t.records[1].begin_ns);  // stored
  EXPECT_EQ(sum_of(host[0].bytes), 256);
  EXPECT_EQ(host[1].time_ns, t.records[8].end_ns);    // loaded for the last time
  EXPECT_EQ(sum_of(host[1].bytes), 0);
  const auto device = time_curve(p, t);
  EXPECT_EQ(device.front().time_ns, 0);
  EXPECT_EQ(device.back().time_ns, t.total_ns);
  for (size_t i = 1; i < device.size(); ++i) {
    EXPECT_LT(device[i - 1].time_ns, device[i].time_ns);
    EXPECT_LE(sum_of(device[i].bytes), p.arena_bytes);
  }
}

void expect_same(const Program& p, const Trace& t, const TraceFile& back) {
  EXPECT_EQ(to_text(back.program), to_text(p));
  EXPECT_EQ(back.trace.total_ns, t.total_ns);
  EXPECT_EQ(back.trace.stall_ns, t.stall_ns);
  EXPECT_EQ(back.trace.loaded_bytes, t.loaded_bytes);
  EXPECT_EQ(back.trace.gathered_bytes, t.gathered_bytes);
  EXPECT_EQ(back.trace.stored_bytes, t.stored_bytes);
  ASSERT_EQ(back.trace.records.size(), t.records.size());
  for (size_t i = 0; i < t.records.size(); ++i) {
    EXPECT_EQ(back.trace.records[i].begin_ns, t.records[i].begin_ns) << i;
    EXPECT_EQ(back.trace.records[i].end_ns, t.records[i].end_ns) << i;
    EXPECT_EQ(back.trace.records[i].stall_ns, t.records[i].stall_ns) << i;
    EXPECT_EQ(back.trace.records[i].bytes, t.records[i].bytes) << i;
  }
}

TEST(TraceFile, IsReadBackExactly) {
  std::vector<Program> programs = {*parse_program(test::kStepProgram),
                                   *parse_program(test::kStateProgram),
                                   *parse_program(test::small_program_text())};
  for (uint64_t seed = 1; seed <= 10; ++seed) programs.push_back(test::random_program(seed, 15));
  for (const Program& p : programs) {
    Trace t = some_trace(p);
    const Result<TraceFile> back = parse_chrome_json(to_chrome_json(p, t));
    ASSERT_TRUE(back.ok()) << back.status().message();
    expect_same(p, t, *back);
    // A day later, to the nanosecond; before the step's start, as transfers of the last cycle are.
    for (TraceRecord& r : t.records) {
      r.begin_ns += 86'400'000'000'001;
      r.end_ns += 86'400'000'000'004;
    }
    t.records[0].begin_ns = -1'234'567;
    const Result<TraceFile> late = parse_chrome_json(to_chrome_json(p, t));
    ASSERT_TRUE(late.ok()) << late.status().message();
    expect_same(p, t, *late);
  }
}

TEST(TraceFile, HasWhatPerfettoShows) {
  Program p = *parse_program(test::kStepProgram);
  const Json json = Json::parse(to_chrome_json(p, some_trace(p)));
  std::map<std::string, int> phases;
  std::map<int, std::string> threads;
  std::map<std::string, int> counters;
  for (const Json& e : json["traceEvents"]) {
    ++phases[e["ph"]];
    if (e["name"] == "thread_name") threads[e["tid"]] = e["args"]["name"];
    if (e["ph"] != "C") continue;
    ++counters[e["name"]];
    EXPECT_TRUE(e["args"].contains("activation") && e["args"].contains("workspace"));
  }
  EXPECT_EQ(phases["X"], 11);
  EXPECT_EQ(phases["i"], 3);  // a Detach takes no time
  EXPECT_EQ(threads, (std::map<int, std::string>{
                         {0, "compute"}, {1, "loads: host"}, {2, "stores: host"}}));
  EXPECT_EQ(counters["memory of host"], 2);
  EXPECT_GT(counters["memory of device"], 8);
}

TEST(TraceFile, NamesOfAnyBytesAreStillJson) {
  Program p = *parse_program(test::kStepProgram);
  Graph g = *p.graph;
  for (const char* name : {"a \"quoted\"\n\\name", "\xff\xfe", "cut \xe6\xa8", "\xed\xa0\x80",
                           "模型 🙂", "\x01\x7f\t"}) {
    g.ops[0].name = g.tensors[1].name = p.name = p.tiers[1].name = name;
    p.graph = std::make_shared<const Graph>(g);
    const std::string json = to_chrome_json(p, some_trace(p));
    EXPECT_TRUE(Json::accept(json)) << name;
    EXPECT_TRUE(parse_chrome_json(json).ok()) << name;
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TraceFile, RefusesWhatIsNoTraceOfOurs) {
  const Program p = *parse_program(test::kStepProgram);
  const std::string good = to_chrome_json(p, some_trace(p));
  const std::vector<std::pair<std::string, std::string>> bads = {
      {"", "not valid JSON"},
      {"{}", "a trace of another program"},
      {"[{\"ph\":\"X\"}]", "a trace of another program"},
      {good.substr(0, good.size() / 2), "not valid JSON"},
      {replaced(good, "\"headrace_trace\":1", "\"headrace_trace\":2"), "version 2"},
      {replaced(good, "cyclic 0", "cyclic yes"), "the trace's program: line 1"},
      {replaced(good, "steps 9 14", "steps 9 10"), "the trace's program: step 13"},
      {replaced(good, "{\"step\":5,", "{\"step\":5000,"), "an event of step 5000"},
      {replaced(good, "{\"step\":5,", "{\"step\":6,"), "two events of step 6"},
      {replaced(good, "{\"step\":5,", "{\"stop\":5,"), "no event of step 5"},
      {replaced(good, "\"dur\":1.001", "\"dur\":-1.001"), "step 0 has impossible times"},
      {replaced(good, "\"ts\":0.000", "\"ts\":1e300"), "step 0 has impossible times"},
      {replaced(good, "\"dur\":1.001", "\"dur\":1e999"), "not valid JSON"},
  };
  for (const auto& [text, message] : bads) {
    const Result<TraceFile> file = parse_chrome_json(text);
    ASSERT_FALSE(file.ok()) << message;
    EXPECT_THAT(file.status().message(), HasSubstr(message));
  }
}

TEST(TraceFile, ReadsEventsOfOthersBesideOurs) {
  const Program p = *parse_program(test::kStepProgram);
  const Trace t = some_trace(p);
  const std::string json = replaced(
      to_chrome_json(p, t), "\"traceEvents\":[",
      "\"more\":[[{\"ph\":\"X\",\"args\":{\"step\":1}}]],\"traceEvents\":["
      "{\"ph\":\"X\",\"name\":\"theirs\",\"ts\":1,\"args\":{\"a\":[1,{\"step\":3}],\"n\":null}},");
  const Result<TraceFile> back = parse_chrome_json(json);
  ASSERT_TRUE(back.ok()) << back.status().message();
  expect_same(p, t, *back);
}

}  // namespace
}  // namespace headrace
