// Tables over the positions of a step that placement asks again and again: the bytes planned at
// each position (range add, range maximum, first and last position above a limit), and the free
// seconds of a link in each op. All queries and updates take O(log positions).
#pragma once

#include <algorithm>
#include <vector>

#include "headrace/base/types.h"

namespace headrace::plan {

// Bytes by position: a segment tree whose nodes hold the maximum below them, additions kept at the
// highest node that they cover.
class Profile {
 public:
  explicit Profile(const std::vector<Bytes>& bytes) : n_(static_cast<int32_t>(bytes.size())) {
    while (leaves_ < n_) leaves_ *= 2;
    max_.assign(static_cast<size_t>(2 * leaves_), kLow);
    add_.assign(static_cast<size_t>(leaves_), 0);
    for (int32_t k = 0; k < n_; ++k) max_[at(leaves_ + k)] = bytes[at(k)];
    for (int32_t i = leaves_ - 1; i > 0; --i) pull(i);
  }

  int32_t size() const { return n_; }

  // Adds `bytes` at positions [lo, hi]; nothing when lo > hi.
  void add(int32_t lo, int32_t hi, Bytes bytes) {
    if (lo > hi || bytes == 0) return;
    int32_t l = lo + leaves_, r = hi + leaves_;
    apply(l, bytes);
    if (l != r) apply(r, bytes);
    while (l / 2 != r / 2) {
      if (!(l & 1)) apply(l + 1, bytes);
      if (r & 1) apply(r - 1, bytes);
      l /= 2;
      r /= 2;
      pull(l);
      if (l != r) pull(r);
    }
    // Above both ends a maximum that stays the same leaves all others as they are.
    for (l /= 2; l > 0; l /= 2) {
      const Bytes before = max_[at(l)];
      pull(l);
      if (max_[at(l)] == before) return;
    }
  }

  // The most bytes at any position of [lo, hi]; very low when lo > hi.
  Bytes max(int32_t lo, int32_t hi) const {
    if (lo > hi) return kLow;
    int32_t l = lo + leaves_, r = hi + leaves_;
    Bytes left = max_[at(l)], right = max_[at(r)];
    while (l / 2 != r / 2) {
      if (!(l & 1)) left = std::max(left, max_[at(l + 1)]);
      if (r & 1) right = std::max(right, max_[at(r - 1)]);
      l /= 2;
      r /= 2;
      left += add_[at(l)];
      right += add_[at(r)];
    }
    Bytes most = std::max(left, right);
    for (l /= 2; l > 0; l /= 2) most += add_[at(l)];
    return most;
  }
  Bytes at_position(int32_t k) const { return max(k, k); }
  Bytes max() const { return max_[1]; }

  // The first position of the maximum.
  int32_t argmax() const {
    int32_t i = 1;
    while (i < leaves_) i = max_[at(2 * i)] >= max_[at(2 * i + 1)] ? 2 * i : 2 * i + 1;
    return i - leaves_;
  }

  // First (last) position of [lo, hi] with more than `limit` bytes; -1: none.
  int32_t first_above(int32_t lo, int32_t hi, Bytes limit) const {
    return lo > hi ? -1 : find<true>(1, 0, leaves_ - 1, lo, hi, limit);
  }
  int32_t last_above(int32_t lo, int32_t hi, Bytes limit) const {
    return lo > hi ? -1 : find<false>(1, 0, leaves_ - 1, lo, hi, limit);
  }

 private:
  static constexpr Bytes kLow = INT64_MIN / 4;
  static size_t at(int32_t i) { return static_cast<size_t>(i); }

  void apply(int32_t i, Bytes bytes) {
    max_[at(i)] += bytes;
    if (i < leaves_) add_[at(i)] += bytes;
  }
  void pull(int32_t i) {
    max_[at(i)] = std::max(max_[at(2 * i)], max_[at(2 * i + 1)]) + add_[at(i)];
  }

  template <bool kFirst>
  int32_t find(int32_t i, int32_t begin, int32_t end, int32_t lo, int32_t hi, Bytes limit) const {
    if (end < lo || begin > hi || max_[at(i)] <= limit) return -1;
    if (i >= leaves_) return begin;
    const int32_t mid = begin + (end - begin) / 2;
    const Bytes rest = limit - add_[at(i)];
    const int32_t near = kFirst ? find<kFirst>(2 * i, begin, mid, lo, hi, rest)
                                : find<kFirst>(2 * i + 1, mid + 1, end, lo, hi, rest);
    if (near >= 0) return near;
    return kFirst ? find<kFirst>(2 * i + 1, mid + 1, end, lo, hi, rest)
                  : find<kFirst>(2 * i, begin, mid, lo, hi, rest);
  }

  int32_t n_ = 0;
  int32_t leaves_ = 1;
  std::vector<Bytes> max_;
  std::vector<Bytes> add_;
};

// The free time of one link in each op: sums by a Fenwick tree, next and previous op with any left
// by union-find.
class Calendar {
 public:
  explicit Calendar(const std::vector<Nanos>& free)
      : free_(free), sum_(free.size() + 1, 0), next_(free.size() + 2), previous_(free.size() + 2) {
    for (size_t k = 0; k < free.size(); ++k) {
      sum_[k + 1] += free[k];
      const size_t parent = (k + 1) + ((k + 1) & (~(k + 1) + 1));
      if (parent < sum_.size()) sum_[parent] += sum_[k + 1];
    }
    for (size_t k = 0; k < next_.size(); ++k) next_[k] = previous_[k] = static_cast<int32_t>(k);
  }

  // Free time in ops [lo, hi].
  Nanos free_between(int32_t lo, int32_t hi) const {
    return lo > hi ? 0 : prefix(hi + 1) - prefix(lo);
  }

  // Takes up to `wanted` from the ops of [lo, hi], the earliest (latest) first; returns what was
  // not there.
  Nanos take_early(int32_t lo, int32_t hi, Nanos wanted) {
    for (int32_t k = next(lo); k <= hi && wanted > 0; k = next(k + 1)) wanted = take(k, wanted);
    return wanted;
  }
  Nanos take_late(int32_t lo, int32_t hi, Nanos wanted) {
    for (int32_t k = previous(hi); k >= lo && wanted > 0; k = previous(k - 1)) {
      wanted = take(k, wanted);
    }
    return wanted;
  }

 private:
  Nanos prefix(int32_t k) const {
    Nanos sum = 0;
    for (size_t i = static_cast<size_t>(k); i > 0; i -= i & (~i + 1)) sum += sum_[i];
    return sum;
  }
  Nanos take(int32_t k, Nanos wanted) {
    Nanos& left = free_[static_cast<size_t>(k)];
    const Nanos taken = std::min(left, wanted);
    left -= taken;
    for (size_t i = static_cast<size_t>(k) + 1; i < sum_.size(); i += i & (~i + 1)) {
      sum_[i] -= taken;
    }
    if (left == 0) {
      next_[static_cast<size_t>(k)] = k + 1;
      previous_[static_cast<size_t>(k) + 1] = k;
    }
    return wanted - taken;
  }
  // First op at or after k with free time, or the number of ops.
  int32_t next(int32_t k) {
    int32_t root = k;
    while (next_[static_cast<size_t>(root)] != root) root = next_[static_cast<size_t>(root)];
    while (next_[static_cast<size_t>(k)] != root) {
      const int32_t up = next_[static_cast<size_t>(k)];
      next_[static_cast<size_t>(k)] = root;
      k = up;
    }
    return root;
  }
  // Last op at or before k with free time, or -1. previous_ is by k + 1.
  int32_t previous(int32_t k) {
    int32_t root = k + 1;
    while (previous_[static_cast<size_t>(root)] != root) {
      root = previous_[static_cast<size_t>(root)];
    }
    for (int32_t i = k + 1; previous_[static_cast<size_t>(i)] != root;) {
      const int32_t up = previous_[static_cast<size_t>(i)];
      previous_[static_cast<size_t>(i)] = root;
      i = up;
    }
    return root - 1;
  }

  std::vector<Nanos> free_;
  std::vector<Nanos> sum_;        // Fenwick, 1-based
  std::vector<int32_t> next_;
  std::vector<int32_t> previous_;
};

}  // namespace headrace::plan
