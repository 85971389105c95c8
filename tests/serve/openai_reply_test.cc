// Replies in OpenAI's shape, field by field.
#include "headrace/serve/openai_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "headrace/model/unicode.h"

namespace headrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ReplyHead head(bool chat) { return {.id = "id-1", .created = 12, .model = "m", .chat = chat}; }

// The JSON of one server-sent event.
Json event(const std::string& text) {
  EXPECT_EQ(text.substr(0, 6), "data: ");
  EXPECT_EQ(text.substr(text.size() - 2), "\n\n");
  const std::string json = text.substr(6, text.size() - 8);
  EXPECT_EQ(json.find('\n'), json.npos);
  return Json::parse(json);
}

std::vector<TokenLogprobs> euro_in_two_tokens() {
  return {{{"\xE2\x82", -0.5}, {{"\xE2\x82", -0.5}, {"a", -1.5}}},
          {{"\xAC", -std::numeric_limits<double>::infinity()}, {{"b", -0.25}}}};
}

TEST(OpenaiReply, AChatCompletionHasItsShape) {
  const ReplyChoice choices[] = {
      {.index = 0, .text = "hi €", .finish = Finish::kStop},
      {.index = 1, .text = "", .finish = Finish::kLength, .with_logprobs = true}};
  const Json got = Json::parse(reply_body(
      head(true), choices, {.prompt_tokens = 10, .cached_tokens = 4, .completion_tokens = 3}));
  EXPECT_EQ(got, Json::parse(R"({"id":"id-1","object":"chat.completion","created":12,"model":"m",
    "choices":[
      {"index":0,"message":{"role":"assistant","content":"hi €","refusal":null},"logprobs":null,
       "finish_reason":"stop"},
      {"index":1,"message":{"role":"assistant","content":"","refusal":null},
       "logprobs":{"content":[],"refusal":null},"finish_reason":"length"}],
    "usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13,
             "prompt_tokens_details":{"cached_tokens":4}}})"));
}

TEST(OpenaiReply, ATextCompletionHasItsShape) {
  const ReplyChoice choices[] = {{.index = 0, .text = "hi", .finish = Finish::kLength}};
  EXPECT_EQ(Json::parse(reply_body(head(false), choices, {})),
            Json::parse(R"({"id":"id-1","object":"text_completion","created":12,"model":"m",
    "choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":"length"}],
    "usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,
             "prompt_tokens_details":{"cached_tokens":0}}})"));
}

TEST(OpenaiReply, LogprobsOfChatsNameEachTokenWithItsBytes) {
  const ReplyChoice choices[] = {
      {.text = "€", .with_logprobs = true, .logprobs = euro_in_two_tokens()}};
  const Json got = Json::parse(reply_body(head(true), choices, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(got, Json::parse(R"({"content":[
    {"token":"\ufffd","logprob":-0.5,"bytes":[226,130],"top_logprobs":[
      {"token":"\ufffd","logprob":-0.5,"bytes":[226,130]},
      {"token":"a","logprob":-1.5,"bytes":[97]}]},
    {"token":"\ufffd","logprob":-9999.0,"bytes":[172],"top_logprobs":[
      {"token":"b","logprob":-0.25,"bytes":[98]}]}],"refusal":null})"));
}

TEST(OpenaiReply, LogprobsOfCompletionsAreFourLists) {
  const ReplyChoice choices[] = {{.text = "xy€",
                                  .with_logprobs = true,
                                  .logprobs = euro_in_two_tokens(),
                                  .offset = TextOffset("xy")}};
  const Json got = Json::parse(reply_body(head(false), choices, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(got, Json::parse(R"({"tokens":["bytes:\\xe2\\x82","bytes:\\xac"],
    "token_logprobs":[-0.5,-9999.0],
    "top_logprobs":[{"bytes:\\xe2\\x82":-0.5,"a":-1.5},{"b":-0.25,"bytes:\\xac":-9999.0}],
    "text_offset":[2,2]})"));
}

TEST(OpenaiReply, WithoutAlternativesTheirListIsNull) {
  const ReplyChoice choices[] = {
      {.text = "a", .with_logprobs = true, .logprobs = {{{"a", -1}, {}}}}};
  const Json got = Json::parse(reply_body(head(false), choices, {}))["choices"][0]["logprobs"];
  EXPECT_EQ(got, Json::parse(R"({"tokens":["a"],"token_logprobs":[-1.0],"top_logprobs":null,
    "text_offset":[0]})"));
}

TEST(OpenaiReply, TextOffsetsCountCharacters) {
  TextOffset offset("é€");
  EXPECT_EQ(offset.next("ab"), 2);
  EXPECT_EQ(offset.next("😀"), 4);
  EXPECT_EQ(offset.next(""), 5);
  EXPECT_EQ(offset.next("\xE2"), 5);
  EXPECT_EQ(offset.next("\x82"), 5);
  EXPECT_EQ(offset.next("\xAC!"), 5);
  EXPECT_EQ(offset.next("x"), 7);
  EXPECT_EQ(TextOffset().next("\x80"), 0);
}

TEST(OpenaiReply, AChatStreamNamesItsRoleThenTextThenItsEnd) {
  EXPECT_EQ(event(stream_begin(head(true), 1)),
            Json::parse(R"({"id":"id-1","object":"chat.completion.chunk","created":12,"model":"m",
    "choices":[{"index":1,"delta":{"role":"assistant","content":"","refusal":null},
                "logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(event(stream_text(head(true), 1, "a\nb")),
            Json::parse(R"({"id":"id-1","object":"chat.completion.chunk","created":12,"model":"m",
    "choices":[{"index":1,"delta":{"content":"a\nb"},"logprobs":null,"finish_reason":null}]})"));
  EXPECT_EQ(event(stream_end(head(true), 1, Finish::kStop)),
            Json::parse(R"({"id":"id-1","object":"chat.completion.chunk","created":12,"model":"m",
    "choices":[{"index":1,"delta":{},"logprobs":null,"finish_reason":"stop"}]})"));
  EXPECT_EQ(kStreamDone, "data: [DONE]\n\n");
}

TEST(OpenaiReply, ACompletionStreamIsTextAndItsEnd) {
  EXPECT_EQ(stream_begin(head(false), 0), "");
  const std::vector<TokenLogprobs> logprobs = {{{"a", -1}, {}}};
  TextOffset offset;
  for (int64_t at = 0; at < 2; ++at) {
    const Json got = event(stream_text(head(false), 0, "a", &logprobs, &offset));
    EXPECT_EQ(got["object"], "text_completion");
    EXPECT_EQ(got["choices"][0]["text"], "a");
    EXPECT_EQ(got["choices"][0]["logprobs"]["text_offset"], Json::array({at}));
    EXPECT_TRUE(got["choices"][0]["finish_reason"].is_null());
  }
  const Json end = event(stream_end(head(false), 0, Finish::kLength));
  EXPECT_EQ(end["choices"][0]["text"], "");
  EXPECT_EQ(end["choices"][0]["finish_reason"], "length");
}

TEST(OpenaiReply, UsageComesInAChunkOfItsOwnWhenItIsAskedFor) {
  ReplyHead h = head(true);
  EXPECT_FALSE(event(stream_text(h, 0, "a")).contains("usage"));
  h.include_usage = true;
  for (const std::string& text :
       {stream_begin(h, 0), stream_text(h, 0, "a"), stream_end(h, 0, Finish::kStop)}) {
    const Json chunk = event(text);
    EXPECT_TRUE(chunk.contains("usage") && chunk["usage"].is_null());
  }
  ReplyUsage usage;
  JobUsage job;
  job.prompt_tokens = 5;
  job.cached_tokens = 3;
  job.completion_tokens = 2;
  usage += job;
  usage += job;
  const Json last = event(stream_usage(h, usage));
  EXPECT_EQ(last["object"], "chat.completion.chunk");
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"], Json::parse(R"({"prompt_tokens":10,"completion_tokens":4,
    "total_tokens":14,"prompt_tokens_details":{"cached_tokens":6}})"));
}

TEST(OpenaiReply, EverythingIsValidUtf8) {
  ReplyHead h = head(true);
  h.model = "m\xff";
  const ReplyChoice choices[] = {{.text = "a\xE2\x82z\xff",
                                  .with_logprobs = true,
                                  .logprobs = {{{"\xff", -1}, {{"\xC0", -1}}}}}};
  for (bool chat : {true, false}) {
    h.chat = chat;
    for (const std::string& text :
         {reply_body(h, choices, {}), stream_text(h, 0, "\xE2\x82", &choices[0].logprobs,
                                                  std::make_unique<TextOffset>().get()),
          stream_error({500, "\xff", "\xfe", "\xfd"}), detokenize_body("\x80")}) {
      EXPECT_EQ(utf8_valid_prefix(text), text.size());
    }
  }
  EXPECT_EQ(Json::parse(reply_body(h, choices, {}))["choices"][0]["text"], "a\uFFFDz\uFFFD");
}

TEST(OpenaiReply, ModelsTokensAndTextsHaveTheirShapes) {
  const ModelCard cards[] = {{"m", 5, 2048}};
  const Json one = Json::parse(
      R"({"id":"m","object":"model","created":5,"owned_by":"headrace","max_model_len":2048})");
  EXPECT_EQ(Json::parse(model_body(cards[0])), one);
  EXPECT_EQ(Json::parse(models_body(cards)),
            (Json{{"object", "list"}, {"data", Json::array({one})}}));
  EXPECT_EQ(Json::parse(models_body({}))["data"], Json::array());
  EXPECT_EQ(tokenize_body(std::vector<int32_t>{1, 2}), R"({"tokens":[1,2],"count":2})");
  EXPECT_EQ(tokenize_body({}), R"({"tokens":[],"count":0})");
  EXPECT_EQ(detokenize_body("a\""), R"({"content":"a\""})");
}

TEST(OpenaiReply, ErrorsHaveTheStatusAndShapeOfTheirKind) {
  EXPECT_EQ(Json::parse(error_body(ApiError{400, "bad", "stop", ""})),
            Json::parse(R"({"error":{"message":"bad","type":"invalid_request_error",
                            "param":"stop","code":null}})"));
  EXPECT_EQ(event(stream_error({503, "disk", "", "io_error"}))["error"]["type"], "server_error");
  EXPECT_EQ(api_error(error(Code::kUsage, "x")).status, 400);
  EXPECT_EQ(api_error(error(Code::kDoesNotFit, "x")).status, 400);
  EXPECT_EQ(api_error(error(Code::kDoesNotFit, "x")).code, "context_length_exceeded");
  EXPECT_EQ(api_error(error(Code::kIo, "x")).status, 503);
  for (Code code : {Code::kBadFile, Code::kUnsupported, Code::kNotFinite, Code::kCancelled}) {
    EXPECT_EQ(api_error(error(code, "x")).status, 500);
  }
  Refusal busy;
  busy.kind = Refusal::Kind::kBusy;
  busy.status = error(Code::kDoesNotFit, "256 jobs wait");
  EXPECT_EQ(api_error(busy).status, 429);
  EXPECT_EQ(Json::parse(error_body(api_error(busy)))["error"]["type"], "rate_limit_error");
  busy.kind = Refusal::Kind::kDraining;
  EXPECT_EQ(api_error(busy).status, 503);
  busy.kind = Refusal::Kind::kNever;
  EXPECT_EQ(api_error(busy).code, "context_length_exceeded");
  EXPECT_THAT(api_error(busy).message, HasSubstr("256"));
}

}  // namespace
}  // namespace headrace
