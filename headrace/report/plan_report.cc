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
         text_of("\n%s, %s parameters, %s of weights, mostly %s\n\n",
                 p.architecture.c_str(),
                 human_count(static_cast<double>(p.parameters)).c_str(),
                 human_bytes(p.weight_bytes).c_str(), p.main_type.c_str());
}

// One line of the two-column part: label, decode, share and bar, prefill.
struct Line {
  const char* label;
  std::string decode;
  double part;  // of the bar; below 0: none
  std::string prefill;
};

std::string line_text(const Line& l, const TextStyle& style) {
  std::string out = "  " + pad_right(l.label, kLabel) + pad_left(l.decode, 11);
  if (l.part >= 0) {
    out += dim(pad_left(percent(l.part), 6), style) + "  " + bar(l.part, kBar, style);
  } else if (!l.prefill.empty()) {
    out += std::string(kBar + 8, ' ');
  }
  return out + (l.prefill.empty() ? "" : pad_left(l.prefill, 11)) + "\n";
}

std::string memory_lines(const PlanReport& p, const TextStyle& style) {
  const bool two = p.prefill.rows > 0;
  Bytes reserved = 0;
  for (const ReservedItem& i : p.reserved) reserved += i.bytes;
  const Bytes free = std::max<Bytes>(0, p.budget_bytes - reserved);
  struct Row {
    const char* label;
    Bytes decode;
    Bytes prefill;
  };
  const Row rows[] = {
      {"weights, resident", p.decode.resident_bytes, p.prefill.resident_bytes},
      {p.decode.kv_disk_bytes > 0 ? "ring" : "weights, ring", p.decode.ring_bytes,
       p.prefill.ring_bytes},
      {"KV cache", p.decode.kv_bytes, p.prefill.kv_bytes},
      {"workspace", p.decode.workspace_bytes, p.prefill.workspace_bytes},
      {"other", other_bytes(p, p.decode), other_bytes(p, p.prefill)},
      {"not needed", free, free},
  };
  std::string out =
      dim(line_text({"memory", "decode", -1, two ? "prefill" : ""}, style), style);
  for (const Row& row : rows) {
    // Rounding leaves a few pages: not worth a line.
    if (std::max(row.decode, row.prefill) < p.budget_bytes / 1000) continue;
    out +=
        line_text({row.label, human_bytes(row.decode), share(row.decode, p.budget_bytes),
                   two ? human_bytes(row.prefill) : ""},
                  style);
  }
  return out + "  " + bold(pad_right("budget", kLabel), style) +
         bold(pad_left(human_bytes(p.budget_bytes), 11), style) + "  " +
         dim(p.budget_source, style) + "\n\n";
}

std::string tokens_text(int64_t n) {
  return grouped(n) + (n == 1 ? " token" : " tokens");
}

std::string speed_text(const ProgramFigures& f) {
  return human_number(predicted_tokens_per_s(f)) + " tok/s";
}

std::string pass_lines(const PlanReport& p, const TextStyle& style) {
  const ProgramFigures &d = p.decode, &f = p.prefill;
  const bool two = f.rows > 0;
  const auto column = [&](std::string text) {
    return two ? std::move(text) : std::string();
  };
  const auto read = [](const ProgramFigures& x) {
    return x.streamed_bytes > 0 ? human_bytes(x.streamed_bytes) : std::string("nothing");
  };
  std::string out = dim(
      line_text({"predicted pass", tokens_text(d.rows), -1, column(tokens_text(f.rows))},
                style),
      style);
  const double read_part = share(d.streamed_bytes, d.model_bytes);
  const double wait_part = share(d.predicted_stall_ns, d.predicted_ns);
  out += line_text({"reads", read(d), read_part, column(read(f))}, style);
  if (d.kv_disk_bytes > 0) {
    const auto kv = [](const ProgramFigures& x) { return human_bytes(x.kv_loaded_bytes); };
    out += line_text({"reads of KV", kv(d), share(d.kv_loaded_bytes, d.kv_disk_bytes),
                      column(kv(f))},
                     style);
  }
  out += line_text({"waits for the disk", human_time(d.predicted_stall_ns), wait_part,
                    column(human_time(f.predicted_stall_ns))},
                   style);
  out += line_text(
      {"takes", human_time(d.predicted_ns), -1, column(human_time(f.predicted_ns))},
      style);
  return out + line_text({"speed", speed_text(d), -1, column(speed_text(f))}, style) +
         "\n";
}

std::string facts(const PlanReport& p, const TextStyle& style) {
  std::string context = grouped(p.context) + " positions";
  if (p.trained_context > 0) context += ", trained for " + grouped(p.trained_context);
  const std::string link = human_bytes(static_cast<Bytes>(p.machine.link_bytes_per_s));
  std::string rates = p.machine.source;
  if (p.machine.measured && p.machine.threads != p.threads) {
    rates += text_of("; measured with %d thread%s, this is for %d", p.machine.threads,
                     p.machine.threads == 1 ? "" : "s", p.threads);
  }
  const std::string threads =
      std::to_string(p.threads) + (p.threads == 1 ? " thread" : " threads");
  std::string kv = p.kv_format;
  if (p.decode.kv_disk_bytes > 0) {
    kv += text_of("; up to %s in %s, figures are for position %s",
                  human_bytes(p.decode.kv_disk_bytes).c_str(), p.kv_folder.c_str(),
                  grouped(p.position).c_str());
  }
  return fact("context", context, style) + fact("KV cache", kv, style) +
         fact("machine", threads + ", disk " + link + "/s", style) +
         fact("rates", rates, style);
}

}  // namespace

double predicted_tokens_per_s(const ProgramFigures& f) {
  return f.predicted_ns > 0
             ? 1e9 * static_cast<double>(f.rows) / static_cast<double>(f.predicted_ns)
             : 0;
}

Bytes other_bytes(const PlanReport& p, const ProgramFigures& f) {
  Bytes reserved = 0;
  for (const ReservedItem& i : p.reserved) reserved += i.bytes;
  return std::max<Bytes>(
      0, reserved - f.resident_bytes - f.ring_bytes - f.kv_bytes - f.workspace_bytes);
}

std::string plan_table(const PlanReport& plan, const TextStyle& style) {
  return heading(plan, style) + memory_lines(plan, style) + pass_lines(plan, style) +
         facts(plan, style);
}

std::string budget_table(const std::vector<BudgetOption>& options,
                         const TextStyle& style) {
  std::string out = "  " +
                    dim(pad_right("other budgets", kLabel) + pad_left("budget", 11) +
                            pad_left("resident", 12) + pad_left("read a token", 15) +
                            pad_left("tok/s", 10),
                        style) +
                    "\n";
  for (const BudgetOption& o : options) {
    std::string row =
        "  " + pad_right(o.label, kLabel) + pad_left(human_bytes(o.budget_bytes), 11);
    if (o.fits) {
      const double rate =
          o.predicted_ns > 0 ? 1e9 / static_cast<double>(o.predicted_ns) : 0;
      row +=
          pad_left(human_bytes(o.resident_bytes), 12) +
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
  json.field("kv_disk_bytes", f.kv_disk_bytes);
  json.field("kv_loaded_bytes", f.kv_loaded_bytes);
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
  json.field("kv_format", p.kv_format);
  json.field("kv_folder", p.kv_folder);
  json.field("position", p.position);
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
      json.field("resident_bytes", o.resident_bytes)
          .field("streamed_bytes", o.streamed_bytes);
      json.field("predicted_s", static_cast<double>(o.predicted_ns) / 1e9);
    }
    json.end_object();
  }
  json.end_array();
}

}  // namespace headrace
