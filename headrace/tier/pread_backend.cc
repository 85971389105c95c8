#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "headrace/tier/io_backend.h"
#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

// What the threads do is system calls. All stacks count in describe().memory_bytes, of which
// sessions keep 1 MiB for a tier: four threads and their queues fit.
constexpr size_t kStackBytes = 64 * kKiB;

// One request, done by the calling thread. Bytes moved, or -errno.
int64_t perform(const IoRequest& r) {
  const size_t bytes = static_cast<size_t>(r.bytes);
  const ssize_t n = r.write ? pwrite(r.fd, r.data, bytes, r.offset)
                            : pread(r.fd, r.data, bytes, r.offset);
  const int64_t result = n >= 0 ? n : -static_cast<int64_t>(errno);
  if (r.buffered && n > 0) {
    // Page cache is charged to our limit: at most the requests in flight may stay in it.
    // Dirty pages cannot be dropped, so a write is pushed out first.
    if (r.write)
      (void)sync_file_range(r.fd, r.offset, n,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                                SYNC_FILE_RANGE_WAIT_AFTER);
    (void)posix_fadvise(r.fd, r.offset, n, POSIX_FADV_DONTNEED);
  }
  return result;
}

class PreadPool final : public IoBackend {
 public:
  PreadPool(int threads, int depth)
      : waiting_(static_cast<size_t>(depth)), finished_(static_cast<size_t>(depth)) {
    threads_.reserve(static_cast<size_t>(threads));
  }

  ~PreadPool() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (pthread_t thread : threads_) pthread_join(thread, nullptr);
  }

  // 0 or an errno. Called `threads` times at construction.
  int start_thread() {
    pthread_t thread;
    const int rc = start_small_thread(&PreadPool::main_of_thread, this, &thread, kStackBytes);
    if (rc == 0) threads_.push_back(thread);
    return rc;
  }

  void submit(const IoRequest& request) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      HR_CHECK(unreaped_ < waiting_.size(),
               "more requests in flight than the pool serves");
      ++unreaped_;
      waiting_[(first_waiting_ + waiting_count_++) % waiting_.size()] = request;
    }
    work_.notify_one();
  }

  void flush() override {}

  int reap(std::span<IoCompletion> out, bool block) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (block) ready_.wait(lock, [this] { return finished_count_ > 0; });
    const size_t count = std::min(out.size(), finished_count_);
    for (size_t i = 0; i < count; ++i) {
      out[i] = finished_[first_finished_];
      first_finished_ = (first_finished_ + 1) % finished_.size();
    }
    finished_count_ -= count;
    unreaped_ -= count;
    return static_cast<int>(count);
  }

  Bytes memory_bytes() const override {
    return static_cast<Bytes>(threads_.size() * kStackBytes +
                              waiting_.size() * sizeof(IoRequest) +
                              finished_.size() * sizeof(IoCompletion));
  }

 private:
  static void* main_of_thread(void* self) {
    static_cast<PreadPool*>(self)->serve();
    return nullptr;
  }

  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || waiting_count_ > 0; });
      if (waiting_count_ == 0) return;
      const IoRequest request = waiting_[first_waiting_];
      first_waiting_ = (first_waiting_ + 1) % waiting_.size();
      --waiting_count_;
      lock.unlock();
      const int64_t result = perform(request);
      lock.lock();
      finished_[(first_finished_ + finished_count_++) % finished_.size()] = {request.tag,
                                                                             result};
      ready_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, ready_;
  bool stop_ = false;
  std::vector<IoRequest> waiting_;      // ring of those not yet taken by a thread
  std::vector<IoCompletion> finished_;  // ring of those not yet reaped
  size_t first_waiting_ = 0, waiting_count_ = 0;
  size_t first_finished_ = 0, finished_count_ = 0;
  size_t unreaped_ = 0;
  std::vector<pthread_t> threads_;
};

}  // namespace

Result<std::unique_ptr<IoBackend>> make_pread_backend(int threads, int depth) {
  auto pool = std::make_unique<PreadPool>(threads, depth);
  for (int i = 0; i < threads; ++i) {
    if (const int rc = pool->start_thread(); rc != 0)
      return error(Code::kIo, "thread %d of %d of the read pool: %s", i + 1, threads,
                   std::strerror(rc));
  }
  return std::unique_ptr<IoBackend>(std::move(pool));
}

}  // namespace headrace
