// RunReport: what a run did, as plain numbers; the --report file and the final line.
#pragma once

#include <string>
#include <vector>

#include "headrace/report/plan_report.h"

namespace headrace {

// "Steady" steps are decode steps after the first, which also moves the session from the
// prompt's Program to that of decoding, and after the last swap to a new plan.
struct RunReport {
  PlanReport plan;
  std::string version;
  std::string exit_reason;  // see docs/guide: "end_of_text", "length", "context_full",
                            // "end_of_input", "stdout_closed", "cancelled",
                            // "error"
  int exit_code = 0;
  std::string error;        // empty unless exit_reason is "error"
  std::string tier_method;  // "io_uring + O_DIRECT"
  std::string tier_notice;
  Bytes kv_loaded = 0, kv_stored = 0;  // of KV slots, since the start
  Bytes steady_kv_loaded = 0;          // part of steady_loaded
  Nanos kv_wait_ns = 0;                // compute standing still for KV, since the start
  int64_t prefix_tokens = 0;           // of the prompt, that were restored
  Nanos prefix_ns = 0;                 // that it took
  // Of selected KV (SessionOptions::sparse_tokens; 0: all is attended), see Session::SparseRecall.
  int64_t sparse_tokens = 0, sparse_selected = 0, sparse_segments = 0, sparse_checks = 0;
  double sparse_recall = 0;
  int replans = 0;  // times the session swapped to a new plan

  Bytes peak_rss_bytes = 0;  // VmHWM when the report was made
  int64_t prompt_tokens = 0;
  Nanos prefill_ns = 0;
  Nanos first_token_ns = 0;  // from the entry of main() to the first token; 0: none came
  Nanos decode_ns = 0;       // all decode steps
  int64_t steady_steps = 0;
  Nanos steady_ns = 0;
  Nanos steady_wait_ns = 0;     // compute standing still for transfers
  Bytes steady_loaded = 0;      // asked of the tier by Loads
  Bytes steady_gathered = 0;    // by Gathers
  // Of the steady steps that waited half of their time or more.
  Bytes bound_loaded = 0;
  Nanos bound_ns = 0;
  Bytes steady_read = -1;       // read_bytes of /proc/self/io; -1: not counted
  std::vector<int32_t> tokens;  // generated
  std::string text;             // UTF-8
};

double decode_tokens_per_s(const RunReport& run);  // of steady steps; 0: there were none
double prefill_tokens_per_s(const RunReport& run);
double stall_fraction(const RunReport& run);

// What no schedule can beat with this resident set on this machine:
// 1 / max(streamed bytes / link rate, compute time a step without waits).
// The link's rate is the one this run saw where it was bound by the link; else the one
// that `headrace probe` measured. Without either there is no bound: built-in defaults
// say nothing about a machine.
struct SpeedBound {
  double tokens_per_s = 0;
  const char* source = nullptr;  // "measured in this run", "machine file"; null: no bound
};
SpeedBound speed_bound(const RunReport& run);

// For `--report`: all that is known of the run; bytes and seconds.
std::string run_report_json(const RunReport& run);
// One line without a newline: tokens, rates, peak.
std::string final_line(const RunReport& run);

// The rewritten line of a terminal: "prefill 512/2048", a bar, rate and time left; at
// most `width` columns, no newline. Width 0: for a log, without the bar.
struct Progress {
  std::string what;  // "prompt", "text"
  int64_t done = 0;
  int64_t total = 0;  // 0: unknown
  Nanos elapsed_ns = 0;
  const char* rate_unit = "tok/s";
};
std::string progress_line(const Progress& progress, int width, const TextStyle& style);

}  // namespace headrace
