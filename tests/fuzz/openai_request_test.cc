// Deterministic mutation fuzzing of request bodies: whatever the bytes, the answer is a request of
// which every field is inside its bounds, or an error that a client can read; never a crash or an
// exception. Run it with -DHEADRACE_SANITIZE=address to see silent damage too.
#include "headrace/serve/openai_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "headrace/model/chat_template.h"
#include "headrace/model/unicode.h"
#include "headrace/serve/openai_reply.h"

namespace headrace {
namespace {

constexpr int kMutations = 100'000;

const std::vector<std::string>& bodies() {
  static const std::vector<std::string> kBodies = {
      R"({"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","name":"a",
"content":[{"type":"text","text":"h\u00e9 \ud83d\ude00"}]},{"role":"assistant","content":"€"}],
"max_completion_tokens":16,"n":2,"stream":true,"stream_options":{"include_usage":true},
"stop":["a","b"],"temperature":0.7,"top_p":0.9,"top_k":40,"min_p":0.05,"seed":7,"priority":1,
"presence_penalty":0.1,"frequency_penalty":-0.1,"repeat_penalty":1.1,"logit_bias":{"5":1,"7":-100},
"logprobs":true,"top_logprobs":3,"response_format":{"type":"text"},"tools":[],"user":"u"})",
      R"({"prompt":"once upon","max_tokens":5,"n":1,"best_of":1,"echo":false,"logprobs":2,
"suffix":null,"stop":"x","temperature":0,"seed":-1,"ignore_eos":true,"logit_bias":{}})",
      R"({"prompt":[[1,2,3],[4]],"max_tokens":1})",
      R"({"prompt":["a","b"],"stream":false})",
      R"({"content":"a b","add_special":true,"parse_special":false})",
      R"({"tokens":[1,2,999]})"};
  return kBodies;
}

// Texts that carry structure or sit at an edge of some range.
std::string mutate(const std::string& from, std::mt19937_64* random) {
  static const std::vector<std::string> kTexts = {
      "\"", "{", "}", "[", "]", ",", ":", "null", "true", "false", "-1", "0", "1", "2.5", "1e308",
      "1e999", "-0", "NaN", "9223372036854775807", "9223372036854775808", "18446744073709551615",
      "99999999999999999999", "2147483648", "\"x\"", "\"\"", "\\u0000", "\\ud800", "\\udc00", "\\",
      "\xff", "\xC0\x80", "\xE2\x82", "[[[[", "{\"a\":", "[]", "{}", "\"prompt\":", "\"n\":8,",
      "\"messages\":", "\"content\":", "\"role\":\"tool\"", std::string(70, '['),
      std::string(1, '\0'), "\"stop\":[", "1001", "-100.5"};
  std::string out = from;
  const int changes = 1 + static_cast<int>((*random)() % 2);
  for (int i = 0; i < changes && !out.empty(); ++i) {
    const size_t at = (*random)() % out.size();
    const size_t length = (*random)() % 12;
    const std::string& text = kTexts[(*random)() % kTexts.size()];
    switch ((*random)() % 7) {
      case 0: out.insert(at, text); break;
      case 1: out.replace(at, length, text); break;
      case 2: out.erase(at, length); break;
      case 3: out.insert(at, out.substr((*random)() % out.size(), 40)); break;
      case 4: out[at] = static_cast<char>((*random)()); break;
      case 5: out[at] = static_cast<char>(out[at] ^ (1 << (*random)() % 8)); break;
      case 6: {  // a whole value becomes another: most reach the checks of one field
        const size_t colon = out.find(':', at);
        const size_t end = out.find_first_of(",}", colon == out.npos ? at : colon);
        if (colon != out.npos && end != out.npos) out.replace(colon + 1, end - colon - 1, text);
        break;
      }
    }
  }
  return out;
}

bool valid(const std::string& text) { return utf8_valid_prefix(text) == text.size(); }

void expect_error(const ApiError& e) {
  EXPECT_TRUE(e.status == 400 || e.status == 413);
  EXPECT_FALSE(e.message.empty());
  EXPECT_LT(e.message.size(), 1'000u);
  const std::string body = error_body(e);
  EXPECT_TRUE(valid(body));
  EXPECT_TRUE(nlohmann::json::accept(body)) << body;
}

void expect_bounds(const GenerateRequest& r, const GenerateLimits& limits) {
  EXPECT_TRUE(check(r.sampling, limits.vocab).ok());
  EXPECT_LE(r.sampling.temperature, 2);
  EXPECT_TRUE(r.n >= 1 && r.n <= limits.most_n);
  EXPECT_TRUE(r.max_tokens == -1 || r.max_tokens >= 1);
  EXPECT_TRUE(r.logprobs >= -1 && r.logprobs <= 20);
  EXPECT_LE(r.stop.size(), 16u);
  for (const std::string& s : r.stop) EXPECT_TRUE(!s.empty() && s.size() <= 1024 && valid(s));
  EXPECT_TRUE(r.stream || !r.include_usage);
  EXPECT_EQ(r.chat, !r.messages.empty());
  EXPECT_EQ(r.chat, r.prompts.empty());
  for (const TextPrompt& p : r.prompts) {
    EXPECT_NE(p.text.empty(), p.tokens.empty());
    EXPECT_EQ(p.is_tokens, p.text.empty());
    EXPECT_TRUE(valid(p.text));
    for (const int32_t t : p.tokens) EXPECT_TRUE(t >= 0 && t < limits.vocab);
  }
  for (const ChatMessage& m : r.messages) {
    EXPECT_TRUE(m.role == "system" || m.role == "user" || m.role == "assistant");
    EXPECT_TRUE(valid(m.content));
  }
}

// The template sees the same text by either way.
void expect_same_messages(const GenerateRequest& r) {
  static const Result<ChatTemplate> kTemplate = ChatTemplate::parse(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
  ASSERT_TRUE(kTemplate.ok());
  const auto plain = kTemplate->render(r.messages, {});
  const auto json = kTemplate->render_json(r.messages_json, {});
  ASSERT_TRUE(plain.ok() && json.ok());
  EXPECT_EQ(text_of_pieces(*plain), text_of_pieces(*json));
}

TEST(FuzzOpenaiRequest, MutatedBodiesAreReadOrRefused) {
  GenerateLimits limits;
  limits.vocab = 1000;
  limits.most_n = 4;
  limits.most_parsed = 64 * kKiB;
  std::mt19937_64 random(1);
  int read = 0, refused = 0;
  const auto answer = [&](const auto& parsed) {
    if (const ApiError* e = std::get_if<ApiError>(&parsed)) {
      expect_error(*e);
      ++refused;
      return false;
    }
    ++read;
    return true;
  };
  for (int i = 0; i < kMutations; ++i) {
    const size_t which = static_cast<size_t>(i) % bodies().size();
    const std::string body = i < 6 ? bodies()[which] : mutate(bodies()[which], &random);
    const auto chat = parse_chat(body, limits);
    const bool good = answer(chat);
    if (good) {
      expect_bounds(std::get<GenerateRequest>(chat), limits);
      if (i % 8 == 0) expect_same_messages(std::get<GenerateRequest>(chat));
    }
    EXPECT_TRUE(good || i > 0) << "the first body is not mutated";
    const auto completion = parse_completion(body, limits);
    if (answer(completion)) expect_bounds(std::get<GenerateRequest>(completion), limits);
    const auto tokenize = parse_tokenize(body, limits);
    if (answer(tokenize)) {
      EXPECT_TRUE(valid(std::get<TokenizeRequest>(tokenize).text));
    }
    const auto detokenize = parse_detokenize(body, limits);
    if (answer(detokenize)) {
      for (const int32_t t : std::get<DetokenizeRequest>(detokenize).tokens) {
        EXPECT_TRUE(t >= 0 && t < limits.vocab);
      }
    }
    if (HasFailure()) FAIL() << "mutation " << i << ": " << body;
  }
  // One of the four parsers fits a body; if hardly any did, nothing was tested.
  EXPECT_GT(read, kMutations / 16);
  EXPECT_GT(refused, kMutations);
}

using Json = nlohmann::json;

// A value of any kind, up to `deep` levels.
Json any_value(int deep, std::mt19937_64* random) {
  static const std::vector<Json> kPlain = {
      nullptr, true, false, 0, 1, -1, 3, 2.5, 2.0, -0.0, 1e308, INT64_MAX, INT64_MIN, UINT64_MAX,
      1001, "", "x", "1", "user", "text", "auto", std::string(1025, 's'), "\xF0\x9F\x98\x80",
      std::string("\0", 1)};
  const uint64_t pick = (*random)();
  if (deep == 0 || pick % 3 != 0) return kPlain[pick / 3 % kPlain.size()];
  Json out = pick % 2 ? Json::array() : Json::object();
  for (uint64_t i = (*random)() % 4; i > 0; --i) {
    static const char* const kKeys[] = {"type", "text", "role", "content", "5", "x"};
    if (out.is_array()) out.push_back(any_value(deep - 1, random));
    else out[kKeys[(*random)() % 6]] = any_value(deep - 1, random);
  }
  return out;
}

// A place in `root`, and its name as errors give it: "messages[0].content".
Json* any_place(Json* root, std::string* name, std::mt19937_64* random) {
  Json* at = root;
  do {
    const size_t i = (*random)() % at->size();
    if (at->is_array()) {
      *name += "[" + std::to_string(i) + "]";
      at = &(*at)[i];
    } else {
      const auto member = std::next(at->begin(), static_cast<std::ptrdiff_t>(i));
      *name += (name->empty() ? "" : ".") + member.key();
      at = &*member;
    }
  } while (at->is_structured() && !at->empty() && (*random)() % 2 == 0);
  return at;
}

// Whether one of two places is the other or inside of it.
bool one_holds_the_other(std::string a, std::string b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || b[a.size()] == '.' || b[a.size()] == '[');
}

TEST(FuzzOpenaiRequest, ARefusalNamesThePlaceThatWasChanged) {
  // Places whose refusal may name another one: what the other needs of them. (An array whose first
  // element is a number is of tokens.)
  const std::vector<std::pair<std::string, std::string>> needed = {
      {"stream", "stream_options"}, {"n", "best_of"}, {"logprobs", "top_logprobs"},
      {"prompt[0]", "prompt[1]"}};
  GenerateLimits limits;
  limits.vocab = 1000;
  limits.most_n = 4;
  std::mt19937_64 random(3);
  int read = 0, refused = 0;
  for (int i = 0; i < kMutations; ++i) {
    const size_t which = static_cast<size_t>(i) % 4;
    Json body = Json::parse(bodies()[which]);
    std::string name;
    Json* place = any_place(&body, &name, &random);
    *place = any_value(2, &random);
    const auto parsed = which == 0 ? parse_chat(body.dump(), limits)
                                   : parse_completion(body.dump(), limits);
    if (const auto* r = std::get_if<GenerateRequest>(&parsed)) {
      expect_bounds(*r, limits);
      ++read;
    } else {
      const ApiError& e = std::get<ApiError>(parsed);
      expect_error(e);
      const bool other = std::find(needed.begin(), needed.end(), std::pair(name, e.param)) !=
                         needed.end();
      EXPECT_TRUE(other || one_holds_the_other(name, e.param)) << name << "; named " << e.param;
      ++refused;
    }
    if (HasFailure()) FAIL() << "change " << i << ": " << body;
  }
  EXPECT_GT(read, kMutations / 8);
  EXPECT_GT(refused, kMutations / 8);
}

TEST(FuzzOpenaiRequest, RandomBytesAreRefused) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20'000; ++i) {
    std::string body(random() % 64, '\0');
    for (char& c : body) c = static_cast<char>(random());
    if (i % 2 == 0) body.insert(0, "{\"prompt\":");
    const auto parsed = parse_completion(body, {});
    ASSERT_TRUE(std::holds_alternative<ApiError>(parsed));
    expect_error(std::get<ApiError>(parsed));
  }
}

}  // namespace
}  // namespace headrace
