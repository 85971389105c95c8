#include "headrace/train/dataset_text.h"

#include <algorithm>

namespace headrace {
namespace {

bool visible(char c) { return static_cast<unsigned char>(c) > ' ' && c != '\x7f'; }
// Characters beyond ASCII may be spaces.
bool plain(char c) { return visible(c) && static_cast<unsigned char>(c) < 0x80; }
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

// Index of the first byte after the cut; 0: there is none yet.
size_t TextCutter::find_cut() const {
  for (size_t at = held_.find(cut_, kPart); at != std::string::npos;
       at = held_.find(cut_, at + 1)) {
    if (at + 1 >= held_.size() || at + 1 > kMostPart) break;
    if (plain(held_[at - 1]) && plain(held_[at + 1])) return at + 1;
  }
  if (held_.size() < kMostPart) return 0;
  size_t at = kMostPart - 4;
  while (at < kMostPart && continues(held_[at])) ++at;
  return at;
}

std::optional<std::string> TextCutter::next(bool last) {
  if (held_.empty()) return std::nullopt;
  const size_t cut = held_.size() > kPart ? find_cut() : 0;
  if (cut == 0) {
    if (!last) return std::nullopt;
    std::string out;
    out.swap(held_);
    return out;
  }
  const bool space = drops_ && held_[cut - 1] == cut_;
  std::string out = held_.substr(0, cut - (space ? 1 : 0));
  held_.erase(0, cut);
  return out;
}

}  // namespace headrace
