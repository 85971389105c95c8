// Front: the one thread between the sockets and the engine. What takes longer than the I/O thread
// may be held up (parsing bodies, chat templates, tokenising, drawing a timeline) runs here, one
// task at a time, in the order of arrival.
//
// Promises
//   1. At most `most_tasks` tasks wait, with at most `most_bytes` said to belong to them; more are
//      refused, never queued.
//   2. `tick` is called on the same thread about every `period`, never later than the task that
//      runs then takes.
//   3. Tasks that wait when it ends are dropped without being run; what they own is destroyed.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class Front {
 public:
  struct Options {
    int most_tasks = 64;
    Bytes most_bytes = 16 * kMiB;
    std::chrono::milliseconds period{1000};
  };
  // Starts the thread, all signals blocked there. kIo when there can be none.
  static Result<std::unique_ptr<Front>> start(const Options& options, std::function<void()> tick);
  ~Front();  // after the task that runs
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // Any thread. False: full, and nothing has changed. `bytes` belong to the task until it has run.
  bool post(Bytes bytes, std::function<void()> task);
  // Any thread: tasks that wait or run.
  int tasks() const;

 private:
  struct Task {
    Bytes bytes;
    std::function<void()> run;
  };
  Front(const Options& options, std::function<void()> tick)
      : options_(options), tick_(std::move(tick)) {}
  void loop();

  const Options options_;
  const std::function<void()> tick_;
  pthread_t thread_ = {};
  bool started_ = false;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> waiting_;
  int tasks_ = 0;     // the one that runs included
  Bytes bytes_ = 0;   // of them
  bool ending_ = false;
};

}  // namespace headrace
