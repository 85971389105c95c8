// Stop strings and whole characters: what may be given out, and when.
#include "headrace/serve/stop_text.h"

#include <gtest/gtest.h>

#include <random>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/model/unicode.h"

namespace headrace {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  bool stopped = false;
  int64_t tokens_out = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const Strings& stops, const Strings& tokens) {
  StopText stop(stops);
  Outcome out;
  for (const std::string& token : tokens) {
    out.stopped = stop.push(token, &out.text);
    if (out.stopped) break;
  }
  stop.finish(&out.text);
  out.tokens_out = stop.tokens_out();
  return out;
}

// What is given out after each token.
Strings pieces(const Strings& stops, const Strings& tokens) {
  StopText stop(stops);
  Strings out;
  for (const std::string& token : tokens) {
    out.emplace_back();
    if (stop.push(token, &out.back())) break;
  }
  return out;
}

// The same by looking at all bytes at once: the first end of a stop string, of those the longest.
Outcome plain(const Strings& stops, const std::string& bytes) {
  for (size_t end = 1; end <= bytes.size(); ++end) {
    size_t longest = 0;
    for (const std::string& s : stops) {
      if (end >= s.size() && bytes.compare(end - s.size(), s.size(), s) == 0) {
        longest = std::max(longest, s.size());
      }
    }
    if (longest > 0) return {valid_utf8(bytes.substr(0, end - longest)), true};
  }
  return {valid_utf8(bytes), false};
}

TEST(StopText, WithoutStopStringsEachWholeCharacterIsOutAtOnce) {
  EXPECT_EQ(pieces({}, {"he", "llo", "", " w"}), (Strings{"he", "llo", "", " w"}));
}

TEST(StopText, ACharacterIsHeldBackUntilItIsWhole) {
  EXPECT_EQ(pieces({}, {"a\xE2", "\x82", "\xAC!"}), (Strings{"a", "", "€!"}));
  EXPECT_EQ(run({}, {"a\xE2", "\x82"}).text, "a\uFFFD");
  EXPECT_EQ(run({}, {"a\xFF", "b"}).text, "a\uFFFD" "b");
}

TEST(StopText, TextEndsBeforeTheStopStringHoweverItIsDivided) {
  EXPECT_EQ(run({"END"}, {"one END two"}), (Outcome{"one ", true, 1}));
  EXPECT_EQ(run({"END"}, {"one ", "E", "N", "D", " two"}), (Outcome{"one ", true, 1}));
  EXPECT_EQ(pieces({"END"}, {"one E", "N", "D"}), (Strings{"one ", "", ""}));
}

TEST(StopText, WhatOnlyLookedLikeAStopStringIsGivenOut) {
  EXPECT_EQ(pieces({"END"}, {"E", "N", "E", "N", "X"}), (Strings{"", "", "EN", "", "ENX"}));
  EXPECT_EQ(run({"END"}, {"EN"}), (Outcome{"EN", false, 1}));
}

TEST(StopText, StopStringsThatOverlapThemselvesAreFound) {
  EXPECT_EQ(run({"aab"}, {"aaaaab"}), (Outcome{"aaa", true, 1}));
  EXPECT_EQ(pieces({"abab"}, {"ab", "a", "a", "bab"}), (Strings{"", "", "aba", ""}));
}

TEST(StopText, TheFirstStopStringToBeCompleteCounts) {
  EXPECT_EQ(run({"abcd", "bc"}, {"xabcd"}).text, "xa");
  EXPECT_EQ(run({"bc", "abc"}, {"xabc"}).text, "x");  // both at once: the longer one
}

TEST(StopText, StopStringsOfSeveralByteCharactersAreFoundAcrossTokens) {
  EXPECT_EQ(run({"→"}, {"a\xE2\x86", "\x92z"}), (Outcome{"a", true, 1}));
  // The bytes of the euro sign and of the arrow begin alike.
  EXPECT_EQ(run({"→"}, {"a\xE2", "\x82\xAC"}).text, "a€");
  // A character that is cut off by a stop string is replaced.
  EXPECT_EQ(run({"."}, {"a\xE2\x82", "."}).text, "a\uFFFD");
}

TEST(StopText, CountsTheTokensWhoseTextIsOut) {
  StopText stop({"END"});
  std::string text;
  const auto after = [&](const char* token) {
    stop.push(token, &text);
    return stop.tokens_out();
  };
  EXPECT_EQ(after("one"), 1);
  EXPECT_EQ(after("\xE2\x82"), 1);     // half a character
  EXPECT_EQ(after(""), 1);             // behind it
  EXPECT_EQ(after("\xAC" "E"), 3);     // the character is whole; this token's E is not out
  EXPECT_EQ(after("N"), 3);
  EXPECT_EQ(after("x"), 6);
  EXPECT_EQ(after("yEN"), 6);
  EXPECT_EQ(after("D"), 7);            // yEN began before the stop string, D did not
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(text, "one€ENxy");
}

TEST(StopText, AfterTheEndAllTokensAreOut) {
  StopText stop({"END"});
  std::string text;
  stop.push("E", &text);
  stop.push("N", &text);
  EXPECT_EQ(stop.tokens_out(), 0);
  stop.finish(&text);
  EXPECT_EQ(stop.tokens_out(), 2);
  EXPECT_EQ(text, "EN");
}

// Few letters, so that stop strings nearly happen all the time; characters, and broken ones.
std::string random_bytes(std::mt19937* random, size_t length) {
  static const Strings kAlphabet = {"a", "b",    "ab",   "€",        "→",
                                    "é", "\xE2", "\x82", "\xF0\x9F", "😀"};
  std::string out;
  while (out.size() < length) out += kAlphabet[(*random)() % kAlphabet.size()];
  return out;
}

TEST(StopText, AnyDivisionOfTheBytesGivesTheTextOfAPlainSearch) {
  std::mt19937 random(7);
  int stopped = 0;
  for (int round = 0; round < 20'000; ++round) {
    Strings stops;
    for (size_t i = random() % 4; i > 0; --i) {
      std::string s = valid_utf8(random_bytes(&random, 1 + random() % 6));
      if (s.find("\uFFFD") == s.npos) stops.push_back(std::move(s));
    }
    const std::string bytes = random_bytes(&random, random() % 40);
    Strings tokens;
    for (size_t at = 0; at < bytes.size();) {
      tokens.push_back(bytes.substr(at, random() % 5));
      at += tokens.back().size();
    }
    const Outcome want = plain(stops, bytes);
    StopText stop(stops);
    std::string text;
    bool done = false;
    for (size_t i = 0; i < tokens.size() && !done; ++i) {
      done = stop.push(tokens[i], &text);
      ASSERT_EQ(utf8_valid_prefix(text), text.size());
      ASSERT_EQ(want.text.compare(0, text.size(), text), 0) << "more than is certain";
      ASSERT_LE(stop.tokens_out(), static_cast<int64_t>(i) + 1);
    }
    stop.finish(&text);
    ASSERT_EQ(text, want.text) << round;
    ASSERT_EQ(done, want.stopped) << round;
    if (!done) {
      ASSERT_EQ(stop.tokens_out(), static_cast<int64_t>(tokens.size()));
    }
    stopped += done ? 1 : 0;
  }
  EXPECT_GT(stopped, 4'000);
  EXPECT_LT(stopped, 16'000);
}

// What is held back must be the beginning of a stop string or of a character: nothing else waits.
TEST(StopText, NothingIsHeldBackThatIsCertain) {
  std::mt19937 random(8);
  const Strings stops = {"aba", "bb€", "→→"};
  for (int round = 0; round < 5'000; ++round) {
    StopText stop(stops);
    std::string text, all;
    while (!stop.stopped() && all.size() < 30) {
      static const Strings kCharacters = {"a", "b", "€", "→"};
      const std::string c = kCharacters[random() % kCharacters.size()];
      all += c;
      if (stop.push(c, &text)) break;
      const std::string held = all.substr(text.size());
      bool begins = held.empty();
      for (const std::string& s : stops) begins = begins || s.compare(0, held.size(), held) == 0;
      ASSERT_TRUE(begins) << held;
    }
  }
}

}  // namespace
}  // namespace headrace
