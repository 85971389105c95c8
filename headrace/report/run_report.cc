#include "headrace/report/run_report.h"

#include <algorithm>

#include "headrace/base/status.h"

namespace headrace {
namespace {

double seconds(Nanos ns) { return static_cast<double>(ns) / 1e9; }

double rate(int64_t count, Nanos ns) {
  return ns > 0 && count > 0 ? static_cast<double>(count) / seconds(ns) : 0;
}

Bytes each(Bytes total, int64_t steps) { return steps > 0 ? total / steps : 0; }

// The rate of all decode steps where there are no steady ones.
double shown_rate(const RunReport& r) {
  if (r.steady_steps > 0) return decode_tokens_per_s(r);
  return rate(static_cast<int64_t>(r.tokens.size()) - 1, r.decode_ns);
}

void write_bound(const SpeedBound& bound, JsonWriter& json) {
  json.key("bound_tokens_per_s");
  if (bound.source != nullptr) {
    json.value(bound.tokens_per_s);
    json.field("bound_source", bound.source);
  } else {
    json.null();
    json.key("bound_source").null();
  }
}

}  // namespace

double decode_tokens_per_s(const RunReport& r) {
  return rate(r.steady_steps, r.steady_ns);
}
double prefill_tokens_per_s(const RunReport& r) {
  return rate(r.prompt_tokens, r.prefill_ns);
}

double stall_fraction(const RunReport& r) {
  return r.steady_ns > 0 ? seconds(r.steady_wait_ns) / seconds(r.steady_ns) : 0;
}

SpeedBound speed_bound(const RunReport& r) {
  if (r.steady_steps == 0) return {};
  SpeedBound bound{0, "measured in this run"};
  double link_bytes_per_s = rate(r.bound_loaded, r.bound_ns);
  if (link_bytes_per_s <= 0 && r.plan.decode.streamed_bytes + r.steady_kv_loaded > 0) {
    // A session that planned again did so with a rate that it had measured.
    if (r.replans == 0) bound.source = "machine file";
    if (r.replans == 0 && !r.plan.machine.measured) return {};
    link_bytes_per_s = r.plan.machine.link_bytes_per_s;
    if (link_bytes_per_s <= 0) return {};
  }
  double slowest =
      seconds(r.steady_ns - r.steady_wait_ns) / static_cast<double>(r.steady_steps);
  if (link_bytes_per_s > 0) {
    const double streamed = static_cast<double>(r.plan.decode.streamed_bytes +
                                                each(r.steady_kv_loaded, r.steady_steps));
    slowest = std::max(slowest, streamed / link_bytes_per_s);
  }
  if (slowest <= 0) return {};
  bound.tokens_per_s = 1 / slowest;
  return bound;
}

std::string run_report_json(const RunReport& r) {
  JsonWriter json;
  json.begin_object();
  json.field("version", r.version);
  json.field("exit_reason", r.exit_reason).field("exit_code", r.exit_code);
  if (!r.error.empty()) json.field("error", r.error);
  json.field("budget_bytes", r.plan.budget_bytes);
  json.field("peak_rss_bytes", r.peak_rss_bytes);
  json.field("model_bytes", r.plan.decode.model_bytes);
  json.field("resident_bytes", r.plan.decode.resident_bytes);
  json.field("streamed_bytes_per_token", r.plan.decode.streamed_bytes);
  json.field("loaded_bytes_per_token", each(r.steady_loaded, r.steady_steps));
  json.field("gathered_bytes_per_token", each(r.steady_gathered, r.steady_steps));
  json.field("kv_loaded_bytes_per_token", each(r.steady_kv_loaded, r.steady_steps));
  json.field("kv_loaded_bytes", r.kv_loaded).field("kv_stored_bytes", r.kv_stored);
  json.field("kv_wait_seconds", seconds(r.kv_wait_ns));
  json.field("kv_resident_bytes", r.plan.decode.kv_bytes);
  json.field("kv_disk_bytes", r.plan.decode.kv_disk_bytes);
  json.field("prefix_tokens", r.prefix_tokens).field("prefix_seconds", seconds(r.prefix_ns));
  json.key("read_bytes_per_token");
  if (r.steady_read >= 0 && r.steady_steps > 0) {
    json.value(each(r.steady_read, r.steady_steps));
  } else {
    json.null();
  }
  json.field("prompt_tokens", r.prompt_tokens);
  json.field("prefill_seconds", seconds(r.prefill_ns));
  json.field("prefill_tokens_per_s", prefill_tokens_per_s(r));
  json.field("decode_seconds_total", seconds(r.decode_ns));
  json.field("steady_steps", r.steady_steps);
  json.field("steady_seconds", seconds(r.steady_ns));
  json.field("decode_tokens_per_s", decode_tokens_per_s(r));
  write_bound(speed_bound(r), json);
  json.field("stall_fraction", stall_fraction(r));
  json.field("time_to_first_token_s", seconds(r.first_token_ns));
  json.field("time_to_first_token_from", "the entry of main()");
  json.field("tier_method", r.tier_method).field("tier_notice", r.tier_notice);
  json.field("sparse_tokens", r.sparse_tokens).field("sparse_checks", r.sparse_checks);
  json.key("sparse_recall");
  r.sparse_checks > 0 ? json.value(r.sparse_recall) : json.null();
  json.field("replans", r.replans);
  json.field("context", r.plan.context).field("chunk", r.plan.chunk);
  json.field("threads", r.plan.threads);
  json.key("tokens").numbers(r.tokens);
  json.field("text", r.text);
  json.key("plan");
  if (r.plan.arena_bytes > 0) {
    json.begin_object();
    write_plan(r.plan, json);
    json.end_object();
  } else {
    json.null();
  }
  json.end_object();
  return json.take();
}

std::string final_line(const RunReport& r) {
  const size_t n = r.tokens.size();
  std::string line =
      text_of("%s token%s", grouped(static_cast<int64_t>(n)).c_str(), n == 1 ? "" : "s");
  if (shown_rate(r) > 0) line += ", " + human_number(shown_rate(r)) + " tok/s";
  if (r.prefill_ns > 0) {
    line += text_of("; prompt %s tok/s", human_number(prefill_tokens_per_s(r)).c_str());
  }
  if (r.steady_steps > 0) {
    const Bytes loaded = each(r.steady_loaded, r.steady_steps);
    line += loaded > 0 ? "; " + human_bytes(loaded) + " read/token" : "; nothing read";
  }
  if (r.prefix_tokens > 0) {
    line += text_of("; %s tokens restored in %s", grouped(r.prefix_tokens).c_str(),
                    human_time(r.prefix_ns).c_str());
  }
  if (r.sparse_segments > 0) {
    line += text_of("; sparse: %lld of %lld segments, ", static_cast<long long>(r.sparse_selected),
                    static_cast<long long>(r.sparse_segments));
    line += r.sparse_checks > 0
                ? text_of("recall %.1f %% of attention (%lld checks)", 100 * r.sparse_recall,
                          static_cast<long long>(r.sparse_checks))
                : "recall not measured";
  }
  return line + "; peak " + human_bytes(r.peak_rss_bytes);
}

std::string progress_line(const Progress& p, int width, const TextStyle& style) {
  const double per_s = rate(p.done, p.elapsed_ns);
  std::string line = p.what + " " + grouped(p.done);
  if (p.total > 0) line += "/" + grouped(p.total);
  std::string tail = per_s > 0 ? "  " + human_number(per_s) + " " + p.rate_unit : "";
  if (per_s > 0 && p.total > p.done) {
    const double left = static_cast<double>(p.total - p.done) / per_s;
    tail += "  " +
            (left < 100 ? text_of("%.0f s", left)
                        : human_time(static_cast<Nanos>(left * 1e9))) +
            " left";
  }
  if (width == 0) return line + tail;
  const int room = width - columns(line) - columns(tail) - 3;
  if (p.total > 0 && room >= 8) {
    const double part = static_cast<double>(p.done) / static_cast<double>(p.total);
    line += "  " + bar(part, std::min(room, 30), style);
  }
  line += tail;
  if (columns(line) <= width) return line;
  return line.substr(0,
                     static_cast<size_t>(std::max(0, width)));  // numbers only: all ASCII
}

}  // namespace headrace
