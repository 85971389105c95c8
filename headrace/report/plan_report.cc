#include "headrace/report/plan_report.h"

#include <algorithm>

#include "headrace/base/status.h"

namespace headrace {
namespace {

constexpr int kWidth = 80;
constexpr int kLabel = 18;
constexpr int kBar = 28;

double share(Bytes part, Bytes whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::string percent(double fraction) { return text_of("%.0f %%", 100 * fraction); }

// "  label    text", the text wrapped under itself.
std::string fact(const char* label, const std::string& text, const TextStyle& style) {
  const std::string lines = wrapped(text, kWidth, 2 + kLabel);
  return "  " + dim(pad_right(label, kLabel), style) + lines.substr(2 + kLabel);
}

std::string heading(const PlanReport& p, const TextStyle& style) {
  return bold(p.model, style) +
         text_of("  %s, %s parameters, %s of weights, mostly %s\n\n", p.architecture.c_str(),
                 human_count(static_cast<double>(p.parameters)).c_str(),
                 human_bytes(p.weight_bytes).c_str(), p.main_type.c_str());
}

struct MemoryRow {
  const char* label;
  Bytes decode;
  Bytes prefill;
};

std::string memory_rows(const PlanReport& p, const TextStyle& style) {
  const bool two = p.prefill.rows > 0;
  Bytes reserved = 0;
  for (const ReservedItem& i : p.reserved) reserved += i.bytes;
  const Bytes free = std::max<Bytes>(0, p.budget_bytes - reserved);
  const auto resident = [](const ProgramFigures& f) { return f.resident_bytes; };
  const MemoryRow rows[] = {
      {"weights, resident", resident(p.decode), resident(p.prefill)},
      {"weights, ring", p.decode.ring_bytes, p.prefill.ring_bytes},
      {"KV cache", p.decode.kv_bytes, p.prefill.kv_bytes},
      {"workspace", p.decode.workspace_bytes, p.prefill.workspace_bytes},
      {"other", other_bytes(p, p.decode), other_bytes(p, p.prefill)},
      {"not needed", free, free},
  };
  std::string out = "  " + dim(pad_right("memory", kLabel), style) +
                    dim(pad_left("decode", 11), style) + std::string(kBar + 8, ' ') +
                    (two ? dim(pad_left("prefill", 11), style) : "") + "\n";
  for (const MemoryRow& row : rows) {
    if (row.decode == 0 && row.prefill == 0) continue;
    const double part = share(row.decode, p.budget_bytes);
    out += "  " + pad_right(row.label, kLabel) + pad_left(human_bytes(row.decode), 11) +
           dim(pad_left(percent(part), 6), style) + "  " + bar(part, kBar, style) +
           (two ? pad_left(human_bytes(row.prefill), 11) : "") + "\n";
  }
  return out + "  " + bold(pad_right("budget", kLabel), style) +
         bold(pad_left(human_bytes(p.budget_bytes), 11), style) + "  " +
         dim(p.budget_source, style) + "\n\n";
}

std::string pass_text(const ProgramFigures& f, const char* unit) {
  const std::string reads =
      f.streamed_bytes == 0
          ? std::string("reads no weights")
          : text_of("reads %s of %s", human_bytes(f.streamed_bytes).c_str(),
                    human_bytes(f.model_bytes).c_str());
  return reads + text_of(", %s a %s", human_time(f.predicted_ns).c_str(), unit);
}

std::string waiting(const ProgramFigures& f) {
  const double part = share(f.predicted_stall_ns, f.predicted_ns);
  return part < 0.005 ? std::string("never waits for it")
                      : percent(part) + " of it waiting for the disk";
}

std::string expectations(const PlanReport& p, const TextStyle& style) {
  const ProgramFigures& d = p.decode;
  std::string decode = pass_text(d, "token") + ": " +
                       human_number(predicted_tokens_per_s(d)) + " tok/s";
  if (d.streamed_bytes > 0) decode += ", " + waiting(d);
  std::string out = fact("predicted decode", decode, style);
  if (p.prefill.rows > 0) {
    const int64_t prompt = std::max<int64_t>(p.prompt_tokens, 1);
    const int64_t passes = (prompt + p.prefill.rows - 1) / p.prefill.rows;
    out += fact("predicted prefill",
                pass_text(p.prefill, "chunk") +
                    text_of(" of %lld; %s token%s in %lld chunk%s",
                            static_cast<long long>(p.prefill.rows), grouped(prompt).c_str(),
                            prompt == 1 ? "" : "s", static_cast<long long>(passes),
                            passes == 1 ? "" : "s"),
                style);
  }
  std::string context = grouped(p.context) + " positions";
  if (p.trained_context > 0) context += " (trained: " + grouped(p.trained_context) + ")";
  out += fact("context", context, style);
  std::string rates = p.machine.source + text_of(", disk %s/s, %d thread%s",
                                                 human_bytes(static_cast<Bytes>(
                                                     p.machine.link_bytes_per_s)).c_str(),
                                                 p.threads, p.threads == 1 ? "" : "s");
  if (p.machine.threads != p.threads) {
    rates += text_of(" (rates are of %d)", p.machine.threads);
  }
  return out + fact("rates", rates, style);
}

}  // namespace

double predicted_tokens_per_s(const ProgramFigures& f) {
  return f.predicted_ns > 0 ? 1e9 / static_cast<double>(f.predicted_ns) : 0;
}

Bytes other_bytes(const PlanReport& p, const ProgramFigures& f) {
  Bytes reserved = 0;
  for (const ReservedItem& i : p.reserved) reserved += i.bytes;
  return std::max<Bytes>(0, reserved - f.resident_bytes - f.ring_bytes - f.kv_bytes -
                                f.workspace_bytes);
}

std::string plan_table(const PlanReport& plan, const TextStyle& style) {
  return heading(plan, style) + memory_rows(plan, style) + expectations(plan, style);
}

std::string budget_table(const std::vector<BudgetOption>& options, const TextStyle& style) {
  std::string out = "  " + dim(pad_right("other budgets", kLabel) + pad_left("budget", 11) +
                                   pad_left("resident", 12) + pad_left("read a token", 15) +
                                   pad_left("tok/s", 10),
                               style) + "\n";
  for (const BudgetOption& o : options) {
    std::string row = "  " + pad_right(o.label, kLabel) + pad_left(human_bytes(o.budget_bytes), 11);
    if (o.fits) {
      const double rate = o.predicted_ns > 0 ? 1e9 / static_cast<double>(o.predicted_ns) : 0;
      row += pad_left(human_bytes(o.resident_bytes), 12) +
             pad_left(o.streamed_bytes > 0 ? human_bytes(o.streamed_bytes) : "nothing", 15) +
             pad_left(human_number(rate), 10);
    } else {
      row += pad_left("does not fit", 12);
    }
    out += (o.is_chosen ? bold(row, style) : row) + "\n";
  }
  return out;
}

void write_program(const ProgramFigures& f, JsonWriter& json) {
  if (f.rows == 0) {
    json.null();
    return;
  }
  json.begin_object();
  json.field("rows", f.rows);
  json.field("model_bytes", f.model_bytes);
  json.field("resident_bytes", f.resident_bytes);
  json.field("streamed_bytes", f.streamed_bytes);
  json.field("gathered_bytes", f.gathered_bytes);
  json.field("ring_bytes", f.ring_bytes);
  json.field("kv_bytes", f.kv_bytes);
  json.field("workspace_bytes", f.workspace_bytes);
  json.field("resident_tensors", f.resident_tensors);
  json.field("streamed_tensors", f.streamed_tensors);
  json.field("predicted_s", static_cast<double>(f.predicted_ns) / 1e9);
  json.field("predicted_stall_s", static_cast<double>(f.predicted_stall_ns) / 1e9);
  json.end_object();
}

void write_machine(const MachineFigures& m, JsonWriter& json) {
  json.begin_object();
  json.field("name", m.name);
  json.field("measured", m.measured);
  json.field("threads", m.threads);
  json.field("link_bytes_per_s", m.link_bytes_per_s);
  json.field("memory_bytes_per_s", m.memory_bytes_per_s);
  json.end_object();
}

void write_plan(const PlanReport& p, JsonWriter& json) {
  json.field("model", p.model);
  json.field("architecture", p.architecture);
  json.field("parameters", p.parameters);
  json.field("weight_bytes", p.weight_bytes);
  json.field("budget_bytes", p.budget_bytes);
  json.field("budget_source", p.budget_source);
  json.field("arena_bytes", p.arena_bytes);
  json.field("other_bytes", other_bytes(p, p.decode));
  json.field("context", p.context);
  json.field("trained_context", p.trained_context);
  json.field("chunk", p.chunk);
  json.field("threads", p.threads);
  json.key("ledger").begin_array();
  for (const ReservedItem& i : p.reserved) {
    json.begin_object().field("name", i.name).field("bytes", i.bytes).end_object();
  }
  json.end_array();
  json.key("decode");
  write_program(p.decode, json);
  json.key("prefill");
  write_program(p.prefill, json);
  json.key("machine");
  write_machine(p.machine, json);
}

void write_budgets(const std::vector<BudgetOption>& options, JsonWriter& json) {
  json.begin_array();
  for (const BudgetOption& o : options) {
    json.begin_object().field("label", o.label).field("budget_bytes", o.budget_bytes);
    json.field("fits", o.fits);
    if (o.fits) {
      json.field("resident_bytes", o.resident_bytes).field("streamed_bytes", o.streamed_bytes);
      json.field("predicted_s", static_cast<double>(o.predicted_ns) / 1e9);
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace headrace
