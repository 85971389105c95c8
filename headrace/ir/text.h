// The text form's lexer and number formats, shared by Graph and Program.
//
// A form is lines of words; a word is a run of non-blank characters or a "quoted string" in which
// a backslash stands before " and \ and makes n a line feed, r a carriage return. Parsers read line
// by line and report the line number of what they refuse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"

namespace headrace {
struct Graph;
}

namespace headrace::text {

// `s` in quotes, escaped: one word on one line, whatever bytes it holds.
std::string quoted(std::string_view s);
// The shortest decimal that reads back as exactly `value`.
std::string number(double value);

// Reads a text line by line, each line as words. Blank lines and lines starting with # are skipped.
class Reader {
 public:
  // `lines_before`: how many lines of the file come before `text`, for messages.
  explicit Reader(std::string_view text, int lines_before = 0)
      : text_(text), line_(lines_before) {}
  // Moves to the next line; false at the end.
  bool next_line();
  // Words left on this line?
  bool more() const { return word_ < words_.size(); }
  const std::string& peek() const;
  // The next word. An error, with the line number, when the line has ended.
  Result<std::string> word();
  Result<int64_t> integer();
  // An integer of 32 bits: indices, steps, counts of things that are in memory.
  Result<int32_t> small_integer();
  Result<double> real();
  // Takes the next word if it is `expected`, and not in quotes; otherwise an error.
  Status expect(std::string_view expected);
  // The same, but a word that is not there is no error.
  bool take(std::string_view expected);
  // An error that names the line.
  Status fail(const std::string& what) const;

 private:
  std::string unquoted(std::string_view line, size_t& i);

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 0;
  bool open_quote_ = false;  // this line ends inside a quoted string
  std::vector<std::string> words_;
  std::vector<bool> in_quotes_;  // by word
  size_t word_ = 0;
};

// Reads a Graph to the end of `in`: the graph's own text, or the tail of a Program's.
Result<Graph> read_graph(Reader& in);

}  // namespace headrace::text
