// The small steps of tests/data/oracle/steps.txt with their exact optima (format:
// tests/oracle/step_graphs.py), as workloads and the machine that they are solved for.
#pragma once

#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "headrace/plan/step_plan.h"

namespace headrace::testing {

struct OracleStep {
  std::string name, family;
  bool fixed = true;       // in the order given; otherwise in any order, and no op runs again
  bool closed = false;     // proven to 0.1 %
  Bytes budget = 0;
  double link = 0;         // bytes a second each way
  double optimum_s = 0;    // best found, of the closed ones the best there is
  double bound_s = 0;      // proven
  std::shared_ptr<Workload> workload = std::make_shared<Workload>();
};

inline std::vector<TensorId> oracle_ids(const std::string& list) {
  std::vector<TensorId> ids;
  std::istringstream in(list);
  for (std::string id; list != "-" && std::getline(in, id, ',');) ids.emplace_back(std::stoi(id));
  return ids;
}

// Empty when the file cannot be read.
inline std::vector<OracleStep> oracle_steps(const std::string& path) {
  std::vector<OracleStep> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string what;
    in >> what;
    if (what == "graph") {
      OracleStep& s = steps.emplace_back();
      std::string order, status;
      double budget = 0, link = 0, optimum = 0, bound = 0;
      in >> s.name >> s.family >> order >> budget >> link >> optimum >> bound >> status;
      s.fixed = order == "fixed";
      s.closed = status == "closed";
      s.budget = static_cast<Bytes>(budget) * kMiB;
      s.link = link * static_cast<double>(kMiB) * 1e3;
      s.optimum_s = optimum * 1e-3;
      s.bound_s = bound * 1e-3;
      s.workload->graph.name = s.name;
      continue;
    }
    if (steps.empty()) continue;
    Graph& g = steps.back().workload->graph;
    if (what == "t") {
      int64_t mib = 0;
      std::string kind;
      in >> mib >> kind;
      Tensor t;
      t.name = "t" + std::to_string(g.tensors.size());
      t.dtype = DType::kI8;
      t.cols = t.bytes = mib * kMiB;
      t.role = kind == "s" ? Role::kState : kind == "o" ? Role::kOutput : Role::kActivation;
      g.add(std::move(t));
    } else if (what == "op") {
      double ms = 0;
      int64_t workspace = 0;
      int again = 1;
      std::string ins, outs, ups;
      in >> ms >> workspace >> again >> ins >> outs >> ups;
      Op op;
      op.kind = OpKind::kKernel;
      op.name = "op" + std::to_string(g.ops.size());
      op.kernel = "k";
      op.attrs[Attr::kSeconds] = ms * 1e-3;
      if (again == 0) op.attrs[Attr::kRecompute] = 0;
      op.workspace = workspace * kMiB;
      op.inputs = oracle_ids(ins);
      op.outputs = oracle_ids(outs);
      op.updates = oracle_ids(ups);
      g.ops.push_back(std::move(op));
    }
  }
  return steps;
}

// A device and a host behind a duplex link of `bytes_per_s` each way.
inline Machine two_tiers(double bytes_per_s) {
  Machine m = Machine::defaults(1);
  m.name = "device and host";
  m.op_overhead_ns = 0;
  TierInfo device{"device", 0, 0, 0, 0};
  TierInfo host{"host", Bytes{1} << 50, bytes_per_s, bytes_per_s, 0, true};
  m.tiers = {device, host};
  return m;
}

inline StepRequest request_of(const OracleStep& s, const Machine& machine) {
  StepRequest r;
  r.name = s.name;
  r.workload = s.workload;
  r.machine = &machine;
  r.budget = s.budget;
  r.reorder = !s.fixed;
  r.recompute = s.fixed;
  return r;
}

}  // namespace headrace::testing
