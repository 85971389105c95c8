// headrace train: takes optimizer steps inside a budget.
#include <cmath>
#include <memory>
#include <optional>

#include "headrace/base/safe_file.h"
#include "headrace/base/system_memory.h"
#include "headrace/train/metrics.h"
#include "headrace/train/train_report.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/train_setup.h"

namespace headrace::cli {
namespace {

// The first step meets cold memory and files.
constexpr int64_t kStepsBeforeReplan = 3;

struct TrainRunOptions {
  TrainCliOptions train;
  bool resume = false;
  std::string report_file;
  std::string trace_file;
};

// One `headrace train`, from the options to the report.
class TrainRun {
 public:
  explicit TrainRun(const TrainRunOptions& options)
      : o_(options), console_(look_at_console()), progress_(console_), stop_(stop_flag()) {}

  Status run() {
    for (const std::string& file : {o_.report_file, o_.trace_file}) {
      if (!file.empty()) HR_TRY(check_writable(file));
    }
    return finish(train());
  }

 private:
  Status stopped() const {
    return stop_->load() ? error(Code::kCancelled, "stopped on request") : Status();
  }

  Status train() {
    HR_ASSIGN(setup_, read_train_setup(o_.train));
    const TrainConfig& c = setup_.options.config;
    HR_ASSIGN(FileLock lock, FileLock::take(c.out + "/lock", false));
    if (!lock.held()) {
      return error(Code::kUsage, "another process is training in %s", c.out.c_str());
    }
    lock_.emplace(std::move(lock));
    HR_ASSIGN(const std::string checkpoint, latest_checkpoint(c.out));
    if (!checkpoint.empty() && !o_.resume) {
      return error(Code::kUsage,
                   "%s holds a run already (%s): go on with --resume, or name another \"out\"",
                   c.out.c_str(), checkpoint.c_str());
    }
    if (checkpoint.empty() && o_.resume) {
      notice("%s holds no checkpoint yet: begins at step 1", c.out.c_str());
    }
    if (!checkpoint.empty()) HR_TRY(compare(checkpoint));
    HR_TRY(open_data());
    HR_ASSIGN(TrainPlan plan, plan_training(setup_.options, setup_.model));
    print_error(train_plan_table(plan, console_.error_style) + "\n");
    HR_TRY(stopped());
    HR_TRY(start(std::move(plan), checkpoint));
    return loop();
  }

  // Says what the config has changed since: then the run is not the one that was interrupted.
  Status compare(const std::string& checkpoint) const {
    HR_ASSIGN(const CheckpointInfo info, read_checkpoint_info(checkpoint));
    const std::string changed = changed_since(info.config, setup_.options.config);
    if (!changed.empty()) {
      notice("since step %lld the config has changed: %s", static_cast<long long>(info.step),
             changed.c_str());
    }
    return {};
  }

  Status open_data() {
    const TrainConfig& c = setup_.options.config;
    const Tokenizer* tokenizer = setup_.initial->tokenizer();
    const int64_t vocab = setup_.model.vocab;
    HR_ASSIGN(data_, Dataset::open(c, c.data.files, "train", tokenizer, vocab));
    if (!c.data.eval_files.empty()) {
      HR_ASSIGN(eval_data_, Dataset::open(c, c.data.eval_files, "eval", tokenizer, vocab));
    }
    setup_.initial->drop_tokenizer();
    return {};
  }

  Status start(TrainPlan plan, const std::string& checkpoint) {
    Trainer::Sources sources;
    sources.data = data_.get();
    sources.eval_data = eval_data_.get();
    sources.initial = [this](const Parameter& tile, int64_t begin, std::span<float> out) {
      return setup_.initial->read(tile, begin, out);
    };
    HR_ASSIGN(trainer_, Trainer::start(std::move(plan), sources, checkpoint,
                                       show_bytes(checkpoint.empty() ? "parameters" : "state")));
    progress_.clear();
    setup_.initial.reset();
    const TrainConfig& c = trainer_->plan().options.config;
    setup_.folder->keep();
    HR_ASSIGN(metrics_, Metrics::open(c.out, trainer_->done()));
    saved_ = trainer_->done();
    figures_.tokens_a_step = c.batch * c.accumulation * c.sequence;
    return {};
  }

  // Of what begins now; smaller numbers than before begin something new.
  ByteProgress show_bytes(const char* what) {
    progress_.restart();
    return [this, what, last = Bytes{0}](Bytes done, Bytes total) mutable {
      if (done < last) progress_.restart();
      last = done;
      progress_.update(what, done / kMiB, total / kMiB, "MiB/s");
    };
  }

  Status loop() {
    const TrainConfig& c = trainer_->plan().options.config;
    if (trainer_->done() >= c.steps) {
      notice("%lld steps have been done already", static_cast<long long>(trainer_->done()));
    }
    while (trainer_->done() < c.steps) {
      if (stop_->load()) {
        HR_TRY(save());
        return error(Code::kCancelled, "stopped on request after step %lld; --resume goes on",
                     static_cast<long long>(trainer_->done()));
      }
      HR_ASSIGN(const TrainStepReport step, trainer_->step());
      figures_.add(step);
      print_error(step_line(step, figures_, c.steps) + "\n");
      if (figures_.steps == kStepsBeforeReplan) HR_TRY(replan());
      HR_TRY(metrics_->add(step, figures_, trainer_->engine()));
      if (c.eval_every > 0 && (step.step % c.eval_every == 0 || step.step == c.steps)) {
        HR_ASSIGN(const double loss, trainer_->evaluate());
        print_error(text_of("  evaluation: loss %.4f, perplexity %.4g\n", loss, std::exp(loss)));
        HR_TRY(metrics_->add_evaluation(step.step, loss));
      }
      const bool due = c.checkpoint_every > 0 && step.step % c.checkpoint_every == 0;
      if (due && step.step < c.steps) HR_TRY(save());
    }
    return save();
  }

  Status replan() {
    const int64_t left = trainer_->plan().options.config.steps - trainer_->done();
    HR_ASSIGN(figures_.replanned, trainer_->replan(left));
    const Trainer::Replanned& r = figures_.replanned;
    if (r.swapped) {
      notice("planned again with measured times: %s a step instead of %s",
             human_time(r.after_ns).c_str(), human_time(r.before_ns).c_str());
    }
    return {};
  }

  // Of the steps since the last one.
  Status save() {
    if (trainer_->done() == saved_) return {};
    HR_TRY(trainer_->save(show_bytes("checkpoint")));
    progress_.clear();
    saved_ = trainer_->done();
    return metrics_->plot();
  }

  Status finish(Status status) {
    progress_.clear();
    figures_.version = HEADRACE_VERSION;
    figures_.exit_reason = status.ok() ? "steps_done"
                           : status.code() == Code::kCancelled ? "cancelled"
                                                               : "error";
    figures_.exit_code = exit_code(status.code());
    if (!status.ok() && status.code() != Code::kCancelled) figures_.error = status.message();
    figures_.peak_rss_bytes = process_memory().peak_rss;
    if (figures_.steps > 0) print_error(run_line(trainer_->plan(), figures_) + "\n");
    Status written;
    if (!o_.trace_file.empty() && trainer_ != nullptr && figures_.steps > 0) {
      written = write_file(o_.trace_file,
                           to_chrome_json(trainer_->engine().program(), trainer_->trace()));
    }
    if (!o_.report_file.empty()) {
      const TrainPlan* plan = trainer_ == nullptr ? nullptr : &trainer_->plan();
      const Status reported = write_file(o_.report_file, train_report_json(plan, figures_));
      if (written.ok()) written = reported;
    }
    if (status.ok()) return written;
    if (!written.ok()) notice("%s", written.message().c_str());
    return status;
  }

  const TrainRunOptions& o_;
  const Console console_;
  ProgressLine progress_;
  std::atomic<bool>* stop_;
  TrainSetup setup_;
  std::optional<FileLock> lock_;
  std::unique_ptr<Dataset> data_, eval_data_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Metrics> metrics_;
  TrainRunFigures figures_;
  int64_t saved_ = 0;  // step of the newest checkpoint
};

}  // namespace

void add_train(CLI::App& app, Action* action) {
  auto o = std::make_shared<TrainRunOptions>();
  CLI::App* verb = app.add_subcommand("train", "Pretrain or fine-tune a model inside a budget");
  add_train_options(*verb, &o->train);
  verb->add_flag("--resume", o->resume, "Go on from the newest checkpoint of the run's folder");
  verb->add_option("--report", o->report_file, "Write what was planned and measured as JSON");
  verb->add_option("--trace", o->trace_file,
                   "Write the last step as Chrome trace JSON (chrome://tracing, Perfetto)");
  verb->callback([o, action] { *action = [o] { return TrainRun(*o).run(); }; });
}

}  // namespace headrace::cli
