// The diagnosis as text and as JSON.
#include "headrace/report/json_writer.h"
#include "headrace/snapshot/doctor.h"

namespace headrace {
namespace {

constexpr size_t kShownShares = 12;
constexpr int kWidth = 100;

std::string line_of(const char* label, const std::string& value, const char* remark) {
  return "  " + pad_right(label, 22) + pad_left(value, 11) + "   " + remark + "\n";
}

std::string device_text(const DeviceReport& d, const TextStyle& style) {
  std::string out = bold(text_of("device %d", d.device), style) +
                    text_of("   %s events in %s, %s buffers\n", grouped(d.events).c_str(),
                            human_time(d.span_us * 1000).c_str(), grouped(d.buffers).c_str());
  out += line_of("reserved at most", human_bytes(d.peak_reserved),
                 "what the device lost to the run");
  out += line_of("given out at most", human_bytes(d.peak_live), "no allocator can do with less");
  out += line_of("packed", human_bytes(d.packed), "all buffers at offsets laid out in advance");
  out += line_of("at the end", human_bytes(d.active),
                 text_of("of %s reserved", human_bytes(d.reserved).c_str()).c_str());
  out += "\n  at the peak            bytes   buffers\n";
  for (size_t i = 0; i < d.shares.size() && i < kShownShares; ++i) {
    const PeakShare& s = d.shares[i];
    const double part = static_cast<double>(s.bytes) / static_cast<double>(d.peak_live);
    out += "  " + bar(part, 10, style) + " " + pad_left(human_bytes(s.bytes), 11) +
           pad_left(grouped(s.buffers), 10) + "   " + pad_right(name_of(s.part), 13) + " " +
           terminal_text(s.where) +
           (s.op.empty() ? "" : dim(" (" + terminal_text(s.op) + ")", style)) + "\n";
  }
  if (d.shares.size() > kShownShares) {
    Bytes rest = 0;
    for (size_t i = kShownShares; i < d.shares.size(); ++i) rest += d.shares[i].bytes;
    out += text_of("             %s   in %zu other places\n",
                   pad_left(human_bytes(rest), 11).c_str(), d.shares.size() - kShownShares);
  }
  return out + "\n";
}

std::string answer_text(const ReplayAnswer& a, const TextStyle& style) {
  const WouldFit& f = a.fit;
  return bold(text_of("a plan would have fitted device %d in %s at %+.1f %%", a.device,
                      human_bytes(f.budget).c_str(), 100 * f.slowdown),
              style) +
         "\n" +
         wrapped(text_of("instead of %s: the recorded trace planned for %s, with %s stored and "
                         "loaded a step; below %s nothing fits. A snapshot does not say when "
                         "buffers are used: each counts as used when it is made, for the %d "
                         "allocations after that, and last before it is freed.",
                         human_bytes(f.unlimited_bytes).c_str(), a.machine.c_str(),
                         human_bytes(f.moved_bytes).c_str(), human_bytes(f.least).c_str(),
                         kSettleOps),
                 kWidth, 2) +
         "\n";
}

}  // namespace

std::string diagnosis_text(const Diagnosis& diagnosis, const std::vector<ReplayAnswer>& answers,
                           const TextStyle& style) {
  std::string out;
  for (const DeviceReport& d : diagnosis.devices) out += device_text(d, style);
  out += bold("findings", style) + "   the most bytes first\n";
  if (diagnosis.findings.empty()) out += "  none: what is reserved is used, and little is lost\n";
  int number = 0;
  for (const Finding& f : diagnosis.findings) {
    out += text_of("%3d. ", ++number) + pad_right(name_of(f.group), 10) +
           bold(terminal_text(f.title), style) + "\n" +
           wrapped(terminal_text(f.detail), kWidth, 5) + wrapped("-> " + f.advice, kWidth, 5);
  }
  for (const ReplayAnswer& a : answers) out += "\n" + answer_text(a, style);
  return out;
}

std::string diagnosis_json(const Diagnosis& diagnosis, const std::vector<ReplayAnswer>& answers) {
  JsonWriter w;
  w.begin_object().key("devices").begin_array();
  for (const DeviceReport& d : diagnosis.devices) {
    w.begin_object().field("device", d.device).field("events", d.events);
    w.field("buffers", d.buffers).field("span_us", d.span_us);
    w.field("reserved_bytes", d.reserved).field("active_bytes", d.active);
    w.field("peak_reserved_bytes", d.peak_reserved).field("peak_live_bytes", d.peak_live);
    w.field("packed_bytes", d.packed).field("before_trace_bytes", d.before);
    w.key("peak").begin_array();
    for (const PeakShare& s : d.shares) {
      w.begin_object().field("part", name_of(s.part)).field("where", std::string_view(s.where));
      w.field("operator", std::string_view(s.op)).field("bytes", s.bytes);
      w.field("buffers", s.buffers).end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().key("findings").begin_array();
  for (const Finding& f : diagnosis.findings) {
    w.begin_object().field("group", name_of(f.group)).field("device", f.device);
    w.field("bytes", f.bytes).field("title", std::string_view(f.title));
    w.field("detail", std::string_view(f.detail)).field("advice", std::string_view(f.advice));
    w.end_object();
  }
  w.end_array().key("would_fit").begin_array();
  for (const ReplayAnswer& a : answers) {
    w.begin_object().field("device", a.device).field("machine", std::string_view(a.machine));
    w.field("bytes", a.fit.budget).field("slowdown", a.fit.slowdown);
    w.field("least_bytes", a.fit.least).field("unlimited_bytes", a.fit.unlimited_bytes);
    w.field("unlimited_ns", a.fit.unlimited_ns).field("moved_bytes", a.fit.moved_bytes);
    w.end_object();
  }
  w.end_array().end_object();
  return w.take();
}

}  // namespace headrace
