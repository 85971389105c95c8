#include <liburing.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "headrace/tier/io_backend.h"

namespace headrace {
namespace {

// The kernel keeps one struct bio_vec for each 4 KiB page of a registered buffer.
constexpr Bytes kBytesPerPinnedPage = 16;

class Uring final : public IoBackend {
 public:
  static Result<UringBackend> create(const UringSetup& setup);
  ~Uring() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  void submit(const IoRequest& request) override {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    HR_CHECK(sqe != nullptr, "more requests in flight than the queue is deep");
    prepare(sqe, request);
    io_uring_sqe_set_data64(sqe, request.tag);
  }

  void flush() override {
    // EAGAIN and EBUSY leave the entries queued: the next flush or reap submits them.
    while (io_uring_sq_ready(&ring_) > 0) {
      const int n = io_uring_submit(&ring_);
      if (n == -EINTR) continue;
      if (n < 0) {
        HR_CHECK(n == -EAGAIN || n == -EBUSY,
                 "io_uring_enter refused a valid submission");
        return;
      }
    }
  }

  int reap(std::span<IoCompletion> out, bool block) override {
    int count = drain(out);
    while (count == 0 && block) {
      const int n = io_uring_submit_and_wait(&ring_, 1);
      if (n == -EAGAIN || n == -EBUSY) sched_yield();
      HR_CHECK(n >= 0 || n == -EINTR || n == -EAGAIN || n == -EBUSY,
               "io_uring_enter refused to wait");
      count = drain(out);
    }
    return count;
  }

  Bytes memory_bytes() const override {
    const Bytes rings = static_cast<Bytes>(ring_.sq.ring_sz + ring_.cq.ring_sz) +
                        static_cast<Bytes>(ring_.sq.ring_entries * sizeof(io_uring_sqe));
    return rings + static_cast<Bytes>(registered_.size()) / kPage * kBytesPerPinnedPage;
  }

 private:
  explicit Uring(Bytes piece) : piece_(piece) {}

  void prepare(io_uring_sqe* sqe, const IoRequest& r) {
    const unsigned bytes = static_cast<unsigned>(r.bytes);
    const uint64_t offset = static_cast<uint64_t>(r.offset);
    const int piece = piece_of(r);
    if (piece >= 0 && r.write)
      io_uring_prep_write_fixed(sqe, r.fd, r.data, bytes, offset, piece);
    else if (piece >= 0)
      io_uring_prep_read_fixed(sqe, r.fd, r.data, bytes, offset, piece);
    else if (r.write)
      io_uring_prep_write(sqe, r.fd, r.data, bytes, offset);
    else
      io_uring_prep_read(sqe, r.fd, r.data, bytes, offset);
  }

  // The registered piece that holds the whole request, or -1: a request across two pieces
  // or outside all of them is an ordinary one.
  int piece_of(const IoRequest& r) const {
    const auto base = reinterpret_cast<uintptr_t>(registered_.data());
    const auto address = reinterpret_cast<uintptr_t>(r.data);
    if (registered_.empty() || address < base) return -1;
    const Bytes at = static_cast<Bytes>(address - base);
    const Bytes end = at + r.bytes;
    if (end > static_cast<Bytes>(registered_.size())) return -1;
    return at / piece_ == (end - 1) / piece_ ? static_cast<int>(at / piece_) : -1;
  }

  int drain(std::span<IoCompletion> out) {
    size_t count = 0;
    io_uring_cqe* cqe = nullptr;
    while (count < out.size() && io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      out[count].tag = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
      out[count].result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      ++count;
    }
    return static_cast<int>(count);
  }

  // 0 or -errno.
  int register_buffers(std::span<std::byte> buffers) {
    std::vector<iovec> pieces;
    for (size_t at = 0; at < buffers.size(); at += static_cast<size_t>(piece_)) {
      const size_t bytes = std::min(buffers.size() - at, static_cast<size_t>(piece_));
      pieces.push_back({buffers.data() + at, bytes});
    }
    const int rc = io_uring_register_buffers(&ring_, pieces.data(),
                                             static_cast<unsigned>(pieces.size()));
    if (rc == 0) registered_ = buffers;
    return rc;
  }

  Bytes piece_;
  io_uring ring_ = {};
  bool open_ = false;
  std::span<std::byte> registered_;
};

Result<UringBackend> Uring::create(const UringSetup& setup) {
  std::unique_ptr<Uring> uring(new Uring(setup.piece_bytes));
  // Cooperative task running: a completion does not interrupt the compute thread; it is
  // picked up when that thread next looks (Linux 5.19, man io_uring_setup).
  unsigned flags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  const unsigned depth = static_cast<unsigned>(setup.depth);
  int rc = io_uring_queue_init(depth, &uring->ring_, flags);
  if (rc == -EINVAL) rc = io_uring_queue_init(depth, &uring->ring_, 0);
  if (rc < 0) return error(Code::kUnsupported, "io_uring: %s", std::strerror(-rc));
  uring->open_ = true;
  UringBackend made;
  if (!setup.buffers.empty()) {
    rc = uring->register_buffers(setup.buffers);
    made.registered = rc == 0;
    if (rc < 0)
      made.notice = text_of("%s of buffers could not be registered with io_uring (%s%s)",
                            human_bytes(static_cast<Bytes>(setup.buffers.size())).c_str(),
                            std::strerror(-rc), rc == -ENOMEM ? "; see ulimit -l" : "");
  }
  made.backend = std::move(uring);
  return made;
}

}  // namespace

Result<UringBackend> make_uring_backend(const UringSetup& setup) {
  return Uring::create(setup);
}

}  // namespace headrace
