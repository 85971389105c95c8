// Problems as CSV: what is read, and that nothing malformed gets through or stops the program.
#include <gtest/gtest.h>

#include <random>

#include "headrace/plan/allocation.h"
#include "tests/plan/allocation_problems.h"

namespace headrace {
namespace {

Status read(const std::string& text) {
  std::vector<std::string> ids;
  return parse_alloc_csv(text, &ids).status();
}

void expect_bad(const std::string& text, const std::string& part) {
  const Status s = read(text);
  EXPECT_EQ(s.code(), Code::kBadFile) << text;
  EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
}

TEST(AllocCsv, ReadsColumnsInAnyOrderAndPassesOverOthers) {
  std::vector<std::string> ids;
  const auto p = parse_alloc_csv("size, upper,hint,id,lower\r\n4,3,x,b1,0\r\n\n7,9,,b2,-3\n", &ids);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(ids, (std::vector<std::string>{"b1", "b2"}));
  EXPECT_EQ(p->buffers[0], (AllocBuffer{0, 3, 4}));
  EXPECT_EQ(p->buffers[1], (AllocBuffer{-3, 9, 7}));
}

TEST(AllocCsv, ReadsBlocks) {
  std::vector<std::string> ids;
  const auto p =
      parse_alloc_csv("id,lower,upper,size,block,distance\na,0,3,4,7,0\nb,0,1,4,7,4\n", &ids);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->buffers[1], (AllocBuffer{0, 1, 4, 7, 4}));
}

TEST(AllocCsv, AHeaderAloneIsAProblemOfNoBuffers) { EXPECT_TRUE(read("id,lower,upper,size\n").ok()); }

TEST(AllocCsv, MalformedFilesAreRefusedWithTheLine) {
  const std::string header = "id,lower,upper,size\n";
  expect_bad("", "empty");
  expect_bad("\n\n", "empty");
  expect_bad("id,lower,upper\na,0,1\n", "no column `size`");
  expect_bad("id,lower,upper,size,size\n", "two columns");
  expect_bad(header + "a,0,1,1\na,0,1,1\n", "line 3: id `a` occurs twice");
  expect_bad(header + "a,3,3,1\n", "line 2: lower 3 is not below upper 3");
  expect_bad(header + "a,4,3,1\n", "line 2");
  expect_bad(header + "a,0,3,-1\n", "line 2");
  expect_bad(header + "a,0,3\n", "line 2: 3 fields");
  expect_bad(header + "a,0,x,1\n", "`x` is no whole number");
  expect_bad(header + "a,0,1.5,1\n", "no whole number");
  expect_bad(header + "a,0,,1\n", "no whole number");
  expect_bad(header + "a,0,3,99999999999999999999\n", "64 bits");
  expect_bad(header + "a,0,3000000000,1\n", "32 bits");
  expect_bad(header + "a,0,1,1" + std::string(100, ',') + "\n", "fields");
}

TEST(AllocCsv, AnythingEndsInAProblemOrAnError) {
  const std::string good = "id,lower,upper,size\na,0,3,4\nb,1,2,77\nc,2,9,5\n";
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    test::Draw draw(seed);
    std::string text = good;
    for (int64_t k = draw.between(1, 6); k > 0; --k) {
      const auto at = static_cast<size_t>(draw.below(static_cast<int64_t>(text.size())));
      if (draw.below(3) == 0) text.erase(at, 1);
      if (text.empty()) break;
      if (draw.below(2) == 0) text[at % text.size()] = static_cast<char>(draw.below(256));
      if (draw.below(3) == 0) text.insert(at % text.size(), 1, ",0-9\n\0"[draw.below(6)]);
    }
    std::vector<std::string> ids;
    const auto p = parse_alloc_csv(text, &ids);
    if (!p.ok()) continue;
    EXPECT_EQ(ids.size(), p->buffers.size());
    const auto s = allocate(*p, {.search_nodes = 1});
    if (!s.ok()) continue;
    EXPECT_TRUE(validate(*p, s->offsets, s->height).ok()) << text;
  }
}

TEST(AllocCsv, ASolutionIsAProblemToo) {
  const AllocProblem p = test::random_problem(7);
  std::vector<std::string> ids, again;
  for (size_t i = 0; i < p.buffers.size(); ++i) ids.push_back("b" + std::to_string(i));
  const auto s = allocate(p, {});
  ASSERT_TRUE(s.ok());
  const auto read = parse_alloc_csv(to_csv(p, ids, s->offsets), &again);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(again, ids);
  EXPECT_EQ(read->buffers, p.buffers);
}

TEST(AllocCsv, AMillionBuffersArePlacedInBoundedWork) {
  AllocProblem p;
  test::Draw draw(1);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto lower = static_cast<int32_t>(draw.below(1'000'000));
    p.buffers.push_back({lower, lower + 1 + static_cast<int32_t>(draw.below(20)),
                         64 * draw.between(1, 1000)});
  }
  const auto s = allocate(p, {.greedy_work = 1});
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_TRUE(validate(p, s->offsets, s->height).ok());
}

}  // namespace
}  // namespace headrace
