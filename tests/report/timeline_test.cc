// The numbers of a timeline, and the page that holds them.
#include "headrace/report/timeline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/ir/small_program.h"
#include "tests/report/small_step.h"

namespace headrace {
namespace {

using Json = nlohmann::json;

// The page's data, read as the page's script does.
Json data_of(const std::string& html) {
  const std::string begin = "<script type=\"application/json\" id=\"headrace-data\">";
  const size_t at = html.find(begin);
  EXPECT_NE(at, std::string::npos);
  const size_t from = at + begin.size();
  return Json::parse(html.substr(from, html.find("</script>", from) - from));
}

std::vector<int64_t> column_of(const Json& data, const std::string& name) {
  const std::string text = data["columns"][name];
  const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string raw;
  for (size_t i = 2; i < text.size(); i += 4) {
    uint32_t word = 0;
    int filled = 3;
    for (size_t k = 0; k < 4; ++k) {
      if (text[i + k] == '=') --filled;
      word = word << 6 |
             static_cast<uint32_t>(text[i + k] == '=' ? 0 : digits.find(text[i + k]));
    }
    for (int k = 0; k < filled; ++k) raw += static_cast<char>(word >> (16 - 8 * k) & 255);
  }
  std::vector<int64_t> out;
  uint64_t value = 0;
  int shift = 0;
  int64_t last = 0;
  for (const char c : raw) {
    const auto byte = static_cast<unsigned char>(c);
    value |= static_cast<uint64_t>(byte & 127) << shift;
    shift += 7;
    if (byte >= 128) continue;
    const auto n = static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
    last = text[0] == 'd' ? last + n : n;
    out.push_back(last);
    value = 0;
    shift = 0;
  }
  EXPECT_EQ(shift, 0) << name;
  return out;
}

// The device's bytes after each step at which they change.
std::map<int32_t, Bytes> curve_of(const Timeline& t, int tier) {
  std::map<int32_t, Bytes> curve;
  Bytes held = 0;
  for (const TimelineChange& c : t.changes) {
    if (c.tier != tier) continue;
    held += c.bytes;
    curve[c.step] = held;
  }
  return curve;
}

TEST(Timeline, SumsAreThoseOfTheTraceAndLanesThoseOfTheProgram) {
  const Program p = test::two_layers();
  const Trace trace = simulate(p);
  const Timeline t = make_timeline(p, trace);
  EXPECT_EQ(t.total_ns, trace.total_ns);
  EXPECT_EQ(t.compute_ns, 7'600'001);
  EXPECT_EQ(t.compute_ns + t.stall_ns, t.total_ns);
  ASSERT_EQ(t.lanes.size(), 3u);
  EXPECT_EQ(t.lanes[0].name, "compute");
  EXPECT_EQ(t.lanes[1].name, "host load");
  EXPECT_EQ(t.lanes[2].name, "host store");
  EXPECT_EQ(t.lanes[1].bytes, trace.loaded_bytes);
  EXPECT_EQ(t.lanes[2].bytes, trace.stored_bytes);
  EXPECT_EQ(t.lanes[0].events, 9);
  // 64 MiB at 20 GB/s.
  EXPECT_NEAR(static_cast<double>(t.lanes[2].busy_ns), 67108864 / 20.0, 2);
}

TEST(Timeline, ChangesAddUpToTheMemoryCurve) {
  for (const std::string& text : {std::string(test::kTwoLayers), test::small_program_text()}) {
    const auto p = parse_program(text);
    ASSERT_TRUE(p.ok()) << p.status().message();
    const Timeline t = make_timeline(*p, simulate(*p));
    for (int tier = 0; tier < static_cast<int>(p->tiers.size()); ++tier) {
      const std::map<int32_t, Bytes> curve = curve_of(t, tier);
      Bytes peak = 0;
      for (const MemoryPoint& point : memory_curve(*p, TierId(tier))) {
        if (point.step >= static_cast<int32_t>(p->instrs.size())) continue;
        auto it = curve.upper_bound(std::max(0, point.step));
        const Bytes held = it == curve.begin() ? 0 : std::prev(it)->second;
        peak = std::max(peak, held);
        // What is there at entry and what begins at step 0 come together.
        if (point.step > 0) {
          EXPECT_EQ(held, point.bytes) << "tier " << tier << " step " << point.step;
        }
      }
      EXPECT_EQ(t.tiers[static_cast<size_t>(tier)].peak, peak);
    }
  }
}

TEST(Timeline, AStallNamesTheTransferThatItWaitedFor) {
  const Program p = test::two_layers();
  const Timeline t = make_timeline(p, simulate(p));
  EXPECT_GT(t.events[5].stall_ns, 0);  // loss waits for room
  EXPECT_EQ(t.events[5].blame, 2);
  EXPECT_GT(t.events[9].stall_ns, 0);  // back.w waits for x
  EXPECT_EQ(t.events[9].blame, 8);
  EXPECT_EQ(t.events[8].used_by, 9);
  EXPECT_EQ(t.events[8].lead_ns, 0);
  EXPECT_EQ(t.events[3].lane, -1) << "a Detach takes no time";
}

TEST(Timeline, LeadsAreFromTheEndOfALoadToItsUseAcrossTheEndOfACycleToo) {
  const auto p = parse_program(test::small_program_text());
  ASSERT_TRUE(p.ok());
  const Trace trace = simulate(*p);
  const Timeline t = make_timeline(*p, trace);
  EXPECT_EQ(t.events[10].used_by, 3);  // loaded at the end for the next cycle
  EXPECT_EQ(t.events[10].lead_ns,
            std::max<Nanos>(0, trace.total_ns + trace.records[3].begin_ns -
                                   trace.records[10].end_ns));
}

TEST(Timeline, AnOpThatRunsTwiceIsMarked) {
  const auto p = parse_program(R"(program "again" cyclic 0 arena 256
tier "device" capacity 256 load 0 store 0 latency 0
tier "host" capacity 4096 load 1e9 store 1e9 latency 0
compute op0 cost 10
compute op1 cost 10
detach t1
compute op2 cost 10
compute op1 cost 10
compute op3 cost 10
resident t0 offset 0 bytes 64 steps 0 6
resident t1 offset 64 bytes 64 steps 1 3
resident t2 offset 128 bytes 64 steps 3 6
resident t1 offset 64 bytes 64 steps 4 6
resident t3 offset 192 bytes 64 steps 5 6
graph "again" max_rows 1 max_output_rows 1
t0 activation f32 [ 1 16 ] bytes 64 "x"
t1 activation f32 [ 1 16 ] bytes 64 "y"
t2 activation f32 [ 1 16 ] bytes 64 "z"
t3 output f32 [ 1 16 ] bytes 64 "out"
op kernel "a" in out t0 updates attrs seconds 1e-08 workspace 0 kernel "K"
op kernel "b" in t0 out t1 updates attrs seconds 1e-08 workspace 0 kernel "K"
op kernel "c" in t0 out t2 updates attrs seconds 1e-08 workspace 0 kernel "K"
op kernel "d" in t1 t2 out t3 updates attrs seconds 1e-08 workspace 0 kernel "K"
)");
  ASSERT_TRUE(p.ok()) << p.status().message();
  const Timeline t = make_timeline(*p, simulate(*p));
  EXPECT_FALSE(t.events[1].again);
  EXPECT_TRUE(t.events[4].again);
  EXPECT_EQ(t.again_ns, 10);
}

TEST(Timeline, LayersAreFoundInNames) {
  EXPECT_EQ(layer_of("blk.3.ffn_up.weight:0"), "blk.3");
  EXPECT_EQ(layer_of("layer12/attn/q"), "layer12");
  EXPECT_EQ(layer_of("model.layers.7.mlp.gate"), "model.layers.7");
  EXPECT_EQ(layer_of("ffn_up.weight:3"), "");
  EXPECT_EQ(layer_of("t12"), "");
  EXPECT_EQ(layer_of("Add_Forward.39"), "");  // an op of a trace, numbered
  EXPECT_EQ(layer_of("Conv2d_Forward"), "");
  EXPECT_EQ(layer_of(""), "");
}

TEST(TimelinePage, HoldsEveryEventAndItsSumsAreTheTraces) {
  const Program p = test::two_layers();
  const Trace trace = simulate(p);
  const Json data = data_of(timeline_html(make_timeline(p, trace)));
  EXPECT_EQ(data["total_ns"], trace.total_ns);
  EXPECT_EQ(data["tensors"].size(), p.graph->tensors.size());
  EXPECT_EQ(data["ops"][6], "layer.1.back.w");
  const auto begin = column_of(data, "event_begin"), length = column_of(data, "event_length");
  const auto stall = column_of(data, "event_stall"), bytes = column_of(data, "event_bytes");
  ASSERT_EQ(begin.size(), p.instrs.size());
  Nanos stalls = 0;
  Bytes moved = 0;
  for (size_t i = 0; i < begin.size(); ++i) {
    EXPECT_EQ(begin[i], trace.records[i].begin_ns);
    EXPECT_EQ(begin[i] + length[i], trace.records[i].end_ns);
    if (column_of(data, "event_lane")[i] == 0) stalls += stall[i];
    moved += bytes[i];
  }
  EXPECT_EQ(stalls, trace.stall_ns);
  EXPECT_EQ(moved, trace.loaded_bytes + trace.stored_bytes);
  EXPECT_EQ(column_of(data, "held_bytes").size(), p.residencies.size());
}

TEST(TimelinePage, ChangesInThePageReachTheWrittenPeak) {
  const Program p = test::two_layers();
  const Json data = data_of(timeline_html(make_timeline(p, simulate(p))));
  const auto tier = column_of(data, "change_tier"), step = column_of(data, "change_step"),
             bytes = column_of(data, "change_bytes");
  Bytes held = 0, peak = 0;
  for (size_t i = 0; i < tier.size(); ++i) {
    if (tier[i] != 0) continue;
    held += bytes[i];
    if (i + 1 == tier.size() || step[i + 1] != step[i] || tier[i + 1] != 0)
      peak = std::max(peak, held);
  }
  EXPECT_EQ(peak, 268435456);
  EXPECT_EQ(data["tiers"][0]["peak"], peak);
}

TEST(TimelinePage, HostileNamesStayData) {
  std::string text = test::kTwoLayers;
  const std::string evil = "</script><script>alert(1)</script><!-- & \\\" ' ";
  text.replace(text.find("\"x\""), 3, "\"" + evil + "\"");
  text.replace(text.find("\"loss\""), 6, "\"<img src=x onerror=alert(2)>\"");
  text.replace(text.find("\"two layers\""), 12, "\"<b>&name\"");
  const auto p = parse_program(text);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const std::string html = timeline_html(make_timeline(*p, simulate(*p)));
  EXPECT_EQ(html.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(html.find("<b>&name"), std::string::npos);
  const Json data = data_of(html);
  EXPECT_EQ(data["tensors"][2], "</script><script>alert(1)</script><!-- & \" ' ");
  EXPECT_EQ(data["ops"][3], "<img src=x onerror=alert(2)>");
  EXPECT_EQ(data["name"], "<b>&name");
}

TEST(TimelinePage, NamesThatAreNotUtf8BecomeValid) {
  std::string text = test::kTwoLayers;
  text.replace(text.find("\"x\""), 3, "\"\xff\xfe\"");
  const auto p = parse_program(text);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const Json data = data_of(timeline_html(make_timeline(*p, simulate(*p))));
  EXPECT_EQ(data["tensors"][2], "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(TimelinePage, NeedsNothingFromTheNetworkAndSaysTheNumbersWithoutScripts) {
  const Program p = test::two_layers();
  const std::string html = timeline_html(make_timeline(p, simulate(p)));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_NE(html.find("<noscript>"), std::string::npos);
  const size_t numbers = html.find("<section id=\"numbers\"");
  ASSERT_NE(numbers, std::string::npos);
  EXPECT_NE(html.find("256.0 MiB", numbers), std::string::npos);
  EXPECT_NE(html.find("Load x", numbers), std::string::npos);
  EXPECT_NE(html.find("role=\"img\""), std::string::npos);
}

TEST(TimelinePage, AProgramWithoutTransfersHasAPageToo) {
  const auto p = parse_program(R"(program "" cyclic 0 arena 64
tier "device" capacity 64 load 0 store 0 latency 0
tier "host" capacity 0 load 1e9 store 1e9 latency 0
compute op0 cost 10
resident t0 offset 0 bytes 64 steps 0 1
graph "one" max_rows 1 max_output_rows 1
t0 output f32 [ 1 16 ] bytes 64 "x"
op kernel "a" in out t0 updates attrs seconds 1e-08 workspace 0 kernel "K"
)");
  ASSERT_TRUE(p.ok()) << p.status().message();
  const std::string html = timeline_html(make_timeline(*p, simulate(*p)));
  EXPECT_NE(html.find("Compute never stands still"), std::string::npos);
  EXPECT_EQ(column_of(data_of(html), "event_length"), std::vector<int64_t>{10});
}

}  // namespace
}  // namespace headrace
