// ChatTemplate: turns a conversation into the text a model was trained on, by the Jinja
// template that its files carry (tokenizer.chat_template, tokenizer_config.json).
//
// Promises
//   1. The text is what Hugging Face transformers renders with Python's jinja2, character
//      for character; what we cannot do so is refused by name and line when the template
//      is parsed, or at the latest when it is reached.
//   2. Every character that comes from the conversation (contents, roles, tool schemas,
//      extra variables) stays marked as the user's through all operations of the
//      template; only text of the template itself and the special tokens given are
//      trusted. Tokenizer::encode takes the pieces as they are.
//   3. A hostile template or conversation cannot hang, crash or exhaust memory
//      (RenderLimits).
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/model/jinja_render.h"
#include "headrace/model/tokenizer.h"

namespace headrace {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with what opens the assistant's turn
  std::string bos_token;              // as text; the template decides where they go
  std::string eos_token;
  std::string tools_json;      // a JSON array of tool schemas; empty: none
  std::string variables_json;  // a JSON object of further variables; empty: none
  std::optional<std::tm> now;  // for strftime_now(); absent: the local time
  jinja::RenderLimits limits;
};

class ChatTemplate {
 public:
  // kBadFile: a syntax error; kUnsupported: valid Jinja that we do not render. Both with
  // the line.
  static Result<ChatTemplate> parse(std::string_view source);

  // The conversation as text, in pieces by author; adjacent pieces differ in `trusted`.
  // kUsage: the template refuses the conversation (raise_exception) or the JSON is none;
  // kBadFile: the template itself fails; kUnsupported: a limit, or something it uses that
  // we lack. Safe to call from several threads.
  Result<std::vector<TextPiece>> render(const std::vector<ChatMessage>& messages,
                                        const ChatOptions& options) const;
  // The same with the messages as a JSON array of objects (tool calls, contents in
  // parts).
  Result<std::vector<TextPiece>> render_json(std::string_view messages_json,
                                             const ChatOptions& options) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Body> body)
      : body_(std::move(body)) {}
  Result<std::vector<TextPiece>> run(const jinja::Value& messages,
                                     const ChatOptions& options) const;

  std::shared_ptr<const jinja::Body> body_;
};

// Parses and renders in one go.
Result<std::vector<TextPiece>> render_chat(std::string_view source,
                                           const std::vector<ChatMessage>& messages,
                                           const ChatOptions& options);

// The text of all pieces.
std::string text_of_pieces(const std::vector<TextPiece>& pieces);

}  // namespace headrace
