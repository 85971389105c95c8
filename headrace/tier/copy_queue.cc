#include "headrace/tier/copy_queue.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

// What poll() copies at most: about 20 us, less than one op of the executor takes.
constexpr Bytes kPiece = 256 * kKiB;

struct Copy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  Bytes bytes = 0;
};

}  // namespace

struct CopyQueue::State {
  explicit State(int capacity) : ring(static_cast<size_t>(capacity)) {}

  Copy& of(uint64_t number) { return ring[number % ring.size()]; }

  static void* main_of_thread(void* self) {
    static_cast<State*>(self)->serve();
    return nullptr;
  }
  void serve() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      work.wait(lock, [this] { return stop || finished.load() < pushed; });
      const uint64_t next = finished.load() + 1;
      if (next > pushed) return;
      const Copy copy = of(next);
      lock.unlock();
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      lock.lock();
      finished.store(next, std::memory_order_release);
      ready.notify_one();
    }
  }
  // Without a worker: copies up to `limit` bytes of the oldest copy.
  void advance(Bytes limit) {
    Copy& copy = of(finished.load() + 1);
    const Bytes bytes = std::min(limit, copy.bytes);
    std::memcpy(copy.to, copy.from, static_cast<size_t>(bytes));
    copy.to += bytes;
    copy.from += bytes;
    copy.bytes -= bytes;
    if (copy.bytes == 0) finished.fetch_add(1, std::memory_order_release);
  }

  std::vector<Copy> ring;
  bool has_worker = false;
  pthread_t thread = {};
  std::mutex mutex;
  std::condition_variable work, ready;
  bool stop = false;
  uint64_t pushed = 0;                 // written by the caller, under the mutex
  std::atomic<uint64_t> finished = 0;  // written by whoever copies
};

CopyQueue::CopyQueue(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<CopyQueue>> CopyQueue::create(int capacity, bool worker) {
  if (capacity < 1) return error(Code::kUsage, "a copy queue of %d copies", capacity);
  auto state = std::make_unique<State>(capacity);
  if (worker) {
    const int rc =
        start_small_thread(&State::main_of_thread, state.get(), &state->thread);
    if (rc != 0) return error(Code::kIo, "copy thread: %s", std::strerror(rc));
    state->has_worker = true;
  }
  return std::unique_ptr<CopyQueue>(new CopyQueue(std::move(state)));
}

CopyQueue::~CopyQueue() {
  wait(state_->pushed);
  if (!state_->has_worker) return;
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_one();
  pthread_join(state_->thread, nullptr);
}

uint64_t CopyQueue::push(std::byte* to, const std::byte* from, Bytes bytes) {
  State& s = *state_;
  const uint64_t number = s.pushed + 1;
  if (number > s.ring.size()) wait(number - s.ring.size());
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    s.of(number) = {to, from, bytes};
    s.pushed = number;
  }
  if (s.has_worker) s.work.notify_one();
  return number;
}

void CopyQueue::poll() {
  State& s = *state_;
  if (!s.has_worker && s.finished.load() < s.pushed) s.advance(kPiece);
}

bool CopyQueue::done(uint64_t number) const {
  return number <= state_->finished.load(std::memory_order_acquire);
}

void CopyQueue::wait(uint64_t number) {
  State& s = *state_;
  HR_CHECK(number <= s.pushed, "waiting for a copy that was not pushed");
  if (done(number)) return;
  if (s.has_worker) {
    std::unique_lock<std::mutex> lock(s.mutex);
    s.ready.wait(lock, [&] { return done(number); });
    return;
  }
  while (!done(number)) s.advance(kGiB);
}

Bytes CopyQueue::memory_bytes() const {
  return static_cast<Bytes>(sizeof(State) + state_->ring.size() * sizeof(Copy) +
                            (state_->has_worker ? kSmallStackBytes : 0));
}

}  // namespace headrace
