#include "headrace/serve/server_numbers.h"

#include "headrace/base/system_memory.h"
#include "headrace/report/json_writer.h"

namespace headrace {
namespace {

double seconds_of(Nanos ns) { return static_cast<double>(ns) * 1e-9; }

void write_histogram(JsonWriter& json, const char* name, const Histogram& h) {
  json.key(name).begin_object();
  json.field("median", quantile(h, 0.5)).field("p99", quantile(h, 0.99)).field("count", h.count());
  json.end_object();
}

void add_metric(std::string* out, const char* name, const char* type, const char* help,
                int64_t value) {
  *out += text_of("# HELP %s %s\n# TYPE %s %s\n%s %lld\n", name, help, name, type, name,
                  static_cast<long long>(value));
}

}  // namespace

double quantile(const Histogram& h, double q) {
  if (h.count() == 0) return 0;
  const double wanted = q * static_cast<double>(h.count());
  double below = 0;
  for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
    const auto here = static_cast<double>(h.counts()[i]);
    if (here > 0 && below + here >= wanted) {
      const double low = i == 0 ? 0 : Histogram::kBounds[i - 1];
      return low + (Histogram::kBounds[i] - low) * (wanted - below) / here;
    }
    below += here;
  }
  return Histogram::kBounds.back();
}

std::string plan_json(const BatchPlan& plan, const ServerFacts& facts) {
  const BatchOptions& o = plan.options;
  const PlanSummary s = summarize(plan.step);
  JsonWriter json;
  json.begin_object();
  json.field("model", facts.model).field("chat", facts.chat).field("context", facts.context);
  json.field("sequences", int64_t{o.places}).field("step_rows", o.step_rows);
  json.field("speculate", o.speculate).field("threads", o.threads);
  json.field("kv_format", name_of(o.kv_format)).field("kv_folder", o.kv_folder);
  json.field("budget_bytes", o.memory_bytes).field("arena_bytes", plan.arena_bytes);
  json.field("pool_bytes", plan.pool_bytes).field("blocks", int64_t{o.blocks});
  json.field("block_tokens", o.block_tokens).field("block_bytes", plan.block_bytes);
  json.field("blocks_a_sequence", plan.blocks_a_sequence);
  json.field("kv_disk_bytes", plan.kv_disk_bytes);
  json.key("weights").begin_object();
  json.field("model_bytes", s.model_bytes).field("resident_bytes", s.resident_bytes);
  json.field("streamed_bytes", s.streamed_bytes).field("gathered_bytes", s.gathered_bytes);
  json.field("ring_bytes", s.ring_bytes);
  json.field("resident_tensors", s.resident_tensors).field("streamed_tensors", s.streamed_tensors);
  json.end_object();
  json.field("workspace_bytes", s.workspace_bytes);
  json.field("link_bytes_per_s", o.machine.tiers[1].load_bytes_per_s);
  json.key("times").begin_array();
  for (const StepTime& t : plan.times) {
    json.begin_object().field("rows", t.rows).field("seconds", seconds_of(t.ns)).end_object();
  }
  json.end_array();
  json.key("ledger").begin_array();
  for (const BudgetLedger::Item& i : plan.ledger.items()) {
    json.begin_object().field("name", i.name).field("bytes", i.bytes).end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string live_json(const EngineMetrics& m, const BatchPlan& plan, const HttpStats& http,
                      int front_tasks) {
  const Bytes rss = process_memory().rss;
  JsonWriter json;
  json.begin_object();
  json.field("running", m.running).field("waiting", m.waiting).field("preempted", m.preempted);
  json.field("sequences", int64_t{plan.options.places});
  json.field("reading", front_tasks).field("connections", http.connections);
  json.field("blocks", m.blocks).field("blocks_free", m.blocks_free);
  json.field("budget_bytes", plan.options.memory_bytes).field("rss_bytes", rss);
  json.key("memory").begin_array();
  for (const MemoryUse& use : m.memory) {
    json.begin_object().field("tier", use.tier).field("what", use.what);
    json.field("bytes", use.bytes).field("limit", use.limit).end_object();
  }
  json.end_array();
  const StepSums& r = m.recent;
  const auto each = [](double sum, double of) { return of > 0 ? sum / of : 0.0; };
  json.field("tokens_per_s", each(static_cast<double>(r.tokens), r.window_seconds));
  json.field("prompt_tokens", m.prompt_tokens).field("cached_tokens", m.cached_tokens);
  json.field("generated_tokens", m.generated_tokens);
  json.field("jobs_done", m.jobs_done).field("jobs_failed", m.jobs_failed);
  json.field("jobs_cancelled", m.jobs_cancelled).field("jobs_refused", m.jobs_refused);
  json.field("preemptions", m.preemptions);
  json.field("drafted", m.drafted).field("accepted", m.accepted);
  json.field("stall_fraction", each(r.stall_seconds, r.step_seconds));
  json.field("streamed_bytes_per_s",
             each(static_cast<double>(r.streamed_bytes), r.step_seconds));
  json.field("link_bytes_per_s", m.link_bytes_per_s);
  write_histogram(json, "first_token_s", m.first_token);
  write_histogram(json, "between_tokens_s", m.between_tokens);
  write_histogram(json, "queue_wait_s", m.queue_wait);
  json.end_object();
  return json.take();
}

std::string metrics_text(EngineMetrics metrics, const HttpStats& http, Bytes connection_memory,
                         int front_tasks) {
  metrics.memory.push_back({"device", "connections", http.memory_used, connection_memory});
  std::string out = prometheus_text(metrics);
  add_metric(&out, "headrace_http_connections", "gauge", "Open connections.", http.connections);
  add_metric(&out, "headrace_http_replies", "gauge", "Requests whose answer has not ended.",
             http.replies);
  add_metric(&out, "headrace_front_tasks", "gauge", "Requests being read and tokenized, or waiting "
             "for it.", front_tasks);
  add_metric(&out, "headrace_http_accepted_total", "counter", "Connections accepted.",
             http.accepted);
  add_metric(&out, "headrace_http_requests_total", "counter", "Whole requests.", http.requests);
  add_metric(&out, "headrace_http_refused_total", "counter",
             "Requests answered with an error before they were looked at.", http.refused);
  add_metric(&out, "headrace_http_timeouts_total", "counter", "Connections closed for a timeout.",
             http.timeouts);
  add_metric(&out, "headrace_http_gone_total", "counter",
             "Clients that went before their answer had ended.", http.gone);
  add_metric(&out, "headrace_http_received_bytes_total", "counter", "Bytes received.",
             http.bytes_in);
  add_metric(&out, "headrace_http_sent_bytes_total", "counter", "Bytes sent.", http.bytes_out);
  return out;
}

}  // namespace headrace
