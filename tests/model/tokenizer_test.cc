#include <random>

#include "headrace/model/tokenizer_stream.h"
#include "tokenizer_test_util.h"

namespace headrace {
namespace {

constexpr int32_t kHello = 259, kSpaceHello = 260, kStart = 262, kEnd = 263, kTool = 264;

TEST(Tokenizer, MergesByRankAndDecodesBack) {
  const Tokenizer t = must_build(byte_vocabulary());
  EXPECT_EQ(must_encode(t, "hello hello"), (Ids{kHello, kSpaceHello}));
  EXPECT_EQ(must_encode(t, "aaa"), (Ids{261, 'a'}));  // of equal pairs the left one first
  EXPECT_EQ(t.decode({kHello, kSpaceHello}, false), "hello hello");
}

TEST(Tokenizer, AddsTheTokensAskedFor) {
  const Tokenizer t = must_build(byte_vocabulary());
  EncodeOptions options;
  options.add_bos = options.add_eos = true;
  EXPECT_EQ(must_encode(t, "hello", options), (Ids{kStart, kHello, kEnd}));
  EXPECT_EQ(must_encode(t, "", options), (Ids{kStart, kEnd}));
}

TEST(Tokenizer, SpecialTokensAreMatchedOnlyWhereAsked) {
  const Tokenizer t = must_build(byte_vocabulary());
  EncodeOptions special;
  special.parse_special = true;
  EXPECT_EQ(must_encode(t, "<|s|>hello<|e|>", special), (Ids{kStart, kHello, kEnd}));
  const Ids typed = must_encode(t, "<|s|>");
  EXPECT_EQ(typed.size(), 5u);
  EXPECT_EQ(t.decode(typed, false), "<|s|>");
  // An added token is no special token.
  EXPECT_EQ(must_encode(t, "<tool>hello"), (Ids{kTool, kHello}));
}

TEST(Tokenizer, TextOfAUserNeverBecomesASpecialToken) {
  const Tokenizer t = must_build(byte_vocabulary());
  EncodeOptions special;
  special.parse_special = true;
  const auto ids =
      t.encode({{"<|s|>", true}, {"<|e|>", false}, {"<|e|>", true}}, special);
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(ids->front(), kStart);
  EXPECT_EQ(ids->back(), kEnd);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), kEnd), 1);
  // Halves of a marker by different authors make none either.
  for (const bool first : {true, false}) {
    const auto split = t.encode({{"<|e", first}, {"|>", !first}}, special);
    ASSERT_TRUE(split.ok());
    EXPECT_EQ(std::count(split->begin(), split->end(), kEnd), 0);
    EXPECT_EQ(t.decode(*split, false), "<|e|>");
  }
  const auto joined = t.encode({{"<|e", true}, {"|>", true}}, special);
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(*joined, Ids{kEnd});
}

TEST(Tokenizer, WhereTextIsDividedDoesNotMatter) {
  const Tokenizer t = must_build(byte_vocabulary());
  const std::string text = "hello hello <tool> \xE4\xBD\xA0\xE5\xA5\xBD";
  const Ids whole = must_encode(t, text);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto ids =
        t.encode({{text.substr(0, cut), true}, {text.substr(cut), false}}, {});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, whole) << cut;
  }
}

TEST(Tokenizer, UserDefinedMarkersCountAsSpecial) {
  Vocabulary v = byte_vocabulary();
  v.tokens.push_back("<|im_end|>");
  v.kinds.push_back(TokenKind::kUserDefined);
  const Tokenizer t = must_build(std::move(v));
  const int32_t id = t.find("<|im_end|>");
  EXPECT_TRUE(t.is_special(id));
  EXPECT_TRUE(t.is_end_of_generation(id));
  EXPECT_GT(must_encode(t, "<|im_end|>").size(), 1u);
}

TEST(Tokenizer, MergingNeverYieldsASpecialToken) {
  // "<" + "/s>" would make "</s>", were it an ordinary token.
  Vocabulary v;
  v.model = TokenizerModel::kScoredChars;
  for (const char* text : {"<unk>", "</s>", "<", "/", "s", ">", "/s", "/s>", "</s"})
    v.tokens.push_back(text);
  v.scores = {0, 0, -1, -2, -3, -4, -5, -6, -7};
  v.kinds.assign(9, TokenKind::kNormal);
  v.kinds[0] = TokenKind::kUnknown;
  v.kinds[1] = TokenKind::kControl;
  v.unk = 0;
  v.eos = 1;
  const Tokenizer t = must_build(std::move(v));
  EXPECT_EQ(must_encode(t, "</s>"), (Ids{2, 7}));
  EXPECT_EQ(must_encode(t, "<unk>"), (Ids{2, 0, 0, 0, 5}));
}

TEST(Tokenizer, BrokenUtf8IsKeptByteForByte) {
  const Tokenizer t = must_build(byte_vocabulary());
  for (const std::string& text :
       {std::string("\xFF"), std::string("a\x80\x80 b"), std::string("\xE4\xBD"),
        std::string("hello\xC0\xAFhello"), std::string("\xED\xA0\x80"),
        std::string("\0x\0", 3), std::string("\xF0\x9F\x98 hello")})
    EXPECT_EQ(t.decode(must_encode(t, text), false), text);
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 40, '\0');
    for (char& c : text)
      c = static_cast<char>(random() % 3 ? random() : "hello <|"[random() % 8]);
    EXPECT_EQ(t.decode(must_encode(t, text), false), text);
  }
}

TEST(Tokenizer, LongWordsAreNotQuadratic) {
  const Tokenizer t = must_build(byte_vocabulary());
  // 512 KB without a space: a quadratic merge would need minutes.
  const std::string text(1 << 19, 'a');
  EXPECT_EQ(must_encode(t, text).size(), text.size() / 2);
  Vocabulary v;
  v.model = TokenizerModel::kScoredChars;
  v.tokens.push_back("a");
  v.tokens.push_back("aa");
  v.tokens.push_back("<unk>");
  v.scores = {0, -1, 0};
  v.unk = 2;
  EXPECT_EQ(must_encode(must_build(std::move(v)), text).size(), text.size() / 2);
}

TEST(Tokenizer, WholeWordsComeFirstWhereTheModelSaysSo) {
  Vocabulary v = byte_vocabulary();
  v.tokens.push_back("xyz");  // no merge leads here
  v.kinds.push_back(TokenKind::kNormal);
  Vocabulary merged = v;
  v.whole_words_first = true;
  EXPECT_EQ(must_encode(must_build(std::move(v)), "xyz"), Ids{265});
  EXPECT_EQ(must_encode(must_build(std::move(merged)), "xyz").size(), 3u);
}

TEST(Tokenizer, TokensCanSwallowTheSpaceBesideThem) {
  Vocabulary v = byte_vocabulary();
  v.trims.assign(v.tokens.size(), kTrimNone);
  v.trims[kTool] = kTrimLeft | kTrimRight;
  const Tokenizer t = must_build(std::move(v));
  EXPECT_EQ(must_encode(t, "hello \n <tool>  hello"), (Ids{kHello, kTool, kHello}));
}

TEST(Tokenizer, ASpacePrefixGoesBeforeTheTextAndIsTakenOffAgain) {
  Vocabulary v;
  v.model = TokenizerModel::kScoredChars;
  for (const char* text : {"<unk>", "\xE2\x96\x81", "a",
                           "\xE2\x96\x81"
                           "a",
                           "<|s|>", "<0x0A>"})
    v.tokens.push_back(text);
  v.scores = {0, -2, -3, -1, 0, 0};
  v.kinds = {TokenKind::kUnknown, TokenKind::kNormal,  TokenKind::kNormal,
             TokenKind::kNormal,  TokenKind::kControl, TokenKind::kByte};
  v.escape_spaces = v.add_space_prefix = true;
  v.unk = 0;
  const Tokenizer t = must_build(std::move(v));
  EXPECT_EQ(must_encode(t, "a a"), (Ids{3, 3}));
  EXPECT_EQ(t.decode({3, 3}, false), "a a");
  EXPECT_EQ(must_encode(t, "a\n"), (Ids{3, 5}));
  EXPECT_EQ(t.decode({3, 5}, false), "a\n");
  EXPECT_EQ(must_encode(t, ""), Ids{});
  EncodeOptions special;
  special.parse_special = true;
  EXPECT_EQ(must_encode(t, "<|s|>a", special), (Ids{4, 3}));
  EXPECT_EQ(must_encode(t, "z", special), (Ids{1, 0}));  // no byte token: unknown
  EncodeOptions follows;
  follows.follows = true;
  EXPECT_EQ(must_encode(t, "a a", follows), (Ids{2, 3}));
}

Status build_error(const Vocabulary& v) {
  auto t = Tokenizer::build(v);
  EXPECT_FALSE(t.ok());
  return t.status();
}

TEST(Tokenizer, BadVocabulariesAreRefusedByName) {
  Vocabulary v = byte_vocabulary();
  v.pre = "no-such-pre";
  EXPECT_EQ(build_error(v).code(), Code::kUnsupported);
  EXPECT_NE(build_error(v).message().find("no-such-pre"), std::string::npos);
  v = byte_vocabulary();
  v.merges.push_back("q zzz");
  EXPECT_EQ(build_error(v).code(), Code::kBadFile);
  EXPECT_NE(build_error(v).message().find("q zzz"), std::string::npos);
  v = byte_vocabulary();
  v.kinds.pop_back();
  EXPECT_EQ(build_error(v).code(), Code::kBadFile);
  v = byte_vocabulary();
  v.eos = 100000;
  EXPECT_EQ(build_error(v).code(), Code::kBadFile);
  v = byte_vocabulary();
  v.kinds[3] = static_cast<TokenKind>(9);
  EXPECT_EQ(build_error(v).code(), Code::kBadFile);
  v = byte_vocabulary();
  v.model = TokenizerModel::kScoredChars;
  EXPECT_EQ(build_error(v).code(), Code::kBadFile);
  EXPECT_EQ(build_error(Vocabulary()).code(), Code::kBadFile);
  v = byte_vocabulary();
  v.split_patterns = {"(unclosed"};
  EXPECT_EQ(build_error(v).code(), Code::kUnsupported);
}

TEST(StreamDecoder, EmitsWholeCharactersOnly) {
  const Tokenizer t = must_build(byte_vocabulary());
  const std::string text = "h\xC3\xA9 \xF0\x9F\x98\x80!";
  StreamDecoder decoder(t, {});
  std::string out;
  for (const char c : text) {
    const std::string part = decoder.push(must_encode(t, std::string(1, c))[0]);
    EXPECT_EQ(valid_utf8(part), part);
    out += part;
  }
  EXPECT_EQ(out + decoder.finish(), text);
}

TEST(StreamDecoder, ReplacesBrokenPartsLikePython) {
  // Expected: Python's bytes.decode("utf-8", errors="replace").
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(valid_utf8("a\xFF"
                       "b"),
            "a" + r + "b");
  EXPECT_EQ(valid_utf8("\xE4\xBD"), r);
  EXPECT_EQ(valid_utf8("\xE4\xBD"
                       "a"),
            r + "a");
  EXPECT_EQ(valid_utf8("\xF0\x9F\x98\xF0\x9F\x98\x80"), r + "\xF0\x9F\x98\x80");
  EXPECT_EQ(valid_utf8("\xED\xA0\x80"), r + r + r);
  EXPECT_EQ(valid_utf8("\xC0\xAF"), r + r);
  EXPECT_EQ(valid_utf8("\xF5\x80"), r + r);
}

TEST(StreamDecoder, AgreesWithDecodingAtOnceForAnyBytes) {
  const Tokenizer t = must_build(byte_vocabulary());
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    StreamDecoder decoder(t, {});
    std::string out;
    for (int i = 0; i < 12; ++i) {
      const char c = static_cast<char>(
          "\xF0\x9F\x98\x80\xE4\xBD\xA0"
          "a\xFF\xC3\xED\xA0"[random() % 12]);
      bytes += c;
      std::string alphabet;
      append_alphabet(static_cast<uint8_t>(c), &alphabet);
      out += decoder.push(t.find(alphabet));
    }
    EXPECT_EQ(out + decoder.finish(), valid_utf8(bytes));
  }
}

TEST(StreamDecoder, HidesOrShowsSpecialTokens) {
  const Tokenizer t = must_build(byte_vocabulary());
  StreamDecoder hiding(t, {});
  EXPECT_EQ(hiding.push(kStart) + hiding.push(kHello) + hiding.push(kTool),
            "hello<tool>");
  StreamOptions show;
  show.show_special = true;
  StreamDecoder showing(t, show);
  EXPECT_EQ(showing.push(kStart) + showing.push(kHello), "<|s|>hello");
  EXPECT_EQ(hiding.push(-1) + hiding.push(1 << 30), "");
}

}  // namespace
}  // namespace headrace
