// Vocabulary: what a model file says about its tokenizer, in one lean form. Adapters fill
// it from GGUF metadata (tokenizer_gguf.h) or from a Hugging Face tokenizer.json
// (tokenizer_json.h); a Tokenizer is built from it and keeps what it needs.
//
// Vocabulary of words
//   id        the index of a token; int32_t in token streams.
//   kind      what a token is for (TokenKind); the numbers are GGUF's.
//   special   kControl and kUnknown tokens: matched in trusted text only, hidden when
//             decoding.
//   added     kUserDefined tokens: matched in any text before the model's own rules are
//             applied.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headrace/model/model_file.h"

namespace headrace {

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// How ordinary text becomes tokens.
enum class TokenizerModel : uint8_t {
  kByteBpe,      // merges by rank over bytes (GGUF "gpt2")
  kCharBpe,      // merges by rank over characters, bytes as fallback (HF "BPE" with
                 // byte_fallback)
  kScoredChars,  // merges by score over characters, bytes as fallback (GGUF "llama")
};

// What a token swallows beside its own text (HF added tokens).
enum TokenTrim : uint8_t { kTrimNone = 0, kTrimLeft = 1, kTrimRight = 2 };

struct Vocabulary {
  TokenizerModel model = TokenizerModel::kByteBpe;
  // Name of a list of regular expressions (tokenizer.ggml.pre); byte BPE only. Empty when
  // `split_patterns` gives the expressions themselves.
  std::string pre;
  std::vector<std::string> split_patterns;
  bool split_none = false;  // the whole text is one word

  // [tokens] As the file has them: normal tokens of byte BPE are written in GPT-2's byte
  // alphabet.
  StringList tokens;
  std::vector<TokenKind> kinds;  // [tokens], or empty: all normal
  std::vector<float> scores;     // [tokens], kScoredChars only
  std::vector<uint8_t> trims;    // [tokens] of TokenTrim bits, or empty
  // "left right", by rank; the separator is the first one after the first byte.
  StringList merges;
  char merge_separator = ' ';

  int32_t bos = -1;
  int32_t eos = -1;
  int32_t eot = -1;
  int32_t eom = -1;
  int32_t unk = -1;
  int32_t pad = -1;
  // Further ids that end a generation.
  std::vector<int32_t> more_ends;

  bool add_bos = false;
  bool add_eos = false;
  // A space goes before the text (and after a special token when `space_after_special`).
  bool add_space_prefix = false;
  bool space_after_special = true;
  bool prefix_only_if_missing = false;  // ... unless the text starts with one
  // Spaces are written U+2581 in tokens (character models).
  bool escape_spaces = false;
  // A whole word that is a token is taken as it is, whatever the merges say (llama 3).
  bool whole_words_first = false;
  // The text is brought to Unicode normal form C first (qwen2).
  bool normalize_nfc = false;
};

}  // namespace headrace
