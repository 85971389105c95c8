// Requests in OpenAI's shape: what is read, and what is refused and how.
#include "headrace/serve/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace headrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kHello = R"("messages":[{"role":"user","content":"hi"}])";

GenerateLimits limits() {
  GenerateLimits l;
  l.vocab = 1000;
  l.most_n = 4;
  l.most_prompts = 3;
  return l;
}

std::string chat_with(const std::string& fields) {
  return "{" + std::string(kHello) + (fields.empty() ? "" : ",") + fields + "}";
}
std::string completion_with(const std::string& fields) {
  return R"({"prompt":"hi")" + std::string(fields.empty() ? "" : ",") + fields + "}";
}

template <typename T>
T accepted(Parsed<T> parsed) {
  if (const ApiError* e = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << e->param << ": " << e->message;
    return {};
  }
  return std::move(std::get<T>(parsed));
}
template <typename T>
ApiError refused(const Parsed<T>& parsed) {
  if (const ApiError* e = std::get_if<ApiError>(&parsed)) {
    EXPECT_FALSE(e->message.empty());
    return *e;
  }
  ADD_FAILURE() << "accepted";
  return {};
}
GenerateRequest chat(const std::string& fields) {
  return accepted(parse_chat(chat_with(fields), limits()));
}
GenerateRequest completion(const std::string& fields) {
  return accepted(parse_completion(completion_with(fields), limits()));
}
GenerateRequest prompt(const std::string& value) {
  return accepted(parse_completion("{\"prompt\":" + value + "}", limits()));
}

// Both endpoints refuse `fields`, with that param.
void expect_refused(const std::string& fields, const std::string& param,
                    const std::string& says = "") {
  for (const auto& parsed : {parse_chat(chat_with(fields), limits()),
                             parse_completion(completion_with(fields), limits())}) {
    const ApiError e = refused(parsed);
    EXPECT_EQ(e.param, param) << fields;
    EXPECT_EQ(e.status, 400) << fields;
    EXPECT_THAT(e.message, HasSubstr(says)) << fields;
  }
}
void expect_chat_refused(const std::string& fields, const std::string& param,
                         const std::string& says = "") {
  const ApiError e = refused(parse_chat(chat_with(fields), limits()));
  EXPECT_EQ(e.param, param) << fields;
  EXPECT_THAT(e.message, HasSubstr(says)) << fields;
}
void expect_completion_refused(const std::string& fields, const std::string& param,
                               const std::string& says = "") {
  const ApiError e = refused(parse_completion(completion_with(fields), limits()));
  EXPECT_EQ(e.param, param) << fields;
  EXPECT_THAT(e.message, HasSubstr(says)) << fields;
}
void expect_messages_refused(const std::string& messages, const std::string& param,
                             const std::string& says = "") {
  const ApiError e = refused(parse_chat("{\"messages\":" + messages + "}", limits()));
  EXPECT_EQ(e.param, param) << messages;
  EXPECT_THAT(e.message, HasSubstr(says)) << messages;
}

TEST(OpenaiRequest, ABareChatGetsTheDefaults) {
  const GenerateRequest r = chat("");
  EXPECT_TRUE(r.chat);
  ASSERT_EQ(r.messages.size(), 1u);
  EXPECT_EQ(r.messages[0].role, "user");
  EXPECT_EQ(r.messages[0].content, "hi");
  EXPECT_EQ(r.messages_json, R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(r.model, "");
  EXPECT_EQ(r.max_tokens, -1);
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.stream || r.include_usage || r.echo || r.seed_given || r.ignore_end);
  EXPECT_TRUE(r.stop.empty());
  EXPECT_EQ(r.sampling.temperature, 1) << "as OpenAI's";
  EXPECT_EQ(r.sampling.top_p, 1);
  EXPECT_EQ(r.logprobs, -1);
}

TEST(OpenaiRequest, EveryFieldOfAChatIsRead) {
  const GenerateRequest r = chat(R"("model":"m","max_completion_tokens":7,"n":4,"stream":true,
    "stream_options":{"include_usage":true,"include_obfuscation":false},"stop":["a","→"],
    "temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":-3,"repeat_penalty":1.1,
    "presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"10":-100,"9":1.5},
    "logprobs":true,"top_logprobs":5,"user":"u","priority":3,"ignore_eos":true,
    "response_format":{"type":"text"},"tools":[],"tool_choice":"none","modalities":["text"],
    "store":true,"something_new":{"a":[1]})");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.n, 4);
  EXPECT_TRUE(r.stream && r.include_usage && r.seed_given && r.ignore_end);
  EXPECT_THAT(r.stop, ElementsAre("a", "→"));
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.top_p, 0.9);
  EXPECT_EQ(r.sampling.top_k, 40);
  EXPECT_EQ(r.sampling.min_p, 0.05);
  EXPECT_EQ(r.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(r.sampling.repeat_penalty, 1.1);
  EXPECT_EQ(r.sampling.presence_penalty, -2);
  EXPECT_EQ(r.sampling.frequency_penalty, 2);
  EXPECT_THAT(r.sampling.logit_bias, ElementsAre(LogitBias{9, 1.5f}, LogitBias{10, -100}));
  EXPECT_TRUE(check(r.sampling, 1000).ok());
  EXPECT_EQ(r.logprobs, 5);
  EXPECT_EQ(r.priority, 3);
}

TEST(OpenaiRequest, EveryFieldOfACompletionIsRead) {
  const GenerateRequest r = completion(
      R"("max_tokens":1,"echo":true,"n":2,"best_of":2,"suffix":"","stop":"x",
         "seed":18446744073709551615)");
  EXPECT_FALSE(r.chat);
  ASSERT_EQ(r.prompts.size(), 1u);
  EXPECT_EQ(r.prompts[0].text, "hi");
  EXPECT_FALSE(r.prompts[0].is_tokens);
  EXPECT_EQ(r.max_tokens, 1);
  EXPECT_TRUE(r.echo);
  EXPECT_THAT(r.stop, ElementsAre("x"));
  EXPECT_EQ(r.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(completion(R"("logprobs":0)").logprobs, 0);
  EXPECT_EQ(completion(R"("logprobs":20)").logprobs, 20);
  EXPECT_EQ(completion(R"("tools":[1],"messages":3)").prompts[0].text, "hi") << "not its fields";
}

TEST(OpenaiRequest, NullIsTheSameAsAbsent) {
  const char* const nulls = R"("model":null,"max_tokens":null,"n":null,"stream":null,
    "stream_options":null,"stop":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,
    "seed":null,"presence_penalty":null,"frequency_penalty":null,"repeat_penalty":null,
    "logit_bias":null,"logprobs":null,"top_logprobs":null,"user":null,"priority":null,
    "ignore_eos":null,"tools":null,"functions":null,"tool_choice":null,"response_format":null,
    "modalities":null,"audio":null,"suffix":null,"best_of":null,"echo":null)";
  EXPECT_EQ(chat(nulls).sampling.temperature, 1);
  EXPECT_EQ(completion(nulls).logprobs, -1);
}

TEST(OpenaiRequest, NumbersAreHeldToTheirRangesAndTypes) {
  for (const char* key : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                          "repeat_penalty", "top_k", "n", "max_tokens", "seed", "priority"}) {
    for (const char* value : {R"("1")", "true", "[1]", "{}"}) {
      expect_refused('"' + std::string(key) + "\":" + value, key, "must be");
    }
  }
  const std::pair<const char*, std::vector<const char*>> out_of_range[] = {
      {"temperature", {"-0.1", "2.1", "1e300", "99999999999999999999999"}},
      {"top_p", {"-0.001", "-1", "1.0001"}},
      {"min_p", {"-0.01", "1.01"}},
      {"presence_penalty", {"-2.01", "2.01"}},
      {"frequency_penalty", {"-2.01", "2.01"}},
      {"repeat_penalty", {"0", "-1", "101"}},
      {"top_k", {"-2", "2147483648", "9223372036854775808", "1.5", "1e30"}},
      {"n", {"0", "-1", "5", "5.0", "1.5", "18446744073709551615"}},
      {"max_tokens", {"0", "-1", "-1.0", "-9223372036854775808", "-99999999999999999999", "2.5",
                      "9007199254740994.0"}},
      {"seed", {"0.5", "1e3", "99999999999999999999999"}},
      {"priority", {"1001", "-1001"}},
  };
  for (const auto& [key, values] : out_of_range) {
    for (const char* value : values) {
      expect_refused('"' + std::string(key) + "\":" + value, key, "must be");
    }
  }
  expect_chat_refused(R"("max_completion_tokens":0)", "max_completion_tokens");
  expect_chat_refused(R"("max_completion_tokens":2,"max_tokens":3)", "max_completion_tokens");
  EXPECT_EQ(chat(R"("max_completion_tokens":2,"max_tokens":2)").max_tokens, 2);
  EXPECT_EQ(chat(R"("temperature":0)").sampling.temperature, 0);
  EXPECT_EQ(chat(R"("temperature":2)").sampling.temperature, 2);
}

TEST(OpenaiRequest, WhatClientsOfOtherServersSendForNothingIsTaken) {
  // JSON has one kind of number: sliders of pages and Lua send whole ones with a point.
  EXPECT_EQ(chat(R"("max_tokens":256.0)").max_tokens, 256);
  EXPECT_EQ(completion(R"("n":2e0)").n, 2);
  EXPECT_EQ(chat(R"("top_p":0)").sampling.top_p, 0);  // OpenAI's range begins with 0
  EXPECT_EQ(chat(R"("top_k":-1)").sampling.top_k, 0);  // all, as vLLM writes it
  EXPECT_EQ(completion(R"("repetition_penalty":1.25)").sampling.repeat_penalty, 1.25);
  expect_refused(R"("repetition_penalty":1.25,"repeat_penalty":1.2)", "repetition_penalty");
  expect_refused(R"("repetition_penalty":0)", "repetition_penalty");
  chat(R"("tools":[],"tool_choice":"auto","functions":[],"function_call":"auto")");
  chat(R"("parallel_tool_calls":false,"store":true,"metadata":{"a":"b"},"service_tier":"auto",
          "reasoning_effort":"low","verbosity":"low","safety_identifier":"x",
          "prompt_cache_key":"k","prediction":null,"extra_body":{})");
  completion(R"("grammar":"","json_schema":null,"guided_json":null,"stop_token_ids":[],
                "min_tokens":0,"use_beam_search":false,"bad_words":[])");
}

TEST(OpenaiRequest, WhatIsNoNumberInJsonIsRefused) {
  for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999", "+1", "01", ".5",
                            "1.", "0x10", "1_000", "'1'"}) {
    expect_refused("\"temperature\":" + std::string(value), "", "at byte");
  }
}

TEST(OpenaiRequest, FlagsAndTextsAreHeldToTheirTypes) {
  for (const char* key : {"stream", "ignore_eos"}) {
    for (const char* value : {"1", R"("true")", "[]"}) {
      expect_refused('"' + std::string(key) + "\":" + value, key, "a boolean");
    }
  }
  for (const char* key : {"model", "user"}) {
    for (const char* value : {"1", "false", "{}"}) {
      expect_refused('"' + std::string(key) + "\":" + value, key, "a string");
    }
  }
  expect_completion_refused(R"("echo":"yes")", "echo", "a boolean");
}

TEST(OpenaiRequest, StreamOptionsNeedAStream) {
  expect_refused(R"("stream_options":{"include_usage":true})", "stream_options",
                 "\"stream\": true");
  expect_refused(R"("stream":true,"stream_options":[])", "stream_options");
  expect_refused(R"("stream":true,"stream_options":{"include_usage":1})",
                 "stream_options.include_usage");
  EXPECT_FALSE(chat(R"("stream":true,"stream_options":{})").include_usage);
}

TEST(OpenaiRequest, StopIsAStringOrUpToSixteenOfThem) {
  EXPECT_TRUE(chat(R"("stop":[])").stop.empty());
  expect_refused(R"("stop":"")", "stop", "1 to 1024 bytes");
  expect_refused(R"("stop":["a",""])", "stop[1]");
  expect_refused(R"("stop":["a",null])", "stop[1]");
  expect_refused(R"("stop":5)", "stop");
  expect_refused(R"("stop":{"a":1})", "stop");
  expect_refused("\"stop\":\"" + std::string(1025, 'x') + "\"", "stop");
  Json many = Json::array();
  for (int i = 0; i < 16; ++i) many.push_back("s");
  EXPECT_EQ(chat("\"stop\":" + many.dump()).stop.size(), 16u);
  many.push_back("s");
  expect_refused("\"stop\":" + many.dump(), "stop", "at most 16");
}

TEST(OpenaiRequest, BiasesAreKeyedByTokensOfTheVocabulary) {
  for (const char* key : {"", "a", "-1", "1000", "1.0", "01", " 1", "99999999999999999999"}) {
    expect_refused("\"logit_bias\":{\"" + std::string(key) + "\":1}", "logit_bias", "token ids");
  }
  expect_refused(R"("logit_bias":{"5":101})", "logit_bias.5");
  expect_refused(R"("logit_bias":{"5":-100.5})", "logit_bias.5");
  expect_refused(R"("logit_bias":{"5":"1"})", "logit_bias.5");
  expect_refused(R"("logit_bias":{"5":null})", "logit_bias.5");
  expect_refused(R"("logit_bias":[1])", "logit_bias");
  Json many = Json::object();
  for (int i = 0; i < 1025; ++i) many[std::to_string(i)] = 1;
  expect_refused("\"logit_bias\":" + many.dump(), "logit_bias");
  EXPECT_TRUE(chat(R"("logit_bias":{})").sampling.logit_bias.empty());
}

TEST(OpenaiRequest, LogprobsHaveTheShapeOfTheirEndpoint) {
  EXPECT_EQ(chat(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs":false)").logprobs, -1);
  EXPECT_EQ(chat(R"("logprobs":false,"top_logprobs":0)").logprobs, -1);
  expect_chat_refused(R"("logprobs":1)", "logprobs");
  expect_chat_refused(R"("logprobs":true,"top_logprobs":21)", "top_logprobs");
  expect_chat_refused(R"("logprobs":true,"top_logprobs":-1)", "top_logprobs");
  expect_chat_refused(R"("top_logprobs":2)", "top_logprobs", "\"logprobs\": true");
  expect_completion_refused(R"("logprobs":true)", "logprobs");
  expect_completion_refused(R"("logprobs":21)", "logprobs");
  expect_completion_refused(R"("logprobs":-1)", "logprobs");
  expect_completion_refused(R"("logprobs":1,"echo":true)", "echo", "not supported");
}

TEST(OpenaiRequest, WhatIsNotSupportedIsRefusedByName) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"tools", R"([{"type":"function"}])"}, {"tools", "1"}, {"functions", R"([{}])"},
           {"tool_choice", R"("required")"}, {"tool_choice", "{}"}, {"function_call", "{}"},
           {"modalities", R"(["text","audio"])"}, {"modalities", R"("text")"},
           {"audio", R"({"voice":"x"})"}, {"web_search_options", "{}"},
           {"response_format", R"({"type":"json_object"})"},
           {"response_format", R"({"type":"json_schema","json_schema":{}})"},
           {"response_format", "{}"}}) {
    expect_chat_refused('"' + key + "\":" + value, key, "not supported");
  }
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"grammar", R"("root ::= x")"}, {"json_schema", R"({"type":"object"})"},
           {"guided_choice", R"(["a"])"}, {"structured_outputs", R"({"regex":"a"})"},
           {"stop_token_ids", "[2]"}, {"min_tokens", "4"}, {"continue_final_message", "true"}}) {
    expect_refused('"' + key + "\":" + value, key, "not supported");
  }
  expect_chat_refused(R"("response_format":"text")", "response_format", "must be an object");
  expect_completion_refused(R"("suffix":"end")", "suffix", "not supported");
  expect_completion_refused(R"("best_of":2)", "best_of", "not supported");
  expect_completion_refused(R"("n":3,"best_of":2)", "best_of");
  expect_completion_refused(R"("best_of":"1")", "best_of", "an integer");
}

TEST(OpenaiRequest, ContentsMayBeTextOrPartsOfText) {
  const GenerateRequest r = accepted(parse_chat(R"({"messages":[
    {"role":"developer","content":"be brief"},
    {"role":"user","name":"ann","content":[{"type":"text","text":"a "},
                                           {"type":"text","text":"\"b\""}]},
    {"role":"assistant","content":"","refusal":null,"tool_calls":[]},
    {"role":"system","content":"<|im_end|>\u0000\ud83d\ude00"}]})", limits()));
  ASSERT_EQ(r.messages.size(), 4u);
  EXPECT_EQ(r.messages[0].role, "system");
  EXPECT_EQ(r.messages[1].content, "a \"b\"");
  EXPECT_EQ(r.messages[2].content, "");
  EXPECT_EQ(r.messages[3].content, std::string("<|im_end|>\0😀", 15));
  const Json same = Json::parse(r.messages_json);
  ASSERT_EQ(same.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(same[i]["role"], r.messages[i].role);
    EXPECT_EQ(same[i]["content"], r.messages[i].content);
  }
  EXPECT_EQ(same[1]["name"], "ann");
  EXPECT_FALSE(same[0].contains("name"));
}

TEST(OpenaiRequest, MessagesThatAreNoneAreRefused) {
  expect_messages_refused("[]", "messages");
  expect_messages_refused("null", "messages", "required");
  expect_messages_refused(R"("hi")", "messages");
  expect_messages_refused(R"({"role":"user","content":"x"})", "messages");
  expect_messages_refused(R"(["hi"])", "messages[0]");
  expect_messages_refused(R"([{"content":"x"}])", "messages[0].role", "required");
  expect_messages_refused(R"([{"role":"","content":"x"}])", "messages[0].role");
  expect_messages_refused(R"([{"role":1,"content":"x"}])", "messages[0].role");
  expect_messages_refused(R"([{"role":"robot","content":"x"}])", "messages[0].role", "robot");
  expect_messages_refused(R"([{"role":"tool","content":"x","tool_call_id":"1"}])",
                          "messages[0].role", "not supported");
  const std::string first = R"([{"role":"user","content":"x"},)";
  expect_messages_refused(first + R"({"role":"user"}])", "messages[1].content", "required");
  expect_messages_refused(first + R"({"role":"assistant","content":null}])", "messages[1].content");
  expect_messages_refused(first + R"({"role":"user","content":3}])", "messages[1].content");
  expect_messages_refused(first + R"({"role":"user","content":[]}])", "messages[1].content");
  expect_messages_refused(first + R"({"role":"user","content":["x"]}])", "messages[1].content[0]");
  expect_messages_refused(first + R"({"role":"user","content":[{"text":"x"}]}])",
                          "messages[1].content[0].type");
  expect_messages_refused(first + R"({"role":"user","content":[{"type":"text"}]}])",
                          "messages[1].content[0].text");
  expect_messages_refused(first + R"({"role":"user","content":[{"type":"text","text":1}]}])",
                          "messages[1].content[0].text");
  expect_messages_refused(
      first + R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
      "messages[1].content[0]", "'image_url' are not supported");
  expect_messages_refused(first + R"({"role":"assistant","content":"x","tool_calls":[{}]}])",
                          "messages[1].tool_calls", "not supported");
}

TEST(OpenaiRequest, PromptsAreTextsOrTokens) {
  EXPECT_EQ(prompt(R"("<|im_start|>")").prompts[0].text, "<|im_start|>");
  const GenerateRequest texts = prompt(R"(["a","b","c"])");
  ASSERT_EQ(texts.prompts.size(), 3u);
  EXPECT_EQ(texts.prompts[2].text, "c");
  const GenerateRequest tokens = prompt("[0,5,999]");
  ASSERT_EQ(tokens.prompts.size(), 1u);
  EXPECT_TRUE(tokens.prompts[0].is_tokens);
  EXPECT_THAT(tokens.prompts[0].tokens, ElementsAre(0, 5, 999));
  const GenerateRequest lists = prompt("[[1,2],[3]]");
  ASSERT_EQ(lists.prompts.size(), 2u);
  EXPECT_THAT(lists.prompts[1].tokens, ElementsAre(3));
}

TEST(OpenaiRequest, PromptsThatAreNoneAreRefused) {
  const std::pair<const char*, const char*> wrong[] = {
      {"null", "prompt"},          {R"("")", "prompt"},          {"[]", "prompt"},
      {"3", "prompt"},             {"{}", "prompt"},             {"[[]]", "prompt[0]"},
      {R"(["a",""])", "prompt[1]"},  {R"(["a",[1]])", "prompt"}, {R"(["a",1])", "prompt[1]"},
      {R"([1,"a"])", "prompt[1]"}, {"[1,null]", "prompt[1]"},    {"[1,1000]", "prompt[1]"},
      {"[-1]", "prompt[0]"},       {"[1.0]", "prompt[0]"},       {"[4294967296]", "prompt[0]"},
      {"[18446744073709551615]", "prompt[0]"},                   {"[1e9]", "prompt[0]"},
      {R"(["a","b","c","d"])", "prompt"},                        {"[[1],[[2]]]", "prompt[1][0]"},
      {"[null]", "prompt[0]"}};
  for (const auto& [value, param] : wrong) {
    const ApiError e =
        refused(parse_completion("{\"prompt\":" + std::string(value) + "}", limits()));
    EXPECT_EQ(e.param, param) << value;
  }
  EXPECT_EQ(refused(parse_completion("{}", limits())).param, "prompt");
}

TEST(OpenaiRequest, ABodyThatIsNoJsonObjectIsRefused) {
  for (const char* body : {"", " ", "x", "null", "[]", "\"a\"", "1", "{", "{}}", "{\"a\"}",
                           "{\"a\":1,}", "{'a':1}", "{\"a\":1} x", "// c\n{}", "\"",
                           "{\"a\":\"\n\"}"}) {
    EXPECT_EQ(refused(parse_chat(body, limits())).status, 400) << body;
    EXPECT_EQ(refused(parse_completion(body, limits())).status, 400) << body;
    EXPECT_EQ(refused(parse_tokenize(body, limits())).status, 400) << body;
    EXPECT_EQ(refused(parse_detokenize(body, limits())).status, 400) << body;
  }
}

TEST(OpenaiRequest, BrokenUtf8AndHalfSurrogatesAreRefused) {
  for (const char* text : {"\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const ApiError e = refused(parse_completion(
        "{\"prompt\":\"" + std::string(text) + "\"}", limits()));
    EXPECT_THAT(e.message, HasSubstr("not UTF-8")) << text;
  }
  for (const char* text : {"\\ud800", "\\udc00", "\\ud800x", "\\ud83d\\u0041"}) {
    const ApiError e = refused(parse_completion(
        "{\"prompt\":\"" + std::string(text) + "\"}", limits()));
    EXPECT_THAT(e.message, HasSubstr("surrogate")) << text;
  }
}

TEST(OpenaiRequest, AKeyThatComesTwiceIsRefused) {
  expect_refused(R"("temperature":1,"temperature":2)", "temperature", "twice");
  expect_refused(R"("x":{"a":[{"b":1,"b":1}]})", "b", "twice");
  expect_refused(R"("\u006d":1,"m":2)", "m", "twice");
}

TEST(OpenaiRequest, NestingIsBounded) {
  const auto nested = [](size_t depth) {
    return "\"x\":" + std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(chat(nested(63)).n, 1);
  expect_refused(nested(64), "", "nests deeper than 64");
  expect_refused("\"x\":" + std::string(1'000'000, '['), "", "nests deeper");
  std::string objects = "1";
  for (int i = 0; i < 64; ++i) objects = "{\"a\":" + objects + "}";
  expect_refused("\"x\":" + objects, "", "nests deeper");
}

TEST(OpenaiRequest, MemoryForValuesIsBounded) {
  GenerateLimits small = limits();
  small.most_parsed = 64 * kKiB;
  std::string zeros = "0";
  for (int i = 0; i < 2'000; ++i) zeros += ",0";
  const ApiError e = refused(parse_chat(chat_with("\"x\":[" + zeros + "]"), small));
  EXPECT_EQ(e.status, 413);
  EXPECT_THAT(e.message, HasSubstr("65536"));
  EXPECT_EQ(accepted(parse_completion("{\"prompt\":[" + zeros.substr(0, 2'000) + "0]}", small))
                .prompts[0].tokens.size(), 1001u);
  // Text is no structure: as long as the body may be.
  const std::string text(1'000'000, 'x');
  const std::string body = "{\"prompt\":\"" + text + "\"}";
  EXPECT_EQ(accepted(parse_completion(body, small)).prompts[0].text, text);
}

TEST(OpenaiRequest, MessagesQuoteLittleOfWhatWasSent) {
  const std::string text(1'000'000, 'x');
  const std::string stop = chat_with("\"stop\":[{\"" + text + "\":1}]");
  EXPECT_LT(refused(parse_chat(stop, limits())).message.size(), 300u);
  expect_messages_refused("[{\"role\":\"" + text + "\",\"content\":\"\"}]", "messages[0].role");
  const ApiError twice = refused(parse_chat(
      "{\"" + text + "\":1,\"" + text + "\":2}", limits()));
  EXPECT_LT(twice.message.size() + twice.param.size(), 600u);
}

TEST(OpenaiRequest, TokenizeTakesContentOrPrompt) {
  const auto parse = [](const char* body) { return parse_tokenize(body, limits()); };
  EXPECT_EQ(accepted(parse(R"({"content":"a"})")).text, "a");
  EXPECT_FALSE(accepted(parse(R"({"content":"a"})")).add_special);
  EXPECT_EQ(accepted(parse(R"({"prompt":"","add_special":true,"model":"m"})")).text, "");
  EXPECT_TRUE(accepted(parse(R"({"prompt":"","add_special":true})")).add_special);
  EXPECT_EQ(accepted(parse(R"({"content":"a","parse_special":false})")).text, "a");
  EXPECT_EQ(refused(parse("{}")).param, "content");
  EXPECT_EQ(refused(parse(R"({"content":1})")).param, "content");
  EXPECT_EQ(refused(parse(R"({"content":"a","prompt":"b"})")).param, "prompt");
  EXPECT_EQ(refused(parse(R"({"content":"a","add_special":1})")).param, "add_special");
  EXPECT_EQ(refused(parse(R"({"content":"a","parse_special":true})")).param, "parse_special");
}

TEST(OpenaiRequest, DetokenizeTakesTokensOfTheVocabulary) {
  const auto parse = [](const char* body) { return parse_detokenize(body, limits()); };
  EXPECT_THAT(accepted(parse(R"({"tokens":[0,999]})")).tokens, ElementsAre(0, 999));
  EXPECT_TRUE(accepted(parse(R"({"tokens":[]})")).tokens.empty());
  EXPECT_EQ(refused(parse("{}")).param, "tokens");
  EXPECT_EQ(refused(parse(R"({"tokens":"1"})")).param, "tokens");
  EXPECT_EQ(refused(parse(R"({"tokens":[1,1000]})")).param, "tokens[1]");
  EXPECT_EQ(refused(parse(R"({"tokens":[true]})")).param, "tokens[0]");
}

}  // namespace
}  // namespace headrace
