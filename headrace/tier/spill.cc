#include "headrace/tier/spill.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace headrace {
namespace {

constexpr Bytes kPiece = 4 * kMiB;     // staged at once; there are two
constexpr Bytes kSegment = 256 * kMiB;  // of a file, unless a buffer needs more

std::string segment_path(const std::string& folder) {
  static std::atomic<int> count{0};
  return text_of("%s/.headrace-spill-%d-%d", folder.c_str(), static_cast<int>(::getpid()),
                 count.fetch_add(1));
}

}  // namespace

Result<std::unique_ptr<Spill>> Spill::open(const std::string& folder) {
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return error(Code::kIo, "cannot write to %s: %s", folder.c_str(), std::strerror(errno));
  }
  HR_ASSIGN(Arena staging, Arena::create(2 * kPiece));
  return std::unique_ptr<Spill>(new Spill(folder, std::move(staging)));
}

Status Spill::add_segment(Bytes needed) {
  FileTierOptions o;
  o.access = FileAccess::kScratch;
  o.queue_depth = 2;
  o.chunk_bytes = kPiece;
  o.max_tickets = 4;
  o.pool_threads = 1;
  o.register_buffers = false;
  Status refused;
  // On a disk that is nearly full, no more than is needed.
  for (Bytes bytes : {std::max(needed, kSegment), needed}) {
    o.scratch_bytes = bytes;
    auto tier = open_file_tier({segment_path(folder_)}, &staging_, o);
    if (tier.ok()) {
      segments_.push_back({std::move(tier).value(), bytes, {{0, bytes}}});
      return {};
    }
    if (refused.ok()) refused = tier.status();
  }
  return refused.within("scratch of " + human_bytes(needed));
}

// The smallest free range that is large enough: large ones stay for large buffers.
Result<Spill::Buffer> Spill::find_room(Bytes bytes) {
  const Bytes room = round_up(bytes, kPage);
  size_t in = segments_.size();
  std::map<Bytes, Bytes>::iterator best;
  for (size_t s = 0; s < segments_.size(); ++s) {
    auto& free = segments_[s].free;
    for (auto at = free.begin(); at != free.end(); ++at) {
      if (at->second < room || (in < segments_.size() && at->second >= best->second)) continue;
      in = s;
      best = at;
    }
  }
  if (in == segments_.size()) {
    HR_TRY(add_segment(room));
    best = segments_[in].free.begin();
  }
  const Buffer buffer{in, best->first, bytes};
  const Bytes rest = best->second - room;
  auto& free = segments_[in].free;
  free.erase(best);
  if (rest > 0) free.emplace(buffer.offset + room, rest);
  held_ += room;
  return buffer;
}

void Spill::give_back(const Buffer& buffer) {
  auto& free = segments_[buffer.segment].free;
  const Bytes room = round_up(buffer.bytes, kPage);
  held_ -= room;
  auto at = free.emplace(buffer.offset, room).first;
  if (const auto after = std::next(at);
      after != free.end() && at->first + at->second == after->first) {
    at->second += after->second;
    free.erase(after);
  }
  if (at == free.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free.erase(at);
}

// One half of the staging is filled while the other is on its way.
Status Spill::write(const Buffer& to, std::span<const std::byte> bytes) {
  FileTier& tier = *segments_[to.segment].tier;
  Ticket on_its_way[2];
  Status status;
  for (Bytes done = 0, half = 0; done < to.bytes && status.ok(); done += kPiece, half ^= 1) {
    if (on_its_way[half].value != 0) status = tier.wait(on_its_way[half]);
    on_its_way[half] = {};
    if (!status.ok()) break;
    const Bytes part = std::min(kPiece, to.bytes - done);
    const std::span<std::byte> stage = staging_.at(half * kPiece, round_up(part, kPage));
    std::memcpy(stage.data(), bytes.data() + done, static_cast<size_t>(part));
    const auto ticket =
        tier.store(stage, {0, to.offset + done, static_cast<Bytes>(stage.size())});
    status = ticket.status();
    if (ticket.ok()) on_its_way[half] = *ticket;
  }
  for (Ticket ticket : on_its_way) {
    if (ticket.value == 0) continue;
    const Status ended = tier.wait(ticket);
    if (status.ok()) status = ended;
  }
  return status;
}

Result<int64_t> Spill::put(std::span<const std::byte> bytes) {
  if (bytes.empty()) return error(Code::kUsage, "a buffer of 0 bytes cannot be put aside");
  HR_ASSIGN(const Buffer to, find_room(static_cast<Bytes>(bytes.size())));
  if (Status status = write(to, bytes); !status.ok()) {
    give_back(to);
    return status;
  }
  buffers_.emplace(next_id_, to);
  return next_id_++;
}

Result<const Spill::Buffer*> Spill::buffer(int64_t id) const {
  const auto at = buffers_.find(id);
  if (at != buffers_.end()) return &at->second;
  return error(Code::kUsage, "no buffer %lld is put aside", static_cast<long long>(id));
}

Status Spill::get(int64_t id, std::span<std::byte> out) {
  HR_ASSIGN(const Buffer* const from, buffer(id));
  const Bytes wanted = static_cast<Bytes>(out.size());
  if (wanted > from->bytes) {
    return error(Code::kUsage, "buffer %lld has %lld bytes, not %lld", static_cast<long long>(id),
                 static_cast<long long>(from->bytes), static_cast<long long>(wanted));
  }
  FileTier& tier = *segments_[from->segment].tier;
  const auto begin_load = [&](Bytes at, Bytes half) -> Result<Ticket> {
    const Bytes part = round_up(std::min(kPiece, wanted - at), kPage);
    return tier.load({0, from->offset + at, part}, staging_.at(half * kPiece, part));
  };
  if (wanted == 0) return {};
  HR_ASSIGN(Ticket arriving, begin_load(0, 0));
  for (Bytes done = 0, half = 0; done < wanted; done += kPiece, half ^= 1) {
    HR_TRY(tier.wait(arriving));
    if (done + kPiece < wanted) {
      HR_ASSIGN(arriving, begin_load(done + kPiece, half ^ 1));
    }
    const Bytes part = std::min(kPiece, wanted - done);
    std::memcpy(out.data() + done, staging_.at(half * kPiece, part).data(),
                static_cast<size_t>(part));
  }
  return {};
}

Status Spill::drop(int64_t id) {
  HR_ASSIGN(const Buffer* const from, buffer(id));
  give_back(*from);
  buffers_.erase(id);
  return {};
}

Bytes Spill::bytes_on_disk() const {
  Bytes sum = 0;
  for (const Segment& s : segments_) sum += s.bytes;
  return sum;
}

}  // namespace headrace
