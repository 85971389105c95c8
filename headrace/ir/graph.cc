#include "headrace/ir/graph.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::array<const char*, 6> kRoles = {"weight",   "constant", "activation",
                                               "gathered", "state",    "output"};
constexpr std::array<const char*, kOpKindCount> kOps = {
    "embed",     "rope_table", "rms_norm",    "quantize",   "matmul", "rope_kv",
    "attention", "gated_act",  "add",         "select_rows", "softcap",
    "select_kv", "kernel"};
constexpr std::array<const char*, kAttrCount> kAttrs = {
    "scale",    "mscale",          "eps",            "add_one",  "col_begin",
    "heads",    "kv_heads",        "head_dim",       "rope_half_split",
    "segment_tokens", "segments",  "window",         "softcap",  "act",
    "segment_begin", "segment_count", "kv_format", "pool_blocks",
    "sparse_tokens",
    "seconds",  "flops",           "traffic",        "recompute",
    "row_begin", "sequence",       "positions",      "weights",  "bias",      "inverse",
    "probability", "stream",       "grad",           "max_norm", "beta1",     "beta2",
    "weight_decay", "momentum",    "group",
    "causal",   "first",           "channels",       "height",   "patch",
    "own_mean", "smoothing"};

constexpr std::array<const char*, kDataClassCount> kClasses = {
    "weight", "optimizer", "gradient", "activation", "kv", "input", "other"};

}  // namespace

const char* name_of(DataClass c) { return kClasses[static_cast<size_t>(c)]; }
const char* name_of(Role role) { return kRoles[static_cast<size_t>(role)]; }
const char* name_of(OpKind kind) { return kOps[static_cast<size_t>(kind)]; }
const char* name_of(Attr attr) { return kAttrs[static_cast<size_t>(attr)]; }

DataClass shown_class(const Tensor& t) {
  if (t.data_class != DataClass::kActivation) return t.data_class;
  switch (t.role) {
    case Role::kWeight:
    case Role::kGathered: return DataClass::kWeight;
    case Role::kConstant: return DataClass::kOther;
    case Role::kState: return t.slot.layer >= 0 ? DataClass::kKv : DataClass::kActivation;
    case Role::kActivation:
    case Role::kOutput: break;
  }
  return DataClass::kActivation;
}

Graph without_outputs(Graph graph) {
  std::vector<bool> needed(graph.tensors.size(), false);
  std::vector<Op> kept;
  for (auto op = graph.ops.rbegin(); op != graph.ops.rend(); ++op) {
    const bool read = std::any_of(op->outputs.begin(), op->outputs.end(),
                                  [&](TensorId id) { return needed[id.index()]; });
    if (op->updates.empty() && !read) continue;
    for (TensorId id : op->inputs) {
      if (id.valid()) needed[id.index()] = true;
    }
    kept.push_back(std::move(*op));
  }
  std::reverse(kept.begin(), kept.end());
  graph.ops = std::move(kept);
  graph.max_output_rows = 0;
  for (Tensor& t : graph.tensors) {
    if (t.role == Role::kOutput) t.role = Role::kActivation;
  }
  return graph;
}

}  // namespace headrace
