#include "headrace/snapshot/memory_snapshot.h"

#include <map>
#include <unordered_map>

#include "headrace/snapshot/pickle_data.h"

namespace headrace {
namespace {

constexpr const char* kEventNames[] = {"alloc",         "free_requested", "free_completed",
                                       "segment_alloc", "segment_free",   "segment_map",
                                       "segment_unmap", "snapshot",       "oom",
                                       "other"};
constexpr const char* kStateNames[] = {"active_allocated", "active_pending_free", "inactive"};
constexpr Bytes kMostBytes = Bytes{1} << 50;
// A trace of more devices, or blocks, than any machine has is a broken file.
constexpr size_t kMostDevices = 4096;

class Reader {
 public:
  explicit Reader(const PickleData& data) : p_(data) {}

  Result<MemorySnapshot> read() {
    const Ref root = p_.root();
    const bool bare = p_.kind(root) == PickleData::Kind::kList;  // segments alone
    const Ref segments = bare ? root : p_.find(root, "segments");
    if (segments == PickleData::kNoValue || p_.kind(segments) != PickleData::Kind::kList) {
      return error(Code::kBadFile, "a pickle, but no memory snapshot: it has no list 'segments'");
    }
    for (const Ref s : p_.items(segments)) HR_TRY(read_segment(s));
    const Ref traces = p_.find(root, "device_traces");
    if (traces != PickleData::kNoValue) {
      if (p_.items(traces).size() > kMostDevices) {
        return error(Code::kBadFile, "the snapshot has traces of %zu devices",
                     p_.items(traces).size());
      }
      for (const Ref t : p_.items(traces)) HR_TRY(read_trace(t));
    }
    const Ref settings = p_.find(root, "allocator_settings");
    out_.expandable_segments = integer(settings, "expandable_segments") != 0;
    return std::move(out_);
  }

 private:
  using Ref = PickleData::Ref;

  int64_t integer(Ref dict, std::string_view key) const {
    const Ref r = p_.find(dict, key);
    return r == PickleData::kNoValue ? 0 : p_.integer(r);
  }
  std::string_view text(Ref dict, std::string_view key) const {
    const Ref r = p_.find(dict, key);
    return r == PickleData::kNoValue ? std::string_view() : p_.text(r);
  }
  Result<Bytes> size(Ref dict, std::string_view key, const char* what) const {
    const int64_t n = integer(dict, key);
    if (n >= 0 && n <= kMostBytes) return n;
    return error(Code::kBadFile, "%s has %lld bytes", what, static_cast<long long>(n));
  }

  int32_t frame(Ref r) {
    const auto [it, fresh] = frame_of_.try_emplace(r, 0);
    if (!fresh) return it->second;
    StackFrame f{std::string(text(r, "name")), std::string(text(r, "filename")),
                 integer(r, "line")};
    const auto key = std::make_tuple(f.name, f.file, f.line);
    const auto [known, added] = known_frames_.try_emplace(key, out_.frames.size());
    if (added) out_.frames.push_back(std::move(f));
    return frame_of_[r] = static_cast<int32_t>(known->second);
  }
  int32_t stack(Ref owner) {
    Ref r = p_.find(owner, "frames");
    if (r == PickleData::kNoValue) return -1;
    const auto [it, fresh] = stack_of_.try_emplace(r, -1);
    if (!fresh || p_.items(r).empty()) return it->second;
    std::vector<int32_t> frames;
    frames.reserve(p_.items(r).size());
    for (const Ref f : p_.items(r)) frames.push_back(frame(f));
    const auto [known, added] = known_stacks_.try_emplace(std::move(frames), out_.stacks.size());
    if (added) out_.stacks.push_back(known->first);
    return stack_of_[r] = static_cast<int32_t>(known->second);
  }

  Status read_segment(Ref r) {
    SnapshotSegment s;
    s.device = static_cast<int32_t>(integer(r, "device"));
    s.address = integer(r, "address");
    HR_ASSIGN(s.bytes, size(r, "total_size", "a segment"));
    s.stream = integer(r, "stream");
    s.small_pool = text(r, "segment_type") == "small";
    s.expandable = integer(r, "is_expandable") != 0;
    const Ref pool = p_.find(r, "segment_pool_id");
    if (pool != PickleData::kNoValue) {
      for (const Ref part : p_.items(pool)) s.private_pool |= p_.integer(part) != 0;
    }
    const Ref blocks = p_.find(r, "blocks");
    if (blocks == PickleData::kNoValue) {
      return error(Code::kBadFile, "a segment of the snapshot has no blocks");
    }
    int64_t next = s.address;
    for (const Ref b : p_.items(blocks)) {
      HR_TRY(read_block(b, next, &s));
      next = s.blocks.back().address + s.blocks.back().size;
    }
    out_.segments.push_back(std::move(s));
    return {};
  }

  // `next`: where a block lies whose address was not recorded (before 2.1).
  Status read_block(Ref r, int64_t next, SnapshotSegment* s) {
    SnapshotBlock b;
    HR_ASSIGN(b.size, size(r, "size", "a block"));
    HR_ASSIGN(b.requested, size(r, "requested_size", "a block"));
    b.address = p_.find(r, "address") == PickleData::kNoValue ? next : integer(r, "address");
    const std::string_view state = text(r, "state");
    if (state == kStateNames[0]) b.state = BlockState::kActive;
    else if (state.starts_with("active")) b.state = BlockState::kPendingFree;
    else if (!state.starts_with("inactive")) {
      return error(Code::kBadFile, "a block of the snapshot has the state '%.40s'",
                   std::string(state).c_str());
    }
    b.stack = stack(r);
    const Ref history = p_.find(r, "history");  // before 2.1
    if (b.stack < 0 && history != PickleData::kNoValue && !p_.items(history).empty()) {
      b.stack = stack(p_.items(history)[0]);
    }
    s->blocks.push_back(b);
    return {};
  }

  Status read_trace(Ref r) {
    std::vector<SnapshotEvent> events;
    events.reserve(p_.items(r).size());
    for (const Ref e : p_.items(r)) {
      SnapshotEvent event;
      const std::string_view action = text(e, "action");
      int kind = 0;
      while (kind < static_cast<int>(EventKind::kOther) && action != kEventNames[kind]) ++kind;
      event.kind = static_cast<EventKind>(kind);
      const bool oom = event.kind == EventKind::kOom;
      event.address = integer(e, oom ? "device_free" : "addr");
      HR_ASSIGN(event.size, size(e, "size", "an event"));
      event.stream = integer(e, "stream");
      event.time_us = integer(e, "time_us");
      event.stack = stack(e);
      events.push_back(event);
    }
    out_.traces.push_back(std::move(events));
    return {};
  }

  const PickleData& p_;
  MemorySnapshot out_;
  std::unordered_map<Ref, int32_t> frame_of_, stack_of_;
  std::map<std::tuple<std::string, std::string, int64_t>, size_t> known_frames_;
  std::map<std::vector<int32_t>, size_t> known_stacks_;
};

class Writer {
 public:
  explicit Writer(const MemorySnapshot& s)
      : s_(s), frame_numbers_(s.frames.size(), kNew), stack_numbers_(s.stacks.size(), kNew) {}

  std::string write() {
    w_.begin_dict();
    w_.key("segments");
    w_.begin_list();
    for (const SnapshotSegment& s : s_.segments) segment(s);
    w_.end();
    w_.key("device_traces");
    w_.begin_list();
    for (const auto& trace : s_.traces) {
      w_.begin_list();
      for (const SnapshotEvent& e : trace) event(e);
      w_.end();
    }
    w_.end();
    w_.key("allocator_settings");
    w_.begin_dict();
    w_.key("expandable_segments");
    w_.boolean(s_.expandable_segments);
    w_.end();
    w_.end();
    return w_.take();
  }

 private:
  static constexpr uint32_t kNew = ~uint32_t{0};

  void field(std::string_view name, int64_t n) {
    w_.key(name);
    w_.integer(n);
  }
  void frames(int32_t stack) {
    w_.key("frames");
    if (stack < 0) {
      w_.begin_list();
      w_.end();
      return;
    }
    uint32_t& number = stack_numbers_[static_cast<size_t>(stack)];
    if (number != kNew) return w_.again(number);
    w_.begin_list();
    for (const int32_t f : s_.stacks[static_cast<size_t>(stack)]) frame(static_cast<size_t>(f));
    w_.end();
    number = w_.remember();
  }
  void frame(size_t f) {
    if (frame_numbers_[f] != kNew) return w_.again(frame_numbers_[f]);
    w_.begin_dict();
    w_.key("name");
    w_.text(s_.frames[f].name);
    w_.key("filename");
    w_.text(s_.frames[f].file);
    field("line", s_.frames[f].line);
    w_.end();
    frame_numbers_[f] = w_.remember();
  }

  void segment(const SnapshotSegment& s) {
    Bytes allocated = 0, active = 0, requested = 0;
    for (const SnapshotBlock& b : s.blocks) {
      if (b.state == BlockState::kFree) continue;
      active += b.size;
      if (b.state != BlockState::kActive) continue;
      allocated += b.size;
      requested += b.requested;
    }
    w_.begin_dict();
    field("device", s.device);
    field("address", s.address);
    field("total_size", s.bytes);
    field("allocated_size", allocated);
    field("active_size", active);
    field("requested_size", requested);
    field("stream", s.stream);
    w_.key("segment_type");
    w_.text(s.small_pool ? "small" : "large");
    w_.key("segment_pool_id");
    w_.begin_list();
    w_.integer(0);
    w_.integer(s.private_pool ? 1 : 0);
    w_.end();
    w_.key("is_expandable");
    w_.boolean(s.expandable);
    frames(-1);
    w_.key("blocks");
    w_.begin_list();
    for (const SnapshotBlock& b : s.blocks) block(b);
    w_.end();
    w_.end();
  }
  void block(const SnapshotBlock& b) {
    w_.begin_dict();
    field("address", b.address);
    field("size", b.size);
    field("requested_size", b.requested);
    w_.key("state");
    w_.text(kStateNames[static_cast<size_t>(b.state)]);
    frames(b.stack);
    w_.end();
  }
  void event(const SnapshotEvent& e) {
    w_.begin_dict();
    w_.key("action");
    w_.text(name_of(e.kind));
    field(e.kind == EventKind::kOom ? "device_free" : "addr", e.address);
    field("size", e.size);
    field("stream", e.stream);
    field("time_us", e.time_us);
    frames(e.stack);
    w_.end();
  }

  const MemorySnapshot& s_;
  PickleWriter w_;
  std::vector<uint32_t> frame_numbers_, stack_numbers_;
};

}  // namespace

const char* name_of(EventKind kind) { return kEventNames[static_cast<size_t>(kind)]; }

bool looks_like_pickle(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5;
}

Result<MemorySnapshot> parse_snapshot(std::string_view pickle) {
  HR_ASSIGN(const PickleData data, PickleData::read(pickle));
  return Reader(data).read();
}

std::string to_pickle(const MemorySnapshot& snapshot) { return Writer(snapshot).write(); }

}  // namespace headrace
