#include "headrace/train/trainer.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "headrace/base/safe_file.h"
#include "headrace/base/split_mix.h"
#include "headrace/base/system.h"
#include "headrace/train/convert.h"
#include "headrace/train/replan.h"

namespace headrace {
namespace {

// With "on_nan": "skip", so many steps in a row may change nothing before the run gives up.
constexpr int64_t kMostSkipped = 10;
// What planning takes: measured at 9 KiB an op.
constexpr Bytes kPlanning = 2 * kMiB, kPlanningPerOp = 12 * kKiB;

constexpr int64_t kGoodSteps = 2000;  // after so many in a row the loss scale is doubled

Nanos cpu_ns() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) { return t.tv_sec * Nanos{1'000'000'000} + t.tv_usec * 1000; };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

// The seed of one step's dropout and rounding.
uint64_t seed_of(uint64_t run, int64_t step) {
  return mixed(run + static_cast<uint64_t>(step) * kSplitMixStep);
}

// The tensors that a checkpoint holds, in the order of the parameters: what a copy can be made from,
// and the optimizer's state.
std::vector<TensorId> saved_tensors(const std::vector<Parameter>& parameters) {
  std::vector<TensorId> out;
  for (const Parameter& p : parameters) {
    if (!p.trainable) continue;
    out.push_back(p.master.valid() ? p.master : p.param);
    for (TensorId t : {p.m, p.v}) {
      if (t.valid()) out.push_back(t);
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::start(TrainPlan plan, const Sources& sources,
                                                const std::string& checkpoint,
                                                const ByteProgress& progress,
                                                const EngineOptions& test_options) {
  std::unique_ptr<Trainer> t(new Trainer);
  t->plan_ = std::move(plan);
  t->data_ = sources.data;
  t->eval_data_ = sources.eval_data;
  t->block_.resize(static_cast<size_t>(kCheckpointBlock));
  const TrainOptions& o = t->plan_.options;
  HR_TRY(remove_path(t->replan_folder()));  // of a run that was killed while it moved
  if (!t->plan_.frozen_file.empty()) {
    HR_TRY(t->write_frozen(checkpoint.empty(), sources.initial, progress));
  }
  EngineOptions& options = t->engine_options_;
  options = test_options;
  options.threads = o.threads;
  options.paranoid = o.paranoid;
  options.tiers.resize(1);
  if (!t->plan_.frozen_file.empty()) options.tiers.push_back({"", t->plan_.frozen_file});
  for (const StateTier& tier : o.tiers) options.tiers.push_back({tier.folder, ""});
  HR_TRY(t->start_engine());
  const int64_t rows = t->plan_.step->workload.graph.max_rows;
  if (t->scales_loss()) t->rows_.loss_scale = o.config.optimizer.loss_scale;
  t->rows_.tokens.resize(static_cast<size_t>(rows));
  t->rows_.targets.resize(static_cast<size_t>(rows));
  if (checkpoint.empty()) {
    HR_TRY(t->write_initial(sources.initial, progress));
  } else {
    HR_TRY(t->resume(checkpoint, progress).within(checkpoint));
  }
  HR_TRY(t->engine_->load_frozen());
  return t;
}

Status Trainer::start_engine() {
  engine_.reset();  // the arena of the one before counts until then
  HR_ASSIGN(engine_, TrainEngine::start(plan_.plan.program, engine_options_));
  return {};
}

// Hands the tile's first values, rounded to `dtype`, to `sink` in parts: byte of the tile, bytes.
Status Trainer::stream_initial(
    const Parameter& tile, DType dtype, const InitialValues& initial,
    const std::function<Status(Bytes at, std::span<const std::byte> bytes)>& sink) {
  std::vector<float> values(block_.size() / 2 / sizeof(float));
  const int64_t n = tile.row_count * tile.cols;
  const Bytes element = row_bytes(dtype, 1);
  for (int64_t at = 0; at < n; at += static_cast<int64_t>(values.size())) {
    const size_t count = std::min(values.size(), static_cast<size_t>(n - at));
    const std::span<float> part(values.data(), count);
    HR_TRY(initial(tile, at, part).within(tile.tensor));
    convert(part, dtype, block_.data());
    HR_TRY(sink(at * element, {block_.data(), count * static_cast<size_t>(element)}));
  }
  return {};
}

// One file, tile after tile at the places that the parameters name. A run that goes on keeps its own:
// it appears under its name only when it is whole.
Status Trainer::write_frozen(bool fresh, const InitialValues& initial,
                             const ByteProgress& progress) {
  const std::vector<Parameter>& parameters = plan_.step->parameters;
  struct stat info = {};
  const Bytes size = frozen_bytes(parameters);
  const bool whole = ::stat(plan_.frozen_file.c_str(), &info) == 0 && info.st_size == size;
  if (whole && !fresh) return {};
  HR_TRY(make_folders(plan_.options.config.out));
  HR_ASSIGN(AtomicFile file, AtomicFile::create(plan_.frozen_file));
  for (const Parameter& p : parameters) {
    if (p.trainable) continue;
    HR_CHECK(file.file().written() <= p.frozen.offset, "frozen parameters in order");
    HR_TRY(file.file().pad_to(kPage));
    HR_CHECK(file.file().written() == p.frozen.offset, "frozen parameters on pages");
    HR_TRY(stream_initial(p, p.dtype, initial,
                          [&](Bytes, std::span<const std::byte> bytes) -> Status {
                            HR_TRY(file.file().append(bytes));
                            if (progress) progress(file.file().written(), size);
                            return {};
                          }));
  }
  HR_TRY(file.file().pad_to(kPage));
  return file.commit();
}

// Makes the copy that products read from the master's bytes.
Status Trainer::write_copy(const Parameter& p, Bytes begin, std::span<const std::byte> master) {
  if (!p.master.valid()) return {};
  const size_t n = master.size() / sizeof(float);
  std::vector<uint16_t> copy(n);
  convert({reinterpret_cast<const float*>(master.data()), n}, p.dtype,
          reinterpret_cast<std::byte*>(copy.data()));
  return engine_->write(p.tensor, begin / 2, std::as_bytes(std::span(copy)));
}

// Moments start at zero, which is what a fresh arena and a fresh file hold.
Status Trainer::write_initial(const InitialValues& initial, const ByteProgress& progress) {
  const Graph& g = plan_.step->workload.graph;
  Bytes done = 0, total = 0;
  for (const Parameter& p : plan_.step->parameters) {
    if (p.trainable) total += g.at(p.master.valid() ? p.master : p.param).bytes;
  }
  for (const Parameter& p : plan_.step->parameters) {
    if (!p.trainable) continue;
    const Tensor& first = g.at(p.master.valid() ? p.master : p.param);
    HR_TRY(stream_initial(p, first.dtype, initial,
                          [&](Bytes at, std::span<const std::byte> bytes) -> Status {
                            HR_TRY(engine_->write(first.name, at, bytes));
                            return write_copy(p, at, bytes);
                          }));
    done += first.bytes;
    if (progress) progress(done, total);
  }
  return {};
}

CheckpointInfo Trainer::checkpoint_info() const {
  const Graph& g = plan_.step->workload.graph;
  CheckpointInfo info;
  info.step = done_;
  info.loss_scale = rows_.loss_scale;
  info.good_steps = scales_loss() ? good_steps_ : -1;
  info.next_sample = next_sample_;
  info.config = to_json(plan_.options.config);
  for (TensorId id : saved_tensors(plan_.step->parameters)) {
    const Tensor& t = g.at(id);
    info.tensors.push_back({t.name, name_of(t.dtype), t.rows, t.cols, t.bytes});
  }
  return info;
}

Status Trainer::resume(const std::string& folder, const ByteProgress& progress) {
  HR_ASSIGN(const CheckpointInfo info, read_checkpoint_info(folder));
  const CheckpointInfo mine = checkpoint_info();
  for (size_t i = 0; i < std::max(info.tensors.size(), mine.tensors.size()); ++i) {
    const bool both = i < info.tensors.size() && i < mine.tensors.size();
    if (both && info.tensors[i].name == mine.tensors[i].name &&
        info.tensors[i].dtype == mine.tensors[i].dtype &&
        info.tensors[i].rows == mine.tensors[i].rows &&
        info.tensors[i].cols == mine.tensors[i].cols) {
      continue;
    }
    const auto shown = [](const CheckpointTensor& t) {
      return text_of("'%s' [%lld, %lld] %s", t.name.c_str(), static_cast<long long>(t.rows),
                     static_cast<long long>(t.cols), t.dtype.c_str());
    };
    return error(Code::kUsage, "the checkpoint is of another model or optimizer: %s, where the "
                 "config has %s",
                 i < info.tensors.size() ? shown(info.tensors[i]).c_str() : "nothing",
                 i < mine.tensors.size() ? shown(mine.tensors[i]).c_str() : "nothing");
  }
  std::vector<const Parameter*> master_of(info.tensors.size());
  size_t at = 0;
  for (const Parameter& p : plan_.step->parameters) {
    if (!p.trainable) continue;
    master_of[at] = &p;
    at += 1 + (p.m.valid() ? 1 : 0) + (p.v.valid() ? 1 : 0);
  }
  const auto write = [&](size_t index, Bytes begin, std::span<const std::byte> in) -> Status {
    HR_TRY(engine_->write(info.tensors[index].name, begin, in));
    return master_of[index] == nullptr ? Status() : write_copy(*master_of[index], begin, in);
  };
  HR_TRY(read_checkpoint(folder, info, block_, write, progress));
  done_ = saved_ = info.step;
  next_sample_ = info.next_sample;
  if (scales_loss() && info.good_steps >= 0) {
    rows_.loss_scale = info.loss_scale;
    good_steps_ = info.good_steps;
  }
  return {};
}

Status Trainer::save(const ByteProgress& progress) {
  const TrainConfig& c = plan_.options.config;
  HR_TRY(save_to(c.out, c.keep_checkpoints, progress));
  saved_ = done_;
  return {};
}

Status Trainer::save_to(const std::string& folder, int64_t keep, const ByteProgress& progress) {
  const CheckpointInfo info = checkpoint_info();
  const auto read = [&](size_t index, Bytes begin, std::span<std::byte> out) {
    return engine_->read(info.tensors[index].name, begin, out);
  };
  return write_checkpoint(folder, info, keep, block_, read, progress);
}

std::string Trainer::replan_folder() const { return plan_.options.config.out + "/replan"; }

Result<Trainer::Replanned> Trainer::replan(int64_t steps_left) {
  // Planning takes memory beside a full arena; where the budget has none left, the plan stays.
  const auto ops = static_cast<Bytes>(plan_.step->workload.graph.ops.size());
  if (plan_.ledger.available() < kPlanning + ops * kPlanningPerOp) return Replanned();
  HR_ASSIGN(std::optional<Replan> again, plan_again(plan_, trace_));
  Replanned out;
  if (!again) return out;
  out.before_ns = again->now_ns;
  out.after_ns = again->then_ns;
  double bytes = 0;
  for (const CheckpointTensor& t : checkpoint_info().tensors) bytes += static_cast<double>(t.bytes);
  // Written and read once as files, written once to its places.
  const TierInfo& disk = plan_.options.machine.tiers[1];
  const double move_s = 2 * bytes / disk.store_bytes_per_s + bytes / disk.load_bytes_per_s;
  const double gain_s = static_cast<double>(out.before_ns - out.after_ns) * 1e-9;
  if (gain_s * static_cast<double>(steps_left) < move_s) return out;
  const std::string folder = replan_folder();
  Status kept = make_folders(folder);
  if (kept.ok()) kept = save_to(folder, 1, {});
  if (!kept.ok()) {  // a full disk, say: the run itself is whole and goes on as planned
    HR_TRY(remove_path(folder));
    return out;
  }
  HR_ASSIGN(const std::string checkpoint, latest_checkpoint(folder));
  const int64_t saved = saved_;
  plan_ = std::move(again->plan);
  HR_TRY(start_engine());
  HR_TRY(resume(checkpoint, {}));
  HR_TRY(engine_->load_frozen());
  HR_TRY(remove_path(folder));
  saved_ = saved;
  out.swapped = true;
  return out;
}

// Sequences [0, samples) of the rows from the data, the others without targets.
Status Trainer::fill_rows(const Dataset& data, int64_t first_sample, int64_t samples) {
  const int64_t sequence = plan_.options.config.sequence;
  const size_t n = static_cast<size_t>(sequence);
  for (size_t at = 0; at < rows_.tokens.size(); at += n) {
    const std::span<int32_t> tokens(rows_.tokens.data() + at, n);
    const std::span<int32_t> targets(rows_.targets.data() + at, n);
    const int64_t sample = static_cast<int64_t>(at / n);
    if (sample < samples) {
      HR_TRY(data.read(first_sample + sample, tokens, targets));
    } else {
      std::fill(tokens.begin(), tokens.end(), 0);
      std::fill(targets.begin(), targets.end(), -1);
    }
  }
  return {};
}

Status Trainer::run_step(double* loss) {
  HR_TRY(engine_->run(rows_, &trace_));
  const std::span<const float> out = engine_->output("loss");
  HR_CHECK(out.size() == 1, "a step has one loss");
  *loss = out[0];
  return {};
}

// Dynamic loss scaling (Micikevicius et al., arXiv 1710.03740, section 3.2). Whether it changed the
// scale: a step that is skipped then is how the scale is found, no fault of the run.
bool Trainer::adapt_loss_scale(bool skipped) {
  good_steps_ = skipped ? 0 : good_steps_ + 1;
  double scale = rows_.loss_scale;
  if (skipped) scale = std::max(1.0, scale / 2);
  if (good_steps_ == kGoodSteps) {
    good_steps_ = 0;
    scale = std::min(kMostLossScale, scale * 2);
  }
  return std::exchange(rows_.loss_scale, scale) != scale;
}

Result<TrainStepReport> Trainer::step() {
  const TrainConfig& c = plan_.options.config;
  TrainStepReport r;
  r.step = done_ + 1;
  const Nanos wall = monotonic_ns(), cpu = cpu_ns();
  const int64_t samples = c.batch * c.accumulation;
  HR_TRY(fill_rows(*data_, next_sample_, samples));
  rows_.step = r.step;
  rows_.seed = seed_of(c.seed, r.step);
  rows_.update = true;
  r.rate = rate_at(c, r.step);
  rows_.rates.clear();
  for (const ParameterGroup& g : c.optimizer.groups) rows_.rates.push_back(r.rate * g.rate_scale);
  rows_.rates.push_back(r.rate);
  HR_TRY(run_step(&r.loss));
  const std::span<const float> clip = engine_->output("clip");
  if (!clip.empty()) {
    r.skipped = clip[0] == 0;
    if (c.optimizer.clip_norm > 0 || scales_loss()) r.gradient_norm = clip[1];
  }
  const bool rescaled = scales_loss() && adapt_loss_scale(r.skipped);
  skipped_ = r.skipped && !rescaled ? skipped_ + 1 : 0;
  if (skipped_ > (c.on_nan == "stop" ? 0 : kMostSkipped)) {
    return explain_not_finite(r.loss, r.gradient_norm);
  }
  ++done_;
  next_sample_ += samples;
  r.wall_ns = monotonic_ns() - wall;
  r.cpu_ns = cpu_ns() - cpu;
  r.stall_ns = trace_.stall_ns;
  r.loaded_bytes = trace_.loaded_bytes + trace_.gathered_bytes;
  r.stored_bytes = trace_.stored_bytes;
  return r;
}

// Runs the step once more, changing nothing, and looks at every value.
Status Trainer::explain_not_finite(double loss, std::optional<double> norm) {
  rows_.update = false;
  engine_->check_finite(true);
  const Status found = engine_->run(rows_, &trace_);
  const std::string cause = found.code() == Code::kNotFinite
                                ? found.message()
                                : "the cause does not show when the step is run again";
  std::string what = text_of("the loss is %g", loss);
  if (norm) what += text_of(", the norm of all gradients %g", *norm);
  const std::string saved = saved_ > 0 ? text_of("the newest checkpoint is of step %lld",
                                                 static_cast<long long>(saved_))
                                       : std::string("there is no checkpoint");
  return error(Code::kNotFinite,
               "step %lld: %s: %s; %s (lower the rate, clip gradients, or set \"on_nan\": "
               "\"skip\")",
               static_cast<long long>(done_ + 1), what.c_str(), cause.c_str(), saved.c_str());
}

Result<double> Trainer::evaluate() {
  if (eval_data_ == nullptr) return error(Code::kUsage, "the config names no evaluation data");
  const int64_t sequences = plan_.options.config.batch * plan_.options.config.accumulation;
  rows_.update = false;
  rows_.step = std::max<int64_t>(1, done_);
  rows_.rates.assign(plan_.options.config.optimizer.groups.size() + 1, 0);
  double sum = 0;
  for (int64_t at = 0; at < eval_data_->samples(); at += sequences) {
    const int64_t count = std::min(sequences, eval_data_->samples() - at);
    HR_TRY(fill_rows(*eval_data_, at, count));
    double loss = 0;
    HR_TRY(run_step(&loss));
    sum += loss * static_cast<double>(count);
  }
  return sum / static_cast<double>(eval_data_->samples());
}

}  // namespace headrace
