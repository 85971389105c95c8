// The timeline as one HTML file.
//
// Data format, in <script type="application/json" id="headrace-data">: totals and names as JSON,
// and columns as text "d:BASE64" or "r:BASE64": numbers as zigzag varints (seven bits a byte, low
// ones first), d for differences from the number before. All are below 2^52, so that JavaScript
// holds them exactly. At 100,000 events a file is some 4 MB.
#include <algorithm>
#include <map>
#include <numeric>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/json_writer.h"
#include "headrace/report/text_style.h"
#include "headrace/report/timeline.h"
#include "headrace/report/timeline_page.h"

namespace headrace {
namespace {

constexpr size_t kStallRows = 20;

// A column of numbers on its way into the page.
class Column {
 public:
  explicit Column(bool differences) : differences_(differences) {}
  void add(int64_t value) {
    const int64_t n = differences_ ? value - last_ : value;
    last_ = value;
    uint64_t z = (static_cast<uint64_t>(n) << 1) ^ static_cast<uint64_t>(n >> 63);
    for (; z >= 128; z >>= 7) bytes_ += static_cast<char>((z & 127) | 128);
    bytes_ += static_cast<char>(z);
  }
  std::string text() const {
    static const char kDigits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out = differences_ ? "d:" : "r:";
    out.reserve(bytes_.size() * 4 / 3 + 6);
    for (size_t i = 0; i < bytes_.size(); i += 3) {
      uint32_t word = 0;
      for (size_t k = 0; k < 3; ++k)
        word = word << 8 | (i + k < bytes_.size() ? static_cast<unsigned char>(bytes_[i + k]) : 0);
      for (size_t k = 0; k < 4; ++k)
        out += i + k > bytes_.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
    }
    return out;
  }

 private:
  bool differences_;
  int64_t last_ = 0;
  std::string bytes_;
};

// Columns by name, written in the order of their first mention.
class Columns {
 public:
  Column& operator()(const char* name, bool differences = false) {
    const auto it = index_.find(name);
    if (it != index_.end()) return columns_[it->second].second;
    index_[name] = columns_.size();
    columns_.emplace_back(name, Column(differences));
    return columns_.back().second;
  }
  void write(JsonWriter& json) const {
    json.begin_object();
    for (const auto& [name, column] : columns_) json.field(name, column.text());
    json.end_object();
  }

 private:
  std::map<std::string_view, size_t> index_;
  std::vector<std::pair<const char*, Column>> columns_;
};

// Inside <script>, JSON must not hold "</script" or "<!--": no "<" at all is simplest.
std::string for_script(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

void write_names(const Program& p, JsonWriter& json, Columns& c) {
  std::map<std::string, int32_t> kernels;
  json.key("tensors").begin_array();
  for (const Tensor& t : p.graph->tensors) {
    json.value(valid_utf8(t.name));
    c("tensor_bytes").add(t.bytes);
    c("tensor_class").add(static_cast<int>(shown_class(t)));
  }
  json.end_array();
  json.key("ops").begin_array();
  for (const Op& op : p.graph->ops) json.value(valid_utf8(op.name));
  json.end_array();
  for (const Op& op : p.graph->ops) {
    const std::string kernel = op.kernel.empty() ? name_of(op.kind) : op.kernel;
    kernels.emplace(kernel, 0);
  }
  json.key("kernels").begin_array();
  int32_t next = 0;
  for (auto& [name, index] : kernels) {
    index = next++;
    json.value(valid_utf8(name));
  }
  json.end_array();
  for (const Op& op : p.graph->ops) {
    c("op_kernel").add(kernels.at(op.kernel.empty() ? name_of(op.kind) : op.kernel));
    const auto add = [&](const char* count, const char* list, const std::vector<TensorId>& ids) {
      c(count).add(static_cast<int64_t>(ids.size()));
      for (TensorId t : ids) c(list, true).add(t.value);
    };
    add("op_reads", "op_read", op.inputs);
    add("op_writes", "op_write", op.outputs);
    add("op_updates", "op_update", op.updates);
  }
}

void write_events(const Timeline& t, Columns& c) {
  const Program& p = *t.program;
  for (size_t s = 0; s < t.events.size(); ++s) {
    const TimelineEvent& e = t.events[s];
    const Instr& i = p.instrs[s];
    c("event_kind").add(static_cast<int>(i.kind));
    c("event_lane").add(e.lane);
    c("event_subject", true).add(i.kind == InstrKind::kCompute ? i.op.value : i.tensor.value);
    c("event_tier").add(i.tier.value);
    c("event_codec").add(static_cast<int>(i.codec));
    c("event_begin", true).add(e.begin_ns);
    c("event_length").add(e.end_ns - e.begin_ns);
    c("event_stall").add(e.stall_ns);
    c("event_bytes").add(e.bytes);
    c("event_lead").add(e.lead_ns);
    c("event_blame").add(e.blame);
    c("event_user").add(e.used_by);
    c("event_again").add(e.again ? 1 : 0);
  }
}

void write_memory(const Timeline& t, Columns& c) {
  const Program& p = *t.program;
  for (const Residency& r : p.residencies) {
    c("held_tier").add(r.tier.value);
    c("held_tensor", true).add(r.tensor.value);
    c("held_op").add(r.tensor.valid() ? -1 : r.op.value);
    c("held_class").add(memory_class_of(p, r));
    c("held_begin", true).add(r.begin.value);
    c("held_steps").add(r.end.value - r.begin.value);
    c("held_bytes").add(r.bytes);
    c("held_offset", true).add(r.offset);
    c("held_codec").add(static_cast<int>(r.codec));
  }
  for (const TimelineChange& x : t.changes) {
    c("change_tier").add(x.tier);
    c("change_step", true).add(x.step);
    c("change_class").add(x.memory_class);
    c("change_bytes").add(x.bytes);
  }
}

void write_lists(const Timeline& t, JsonWriter& json) {
  json.key("classes").begin_array();
  for (int c = 0; c < kMemoryClassCount; ++c) json.value(memory_class_name(c));
  json.end_array();
  json.key("kinds").begin_array();
  for (int k = 0; k < kInstrKindCount; ++k) json.value(verb_of(static_cast<InstrKind>(k)));
  json.end_array();
  json.key("codecs").begin_array();
  for (int k = 0; k < kCodecCount; ++k) json.value(name_of(static_cast<Codec>(k)));
  json.end_array();
  json.key("lanes").begin_array();
  for (const TimelineLane& l : t.lanes) {
    json.begin_object().field("name", valid_utf8(l.name)).field("events", l.events);
    json.field("busy_ns", l.busy_ns).field("stall_ns", l.stall_ns).field("bytes", l.bytes);
    json.end_object();
  }
  json.end_array();
  json.key("tiers").begin_array();
  for (const TimelineTier& x : t.tiers) {
    json.begin_object().field("name", valid_utf8(x.name)).field("capacity", x.capacity);
    json.field("peak", x.peak).field("peak_step", x.peak_step).end_object();
  }
  json.end_array();
}

std::string data_json(const Timeline& t) {
  const Program& p = *t.program;
  JsonWriter json;
  Columns columns;
  json.begin_object().field("format", 1).field("name", valid_utf8(p.name));
  json.field("machine", valid_utf8(p.machine)).field("cyclic", p.cyclic);
  json.field("total_ns", t.total_ns).field("stall_ns", t.stall_ns);
  json.field("compute_ns", t.compute_ns).field("again_ns", t.again_ns);
  json.field("loaded_bytes", t.loaded_bytes).field("stored_bytes", t.stored_bytes);
  json.field("gathered_bytes", t.gathered_bytes);
  write_lists(t, json);
  write_names(p, json, columns);
  write_events(t, columns);
  write_memory(t, columns);
  json.key("columns");
  columns.write(json);
  json.end_object();
  return json.take();
}

std::string row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string out = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    // The first column names the row.
    const char* use = i == 0 ? "th" : tag;
    out += std::string("<") + use + (i == 0 ? " scope=\"row\">" : ">") + html_text(cells[i]) +
           "</" + use + ">";
  }
  return out + "</tr>\n";
}

std::string head(const std::vector<std::string>& cells) {
  std::string out = "<thead><tr>";
  for (const std::string& cell : cells) out += "<th scope=\"col\">" + html_text(cell) + "</th>";
  return out + "</tr></thead>\n";
}

std::string percent(Nanos part, Nanos whole) {
  if (whole <= 0) return "-";
  return text_of("%.1f %%", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string time_table(const Timeline& t) {
  std::string out = "<table><caption>Streams</caption>" +
                    head({"stream", "events", "busy", "of the step", "stands still", "moved"});
  for (const TimelineLane& l : t.lanes) {
    const bool compute = l.stream == kComputeStream;
    out += row({l.name, grouped(l.events), human_time(l.busy_ns), percent(l.busy_ns, t.total_ns),
                compute ? human_time(l.stall_ns) : "", compute ? "" : human_bytes(l.bytes)});
  }
  return out + "</table>\n";
}

std::string memory_table(const Timeline& t) {
  std::vector<std::string> titles = {"bytes at the peak of", "peak", "capacity"};
  std::vector<int> shown;
  for (int c = 0; c < kMemoryClassCount; ++c) {
    const bool any = std::any_of(t.tiers.begin(), t.tiers.end(), [&](const TimelineTier& x) {
      return x.at_peak[static_cast<size_t>(c)] > 0;
    });
    if (!any) continue;
    shown.push_back(c);
    titles.push_back(memory_class_name(c));
  }
  std::string out = "<table><caption>Memory</caption>" + head(titles);
  for (const TimelineTier& x : t.tiers) {
    if (x.peak == 0) continue;
    std::vector<std::string> cells = {x.name, human_bytes(x.peak),
                                      x.capacity > 0 ? human_bytes(x.capacity) : "-"};
    for (int c : shown) cells.push_back(human_bytes(x.at_peak[static_cast<size_t>(c)]));
    out += row(cells);
  }
  return out + "</table>\n";
}

std::string stall_table(const Timeline& t) {
  const Program& p = *t.program;
  std::vector<int32_t> steps;
  for (size_t s = 0; s < t.events.size(); ++s)
    if (t.events[s].lane == 0 && t.events[s].stall_ns > 0) steps.push_back(static_cast<int32_t>(s));
  std::stable_sort(steps.begin(), steps.end(), [&](int32_t a, int32_t b) {
    return t.events[static_cast<size_t>(a)].stall_ns > t.events[static_cast<size_t>(b)].stall_ns;
  });
  if (steps.empty()) return "<p>Compute never stands still.</p>\n";
  const size_t shown = std::min(kStallRows, steps.size());
  std::string out = text_of("<table><caption>Longest stalls, %zu of %zu</caption>", shown,
                            steps.size()) +
                    head({"before", "at", "stands still", "waiting for"});
  for (size_t i = 0; i < shown; ++i) {
    const TimelineEvent& e = t.events[static_cast<size_t>(steps[i])];
    std::string blame = "-";
    if (e.blame >= 0) {
      const Instr& b = p.instrs[static_cast<size_t>(e.blame)];
      blame = std::string(verb_of(b.kind)) + " " + subject_of(p, b);
    }
    out += row({subject_of(p, p.instrs[static_cast<size_t>(steps[i])]),
                human_time(e.begin_ns - e.stall_ns), human_time(e.stall_ns), blame});
  }
  return out + "</table>\n";
}

std::string summary(const Timeline& t) {
  const TimelineTier& device = t.tiers[0];
  std::string out = human_time(t.total_ns) + " a step: " + human_time(t.compute_ns) + " compute";
  if (t.again_ns > 0) out += " (" + human_time(t.again_ns) + " of it again)";
  out += ", " + human_time(t.stall_ns) + " standing still (" + percent(t.stall_ns, t.total_ns) +
         ") - device peak " + human_bytes(device.peak) + " of " + human_bytes(device.capacity);
  if (t.loaded_bytes + t.stored_bytes + t.gathered_bytes > 0) {
    out += " - " + human_bytes(t.loaded_bytes + t.gathered_bytes) + " loaded, " +
           human_bytes(t.stored_bytes) + " stored";
  }
  return out;
}

}  // namespace

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string timeline_html(const Timeline& t, const std::string& extra_html) {
  const std::string name = html_text(t.program->name.empty() ? "program" : t.program->name);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<title>" + name + " - headrace timeline</title>\n<style>" + kTimelineStyle +
      "</style>\n</head>\n<body>\n<header>\n<h1>" + name + "</h1>\n<p id=\"summary\">" +
      html_text(summary(t));
  if (!t.program->machine.empty()) out += " - " + html_text(t.program->machine);
  out += "</p>\n</header>\n<noscript><p>The picture needs a browser that runs scripts; the numbers "
         "are below.</p></noscript>\n";
  out += kTimelineBody;
  out += "<section id=\"numbers\" aria-label=\"Numbers\">\n<h2>Numbers</h2>\n" + memory_table(t) +
         time_table(t) + stall_table(t) + extra_html + "</section>\n";
  out += "<script type=\"application/json\" id=\"headrace-data\">\n" + for_script(data_json(t)) +
         "</script>\n<script>\n" + kTimelineScript + kTimelineControls +
         "</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace headrace
