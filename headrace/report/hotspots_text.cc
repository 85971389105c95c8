// Hotspots for people and for programs.
#include <algorithm>

#include "headrace/model/tokenizer_stream.h"
#include "headrace/report/hotspots.h"

namespace headrace {
namespace {

std::string shown(const std::string& name) { return terminal_text(valid_utf8(name)); }

constexpr int kWidth = 100;
constexpr int kName = 44;

std::string percent(double part, double whole) {
  return whole > 0 ? text_of("%.1f %%", 100 * part / whole) : "-";
}
std::string percent(int64_t part, int64_t whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}

// A name in `width` columns, its middle left out where it is longer.
std::string fitted(const std::string& name, int width) {
  const std::string text = shown(name);
  if (columns(text) <= width) return pad_right(text, width);
  // Cuts between characters: only names that are longer than their column come here.
  std::vector<std::string> chars;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) == 0x80 && !chars.empty()) {
      chars.back() += c;
    } else {
      chars.emplace_back(1, c);
    }
  }
  const size_t keep = static_cast<size_t>(width - 2), front = keep / 2;
  std::string out;
  for (size_t i = 0; i < front; ++i) out += chars[i];
  out += "..";
  for (size_t i = chars.size() - (keep - front); i < chars.size(); ++i) out += chars[i];
  return out;
}

std::string more(size_t all, size_t limit) {
  return all > limit ? "  and " + grouped(static_cast<int64_t>(all - limit)) + " more\n" : "";
}

std::string head(const Hotspots& h, const TextStyle& style) {
  std::string out = bold(shown(h.program), style) + "\n";
  out += text_of("%s a step: %s compute", human_time(h.total_ns).c_str(),
                 human_time(h.compute_ns).c_str());
  if (h.again_ns > 0) out += text_of(" (%s of it again)", human_time(h.again_ns).c_str());
  out += text_of(", %s standing still (%s)\n", human_time(h.stall_ns).c_str(),
                 percent(h.stall_ns, h.total_ns).c_str());
  out += text_of("device peak %s of %s, at %s (instruction %d", human_bytes(h.peak).c_str(),
                 human_bytes(h.capacity).c_str(), human_time(h.peak_ns).c_str(), h.peak_step);
  if (!h.peak_op.empty()) out += ", with '" + shown(h.peak_op) + "'";
  out += text_of(")\nidle then: %s; the op that needs the most needs %s\n",
                 human_bytes(h.idle_at_peak).c_str(), human_bytes(h.least).c_str());
  for (int c = 0; c < kMemoryClassCount; ++c) {
    const Bytes bytes = h.at_peak[static_cast<size_t>(c)];
    if (bytes == 0) continue;
    out += "  " + pad_right(memory_class_name(c), 12) + pad_left(human_bytes(bytes), 12) +
           pad_left(percent(bytes, h.peak), 9) + "  " +
           bar(static_cast<double>(bytes) / static_cast<double>(h.peak), 30, style) + "\n";
  }
  return out;
}

std::string tensor_list(const Hotspots& h, size_t limit, const TextStyle& style) {
  std::string out = "\n" + dim(pad_right("held at the peak", kName) + pad_left("bytes", 12) +
                                   "  " + pad_right("class", 12) + pad_left("idle for", 12) +
                                   pad_left("round trip", 12), style) + "\n";
  for (size_t i = 0; i < std::min(limit, h.tensors.size()); ++i) {
    const HotTensor& t = h.tensors[i];
    out += fitted(t.name, kName) + pad_left(human_bytes(t.bytes), 12) + "  " +
           pad_right(memory_class_name(t.memory_class), 12) +
           pad_left(t.idle ? human_time(t.gap_ns) : "in use", 12) +
           pad_left(!t.idle ? "" : t.round_trip_ns < 0 ? "no tier" : human_time(t.round_trip_ns),
                    12) + "\n";
  }
  return out + more(h.tensors.size(), limit);
}

std::string op_list(const Hotspots& h, size_t limit, const TextStyle& style) {
  std::string out = "\n" + dim(pad_right("ops that need the most at once", kName) +
                                   pad_left("needs", 12) + pad_left("workspace", 14) +
                                   pad_left("instruction", 14), style) + "\n";
  for (size_t i = 0; i < std::min(limit, h.ops.size()); ++i) {
    const HotOp& o = h.ops[i];
    out += fitted(o.name, kName) + pad_left(human_bytes(o.needs), 12) +
           pad_left(human_bytes(o.workspace), 14) + pad_left(std::to_string(o.step), 14) + "\n";
  }
  return out + more(h.ops.size(), limit);
}

std::string layer_list(const Hotspots& h, size_t limit, const TextStyle& style) {
  if (h.layers.size() < 2) return "";
  std::string out = "\n" + dim(pad_right("layers", kName) + pad_left("at the peak", 12) +
                                   pad_left("compute", 14) + pad_left("stalls", 14), style) + "\n";
  for (size_t i = 0; i < std::min(limit, h.layers.size()); ++i) {
    const HotLayer& l = h.layers[i];
    out += fitted(l.name, kName) + pad_left(human_bytes(l.at_peak), 12) +
           pad_left(human_time(l.compute_ns), 14) + pad_left(human_time(l.stall_ns), 14) + "\n";
  }
  return out + more(h.layers.size(), limit);
}

std::string stall_list(const Hotspots& h, size_t limit, const TextStyle& style) {
  if (h.stalls.empty()) return "\ncompute never stands still\n";
  std::string out = "\n" + dim(pad_right("stalls wait for", kName) + pad_left("cost", 12) +
                                   pad_left("of the step", 12) + pad_left("times", 7) + "  " +
                                   "because", style) + "\n";
  for (size_t i = 0; i < std::min(limit, h.stalls.size()); ++i) {
    const HotStall& s = h.stalls[i];
    out += fitted(s.waits_for, kName) + pad_left(human_time(s.total_ns), 12) +
           pad_left(percent(s.total_ns, h.total_ns), 12) + pad_left(grouped(s.count), 7) + "  " +
           name_of(s.cause) + "\n";
    out += "  " + dim("before '" + shown(s.op) + "'", style) + "\n";
  }
  return out + more(h.stalls.size(), limit);
}

std::string advice_list(const Hotspots& h, const TextStyle& style) {
  std::string out = "\n" + dim("what would help, the most first", style) + "\n";
  if (h.advice.empty()) return out + "  nothing: the step is bound by its compute\n";
  int number = 0;
  for (const Advice& a : h.advice) {
    const std::string lines = wrapped(shown(a.text), kWidth, 5);
    out += text_of("%3d. ", ++number) + lines.substr(5);
  }
  return out;
}

double seconds(Nanos ns) { return static_cast<double>(ns) / 1e9; }

void write_head(const Hotspots& h, JsonWriter& json) {
  json.field("program", valid_utf8(h.program));
  json.field("total_s", seconds(h.total_ns)).field("compute_s", seconds(h.compute_ns));
  json.field("stall_s", seconds(h.stall_ns)).field("again_s", seconds(h.again_ns));
  json.field("peak_bytes", h.peak).field("capacity_bytes", h.capacity);
  json.field("peak_step", h.peak_step).field("peak_s", seconds(h.peak_ns));
  json.field("peak_op", valid_utf8(h.peak_op)).field("idle_at_peak_bytes", h.idle_at_peak);
  json.field("least_bytes", h.least);
  json.key("at_peak").begin_object();
  for (int c = 0; c < kMemoryClassCount; ++c)
    json.field(memory_class_name(c), h.at_peak[static_cast<size_t>(c)]);
  json.end_object();
}

void write_tensors(const Hotspots& h, size_t limit, JsonWriter& json) {
  json.key("tensors").begin_array();
  for (size_t i = 0; i < std::min(limit, h.tensors.size()); ++i) {
    const HotTensor& t = h.tensors[i];
    json.begin_object().field("name", valid_utf8(t.name)).field("bytes", t.bytes);
    json.field("class", memory_class_name(t.memory_class)).field("idle", t.idle);
    if (t.idle) json.field("gap_s", seconds(t.gap_ns));
    if (t.round_trip_ns >= 0) {
      json.field("round_trip_s", seconds(t.round_trip_ns)).field("tier", valid_utf8(t.tier));
    }
    json.end_object();
  }
  json.end_array();
}

void write_rest(const Hotspots& h, size_t limit, JsonWriter& json) {
  json.key("ops").begin_array();
  for (size_t i = 0; i < std::min(limit, h.ops.size()); ++i) {
    const HotOp& o = h.ops[i];
    json.begin_object().field("name", valid_utf8(o.name)).field("step", o.step);
    json.field("needs_bytes", o.needs).field("workspace_bytes", o.workspace).end_object();
  }
  json.end_array().key("layers").begin_array();
  for (size_t i = 0; i < std::min(limit, h.layers.size()); ++i) {
    const HotLayer& l = h.layers[i];
    json.begin_object().field("name", valid_utf8(l.name)).field("at_peak_bytes", l.at_peak);
    json.field("compute_s", seconds(l.compute_ns)).field("stall_s", seconds(l.stall_ns));
    json.end_object();
  }
  json.end_array().key("stalls").begin_array();
  for (size_t i = 0; i < std::min(limit, h.stalls.size()); ++i) {
    const HotStall& s = h.stalls[i];
    json.begin_object().field("waits_for", valid_utf8(s.waits_for)).field("op", valid_utf8(s.op));
    json.field("step", s.step).field("count", s.count).field("total_s", seconds(s.total_ns));
    json.field("cause", name_of(s.cause)).field("link", valid_utf8(s.lane));
    json.field("bytes", s.bytes).end_object();
  }
  json.end_array().key("advice").begin_array();
  for (const Advice& a : h.advice) {
    json.begin_object().field("text", valid_utf8(a.text)).field("saves_s", seconds(a.saves_ns));
    json.field("saves_bytes", a.saves_bytes).end_object();
  }
  json.end_array();
}

}  // namespace

std::string hotspots_text(const Hotspots& h, size_t limit, const TextStyle& style) {
  return head(h, style) + stall_list(h, limit, style) + tensor_list(h, limit, style) +
         layer_list(h, limit, style) + op_list(h, limit, style) + advice_list(h, style);
}

std::string hotspots_json(const Hotspots& h, size_t limit) {
  JsonWriter json;
  json.begin_object();
  write_head(h, json);
  write_tensors(h, limit, json);
  write_rest(h, limit, json);
  json.end_object();
  return json.take();
}

}  // namespace headrace
