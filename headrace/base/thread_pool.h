// ThreadPool: a fixed set of pinned workers that run one function at a time, together.
//
// Made for ops that take microseconds: a call hands the same function to every worker and returns
// when all are done. Waiting workers spin briefly, then sleep, so that an oversubscribed machine
// does not collapse (two spinning pools on two shared cores do).
//
// Promises
//   1. No allocation and no system call in run() while workers are still spinning.
//   2. The caller is worker 0; `size() == 1` starts no thread at all.
//   3. Which worker gets which index is fixed: results cannot depend on timing.
#pragma once

#include <cstdint>
#include <memory>

namespace headrace {

class ThreadPool {
 public:
  // `threads` >= 1. With `pin`, worker i runs on the i-th CPU that the calling thread may use,
  // worker 0 (the caller) included: it gets its CPUs back when the pool is destroyed, which must
  // happen on the same thread. Not pinned where there are more workers than CPUs. Where the system
  // refuses to start a thread, size() is what could be started: the caller decides what that means.
  explicit ThreadPool(int threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls fn(worker) for every worker in [0, size()), at once; returns when all have returned.
  // `fn` must not throw and must not call run(). Call from one thread at a time.
  template <typename F>
  void run(F&& fn) {
    if (size_ == 1) {
      fn(0);
      return;
    }
    run_erased([](void* f, int worker) { (*static_cast<F*>(f))(worker); }, &fn);
  }

  // Splits [0, n) into size() contiguous parts, whole multiples of `grain` but for the last, and
  // calls fn(begin, end, worker) for each part that is not empty.
  template <typename F>
  void for_range(int64_t n, int64_t grain, F&& fn) {
    if (n <= grain || size_ == 1) {
      if (n > 0) fn(int64_t{0}, n, 0);
      return;
    }
    const int64_t units = (n + grain - 1) / grain;
    run([&](int worker) {
      const int64_t begin = units * worker / size_ * grain;
      int64_t end = units * (worker + 1) / size_ * grain;
      if (end > n) end = n;
      if (begin < end) fn(begin, end, worker);
    });
  }

 private:
  struct State;
  void run_erased(void (*call)(void*, int), void* fn);

  int size_;
  std::unique_ptr<State> state_;
};

}  // namespace headrace
