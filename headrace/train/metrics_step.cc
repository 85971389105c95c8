// A step of a running engine as a line of metrics.
#include "headrace/base/system_memory.h"
#include "headrace/train/metrics.h"
#include "headrace/train/train_report.h"

namespace headrace {

Status Metrics::add(const TrainStepReport& step, const TrainRunFigures& run,
                    const TrainEngine& engine) {
  MetricsLine line;
  line.step = step.step;
  line.loss = step.loss;
  line.rate = step.rate;
  line.gradient_norm = step.gradient_norm.value_or(-1);
  line.skipped = step.skipped;
  const double seconds = static_cast<double>(step.wall_ns) / 1e9;
  line.s_per_step = seconds;
  line.cpu_s_per_step = static_cast<double>(step.cpu_ns) / 1e9;
  if (step.wall_ns > 0) {
    line.tokens_per_s = static_cast<double>(run.tokens_a_step) / seconds;
    line.stall_share = static_cast<double>(step.stall_ns) / static_cast<double>(step.wall_ns);
  }
  line.peak_rss_bytes = process_memory().peak_rss;
  line.loaded_bytes = step.loaded_bytes;
  line.stored_bytes = step.stored_bytes;
  const std::vector<TierCounters> counters = engine.counters();
  for (size_t t = 1; t < counters.size(); ++t) {
    line.tiers.push_back(
        {engine.program().tiers[t].name, counters[t].loaded_bytes, counters[t].stored_bytes});
  }
  return add(line);
}

}  // namespace headrace
