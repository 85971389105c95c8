#include "headrace/ir/trace.h"

#include <algorithm>
#include <map>
#include <set>

namespace headrace {
namespace {

std::string json_string(const std::string& s) {
  std::string out = "\"";
  for (unsigned char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      out += text_of("\\u%04x", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + "\"";
}

}  // namespace

std::vector<MemoryPoint> memory_curve(const Program& program) {
  std::map<int32_t, std::vector<const Residency*>> begins, ends;
  std::set<int32_t> steps;
  for (const Residency& r : program.residencies) {
    begins[r.begin.value].push_back(&r);
    ends[r.end.value].push_back(&r);
    steps.insert({r.begin.value, r.end.value});
  }
  // Residencies that share bytes start at the same offset (verify() sees to it); the largest of
  // those alive counts.
  std::map<Bytes, std::multiset<Bytes>> alive;
  const auto largest = [](const std::multiset<Bytes>& sizes) {
    return sizes.empty() ? Bytes{0} : *sizes.rbegin();
  };
  std::vector<MemoryPoint> curve;
  Bytes held = 0;
  for (int32_t step : steps) {
    for (const Residency* r : ends[step]) {
      auto& sizes = alive[r->offset];
      held -= largest(sizes);
      sizes.erase(sizes.find(r->bytes));
      held += largest(sizes);
    }
    for (const Residency* r : begins[step]) {
      auto& sizes = alive[r->offset];
      held -= largest(sizes);
      sizes.insert(r->bytes);
      held += largest(sizes);
    }
    curve.push_back({step, held});
  }
  return curve;
}

Bytes peak_bytes(const Program& program) {
  Bytes peak = 0;
  for (const Residency& r : program.residencies) peak = std::max(peak, r.offset + r.bytes);
  return peak;
}

std::string to_chrome_json(const Program& program, const Trace& trace) {
  const Graph& g = *program.graph;
  std::string out = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
  out += "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":" +
         json_string(program.name) + "}}";
  for (size_t i = 0; i < program.instrs.size() && i < trace.records.size(); ++i) {
    const Instr& instr = program.instrs[i];
    const TraceRecord& r = trace.records[i];
    if (instr.kind == InstrKind::kDetach) continue;
    const bool compute = instr.kind == InstrKind::kCompute;
    out += ",\n{\"name\":" + json_string(compute ? g.at(instr.op).name : g.at(instr.tensor).name);
    out += text_of(",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,",
                   name_of(instr.kind), instr.stream.value,
                   static_cast<double>(r.begin_ns) / 1e3,
                   static_cast<double>(r.end_ns - r.begin_ns) / 1e3);
    out += text_of("\"args\":{\"step\":%zu,\"bytes\":%lld,\"stall_ns\":%lld}}", i,
                   static_cast<long long>(r.bytes), static_cast<long long>(r.stall_ns));
  }
  return out + "\n]}\n";
}

}  // namespace headrace
