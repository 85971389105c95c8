// Tokenizer::build: checks a Vocabulary and derives the tables from it.
#include <algorithm>
#include <cmath>

#include "headrace/model/tokenizer.h"
#include "headrace/model/tokenizer_alphabet.h"

namespace headrace {
namespace {

// Names of tokens that end a turn or a text in the model families we know. A model may
// have a token of such a name without saying so in its metadata (llama 3's <|eot_id|> is
// the classic).
constexpr std::string_view kEndNames[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|return|>",
    "<|call|>",
    "<turn|>",
    "<|end_of_turn|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
};

// Markers of chat templates that some files call "user defined" although they steer the
// model.
constexpr std::string_view kMarkerNames[] = {
    "<start_of_turn>",   "<end_of_turn>",      "[INST]",           "[/INST]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",     "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",   "[SYSTEM_PROMPT]",    "[/SYSTEM_PROMPT]", "<|turn>",
    "<turn|>",           "<start_of_image>",   "<end_of_image>",
};

bool wrapped(std::string_view text, std::string_view open, std::string_view close) {
  return text.size() > open.size() + close.size() && text.starts_with(open) &&
         text.ends_with(close);
}

// True for a token that a user must not be able to type.
bool looks_like_marker(std::string_view text) {
  if (wrapped(text, "<|", "|>") || wrapped(text, "<｜", "｜>")) return true;
  return std::find(std::begin(kMarkerNames), std::end(kMarkerNames), text) !=
         std::end(kMarkerNames);
}

// Some files give tokens that steer the model as "user defined" or even "normal"; a user
// must not be able to type those, and a template must.
void find_control_tokens(const TokenIndex& index, Vocabulary* v) {
  if (v->kinds.empty()) v->kinds.assign(v->tokens.size(), TokenKind::kNormal);
  for (size_t i = 0; i < v->kinds.size(); ++i)
    if (v->kinds[i] == TokenKind::kUserDefined && looks_like_marker(v->tokens[i]))
      v->kinds[i] = TokenKind::kControl;
  const auto make_control = [&](int32_t id) {
    if (id < 0) return;
    const bool marker = looks_like_marker(v->tokens[id]) || v->tokens[id] == "</s>" ||
                        v->tokens[id] == "<s>";
    if (v->kinds[id] == TokenKind::kUserDefined ||
        (v->kinds[id] == TokenKind::kNormal && marker))
      v->kinds[id] = TokenKind::kControl;
  };
  for (const int32_t id : {v->bos, v->eos, v->eot, v->eom}) make_control(id);
  for (const std::string_view name : kEndNames)
    if (looks_like_marker(name)) make_control(index.find(name));
  // llama 2 and its heirs; elsewhere these texts may be HTML tags (gemma).
  for (const std::string_view name : {"<s>", "</s>"})
    if (const int32_t id = index.find(name); id >= 0 && id < 3) make_control(id);
}

Status check_id(const char* name, int32_t id, size_t tokens) {
  if (id >= -1 && id < static_cast<int64_t>(tokens)) return Status();
  return error(Code::kBadFile, "tokenizer: the %s token id %d is outside the %zu tokens",
               name, id, tokens);
}

Status check_count(const char* name, size_t count, size_t tokens) {
  if (count == 0 || count == tokens) return Status();
  return error(Code::kBadFile, "tokenizer: %zu %s for %zu tokens", count, name, tokens);
}

}  // namespace

Status Tokenizer::check(const Vocabulary& v) {
  const size_t n = v.tokens.size();
  if (n == 0) return error(Code::kBadFile, "tokenizer: no tokens");
  HR_TRY(check_count("token types", v.kinds.size(), n));
  HR_TRY(check_count("scores", v.scores.size(), n));
  HR_TRY(check_count("trim flags", v.trims.size(), n));
  if (v.model == TokenizerModel::kScoredChars && v.scores.empty())
    return error(Code::kBadFile, "tokenizer: a score-driven vocabulary without scores");
  for (size_t i = 0; i < v.scores.size(); ++i)
    if (std::isnan(v.scores[i]))
      return error(Code::kBadFile, "tokenizer: the score of token %zu is not a number",
                   i);
  for (size_t i = 0; i < v.kinds.size(); ++i)
    if (v.kinds[i] < TokenKind::kNormal || v.kinds[i] > TokenKind::kByte)
      return error(Code::kBadFile, "tokenizer: token %zu has the unknown type %d", i,
                   static_cast<int>(v.kinds[i]));
  HR_TRY(check_id("bos", v.bos, n));
  HR_TRY(check_id("eos", v.eos, n));
  HR_TRY(check_id("eot", v.eot, n));
  HR_TRY(check_id("eom", v.eom, n));
  HR_TRY(check_id("unk", v.unk, n));
  HR_TRY(check_id("pad", v.pad, n));
  for (const int32_t id : v.more_ends) HR_TRY(check_id("end", id, n));
  return Status();
}

Result<Tokenizer> Tokenizer::build(Vocabulary vocabulary) {
  HR_TRY(check(vocabulary));
  Result<Splitter> splitter = Splitter::from_patterns({});
  if (vocabulary.model == TokenizerModel::kByteBpe && !vocabulary.split_none)
    splitter = vocabulary.split_patterns.empty()
                   ? Splitter::named(vocabulary.pre)
                   : Splitter::from_patterns(vocabulary.split_patterns);
  if (!splitter.ok()) return splitter.status();
  auto state = std::make_unique<State>(std::move(splitter).value());
  state->vocabulary = std::move(vocabulary);
  Vocabulary& v = state->vocabulary;
  HR_TRY(state->index.build(&v.tokens));
  find_control_tokens(state->index, &v);
  HR_TRY(state->merges.build(v.merges, v.merge_separator, state->index));
  v.merges = StringList();
  find_byte_tokens(state.get());
  find_markers(state.get());
  find_ends(state.get());
  return Tokenizer(std::move(state));
}

void Tokenizer::find_byte_tokens(State* state) {
  const Vocabulary& v = state->vocabulary;
  for (int b = 0; b < 256; ++b) {
    std::string name;
    if (v.model == TokenizerModel::kByteBpe)
      append_alphabet(static_cast<uint8_t>(b), &name);
    else
      name = text_of("<0x%02X>", b);
    state->byte_ids[b] = state->index.find(name);
  }
  if (v.model == TokenizerModel::kByteBpe) return;
  // A mark that follows another character inside a token: look for it in the whole pool,
  // then check that both lie in one token.
  constexpr std::string_view kMark = "\xE2\x96\x81";
  const std::string_view pool = v.tokens.pool;
  state->words_separate = v.escape_spaces;
  size_t token = 0;
  for (size_t at = pool.find(kMark);
       at != std::string_view::npos && state->words_separate;
       at = pool.find(kMark, at + 3)) {
    while (v.tokens.ends[token] <= at) ++token;
    const size_t begin = token == 0 ? 0 : v.tokens.ends[token - 1];
    const bool inside =
        at > begin && !(at >= begin + 3 && pool.substr(at - 3, 3) == kMark);
    const bool merged = v.kinds.empty() || v.kinds[token] == TokenKind::kNormal;
    if (inside && merged) state->words_separate = false;
  }
}

void Tokenizer::find_markers(State* state) {
  const Vocabulary& v = state->vocabulary;
  for (size_t i = 0; i < v.kinds.size(); ++i) {
    const TokenKind k = v.kinds[i];
    const bool whole = k == TokenKind::kControl || k == TokenKind::kUserDefined ||
                       k == TokenKind::kUnknown;
    if (!whole || v.tokens[i].empty()) continue;
    state->markers.push_back(static_cast<int32_t>(i));
    state->marker_starts[static_cast<uint8_t>(v.tokens[i][0])] = true;
  }
  std::sort(state->markers.begin(), state->markers.end(), [&](int32_t a, int32_t b) {
    const int order = v.tokens[a].compare(v.tokens[b]);
    return order != 0 ? order < 0 : a < b;
  });
}

void Tokenizer::find_ends(State* state) {
  const Vocabulary& v = state->vocabulary;
  std::vector<int32_t>& ends = state->ends;
  ends = v.more_ends;
  for (const int32_t id : {v.eos, v.eot, v.eom})
    if (id >= 0) ends.push_back(id);
  for (const std::string_view name : kEndNames) {
    const int32_t id = state->index.find(name);
    if (id >= 0 && !v.kinds.empty() && v.kinds[id] == TokenKind::kControl)
      ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
}

}  // namespace headrace
