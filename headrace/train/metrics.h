// Metrics: RUN/metrics.jsonl, a line of JSON a step, and RUN/metrics.html, a picture of it.
//
// A step's line: step, loss, rate, gradient_norm (null: none was computed), skipped, tokens_per_s,
// s_per_step, cpu_s_per_step, stall_share, peak_rss_bytes, loaded_bytes, stored_bytes, tiers (an
// object by name: loaded_bytes and stored_bytes since the process started). An evaluation's line:
// step, eval_loss.
//
// Promises
//   1. A line is appended by one write: a kill leaves whole lines, or one broken line at the end,
//      which is cut off when the file is opened again.
//   2. Opened at step n, lines of later steps are gone: a resumed run's file is that of a run that
//      was never interrupted.
//   3. The page is one file that loads nothing: light and dark, readable without scripts.
//   4. Memory does not grow with the run: the file is read in pieces, and the page keeps means.
// Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"

namespace headrace {

class TrainEngine;
struct TrainRunFigures;
struct TrainStepReport;

// One line; numbers that are not finite are written as null.
struct MetricsTier {
  std::string name;
  Bytes loaded_bytes = 0, stored_bytes = 0;
};
struct MetricsLine {
  int64_t step = 0;
  double loss = 0;
  double rate = 0;
  double gradient_norm = -1;  // below 0: none was computed
  bool skipped = false;
  double tokens_per_s = 0;
  double s_per_step = 0, cpu_s_per_step = 0;
  double stall_share = 0;  // of s_per_step
  Bytes peak_rss_bytes = 0;
  Bytes loaded_bytes = 0, stored_bytes = 0;
  std::vector<MetricsTier> tiers;
};

// What the page shows, taken line by line in memory that does not grow with them.
class MetricsPage {
 public:
  MetricsPage();
  MetricsPage(MetricsPage&&) noexcept;
  ~MetricsPage();
  // A line of the file; one that is no line of ours shows nothing.
  void add(std::string_view line);
  // The page so far. `title` is shown above.
  std::string html(const std::string& title) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Metrics {
 public:
  // Opens or makes the file in the folder, which exists, and cuts it after step `done`. kIo.
  static Result<std::unique_ptr<Metrics>> open(const std::string& run, int64_t done);
  ~Metrics();

  // Each appends a line. kIo: the file is as it was before.
  Status add(const MetricsLine& line);
  Status add(const TrainStepReport& step, const TrainRunFigures& run, const TrainEngine& engine);
  Status add_evaluation(int64_t step, double loss);
  // Draws the file's loss and memory into metrics.html, atomically. kIo.
  Status plot() const;

 private:
  Metrics(std::string run, int descriptor) : run_(std::move(run)), descriptor_(descriptor) {}
  Status append(const std::string& line);

  std::string run_;
  int descriptor_ = -1;
  Bytes size_ = 0;
  MetricsPage page_;
};

}  // namespace headrace
