// StreamDecoder: turns tokens into text as they are generated.
//
// A token may end inside a character; the decoder holds such bytes back until the
// character is whole. Promises
//   1. What it gives out is always valid UTF-8, and the concatenation is what decoding
//      all tokens at once gives, with every maximal broken part replaced by one U+FFFD
//      (the practice that Unicode recommends, section 3.9, and Python's
//      errors="replace").
//   2. At most 3 bytes are held back.
#pragma once

#include <cstdint>
#include <string>

#include "headrace/model/tokenizer.h"

namespace headrace {

struct StreamOptions {
  bool show_special = false;
  // Take one space off the start of the text if the tokenizer puts one there. For a text
  // that starts at its first token, not for the continuation of a prompt.
  bool strip_leading_space = false;
};

class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, const StreamOptions& options);

  // The text that became complete with this token; may be empty.
  std::string push(int32_t id);
  // What is left at the end: U+FFFD for a character that was never completed, else
  // nothing. The decoder is then as new.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  StreamOptions options_;
  bool at_start_ = true;
  std::string held_;
};

// Moves from the front of `held` what is decided: whole characters, and U+FFFD for every maximal
// broken part. What may become a character with more bytes stays, unless no more come (`all`).
std::string take_utf8(std::string* held, bool all);

// `bytes` with every maximal broken part replaced by U+FFFD.
std::string valid_utf8(std::string_view bytes);

}  // namespace headrace
