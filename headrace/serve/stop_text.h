// StopText: from the bytes of generated tokens to the text that a client may have.
//
// Promises
//   1. The text is valid UTF-8. Together it is the bytes before the first stop string that becomes
//      complete (of those that do so with the same byte: the longest), every maximal broken part
//      replaced by one U+FFFD (valid_utf8 of model/tokenizer_stream.h). It does not depend on how
//      the bytes are divided into tokens.
//   2. No part of a stop string that may still become complete is given out: the longest suffix
//      that begins a stop string is held back, and so are characters that are not whole.
//   3. Each byte costs about one comparison a stop string, whatever the strings (Knuth, Morris and
//      Pratt, "Fast pattern matching in strings", 1977). Memory: two bytes for each of a stop
//      string, what is held back, and 8 bytes for each token that is.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class StopText {
 public:
  static constexpr size_t kMostStopBytes = 1024;

  // Each stop string has 1 to kMostStopBytes bytes and is valid UTF-8.
  explicit StopText(const std::vector<std::string>& stops = {});

  // Takes all bytes of the next token (Tokenizer::token_bytes; may be none) and appends to *text
  // what became certain. True when a stop string is complete: all text before it is out then, and
  // nothing may be pushed any more.
  bool push(std::string_view token, std::string* text);
  // No more tokens follow: appends what is held back (an unfinished character becomes U+FFFD).
  void finish(std::string* text);

  // Tokens, from the first, of which all text is out. After a stop: those that begin before the
  // stop string; after finish(): all.
  int64_t tokens_out() const { return tokens_out_; }
  bool stopped() const { return stopped_; }

 private:
  struct Pattern {
    std::string text;
    // [i]: length of the longest proper prefix of text[0, i] that is a suffix of it too.
    std::vector<uint16_t> borders;
    size_t matched = 0;  // of text, at the end of what was pushed
  };
  size_t advance(char byte);
  void give_out(size_t bytes, bool all, std::string* text);

  std::vector<Pattern> patterns_;
  std::string held_;                // pushed and not out
  int64_t pushed_ = 0;              // bytes
  std::deque<int64_t> token_ends_;  // of tokens that are not out, in bytes pushed
  int64_t last_end_ = 0;            // of the last one that is
  int64_t tokens_out_ = 0;
  bool stopped_ = false;
};

}  // namespace headrace
