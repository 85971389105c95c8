// Workloads written in our format.
#include "headrace/base/json_fields.h"
#include "headrace/model/workload.h"

namespace headrace {

using Json = nlohmann::ordered_json;

namespace {

std::string dumped(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

void write_rule(const PlacementRule& rule, Json* j) {
  if (rule.pinned) (*j)["pinned"] = true;
  if (!rule.recompute) (*j)["recompute"] = false;
  if (!rule.forbidden_tiers.empty()) (*j)["forbidden_tiers"] = rule.forbidden_tiers;
  for (const Codec codec : rule.codecs) (*j)["codecs"].push_back(name_of(codec));
  if (rule.remote) {
    (*j)["remote_memory"] = {{"max_size", rule.remote_max_bytes},
                             {"prefetch_priority", rule.prefetch_priority}};
  }
}

Json tensor_json(const Tensor& t, const PlacementRule* rule) {
  HR_CHECK(t.role != Role::kConstant && t.role != Role::kGathered,
           "a workload holds no constants and no gathered rows");
  Json j;
  j["name"] = t.name;
  if (t.dtype == DType::kI8 && t.rows == 1) {
    j["bytes"] = t.bytes;
  } else {
    j["dtype"] = name_of(t.dtype);
    j["shape"] = {t.rows, t.cols};
  }
  j["class"] = name_of(t.data_class);
  if (t.role == Role::kState) j["persistent"] = true;
  if (t.role == Role::kOutput) j["output"] = true;
  if (t.slot.layer >= 0) j["kv"] = {t.slot.layer, t.slot.sequence, t.slot.segment};
  if (t.role == Role::kWeight) {
    j["file"] = t.source.file;
    j["offset"] = t.source.offset;
  }
  if (rule != nullptr) write_rule(*rule, &j);
  return j;
}

Json op_json(const Graph& g, const Op& op) {
  HR_CHECK(op.kind == OpKind::kKernel, "a workload's ops are kernels");
  Json j;
  j["name"] = op.name;
  j["kernel"] = op.kernel;
  const auto operands = [&](const char* key, const std::vector<TensorId>& ids) {
    for (const TensorId id : ids) j[key].push_back(g.at(id).name);
  };
  operands("inputs", op.inputs);
  operands("outputs", op.outputs);
  operands("updates", op.updates);
  for (const Attr attr : {Attr::kSeconds, Attr::kFlops, Attr::kTraffic}) {
    if (op.attrs.contains(attr)) j[name_of(attr)] = json_number(op.attr(attr));
  }
  if (op.workspace > 0) j["workspace"] = op.workspace;
  if (op.iattr(Attr::kRecompute, 1) == 0) j["recompute"] = false;
  return j;
}

}  // namespace

std::string to_workload_json(const Workload& workload) {
  const Graph& g = workload.graph;
  std::vector<const PlacementRule*> rules(g.tensors.size(), nullptr);
  for (const PlacementRule& rule : workload.rules) rules[rule.tensor.index()] = &rule;
  std::string out = "{\"headrace_workload\": 1,\n \"name\": " + dumped(Json(g.name)) +
                    ",\n \"cyclic\": " + (workload.cyclic ? "true" : "false") +
                    ",\n \"tensors\": [";
  for (size_t t = 0; t < g.tensors.size(); ++t) {
    out += (t == 0 ? "\n  " : ",\n  ") + dumped(tensor_json(g.tensors[t], rules[t]));
  }
  out += "\n ],\n \"ops\": [";
  for (size_t o = 0; o < g.ops.size(); ++o) {
    out += (o == 0 ? "\n  " : ",\n  ") + dumped(op_json(g, g.ops[o]));
  }
  return out + "\n ]}\n";
}

}  // namespace headrace
