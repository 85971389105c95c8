#include "headrace/serve/stop_text.h"

#include <algorithm>

#include "headrace/base/status.h"
#include "headrace/model/tokenizer_stream.h"

namespace headrace {
namespace {

std::vector<uint16_t> borders_of(std::string_view text) {
  std::vector<uint16_t> borders(text.size(), 0);
  size_t border = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (border > 0 && text[i] != text[border]) border = borders[border - 1];
    if (text[i] == text[border]) ++border;
    borders[i] = static_cast<uint16_t>(border);
  }
  return borders;
}

}  // namespace

StopText::StopText(const std::vector<std::string>& stops) {
  patterns_.reserve(stops.size());
  for (const std::string& stop : stops) {
    HR_CHECK(!stop.empty() && stop.size() <= kMostStopBytes, "a stop string's length");
    patterns_.push_back({stop, borders_of(stop)});
  }
}

// Length of the longest stop string that this byte completes, or 0.
size_t StopText::advance(char byte) {
  size_t complete = 0;
  for (Pattern& p : patterns_) {
    while (p.matched > 0 && p.text[p.matched] != byte) p.matched = p.borders[p.matched - 1];
    if (p.text[p.matched] == byte) ++p.matched;
    if (p.matched == p.text.size()) complete = std::max(complete, p.matched);
  }
  return complete;
}

// The first `bytes` of what is held, as far as they are decided (`all`: they are).
void StopText::give_out(size_t bytes, bool all, std::string* text) {
  std::string rest = held_.substr(bytes);
  held_.resize(bytes);
  *text += take_utf8(&held_, all);
  held_ += rest;
  const int64_t out = pushed_ - static_cast<int64_t>(held_.size());
  while (!token_ends_.empty() && token_ends_.front() <= out) {
    last_end_ = token_ends_.front();
    token_ends_.pop_front();
    ++tokens_out_;
  }
}

bool StopText::push(std::string_view token, std::string* text) {
  HR_CHECK(!stopped_, "a token after the stop");
  const int64_t end = pushed_ + static_cast<int64_t>(token.size());
  token_ends_.push_back(end);
  for (const char byte : token) {
    held_ += byte;
    ++pushed_;
    const size_t stop = advance(byte);
    if (stop == 0) continue;
    stopped_ = true;
    const int64_t start = pushed_ - static_cast<int64_t>(stop);
    give_out(held_.size() - stop, true, text);
    if (!token_ends_.empty() && last_end_ < start) ++tokens_out_;
    held_.clear();
    token_ends_.clear();
    return true;
  }
  size_t begun = 0;
  for (const Pattern& p : patterns_) begun = std::max(begun, p.matched);
  give_out(held_.size() - begun, false, text);
  return false;
}

void StopText::finish(std::string* text) {
  if (!stopped_) give_out(held_.size(), true, text);
}

}  // namespace headrace
