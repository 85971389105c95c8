#include "headrace/model/tokenizer_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "headrace/model/unicode.h"

namespace headrace {
namespace {

// Backtracking memory of one match, in KiB, and steps: hostile text gets an error, not the machine.
constexpr uint32_t kHeapLimitKiB = 8 * 1024;
constexpr uint32_t kMatchLimit = 50'000'000;

// The expressions of the reference implementations. Named once; used by several names below.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kDigits3 = R"(\p{N}{1,3})";
constexpr const char* kNewline = R"([\r\n])";
constexpr const char* kDeepseekHan = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepseekKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kFalconPunctuation = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr const char* kDefaultPunctuation = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr const char* kThreeDigits = "[0-9][0-9][0-9]";
constexpr const char* kBloom = " ?[^(\\s|.,!?…。，、।۔،)]+";
constexpr const char* kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}|)"
    R"( ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kDeepseekWords =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
constexpr const char* kDeepseekPunctuation = "\\s?[!-/:-~！-／：-～‘-‟　-。]+";

struct Named {
  const char* names;  // each followed by one space
  std::vector<const char*> patterns;
};

const std::vector<Named>& all_named() {
  static const std::vector<Named>* const table = new std::vector<Named>{
      {"gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat modern-bert mellum a.x-4.0 "
       "exaone4 ",
       {kGpt2}},
      {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ", {kDigit, kGpt2}},
      {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
       "chatglm-bpe glm4 glm5 ",
       {kLlama3}},
      {"qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo ", {kQwen2}},
      {"qwen35 ", {kQwen35}},
      {"gpt-4o llama4 kanana2 minimax-m2 ", {kGpt4o}},
      {"tekken ", {kTekken}},
      {"deepseek-llm ",
       {kNewline, kDeepseekWords, kDeepseekPunctuation, R"(\s+$)", kDeepseekHan, R"(\p{N}+)"}},
      {"deepseek-coder ", {kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekHan, kDigit}},
      {"deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", {kDigits3, kDeepseekKana, kDeepseek3}},
      {"falcon ", {kFalconPunctuation, kGpt2, kThreeDigits}},
      {"default ", {kDefaultPunctuation, kGpt2, R"(\p{N}+)", kThreeDigits}},
      {"bloom poro-chat gpt3-finnish ", {kBloom}},
      {"viking ", {kBloom, kDigit}},
      {"seed-coder ", {kSeedCoder}},
      {"bailingmoe bailingmoe2 llada-moe ", {kBailing}},
  };
  return *table;
}

bool in_list(std::string_view name, std::string_view list) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return false;
  const std::string needle = " " + std::string(name) + " ";
  return (" " + std::string(list)).find(needle) != std::string::npos;
}

// The same expression with \s and \S as explicit sets: PCRE2's \s also takes U+180E, which is no
// White_Space since Unicode 6.3. Inside brackets \S cannot be expanded; PCRE2's own stays.
std::string with_unicode_spaces(std::string_view pattern) {
  constexpr std::string_view kSpaces = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? std::string(kSpaces) : "[" + std::string(kSpaces) + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + std::string(kSpaces) + "]";
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct Splitter::Pattern {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;

  ~Pattern() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }

  // Cuts text[begin, end) (valid UTF-8) and appends the ends of matches and gaps. `match` is
  // scratch of this call.
  Status cut(std::string_view text, size_t begin, size_t end, pcre2_match_data* match,
             std::vector<uint32_t>* ends) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
    const size_t length = end - begin;
    size_t at = 0;    // where the next match is searched from
    size_t done = 0;  // text before it has been given out
    while (at < length) {
      const int rc = pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK, match, limits);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0)
        return error(Code::kUnsupported,
                     "pre-tokenizer: matching stopped at byte %zu of %zu (PCRE2 error %d)",
                     begin + at, text.size(), rc);
      const size_t* range = pcre2_get_ovector_pointer(match);
      if (range[1] <= range[0]) {  // an empty match cuts nothing; step over one character
        at = range[0] + utf8_length(text.substr(begin + range[0], length - range[0]));
        if (at == range[0]) break;
        continue;
      }
      if (range[0] > done) ends->push_back(static_cast<uint32_t>(begin + range[0]));
      ends->push_back(static_cast<uint32_t>(begin + range[1]));
      at = done = range[1];
    }
    if (done < length) ends->push_back(static_cast<uint32_t>(end));
    return Status();
  }
};

Splitter::Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

Result<Splitter> Splitter::named(std::string_view pre) {
  for (const Named& entry : all_named()) {
    if (!in_list(pre, entry.names)) continue;
    return from_patterns(std::vector<std::string>(entry.patterns.begin(), entry.patterns.end()));
  }
  return error(Code::kUnsupported, "unknown pre-tokenizer \"%.*s\" (tokenizer.ggml.pre)",
               static_cast<int>(pre.size()), pre.data());
}

Result<Splitter> Splitter::from_patterns(const std::vector<std::string>& patterns) {
  Splitter out;
  for (const std::string& original : patterns) {
    const std::string text = with_unicode_spaces(original);
    auto pattern = std::make_unique<Pattern>();
    int code = 0;
    size_t offset = 0;
    pattern->code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
    if (pattern->code == nullptr) {
      char why[160] = "";
      pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(why), sizeof why);
      return error(Code::kUnsupported, "pre-tokenizer expression \"%s\": %s at %zu",
                   original.c_str(), why, offset);
    }
    pattern->limits = pcre2_match_context_create(nullptr);
    if (pattern->limits == nullptr) return error(Code::kDoesNotFit, "pre-tokenizer: no memory");
    pcre2_set_heap_limit(pattern->limits, kHeapLimitKiB);
    pcre2_set_match_limit(pattern->limits, kMatchLimit);
    out.patterns_.push_back(std::move(pattern));
  }
  return out;
}

Status Splitter::split(std::string_view text, std::vector<uint32_t>* ends) const {
  ends->clear();
  if (text.size() > UINT32_MAX)
    return error(Code::kUnsupported, "text of %zu bytes is too long to tokenize", text.size());
  // First the broken bytes: pieces are then valid UTF-8 or nothing but broken bytes.
  std::vector<bool> broken;
  for (size_t at = 0; at < text.size();) {
    const size_t good = utf8_valid_prefix(text.substr(at));
    if (good > 0) {
      ends->push_back(static_cast<uint32_t>(at += good));
      broken.push_back(false);
    }
    const size_t start = at;
    while (at < text.size() && utf8_length(text.substr(at)) == 0) ++at;
    if (at > start) {
      ends->push_back(static_cast<uint32_t>(at));
      broken.push_back(true);
    }
  }
  const std::vector<uint32_t> runs = *ends;
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create(16, nullptr), pcre2_match_data_free);
  if (match == nullptr) return error(Code::kDoesNotFit, "pre-tokenizer: no memory");
  std::vector<uint32_t> cut;
  for (const auto& pattern : patterns_) {
    cut.clear();
    size_t begin = 0;
    size_t run = 0;
    for (const uint32_t end : *ends) {
      while (runs[run] < end) ++run;
      if (broken[run]) {
        cut.push_back(end);
      } else {
        HR_TRY(pattern->cut(text, begin, end, match.get(), &cut));
      }
      begin = end;
    }
    ends->swap(cut);
  }
  return Status();
}

bool pre_takes_whole_words(std::string_view pre) {
  return in_list(pre,
                 "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5 "
                 "tekken ");
}

bool pre_normalizes_nfc(std::string_view pre) {
  return in_list(pre, "qwen2 qwen35 deepseek-r1-qwen gpt-neox ");
}

}  // namespace headrace
