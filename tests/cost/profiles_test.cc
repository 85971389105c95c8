// The machines that come with the program, and what no machine can be.
#include "headrace/cost/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace headrace {
namespace {

using ::testing::HasSubstr;

TEST(Profiles, EachIsAValidMachineThatRoundTripsAsAFile) {
  EXPECT_GE(machine_profiles().size(), 5u);
  for (const MachineProfile& p : machine_profiles()) {
    const auto m = machine_by_name(p.name);
    ASSERT_TRUE(m.ok()) << p.name;
    EXPECT_TRUE(verify(*m).ok()) << p.name << ": " << verify(*m).message();
    EXPECT_EQ(m->name, p.name);
    const auto back = machine_from_json(to_json(*m));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->tiers, m->tiers);
    EXPECT_EQ(to_json(*back), to_json(*m));
  }
}

TEST(Profiles, EveryNumberHasASourceOrSaysAssumed) {
  for (const MachineProfile& p : machine_profiles()) {
    const auto m = machine_by_name(p.name);
    ASSERT_TRUE(m.ok());
    std::vector<std::string> keys = {"memory_bytes_per_s", "matmul_per_s", "matvec_bytes_per_s",
                                     "vector_per_s", "op_overhead_ns"};
    for (const TierInfo& t : m->tiers) keys.push_back("tiers." + t.name);
    for (const std::string& key : keys) {
      const auto at = m->sources.find(key);
      ASSERT_NE(at, m->sources.end()) << p.name << " " << key;
      EXPECT_FALSE(at->second.empty()) << p.name << " " << key;
    }
  }
}

TEST(Profiles, TheSupernodesDifferInTheirPoolAlone) {
  const auto slow = machine_by_name("ascend-910c-node");
  const auto fast = machine_by_name("ascend-910c-node-70");
  ASSERT_TRUE(slow.ok() && fast.ok());
  EXPECT_EQ(slow->tiers[2].name, "remote");
  EXPECT_EQ(slow->tiers[2].load_bytes_per_s, 33.6e9);
  EXPECT_EQ(fast->tiers[2].load_bytes_per_s, 70e9);
  EXPECT_EQ(slow->tiers[1], fast->tiers[1]);
  EXPECT_EQ(slow->matmul_per_s, fast->matmul_per_s);
}

TEST(Profiles, AnUnknownNameIsRefusedWithThoseThereAre) {
  const auto m = machine_by_name("tpu-v9");
  ASSERT_FALSE(m.ok());
  EXPECT_EQ(m.status().code(), Code::kUsage);
  EXPECT_THAT(m.status().message(), HasSubstr("tpu-v9"));
  EXPECT_THAT(m.status().message(), HasSubstr("gh200"));
}

TEST(MachineVerify, NamesWhatCannotBe) {
  const auto machine = [] {
    Machine m = Machine::defaults(2);
    m.tiers.push_back({"remote", kGiB, 1e9, 1e9, 10});
    return m;
  };
  const auto refused = [](const Machine& m, const char* part) {
    const Status s = verify(m);
    ASSERT_FALSE(s.ok()) << part;
    EXPECT_EQ(s.code(), Code::kBadFile);
    EXPECT_THAT(s.message(), HasSubstr(part));
  };
  EXPECT_TRUE(verify(machine()).ok());
  Machine m = machine();
  m.tiers[1].load_bytes_per_s = 0;
  refused(m, "load_bytes_per_s of tier 'file' is 0");
  m = machine();
  m.tiers[2].store_bytes_per_s = std::nan("");
  refused(m, "store_bytes_per_s of tier 'remote'");
  m = machine();
  m.tiers[2].load_bytes_per_s = std::numeric_limits<double>::infinity();
  refused(m, "load_bytes_per_s of tier 'remote'");
  m = machine();
  m.tiers[2].latency_ns = -1;
  refused(m, "latency_ns of tier 'remote' is -1");
  m = machine();
  m.tiers[1].capacity = -5;
  refused(m, "capacity of tier 'file' is -5");
  m = machine();
  m.tiers[2].name = "file";
  refused(m, "tier 2 ('file')");
  m = machine();
  m.tiers.resize(1);
  refused(m, "1 tiers");
  m = machine();
  m.tiers[1].group = m.tiers[2].group = 3;
  EXPECT_TRUE(verify(m).ok());
  m.tiers[2].duplex = true;
  refused(m, "'file' and 'remote' share a link");
  m = machine();
  m.memory_bytes_per_s = std::nan("");
  refused(m, "memory_bytes_per_s");
  m = machine();
  m.matmul_per_s[static_cast<size_t>(DType::kF16)] = -1;
  refused(m, "matmul_per_s of f16");
  m = machine();
  m.op_overhead_ns = -1;
  refused(m, "op_overhead_ns");
  m = machine();
  m.kernels["Conv"].seconds[2] = std::nan("");
  refused(m, "'Conv'");
}

TEST(MachineFile, LinksThatAreSharedOrDuplexRoundTrip) {
  Machine m = Machine::defaults(1);
  m.tiers.push_back({"remote", kGiB, 2e9, 3e9, 10, true, 7});
  m.tiers.push_back({"pool", kGiB, 4e9, 5e9, 20, true, 7});
  const auto back = machine_from_json(to_json(m));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->tiers, m.tiers);
}

}  // namespace
}  // namespace headrace
