#include "headrace/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "headrace/base/status.h"
#include "headrace/base/system.h"

namespace headrace {
namespace {

// About 20 us: longer than the gap between two ops of a step, shorter than a scheduler slice.
constexpr int kSpins = 2000;

void cpu_relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Spins until `word` differs from `old`, then sleeps on it.
void await_change(std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kSpins; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    cpu_relax();
  }
  while (word.load(std::memory_order_acquire) == old) word.wait(old, std::memory_order_acquire);
}

void pin_to(pthread_t thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  // A refusal (a cpuset that shrank) only costs speed.
  (void)pthread_setaffinity_np(thread, sizeof(set), &set);
}

}  // namespace

struct ThreadPool::State {
  struct Worker {
    State* state = nullptr;
    int index = 0;
    pthread_t thread{};
  };

  alignas(64) std::atomic<uint32_t> generation{0};  // bumped to start a call, or to stop
  alignas(64) std::atomic<uint32_t> pending{0};     // workers still busy with this call
  void (*call)(void*, int) = nullptr;
  void* fn = nullptr;
  bool stop = false;
  std::vector<Worker> workers;
  std::vector<int> callers_cpus;  // to be given back; empty when the caller was not pinned

  static void* main_of_thread(void* argument) {
    const Worker& me = *static_cast<Worker*>(argument);
    me.state->work(me.index);
    return nullptr;
  }

  void work(int worker) {
    uint32_t seen = 0;
    for (;;) {
      await_change(generation, seen);
      ++seen;
      if (stop) return;
      call(fn, worker);
      if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) pending.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : size_(threads) {
  HR_CHECK(threads >= 1, "a pool has at least the calling thread");
  if (threads == 1) return;
  state_ = std::make_unique<State>();
  const std::vector<int> cpus = allowed_cpus();
  const bool pinned = pin && static_cast<int>(cpus.size()) >= threads;
  // Kernels keep their data in workspace, so stacks are small: the default of 8 MiB would count
  // where address space is limited.
  constexpr size_t kStackBytes = 512 * 1024;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  state_->workers.resize(static_cast<size_t>(threads));
  for (size_ = 1; size_ < threads; ++size_) {
    State::Worker& w = state_->workers[static_cast<size_t>(size_)];
    w.state = state_.get();
    w.index = size_;
    if (pthread_create(&w.thread, &attributes, &State::main_of_thread, &w) != 0) break;
    if (pinned) pin_to(w.thread, {cpus[static_cast<size_t>(size_)]});
  }
  pthread_attr_destroy(&attributes);
  if (!pinned) return;
  pin_to(pthread_self(), {cpus[0]});
  state_->callers_cpus = cpus;
}

ThreadPool::~ThreadPool() {
  if (!state_) return;
  state_->stop = true;
  state_->generation.fetch_add(1, std::memory_order_release);
  state_->generation.notify_all();
  for (int i = 1; i < size_; ++i) {
    pthread_join(state_->workers[static_cast<size_t>(i)].thread, nullptr);
  }
  // A caller left pinned would hand its one CPU to every thread that it starts later.
  if (!state_->callers_cpus.empty()) pin_to(pthread_self(), state_->callers_cpus);
}

void ThreadPool::run_erased(void (*call)(void*, int), void* fn) {
  State& s = *state_;
  s.call = call;
  s.fn = fn;
  s.pending.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  s.generation.fetch_add(1, std::memory_order_release);
  s.generation.notify_all();
  call(fn, 0);
  for (;;) {
    const uint32_t left = s.pending.load(std::memory_order_acquire);
    if (left == 0) return;
    await_change(s.pending, left);
  }
}

}  // namespace headrace
