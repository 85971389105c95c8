// The merging at the heart of BPE: neighbouring symbols are joined, the best pair of the
// whole sequence first (lowest key; of equals the leftmost), until no pair is known.
// (Sennrich et al. 2016; the score-driven variant is SentencePiece's BPE.)
//
// Promises
//   1. O(n log n) in the number of symbols: a heap of candidate pairs and a linked list
//      of symbols.
//   2. Ties go to the left, so the result is a function of the text alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/model/model_file.h"

namespace headrace {

// Finds a token by its text: open addressing over ids, texts compared in the StringList
// itself. 4 bytes a slot, at most 3/4 full. Of tokens with the same text the first wins.
class TokenIndex {
 public:
  // `tokens` must outlive the index at the same address. kUnsupported above 2^24 tokens.
  Status build(const StringList* tokens);
  // The id of the token with exactly this text, or -1.
  int32_t find(std::string_view text) const;
  Bytes bytes() const { return static_cast<Bytes>(slots_.capacity() * sizeof(uint32_t)); }

 private:
  const StringList* tokens_ = nullptr;
  std::vector<uint32_t>
      slots_;  // id + 1 in the low 24 bits, 8 bits of the hash above; 0 = free
};

// What joining two symbols gives: `key` orders the joins, lowest first.
struct Join {
  uint32_t key = 0;
  int32_t id = -1;  // -1: they do not join
};

// (left id, right id) -> (rank, id of the joined token). 12 bytes a merge and 4 a slot.
class MergeTable {
 public:
  // `merges` holds "left<separator>right" by rank. kBadFile names a merge whose parts or
  // result are no tokens.
  Status build(const StringList& merges, char separator, const TokenIndex& index);
  Join find(int32_t left, int32_t right) const;
  bool empty() const { return merges_.empty(); }
  Bytes bytes() const;

 private:
  struct Merge {
    int32_t left, right, id;
  };
  uint32_t slot_of(int32_t left, int32_t right) const;

  std::vector<Merge> merges_;    // by rank
  std::vector<uint32_t> slots_;  // rank + 1; 0 = free
};

struct Symbol {
  int32_t prev = -1;
  int32_t next = -1;
  int32_t id = -1;      // -1: no token has this text
  uint32_t begin = 0;   // in the text being merged
  uint32_t length = 0;  // bytes; 0: joined into a neighbour
};

// Scratch memory of merge_symbols, to be reused between words.
struct MergeScratch {
  struct Candidate {
    uint32_t key;
    int32_t left, right, id;
    uint32_t length;
    // Reversed: std::*_heap keeps the greatest on top, and the best is the lowest.
    bool operator<(const Candidate& o) const {
      return key != o.key ? key > o.key : left > o.left;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Joins the symbols of `scratch` (a linked list from 0 on) by `join(left, right) ->
// Join`.
template <typename JoinFn>
void merge_symbols(MergeScratch* scratch, JoinFn&& join) {
  std::vector<Symbol>& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  const auto offer = [&](int32_t left, int32_t right, bool push) {
    if (left < 0 || right < 0) return;
    const Join j = join(symbols[left], symbols[right]);
    if (j.id < 0) return;
    heap.push_back(
        {j.key, left, right, j.id, symbols[left].length + symbols[right].length});
    if (push) std::push_heap(heap.begin(), heap.end());
  };
  for (size_t i = 1; i < symbols.size(); ++i)
    offer(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i), false);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const auto best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    // A symbol only grows, so a stale candidate is one whose length no longer adds up.
    if (left.length == 0 || right.length == 0 ||
        left.length + right.length != best.length)
      continue;
    left.length += right.length;
    left.id = best.id;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[left.next].prev = best.left;
    offer(left.prev, best.left, true);
    offer(best.left, left.next, true);
  }
}

}  // namespace headrace
