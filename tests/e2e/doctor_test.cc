// headrace doctor: a PyTorch memory snapshot on the command line.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/model.h"
#include "tests/e2e/process.h"

namespace headrace::testing {
namespace {

using Json = nlohmann::json;

const std::string kSnapshot = HEADRACE_SOURCE_DIR "/tests/data/snapshots/training_end.pickle";

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(DoctorVerb, TellsWhatHoldsTheMemoryAndWhatAPlanWouldNeed) {
  Folder folder;
  const Finished f = headrace(folder, {"doctor", kSnapshot});
  EXPECT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.out.find("given out at most        6.56 GiB"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("optimizer state"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find("a plan would have fitted device 0"), std::string::npos) << f.out;
  const Finished json = headrace(folder, {"doctor", kSnapshot, "--json", "--no-plan"});
  const Json told = Json::parse(json.out);
  EXPECT_EQ(told["devices"][0]["reserved_bytes"], 12660506624);
  EXPECT_TRUE(told["would_fit"].empty());
}

TEST(DoctorVerb, ItsWorkloadCanBePlanned) {
  Folder folder;
  const std::string out = folder / "step.json";
  const Finished f = headrace(folder, {"doctor", kSnapshot, "--no-plan", "-o", out});
  EXPECT_EQ(f.code, 0) << f.err;
  const Finished plan = headrace(
      folder, {"plan", out, "--memory", "8GiB", "--machine", "a100-pcie3", "--no-recompute"});
  EXPECT_EQ(plan.code, 0) << plan.err;
}

TEST(DoctorVerb, RefusesWhatWouldRunCodeAndWhatIsNoPickle) {
  Folder folder;
  const std::string evil = folder / "evil.pickle";
  write(evil, std::string("\x80\x02", 2) + "cos\nsystem\n(X\x02" + std::string(3, '\0') +
                  "idtR.");
  const Finished f = headrace(folder, {"doctor", evil});
  EXPECT_EQ(f.code, 4);
  EXPECT_NE(f.err.find("GLOBAL"), std::string::npos) << f.err;
  const std::string text = folder / "text";
  write(text, "hello");
  const Finished g = headrace(folder, {"doctor", text});
  EXPECT_EQ(g.code, 4);
  EXPECT_NE(g.err.find("_dump_snapshot"), std::string::npos) << g.err;
  EXPECT_EQ(headrace(folder, {"doctor", folder / "none"}).code, 5);
}

}  // namespace
}  // namespace headrace::testing
