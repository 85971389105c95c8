#include "headrace/cost/machine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "headrace/base/json_fields.h"
#include "headrace/base/json_text.h"
#include "headrace/cost/predictor.h"

namespace headrace {

using Json = nlohmann::ordered_json;

Machine Machine::defaults(int threads) {
  Machine m;
  m.threads = threads;
  m.memory_bytes_per_s = std::min(10e9 + 8e9 * threads, 100e9);
  for (int i = 0; i < kDTypeCount; ++i) {
    const bool quantised = info(static_cast<DType>(i)).quantised;
    m.matmul_per_s[static_cast<size_t>(i)] = (quantised ? 60e9 : 25e9) * threads;
    m.matvec_bytes_per_s[static_cast<size_t>(i)] = std::min(m.memory_bytes_per_s, 10e9 * threads);
  }
  m.vector_per_s = 1e9 * threads;
  m.tiers = {{"device", 0, 0, 0, 0}, {"file", 0, 1.2e9, 1.0e9, 150'000}};
  return m;
}

std::string to_json(const Machine& m) {
  Json j;
  j["name"] = m.name;
  j["threads"] = m.threads;
  j["memory_bytes_per_s"] = m.memory_bytes_per_s;
  for (int i = 0; i < kDTypeCount; ++i) {
    const char* type = name_of(static_cast<DType>(i));
    if (m.matmul_per_s[static_cast<size_t>(i)] <= 0) continue;
    j["matmul_per_s"][type] = m.matmul_per_s[static_cast<size_t>(i)];
    j["matvec_bytes_per_s"][type] = m.matvec_bytes_per_s[static_cast<size_t>(i)];
  }
  j["vector_per_s"] = m.vector_per_s;
  j["op_overhead_ns"] = m.op_overhead_ns;
  for (const TierInfo& t : m.tiers) {
    Json tier = {{"name", t.name},
                 {"capacity", t.capacity},
                 {"load_bytes_per_s", t.load_bytes_per_s},
                 {"store_bytes_per_s", t.store_bytes_per_s},
                 {"latency_ns", t.latency_ns}};
    if (t.duplex) tier["duplex"] = true;
    if (t.group >= 0) tier["group"] = t.group;
    if (t.alignment != 1) tier["alignment"] = t.alignment;
    j["tiers"].push_back(std::move(tier));
  }
  for (const auto& [kernel, model] : m.kernels) {
    j["kernels"][kernel] = {
        {"samples", model.samples}, {"seconds", model.seconds}, {"workspace", model.workspace}};
  }
  for (const auto& [number, source] : m.sources) j["sources"][number] = source;
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

using ReadJson = nlohmann::json;
constexpr double kAny = std::numeric_limits<double>::max();  // verify() knows what is too much

// A table of rates by type name; types that it does not list keep their rate.
Status read_rates(const JsonFields& f, const char* table, std::array<double, kDTypeCount>& rates) {
  if (!f.find(table)->is_object()) return f.bad(table, "is not a table of rates by type");
  const JsonFields rate(*f.find(table), f.what() + ": " + table);
  for (const auto& [type, value] : f.find(table)->items()) {
    HR_ASSIGN(const DType dtype, dtype_from_name(type));
    HR_TRY(rate.number(type.c_str(), -kAny, kAny, &rates[static_cast<size_t>(dtype)]));
  }
  return {};
}

Status read_tier(const ReadJson& j, size_t number, TierInfo* t) {
  const JsonFields f(j, "the machine file: tier", number);
  HR_TRY(f.all({"name", "capacity", "load_bytes_per_s", "store_bytes_per_s", "latency_ns"}));
  HR_TRY(f.only({"name", "capacity", "load_bytes_per_s", "store_bytes_per_s", "latency_ns",
                 "duplex", "group", "alignment"}));
  int64_t group = t->group;
  HR_TRY(f.text("name", &t->name));
  HR_TRY(f.integer("capacity", INT64_MIN, INT64_MAX, &t->capacity));
  HR_TRY(f.number("load_bytes_per_s", -kAny, kAny, &t->load_bytes_per_s));
  HR_TRY(f.number("store_bytes_per_s", -kAny, kAny, &t->store_bytes_per_s));
  HR_TRY(f.integer("latency_ns", INT64_MIN, INT64_MAX, &t->latency_ns));
  HR_TRY(f.flag("duplex", &t->duplex));
  HR_TRY(f.integer("group", -1, INT32_MAX, &group));
  HR_TRY(f.integer("alignment", 1, kPage, &t->alignment));
  t->group = static_cast<int32_t>(group);
  return {};
}

Status read_kernels(const ReadJson& j, Machine& m) {
  if (!j.is_object()) return error(Code::kBadFile, "the machine file: 'kernels' is not an object");
  for (const auto& [kernel, model] : j.items()) {
    const JsonFields f(model, "the machine file: kernel '" + printable(kernel) + "'");
    HR_TRY(f.all({"samples", "seconds", "workspace"}));
    KernelModel& k = m.kernels[kernel];
    HR_TRY(f.integer("samples", 0, INT64_MAX, &k.samples));
    HR_TRY(f.numbers("seconds", k.seconds));
    HR_TRY(f.numbers("workspace", k.workspace));
  }
  return {};
}

Status read_machine(const ReadJson& j, Machine& m) {
  const JsonFields f(j, "the machine file");
  HR_TRY(f.all({"name", "threads", "memory_bytes_per_s", "matmul_per_s", "matvec_bytes_per_s",
                "vector_per_s", "op_overhead_ns", "tiers"}));
  int64_t threads = 0;
  HR_TRY(f.text("name", &m.name));
  HR_TRY(f.integer("threads", INT32_MIN, INT32_MAX, &threads));
  m.threads = static_cast<int>(threads);
  HR_TRY(f.number("memory_bytes_per_s", -kAny, kAny, &m.memory_bytes_per_s));
  HR_TRY(read_rates(f, "matmul_per_s", m.matmul_per_s));
  HR_TRY(read_rates(f, "matvec_bytes_per_s", m.matvec_bytes_per_s));
  HR_TRY(f.number("vector_per_s", -kAny, kAny, &m.vector_per_s));
  HR_TRY(f.integer("op_overhead_ns", INT64_MIN, INT64_MAX, &m.op_overhead_ns));
  const ReadJson& tiers = *f.find("tiers");
  if (!tiers.is_array()) return f.bad("tiers", "is not a list");
  m.tiers.assign(tiers.size(), TierInfo());
  for (size_t t = 0; t < tiers.size(); ++t) HR_TRY(read_tier(tiers[t], t, &m.tiers[t]));
  if (f.find("kernels") != nullptr) HR_TRY(read_kernels(*f.find("kernels"), m));
  if (f.find("sources") == nullptr) return {};
  if (!f.find("sources")->is_object()) return f.bad("sources", "is not an object");
  const JsonFields sources(*f.find("sources"), "the machine file: sources");
  for (const auto& [number, source] : f.find("sources")->items()) {
    HR_TRY(sources.text(number.c_str(), &m.sources[number]));
  }
  return {};
}

constexpr double kMostRate = 1e21;

Status above_zero(double value, const std::string& what) {
  if (value > 0 && value <= kMostRate) return {};  // NaN is neither
  return error(Code::kBadFile, "machine: %s is %g; it must be above zero and at most 1e21",
               what.c_str(), value);
}

Status not_negative(int64_t value, const std::string& what) {
  if (value >= 0) return {};
  return error(Code::kBadFile, "machine: %s is %lld, below zero", what.c_str(),
               static_cast<long long>(value));
}

Status verify_tiers(const Machine& m) {
  if (m.tiers.size() < 2) {
    return error(Code::kBadFile,
                 "machine: %zu tiers; there must be the device and at least one more",
                 m.tiers.size());
  }
  std::set<std::string> names;
  for (size_t i = 0; i < m.tiers.size(); ++i) {
    const TierInfo& t = m.tiers[i];
    const std::string of = " of tier '" + t.name + "'";
    if (t.name.empty() || !names.insert(t.name).second) {
      return error(Code::kBadFile, "machine: tier %zu ('%s') has no name of its own", i,
                   t.name.c_str());
    }
    HR_TRY(not_negative(t.capacity, "capacity" + of));
    if (i == 0) continue;
    HR_TRY(above_zero(t.load_bytes_per_s, "load_bytes_per_s" + of));
    HR_TRY(above_zero(t.store_bytes_per_s, "store_bytes_per_s" + of));
    HR_TRY(not_negative(t.latency_ns, "latency_ns" + of));
    for (size_t u = 1; u < i; ++u) {
      if (t.group >= 0 && m.tiers[u].group == t.group && m.tiers[u].duplex != t.duplex) {
        return error(Code::kBadFile,
                     "machine: tiers '%s' and '%s' share a link, which one calls duplex and the "
                     "other does not",
                     m.tiers[u].name.c_str(), t.name.c_str());
      }
    }
  }
  return {};
}

Status verify_kernels(const Machine& m) {
  for (const auto& [name, model] : m.kernels) {
    for (const auto* weights : {&model.seconds, &model.workspace}) {
      for (const double w : *weights) {
        if (w >= 0 && w <= kMostRate) continue;
        return error(Code::kBadFile, "machine: the model of kernel '%s' has the weight %g",
                     name.c_str(), w);
      }
    }
  }
  return {};
}

}  // namespace

Status verify(const Machine& m) {
  if (m.threads < 1)
    return error(Code::kBadFile, "machine: threads is %d, not above zero", m.threads);
  HR_TRY(above_zero(m.memory_bytes_per_s, "memory_bytes_per_s"));
  HR_TRY(above_zero(m.vector_per_s, "vector_per_s"));
  HR_TRY(not_negative(m.op_overhead_ns, "op_overhead_ns"));
  for (int i = 0; i < kDTypeCount; ++i) {
    const std::string of = std::string(" of ") + name_of(static_cast<DType>(i));
    HR_TRY(above_zero(m.matmul_per_s[static_cast<size_t>(i)], "matmul_per_s" + of));
    HR_TRY(above_zero(m.matvec_bytes_per_s[static_cast<size_t>(i)], "matvec_bytes_per_s" + of));
  }
  HR_TRY(verify_tiers(m));
  return verify_kernels(m);
}

Result<Machine> machine_from_json(std::string_view source) {
  const ReadJson j = ReadJson::parse(source, nullptr, /*allow_exceptions=*/false);
  if (j.is_discarded()) return json_error(source).within("the machine file");
  Machine m = Machine::defaults(1);
  HR_TRY(read_machine(j, m));
  HR_TRY(verify(m));
  return m;
}

namespace {

double matmul_seconds(const Machine& m, const Graph& g, const Op& op, int64_t rows) {
  const Tensor& w = g.at(op.inputs[1]);
  const size_t type = static_cast<size_t>(w.dtype);
  const double macs = static_cast<double>(rows) * static_cast<double>(w.rows * w.cols);
  const double stream = static_cast<double>(w.bytes) / m.matvec_bytes_per_s[type];
  return std::max(stream, macs / m.matmul_per_s[type]);
}

// Positions that the segments of this op hold and a row sees.
int64_t seen_positions(const Op& op, const CostQuery& q) {
  const int64_t window = op.iattr(Attr::kWindow), segments = op.iattr(Attr::kSegments);
  if (window > 0) return std::min(window, q.positions);
  const int64_t count = op.iattr(Attr::kSegmentCount, segments);
  if (count == segments) return q.positions;
  const int64_t tokens = op.iattr(Attr::kSegmentTokens);
  const int64_t here = std::clamp<int64_t>(q.positions - op.iattr(Attr::kSegmentBegin) * tokens, 0,
                                           count * tokens);
  // Any of the segments may be among the selected ones.
  const int64_t selected = op.iattr(Attr::kSparseTokens);
  if (op.inputs.size() < 3 || q.positions <= selected) return here;
  return here * selected / q.positions;
}

double attention_seconds(const Machine& m, const Op& op, const CostQuery& q) {
  const int64_t seen = seen_positions(op, q);
  // As if held in 16 bits: smaller formats take about the time to decode that they save to read
  // (docs/decisions/0002).
  const double kv_bytes =
      4.0 * static_cast<double>(seen * op.iattr(Attr::kKvHeads) * op.iattr(Attr::kHeadDim));
  // K and V, multiply-add each, for every query head.
  const double macs =
      2.0 * static_cast<double>(q.rows * seen * op.iattr(Attr::kHeads) * op.iattr(Attr::kHeadDim));
  return std::max(kv_bytes / m.memory_bytes_per_s, macs / (8 * m.vector_per_s));
}

constexpr double kMostKernelSeconds = 3600;  // sums of them stay inside Nanos

Nanos kernel_cost(const Machine& m, const Graph& g, const Op& op) {
  double seconds = 0;
  const auto model = m.kernels.find(op.kernel);
  if (op.attrs.contains(Attr::kSeconds)) {
    seconds = op.attr(Attr::kSeconds);
  } else if (model != m.kernels.end()) {
    seconds = predicted_seconds(model->second, work_of(g, op));
  } else {
    seconds = roofline_seconds(m, work_of(g, op));
  }
  if (!(seconds < kMostKernelSeconds)) seconds = kMostKernelSeconds;
  return std::max<Nanos>(1, std::llround(seconds * 1e9));
}

}  // namespace

KernelWork work_of(const Graph& g, const Op& op) {
  KernelWork work;
  double first = 0, second = 0, largest_written = 0;  // the two largest read
  bool typed = false;
  const auto operand = [&](TensorId id, bool reads, bool writes) {
    if (!id.valid()) return;
    const Tensor& t = g.at(id);
    const double bytes = static_cast<double>(t.bytes);
    work.traffic += reads && writes ? 2 * bytes : bytes;
    if (reads) {
      second = std::max(second, std::min(first, bytes));
      first = std::max(first, bytes);
    }
    if (writes) {
      work.output_bytes += bytes;
      largest_written = std::max(largest_written, bytes);
    }
    const bool plain = t.dtype == DType::kF32 || t.dtype == DType::kF16 || t.dtype == DType::kBF16;
    if (plain && !typed) work.dtype = t.dtype;
    typed = typed || plain;
  };
  for (const TensorId id : op.inputs) operand(id, true, false);
  for (const TensorId id : op.outputs) operand(id, false, true);
  for (const TensorId id : op.updates) operand(id, true, true);
  if (second == 0) second = first;
  work.volume = std::sqrt(first) * std::sqrt(second) * std::sqrt(largest_written);
  work.flops = op.attr(Attr::kFlops);
  work.traffic = op.attr(Attr::kTraffic, work.traffic);
  return work;
}

Nanos op_cost(const Machine& m, const Graph& g, const Op& op, const CostQuery& q) {
  if (op.kind == OpKind::kKernel) return kernel_cost(m, g, op);
  double seconds = 0;
  // A part of attention that no row sees anything in returns at once.
  constexpr Nanos kNothingToDo = 100;
  if (op.kind == OpKind::kAttention && op.iattr(Attr::kSegmentBegin) > 0 &&
      seen_positions(op, q) == 0) {
    return kNothingToDo;
  }
  // After the selection of output rows an op has fewer rows than the step. A part of attention may
  // have no output.
  const int64_t rows =
      op.outputs.empty() ? q.rows : std::min(q.rows, g.at(op.outputs[0]).rows);
  switch (op.kind) {
    case OpKind::kMatMul:
      seconds = matmul_seconds(m, g, op, rows);
      break;
    case OpKind::kAttention:
      seconds = attention_seconds(m, op, q);
      break;
    default:
      seconds = static_cast<double>(rows * g.at(op.outputs[0]).cols) / m.vector_per_s;
  }
  return m.op_overhead_ns + static_cast<Nanos>(seconds * 1e9);
}

}  // namespace headrace
