// The eleven problems published with MiniMalloc (tests/data/allocation/README.md): packed into
// 1,048,576 bytes and into more.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "headrace/plan/allocation.h"

namespace headrace {
namespace {

class MiniMallocProblem : public testing::TestWithParam<char> {};

TEST_P(MiniMallocProblem, FitsItsCapacityAndEveryLargerOne) {
  const std::string path = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/allocation/" +
                           GetParam() + ".1048576.csv";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> ids;
  const Result<AllocProblem> p = parse_alloc_csv(text.str(), &ids);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_GT(p->buffers.size(), 100u);
  for (const Bytes capacity : {1048576, 1059061, 1069547, 1101004}) {
    const auto s = allocate(*p, {.capacity = capacity, .search_nodes = 20'000'000});
    ASSERT_TRUE(s.ok()) << s.status().message();
    EXPECT_TRUE(s->fits) << "at " << capacity << ": " << s->height;
    EXPECT_LE(s->nodes, 1'000'000) << "at " << capacity;
    const Status valid = validate(*p, s->offsets, capacity);
    EXPECT_TRUE(valid.ok()) << valid.message();
  }
}

INSTANTIATE_TEST_SUITE_P(All, MiniMallocProblem, testing::Range('A', 'L'),
                         [](const auto& info) { return std::string(1, info.param); });

}  // namespace
}  // namespace headrace
