#include "headrace/serve/metrics.h"

#include <algorithm>
#include <cmath>

#include "headrace/base/status.h"

namespace headrace {
namespace {

constexpr Nanos kSecond = 1000000000;

// As short as it can be and still the same number, in no locale.
std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  for (int digits = 6; digits < 17; ++digits) {
    const std::string text = text_of("%.*g", digits, value);
    if (std::stod(text) == value) return text;
  }
  return text_of("%.17g", value);
}
std::string number(int64_t value) { return text_of("%lld", static_cast<long long>(value)); }

// Backslashes, quotes and ends of lines, as the format wants them in a label.
std::string escaped(const std::string& label) {
  std::string out;
  for (char c : label) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out;
}

class Writer {
 public:
  void head(const char* name, const char* type, const char* help) {
    out += text_of("# HELP headrace_%s %s\n# TYPE headrace_%s %s\n", name, help, name, type);
  }
  template <typename T>
  void one(const char* name, const char* type, const char* help, T value) {
    head(name, type, help);
    out += text_of("headrace_%s %s\n", name, number(value).c_str());
  }
  template <typename T>
  void gauge(const char* name, const char* help, T value) { one(name, "gauge", help, value); }
  template <typename T>
  void counter(const char* name, const char* help, T value) { one(name, "counter", help, value); }

  void histogram(const char* name, const char* help, const Histogram& h) {
    head(name, "histogram", help);
    int64_t below = 0;
    for (size_t i = 0; i < h.counts().size(); ++i) {
      below += h.counts()[i];
      const bool last = i == Histogram::kBounds.size();
      out += text_of("headrace_%s_bucket{le=\"%s\"} %lld\n", name,
                     last ? "+Inf" : number(Histogram::kBounds[i]).c_str(),
                     static_cast<long long>(below));
    }
    out += text_of("headrace_%s_sum %s\nheadrace_%s_count %lld\n", name, number(h.sum()).c_str(),
                   name, static_cast<long long>(h.count()));
  }

  void memory(const char* name, const char* help, const std::vector<MemoryUse>& uses,
              Bytes MemoryUse::* field) {
    head(name, "gauge", help);
    for (const MemoryUse& use : uses)
      out += text_of("headrace_%s{tier=\"%s\",class=\"%s\"} %lld\n", name,
                     escaped(use.tier).c_str(), escaped(use.what).c_str(),
                     static_cast<long long>(use.*field));
  }

  void jobs(const EngineMetrics& m) {
    head("jobs_total", "counter", "Jobs that ended, by how.");
    const std::pair<const char*, int64_t> ends[] = {{"done", m.jobs_done},
                                                    {"failed", m.jobs_failed},
                                                    {"cancelled", m.jobs_cancelled},
                                                    {"refused", m.jobs_refused}};
    for (const auto& [end, count] : ends)
      out += text_of("headrace_jobs_total{end=\"%s\"} %lld\n", end, static_cast<long long>(count));
  }

  std::string out;
};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

void write_now(const EngineMetrics& m, Writer* w) {
  w->gauge("jobs_waiting", "Jobs that have not begun.", m.waiting);
  w->gauge("choices_running", "Answers that have a place in the step.", m.running);
  w->gauge("choices_preempted", "Answers that were begun and are on disk.", m.preempted);
  w->gauge("kv_blocks", "Blocks of KV that memory has room for.", m.blocks);
  w->gauge("kv_blocks_free", "Blocks of KV that hold nothing.", m.blocks_free);
  w->memory("memory_bytes", "Bytes in use, by tier and class.", m.memory, &MemoryUse::bytes);
  w->memory("memory_limit_bytes", "Bytes that may be in use, by tier and class.", m.memory,
            &MemoryUse::limit);
  w->gauge("budget_headroom_bytes", "The budget less what the process has resident.",
           m.headroom_bytes);
  w->gauge("prefix_store_writes", "1 while the prefix store keeps what is read; 0 without one, and "
           "after its disk has failed.", int64_t{m.store_writes});
  w->gauge("tokens_per_second", "Tokens generated a second, over the last ten seconds.",
           ratio(static_cast<double>(m.recent.tokens), m.recent.window_seconds));
  w->gauge("batch_rows", "Rows of a step, mean over the last ten seconds.",
           ratio(static_cast<double>(m.recent.rows), static_cast<double>(m.recent.steps)));
}

void write_counts(const EngineMetrics& m, Writer* w) {
  w->jobs(m);
  w->counter("steps_total", "Passes over the weights.", m.steps);
  w->counter("rows_total", "Rows of all steps.", m.rows);
  w->counter("step_failures_total", "Steps that failed.", m.step_failures);
  w->counter("prompt_tokens_total", "Tokens of the prompts of jobs that began.", m.prompt_tokens);
  w->counter("cached_tokens_total", "Of these, tokens whose KV was there already.",
             m.cached_tokens);
  w->counter("generated_tokens_total", "Tokens sampled.", m.generated_tokens);
  w->counter("preemptions_total", "Times that an answer was sent to disk.", m.preemptions);
  w->counter("resumptions_total", "Times that one came back.", m.resumptions);
  w->counter("draft_tokens_total", "Tokens that were guessed and checked.", m.drafted);
  w->counter("draft_accepted_total", "Of these, right ones.", m.accepted);
  w->gauge("draft_acceptance", "Share of guesses that were right.",
           ratio(static_cast<double>(m.accepted), static_cast<double>(m.drafted)));
  w->counter("prefix_store_hits_total", "Prompts whose beginning the prefix store had.",
             m.store_hits);
  w->counter("prefix_store_misses_total", "Prompts of which it had nothing.", m.store_misses);
}

void write_link(const EngineMetrics& m, Writer* w) {
  w->counter("streamed_bytes_total", "Bytes of weights that were loaded.", m.streamed_bytes);
  w->counter("step_seconds_total", "Time in steps.", m.step_seconds);
  w->counter("stall_seconds_total", "Of it, time that compute stood still for transfers.",
             m.stall_seconds);
  w->gauge("stall_fraction", "Share of step time that compute stood still for transfers, over the "
           "last ten seconds.", ratio(m.recent.stall_seconds, m.recent.step_seconds));
  w->gauge("streamed_bytes_per_second", "Bytes loaded a second of step time, over the last ten "
           "seconds.", ratio(static_cast<double>(m.recent.streamed_bytes), m.recent.step_seconds));
  w->gauge("link_bytes_per_second", "What the link that weights come from is planned to give.",
           m.link_bytes_per_s);
}

}  // namespace

void StepSums::add(const StepSums& more) {
  steps += more.steps;
  rows += more.rows;
  tokens += more.tokens;
  streamed_bytes += more.streamed_bytes;
  step_seconds += more.step_seconds;
  stall_seconds += more.stall_seconds;
}

void RecentSteps::add(Nanos now, const StepSums& step) {
  Second& s = seconds_[static_cast<size_t>(now / kSecond) % kSeconds];
  if (s.number != now / kSecond) s = {now / kSecond, {}};
  s.sums.add(step);
}

StepSums RecentSteps::at(Nanos now) const {
  const int64_t oldest = now / kSecond - static_cast<int64_t>(kSeconds) + 1;
  StepSums out;
  for (const Second& s : seconds_)
    if (s.number >= std::max<int64_t>(0, oldest)) out.add(s.sums);
  out.window_seconds =
      static_cast<double>(kSeconds - 1) + static_cast<double>(now % kSecond) * 1e-9;
  return out;
}

void Histogram::add(double seconds) {
  const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(at - kBounds.begin())];
  ++count_;
  sum_ += seconds;
}

std::string prometheus_text(const EngineMetrics& metrics) {
  Writer w;
  write_now(metrics, &w);
  write_counts(metrics, &w);
  write_link(metrics, &w);
  w.histogram("first_token_seconds", "From the arrival of a job to its first token.",
              metrics.first_token);
  w.histogram("between_tokens_seconds", "Between two tokens of an answer.",
              metrics.between_tokens);
  w.histogram("queue_wait_seconds", "From the arrival of a job to its beginning.",
              metrics.queue_wait);
  return w.out;
}

}  // namespace headrace
