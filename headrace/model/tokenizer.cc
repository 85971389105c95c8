#include "headrace/model/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "headrace/model/tokenizer_alphabet.h"
#include "headrace/model/unicode.h"
#include "headrace/model/unicode_nfc.h"

namespace headrace {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, a space inside a token

// A key that sorts as the score does, best (highest) first. NaN is refused when building.
uint32_t key_of_score(float score) {
  uint32_t bits;
  static_assert(sizeof bits == sizeof score);
  std::memcpy(&bits, &score, sizeof bits);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

}  // namespace

// Scratch memory of one encode() call.
struct Tokenizer::Run {
  std::vector<int32_t> out;
  MergeScratch scratch;
  std::vector<uint32_t> ends;
  std::string buffer;
  bool first = true;
  bool after_special = true;  // the text begins here or a special token went before
};

bool Tokenizer::joinable(int32_t id) const {
  const TokenKind k = kind(id);
  return k == TokenKind::kNormal || k == TokenKind::kUserDefined ||
         k == TokenKind::kUnused;
}

// Merging never yields a special token, whatever the file says.
Join Tokenizer::ranked_join(int32_t left, int32_t right) const {
  const Join join = state_->merges.find(left, right);
  return join.id >= 0 && joinable(join.id) ? join : Join{};
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  return encode({TextPiece{std::string(text), options.parse_special}}, options);
}

Result<std::vector<int32_t>> Tokenizer::encode(const std::vector<TextPiece>& pieces,
                                               const EncodeOptions& options) const {
  std::string joined;
  // Trusted intervals of `joined`: begin, end, begin, end, ...
  std::vector<uint32_t> trusted;
  for (const TextPiece& piece : pieces) {
    if (joined.size() + piece.text.size() > UINT32_MAX / 2)
      return error(Code::kUnsupported, "a text beyond 2 GiB cannot be tokenized");
    const auto begin = static_cast<uint32_t>(joined.size());
    joined += piece.text;
    if (!piece.trusted || !options.parse_special || piece.text.empty()) continue;
    if (!trusted.empty() && trusted.back() == begin)
      trusted.pop_back();
    else
      trusted.push_back(begin);
    trusted.push_back(static_cast<uint32_t>(joined.size()));
  }
  Run run;
  if (options.follows) run.first = run.after_special = false;
  if (options.add_bos && bos() >= 0) run.out.push_back(bos());
  HR_TRY(encode_text(joined, trusted, &run));
  if (options.add_eos && eos() >= 0) run.out.push_back(eos());
  return std::move(run.out);
}

Status Tokenizer::encode_text(std::string_view text, const std::vector<uint32_t>& trusted,
                              Run* run) const {
  const std::vector<uint8_t>& trims = state_->vocabulary.trims;
  size_t begin = 0;  // of the plain text before the next marker
  size_t interval = 0;
  for (size_t at = 0; at < text.size();) {
    if (!state_->marker_starts[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    while (interval < trusted.size() && trusted[interval + 1] <= at) interval += 2;
    const bool inside = interval < trusted.size() && trusted[interval] <= at;
    const int32_t id =
        match_marker(text.substr(at), inside ? trusted[interval + 1] - at : 0);
    if (id < 0) {
      ++at;
      continue;
    }
    size_t end = at;
    const uint8_t trim = trims.empty() ? uint8_t{kTrimNone} : trims[id];
    if (trim & kTrimLeft)
      while (end > begin && is_space(text[end - 1])) --end;
    HR_TRY(encode_plain(text.substr(begin, end - begin), run));
    run->out.push_back(id);
    run->after_special = true;
    at += this->text(id).size();
    if (trim & kTrimRight)
      while (at < text.size() && is_space(text[at])) ++at;
    begin = at;
  }
  return encode_plain(text.substr(begin), run);
}

// The longest marker that `text` starts with and that may be recognised, or -1. The
// markers are ordered by text: those with a common prefix are a range that each byte
// narrows.
int32_t Tokenizer::match_marker(std::string_view text, size_t trusted_bytes) const {
  const std::vector<int32_t>& markers = state_->markers;
  size_t low = 0;
  size_t high = markers.size();
  int32_t best = -1;
  for (size_t depth = 0; depth < text.size() && low < high; ++depth) {
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto byte_at = [&](int32_t id) {
      const std::string_view t = this->text(id);
      return t.size() > depth ? static_cast<int>(static_cast<uint8_t>(t[depth])) : -1;
    };
    const auto first = markers.begin();
    low = std::partition_point(first + low, first + high,
                               [&](int32_t id) { return byte_at(id) < byte; }) -
          first;
    high = std::partition_point(first + low, first + high,
                                [&](int32_t id) { return byte_at(id) == byte; }) -
           first;
    if (low == high) break;
    const int32_t id = markers[low];
    if (this->text(id).size() != depth + 1) continue;
    if (!is_special(id) || depth + 1 <= trusted_bytes) best = id;
  }
  return best;
}

Status Tokenizer::encode_plain(std::string_view text, Run* run) const {
  if (text.empty()) return Status();
  const Vocabulary& v = state_->vocabulary;
  std::string normal;
  if (v.normalize_nfc && !is_nfc_quick(text)) {
    normal = to_nfc(text);
    text = normal;
  }
  if (v.model == TokenizerModel::kByteBpe) {
    HR_TRY(encode_words(text, run));
  } else {
    std::string escaped;
    const bool prefix = v.add_space_prefix && run->after_special &&
                        (run->first || v.space_after_special) &&
                        !(v.prefix_only_if_missing &&
                          (text.starts_with(' ') || text.starts_with(kSpaceMark)));
    escaped.reserve(text.size() + text.size() / 2 + 4);
    if (prefix) escaped += v.escape_spaces ? kSpaceMark : " ";
    for (const char c : text) {
      if (c == ' ' && v.escape_spaces)
        escaped += kSpaceMark;
      else
        escaped += c;
    }
    encode_characters(escaped, run);
  }
  run->first = false;
  run->after_special = false;
  return Status();
}

Status Tokenizer::encode_words(std::string_view text, Run* run) const {
  HR_TRY(state_->splitter.split(text, &run->ends));
  size_t begin = 0;
  for (const uint32_t end : run->ends) {
    encode_word(text.substr(begin, end - begin), run);
    begin = end;
  }
  return Status();
}

void Tokenizer::encode_word(std::string_view word, Run* run) const {
  if (state_->vocabulary.whole_words_first) {
    run->buffer.clear();
    for (const char c : word) append_alphabet(static_cast<uint8_t>(c), &run->buffer);
    const int32_t id = state_->index.find(run->buffer);
    if (id >= 0 && joinable(id)) {
      run->out.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = run->scratch.symbols;
  symbols.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    const auto n = static_cast<int32_t>(i);
    symbols.push_back({n - 1, i + 1 < word.size() ? n + 1 : -1,
                       state_->byte_ids[static_cast<uint8_t>(word[i])],
                       static_cast<uint32_t>(i), 1});
  }
  merge_symbols(&run->scratch, [&](const Symbol& left, const Symbol& right) {
    return ranked_join(left.id, right.id);
  });
  // A byte that no token has is left out, as the references do.
  for (int32_t i = 0; i >= 0; i = symbols[i].next)
    if (symbols[i].id >= 0) run->out.push_back(symbols[i].id);
}

void Tokenizer::encode_characters(std::string_view text, Run* run) const {
  size_t begin = 0;
  if (state_->words_separate) {
    // Cut before every space mark that follows something else.
    size_t at = text.find(kSpaceMark);
    while (at != std::string_view::npos) {
      const bool after_mark = at >= begin + 3 && text.substr(at - 3, 3) == kSpaceMark;
      if (at > begin && !after_mark) {
        encode_character_word(text.substr(begin, at - begin), run);
        begin = at;
      }
      at = text.find(kSpaceMark, at + 3);
    }
  }
  encode_character_word(text.substr(begin), run);
}

void Tokenizer::encode_character_word(std::string_view text, Run* run) const {
  std::vector<Symbol>& symbols = run->scratch.symbols;
  symbols.clear();
  for (size_t at = 0; at < text.size();) {
    const int known = utf8_length(text.substr(at));
    const int length = known == 0 ? 1 : known;
    int32_t id = known == 0 ? -1 : state_->index.find(text.substr(at, length));
    if (id >= 0 && !joinable(id)) id = -1;
    const auto n = static_cast<int32_t>(symbols.size());
    symbols.push_back(
        {n - 1, n + 1, id, static_cast<uint32_t>(at), static_cast<uint32_t>(length)});
    at += length;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  if (state_->vocabulary.model == TokenizerModel::kScoredChars) {
    const std::vector<float>& scores = state_->vocabulary.scores;
    merge_symbols(&run->scratch, [&](const Symbol& left, const Symbol& right) -> Join {
      const int32_t id =
          state_->index.find(text.substr(left.begin, left.length + right.length));
      if (id < 0 || !joinable(id)) return {};
      return {key_of_score(scores[id]), id};
    });
  } else {
    merge_symbols(&run->scratch, [&](const Symbol& left, const Symbol& right) {
      return ranked_join(left.id, right.id);
    });
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    if (symbols[i].id >= 0)
      run->out.push_back(symbols[i].id);
    else
      emit_characters(text.substr(symbols[i].begin, symbols[i].length), run);
  }
}

// A character that is no token: its byte tokens if there are all, else the unknown token.
void Tokenizer::emit_characters(std::string_view text, Run* run) const {
  const bool bytes = std::all_of(text.begin(), text.end(), [&](char c) {
    return state_->byte_ids[static_cast<uint8_t>(c)] >= 0;
  });
  if (!bytes) {
    if (unk() >= 0) run->out.push_back(unk());
    return;
  }
  for (const char c : text) run->out.push_back(state_->byte_ids[static_cast<uint8_t>(c)]);
}

TokenKind Tokenizer::kind(int32_t id) const {
  const auto& kinds = state_->vocabulary.kinds;
  return kinds.empty() ? TokenKind::kNormal : kinds[id];
}

bool Tokenizer::is_special(int32_t id) const {
  if (id < 0 || id >= size()) return false;
  const TokenKind k = kind(id);
  return k == TokenKind::kControl || k == TokenKind::kUnknown;
}

bool Tokenizer::is_end_of_generation(int32_t id) const {
  return std::binary_search(state_->ends.begin(), state_->ends.end(), id);
}

std::string Tokenizer::token_bytes(int32_t id, bool show_special) const {
  if (id < 0 || id >= size()) return "";
  const std::string_view text = this->text(id);
  const TokenKind k = kind(id);
  if (is_special(id)) return show_special ? std::string(text) : "";
  if (k == TokenKind::kUserDefined) return std::string(text);
  if (state_->vocabulary.model == TokenizerModel::kByteBpe)
    return bytes_of_alphabet(text);
  if (const int byte = byte_token_value(text); byte >= 0 && k != TokenKind::kUnused)
    return std::string(1, static_cast<char>(byte));
  if (!state_->vocabulary.escape_spaces) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at, 3) == kSpaceMark) {
      out += ' ';
      at += 3;
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids, bool show_special) const {
  std::string out;
  bool start = strips_leading_space();
  for (const int32_t id : ids) {
    const std::string bytes = token_bytes(id, show_special);
    const bool strip = start && !is_special(id) && !bytes.empty() && bytes[0] == ' ';
    if (!is_special(id) && !bytes.empty()) start = false;
    out.append(bytes, strip ? 1 : 0);
  }
  return out;
}

Bytes Tokenizer::bytes() const {
  const Vocabulary& v = state_->vocabulary;
  size_t n = sizeof(State) + v.tokens.pool.capacity() + v.tokens.ends.capacity() * 4 +
             v.kinds.capacity() + v.scores.capacity() * 4 + v.trims.capacity() +
             (state_->ends.capacity() + state_->markers.capacity()) * 4;
  return static_cast<Bytes>(n) + state_->index.bytes() + state_->merges.bytes();
}

}  // namespace headrace
