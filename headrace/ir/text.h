// The text form's lexer and number formats, shared by Graph and Program.
//
// A form is lines of words; a word is a run of non-blank characters or a "quoted string" with \"
// and \\ escapes. Parsers read line by line and report the line number of what they refuse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"

namespace headrace::text {

// `s` in quotes, with " and \ escaped.
std::string quoted(std::string_view s);
// The shortest decimal that reads back as exactly `value`.
std::string number(double value);

// Reads a text line by line, each line as words. Blank lines and lines starting with # are skipped.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  // Moves to the next line; false at the end.
  bool next_line();
  // Words left on this line?
  bool more() const { return word_ < words_.size(); }
  const std::string& peek() const;
  // The next word. An error, with the line number, when the line has ended.
  Result<std::string> word();
  Result<int64_t> integer();
  Result<double> real();
  // Takes the next word if it is `expected`; otherwise an error.
  Status expect(std::string_view expected);
  // An error that names the line.
  Status fail(const std::string& what) const;

 private:
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 0;
  std::vector<std::string> words_;
  size_t word_ = 0;
};

}  // namespace headrace::text
