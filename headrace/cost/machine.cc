#include "headrace/cost/machine.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace headrace {

using Json = nlohmann::ordered_json;

Machine Machine::defaults(int threads) {
  Machine m;
  m.threads = threads;
  m.memory_bytes_per_s = std::min(10e9 + 8e9 * threads, 100e9);
  for (int i = 0; i < kDTypeCount; ++i) {
    const bool quantised = info(static_cast<DType>(i)).quantised;
    m.matmul_per_s[static_cast<size_t>(i)] = (quantised ? 60e9 : 25e9) * threads;
    m.matvec_bytes_per_s[static_cast<size_t>(i)] =
        std::min(m.memory_bytes_per_s, 10e9 * threads);
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
    j["tiers"].push_back({{"name", t.name},
                          {"capacity", t.capacity},
                          {"load_bytes_per_s", t.load_bytes_per_s},
                          {"store_bytes_per_s", t.store_bytes_per_s},
                          {"latency_ns", t.latency_ns}});
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

namespace {

// A table of rates by type name; types that it does not list keep their rate.
Status read_rates(const Json& j, const char* table, std::array<double, kDTypeCount>& rates) {
  for (const auto& [type, rate] : j.at(table).items()) {
    HR_ASSIGN(const DType dtype, dtype_from_name(type));
    const double value = rate.get<double>();
    if (!(value > 0)) {
      return error(Code::kBadFile, "machine file: %s of %s is not above zero", table, type.c_str());
    }
    rates[static_cast<size_t>(dtype)] = value;
  }
  return {};
}

Status read_machine(const Json& j, Machine& m) {
  m.name = j.at("name").get<std::string>();
  m.threads = j.at("threads").get<int>();
  m.memory_bytes_per_s = j.at("memory_bytes_per_s").get<double>();
  HR_TRY(read_rates(j, "matmul_per_s", m.matmul_per_s));
  HR_TRY(read_rates(j, "matvec_bytes_per_s", m.matvec_bytes_per_s));
  m.vector_per_s = j.at("vector_per_s").get<double>();
  m.op_overhead_ns = j.at("op_overhead_ns").get<Nanos>();
  m.tiers.clear();
  for (const Json& t : j.at("tiers")) {
    m.tiers.push_back({t.at("name").get<std::string>(), t.at("capacity").get<Bytes>(),
                       t.at("load_bytes_per_s").get<double>(),
                       t.at("store_bytes_per_s").get<double>(), t.at("latency_ns").get<Nanos>()});
  }
  return {};
}

}  // namespace

Result<Machine> machine_from_json(std::string_view source) {
  const Json j = Json::parse(source, nullptr, /*allow_exceptions=*/false);
  if (j.is_discarded()) return error(Code::kBadFile, "the machine file is not JSON");
  Machine m = Machine::defaults(1);
  try {
    HR_TRY(read_machine(j, m));
  } catch (const Json::exception& e) {
    return error(Code::kBadFile, "machine file: %s", e.what());
  }
  bool good = m.threads >= 1 && m.memory_bytes_per_s > 0 && m.vector_per_s > 0 &&
              m.op_overhead_ns >= 0 && m.tiers.size() >= 2;
  for (int i = 0; i < kDTypeCount; ++i) {
    good = good && m.matmul_per_s[static_cast<size_t>(i)] > 0 &&
           m.matvec_bytes_per_s[static_cast<size_t>(i)] > 0;
  }
  for (size_t i = 1; i < m.tiers.size(); ++i) {
    good = good && m.tiers[i].load_bytes_per_s > 0 && m.tiers[i].store_bytes_per_s > 0 &&
           m.tiers[i].latency_ns >= 0;
  }
  if (!good) {
    return error(Code::kBadFile, "machine file: every rate must be above zero and the tiers "
                                 "'device' and 'file' present");
  }
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

double attention_seconds(const Machine& m, const Op& op, const CostQuery& q) {
  const int64_t window = op.iattr(Attr::kWindow);
  const int64_t seen = window > 0 ? std::min(window, q.positions) : q.positions;
  const double kv_bytes = 4.0 * static_cast<double>(seen * op.iattr(Attr::kKvHeads) *
                                                    op.iattr(Attr::kHeadDim));
  // K and V, multiply-add each, for every query head.
  const double macs = 2.0 * static_cast<double>(q.rows * seen * op.iattr(Attr::kHeads) *
                                                op.iattr(Attr::kHeadDim));
  return std::max(kv_bytes / m.memory_bytes_per_s, macs / (8 * m.vector_per_s));
}

}  // namespace

Nanos op_cost(const Machine& m, const Graph& g, const Op& op, const CostQuery& q) {
  double seconds = 0;
  // After the selection of output rows an op has fewer rows than the step.
  const int64_t rows = std::min(q.rows, g.at(op.outputs[0]).rows);
  switch (op.kind) {
    case OpKind::kMatMul: seconds = matmul_seconds(m, g, op, rows); break;
    case OpKind::kAttention: seconds = attention_seconds(m, op, q); break;
    default:
      seconds = static_cast<double>(rows * g.at(op.outputs[0]).cols) / m.vector_per_s;
  }
  return m.op_overhead_ns + static_cast<Nanos>(seconds * 1e9);
}

}  // namespace headrace
