// Rankings of what holds the peak and what the stalls wait for.
#include "headrace/report/hotspots.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/report/small_step.h"

namespace headrace {
namespace {

class HotspotsOfTwoLayers : public ::testing::Test {
 protected:
  Program p_ = test::two_layers();
  Hotspots h_ = find_hotspots(make_timeline(p_, simulate(p_)));
};

TEST_F(HotspotsOfTwoLayers, ThePeakIsHeldByWhatTheTableSays) {
  EXPECT_EQ(h_.peak, 268435456);
  EXPECT_EQ(h_.peak_op, "loss");
  Bytes sum = 0;
  for (const HotTensor& t : h_.tensors) sum += t.bytes;
  EXPECT_EQ(sum, h_.peak);
  EXPECT_EQ(h_.tensors[0].name, "layer.1.out");
  EXPECT_TRUE(h_.tensors[0].idle);  // made by layer 1, needed again by its gradient
  EXPECT_EQ(h_.idle_at_peak, 134217728);  // and both weights
}

TEST_F(HotspotsOfTwoLayers, AGapIsFromTheTouchBeforeThePeakToTheNextOne) {
  const Trace trace = simulate(p_);
  // layer.1.out: read by layer.2.forward (step 4), then by layer.2.back.w (step 6).
  EXPECT_EQ(h_.tensors[0].gap_ns, trace.records[6].begin_ns - trace.records[4].end_ns);
  EXPECT_EQ(h_.tensors[0].tier, "host");
  EXPECT_NEAR(static_cast<double>(h_.tensors[0].round_trip_ns), 2 * 67108864 / 20.0 + 20000, 4);
}

TEST_F(HotspotsOfTwoLayers, StallsAreRankedAndAddUp) {
  ASSERT_EQ(h_.stalls.size(), 2u);
  EXPECT_GE(h_.stalls[0].total_ns, h_.stalls[1].total_ns);
  EXPECT_EQ(h_.stalls[0].total_ns + h_.stalls[1].total_ns, h_.stall_ns);
  EXPECT_EQ(h_.stalls[0].waits_for, "Load x from host");
  EXPECT_EQ(h_.stalls[0].op, "layer.1.back.w");
  EXPECT_EQ(h_.stalls[0].cause, StallCause::kIssuedLate);
  EXPECT_EQ(h_.stalls[1].waits_for, "Store x to host");
  EXPECT_EQ(h_.stalls[1].cause, StallCause::kStoreTime);
}

TEST_F(HotspotsOfTwoLayers, OpsByWhatTheyNeedAndLayersByTheirNames) {
  EXPECT_EQ(h_.ops[0].needs, 167772160);
  EXPECT_EQ(h_.least, 167772160);
  EXPECT_EQ(h_.ops.size(), 9u);
  Nanos compute = 0;
  for (const HotLayer& l : h_.layers) compute += l.compute_ns;
  EXPECT_EQ(compute, h_.compute_ns);
  EXPECT_EQ(h_.layers.size(), 3u);  // layer.1, layer.2 and the rest
}

TEST_F(HotspotsOfTwoLayers, AdviceComesWithWhatItWouldSaveTheMostFirst) {
  ASSERT_FALSE(h_.advice.empty());
  for (size_t i = 1; i < h_.advice.size(); ++i)
    EXPECT_GE(h_.advice[i - 1].saves_ns, h_.advice[i].saves_ns);
  EXPECT_EQ(h_.advice[0].saves_ns, h_.stalls[0].total_ns);
}

TEST_F(HotspotsOfTwoLayers, TextAndJsonKeepToTheLimit) {
  const std::string text = hotspots_text(h_, 2, {});
  EXPECT_NE(text.find("Load x from host"), std::string::npos);
  EXPECT_NE(text.find("and 7 more"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(hotspots_json(h_, 2));
  EXPECT_EQ(json["ops"].size(), 2u);
  EXPECT_EQ(json["peak_bytes"], 268435456);
  EXPECT_EQ(json["stalls"][0]["cause"], "started late");
}

}  // namespace
}  // namespace headrace
