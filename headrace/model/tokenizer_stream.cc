#include "headrace/model/tokenizer_stream.h"

#include <algorithm>

#include "headrace/model/unicode.h"

namespace headrace {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes of the broken part at the start of `bytes`: the longest beginning of a character,
// at least one byte.
size_t broken_length(std::string_view bytes) {
  for (size_t n = std::min<size_t>(3, bytes.size()); n > 1; --n)
    if (utf8_incomplete(bytes.substr(0, n))) return n;
  return 1;
}

}  // namespace

std::string take_utf8(std::string* held, bool all) {
  std::string out;
  std::string_view rest = *held;
  while (!rest.empty()) {
    const size_t good = utf8_valid_prefix(rest);
    out.append(rest.substr(0, good));
    rest.remove_prefix(good);
    if (rest.empty() || (!all && utf8_incomplete(rest))) break;
    out += kReplacement;
    rest.remove_prefix(broken_length(rest));
  }
  held->erase(0, held->size() - rest.size());
  return out;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const StreamOptions& options)
    : tokenizer_(&tokenizer), options_(options) {}

std::string StreamDecoder::push(int32_t id) {
  std::string bytes = tokenizer_->token_bytes(id, options_.show_special);
  if (at_start_ && !bytes.empty() && !tokenizer_->is_special(id)) {
    at_start_ = false;
    if (options_.strip_leading_space && tokenizer_->strips_leading_space() &&
        bytes[0] == ' ')
      bytes.erase(0, 1);
  }
  held_ += bytes;
  return take_utf8(&held_, false);
}

std::string StreamDecoder::finish() {
  at_start_ = true;
  return take_utf8(&held_, true);
}

std::string valid_utf8(std::string_view bytes) {
  std::string held(bytes);
  return take_utf8(&held, true);
}

}  // namespace headrace
