#include "headrace/snapshot/lifetimes.h"

#include <algorithm>
#include <unordered_map>

namespace headrace {
namespace {

class Builder {
 public:
  Builder(const MemorySnapshot& snapshot, int32_t device) : snapshot_(snapshot), device_(device) {
    const auto d = static_cast<size_t>(device);
    if (d < snapshot.traces.size()) events_ = &snapshot.traces[d];
  }

  Lifetimes build() {
    for (size_t i = 0; i < events_->size(); ++i) take(static_cast<int32_t>(i), (*events_)[i]);
    add_what_is_left();
    std::stable_sort(out_.buffers.begin(), out_.buffers.end(),
                     [](const auto& a, const auto& b) { return a.begin < b.begin; });
    count_live();
    count_reserved();
    return std::move(out_);
  }

 private:
  int32_t after_all() const { return static_cast<int32_t>(events_->size()); }

  void take(int32_t moment, const SnapshotEvent& e) {
    if (e.kind == EventKind::kAlloc) {
      // An address that is given out again was freed where the trace did not see it.
      close(e.address, moment, moment);
      SnapshotBuffer b;
      b.address = e.address;
      b.size = e.size;
      b.begin = moment;
      b.last = b.end = after_all();
      b.stack = e.stack;
      open_[e.address] = out_.buffers.size();
      out_.buffers.push_back(b);
    } else if (e.kind == EventKind::kFreeRequested) {
      SnapshotBuffer& b = known(e);
      b.last = moment;
      b.freed_by = e.stack;
    } else if (e.kind == EventKind::kFreeCompleted) {
      known(e);
      close(e.address, moment, moment);
    }
  }
  // The buffer at the event's address; one from before the trace when there is none.
  SnapshotBuffer& known(const SnapshotEvent& e) {
    const auto [it, fresh] = open_.try_emplace(e.address, out_.buffers.size());
    if (fresh) {
      SnapshotBuffer b;
      b.address = e.address;
      b.size = e.size;
      b.last = b.end = after_all();
      out_.buffers.push_back(b);
    }
    return out_.buffers[it->second];
  }
  void close(int64_t address, int32_t last, int32_t end) {
    const auto it = open_.find(address);
    if (it == open_.end()) return;
    SnapshotBuffer& b = out_.buffers[it->second];
    b.last = std::min(b.last, last);
    b.end = end;
    open_.erase(it);
  }

  // Blocks that the snapshot says are given out, and no event was about.
  void add_what_is_left() {
    for (const SnapshotSegment& s : snapshot_.segments) {
      if (s.device != device_) continue;
      for (const SnapshotBlock& block : s.blocks) {
        if (block.state == BlockState::kFree) continue;
        const auto it = open_.find(block.address);
        if (it != open_.end()) {
          SnapshotBuffer& b = out_.buffers[it->second];
          if (b.stack < 0) b.stack = block.stack;
          continue;
        }
        SnapshotBuffer b;
        b.address = block.address;
        b.size = block.size;
        b.last = b.end = after_all();
        b.stack = block.stack;
        out_.buffers.push_back(b);
      }
    }
  }

  void count_live() {
    // A trace without events has one moment all the same.
    std::vector<Bytes> change(events_->size() + 1, 0);
    Bytes before = 0;
    for (const SnapshotBuffer& b : out_.buffers) {
      if (b.begin < 0) before += b.size;
      else change[static_cast<size_t>(b.begin)] += b.size;
      if (b.end < after_all()) change[static_cast<size_t>(b.end)] -= b.size;
    }
    out_.peak_live = before;
    out_.peak_moment = -1;
    for (size_t i = 0; i < events_->size(); ++i) {
      before += change[i];
      out_.live.push_back(before);
      if (before <= out_.peak_live) continue;
      out_.peak_live = before;
      out_.peak_moment = static_cast<int32_t>(i);
    }
  }

  void count_reserved() {
    Bytes now = 0;
    for (const SnapshotSegment& s : snapshot_.segments)
      if (s.device == device_) now += s.bytes;
    out_.reserved.assign(events_->size(), now);
    out_.peak_reserved = now;
    for (size_t i = events_->size(); i-- > 0;) {
      out_.reserved[i] = now;
      out_.peak_reserved = std::max(out_.peak_reserved, now);
      const SnapshotEvent& e = (*events_)[i];
      if (e.kind == EventKind::kSegmentAlloc || e.kind == EventKind::kSegmentMap) now -= e.size;
      if (e.kind == EventKind::kSegmentFree || e.kind == EventKind::kSegmentUnmap) now += e.size;
    }
    out_.peak_reserved = std::max(out_.peak_reserved, now);
  }

  const MemorySnapshot& snapshot_;
  const int32_t device_;
  const std::vector<SnapshotEvent> none_;
  const std::vector<SnapshotEvent>* events_ = &none_;
  Lifetimes out_;
  std::unordered_map<int64_t, size_t> open_;  // by address
};

}  // namespace

Lifetimes lifetimes_of(const MemorySnapshot& snapshot, int32_t device) {
  return Builder(snapshot, device).build();
}

}  // namespace headrace
