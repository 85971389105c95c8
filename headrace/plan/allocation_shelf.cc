#include "headrace/plan/allocation_shelf.h"

#include <algorithm>

namespace headrace::plan {
namespace {

// Below so many buffers one list is as fast as slabs.
constexpr size_t kSlabsPay = 2000;
// So many lists a buffer lies in on average at most, and so few buffers a slab is worth having for.
constexpr double kListsABuffer = 8;
constexpr size_t kBuffersASlab = 64;

}  // namespace

void PlacedList::clear() {
  first_begin_.clear();
  chunk_of_.clear();
  used_chunks_ = 0;
}

int PlacedList::alive(const Chunk& chunk, int32_t lower, int32_t upper, uint8_t* which) {
  int count = 0;
  for (int i = 0; i < chunk.used; ++i) {
    which[count] = static_cast<uint8_t>(i);
    count += static_cast<int>(chunk.lower[i] < upper) & static_cast<int>(chunk.upper[i] > lower);
  }
  return count;
}

Bytes PlacedList::lowest(int32_t lower, int32_t upper, Bytes size, Bytes from) const {
  uint8_t which[kRoom];
  Bytes at = from;
  for (size_t c = 0; c < chunk_of_.size(); ++c) {
    const Chunk& chunk = chunks_[static_cast<size_t>(chunk_of_[c])];
    work_ += chunk.used;
    const int count = alive(chunk, lower, upper, which);
    for (int k = 0; k < count; ++k) {
      const int i = which[k];
      if (chunk.begin[i] - at >= size) return at;
      at = std::max(at, chunk.end[i]);
    }
  }
  return at;
}

Bytes PlacedList::tightest(int32_t lower, int32_t upper, Bytes size) const {
  uint8_t which[kRoom];
  Bytes at = 0, best = -1, best_room = INT64_MAX;
  for (size_t c = 0; c < chunk_of_.size(); ++c) {
    const Chunk& chunk = chunks_[static_cast<size_t>(chunk_of_[c])];
    work_ += chunk.used;
    const int count = alive(chunk, lower, upper, which);
    for (int k = 0; k < count; ++k) {
      const int i = which[k];
      const Bytes room = chunk.begin[i] - at;
      if (room >= size && room < best_room) {
        best = at;
        best_room = room;
        if (room == size) return at;
      }
      at = std::max(at, chunk.end[i]);
    }
  }
  return best < 0 ? at : best;
}

void PlacedList::split(size_t at) {
  if (used_chunks_ == chunks_.size()) chunks_.emplace_back();
  const auto fresh = static_cast<int32_t>(used_chunks_++);
  Chunk& from = chunks_[static_cast<size_t>(chunk_of_[at])];
  Chunk& to = chunks_[static_cast<size_t>(fresh)];
  const int half = from.used / 2;
  to.used = from.used - half;
  std::copy(from.lower + half, from.lower + from.used, to.lower);
  std::copy(from.upper + half, from.upper + from.used, to.upper);
  std::copy(from.begin + half, from.begin + from.used, to.begin);
  std::copy(from.end + half, from.end + from.used, to.end);
  from.used = half;
  const auto next = static_cast<std::ptrdiff_t>(at) + 1;
  chunk_of_.insert(chunk_of_.begin() + next, fresh);
  first_begin_.insert(first_begin_.begin() + next, to.begin[0]);
}

void PlacedList::add(int32_t lower, int32_t upper, Bytes begin, Bytes end) {
  if (chunk_of_.empty()) {
    if (chunks_.empty()) chunks_.emplace_back();
    chunks_[0].used = 0;
    used_chunks_ = 1;
    chunk_of_ = {0};
    first_begin_ = {begin};
  }
  const auto chunk_for = [&] {
    const auto above = std::upper_bound(first_begin_.begin(), first_begin_.end(), begin);
    return static_cast<size_t>(std::max<std::ptrdiff_t>(1, above - first_begin_.begin()) - 1);
  };
  size_t c = chunk_for();
  if (chunks_[static_cast<size_t>(chunk_of_[c])].used == kRoom) {
    split(c);
    c = chunk_for();
  }
  Chunk& chunk = chunks_[static_cast<size_t>(chunk_of_[c])];
  const auto i = std::upper_bound(chunk.begin, chunk.begin + chunk.used, begin) - chunk.begin;
  const auto open = [&](auto* column, auto value) {
    std::copy_backward(column + i, column + chunk.used, column + chunk.used + 1);
    column[i] = value;
  };
  open(chunk.lower, lower);
  open(chunk.upper, upper);
  open(chunk.begin, begin);
  open(chunk.end, end);
  ++chunk.used;
  work_ += kRoom / 4;
  first_begin_[c] = chunk.begin[0];
}

Shelf::Shelf(int32_t lower, int32_t upper, size_t count, double mean_life) : lower_(lower) {
  if (count < kSlabsPay) return;
  const auto times = static_cast<double>(int64_t{upper} - lower);
  const double most = std::min(static_cast<double>(count / kBuffersASlab), times);
  const auto slabs = static_cast<int64_t>(std::clamp(kListsABuffer * times / mean_life, 1.0, most));
  width_ = (int64_t{upper} - lower + slabs - 1) / slabs;
  slabs_.resize(static_cast<size_t>(slabs));
}

void Shelf::clear() {
  whole_.clear();
  for (PlacedList& s : slabs_) s.clear();
}

int64_t Shelf::work() const {
  int64_t sum = whole_.work();
  for (const PlacedList& s : slabs_) sum += s.work();
  return sum;
}

void Shelf::add(int32_t lower, int32_t upper, Bytes begin, Bytes end) {
  whole_.add(lower, upper, begin, end);
  if (slabs_.empty()) return;
  const int64_t last = slab(int64_t{upper} - 1);
  for (int64_t s = std::max<int64_t>(0, slab(lower) - 1); s <= last; ++s) {
    slabs_[static_cast<size_t>(s)].add(lower, upper, begin, end);
  }
}

const PlacedList& Shelf::list_of(int32_t lower, int32_t upper) const {
  if (slabs_.empty()) return whole_;
  const int64_t s = slab(lower);
  return slab(int64_t{upper} - 1) <= s + 1 ? slabs_[static_cast<size_t>(s)] : whole_;
}

}  // namespace headrace::plan
