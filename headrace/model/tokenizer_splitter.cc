#include "headrace/model/tokenizer_splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "headrace/model/unicode.h"

namespace headrace {
namespace {

// Backtracking memory of one match, in KiB, and steps: hostile text gets an error, not
// the machine.
constexpr uint32_t kHeapLimitKiB = 8 * 1024;
constexpr uint32_t kMatchLimit = 50'000'000;

// The expressions of the reference implementations. Named once; used by several names
// below.
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
constexpr const char* kDeepseekHan =
    R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepseekKana =
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
    R"([^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
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
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4})"
    R"(-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F})"
    R"(\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481})"
    R"(\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-)"
    R"(\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77})"
    R"(\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-)"
    R"(\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-)"
    R"(\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-)"
    R"(\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC})"
    R"(\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126})"
    R"(\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-)"
    R"(\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-)"
    R"(\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-)"
    R"(\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-)"
    R"(\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-)"
    R"(\x{118DF}\x{1E900}-\x{1E943}]+)";
constexpr const char* kDeepseekPunctuation =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002})"
    R"(]+)";

struct Named {
  const char* names;  // each followed by one space
  std::vector<const char*> patterns;
};

const std::vector<Named>& all_named() {
  static const std::vector<Named>* const table = new std::vector<Named>{
      {"gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat modern-bert mellum "
       "a.x-4.0 "
       "exaone4 ",
       {kGpt2}},
      {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
       {kDigit, kGpt2}},
      {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
       "chatglm-bpe glm4 glm5 ",
       {kLlama3}},
      {"qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo ",
       {kQwen2}},
      {"qwen35 ", {kQwen35}},
      {"gpt-4o llama4 kanana2 minimax-m2 ", {kGpt4o}},
      {"tekken ", {kTekken}},
      {"deepseek-llm ",
       {kNewline, kDeepseekWords, kDeepseekPunctuation, R"(\s+$)", kDeepseekHan,
        R"(\p{N}+)"}},
      {"deepseek-coder ",
       {kNewline, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekHan, kDigit}},
      {"deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
       {kDigits3, kDeepseekKana, kDeepseek3}},
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

// The same expression with \s and \S as explicit sets: PCRE2's \s also takes U+180E,
// which is no White_Space since Unicode 6.3. Inside brackets \S cannot be expanded;
// PCRE2's own stays.
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

  // Cuts text[begin, end) (valid UTF-8) and appends the ends of matches and gaps. `match`
  // is scratch of this call.
  Status cut(std::string_view text, size_t begin, size_t end, pcre2_match_data* match,
             std::vector<uint32_t>* ends) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
    const size_t length = end - begin;
    size_t at = 0;    // where the next match is searched from
    size_t done = 0;  // text before it has been given out
    while (at < length) {
      const int rc =
          pcre2_match(code, subject, length, at, PCRE2_NO_UTF_CHECK, match, limits);
      if (rc == PCRE2_ERROR_NOMATCH) break;
      if (rc < 0)
        return error(
            Code::kUnsupported,
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
    return from_patterns(
        std::vector<std::string>(entry.patterns.begin(), entry.patterns.end()));
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
    pattern->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
    if (pattern->code == nullptr) {
      char why[160] = "";
      pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(why), sizeof why);
      return error(Code::kUnsupported, "pre-tokenizer expression \"%s\": %s at %zu",
                   original.c_str(), why, offset);
    }
    pattern->limits = pcre2_match_context_create(nullptr);
    if (pattern->limits == nullptr)
      return error(Code::kDoesNotFit, "pre-tokenizer: no memory");
    pcre2_set_heap_limit(pattern->limits, kHeapLimitKiB);
    pcre2_set_match_limit(pattern->limits, kMatchLimit);
    out.patterns_.push_back(std::move(pattern));
  }
  return out;
}

Status Splitter::split(std::string_view text, std::vector<uint32_t>* ends) const {
  ends->clear();
  if (text.size() > UINT32_MAX)
    return error(Code::kUnsupported, "text of %zu bytes is too long to tokenize",
                 text.size());
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
  return in_list(
      pre,
      "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5 "
      "tekken ");
}

bool pre_normalizes_nfc(std::string_view pre) {
  return in_list(pre, "qwen2 qwen35 deepseek-r1-qwen gpt-neox ");
}

std::vector<std::string> patterns_of_pre(std::string_view pre) {
  for (const Named& row : all_named()) {
    if (!in_list(pre, row.names)) continue;
    return {row.patterns.begin(), row.patterns.end()};
  }
  return {};
}

std::string pre_of_patterns(const std::vector<std::string>& patterns, bool whole_words,
                            bool nfc) {
  for (const Named& row : all_named()) {
    if (!std::equal(patterns.begin(), patterns.end(), row.patterns.begin(),
                    row.patterns.end())) {
      continue;
    }
    const std::string_view names = row.names;
    for (size_t begin = 0; begin < names.size();) {
      const size_t end = names.find(' ', begin);
      const std::string name(names.substr(begin, end - begin));
      if (pre_takes_whole_words(name) == whole_words && pre_normalizes_nfc(name) == nfc) {
        return name;
      }
      begin = end + 1;
    }
  }
  return "";
}

}  // namespace headrace
