// A model that build_train_step() knows, written down as a captured forward pass.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "headrace/train/forward.h"
#include "headrace/train/step.h"

namespace headrace::test {

// Attributes by name, values and parameters by name, one micro-batch that is repeated where there
// are several of one size. Groups: 0 matrices and tables, 1 vectors.
inline nlohmann::json captured_json(const StepModel& model, const StepShape& shape) {
  using Json = nlohmann::json;
  Graph g;
  std::vector<Parameter> parameters = parameters_of(model);
  ForwardBuilder forward(model, shape, &parameters, &g);
  const size_t shared = g.tensors.size();
  // Without the "mb2." that the builder of micro-batches puts before them.
  const auto own = [](const std::string& name) {
    return name.starts_with("mb") ? name.substr(name.find('.') + 1) : name;
  };
  const bool even = shape.sequences % shape.micro_batches == 0;
  std::vector<size_t> ends;
  for (int64_t m = 0; m < shape.micro_batches; ++m) {
    for (int64_t stage = 0; stage < forward.stages(); ++stage) forward.add(stage, m);
    ends.push_back(g.ops.size());
  }
  Json out;
  out["headrace_forward"] = 1;
  out["name"] = model.name;
  out["precision"] = name_of(model.precision);
  out["rows"] = g.max_rows;
  out["sequences"] = shape.sequences;
  for (const Parameter& p : parameters) {
    if (p.row_begin > 0) continue;
    const bool vector = p.kind == ParameterKind::kVector;
    Json j = {{"name", p.name}, {"dtype", "f32"},
              {"trainable", p.trainable}, {"group", vector ? 1 : 0}};
    if (vector) {
      j["shape"] = {p.cols};
    } else if (p.transposed) {
      j["shape"] = {p.cols, p.rows};
      j["transposed"] = true;
    } else {
      j["shape"] = {p.rows, p.cols};
    }
    out["parameters"].push_back(j);
  }
  if (!model.gpt2()) out["constants"].push_back({{"name", "inv_freq"}, {"values", model.inv_freq}});
  size_t begin = 0;
  for (size_t m = 0; m < ends.size(); ++m) {
    Json ops;
    for (size_t i = begin; i < ends[m]; ++i) {
      const Op& op = g.ops[i];
      Json j = {{"op", op.kernel}, {"name", own(op.name)}};
      for (TensorId t : op.inputs) {
        // Tiles of a parameter are named once.
        std::string name = own(g.at(t).name);
        if (t.index() < shared && name.find(':') != std::string::npos) {
          if (!name.ends_with(":0")) continue;
          name.resize(name.size() - 2);
        }
        j["in"].push_back(name);
      }
      for (TensorId t : op.outputs) {
        j["out"].push_back({{"name", own(g.at(t).name)},
                            {"shape", {g.at(t).rows, g.at(t).cols}},
                            {"dtype", name_of(g.at(t).dtype)}});
      }
      for (const auto& [attr, value] : op.attrs) j["attrs"][name_of(attr)] = value;
      ops.push_back(j);
    }
    Json batch = {{"ops", ops}};
    if (even && ends.size() > 1) batch["repeat"] = shape.micro_batches;
    out["micro_batches"].push_back(batch);
    if (even) break;
    begin = ends[m];
  }
  return out;
}

// That config's, for the groups above.
inline nlohmann::json captured_optimizer(const OptimizerConfig& c) {
  nlohmann::json out = {{"kind", c.kind}, {"clip_norm", c.clip_norm}};
  for (const double decay : {c.weight_decay, 0.0}) {
    if (c.kind == "adamw") {
      out["groups"].push_back(
          {{"beta1", c.beta1}, {"beta2", c.beta2}, {"eps", c.eps}, {"weight_decay", decay}});
    } else {
      out["groups"].push_back({{"momentum", c.momentum}, {"weight_decay", decay}});
    }
  }
  return out;
}

}  // namespace headrace::test
