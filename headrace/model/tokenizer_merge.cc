#include "headrace/model/tokenizer_merge.h"

#include <bit>
#include <cstring>

namespace headrace {
namespace {

constexpr uint32_t kIdMask = (1u << 24) - 1;

// Eight bytes a step, multiply and fold: fast on short strings; nothing depends on its
// quality but speed.
uint64_t hash_text(std::string_view text) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ text.size();
  const char* p = text.data();
  size_t left = text.size();
  while (left > 0) {
    uint64_t word = 0;
    const size_t n = left < 8 ? left : 8;
    std::memcpy(&word, p, n);
    h = (h ^ word) * 0xD6E8FEB86659FD93ull;
    h ^= h >> 32;
    p += n;
    left -= n;
  }
  return h * 0x9E3779B97F4A7C15ull;
}

uint64_t hash_pair(int32_t left, int32_t right) {
  const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
                        static_cast<uint32_t>(right);
  return (pair ^ pair >> 29) * 0xD6E8FEB86659FD93ull;
}

size_t slots_for(size_t entries) { return std::bit_ceil(entries + entries / 3 + 2); }

}  // namespace

Status TokenIndex::build(const StringList* tokens) {
  if (tokens->size() >= kIdMask)
    return error(Code::kUnsupported, "a vocabulary of %zu tokens is too large",
                 tokens->size());
  tokens_ = tokens;
  slots_.assign(slots_for(tokens->size()), 0);
  const size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < tokens->size(); ++id) {
    const std::string_view text = (*tokens)[id];
    const uint64_t h = hash_text(text);
    const auto tag = static_cast<uint32_t>(h >> 56) << 24;
    size_t slot = h >> 24 & mask;
    bool known = false;
    while (slots_[slot] != 0 && !known) {
      known = (slots_[slot] & ~kIdMask) == tag &&
              (*tokens)[(slots_[slot] & kIdMask) - 1] == text;
      slot = (slot + 1) & mask;
    }
    if (!known) slots_[slot] = tag | static_cast<uint32_t>(id + 1);
  }
  return Status();
}

int32_t TokenIndex::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const uint64_t h = hash_text(text);
  const auto tag = static_cast<uint32_t>(h >> 56) << 24;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = h >> 24 & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    if ((slots_[slot] & ~kIdMask) != tag) continue;
    const auto id = static_cast<int32_t>((slots_[slot] & kIdMask) - 1);
    if ((*tokens_)[id] == text) return id;
  }
  return -1;
}

uint32_t MergeTable::slot_of(int32_t left, int32_t right) const {
  return static_cast<uint32_t>(hash_pair(left, right) >> 32 & (slots_.size() - 1));
}

Status MergeTable::build(const StringList& merges, char separator,
                         const TokenIndex& index) {
  merges_.clear();
  merges_.reserve(merges.size());
  slots_.assign(slots_for(merges.size()), 0);
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view text = merges[rank];
    const size_t cut = text.find(separator, 1);
    Merge merge{-1, -1, -1};
    if (cut != std::string_view::npos) {
      const std::string_view left = text.substr(0, cut);
      const std::string_view right = text.substr(cut + 1);
      joined.assign(left).append(right);
      merge = {index.find(left), index.find(right), index.find(joined)};
    }
    if (merge.left < 0 || merge.right < 0 || merge.id < 0)
      return error(Code::kBadFile,
                   "tokenizer merge %zu (\"%.*s\"): a part or the result is no token",
                   rank, static_cast<int>(text.size()), text.data());
    merges_.push_back(merge);
    uint32_t slot = slot_of(merge.left, merge.right);
    // A pair given twice keeps its first, better rank.
    bool known = false;
    while (slots_[slot] != 0 && !known) {
      const Merge& other = merges_[slots_[slot] - 1];
      known = other.left == merge.left && other.right == merge.right;
      slot = (slot + 1) & (slots_.size() - 1);
    }
    if (!known) slots_[slot] = static_cast<uint32_t>(rank + 1);
  }
  return Status();
}

Join MergeTable::find(int32_t left, int32_t right) const {
  if (merges_.empty() || left < 0 || right < 0) return {};
  for (uint32_t slot = slot_of(left, right); slots_[slot] != 0;
       slot = (slot + 1) & static_cast<uint32_t>(slots_.size() - 1)) {
    const uint32_t rank = slots_[slot] - 1;
    const Merge& merge = merges_[rank];
    if (merge.left == left && merge.right == right) return {rank, merge.id};
  }
  return {};
}

Bytes MergeTable::bytes() const {
  return static_cast<Bytes>(merges_.capacity() * sizeof(Merge) +
                            slots_.capacity() * sizeof(uint32_t));
}

}  // namespace headrace
