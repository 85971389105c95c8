#include "headrace/train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "headrace/base/safe_file.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr Bytes kPiece = 64 * kKiB;  // read at a time
constexpr size_t kMostLine = kMiB;    // a longer one is none of ours; ours have some 500 bytes

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

// Calls line(text, end) for every whole line, the next of which begins at `end`, until it is false.
template <typename F>
Status each_line(const InFile& in, F&& line) {
  std::string held;
  Bytes begin = 0;  // of `held` in the file
  for (Bytes at = 0; at < in.size();) {
    const size_t before = held.size();
    const Bytes n = std::min(kPiece, in.size() - at);
    held.resize(before + static_cast<size_t>(n));
    HR_TRY(in.read(at, std::as_writable_bytes(std::span(held).subspan(before))));
    at += n;
    size_t from = 0;
    for (size_t end; (end = held.find('\n', from)) != std::string::npos; from = end + 1) {
      const std::string_view text = std::string_view(held).substr(from, end - from);
      if (!line(text, begin + static_cast<Bytes>(end) + 1)) return {};
    }
    held.erase(0, from);
    begin += static_cast<Bytes>(from);
    if (held.size() > kMostLine) return {};
  }
  return {};
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
  HR_ASSIGN(const InFile in, InFile::open(path));
  // Lines are in the order of steps: what follows the first later one is later too.
  HR_TRY(each_line(in, [&](std::string_view line, Bytes end) {
    const int64_t step = step_of(line);
    if (step < 0 || step > done) return false;
    out->page_.add(line);
    out->size_ = end;
    return true;
  }));
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
    page_.add(line);
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
  return write_atomically(run_ + "/metrics.html", page_.html(run_));
}

}  // namespace headrace
