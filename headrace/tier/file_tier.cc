#include "headrace/tier/file_tier.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "headrace/tier/open_file.h"
#include "headrace/tier/ticket_table.h"

namespace headrace {
namespace {

// Retries of one chunk that brought nothing (EINTR, EAGAIN, a short read inside one page)
// before it is an error: a device that never delivers must not hang the caller.
constexpr int kMaxFruitless = 1000;
constexpr int kReapBatch = 32;
// Slots of the queue beyond its depth, for small transfers.
constexpr int kSmallSlots = 2;

struct Transfer {
  bool store = false;
  bool done = false;
  int32_t object = 0;
  int in_flight = 0;  // chunks in the backend
  Bytes offset = 0;   // in the file
  Bytes bytes = 0;
  Bytes issued = 0;  // the first part given to the backend
  std::byte* data = nullptr;
  Status status;  // of the first chunk that failed
};

struct Chunk {
  uint64_t ticket = 0;
  Bytes offset = 0;  // in the file
  Bytes bytes = 0;
  std::byte* data = nullptr;
  int fruitless = 0;
};

class FileTierImpl final : public FileTier {
 public:
  FileTierImpl(std::vector<OpenFile> files, std::unique_ptr<IoBackend> backend,
               const FileTierOptions& options, TierDescription description);
  ~FileTierImpl() override;

  const TierDescription& describe() const override { return description_; }
  TierCounters counters() const override { return counters_; }
  Result<Ticket> load(const TierExtent& from, std::span<std::byte> to) override {
    return begin(false, from, to);
  }
  Result<Ticket> store(std::span<const std::byte> from, const TierExtent& to) override {
    // The kernel only reads from it: Transfer keeps one pointer for both directions.
    return begin(true, to, {const_cast<std::byte*>(from.data()), from.size()});
  }
  void poll() override;
  bool done(Ticket ticket) override;
  Status wait(Ticket ticket) override;
  Status check_unchanged() const override;
  Bytes object_bytes(int32_t object) const override {
    return files_[static_cast<size_t>(object)].bytes();
  }

 private:
  Result<Ticket> begin(bool store, const TierExtent& extent, std::span<std::byte> memory);
  Status check(bool store, const TierExtent& extent, std::span<std::byte> memory) const;
  void pump();
  bool issue_small();
  bool issue_chunks();
  void issue(uint64_t ticket, Transfer& transfer);
  void start(uint32_t tag);
  int in_flight() const { return static_cast<int>(chunks_.size() - free_.size()); }
  int reap(bool block);
  void complete(const IoCompletion& completion);
  void moved(uint32_t tag, Transfer& transfer, Bytes bytes);
  void retry(uint32_t tag, Transfer& transfer, const char* why);
  void fail(uint32_t tag, Transfer& transfer, const char* why);
  void finish(uint32_t tag, Transfer& transfer);

  std::vector<OpenFile> files_;
  std::unique_ptr<IoBackend> backend_;
  FileAccess access_;
  int queue_depth_;
  Bytes chunk_bytes_;
  Bytes granule_;  // a short transfer continues on a multiple of this
  TierDescription description_;
  TierCounters counters_;
  TicketTable<Transfer> transfers_;
  std::vector<Chunk> chunks_;   // by tag
  std::vector<uint32_t> free_;  // tags not in use
  uint64_t next_ = 1;           // the first ticket that may have unissued bytes
  uint64_t next_small_ = 1;     // the first ticket that may be small and unissued
};

FileTierImpl::FileTierImpl(std::vector<OpenFile> files,
                           std::unique_ptr<IoBackend> backend,
                           const FileTierOptions& options, TierDescription description)
    : files_(std::move(files)),
      backend_(std::move(backend)),
      access_(options.access),
      queue_depth_(options.queue_depth),
      chunk_bytes_(options.chunk_bytes),
      granule_(1),
      description_(std::move(description)),
      transfers_(options.max_tickets),
      chunks_(static_cast<size_t>(options.queue_depth + kSmallSlots)) {
  for (const OpenFile& file : files_)
    if (file.direct()) granule_ = kPage;
  free_.reserve(chunks_.size());
  for (size_t tag = chunks_.size(); tag-- > 0;)
    free_.push_back(static_cast<uint32_t>(tag));
  description_.memory_bytes =
      backend_->memory_bytes() + transfers_.memory_bytes() +
      static_cast<Bytes>(chunks_.size() * (sizeof(Chunk) + sizeof(uint32_t)));
}

FileTierImpl::~FileTierImpl() {
  for (uint64_t ticket = next_; ticket <= transfers_.last(); ++ticket) {
    Transfer* transfer = transfers_.find(ticket);
    if (transfer != nullptr && !transfer->store) transfer->issued = transfer->bytes;
  }
  pump();
  while (in_flight() > 0) {
    reap(true);
    pump();
  }
}

Status FileTierImpl::check(bool store, const TierExtent& extent,
                           std::span<std::byte> memory) const {
  const auto at = static_cast<long long>(extent.offset);
  const auto n = static_cast<long long>(extent.bytes);
  if (extent.object < 0 || static_cast<size_t>(extent.object) >= files_.size())
    return error(Code::kUsage, "file tier: object %d of %zu", extent.object,
                 files_.size());
  const OpenFile& file = files_[static_cast<size_t>(extent.object)];
  const char* path = file.path().c_str();
  if (store && access_ == FileAccess::kRead)
    return error(Code::kUnsupported, "%s: store to a file opened for reading", path);
  if (extent.bytes != static_cast<Bytes>(memory.size()))
    return error(Code::kUsage, "%s: extent of %lld bytes for %zu bytes of memory", path,
                 n, memory.size());
  const auto address = static_cast<Bytes>(reinterpret_cast<uintptr_t>(memory.data()));
  if (extent.offset < 0 || ((extent.offset | extent.bytes | address) & (kPage - 1)) != 0)
    return error(Code::kUsage, "%s: %lld bytes at %lld to address %p: not on 4 KiB", path,
                 n, at, static_cast<const void*>(memory.data()));
  const Bytes limit = store ? file.bytes() : round_up(file.bytes(), kPage);
  if (extent.bytes > limit || extent.offset > limit - extent.bytes)
    return error(Code::kIo, "%s: %lld bytes at %lld: the file has only %lld bytes", path,
                 n, at, static_cast<long long>(file.bytes()));
  return Status();
}

Result<Ticket> FileTierImpl::begin(bool store, const TierExtent& extent,
                                   std::span<std::byte> memory) {
  HR_TRY(check(store, extent, memory));
  if (extent.bytes == 0) return Ticket{};
  if (Transfer* old = transfers_.displaced(); old != nullptr) {
    while (!old->done) {
      reap(true);
      pump();
    }
    HR_TRY(old->status);
  }
  Transfer& transfer = transfers_.take();
  transfer.store = store;
  transfer.object = extent.object;
  transfer.offset = extent.offset;
  transfer.bytes = extent.bytes;
  transfer.data = memory.data();
  ++(store ? counters_.stores : counters_.loads);
  poll();
  return Ticket{transfers_.last()};
}

// Gives the backend what there is room for: small transfers first, then chunks of the
// oldest tickets.
void FileTierImpl::pump() {
  const bool small = issue_small();
  if (issue_chunks() || small) backend_->flush();
}

bool FileTierImpl::issue_small() {
  bool any = false;
  next_small_ = std::max(next_small_, next_);
  for (; next_small_ <= transfers_.last(); ++next_small_) {
    Transfer* transfer = transfers_.find(next_small_);
    if (transfer == nullptr || transfer->bytes > kSmallTransfer || transfer->issued > 0)
      continue;
    if (in_flight() == queue_depth_ + kSmallSlots) return any;
    issue(next_small_, *transfer);
    any = true;
  }
  return any;
}

bool FileTierImpl::issue_chunks() {
  bool any = false;
  while (in_flight() < queue_depth_ && next_ <= transfers_.last()) {
    Transfer* transfer = transfers_.find(next_);
    // Null: it failed early, was waited for and its slot given away.
    if (transfer == nullptr || transfer->issued == transfer->bytes ||
        !transfer->status.ok()) {
      ++next_;
      continue;
    }
    issue(next_, *transfer);
    any = true;
  }
  return any;
}

// Gives the backend the next chunk of a transfer.
void FileTierImpl::issue(uint64_t ticket, Transfer& transfer) {
  const uint32_t tag = free_.back();
  free_.pop_back();
  Chunk& chunk = chunks_[tag];
  chunk.ticket = ticket;
  chunk.offset = transfer.offset + transfer.issued;
  // A remainder of a few KiB would take a place in the queue like any other: it joins the last
  // whole chunk.
  const Bytes left = transfer.bytes - transfer.issued;
  chunk.bytes = left < chunk_bytes_ + chunk_bytes_ / 4 ? left : chunk_bytes_;
  chunk.data = transfer.data + transfer.issued;
  chunk.fruitless = 0;
  transfer.issued += chunk.bytes;
  ++transfer.in_flight;
  start(tag);
}

void FileTierImpl::start(uint32_t tag) {
  const Chunk& chunk = chunks_[tag];
  const Transfer& transfer = *transfers_.find(chunk.ticket);
  const OpenFile& file = files_[static_cast<size_t>(transfer.object)];
  (transfer.store ? counters_.stored_bytes : counters_.loaded_bytes) += chunk.bytes;
  IoRequest request;
  request.tag = tag;
  request.fd = file.fd();
  request.write = transfer.store;
  request.buffered = !file.direct();
  request.data = chunk.data;
  request.bytes = chunk.bytes;
  request.offset = chunk.offset;
  backend_->submit(request);
}

int FileTierImpl::reap(bool block) {
  if (in_flight() == 0) return 0;
  std::array<IoCompletion, kReapBatch> completions;
  const int count = backend_->reap(completions, block);
  for (int i = 0; i < count; ++i) complete(completions[static_cast<size_t>(i)]);
  if (count > 0) backend_->flush();  // continued and retried chunks
  return count;
}

void FileTierImpl::complete(const IoCompletion& completion) {
  Transfer& transfer = *transfers_.find(chunks_[completion.tag].ticket);
  if (!transfer.status.ok()) return finish(completion.tag, transfer);
  if (completion.result >= 0) return moved(completion.tag, transfer, completion.result);
  const int number = static_cast<int>(-completion.result);
  if (number == EINTR || number == EAGAIN)
    return retry(completion.tag, transfer, std::strerror(number));
  const std::string why = text_of("%s (errno %d)", std::strerror(number), number);
  fail(completion.tag, transfer, why.c_str());
}

// `bytes` of the chunk have moved: it is finished, or goes on from there.
void FileTierImpl::moved(uint32_t tag, Transfer& transfer, Bytes bytes) {
  Chunk& chunk = chunks_[tag];
  const OpenFile& file = files_[static_cast<size_t>(transfer.object)];
  const Bytes real =
      transfer.store ? chunk.bytes : std::min(chunk.bytes, file.bytes() - chunk.offset);
  if (bytes >= real) {
    if (real < chunk.bytes)
      std::memset(chunk.data + real, 0, static_cast<size_t>(chunk.bytes - real));
    return finish(tag, transfer);
  }
  if (!transfer.store) {
    if (const Status size = file.check_size(); !size.ok()) {
      transfer.status = size;
      return finish(tag, transfer);
    }
    if (bytes == 0) return fail(tag, transfer, "end of file");
  }
  // O_DIRECT cannot go on from the middle of a page: the page is asked for again.
  const Bytes kept = round_down(bytes, granule_);
  if (kept == 0) return retry(tag, transfer, "no progress");
  chunk.offset += kept;
  chunk.bytes -= kept;
  chunk.data += kept;
  chunk.fruitless = 0;
  start(tag);
}

void FileTierImpl::retry(uint32_t tag, Transfer& transfer, const char* why) {
  if (++chunks_[tag].fruitless < kMaxFruitless) return start(tag);
  const std::string text = text_of("%s, %d times in a row", why, kMaxFruitless);
  fail(tag, transfer, text.c_str());
}

void FileTierImpl::fail(uint32_t tag, Transfer& transfer, const char* why) {
  const Chunk& chunk = chunks_[tag];
  const OpenFile& file = files_[static_cast<size_t>(transfer.object)];
  transfer.status =
      error(Code::kIo, "%s: %s of %lld bytes at %lld: %s", file.path().c_str(),
            transfer.store ? "write" : "read", static_cast<long long>(chunk.bytes),
            static_cast<long long>(chunk.offset), why);
  finish(tag, transfer);
}

void FileTierImpl::finish(uint32_t tag, Transfer& transfer) {
  free_.push_back(tag);
  --transfer.in_flight;
  const bool all_issued = transfer.issued == transfer.bytes || !transfer.status.ok();
  transfer.done = transfer.in_flight == 0 && all_issued;
}

void FileTierImpl::poll() {
  while (reap(false) > 0) {
  }
  pump();
}

bool FileTierImpl::done(Ticket ticket) {
  poll();
  const Transfer* transfer = transfers_.find(ticket.value);
  return transfer == nullptr || transfer->done;
}

Status FileTierImpl::wait(Ticket ticket) {
  Transfer* transfer = transfers_.find(ticket.value);
  if (transfer == nullptr) return Status();
  poll();
  while (!transfer->done) {
    reap(true);
    pump();
  }
  Status status = std::move(transfer->status);
  transfers_.release(ticket.value);
  return status;
}

Status FileTierImpl::check_unchanged() const {
  for (const OpenFile& file : files_) HR_TRY(file.check_unchanged());
  return Status();
}

Status check_options(const FileTierOptions& o) {
  if (o.queue_depth < 1 || o.queue_depth > 256)
    return error(Code::kUsage, "file tier: queue depth %d, not 1 to 256", o.queue_depth);
  if (o.chunk_bytes < kPage || o.chunk_bytes > kGiB || o.chunk_bytes % kPage != 0)
    return error(Code::kUsage, "file tier: chunk of %lld bytes, not a multiple of 4 KiB",
                 static_cast<long long>(o.chunk_bytes));
  if (o.max_tickets < 1)
    return error(Code::kUsage, "file tier: %d tickets", o.max_tickets);
  if (o.pool_threads < 1 || o.pool_threads > 64)
    return error(Code::kUsage, "file tier: %d pool threads, not 1 to 64", o.pool_threads);
  if (o.access == FileAccess::kScratch && o.scratch_bytes <= 0)
    return error(Code::kUsage, "file tier: scratch files of %lld bytes",
                 static_cast<long long>(o.scratch_bytes));
  return Status();
}

void add_notice(std::string* notice, const std::string& text) {
  if (!notice->empty()) *notice += "; ";
  *notice += text;
}

// The best backend that the options and the files allow; fills method and notice.
Result<std::unique_ptr<IoBackend>> choose_backend(const std::vector<OpenFile>& files,
                                                  Arena* arena,
                                                  const FileTierOptions& options,
                                                  TierDescription* about) {
  const bool forced = options.method == FileMethod::kUring;
  bool direct = true;
  for (const OpenFile& file : files) {
    if (file.direct()) continue;
    if (options.method == FileMethod::kUring ||
        options.method == FileMethod::kPreadDirect)
      return error(Code::kUnsupported, "%s: direct I/O: %s", file.path().c_str(),
                   file.why_buffered().c_str());
    if (direct && options.method == FileMethod::kBest)
      add_notice(&about->notice,
                 text_of("%s is read through the page cache: %s", file.path().c_str(),
                         file.why_buffered().c_str()));
    direct = false;
  }
  if (direct && (options.method == FileMethod::kBest || forced)) {
    UringSetup setup;
    setup.depth = options.queue_depth + kSmallSlots;
    if (arena != nullptr && options.register_buffers)
      setup.buffers = arena->at(0, arena->bytes());
    auto made = make_uring_backend(setup);
    if (made.ok()) {
      about->method = "io_uring + O_DIRECT";
      if (made->registered) about->method += ", registered buffers";
      if (!made->notice.empty()) add_notice(&about->notice, made->notice);
      return std::move(made->backend);
    }
    if (forced) return made.status();
    add_notice(&about->notice,
               text_of("a pool of %d threads reads instead of io_uring (%s)",
                       options.pool_threads, made.status().message().c_str()));
  }
  about->method = direct ? "pread pool + O_DIRECT" : "pread pool (page cache)";
  return make_pread_backend(options.pool_threads, options.queue_depth + kSmallSlots);
}

}  // namespace

Result<std::unique_ptr<FileTier>> open_file_tier(std::vector<std::string> paths,
                                                 Arena* arena,
                                                 const FileTierOptions& options) {
  HR_TRY(check_options(options));
  std::vector<OpenFile> files;
  files.reserve(paths.size());
  for (const std::string& path : paths) {
    const bool want_direct = options.method != FileMethod::kPreadBuffered;
    HR_ASSIGN(OpenFile file, OpenFile::open(path, options, want_direct));
    files.push_back(std::move(file));
  }
  TierDescription about;
  about.kind = "file";
  about.alignment = kPage;
  HR_ASSIGN(auto backend, choose_backend(files, arena, options, &about));
  if (options.wrap_backend) backend = options.wrap_backend(std::move(backend));
  return std::unique_ptr<FileTier>(std::make_unique<FileTierImpl>(
      std::move(files), std::move(backend), options, std::move(about)));
}

}  // namespace headrace
