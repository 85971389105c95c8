// Text that grows only inside a limit shared by all connections.
//
// Promises
//   1. Every byte of capacity is taken from the MemoryPool before it is allocated, the old buffer
//      and the new one both while text moves; it is given back when freed.
//   2. append() that would pass the pool's limit, or `most`, changes nothing and says so.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "headrace/base/types.h"

namespace headrace {

// A count of bytes with a limit. Any thread.
class MemoryPool {
 public:
  explicit MemoryPool(Bytes limit) : limit_(limit) {}

  // False, and nothing taken, when that would pass the limit.
  bool take(Bytes bytes) {
    Bytes used = used_.load(std::memory_order_relaxed);
    do {
      if (used + bytes > limit_) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    note_peak(used + bytes);
    return true;
  }
  // For the few hundred bytes that say why something is refused: may pass the limit.
  void take_always(Bytes bytes) {
    note_peak(used_.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  }
  void give(Bytes bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  Bytes limit() const { return limit_; }
  Bytes used() const { return used_.load(std::memory_order_relaxed); }
  // The most that was ever taken at once.
  Bytes peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  void note_peak(Bytes now) {
    Bytes peak = peak_.load(std::memory_order_relaxed);
    while (peak < now &&
           !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }

  const Bytes limit_;
  std::atomic<Bytes> used_{0};
  std::atomic<Bytes> peak_{0};
};

// A string whose capacity is counted in a pool, which must outlive it. One thread at a time.
class CountedText {
 public:
  explicit CountedText(MemoryPool* pool) : pool_(pool) {}
  ~CountedText() { clear(); }
  CountedText(const CountedText&) = delete;
  CountedText& operator=(const CountedText&) = delete;

  // False when the text would have more than `most` bytes or the pool has no room. Capacities
  // are most, most/2, most/4...: text that ends with exactly `most` bytes wastes none.
  bool append(std::string_view more, size_t most) {
    const size_t need = text_.size() + more.size();
    return need <= most && grow(need, most, false) && (text_.append(more), true);
  }
  // Beyond every limit: only for replies that say why something is refused.
  void append_always(std::string_view more) {
    grow(text_.size() + more.size(), text_.size() + more.size(), true);
    text_.append(more);
  }
  void erase_front(size_t bytes) { text_.erase(0, bytes); }
  // Frees the buffer.
  void clear() { std::string().swap(text_), settle(); }
  // The text itself, counted here no longer.
  std::string take() {
    std::string out = std::move(text_);
    clear();
    return out;
  }
  void swap(CountedText& other) {
    text_.swap(other.text_);
    std::swap(counted_, other.counted_);
  }

  std::string_view view() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

 private:
  static constexpr size_t kLeast = 256;

  bool grow(size_t need, size_t most, bool always) {
    if (need <= text_.capacity()) return true;
    size_t capacity = std::max(most, kLeast);
    while ((capacity + 1) / 2 >= std::max(need, kLeast)) capacity = (capacity + 1) / 2;
    const Bytes bytes = static_cast<Bytes>(capacity) + 1;
    if (always) {
      pool_->take_always(bytes);
    } else if (!pool_->take(bytes)) {
      return false;
    }
    counted_ += bytes;
    text_.reserve(capacity);
    settle();
    return true;
  }
  // What is counted becomes what is held; short text lies in the object itself.
  void settle() {
    const bool inside = text_.capacity() <= std::string().capacity();
    const Bytes held = inside ? 0 : static_cast<Bytes>(text_.capacity()) + 1;
    if (held > counted_) pool_->take_always(held - counted_);  // reserve() rounded up a little
    if (held < counted_) pool_->give(counted_ - held);
    counted_ = held;
  }

  MemoryPool* pool_;
  std::string text_;
  Bytes counted_ = 0;
};

}  // namespace headrace
