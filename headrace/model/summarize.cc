#include "headrace/model/build_graph.h"

namespace headrace {
namespace {

// The role of a weight by its name, for people.
const char* role_of(const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (name == "token_embd.weight") return "embedding";
  if (name == "output.weight") return "output";
  if (has("norm")) return "norm";
  if (has(".attn_")) return "attention";
  if (has(".ffn_")) return "feed_forward";
  return "other";
}

void count(const WeightInfo& weight, WeightTotal* total) {
  total->tensors += 1;
  total->parameters += weight.rows * weight.cols;
  total->bytes += weight.source.bytes;
}

}  // namespace

ModelSummary summarize(const ModelFile& model) {
  ModelSummary out;
  out.format = model.format;
  out.files = static_cast<int64_t>(model.paths.size());
  out.total.name = "total";
  std::vector<WeightTotal> types(kDTypeCount);
  std::vector<WeightTotal> roles;
  for (const char* name :
       {"embedding", "output", "attention", "feed_forward", "norm", "other"}) {
    roles.push_back({name});
  }
  for (const WeightInfo& weight : model.weights) {
    count(weight, &out.total);
    WeightTotal& type = types[static_cast<size_t>(weight.dtype)];
    type.name = name_of(weight.dtype);
    count(weight, &type);
    for (WeightTotal& role : roles) {
      if (role.name == role_of(weight.name)) count(weight, &role);
    }
  }
  for (const auto* from : {&types, &roles}) {
    for (const WeightTotal& total : *from) {
      if (total.tensors > 0)
        (from == &types ? out.by_type : out.by_role).push_back(total);
    }
  }
  return out;
}

}  // namespace headrace
