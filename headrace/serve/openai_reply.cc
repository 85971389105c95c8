#include "headrace/serve/openai_reply.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/model/unicode.h"
#include "headrace/serve/http_error.h"

namespace headrace {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr double kLeastLogprob = -9999;

std::string text_of_json(const Ordered& json) {
  return json.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

std::string event(const Ordered& json) { return "data: " + text_of_json(json) + "\n\n"; }

double finite(double logprob) { return logprob >= kLeastLogprob ? logprob : kLeastLogprob; }

Ordered byte_list(std::string_view bytes) {
  Ordered out = Ordered::array();
  for (const char c : bytes) out.push_back(static_cast<uint8_t>(c));
  return out;
}

// --- logprobs of chats: one entry a token, with its bytes ---

Ordered chat_token(const TokenProbability& token) {
  return {{"token", valid_utf8(token.bytes)},
          {"logprob", finite(token.logprob)},
          {"bytes", byte_list(token.bytes)}};
}

Ordered chat_logprobs(const std::vector<TokenLogprobs>& tokens) {
  Ordered content = Ordered::array();
  for (const TokenLogprobs& t : tokens) {
    Ordered entry = chat_token(t.chosen);
    entry["top_logprobs"] = Ordered::array();
    for (const TokenProbability& other : t.top) entry["top_logprobs"].push_back(chat_token(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// --- logprobs of completions: four lists ---

// Parts of characters as OpenAI's completions name them, so that they stay distinct as keys.
std::string token_name(std::string_view bytes) {
  if (utf8_valid_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string out = "bytes:";
  for (const char c : bytes) out += text_of("\\x%02x", static_cast<uint8_t>(c));
  return out;
}

Ordered completion_logprobs(const std::vector<TokenLogprobs>& tokens, TextOffset* offset) {
  Ordered names = Ordered::array(), values = Ordered::array(), tops = Ordered::array(),
          offsets = Ordered::array();
  bool any_top = false;
  for (const TokenLogprobs& t : tokens) {
    names.push_back(token_name(t.chosen.bytes));
    values.push_back(finite(t.chosen.logprob));
    offsets.push_back(offset->next(t.chosen.bytes));
    any_top = any_top || !t.top.empty();
    Ordered top = Ordered::object();
    // Two tokens may have the same text: the more probable one stays.
    for (const TokenProbability& other : t.top) {
      const std::string name = token_name(other.bytes);
      if (!top.contains(name)) top[name] = finite(other.logprob);
    }
    const std::string chosen = token_name(t.chosen.bytes);
    if (!top.contains(chosen)) top[chosen] = finite(t.chosen.logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", any_top ? std::move(tops) : Ordered(nullptr)},
          {"text_offset", std::move(offsets)}};
}

// --- parts ---

Ordered usage_json(const ReplyUsage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}}};
}

Ordered head_json(const ReplyHead& head, const char* chat_object) {
  return {{"id", head.id},
          {"object", head.chat ? chat_object : "text_completion"},
          {"created", head.created},
          {"model", head.model}};
}

std::string chunk(const ReplyHead& head, Ordered choice) {
  Ordered out = head_json(head, "chat.completion.chunk");
  out["choices"] = Ordered::array({std::move(choice)});
  if (head.include_usage) out["usage"] = nullptr;
  return event(out);
}

Ordered choice_json(const ReplyHead& head, const ReplyChoice& c) {
  Ordered out = {{"index", c.index}};
  Ordered logprobs = nullptr;
  if (head.chat) {
    out["message"] = {{"role", "assistant"}, {"content", valid_utf8(c.text)}, {"refusal", nullptr}};
    if (c.with_logprobs) logprobs = chat_logprobs(c.logprobs);
  } else {
    out["text"] = valid_utf8(c.echo) + valid_utf8(c.text);
    TextOffset offset = c.offset;
    if (c.with_logprobs) logprobs = completion_logprobs(c.logprobs, &offset);
  }
  out["logprobs"] = std::move(logprobs);
  out["finish_reason"] = finish_reason(c.finish);
  return out;
}

Ordered model_json(const ModelCard& model) {
  return {{"id", model.id},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "headrace"},
          {"max_model_len", model.context}};
}

}  // namespace

std::vector<TokenLogprobs> logprobs_of(const Emitted& emitted, const Tokenizer& tokenizer) {
  const auto named = [&](const Logprob& p) {
    return TokenProbability{tokenizer.token_bytes(p.token, true), p.value};
  };
  std::vector<TokenLogprobs> out;
  out.reserve(emitted.chosen.size());
  for (size_t i = 0; i < emitted.chosen.size(); ++i) {
    TokenLogprobs& t = out.emplace_back();
    t.chosen = named(emitted.chosen[i]);
    if (i >= emitted.alternatives.size()) continue;
    for (const Logprob& p : emitted.alternatives[i]) t.top.push_back(named(p));
  }
  return out;
}

int64_t TextOffset::next(std::string_view bytes) {
  const auto inside = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; };
  const bool joins = !bytes.empty() && inside(bytes[0]) && characters_ > 0;
  const int64_t at = characters_ - (joins ? 1 : 0);
  characters_ += std::count_if(bytes.begin(), bytes.end(), [&](char c) { return !inside(c); });
  return at;
}

ReplyUsage& ReplyUsage::operator+=(const JobUsage& job) {
  prompt_tokens += job.prompt_tokens;
  cached_tokens += job.cached_tokens;
  completion_tokens += job.completion_tokens;
  return *this;
}

std::string reply_body(const ReplyHead& head, std::span<const ReplyChoice> choices,
                       const ReplyUsage& usage) {
  Ordered out = head_json(head, "chat.completion");
  out["choices"] = Ordered::array();
  for (const ReplyChoice& c : choices) out["choices"].push_back(choice_json(head, c));
  out["usage"] = usage_json(usage);
  return text_of_json(out);
}

std::string stream_begin(const ReplyHead& head, int index) {
  if (!head.chat) return "";
  return chunk(head, {{"index", index},
                      {"delta", {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}});
}

std::string stream_text(const ReplyHead& head, int index, std::string_view text,
                        const std::vector<TokenLogprobs>* logprobs, TextOffset* offset) {
  Ordered choice = {{"index", index}};
  Ordered probabilities = nullptr;
  if (head.chat) {
    choice["delta"] = {{"content", valid_utf8(text)}};
    if (logprobs != nullptr) probabilities = chat_logprobs(*logprobs);
  } else {
    choice["text"] = valid_utf8(text);
    if (logprobs != nullptr) probabilities = completion_logprobs(*logprobs, offset);
  }
  choice["logprobs"] = std::move(probabilities);
  choice["finish_reason"] = nullptr;
  return chunk(head, std::move(choice));
}

std::string stream_end(const ReplyHead& head, int index, Finish finish) {
  Ordered choice = {{"index", index}};
  if (head.chat) {
    choice["delta"] = Ordered::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason(finish);
  return chunk(head, std::move(choice));
}

std::string stream_usage(const ReplyHead& head, const ReplyUsage& usage) {
  Ordered out = head_json(head, "chat.completion.chunk");
  out["choices"] = Ordered::array();
  out["usage"] = usage_json(usage);
  return event(out);
}

std::string stream_error(const ApiError& error) { return "data: " + error_body(error) + "\n\n"; }

const char* finish_reason(Finish finish) {
  switch (finish) {
    case Finish::kStop: return "stop";
    case Finish::kLength: return "length";
    case Finish::kCancelled: return "cancelled";
    case Finish::kError: break;
  }
  return "error";
}

std::string models_body(std::span<const ModelCard> models) {
  Ordered list = Ordered::array();
  for (const ModelCard& m : models) list.push_back(model_json(m));
  return text_of_json({{"object", "list"}, {"data", std::move(list)}});
}

std::string model_body(const ModelCard& model) { return text_of_json(model_json(model)); }

std::string tokenize_body(std::span<const int32_t> tokens) {
  Ordered list = Ordered::array();
  for (const int32_t t : tokens) list.push_back(t);
  return text_of_json({{"tokens", std::move(list)}, {"count", tokens.size()}});
}

std::string detokenize_body(std::string_view text) {
  return text_of_json({{"content", valid_utf8(text)}});
}

std::string error_body(const ApiError& error) {
  return error_body(error.message, error_type_of(error.status), error.param, error.code);
}

ApiError api_error(const Status& status) {
  switch (status.code()) {
    case Code::kUsage: return {400, status.message(), "", "invalid_value"};
    case Code::kDoesNotFit: return {400, status.message(), "", "context_length_exceeded"};
    case Code::kIo: return {503, status.message(), "", "io_error"};
    default: return {500, status.message(), "", code_name(status.code())};
  }
}

ApiError api_error(const Refusal& refusal) {
  switch (refusal.kind) {
    case Refusal::Kind::kBusy: return {429, refusal.status.message(), "", "busy"};
    case Refusal::Kind::kDraining: return {503, refusal.status.message(), "", "draining"};
    default: return api_error(refusal.status);
  }
}

}  // namespace headrace
