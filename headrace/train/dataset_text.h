// TextCutter: divides a long text into parts that can be tokenized one by one.
//
// Where it cuts, the rules that divide text into words cut as well, in every tokenizer that we
// read: before a line that begins with a letter, a digit or a mark, when the line before ends with
// one (a single line end between two characters that are no space). Tokenizers that put a space
// before a text are given parts that have lost one: the cut is a single space between two such
// characters, and the space is left out. So the tokens are those of the whole text. Where a text
// has no such place for kMostPart bytes, it is cut before a character.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

class TextCutter {
 public:
  static constexpr size_t kPart = 1 << 16;      // parts are about so long
  static constexpr size_t kMostPart = 1 << 20;  // and never longer

  explicit TextCutter(bool at_spaces) : cut_(at_spaces ? ' ' : '\n'), drops_(at_spaces) {}

  void push(std::string_view text) { held_ += text; }
  // The next part; nothing when more text must come first, or with `last` when all has been given.
  std::optional<std::string> next(bool last);

 private:
  size_t find_cut() const;

  char cut_;
  bool drops_;
  std::string held_;
};

}  // namespace headrace
