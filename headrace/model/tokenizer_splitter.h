// Splitter: cuts text into the words that byte-level BPE merges within ("pre-tokenizer").
//
// A splitter is a list of regular expressions. The first is matched over the text; its
// matches and the gaps between them become pieces; the next one cuts each piece again,
// and so on. That is what Hugging Face's `Split(behavior=isolated)` in a `Sequence` does.
//
// Promises
//   1. The pieces are in order and cover the text exactly.
//   2. Text that is not UTF-8 is cut at the broken bytes: a run of bytes that belong to
//      no character is one piece, and no expression sees it. Deterministic and lossless.
//   3. `\s` and `\S` mean Unicode White_Space, as in the reference, not PCRE2's own set.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"

namespace headrace {

class Splitter {
 public:
  // The expressions of a name that GGUF files give in tokenizer.ggml.pre. kUnsupported
  // names an unknown one.
  static Result<Splitter> named(std::string_view pre);
  // Expressions in the syntax of tokenizer.json (Oniguruma); kUnsupported quotes one that
  // PCRE2 does not take. An empty list does not cut at all.
  static Result<Splitter> from_patterns(const std::vector<std::string>& patterns);

  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  // Writes the end offset of each piece to `ends` (cleared first). Empty text has no
  // piece. kUnsupported when an expression exceeds its matching limits on this text. Safe
  // to call from several threads.
  Status split(std::string_view text, std::vector<uint32_t>* ends) const;

 private:
  struct Pattern;
  Splitter();
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

// True when tokenizer.ggml.pre `pre` implies that whole words which are tokens are not
// merged.
bool pre_takes_whole_words(std::string_view pre);
// True when the tokenizer of that name normalises its text to NFC.
bool pre_normalizes_nfc(std::string_view pre);
// The expressions of a name, in the syntax of tokenizer.json; empty when it is unknown.
std::vector<std::string> patterns_of_pre(std::string_view pre);
// The first name with these expressions for which both functions above say the same; empty
// when there is none.
std::string pre_of_patterns(const std::vector<std::string>& patterns, bool whole_words,
                            bool nfc);

}  // namespace headrace
