#include "headrace/train/backward.h"

#include <algorithm>

namespace headrace {

Backward::Backward(Graph* graph, std::vector<Parameter>* parameters)
    : g_(*graph), parameters_(*parameters) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].trainable) trainable_[parameters_[i].param] = i;
  }
}

// What each op's gradient needs of the forward pass:
//   hr.linear     x (for its weight's), the weights (for x's)     hr.norm       x, stat, weight
//   hr.attention  qkv, o, lse                                     hr.act        x
//   hr.qk_norm    qkv, stat, both weights                         hr.loss       is fused
//   hr.scale      x (for its weight's), weight
//   hr.embed, hr.prefix, hr.select, hr.mean_rows, hr.columns, hr.dropout, hr.rope, hr.add: nothing
const std::vector<Backward::Rule>& Backward::rules() {
  static const std::vector<Rule> kRules = {
      {"hr.embed", &Backward::embed},         {"hr.linear", &Backward::linear},
      {"hr.norm", &Backward::norm},           {"hr.rope", &Backward::rope},
      {"hr.attention", &Backward::attention}, {"hr.act", &Backward::act},
      {"hr.dropout", &Backward::dropout},     {"hr.add", &Backward::add},
      {"hr.loss", &Backward::loss},           {"hr.prefix", &Backward::prefix},
      {"hr.select", &Backward::select},       {"hr.mean_rows", &Backward::select},
      {"hr.qk_norm", &Backward::qk_norm},     {"hr.columns", &Backward::columns},
      {"hr.scale", &Backward::scale},
  };
  return kRules;
}

Status Backward::run(size_t begin, size_t end) {
  find_needs();
  for (size_t i = end; i-- > begin;) {
    const Op op = g_.ops[i];  // a copy: ops are added below
    const bool wanted = std::any_of(op.outputs.begin(), op.outputs.end(),
                                    [&](TensorId t) { return needs(t); });
    if (!wanted) continue;
    const auto rule = std::find_if(rules().begin(), rules().end(),
                                   [&](const Rule& r) { return r.kernel == op.kernel; });
    if (rule == rules().end()) {
      return error(Code::kUnsupported, "op '%s': '%s' has no gradient", op.name.c_str(),
                   op.kernel.c_str());
    }
    at_ = i;
    (this->*rule->emit)(op);
    HR_TRY(failed_);
  }
  return {};
}

// ---- one rule an op ---------------------------------------------------------------------------

// Tables and positions are two ops where one has its first part and the other has not: the output
// products of tied embeddings come first.
void Backward::embed(const Op& op) {
  const TensorId dx = gradient(op.outputs[0]);
  if (!dx.valid()) return;
  std::vector<TensorId> tables = op.inputs;
  const bool positions = op.iattr(Attr::kPositions) > 0;
  if (positions) tables.pop_back();
  for (const bool of_positions : {false, true}) {
    if (of_positions && !positions) continue;
    const std::vector<TensorId> weights =
        of_positions ? std::vector<TensorId>{op.inputs.back()} : tables;
    if (!trained(weights[0])) continue;
    Op d = like(op, "hr.embed_grad", of_positions ? ".dpositions" : ".dtable");
    d.inputs = {dx};
    for (const Attr a : {Attr::kRowBegin, Attr::kSequence, Attr::kFirst}) d.attrs[a] = op.attr(a);
    d.attrs[Attr::kPositions] = of_positions ? 1 : 0;
    set_targets(&d, weights);
    g_.ops.push_back(std::move(d));
  }
}

void Backward::prefix(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  const auto weights = static_cast<size_t>(op.iattr(Attr::kWeights));
  int64_t first = 0;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    const TensorId w = op.inputs[i];
    const bool table = i > weights;
    if (trained(w)) {
      Op d = like(op, "hr.prefix_grad", "");
      d.name = op.name + (table ? std::string(".dpositions") : text_of(".dw%zu", i));
      d.inputs = {dy};
      d.attrs = {{Attr::kSequence, op.attr(Attr::kSequence)},
                 {Attr::kFirst, table ? 0.0 : static_cast<double>(first)},
                 {Attr::kPositions, table ? 1.0 : 0.0}};
      set_targets(&d, {w});
      g_.ops.push_back(std::move(d));
    }
    if (!table) first += g_.at(w).rows;
  }
  const TensorId x = op.inputs[0];
  if (!needs(x)) return;
  if (first == 0) return contribute(x, dy);
  Op d = like(op, "hr.select", ".dx");
  d.inputs = {dy};
  d.attrs = {{Attr::kSequence, op.attr(Attr::kSequence)},
             {Attr::kFirst, static_cast<double>(first)}};
  emit_dx(std::move(d), x, false);
}

// hr.select and hr.mean_rows.
void Backward::select(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  Op d = like(op, op.kernel == "hr.select" ? "hr.select_grad" : "hr.mean_rows_grad", ".d");
  d.inputs = {dy};
  d.attrs = op.attrs;
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::columns(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  Op d = like(op, "hr.columns_grad", ".d");
  d.inputs = {dy, op.inputs[1]};
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::scale(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  if (op.inputs.size() > 1 && trained(op.inputs[1])) {
    Op d = like(op, "hr.scale_dw", ".dw");
    d.inputs = {dy, op.inputs[0]};
    d.attrs = {{Attr::kScale, op.attr(Attr::kScale)}};
    set_targets(&d, {op.inputs[1]});
    g_.ops.push_back(std::move(d));
  }
  Op d = like(op, "hr.scale", ".dx");
  d.inputs = op.inputs;
  d.inputs[0] = dy;
  d.attrs = {{Attr::kScale, op.attr(Attr::kScale)}};
  emit_dx(std::move(d), op.inputs[0], false);
}

// The weights' first, since then x may go before dx comes.
void Backward::linear(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  const auto weights = static_cast<size_t>(op.iattr(Attr::kWeights));
  const bool biased = op.iattr(Attr::kBias) > 0;
  const TensorId x = op.inputs[0];
  const size_t plain = 1 + weights * (biased ? 2 : 1);
  if (op.inputs.size() > plain && needs(op.inputs[plain])) contribute(op.inputs[plain], dy);
  int64_t col = op.iattr(Attr::kColBegin);
  for (size_t i = 1; i <= weights; ++i) {
    const TensorId w = op.inputs[i];
    const TensorId b = biased ? op.inputs[i + weights] : TensorId();
    const bool bias = b.valid() && trained(b);
    if (trained(w) || bias) {
      Op d = like(op, "hr.linear_dw", "");
      d.name = op.name + (weights > 1 ? text_of(".dw%zu", i) : ".dw");
      d.inputs = {dy, x};
      d.attrs = {{Attr::kBias, bias ? 1 : 0},
                 {Attr::kScale, op.attr(Attr::kScale)},
                 {Attr::kColBegin, static_cast<double>(col)}};
      set_targets(&d, bias ? std::vector{w, b} : std::vector{w});
      g_.ops.push_back(std::move(d));
    }
    col += g_.at(w).rows;
  }
  if (!needs(x)) return;
  Op d = like(op, "hr.linear_dx", ".dx");
  d.inputs = {dy};
  d.inputs.insert(d.inputs.end(), op.inputs.begin() + 1,
                  op.inputs.begin() + 1 + static_cast<std::ptrdiff_t>(weights));
  for (const Attr a : {Attr::kWeights, Attr::kScale, Attr::kColBegin}) d.attrs[a] = op.attr(a);
  emit_dx(std::move(d), x, true);
}

void Backward::norm(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  const TensorId x = op.inputs[0], weight = op.inputs[1], stat = op.outputs[1];
  const bool bias = op.inputs.size() > 2 && trained(op.inputs[2]);
  if (trained(weight) || bias) {
    Op d = like(op, "hr.norm_dw", ".dw");
    d.inputs = {dy, x, stat};
    d.attrs = {{Attr::kAct, op.attr(Attr::kAct)}, {Attr::kBias, bias ? 1 : 0}};
    set_targets(&d, bias ? std::vector{weight, op.inputs[2]} : std::vector{weight});
    g_.ops.push_back(std::move(d));
  }
  if (!needs(x)) return;
  Op d = like(op, "hr.norm_dx", ".dx");
  d.inputs = {dy, x, weight, stat};
  d.attrs = {{Attr::kAct, op.attr(Attr::kAct)}, {Attr::kAddOne, op.attr(Attr::kAddOne)}};
  emit_dx(std::move(d), x, true);
}

void Backward::qk_norm(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  const TensorId x = op.inputs[0], q = op.inputs[1], k = op.inputs[2], stat = op.outputs[1];
  const auto with_attrs = [&](const char* kernel, const char* suffix) {
    Op d = like(op, kernel, suffix);
    for (const Attr a : {Attr::kHeads, Attr::kKvHeads, Attr::kHeadDim, Attr::kAct}) {
      d.attrs[a] = op.attr(a);
    }
    return d;
  };
  if (trained(q) || trained(k)) {
    Op d = with_attrs("hr.qk_norm_dw", ".dw");
    d.inputs = {dy, x, stat};
    set_targets(&d, {q, k});
    g_.ops.push_back(std::move(d));
  }
  Op d = with_attrs("hr.qk_norm_dx", ".dx");
  d.attrs[Attr::kAddOne] = op.attr(Attr::kAddOne);
  d.inputs = {dy, x, q, k, stat};
  emit_dx(std::move(d), x, false);
}

void Backward::rope(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  Op d = like(op, "hr.rope", ".d");
  d.inputs = {dy, op.inputs[1]};
  d.attrs = op.attrs;
  d.attrs[Attr::kInverse] = 1 - op.attr(Attr::kInverse);
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::attention(const Op& op) {
  const TensorId dout = gradient(op.outputs[0]);
  if (!dout.valid()) return;
  Op d = like(op, "hr.attention_grad", ".d");
  d.inputs = {dout, op.inputs[0], op.outputs[0], op.outputs[1]};
  d.attrs = op.attrs;
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::act(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  Op d = like(op, "hr.act_grad", ".d");
  d.inputs = {dy, op.inputs[0]};
  d.attrs = op.attrs;
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::dropout(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  Op d = like(op, "hr.dropout", ".d");
  d.inputs = {dy};
  d.attrs = op.attrs;
  emit_dx(std::move(d), op.inputs[0], false);
}

void Backward::add(const Op& op) {
  const TensorId dy = gradient(op.outputs[0]);
  if (!dy.valid()) return;
  for (const TensorId x : op.inputs) {
    if (needs(x)) contribute(x, dy);
  }
}

// The op itself is made to write its gradients.
void Backward::loss(const Op& op) {
  const TensorId x = op.inputs[0];
  // Tiles and, if there are any, biases; not the weights of rows.
  const std::ptrdiff_t of_rows = op.iattr(Attr::kWeights) > 0 ? 1 : 0;
  const std::vector<TensorId> weights(op.inputs.begin() + 1, op.inputs.end() - of_rows);
  const bool table =
      std::any_of(weights.begin(), weights.end(), [&](TensorId w) { return trained(w); });
  Op whole = op;
  whole.attrs[Attr::kGrad] = table ? 2 : 1;
  const TensorId dx = contribution(x);
  whole.outputs.push_back(dx);
  if (table) set_targets(&whole, weights);
  g_.ops[at_] = std::move(whole);
  if (needs(x)) contribute(x, dx);
}

// ---- gradients --------------------------------------------------------------------------------

void Backward::find_needs() {
  needs_.resize(g_.tensors.size(), false);
  for (; seen_ < g_.ops.size(); ++seen_) {
    const Op& op = g_.ops[seen_];
    const bool leads = std::any_of(op.inputs.begin(), op.inputs.end(), [&](TensorId t) {
      return needs_[t.index()] || trained(t);
    });
    for (const TensorId t : op.outputs) needs_[t.index()] = needs_[t.index()] || leads;
  }
}

bool Backward::trained(TensorId weight) const { return trainable_.contains(weight); }

TensorId Backward::gradient(TensorId t) const {
  return t.index() < gradients_.size() ? gradients_[t.index()] : TensorId();
}

TensorId Backward::contribution(TensorId of) {
  if (parts_.size() < g_.tensors.size()) parts_.resize(g_.tensors.size(), 0);
  const int part = ++parts_[of.index()];
  Tensor t;
  t.name = g_.at(of).name + (part == 1 ? ".d" : text_of(".d%d", part));
  t.dtype = g_.at(of).dtype;
  t.rows = g_.at(of).rows;
  t.cols = g_.at(of).cols;
  t.bytes = g_.at(of).bytes;
  needs_.push_back(false);
  return g_.add(std::move(t));
}

void Backward::contribute(TensorId t, TensorId d) {
  if (gradients_.size() < g_.tensors.size()) gradients_.resize(g_.tensors.size());
  const TensorId before = gradients_[t.index()];
  if (!before.valid()) {
    gradients_[t.index()] = d;
    return;
  }
  Op sum;
  sum.kind = OpKind::kKernel;
  sum.kernel = "hr.add";
  sum.name = g_.at(t).name + ".dsum";
  sum.inputs = {before, d};
  sum.outputs = {contribution(t)};
  gradients_.resize(g_.tensors.size());
  gradients_[t.index()] = sum.outputs[0];
  g_.ops.push_back(std::move(sum));
}

void Backward::emit_dx(Op op, TensorId t, bool fuses) {
  if (!needs(t)) return;
  const TensorId before = gradient(t);
  const TensorId dx = contribution(t);
  op.outputs = {dx};
  if (fuses && before.valid()) {
    op.inputs.push_back(before);
    g_.ops.push_back(std::move(op));
    gradients_[t.index()] = dx;
    return;
  }
  g_.ops.push_back(std::move(op));
  contribute(t, dx);
}

void Backward::set_targets(Op* op, const std::vector<TensorId>& weights) {
  const bool first = !targets_.contains(weights[0]);
  for (const TensorId w : weights) {
    if (targets_.contains(w) == first) {
      failed_ = error(Code::kUnsupported,
                      "op '%s': '%s' and '%s' are used together here and not elsewhere, or twice",
                      op->name.c_str(), g_.at(weights[0]).name.c_str(), g_.at(w).name.c_str());
      return;
    }
    if (first) {
      Tensor t;
      t.name = g_.at(w).name + ".grad";
      t.rows = g_.at(w).rows;
      t.cols = g_.at(w).cols;
      t.bytes = t.rows * row_bytes(t.dtype, t.cols);
      t.data_class = DataClass::kGradient;
      needs_.push_back(false);
      targets_[w] = g_.add(std::move(t));
      if (trained(w)) parameters_[trainable_.at(w)].gradient = targets_.at(w);
    }
    (first ? op->outputs : op->updates).push_back(targets_.at(w));
  }
  op->attrs[Attr::kRecompute] = 0;  // a second run would count its part twice
}

Op Backward::like(const Op& forward, const char* kernel, const char* suffix) const {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = kernel;
  op.name = forward.name + suffix;
  return op;
}

}  // namespace headrace
