// Engine: the thread around an EngineCore, and what other threads may ask.
#include "headrace/serve/engine.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "headrace/base/system.h"
#include "headrace/base/system_memory.h"
#include "headrace/serve/engine_core.h"

namespace headrace {
namespace {

constexpr const char* kStopping = "the server is stopping";

}  // namespace

class Engine::Impl {
 public:
  Impl(const Model& model, std::unique_ptr<EngineCore> core, const EngineOptions& options)
      : model_(model), options_(options), core_(std::move(core)), metrics_(core_->metrics()),
        thread_([this] { run(); }) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = draining_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  JobId submit(Job job, Refusal* why) {
    const Status status = EngineCore::check(job, model_, plan());
    const std::lock_guard lock(mutex_);
    *why = refusal(status);
    if (why->kind != Refusal::Kind::kNone) {
      ++refused_;
      return {};
    }
    const JobId id(next_++);
    arrivals_.push_back({id, std::move(job), monotonic_ns()});
    ++live_;
    wake_.notify_all();
    return id;
  }

  void cancel(JobId id) {
    const std::lock_guard lock(mutex_);
    if (live_ == 0) return;
    cancels_.push_back(id);
    wake_.notify_all();
  }

  void drain() {
    std::unique_lock lock(mutex_);
    draining_ = true;
    ended_.wait(lock, [this] { return live_ == 0; });
  }

  void stop(const std::string& why) {
    const std::lock_guard lock(mutex_);
    draining_ = cut_ = true;
    why_ = why;
    wake_.notify_all();
  }

  EngineMetrics metrics() const {
    EngineMetrics m;
    {
      const std::lock_guard lock(mutex_);
      m = metrics_;
      m.waiting += static_cast<int64_t>(arrivals_.size());
      m.jobs_refused = refused_;
      m.recent = recent_.at(monotonic_ns());
    }
    m.headroom_bytes = static_cast<double>(plan().ledger.total() - process_memory().rss);
    return m;
  }

  std::string last_timeline() const {
    Trace trace;
    {
      const std::lock_guard lock(mutex_);
      trace = trace_;
    }
    return trace.records.empty() ? std::string() : to_chrome_json(plan().step, trace);
  }

  const BatchPlan& plan() const { return core_->session().plan(); }

 private:
  struct Arrival {
    JobId id;
    Job job;
    Nanos at = 0;
  };

  // With the lock. `status`: whether the job can run at all.
  Refusal refusal(const Status& status) const {
    if (!status.ok()) return {Refusal::Kind::kNever, status, 0};
    if (draining_)
      return {Refusal::Kind::kDraining, error(Code::kCancelled, "%s", kStopping), 0};
    const int64_t waiting = waiting_ + static_cast<int64_t>(arrivals_.size());
    // Those that the next turn finds places for do not wait.
    const int64_t places = std::max<int64_t>(0, plan().options.places - metrics_.running);
    if (waiting < options_.queue_jobs + places) return {};
    return {Refusal::Kind::kBusy,
            error(Code::kDoesNotFit, "the server is busy: %lld requests wait, as many as may",
                  static_cast<long long>(waiting)), seconds_to_room_};
  }

  void run() {
    while (take()) {
      core_->turn();
      publish();
    }
    core_->cancel_all(kStopping);
    publish();
  }

  // What has come since the last turn; waits while there is nothing to do. False: to stop.
  bool take() {
    std::vector<Arrival> arrivals;
    std::vector<JobId> cancels;
    bool stop = false, cut = false;
    std::string why;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] {
        return stop_ || cut_ || !arrivals_.empty() || !cancels_.empty() || core_->jobs() > 0;
      });
      cut = std::exchange(cut_, false);
      why = why_;
      arrivals.swap(arrivals_);
      cancels.swap(cancels_);
      stop = stop_;
      waiting_ += static_cast<int64_t>(arrivals.size());
    }
    for (Arrival& a : arrivals) core_->accept(a.id, std::move(a.job), a.at);
    for (JobId id : cancels) core_->cancel(id, "the client has cancelled");
    if (cut) core_->cancel_all(why);
    return !stop;
  }

  void publish() {
    EngineMetrics metrics = core_->metrics();
    const int64_t waiting = core_->waiting(), jobs = core_->jobs();
    const double room = core_->seconds_to_room();
    const std::lock_guard lock(mutex_);
    if (core_->traced() && metrics.steps != metrics_.steps) trace_ = core_->session().last_trace();
    metrics_ = std::move(metrics);
    recent_ = core_->recent();
    waiting_ = waiting;
    seconds_to_room_ = room;
    live_ = jobs + static_cast<int64_t>(arrivals_.size());
    if (live_ == 0) ended_.notify_all();
  }

  const Model& model_;
  const EngineOptions options_;
  const std::unique_ptr<EngineCore> core_;  // of the thread, but for its plan

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, ended_;
  std::vector<Arrival> arrivals_;
  std::vector<JobId> cancels_;
  bool stop_ = false, draining_ = false;
  bool cut_ = false;  // what was accepted has to end
  std::string why_;   // for `cut_`
  int32_t next_ = 0;
  int64_t live_ = 0;     // jobs that were accepted and have not ended
  int64_t waiting_ = 0;  // of them, taken by the thread and not begun
  int64_t refused_ = 0;
  double seconds_to_room_ = 1;
  EngineMetrics metrics_;
  RecentSteps recent_;
  Trace trace_;

  std::thread thread_;  // the last: it uses all of it
};

Result<std::unique_ptr<Engine>> Engine::start(const Model& model,
                                              std::unique_ptr<BatchSession> session,
                                              const EngineOptions& options,
                                              std::unique_ptr<Drafter> drafter) {
  HR_ASSIGN(auto core,
            EngineCore::create(model, std::move(session), options, std::move(drafter)));
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<Impl>(model, std::move(core), options)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
JobId Engine::submit(Job job, Refusal* why) { return impl_->submit(std::move(job), why); }
void Engine::cancel(JobId id) { impl_->cancel(id); }
void Engine::drain() { impl_->drain(); }
void Engine::stop(const std::string& why) { impl_->stop(why); }
EngineMetrics Engine::metrics() const { return impl_->metrics(); }
const BatchPlan& Engine::plan() const { return impl_->plan(); }
std::string Engine::last_timeline() const { return impl_->last_timeline(); }
int64_t Engine::context() const { return impl_->plan().options.context; }

}  // namespace headrace
