#include "headrace/kv/prefix_writer.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "headrace/base/safe_file.h"
#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

// So much goes to the disk at once: what is not yet written is charged as page cache.
constexpr Bytes kWritePiece = 4 * kMiB;
// Another process that makes room is waited for this long.
constexpr int kLockTries = 50;
constexpr useconds_t kLockPause_us = 10000;

void seal(PrefixHeader* h, std::span<const std::byte> file, double clock) {
  h->sums.clear();
  Bytes at = h->header_bytes();
  for (size_t i = 0; i < h->layers(); ++i) {
    const Bytes bytes = h->layer_bytes(i);
    h->sums.push_back(
        prefix_sum(file.subspan(static_cast<size_t>(at), static_cast<size_t>(bytes))));
    at += round_up(bytes, kPage);
  }
  h->created = static_cast<int64_t>(::time(nullptr));
  h->priority = clock + h->value();
}

}  // namespace

PrefixWriter::~PrefixWriter() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_) pthread_join(*thread_, nullptr);
}

Status PrefixWriter::start() {
  HR_TRY(recount());
  pthread_t thread;
  const int rc = start_small_thread(&PrefixWriter::body, this, &thread);
  if (rc != 0) return error(Code::kIo, "start a thread: %s", std::strerror(rc));
  thread_ = thread;
  return {};
}

void PrefixWriter::stop(std::string reason) {
  const std::lock_guard lock(mutex_);
  if (stopped_.empty()) stopped_ = std::move(reason);
}

PageBytes PrefixWriter::take(Bytes file_bytes) {
  const std::lock_guard lock(mutex_);
  PageBytes memory;
  const bool tried = stopped_.empty() || --pause_ < 0;
  if (thread_ && tried && staged_ + file_bytes <= options_.staging_bytes) {
    memory = make_page_bytes(file_bytes);
  }
  if (memory == nullptr) {
    ++written_.dropped;
  } else {
    staged_ += file_bytes;
  }
  return memory;
}

void PrefixWriter::put_back(PageBytes memory, Bytes file_bytes) {
  memory.reset();
  const std::lock_guard lock(mutex_);
  staged_ -= file_bytes;
}

void PrefixWriter::give(PrefixHeader header, PageBytes memory) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(header), std::move(memory)});
  }
  changed_.notify_all();
}

bool PrefixWriter::queued(ChainHash hash) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const Job& job) { return job.header.hash == hash; });
}

void PrefixWriter::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty(); });
}

std::string PrefixWriter::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

PrefixWritten PrefixWriter::written() const {
  const std::lock_guard lock(mutex_);
  return written_;
}

void* PrefixWriter::body(void* self) {
  static_cast<PrefixWriter*>(self)->work();
  return nullptr;
}

void PrefixWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job& job = jobs_.front();  // stays in its place while others are added behind it
    const Bytes bytes = job.header.file_bytes();
    lock.unlock();
    const Result<bool> done = write(job);
    lock.lock();
    if (!done.ok()) {
      stopped_ = done.status().message();
      pause_ = kRefusalPause;
    }
    if (done.ok() && *done) {
      stopped_.clear();
      ++written_.entries;
      written_.bytes += bytes;
    } else {
      ++written_.dropped;
    }
    jobs_.pop_front();
    staged_ -= bytes;
    changed_.notify_all();
  }
}

Status PrefixWriter::recount() {
  HR_ASSIGN(there_, prefix_usage(options_.folder));
  since_count_ = 0;
  return {};
}

// Other processes write too: counted again after each 1/16 of the limit that this one has written,
// so N processes are together at most N/16 above it, and an entry each.
Result<bool> PrefixWriter::make_room(const PrefixHeader& header) {
  const Bytes bytes = header.file_bytes();
  const Bytes limit = options_.limit_bytes > 0 ? options_.limit_bytes : INT64_MAX;
  if (bytes > limit) return false;
  if (since_count_ > limit / 16) HR_TRY(recount());
  const auto fits = [&] {
    return there_.bytes <= limit - bytes && there_.entries < kMostPrefixEntries;
  };
  if (fits()) return true;
  for (int i = 0; i < kLockTries; ++i) {
    HR_ASSIGN(const FileLock lock, FileLock::take(prefix_lock_path(options_.folder), false));
    if (lock.held()) {
      // A little more than needed, or a full store would be looked through for each entry.
      const Bytes most = std::max<Bytes>(0, limit - bytes - limit / 32);
      constexpr int64_t kEntries = kMostPrefixEntries - kMostPrefixEntries / 32;
      HR_ASSIGN(const PrefixRoom room,
                evict_prefixes(options_.folder, most, kEntries, header.parent));
      there_ = room.left;
      since_count_ = 0;
      const std::lock_guard guard(mutex_);
      written_.evicted += room.evicted;
      written_.evicted_bytes += room.evicted_bytes;
      return fits();
    }
    ::usleep(kLockPause_us);
  }
  return false;
}

Result<bool> PrefixWriter::write(Job& job) {
  PrefixHeader& h = job.header;
  // Looked at first: room is never made for what would be of no use.
  const bool has_parent = h.parent == options_.root ||
                          PrefixFile::open(prefix_path(options_.folder, h.parent), false).ok();
  if (!has_parent) return false;
  HR_ASSIGN(const bool room, make_room(h));
  if (!room) return false;
  const std::span<std::byte> file(job.memory.get(), static_cast<size_t>(h.file_bytes()));
  seal(&h, file, prefix_clock(options_.folder));
  encode(h, file.first(static_cast<size_t>(h.header_bytes())));
  HR_ASSIGN(std::optional<AtomicFile> out,
            AtomicFile::create_unless_held(prefix_path(options_.folder, h.hash)));
  if (!out) return false;  // another process is writing the same
  for (size_t at = 0; at < file.size();) {
    const size_t n = std::min(file.size() - at, static_cast<size_t>(kWritePiece));
    HR_TRY(out->file().append(file.subspan(at, n)));
    at += n;
  }
  HR_TRY(out->commit());
  there_.entries += 1;
  there_.bytes += h.file_bytes();
  since_count_ += h.file_bytes();
  return true;
}

}  // namespace headrace
