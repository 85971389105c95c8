#include "headrace/snapshot/pickle_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "headrace/base/split_mix.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Kind = PickleData::Kind;

std::string bytes(std::initializer_list<int> values) {
  std::string out;
  for (const int v : values) out += static_cast<char>(v);
  return out;
}

// What Python 3.11 writes for
// {"a": [1, -2, 300, 70000, 2**40, -2**63], "t": (1.5, None, True, False)}.
const std::string kProtocol4 = bytes({0x80, 4, 0x95, 80, 0, 0, 0, 0, 0, 0, 0}) +
    bytes({'}', 0x94, '(', 0x8c, 1, 'a', 0x94, ']', 0x94, '('}) +
    bytes({'K', 1, 'J', 0xfe, 0xff, 0xff, 0xff, 'M', 0x2c, 1, 'J', 0x70, 0x11, 1, 0}) +
    bytes({0x8a, 6, 0, 0, 0, 0, 0, 1, 0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 0x80, 'e'}) +
    bytes({0x8c, 1, 't', 0x94, '(', 'G', 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 'N', 0x88, 0x89}) +
    bytes({'t', 0x94}) +
    bytes({'u', '.'});

TEST(PickleData, ReadsWhatPythonWrites) {
  const auto p = PickleData::read(kProtocol4);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const auto list = p->items(p->find(p->root(), "a"));
  ASSERT_EQ(list.size(), 6u);
  const int64_t expected[] = {1, -2, 300, 70000, int64_t{1} << 40, INT64_MIN};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(p->integer(list[i]), expected[i]);
  const auto tuple = p->items(p->find(p->root(), "t"));
  ASSERT_EQ(tuple.size(), 4u);
  EXPECT_EQ(p->number(tuple[0]), 1.5);
  EXPECT_EQ(p->kind(tuple[1]), Kind::kNone);
  EXPECT_EQ(p->kind(tuple[2]), Kind::kBool);
  EXPECT_EQ(p->integer(tuple[2]), 1);
  EXPECT_EQ(p->integer(tuple[3]), 0);
  EXPECT_EQ(p->find(p->root(), "b"), PickleData::kNoValue);
}

TEST(PickleData, ShortNegativeNumbersKeepTheirSign) {
  const auto p = PickleData::read(bytes({0x80, 2, 0x8a, 1, 0xff, '.'}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->integer(p->root()), -1);
}

// pickle.dumps(os.system) and what follows it in an attack, protocol 2 and 4.
TEST(PickleData, WhatWouldRunCodeIsRefusedByName) {
  const std::string global = bytes({0x80, 2}) + "cos\nsystem\n(X" + bytes({2, 0, 0, 0}) + "id" +
                             bytes({'t', 'R', '.'});
  const auto a = PickleData::read(global);
  ASSERT_FALSE(a.ok());
  EXPECT_EQ(a.status().code(), Code::kUnsupported);
  EXPECT_THAT(a.status().message(), HasSubstr("byte 2"));
  EXPECT_THAT(a.status().message(), HasSubstr("GLOBAL"));
  const std::string stacked = bytes({0x80, 4, 0x8c, 2, 'o', 's', 0x8c, 6}) + "system" +
                              bytes({0x93, 0x8c, 2, 'i', 'd', 0x85, 'R', '.'});
  const auto b = PickleData::read(stacked);
  ASSERT_FALSE(b.ok());
  EXPECT_THAT(b.status().message(), HasSubstr("STACK_GLOBAL"));
  const int refused[] = {'R', 'b', 'i', 'o', 'P', 'Q', 0x81, 0x82, 0x83, 0x84, 0x92, 0x97};
  for (const int op : refused) {
    const auto c = PickleData::read(bytes({0x80, 4, ']', ')', op, '.'}));
    ASSERT_FALSE(c.ok()) << op;
    EXPECT_EQ(c.status().code(), Code::kUnsupported) << op;
  }
}

TEST(PickleData, EveryCutOfAFileIsRefused) {
  for (size_t n = 0; n < kProtocol4.size(); ++n) {
    const auto p = PickleData::read(std::string_view(kProtocol4).substr(0, n));
    ASSERT_FALSE(p.ok()) << n;
    EXPECT_EQ(p.status().code(), Code::kBadFile) << n;
  }
}

TEST(PickleData, MisuseOfTheStackIsRefused) {
  for (const std::string& body :
       {bytes({'.'}), bytes({'a', '.'}), bytes({'N', 'a', '.'}), bytes({'N', 'N', 'a', '.'}),
        bytes({'u', '.'}), bytes({'}', '(', 'N', 'u', '.'}), bytes({'0', '.'}), bytes({'2', '.'}),
        bytes({'h', 0, '.'}), bytes({'r', 0xff, 0xff, 0xff, 0x7f, '.'}), bytes({0x94, '.'}),
        bytes({']', '(', ']', '.'}), bytes({'(', 'N', '.'}), bytes({'N', 'N', '.'}),
        bytes({0x85, '.'}), bytes({0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, '.'}),
        bytes({'N', 'r', 0xff, 0xff, 0xff, 0x7f, '.'}), bytes({0xff, '.'})}) {
    const auto p = PickleData::read(bytes({0x80, 4}) + body);
    EXPECT_FALSE(p.ok());
  }
}

// "Billion laughs": what is held once costs once, and nothing walks it.
TEST(PickleData, SharedListsAreHeldOnce) {
  std::string nested = bytes({0x80, 4, ']', 0x94});
  for (int i = 0; i < 200; ++i) nested += bytes({'2', '2', 0x87, 0x94});
  nested += '.';
  const auto p = PickleData::read(nested);
  ASSERT_TRUE(p.ok()) << p.status().message();
  EXPECT_EQ(p->items(p->root()).size(), 3u);
}

TEST(PickleData, AListInsideItselfIsAValueAsAnyOther) {
  const auto p = PickleData::read(bytes({0x80, 4, ']', 0x94, 'h', 0, 'a', '.'}));
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->items(p->root())[0], p->root());
}

TEST(PickleData, WhatTheWriterWroteIsReadBack) {
  PickleWriter w;
  w.begin_dict();
  w.key("list");
  w.begin_list();
  for (const int64_t n : {int64_t{0}, int64_t{-1}, int64_t{INT32_MAX} + 1, INT64_MIN, INT64_MAX}) {
    w.integer(n);
  }
  w.end();
  const uint32_t list = w.remember();
  w.key("same");
  w.again(list);
  w.key("text");
  w.text("\xc3\xbc");
  w.key("half");
  w.number(0.5);
  w.key("yes");
  w.boolean(true);
  w.key("none");
  w.none();
  w.end();
  const std::string written = w.take();
  const auto p = PickleData::read(written);
  ASSERT_TRUE(p.ok()) << p.status().message();
  const auto items = p->items(p->find(p->root(), "list"));
  ASSERT_EQ(items.size(), 5u);
  EXPECT_EQ(p->integer(items[2]), int64_t{INT32_MAX} + 1);
  EXPECT_EQ(p->integer(items[3]), INT64_MIN);
  EXPECT_EQ(p->find(p->root(), "same"), p->find(p->root(), "list"));
  EXPECT_EQ(p->text(p->find(p->root(), "text")), "\xc3\xbc");
  EXPECT_EQ(p->number(p->find(p->root(), "half")), 0.5);
  EXPECT_EQ(p->integer(p->find(p->root(), "yes")), 1);
  EXPECT_EQ(p->kind(p->find(p->root(), "none")), Kind::kNone);
}

TEST(PickleData, RandomBytesAreReadOrRefused) {
  SplitMix random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string input = kProtocol4;
    const uint64_t changes = 1 + random.next() % 4;
    for (uint64_t i = 0; i < changes; ++i) {
      input[2 + random.next() % (input.size() - 2)] = static_cast<char>(random.next());
    }
    const auto p = PickleData::read(input);
    if (p.ok()) {
      (void)p->items(p->root());
      (void)p->find(p->root(), "a");
    } else {
      EXPECT_FALSE(p.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace headrace
