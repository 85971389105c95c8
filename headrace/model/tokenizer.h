// Tokenizer: text to token ids and back.
//
// Vocabulary: see tokenizer_vocabulary.h. A *piece* is text with one bit: whether its
// author is trusted. Templates are; what a user typed is not.
//
// Promises
//   1. Special tokens are recognised only inside trusted text, and only if the caller
//      asks. Text of a user that spells "<|im_end|>" becomes ordinary tokens, also where
//      it touches trusted text. Added tokens (kUserDefined) that look like markers
//      ("<|x|>") count as special.
//   2. How text is divided into pieces does not matter otherwise: the words at a border
//      between pieces are tokenized as if there were none.
//   3. Any bytes can be encoded. Byte-level BPE and vocabularies with all 256 byte tokens
//      decode to the same bytes again; broken UTF-8 is never replaced.
//   4. Immutable after build; every const function may be called from several threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/model/tokenizer_merge.h"
#include "headrace/model/tokenizer_splitter.h"
#include "headrace/model/tokenizer_vocabulary.h"

namespace headrace {

struct TextPiece {
  std::string text;
  bool trusted = false;
};

struct EncodeOptions {
  bool add_bos =
      false;  // put the beginning-of-sequence token first, if the model has one
  bool add_eos = false;
  // Recognise special tokens in trusted text; encode(string) trusts its text when this is
  // set.
  bool parse_special = false;
  // The text goes on where other tokens end: it gets no space prefix.
  bool follows = false;
};

class Tokenizer {
 public:
  // Takes over the vocabulary. kBadFile: counts that do not match, ids out of range,
  // merges of unknown tokens. kUnsupported: an unknown pre-tokenizer, named.
  static Result<Tokenizer> build(Vocabulary vocabulary);

  Tokenizer(Tokenizer&&) noexcept = default;
  Tokenizer& operator=(Tokenizer&&) noexcept = default;

  // Token ids of `text`. Fails only on text beyond 4 GiB or beyond the pre-tokenizer's
  // matching limits (kUnsupported).
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options) const;
  // The same for text of several authors (promises 1 and 2).
  Result<std::vector<int32_t>> encode(const std::vector<TextPiece>& pieces,
                                      const EncodeOptions& options) const;

  // The bytes of one token: raw bytes, possibly part of a character. Special tokens give
  // their name when `show_special`, else nothing. An id out of range gives nothing.
  std::string token_bytes(int32_t id, bool show_special) const;
  // All bytes of `ids`. The space that encode() put before the text is taken off again.
  std::string decode(const std::vector<int32_t>& ids, bool show_special) const;

  // The id whose text in the file is exactly `text`, or -1.
  int32_t find(std::string_view text) const { return state_->index.find(text); }
  // The token as the file writes it ("Ġthe", "▁the"). Precondition: 0 <= id < size().
  std::string_view text(int32_t id) const { return state_->vocabulary.tokens[id]; }
  TokenKind kind(int32_t id) const;
  bool is_special(int32_t id) const;
  // True for every token that ends a turn or a text: eos, eot, eom and the known names of
  // them.
  bool is_end_of_generation(int32_t id) const;

  int32_t size() const { return static_cast<int32_t>(state_->vocabulary.tokens.size()); }
  int32_t bos() const { return state_->vocabulary.bos; }
  int32_t eos() const { return state_->vocabulary.eos; }
  int32_t unk() const { return state_->vocabulary.unk; }
  int32_t pad() const { return state_->vocabulary.pad; }
  // How ordinary text becomes tokens, and the name of the rules that divide it before
  // that; empty: the file gives the rules themselves, or there are none.
  TokenizerModel model() const { return state_->vocabulary.model; }
  std::string_view pre() const { return state_->vocabulary.pre; }
  // What the file says should be added to a plain prompt.
  bool add_bos() const { return state_->vocabulary.add_bos; }
  bool add_eos() const { return state_->vocabulary.add_eos; }
  // True when decode() takes one space off the start of a text.
  bool strips_leading_space() const { return state_->vocabulary.add_space_prefix; }
  // Memory held, by capacity.
  Bytes bytes() const;

 private:
  struct State {
    Vocabulary vocabulary;
    TokenIndex index;
    MergeTable merges;
    Splitter splitter;
    std::array<int32_t, 256>
        byte_ids{};                // token of each single byte, -1 if there is none
    std::vector<int32_t> ends;     // ascending
    std::vector<int32_t> markers;  // tokens matched as a whole, ordered by text
    std::array<bool, 256> marker_starts{};  // first bytes of them
    // No token has U+2581 after another character, so merging never crosses the start of
    // a word.
    bool words_separate = false;

    explicit State(Splitter s) : splitter(std::move(s)) {}
  };
  struct Run;

  explicit Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
  static Status check(const Vocabulary& vocabulary);
  static void find_byte_tokens(State* state);
  static void find_markers(State* state);
  static void find_ends(State* state);
  bool joinable(int32_t id) const;
  Join ranked_join(int32_t left, int32_t right) const;
  Status encode_text(std::string_view text, const std::vector<uint32_t>& trusted,
                     Run* run) const;
  int32_t match_marker(std::string_view text, size_t trusted_bytes) const;
  Status encode_plain(std::string_view text, Run* run) const;
  Status encode_words(std::string_view text, Run* run) const;
  void encode_word(std::string_view word, Run* run) const;
  void encode_characters(std::string_view text, Run* run) const;
  void encode_character_word(std::string_view text, Run* run) const;
  void emit_characters(std::string_view text, Run* run) const;

  std::unique_ptr<State> state_;  // on the heap: the index points into the vocabulary
};

}  // namespace headrace
