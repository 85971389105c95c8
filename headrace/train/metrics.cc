#include "headrace/train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "headrace/train/safe_file.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr Bytes kMaxMetrics = kGiB;

std::string metrics_of(const std::string& run) { return run + "/metrics.jsonl"; }

Status refused(const std::string& path, const char* what) {
  return error(Code::kIo, "%s: %s: %s", path.c_str(), what, std::strerror(errno));
}

// The step that a line is of; -1 when it is no line of ours.
int64_t step_of(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return -1;
  const auto step = json.find("step");
  return step != json.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

// How much of the text are whole lines of steps up to `done`. Lines are in the order of steps, so
// that what follows the first later one is later too.
size_t kept_of(const std::string& text, int64_t done) {
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) return begin;
    const int64_t step = step_of(std::string_view(text).substr(begin, end - begin));
    if (step < 0 || step > done) return begin;
    begin = end + 1;
  }
}

std::string text_of_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<std::unique_ptr<Metrics>> Metrics::open(const std::string& run, int64_t done) {
  const std::string path = metrics_of(run);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return refused(path, "open");
  std::unique_ptr<Metrics> out(new Metrics(run, descriptor));
  HR_ASSIGN(const std::string text, read_text(path, kMaxMetrics));
  out->size_ = static_cast<Bytes>(kept_of(text, done));
  if (::ftruncate(descriptor, out->size_) != 0) return refused(path, "truncate");
  return out;
}

Metrics::~Metrics() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status Metrics::append(const std::string& line) {
  const std::string path = metrics_of(run_);
  ssize_t n = 0;
  do {
    n = ::write(descriptor_, line.data(), line.size());
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(line.size())) {
    size_ += n;
    return {};
  }
  if (n >= 0) errno = ENOSPC;  // a file takes part of a line only when the disk is full
  const Status status = refused(path, "write");
  (void)::ftruncate(descriptor_, size_);  // without the part of a line
  return status;
}

Status Metrics::add(const MetricsLine& line) {
  Json tiers = Json::object();
  for (const MetricsTier& tier : line.tiers) {
    tiers[tier.name] = {{"loaded_bytes", tier.loaded_bytes}, {"stored_bytes", tier.stored_bytes}};
  }
  Json json = {{"step", line.step}, {"loss", line.loss}, {"rate", line.rate}};
  json["gradient_norm"] = line.gradient_norm < 0 ? Json() : Json(line.gradient_norm);
  json["skipped"] = line.skipped;
  json["tokens_per_s"] = line.tokens_per_s;
  json["s_per_step"] = line.s_per_step;
  json["cpu_s_per_step"] = line.cpu_s_per_step;
  json["stall_share"] = line.stall_share;
  json["peak_rss_bytes"] = line.peak_rss_bytes;
  json["loaded_bytes"] = line.loaded_bytes;
  json["stored_bytes"] = line.stored_bytes;
  json["tiers"] = std::move(tiers);
  return append(text_of_json(json));
}

Status Metrics::add_evaluation(int64_t step, double loss) {
  return append(text_of_json(Json{{"step", step}, {"eval_loss", loss}}));
}

Status Metrics::plot() const {
  HR_ASSIGN(const std::string text, read_text(metrics_of(run_), kMaxMetrics));
  return write_atomically(run_ + "/metrics.html", metrics_page(text, run_));
}

}  // namespace headrace
