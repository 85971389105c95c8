// Workload files: both formats, what is refused, and that writing and reading give the same.
#include "headrace/model/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace headrace {
namespace {

using ::testing::HasSubstr;

// The most bytes alive at an op: persistent tensors always, others from the op that writes them to
// the last that reads them, outputs before inputs are freed.
Bytes live_peak(const Workload& w) {
  const Graph& g = w.graph;
  std::vector<Bytes> change(g.ops.size() + 1, 0);
  std::vector<int> first(g.tensors.size(), -1), last(g.tensors.size(), -1);
  for (size_t o = 0; o < g.ops.size(); ++o) {
    for (const auto* list : {&g.ops[o].inputs, &g.ops[o].outputs, &g.ops[o].updates}) {
      for (const TensorId t : *list) {
        if (first[t.index()] < 0) first[t.index()] = static_cast<int>(o);
        last[t.index()] = static_cast<int>(o);
      }
    }
  }
  Bytes always = 0;
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    if (g.tensors[t].role == Role::kState || g.tensors[t].role == Role::kWeight) {
      always += g.tensors[t].bytes;
    } else if (first[t] >= 0) {
      change[static_cast<size_t>(first[t])] += g.tensors[t].bytes;
      change[static_cast<size_t>(last[t]) + 1] -= g.tensors[t].bytes;
    }
  }
  Bytes now = always, peak = 0;
  for (const Bytes c : change) peak = std::max(peak, now += c);
  return peak;
}

TensorId named(const Workload& w, const std::string& name) {
  for (size_t t = 0; t < w.graph.tensors.size(); ++t) {
    if (w.graph.tensors[t].name == name) return TensorId(static_cast<int64_t>(t));
  }
  return {};
}

const char* const kOwn = R"({"headrace_workload": 1, "name": "two layers", "cyclic": true,
  "tensors": [
    {"name": "w", "bytes": 4096, "persistent": true},
    {"name": "x", "shape": [8, 16], "dtype": "f32", "class": "input"},
    {"name": "y", "bytes": 512, "dtype": "f32", "codecs": ["bf16", "mask"]},
    {"name": "z", "shape": [2, 4, 8], "dtype": "bf16", "output": true, "pinned": true},
    {"name": "kv", "bytes": 64, "persistent": true, "kv": [0, 1, 2],
     "remote_memory": {"max_size": 32, "prefetch_priority": -3}},
    {"name": "table", "bytes": 8192, "file": 0, "offset": 4096, "forbidden_tiers": ["host"]}],
  "ops": [
    {"name": "load", "kernel": "Input", "outputs": ["x"], "seconds": 0, "recompute": false},
    {"name": "a", "inputs": ["x", "table", "x"], "outputs": [2], "flops": 1e9, "traffic": 640},
    {"name": "b", "inputs": [2, 0], "outputs": ["z"], "updates": ["kv"], "seconds": 1.5e-3,
     "workspace": 100}]})";

TEST(Workload, OurFormatGivesTensorsOpsAndRules) {
  const auto w = parse_workload(kOwn);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const Graph& g = w->graph;
  EXPECT_EQ(g.name, "two layers");
  EXPECT_TRUE(w->cyclic);
  ASSERT_EQ(g.tensors.size(), 6u);
  ASSERT_EQ(g.ops.size(), 3u);
  const Tensor& weight = g.at(named(*w, "w"));
  EXPECT_EQ(weight.role, Role::kState);
  EXPECT_EQ(weight.data_class, DataClass::kWeight);
  EXPECT_EQ(weight.dtype, DType::kI8);
  EXPECT_EQ(weight.rows, 1);
  EXPECT_EQ(weight.cols, 4096);
  EXPECT_EQ(g.at(named(*w, "x")).bytes, 8 * 16 * 4);
  EXPECT_EQ(g.at(named(*w, "y")).cols, 128);
  const Tensor& z = g.at(named(*w, "z"));
  EXPECT_EQ(z.rows, 8);
  EXPECT_EQ(z.cols, 8);
  EXPECT_EQ(z.bytes, 128);
  EXPECT_EQ(z.role, Role::kOutput);
  EXPECT_EQ(g.at(named(*w, "kv")).slot, (KvSlot{0, 1, 2}));
  EXPECT_EQ(g.at(named(*w, "kv")).data_class, DataClass::kKv);
  EXPECT_EQ(g.at(named(*w, "table")).role, Role::kWeight);
  EXPECT_EQ(g.at(named(*w, "table")).source, (FileExtent{0, 4096, 8192}));
  EXPECT_EQ(g.ops[0].kernel, "Input");
  EXPECT_EQ(g.ops[0].iattr(Attr::kRecompute, 1), 0);
  EXPECT_EQ(g.ops[1].kernel, "a");  // its own name when it has no kernel's
  EXPECT_EQ(g.ops[1].inputs, (std::vector<TensorId>{TensorId(1), TensorId(5)}));
  EXPECT_EQ(g.ops[1].attr(Attr::kFlops), 1e9);
  EXPECT_FALSE(g.ops[1].attrs.contains(Attr::kSeconds));
  EXPECT_EQ(g.ops[2].attr(Attr::kSeconds), 1.5e-3);
  EXPECT_EQ(g.ops[2].workspace, 100);
  ASSERT_EQ(w->rules.size(), 4u);
  EXPECT_EQ(w->rules[0].codecs, (std::vector<Codec>{Codec::kBf16, Codec::kMask}));
  EXPECT_TRUE(w->rules[1].pinned);
  EXPECT_TRUE(w->rules[2].remote);
  EXPECT_EQ(w->rules[2].remote_max_bytes, 32);
  EXPECT_EQ(w->rules[2].prefetch_priority, -3);
  EXPECT_EQ(w->rules[3].forbidden_tiers, std::vector<std::string>{"host"});
}

TEST(Workload, WritingAndReadingGiveTheSame) {
  const auto w = parse_workload(kOwn);
  ASSERT_TRUE(w.ok());
  const std::string text = to_workload_json(*w);
  const auto back = parse_workload(text);
  ASSERT_TRUE(back.ok()) << back.status().message() << "\n" << text;
  EXPECT_EQ(back->graph, w->graph);
  EXPECT_EQ(back->rules, w->rules);
  EXPECT_EQ(back->cyclic, w->cyclic);
  EXPECT_EQ(to_workload_json(*back), text);
}

TEST(Workload, OpsMayComeBeforeTensors) {
  const auto w = parse_workload(R"({"ops": [{"name": "a", "outputs": ["x", 1]}],
      "tensors": [{"name": "x", "bytes": 1}, {"name": "y", "bytes": 2}],
      "headrace_workload": 1})");
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->graph.ops[0].outputs, (std::vector<TensorId>{TensorId(0), TensorId(1)}));
}

void refused(const std::string& json, const std::vector<std::string>& parts) {
  const auto w = parse_workload(json);
  ASSERT_FALSE(w.ok()) << json;
  EXPECT_EQ(w.status().code(), Code::kBadFile);
  for (const std::string& part : parts) EXPECT_THAT(w.status().message(), HasSubstr(part)) << json;
}

std::string own(const std::string& tensors, const std::string& ops) {
  return R"({"headrace_workload": 1, "tensors": [)" + tensors + R"(], "ops": [)" + ops + "]}";
}

TEST(Workload, WhatCannotBeIsRefusedByName) {
  const std::string x = R"({"name": "x", "bytes": 8})", y = R"({"name": "y", "bytes": 8})";
  const std::string writes_x = R"({"name": "a", "outputs": ["x"]})";
  refused("", {"not a workload"});
  refused("[]", {"not a workload"});
  refused("{}", {"not a workload"});
  refused(R"({"headrace_workload": 1)", {"not valid JSON"});
  refused(R"({"headrace_workload": 2, "tensors": [], "ops": []})", {"format 2"});
  refused(R"({"headrace_workload": 1, "ops": []})", {"'tensors' is missing"});
  refused(own("", ""), {"no ops"});
  refused(own(x, "7"), {"'ops'", "not an object"});
  refused(own(x, R"({"name": "a", "outputs": ["nope"]})"), {"op 'a'", "'nope'", "does not exist"});
  refused(own(x, R"({"name": "a", "outputs": [1]})"), {"op 'a'", "number 1", "does not exist"});
  refused(own(x, R"({"name": "a", "outputs": [-1]})"), {"'a'", "outputs"});
  refused(own(x + "," + x, writes_x), {"tensor 1 ('x')", "earlier"});
  refused(own(R"({"name": "x", "bytes": 0})", writes_x), {"'x'", "'bytes' is 0"});
  refused(own(R"({"name": "x", "bytes": -4})", writes_x), {"'x'", "-4"});
  refused(own(R"({"name": "x"})", writes_x), {"'x'", "missing"});
  refused(own(R"({"name": "x", "bytes": 1e30})", writes_x), {"'x'", "whole number"});
  refused(own(R"({"name": "x", "bytes": 6, "dtype": "f32"})", writes_x), {"'x'", "f32 elements"});
  refused(own(R"({"name": "x", "shape": [2, 0]})", writes_x), {"'x'", "shape"});
  refused(own(R"({"name": "x", "shape": [1000000000, 1000000000]})", writes_x), {"'x'", "large"});
  refused(own(R"({"name": "x", "bytes": 9, "shape": [2, 2]})", writes_x), {"'x'", "4 bytes"});
  refused(own(R"({"name": "x", "bytes": 8, "dtype": "f99"})", writes_x), {"'x'", "f99"});
  refused(own(R"({"name": "x", "bytes": 8, "class": "toast"})", writes_x), {"'x'", "toast"});
  refused(own(R"({"name": "x", "bytes": 8, "byte": 1})", writes_x), {"'x'", "'byte'"});
  refused(own(R"({"name": "x", "bytes": 8, "codecs": ["bf16"]})", writes_x), {"'x'", "f32"});
  refused(own(R"({"name": "x", "bytes": 8, "codecs": ["zip"]})", writes_x), {"'x'", "zip"});
  refused(own(x, R"({"name": "a", "outputs": ["x"], "seconds": -1})"), {"'a'", "seconds", "-1"});
  refused(own(x, R"({"name": "a", "outputs": ["x"], "seconds": NaN})"), {"not valid JSON"});
  refused(own(x, R"({"name": "a", "outputs": ["x"], "seconds": 1e999})"), {"not valid JSON"});
  refused(own(x, R"({"name": "a", "outputs": ["x"], "seconds": "1"})"), {"'a'", "seconds"});
  refused(own(x, R"({"name": "a", "outputs": ["x"], "workspace": -1})"), {"'a'", "workspace"});
  refused(own(x, R"({"name": "a"})"), {"'a'", "empty"});
  refused(own(x + "," + y, R"({"name": "a", "inputs": ["x"], "outputs": ["y"]})"),
          {"op 'a'", "'x'", "no op writes"});
  refused(own(x, writes_x + R"(, {"name": "b", "outputs": ["x"]})"), {"'x'", "'a'", "'b'"});
  refused(own(R"({"name": "x", "bytes": 8, "persistent": true})", writes_x),
          {"'x'", "'a'", "updates"});
  refused(own(x, R"({"name": "a", "inputs": ["x"], "outputs": ["x"]})"), {"'x'", "updates"});
  refused(own(x + "," + y, R"({"name": "a", "inputs": ["x"], "outputs": ["y"]},
                              {"name": "b", "outputs": ["x"]})"),
          {"op 'a'", "'x'", "'b'", "only later"});
  refused(own(x + "," + y, R"({"name": "a", "inputs": ["x"], "outputs": ["y"]},
                              {"name": "b", "inputs": ["y"], "outputs": ["x"]})"),
          {"cycle", "'a' needs 'b' needs 'a'"});
  const std::string huge = R"("bytes": 140737488355328})";
  std::string many;
  for (int i = 0; i < 9000; ++i) many += text_of(R"({"name": "h%d", )", i) + huge + ",";
  refused(own(many + x, writes_x), {"2^60"});
}

TEST(Workload, EveryPrefixOfAFileIsRefused) {
  const std::string text = kOwn;
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_FALSE(parse_workload(text.substr(0, n)).ok()) << n;
  }
}

TEST(Workload, AnyChangedByteIsReadOrRefusedButNeverTrusted) {
  const std::string text = kOwn;
  uint32_t state = 7;
  for (int round = 0; round < 3000; ++round) {
    state = state * 1664525u + 1013904223u;
    std::string changed = text;
    changed[state % text.size()] = static_cast<char>(state >> 24);
    const auto w = parse_workload(changed);
    if (w.ok()) {
      for (const Tensor& t : w->graph.tensors) EXPECT_GT(t.bytes, 0);
    }
  }
}

TEST(Workload, DeepNestingIsRefusedWithoutRecursion) {
  refused(R"({"headrace_workload": 1, "tensors": )" + std::string(1'000'000, '['), {"JSON"});
}

// ---- kernel traces ----------------------------------------------------------------------------

// w is updated by the last kernel, b only read; m (a mask) is read but never written; k2 adds to y
// in place; k3 overwrites x without reading it.
const char* const kTrace = R"({"name": "small", "time_unit": "s", "kernels": [
  {"id": 0, "name": "Linear_Forward", "t": 0.25, "in": [1, 2], "out": [3]},
  {"id": 1, "name": "Multiply_Forward", "t": 1e-6, "in": [3, 4], "out": [5]},
  {"id": 2, "name": "Add_MultiGredient", "t": 2e-6, "in": [3, 5], "out": [5]},
  {"id": 3, "name": "Linear_Backward_Input", "t": 3e-6, "in": [5, 1], "out": [3]},
  {"id": 4, "name": "Apply_Grad", "t": 4e-6, "in": [3, 1], "out": [1]}],
  "tensors": {"1": {"bytes": 1000, "persistent": 1}, "2": {"bytes": 500, "persistent": 1},
    "3": {"bytes": 64, "persistent": 0}, "4": {"bytes": 32, "persistent": 0},
    "5": {"bytes": 16, "persistent": 0}, "9": {"bytes": 7, "persistent": 1}}})";

TEST(Workload, AKernelTraceBecomesAGraphWithVersionsAndUpdates) {
  const auto w = parse_workload(kTrace);
  ASSERT_TRUE(w.ok()) << w.status().message();
  const Graph& g = w->graph;
  ASSERT_EQ(g.ops.size(), 5u);
  const auto names = [&](const std::vector<TensorId>& ids) {
    std::vector<std::string> out;
    for (const TensorId id : ids) out.push_back(g.at(id).name);
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(g.ops[0].name, "Linear_Forward.0");
  EXPECT_EQ(g.ops[0].kernel, "Linear_Forward");
  EXPECT_EQ(g.ops[0].attr(Attr::kSeconds), 0.25);
  EXPECT_EQ(names(g.ops[0].inputs), (Names{"t1", "t2"}));
  EXPECT_EQ(names(g.ops[1].inputs), Names{"t3"});
  EXPECT_EQ(names(g.ops[1].outputs), (Names{"t4", "t5"}));  // the mask comes to life here
  EXPECT_EQ(names(g.ops[2].updates), Names{"t5"});
  EXPECT_EQ(names(g.ops[2].inputs), Names{"t3"});
  EXPECT_EQ(names(g.ops[3].outputs), Names{"t3.v2"});
  EXPECT_EQ(names(g.ops[4].inputs), Names{"t3.v2"});
  EXPECT_EQ(names(g.ops[4].updates), Names{"t1"});
  EXPECT_EQ(g.at(named(*w, "t1")).role, Role::kState);
  EXPECT_EQ(g.at(named(*w, "t1")).data_class, DataClass::kWeight);
  EXPECT_EQ(g.at(named(*w, "t2")).data_class, DataClass::kInput);
  EXPECT_EQ(g.at(named(*w, "t9")).data_class, DataClass::kOther);
  EXPECT_EQ(g.at(named(*w, "t4")).data_class, DataClass::kInput);
  EXPECT_EQ(g.at(named(*w, "t5")).data_class, DataClass::kActivation);
  EXPECT_EQ(g.at(named(*w, "t3.v2")).data_class, DataClass::kGradient);
  ASSERT_EQ(w->rules.size(), 1u);
  EXPECT_EQ(w->rules[0].tensor, named(*w, "t4"));
  EXPECT_FALSE(w->rules[0].recompute);
  EXPECT_FALSE(w->cyclic);
}

TEST(Workload, TheLiveBytesOfATraceAreThoseCountedByHand) {
  const auto w = parse_workload(kTrace);
  ASSERT_TRUE(w.ok());
  // Persistent 1507; at kernel 1: t3 64, t4 32, t5 16.
  EXPECT_EQ(live_peak(*w), 1507 + 64 + 32 + 16);
}

TEST(Workload, ATraceSurvivesOurFormat) {
  const auto w = parse_workload(kTrace);
  ASSERT_TRUE(w.ok());
  const auto back = parse_workload(to_workload_json(*w));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->graph, w->graph);
  EXPECT_EQ(back->rules, w->rules);
}

TEST(Workload, ATraceThatCannotBeIsRefusedByName) {
  const auto replaced = [](const std::string& from, const std::string& to) {
    std::string text = kTrace;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  refused(replaced("[3, 4]", "[3, 44]"), {"kernel 1", "44", "does not exist"});
  refused(replaced("0.25", "-0.25"), {"kernel 0", "'t'"});
  refused(replaced("0.25", "\"x\""), {"kernel 0", "'t'"});
  refused(replaced("\"t\": 0.25, ", ""), {"kernel 0", "'t' is missing"});
  refused(replaced("\"bytes\": 64", "\"bytes\": 0"), {"tensor 3", "'bytes'"});
  refused(replaced("\"time_unit\": \"s\"", "\"time_unit\": \"ms\""), {"time_unit"});
  refused(replaced("\"9\"", "\"nine\""), {"'nine'", "no number"});
  refused(replaced("\"9\"", "\"3\""), {"tensor 3", "twice"});
}

// ---- the guide and the examples

std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST(Workload, EveryJsonTextOfTheGuideIsRead) {
  const std::string guide = file_text(HEADRACE_SOURCE_DIR "/docs/guide/workload.md");
  std::vector<Workload> read;
  for (size_t at = guide.find("```json\n"); at != std::string::npos;
       at = guide.find("```json\n", at)) {
    at += 8;
    const auto w = parse_workload(guide.substr(at, guide.find("```", at) - at));
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_TRUE(verify(w->graph).ok()) << verify(w->graph).message();
    read.push_back(*w);
  }
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(live_peak(read[0]), 320 * kMiB);  // as the guide says
}

TEST(Workload, EveryExampleIsRead) {
  int examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(HEADRACE_SOURCE_DIR "/examples/planning")) {
    if (entry.path().extension() != ".json") continue;
    const auto w = parse_workload(file_text(entry.path()));
    ASSERT_TRUE(w.ok()) << entry.path() << ": " << w.status().message();
    EXPECT_TRUE(verify(w->graph).ok()) << entry.path();
    ++examples;
  }
  EXPECT_GE(examples, 5);
}

TEST(Workload, AChainOfAHundredThousandOpsIsRead) {
  std::string tensors = R"({"name": "t0", "bytes": 64})", ops = R"({"name": "o0", "outputs": [0]})";
  for (int i = 1; i < 100'000; ++i) {
    tensors += text_of(R"(,{"name": "t%d", "bytes": 64})", i);
    ops += text_of(R"(,{"name": "o%d", "inputs": [%d], "outputs": ["t%d"], "seconds": 1e-6})", i,
                   i - 1, i);
  }
  const auto w = parse_workload(own(tensors, ops));
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(w->graph.ops.size(), 100'000u);
  EXPECT_EQ(live_peak(*w), 128);
}

}  // namespace
}  // namespace headrace
