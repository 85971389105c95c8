// Trace files: the Trace Event Format of Chrome and Perfetto, written and read back.
//
//   {"displayTimeUnit":"ns",
//    "otherData":{"headrace_trace":1,"total_ns":..,"stall_ns":..,..,"program":"program \"..."},
//    "traceEvents":[
//     {"name":"process_name","ph":"M","pid":0,"args":{"name":..}},          a row a stream
//     {"name":"blk.0.attn","cat":"compute","ph":"X","pid":0,"tid":0,"ts":1.500,"dur":1.000,
//      "args":{"step":1,"bytes":0,"stall_ns":7}},                           an instruction
//     {"name":"memory of device","ph":"C","pid":0,"ts":1.500,"args":{"weight":4096,..}}]}
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "headrace/base/json_text.h"
#include "headrace/ir/trace.h"

namespace headrace {
namespace {

// Points of a memory counter in a file: more than a screen has columns. A longer curve is cut into
// as many pieces, each shown by its largest point.
constexpr size_t kMostCounterPoints = 20000;

// Nanoseconds as the microseconds of the format, exactly.
std::string micros(Nanos ns) {
  const Nanos size = std::abs(ns);
  return text_of("%s%lld.%03lld", ns < 0 ? "-" : "", static_cast<long long>(size / 1000),
                 static_cast<long long>(size % 1000));
}

Bytes sum_of(const TimePoint& p) {
  Bytes sum = 0;
  for (Bytes b : p.bytes) sum += b;
  return sum;
}

class Writer {
 public:
  Writer(const Program& program, const Trace& trace) : p_(program), trace_(trace) {}

  std::string run() {
    out_ = "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"headrace_trace\":1";
    total("total_ns", trace_.total_ns);
    total("stall_ns", trace_.stall_ns);
    total("loaded_bytes", trace_.loaded_bytes);
    total("gathered_bytes", trace_.gathered_bytes);
    total("stored_bytes", trace_.stored_bytes);
    out_ += ",\n\"program\":" + json_quoted(to_text(p_)) + "},\n\"traceEvents\":[\n";
    out_ += "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":" +
            json_quoted(p_.name) + "}}";
    for (const auto& [stream, name] : stream_names()) thread(stream, name);
    const size_t n = std::min(p_.instrs.size(), trace_.records.size());
    for (size_t i = 0; i < n; ++i) event(i);
    for (size_t t = 0; n == p_.instrs.size() && t < p_.tiers.size(); ++t) counter(t);
    return std::move(out_) + "\n]}\n";
  }

 private:
  void total(const char* name, int64_t value) {
    out_ += text_of(",\"%s\":%lld", name, static_cast<long long>(value));
  }

  std::map<int32_t, std::string> stream_names() const {
    std::map<int32_t, std::string> names = {{0, "compute"}};
    for (size_t t = 1; t < p_.tiers.size(); ++t) {
      const TierId tier(static_cast<int64_t>(t));
      const int32_t loads = link_stream(p_.tiers, tier, InstrKind::kLoad).value;
      const int32_t stores = link_stream(p_.tiers, tier, InstrKind::kStore).value;
      const std::string& name = p_.tiers[t].name;
      add_name(names[loads], (loads == stores ? "link: " : "loads: ") + name, name);
      if (loads != stores) add_name(names[stores], "stores: " + name, name);
    }
    return names;
  }
  static void add_name(std::string& title, const std::string& first, const std::string& next) {
    title = title.empty() ? first : title + ", " + next;
  }

  void thread(int32_t stream, const std::string& name) {
    const std::string head = text_of("\"ph\":\"M\",\"pid\":0,\"tid\":%d,\"args\":", stream);
    out_ += ",\n{\"name\":\"thread_name\"," + head + "{\"name\":" + json_quoted(name) + "}}";
    out_ += ",\n{\"name\":\"thread_sort_index\"," + head +
            text_of("{\"sort_index\":%d}}", stream);
  }

  void event(size_t step) {
    const Instr& i = p_.instrs[step];
    const TraceRecord& r = trace_.records[step];
    const bool compute = i.kind == InstrKind::kCompute;
    out_ += ",\n{\"name\":" +
            json_quoted(compute ? p_.graph->at(i.op).name : p_.graph->at(i.tensor).name);
    out_ += text_of(",\"cat\":\"%s\"", name_of(i.kind));
    out_ += i.kind == InstrKind::kDetach ? ",\"ph\":\"i\",\"s\":\"t\"" : ",\"ph\":\"X\"";
    out_ += text_of(",\"pid\":0,\"tid\":%d,\"ts\":", i.stream.value) + micros(r.begin_ns);
    if (i.kind != InstrKind::kDetach || r.end_ns != r.begin_ns) {
      out_ += ",\"dur\":" + micros(r.end_ns - r.begin_ns);
    }
    out_ += text_of(",\"args\":{\"step\":%zu,\"bytes\":%lld,\"stall_ns\":%lld}}", step,
                    static_cast<long long>(r.bytes), static_cast<long long>(r.stall_ns));
  }

  void counter(size_t tier) {
    const auto curve = time_curve(p_, trace_, TierId(static_cast<int64_t>(tier)));
    const size_t pieces = std::min(curve.size(), kMostCounterPoints);
    const std::string name = json_quoted("memory of " + p_.tiers[tier].name);
    for (size_t k = 0; k < pieces; ++k) {
      const auto first = curve.begin() + static_cast<std::ptrdiff_t>(curve.size() * k / pieces);
      const auto last =
          curve.begin() + static_cast<std::ptrdiff_t>(curve.size() * (k + 1) / pieces);
      const TimePoint& most = *std::max_element(
          first, last, [](auto& a, auto& b) { return sum_of(a) < sum_of(b); });
      out_ += ",\n{\"name\":" + name + ",\"ph\":\"C\",\"pid\":0,\"ts\":" + micros(most.time_ns) +
              ",\"args\":{";
      for (size_t c = 0; c < most.bytes.size(); ++c) {
        out_ += text_of("%s\"%s\":%lld", c == 0 ? "" : ",",
                        c == kWorkspaceSlot ? "workspace" : name_of(static_cast<DataClass>(c)),
                        static_cast<long long>(most.bytes[c]));
      }
      out_ += "}}";
    }
  }

  const Program& p_;
  const Trace& trace_;
  std::string out_;
};

// ---- reading ----------------------------------------------------------------------------------

// The events of nlohmann's SAX parser. Keeps what is ours by where it stands: a path of keys, of
// which only the outer three matter.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Event {
    int64_t step = -1;
    double begin_us = 0;
    double took_us = 0;
    int64_t stall_ns = 0;
    int64_t bytes = 0;
  };

  std::vector<Event> events;
  std::map<std::string, int64_t> totals;
  std::string program;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t v) override {
    return whole(v, static_cast<double>(v));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<uint64_t>(INT64_MAX)) return number(static_cast<double>(v));
    return whole(static_cast<int64_t>(v), static_cast<double>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return number(v); }
  bool string(string_t& text) override {
    if (depth_ == 2 && outer_ == "otherData" && key_ == "program") program = std::move(text);
    if (depth_ == 3 && in_events() && key_ == "ph") ours_ = text == "X" || text == "i";
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& name) override {
    key_ = std::move(name);
    if (depth_ == 1) outer_ = key_;
    if (depth_ == 3) inner_ = key_;
    return true;
  }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override {
    if (depth_ == 3 && in_events() && ours_ && event_.step >= 0) events.push_back(event_);
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool in_events() const { return outer_ == "traceEvents"; }
  bool open() {
    if (++depth_ == 3) {
      event_ = {};
      ours_ = false;
      inner_.clear();
    }
    return true;
  }

  bool whole(int64_t exact, double v) {
    if (depth_ == 2 && outer_ == "otherData") totals[key_] = exact;
    if (depth_ == 4 && in_events() && inner_ == "args") {
      if (key_ == "step") event_.step = exact;
      if (key_ == "bytes") event_.bytes = exact;
      if (key_ == "stall_ns") event_.stall_ns = exact;
    }
    return number(v);
  }
  bool number(double v) {
    if (depth_ == 3 && in_events()) {
      if (key_ == "ts") event_.begin_us = v;
      if (key_ == "dur") event_.took_us = v;
    }
    return true;
  }

  int depth_ = 0;  // objects and arrays that are open
  std::string outer_, inner_, key_;
  Event event_;
  bool ours_ = false;
};

// Microseconds as the nanoseconds that they were written from; false when no time of ours.
bool nanos(double us, Nanos* ns) {
  if (!(std::abs(us) < 4e15)) return false;
  *ns = std::llround(us * 1e3);
  return true;
}

Status fill(const Reader& reader, Trace* trace) {
  const auto total = [&](const char* name) {
    const auto at = reader.totals.find(name);
    return at == reader.totals.end() ? 0 : at->second;
  };
  trace->total_ns = total("total_ns");
  trace->stall_ns = total("stall_ns");
  trace->loaded_bytes = total("loaded_bytes");
  trace->gathered_bytes = total("gathered_bytes");
  trace->stored_bytes = total("stored_bytes");
  std::vector<bool> seen(trace->records.size(), false);
  for (const Reader::Event& e : reader.events) {
    const size_t step = static_cast<size_t>(e.step);
    if (step >= seen.size()) {
      return error(Code::kBadFile, "an event of step %lld, which the program does not have",
                   static_cast<long long>(e.step));
    }
    if (seen[step]) return error(Code::kBadFile, "two events of step %zu", step);
    seen[step] = true;
    TraceRecord& r = trace->records[step];
    Nanos took = 0;
    if (!nanos(e.begin_us, &r.begin_ns) || !nanos(e.took_us, &took) || took < 0 ||
        e.bytes < 0 || e.stall_ns < 0) {
      return error(Code::kBadFile, "the event of step %zu has impossible times", step);
    }
    r.end_ns = r.begin_ns + took;
    r.bytes = e.bytes;
    r.stall_ns = e.stall_ns;
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  if (missing == seen.end()) return {};
  return error(Code::kBadFile, "no event of step %td", missing - seen.begin());
}

}  // namespace

std::string to_chrome_json(const Program& program, const Trace& trace) {
  return Writer(program, trace).run();
}

Result<TraceFile> parse_chrome_json(std::string_view json) {
  Reader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
    return json_error(json);
  }
  const auto version = reader.totals.find("headrace_trace");
  if (version == reader.totals.end() || reader.program.empty()) {
    return error(Code::kBadFile, "a trace of another program: it holds no plan of ours");
  }
  if (version->second != 1) {
    return error(Code::kUnsupported, "a trace file of version %lld; this reads version 1",
                 static_cast<long long>(version->second));
  }
  auto program = parse_program(reader.program);
  if (!program.ok()) return program.status().within("the trace's program");
  HR_TRY(verify(*program).within("the trace's program"));
  TraceFile file;
  file.program = std::move(*program);
  file.trace.records.resize(file.program.instrs.size());
  HR_TRY(fill(reader, &file.trace));
  return file;
}

}  // namespace headrace
