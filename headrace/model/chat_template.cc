#include "headrace/model/chat_template.h"

#include "headrace/model/jinja_json.h"
#include "headrace/model/jinja_parser.h"

namespace headrace {
namespace {

using jinja::Value;

std::vector<TextPiece> pieces_of(const jinja::Text& text) {
  std::vector<TextPiece> out;
  for (const char32_t c : text) {
    const bool trusted = !jinja::untrusted(c);
    if (out.empty() || out.back().trusted != trusted) out.push_back({"", trusted});
    jinja::append_utf8(c, &out.back().text);
  }
  return out;
}

Value trusted_text(std::string_view text) {
  return Value::string(jinja::from_utf8(text, false));
}

Value untrusted_text(std::string_view text) {
  return Value::string(jinja::from_utf8(text, true));
}

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  HR_ASSIGN(jinja::Body body, jinja::parse(source));
  return ChatTemplate(std::make_shared<const jinja::Body>(std::move(body)));
}

Result<std::vector<TextPiece>> ChatTemplate::render(
    const std::vector<ChatMessage>& messages, const ChatOptions& options) const {
  std::vector<Value> list;
  for (const ChatMessage& m : messages) {
    auto entries = std::make_shared<jinja::DictObject>();
    entries->set(Value::ascii("role"), untrusted_text(m.role));
    entries->set(Value::ascii("content"), untrusted_text(m.content));
    list.push_back(Value::dict(std::move(entries)));
  }
  return run(Value::list(std::move(list)), options);
}

Result<std::vector<TextPiece>> ChatTemplate::render_json(
    std::string_view messages_json, const ChatOptions& options) const {
  HR_ASSIGN(const Value messages, jinja::value_of_json(messages_json, "messages"));
  if (!messages.is_list()) return error(Code::kUsage, "messages: not a JSON array");
  return run(messages, options);
}

Result<std::vector<TextPiece>> ChatTemplate::run(const Value& messages,
                                                 const ChatOptions& options) const {
  auto variables = std::make_shared<jinja::Scope>();
  variables->set("messages", messages);
  variables->set("tools", Value::none());
  variables->set("documents", Value::none());
  variables->set("add_generation_prompt", Value::boolean(options.add_generation_prompt));
  if (!options.bos_token.empty())
    variables->set("bos_token", trusted_text(options.bos_token));
  if (!options.eos_token.empty())
    variables->set("eos_token", trusted_text(options.eos_token));
  int64_t size = messages.weight();
  if (!options.tools_json.empty()) {
    HR_ASSIGN(const Value tools, jinja::value_of_json(options.tools_json, "tools"));
    size += tools.weight() + static_cast<int64_t>(options.tools_json.size());
    variables->set("tools", tools);
  }
  if (!options.variables_json.empty()) {
    HR_ASSIGN(const Value more,
              jinja::value_of_json(options.variables_json, "variables"));
    if (!more.is_dict()) return error(Code::kUsage, "variables: not a JSON object");
    for (const auto& [name, value] : more.entries().items)
      variables->set(jinja::to_utf8(name.text()), value);
  }
  jinja::Text all;
  if (jinja::append_repr(messages, &all)) size += static_cast<int64_t>(all.size());
  all = jinja::Text();
  jinja::Renderer renderer(options.limits, options.now ? *options.now : local_now());
  HR_ASSIGN(const jinja::Text text, renderer.run(*body_, std::move(variables), size));
  return pieces_of(text);
}

Result<std::vector<TextPiece>> render_chat(std::string_view source,
                                           const std::vector<ChatMessage>& messages,
                                           const ChatOptions& options) {
  HR_ASSIGN(const ChatTemplate parsed, ChatTemplate::parse(source));
  return parsed.render(messages, options);
}

std::string text_of_pieces(const std::vector<TextPiece>& pieces) {
  std::string out;
  for (const TextPiece& piece : pieces) out += piece.text;
  return out;
}

}  // namespace headrace
