#include "headrace/serve/front.h"

#include <cstring>

#include "headrace/tier/small_thread.h"

namespace headrace {
namespace {

// Templates nest calls; touched pages alone are memory.
constexpr size_t kStackBytes = 4 * kMiB;

}  // namespace

Result<std::unique_ptr<Front>> Front::start(const Options& options, std::function<void()> tick) {
  std::unique_ptr<Front> front(new Front(options, std::move(tick)));
  const int rc = start_small_thread(
      [](void* self) -> void* {
        static_cast<Front*>(self)->loop();
        return nullptr;
      },
      front.get(), &front->thread_, kStackBytes);
  if (rc != 0) return error(Code::kIo, "cannot start the front thread: %s", std::strerror(rc));
  front->started_ = true;
  return front;
}

Front::~Front() {
  if (!started_) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  pthread_join(thread_, nullptr);
}

bool Front::post(Bytes bytes, std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || tasks_ >= options_.most_tasks || bytes > options_.most_bytes - bytes_) {
      return false;
    }
    ++tasks_;
    bytes_ += bytes;
    waiting_.push_back({bytes, std::move(task)});
  }
  changed_.notify_one();
  return true;
}

int Front::tasks() const {
  const std::lock_guard lock(mutex_);
  return tasks_;
}

void Front::loop() {
  using Clock = std::chrono::steady_clock;
  auto next_tick = Clock::now() + options_.period;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (waiting_.empty()) {
      changed_.wait_until(lock, next_tick, [this] { return ending_ || !waiting_.empty(); });
    }
    if (ending_) return;
    if (!waiting_.empty()) {
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      task.run();
      task.run = nullptr;  // what it owns goes before its bytes are given back
      lock.lock();
      --tasks_;
      bytes_ -= task.bytes;
    }
    if (Clock::now() < next_tick) continue;
    lock.unlock();
    tick_();
    lock.lock();
    next_tick = Clock::now() + options_.period;
  }
}

}  // namespace headrace
