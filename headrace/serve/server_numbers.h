// What the server says about itself as JSON: the plan, and what goes on now.
#pragma once

#include <string>

#include "headrace/serve/engine.h"
#include "headrace/serve/http_server.h"

namespace headrace {

// Facts that the plan does not hold.
struct ServerFacts {
  std::string model;     // the name that clients ask for
  bool chat = false;     // it has a chat template that can be used
  int64_t context = 0;   // Engine::context()
};

// For GET /plan: what was decided before the first weight was read.
//   model, chat, context, sequences, step_rows, speculate, threads, kv_format, kv_folder,
//   budget_bytes, arena_bytes, pool_bytes, blocks, block_tokens, block_bytes, blocks_a_sequence,
//   kv_disk_bytes, weights {model_bytes, resident_bytes, streamed_bytes, gathered_bytes,
//   ring_bytes, resident_tensors, streamed_tensors}, workspace_bytes, link_bytes_per_s,
//   times [{rows, seconds}], ledger [{name, bytes}]
std::string plan_json(const BatchPlan& plan, const ServerFacts& facts);

// For GET /live: the numbers of /metrics that the page shows, and quantiles of the histograms.
std::string live_json(const EngineMetrics& metrics, const BatchPlan& plan, const HttpStats& http,
                      int front_tasks);

// GET /metrics: the engine's, with the connections' memory and the sockets' counters.
std::string metrics_text(EngineMetrics metrics, const HttpStats& http, Bytes connection_memory,
                         int front_tasks);

// Where a fraction `q` of what was added is below, by a line inside its bucket; 0 when nothing was
// added. Beyond the last bound: that bound.
double quantile(const Histogram& histogram, double q);

}  // namespace headrace
