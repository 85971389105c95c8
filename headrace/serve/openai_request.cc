#include "headrace/serve/openai_request.h"

#include <algorithm>
#include <charconv>

#include "headrace/base/json_text.h"
#include "headrace/serve/openai_fields.h"
#include "headrace/serve/stop_text.h"

namespace headrace {
namespace {

constexpr size_t kMostStops = 16;
constexpr int kMostLogprobs = 20;
constexpr size_t kMostBiases = 1024;
constexpr int64_t kMostTokens = int64_t{1} << 40;  // of an answer: beyond every context
constexpr int kMostPriority = 1000;

// --- fields that both endpoints have ---

void read_max_tokens(Fields& f, bool chat, GenerateRequest* out) {
  const char* const newer = "max_completion_tokens";
  int64_t older_value = -1, newer_value = -1;
  f.integer("max_tokens", 1, kMostTokens, &older_value);
  if (chat) f.integer(newer, 1, kMostTokens, &newer_value);
  if (older_value > 0 && newer_value > 0 && older_value != newer_value) {
    f.fail(newer, "'max_completion_tokens' and 'max_tokens' are both given and differ",
           "invalid_value");
  }
  out->max_tokens = std::max(older_value, newer_value);
}

void read_stream(Fields& f, GenerateRequest* out) {
  f.flag("stream", &out->stream);
  Json* options = f.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return f.wrong_type("stream_options", *options, "an object");
  if (!out->stream) {
    return f.fail("stream_options", "'stream_options' needs \"stream\": true", "invalid_value");
  }
  Fields inner(options, "stream_options.");
  inner.flag("include_usage", &out->include_usage);
  f.fail(inner.error());
}

void read_stop(Fields& f, GenerateRequest* out) {
  Json* stop = f.find("stop");
  if (stop == nullptr) return;
  const auto add = [&](const std::string& name, Json& value) {
    if (!value.is_string()) return f.wrong_type(name, value, "a string");
    std::string& text = value.get_ref<std::string&>();
    if (text.empty() || text.size() > StopText::kMostStopBytes) {
      return f.wrong_value(name, text_of("1 to %zu bytes long, not %zu", StopText::kMostStopBytes,
                                         text.size()));
    }
    out->stop.push_back(std::move(text));
  };
  if (stop->is_string()) return add("stop", *stop);
  if (!stop->is_array()) return f.wrong_type("stop", *stop, "a string or an array of strings");
  if (stop->size() > kMostStops) {
    return f.wrong_value("stop", text_of("at most %zu strings, not %zu", kMostStops, stop->size()));
  }
  for (size_t i = 0; i < stop->size(); ++i) add(element_name("stop", i), (*stop)[i]);
}

void read_bias(Fields& f, int64_t vocab, std::vector<LogitBias>* out) {
  const Json* bias = f.find("logit_bias");
  if (bias == nullptr) return;
  const std::string name = "logit_bias";
  if (!bias->is_object()) return f.wrong_type(name, *bias, "an object of token ids to numbers");
  if (bias->size() > kMostBiases) {
    return f.wrong_value(name,
                         text_of("at most %zu tokens, not %zu", kMostBiases, bias->size()));
  }
  out->clear();
  for (const auto& [key, value] : bias->items()) {
    int64_t token = -1;
    const auto [end, wrong] = std::from_chars(key.data(), key.data() + key.size(), token);
    const bool canonical = wrong == std::errc() && key == std::to_string(token);
    if (!canonical || token < 0 || token >= vocab) {
      return f.wrong_value(name, text_of("keyed by token ids from 0 to %lld, not '%s'",
                                         static_cast<long long>(vocab - 1),
                                         printable(key).c_str()));
    }
    if (!value.is_number()) return f.wrong_type(name + "." + key, value, "a number");
    const double number = value.get<double>();
    if (!(number >= -100 && number <= 100)) {
      return f.wrong_value(name + "." + key, "between -100 and 100, not " + value.dump());
    }
    out->push_back({static_cast<int32_t>(token), static_cast<float>(number)});
  }
  std::sort(out->begin(), out->end(),
            [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
}

// Any integer of 64 bits, with or without a sign.
void read_seed(Fields& f, GenerateRequest* out) {
  const Json* seed = f.find("seed");
  if (seed == nullptr) return;
  if (!seed->is_number_integer()) return f.wrong_type("seed", *seed, "an integer of 64 bits");
  out->sampling.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                                  : static_cast<uint64_t>(seed->get<int64_t>());
  out->seed_given = true;
}

void read_sampling(Fields& f, const GenerateLimits& limits, GenerateRequest* out) {
  SamplingOptions& s = out->sampling;
  s = limits.defaults;
  f.number("temperature", 0, 2, &s.temperature);
  f.number("top_p", 0, 1, &s.top_p);
  f.integer("top_k", -1, INT32_MAX, &s.top_k);
  s.top_k = std::max(s.top_k, 0);
  f.number("min_p", 0, 1, &s.min_p);
  if (f.find("repeat_penalty") != nullptr && f.find("repetition_penalty") != nullptr) {
    f.fail("repetition_penalty", "'repeat_penalty' and 'repetition_penalty' are the same: give one",
           "invalid_value");
  }
  f.number("repeat_penalty", 0.01, 100, &s.repeat_penalty);
  f.number("repetition_penalty", 0.01, 100, &s.repeat_penalty);
  f.number("presence_penalty", -2, 2, &s.presence_penalty);
  f.number("frequency_penalty", -2, 2, &s.frequency_penalty);
  read_bias(f, limits.vocab, &s.logit_bias);
  read_seed(f, out);
}

// What other servers take beyond OpenAI's fields and would change the answer.
void refuse_foreign(Fields& f) {
  for (const char* key :
       {"grammar", "json_schema", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "structured_outputs", "stop_token_ids", "bad_words", "min_tokens", "use_beam_search",
        "continue_final_message"}) {
    f.unsupported_unless_empty(key);
  }
}

void read_common(Fields& f, bool chat, const GenerateLimits& limits, GenerateRequest* out) {
  out->chat = chat;
  f.text("model", &out->model);
  read_max_tokens(f, chat, out);
  f.integer("n", 1, limits.most_n, &out->n);
  read_stream(f, out);
  read_stop(f, out);
  read_sampling(f, limits, out);
  f.integer("priority", -kMostPriority, kMostPriority, &out->priority);
  f.flag("ignore_eos", &out->ignore_end);
  std::string user;
  f.text("user", &user);
  refuse_foreign(f);
}

// --- chats ---

// Fields of a chat that would change the answer.
void refuse_unsupported(Fields& f) {
  for (const char* key : {"tools", "functions"}) f.unsupported_unless_empty(key);
  // Without tools "auto" is "none".
  for (const char* key : {"tool_choice", "function_call"}) {
    const Json* choice = f.find(key);
    if (choice != nullptr && *choice != "none" && *choice != "auto") f.unsupported(key);
  }
  const Json* modalities = f.find("modalities");
  if (modalities != nullptr && *modalities != Json::array({"text"})) {
    f.unsupported("modalities", ", except [\"text\"]");
  }
  f.unsupported("audio");
  f.unsupported("web_search_options");
  const Json* format = f.find("response_format");
  if (format == nullptr) return;
  if (!format->is_object()) return f.wrong_type("response_format", *format, "an object");
  const auto type = format->find("type");
  if (type == format->end() || *type != "text") {
    f.unsupported("response_format", ", except {\"type\": \"text\"}");
  }
}

// Contents in parts become one text.
void read_parts(Fields& f, Json& parts, std::string* out) {
  if (parts.empty()) return f.wrong_value("content", "a string or at least one part");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = element_name("content", i);
    Json& part = parts[i];
    if (!part.is_object()) return f.wrong_type(name, part, "an object with type and text");
    const auto type = part.find("type");
    if (type == part.end()) return f.missing((name + ".type").c_str());
    if (!type->is_string()) return f.wrong_type(name + ".type", *type, "a string");
    if (*type != "text") {
      const std::string said = printable(type->get_ref<const std::string&>());
      return f.fail(name, "parts of type '" + said + "' are not supported, only text",
                    "unsupported_parameter");
    }
    const auto text = part.find("text");
    if (text == part.end()) return f.missing((name + ".text").c_str());
    if (!text->is_string()) return f.wrong_type(name + ".text", *text, "a string");
    *out += text->get_ref<const std::string&>();
  }
}

void read_role(Fields& f, std::string* role) {
  f.text("role", role);
  if (f.failed()) return;
  if (role->empty()) return f.missing("role");
  if (*role == "developer") *role = "system";
  if (*role == "system" || *role == "user" || *role == "assistant") return;
  if (*role == "tool" || *role == "function") {
    return f.fail("role", "messages of tools are not supported by this server",
                  "unsupported_parameter");
  }
  f.wrong_value("role", "one of system, developer, user, assistant, not '" + printable(*role) +
                            "'");
}

// One message, also as JSON at the end of *json.
void read_message(Fields& f, ChatMessage* out, std::string* json) {
  read_role(f, &out->role);
  f.unsupported_unless_empty("tool_calls");
  f.unsupported("function_call");
  f.unsupported("audio");
  Json* content = f.find("content");
  if (content == nullptr) return f.missing("content");
  if (content->is_array()) {
    read_parts(f, *content, &out->content);
  } else if (content->is_string()) {
    out->content = std::move(content->get_ref<std::string&>());
  } else {
    f.wrong_type("content", *content, "a string or an array of parts");
  }
  std::string name;
  f.text("name", &name);
  *json += "{\"role\":" + json_quoted(out->role) + ",\"content\":" + json_quoted(out->content);
  if (!name.empty()) *json += ",\"name\":" + json_quoted(name);
  *json += "}";
}

void read_messages(Fields& f, GenerateRequest* out) {
  Json* list = f.find("messages");
  if (list == nullptr) return f.missing("messages");
  if (!list->is_array()) return f.wrong_type("messages", *list, "an array of messages");
  if (list->empty()) return f.wrong_value("messages", "at least one message");
  out->messages.resize(list->size());
  out->messages_json = "[";
  for (size_t i = 0; i < list->size(); ++i) {
    Json& item = (*list)[i];
    const std::string name = element_name("messages", i);
    if (!item.is_object()) return f.wrong_type(name, item, "an object with role and content");
    if (i > 0) out->messages_json += ",";
    Fields message(&item, name + ".");
    read_message(message, &out->messages[i], &out->messages_json);
    if (message.failed()) return f.fail(message.error());
  }
  out->messages_json += "]";
}

void read_chat_logprobs(Fields& f, GenerateRequest* out) {
  bool wanted = false;
  int top = 0;
  f.flag("logprobs", &wanted);
  f.integer("top_logprobs", 0, kMostLogprobs, &top);
  if (!wanted && f.find("top_logprobs") != nullptr && top > 0) {
    f.fail("top_logprobs", "'top_logprobs' needs \"logprobs\": true", "invalid_value");
  }
  out->logprobs = wanted ? top : -1;
}

// --- completions ---

// An array of token ids.
void read_tokens(Fields& f, const std::string& name, const Json& list, int64_t vocab,
                 std::vector<int32_t>* out) {
  out->reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& value = list[i];
    if (!value.is_number_integer()) {
      return f.wrong_type(element_name(name, i), value, "a token id");
    }
    const bool beyond = value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX;
    if (beyond || value.get<int64_t>() < 0 || value.get<int64_t>() >= vocab) {
      return f.wrong_value(element_name(name, i),
                           text_of("a token id from 0 to %lld, not ",
                                   static_cast<long long>(vocab - 1)) + value.dump());
    }
    out->push_back(value.get<int32_t>());
  }
}

// A text or an array of token ids.
void read_prompt(Fields& f, const std::string& name, Json& value, int64_t vocab,
                 GenerateRequest* out) {
  TextPrompt& prompt = out->prompts.emplace_back();
  if (value.is_string()) {
    prompt.text = std::move(value.get_ref<std::string&>());
  } else if (value.is_array()) {
    prompt.is_tokens = true;
    read_tokens(f, name, value, vocab, &prompt.tokens);
  } else {
    return f.wrong_type(name, value, "a string or an array of token ids");
  }
  if (prompt.text.empty() && prompt.tokens.empty()) {
    f.wrong_value(name, "not empty: a model needs something to go on from");
  }
}

void read_prompts(Fields& f, const GenerateLimits& limits, GenerateRequest* out) {
  Json* prompt = f.find("prompt");
  if (prompt == nullptr) return f.missing("prompt");
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return read_prompt(f, "prompt", *prompt, limits.vocab, out);
  if (prompt->size() > static_cast<size_t>(limits.most_prompts)) {
    return f.wrong_value("prompt", text_of("at most %d prompts, not %zu", limits.most_prompts,
                                           prompt->size()));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    read_prompt(f, element_name("prompt", i), (*prompt)[i], limits.vocab, out);
    const bool mixed = out->prompts.back().is_tokens != out->prompts.front().is_tokens;
    if (mixed) return f.wrong_value("prompt", "all strings or all arrays of token ids");
  }
}

void read_completion_only(Fields& f, GenerateRequest* out) {
  f.flag("echo", &out->echo);
  f.integer("logprobs", 0, kMostLogprobs, &out->logprobs);
  if (out->echo && out->logprobs >= 0) {
    f.fail("echo", "'echo' with 'logprobs' is not supported by this server: it has no "
                   "probabilities of the prompt's tokens", "unsupported_parameter");
  }
  const Json* suffix = f.find("suffix");
  if (suffix != nullptr && *suffix != "") f.unsupported("suffix");
  int best_of = out->n;
  f.integer("best_of", 1, INT32_MAX, &best_of);
  if (best_of != out->n) f.unsupported("best_of", ", except the same as 'n'");
}

// The parsed body, or the first thing that is wrong with it.
template <typename T>
Parsed<T> verdict(const Fields& f, T* value) {
  if (f.failed()) return *f.error();
  return std::move(*value);
}

}  // namespace

Parsed<GenerateRequest> parse_chat(std::string_view body, const GenerateLimits& limits) {
  Json object;
  if (auto wrong = read_object(body, limits.most_parsed, &object)) return *wrong;
  Fields f(&object);
  GenerateRequest out;
  read_common(f, true, limits, &out);
  refuse_unsupported(f);
  read_chat_logprobs(f, &out);
  read_messages(f, &out);
  return verdict(f, &out);
}

Parsed<GenerateRequest> parse_completion(std::string_view body, const GenerateLimits& limits) {
  Json object;
  if (auto wrong = read_object(body, limits.most_parsed, &object)) return *wrong;
  Fields f(&object);
  GenerateRequest out;
  read_common(f, false, limits, &out);
  read_completion_only(f, &out);
  read_prompts(f, limits, &out);
  return verdict(f, &out);
}

Parsed<TokenizeRequest> parse_tokenize(std::string_view body, const GenerateLimits& limits) {
  Json object;
  if (auto wrong = read_object(body, limits.most_parsed, &object)) return *wrong;
  Fields f(&object);
  TokenizeRequest out;
  f.text("model", &out.model);
  const bool both = f.find("content") != nullptr && f.find("prompt") != nullptr;
  if (both) f.fail("prompt", "'prompt' and 'content' are the same: give one", "invalid_value");
  if (f.find("content") == nullptr && f.find("prompt") == nullptr) f.missing("content");
  f.text("content", &out.text);
  f.text("prompt", &out.text);
  f.flag("add_special", &out.add_special);
  bool parse_special = false;
  f.flag("parse_special", &parse_special);
  if (parse_special) f.unsupported("parse_special", ": special tokens in text stay text");
  return verdict(f, &out);
}

Parsed<DetokenizeRequest> parse_detokenize(std::string_view body, const GenerateLimits& limits) {
  Json object;
  if (auto wrong = read_object(body, limits.most_parsed, &object)) return *wrong;
  Fields f(&object);
  DetokenizeRequest out;
  f.text("model", &out.model);
  const Json* tokens = f.find("tokens");
  if (tokens == nullptr) {
    f.missing("tokens");
  } else if (!tokens->is_array()) {
    f.wrong_type("tokens", *tokens, "an array of token ids");
  } else {
    read_tokens(f, "tokens", *tokens, limits.vocab, &out.tokens);
  }
  return verdict(f, &out);
}

}  // namespace headrace
