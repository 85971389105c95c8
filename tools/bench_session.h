// headrace bench kv and bench perplexity: what a session does with a long past, and how well it
// predicts a text.
#pragma once

#include <string>
#include <vector>

#include "tools/options.h"

namespace headrace::cli {

struct BenchKvOptions {
  BudgetOptions budget;
  std::vector<int64_t> positions = {1024};  // ascending multiples of 64
  int64_t steps = 16;                       // at each of them
  uint64_t fill = 1;                        // seed of the KV that stands for a text that was read
  double link_bytes_per_s = 0;              // of an emulated link to the copies of KV; 0: the disk itself
  bool json = false;
};
// Decodes `steps` tokens after each number of positions, whose KV is not computed (that would take a
// day for the longest) but drawn from a seed, and written where a session has it. Prints the time, the
// bytes and the waits of each step.
Status bench_kv(const BenchKvOptions& options);

struct BenchPerplexityOptions {
  BudgetOptions budget;
  std::string text;        // a file
  int64_t window = 4096;   // tokens, each window on its own
  int64_t windows = 1;
  bool json = false;
};
// exp of the mean of -log p of each token after a window's first.
Status bench_perplexity(const BenchPerplexityOptions& options);

}  // namespace headrace::cli
