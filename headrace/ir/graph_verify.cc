// verify(Graph): every promise of graph.h, op by op, without sharing code with the builders.
#include <set>

#include "headrace/ir/graph.h"

namespace headrace {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : g_(graph), columns_(graph.tensors.size()) {}

  Status run() {
    HR_TRY(check_tensors());
    for (const Op& op : g_.ops) {
      Status s = check_op(op);
      if (!s.ok()) return s.within(std::string("op ") + name_of(op.kind) + " '" + op.name + "'");
    }
    return check_outputs();
  }

 private:
  Status bad(const char* what, const std::string& name) {
    return error(Code::kBadFile, "%s: '%s'", what, name.c_str());
  }

  Status check_tensors() {
    std::set<std::string> names;
    for (const Tensor& t : g_.tensors) {
      if (!names.insert(t.name).second) return bad("two tensors have the same name", t.name);
      if (t.rows <= 0 || t.cols <= 0) return bad("tensor without elements", t.name);
      if (t.role == Role::kWeight) {
        if (!t.source.valid()) return bad("weight without a file extent", t.name);
        if (t.source.bytes != t.bytes) return bad("weight and file extent differ", t.name);
      }
      if (t.role == Role::kGathered) {
        if (!t.source.valid()) return bad("gathered rows without a table", t.name);
        if (t.bytes != t.rows * gathered_row_stride(t)) {
          return bad("gathered rows with the wrong size", t.name);
        }
      } else if (t.role != Role::kState &&
                 t.bytes != t.rows * row_bytes(t.dtype, t.cols)) {
        return bad("bytes do not match shape and type", t.name);
      }
      if (t.role == Role::kConstant &&
          (t.dtype != DType::kF32 ||
           t.constant.size() != static_cast<size_t>(t.rows * t.cols))) {
        return bad("constant without its values", t.name);
      }
    }
    return {};
  }

  bool is_source(const Tensor& t) const {
    return t.role == Role::kWeight || t.role == Role::kConstant || t.role == Role::kGathered ||
           t.role == Role::kState;
  }

  Status check_id(TensorId id, bool optional) {
    if (!id.valid() && optional) return {};
    if (!id.valid() || id.index() >= g_.tensors.size()) {
      return error(Code::kBadFile, "operand t%d does not exist", id.value);
    }
    return {};
  }

  Status check_input(TensorId id) {
    const Tensor& t = g_.at(id);
    if (is_source(t)) return {};
    if (columns_[id.index()] != t.cols) return bad("input is not fully written yet", t.name);
    return {};
  }

  Status write_columns(TensorId id, int64_t begin, int64_t count) {
    const Tensor& t = g_.at(id);
    if (is_source(t)) return bad("a source cannot be written", t.name);
    // Column ranges come in ascending order, so that "disjoint and complete" is one counter.
    if (columns_[id.index()] != begin) return bad("columns written twice or out of order", t.name);
    columns_[id.index()] += count;
    if (columns_[id.index()] > t.cols) return bad("columns past the end", t.name);
    return {};
  }

  Status check_op(const Op& op) {
    const size_t required = required_inputs(op);
    if (op.inputs.size() < required) return error(Code::kBadFile, "too few inputs");
    if (op.outputs.size() != 1) return error(Code::kBadFile, "not exactly one output");
    if (op.workspace < 0) return error(Code::kBadFile, "negative workspace");
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      HR_TRY(check_id(op.inputs[i], i >= required));
      if (op.inputs[i].valid()) HR_TRY(check_input(op.inputs[i]));
    }
    for (TensorId id : op.updates) {
      HR_TRY(check_id(id, false));
      if (g_.at(id).role != Role::kState) return bad("an update of no state", g_.at(id).name);
    }
    HR_TRY(check_id(op.outputs[0], false));
    HR_TRY(check_shapes(op));
    if (op.kind == OpKind::kMatMul) {
      return write_columns(op.outputs[0], op.iattr(Attr::kColBegin), g_.at(op.inputs[1]).rows);
    }
    return write_columns(op.outputs[0], 0, g_.at(op.outputs[0]).cols);
  }

  static size_t required_inputs(const Op& op) {
    switch (op.kind) {
      case OpKind::kRmsNorm:
      case OpKind::kMatMul:
      case OpKind::kRopeKv:
      case OpKind::kAttention:
      case OpKind::kAdd: return 2;
      default: return 1;
    }
  }

  Status need(bool holds, const char* what) {
    return holds ? Status() : error(Code::kBadFile, "%s", what);
  }

  Status check_shapes(const Op& op) {
    const Tensor& in = g_.at(op.inputs[0]);
    const Tensor& out = g_.at(op.outputs[0]);
    switch (op.kind) {
      case OpKind::kEmbed:
        return need(in.cols == out.cols, "table and output differ in columns");
      case OpKind::kRopeTable:
        return need(2 * in.cols == out.cols, "rope table is not twice inv_freq");
      case OpKind::kMatMul: return check_matmul(op);
      case OpKind::kRopeKv:
      case OpKind::kAttention: return check_attention(op);
      case OpKind::kGatedAct:
        return need(in.cols == 2 * out.cols, "gate_up is not twice the output");
      case OpKind::kQuantize:
        HR_TRY(need(out.dtype == DType::kActQ8, "output is not act_q8"));
        [[fallthrough]];
      case OpKind::kRmsNorm:
      case OpKind::kAdd:
      case OpKind::kSelectRows:
      case OpKind::kSoftcap:
        return need(in.cols == out.cols, "input and output differ in columns");
    }
    return {};
  }

  Status check_matmul(const Op& op) {
    const Tensor& a = g_.at(op.inputs[0]);
    const Tensor& w = g_.at(op.inputs[1]);
    const Tensor& y = g_.at(op.outputs[0]);
    HR_TRY(need(a.cols == w.cols, "inner dimensions differ"));
    HR_TRY(need(info(w.dtype).quantised == (a.dtype == DType::kActQ8),
                "activation type does not suit the weight type"));
    for (size_t i = 2; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid()) continue;
      HR_TRY(need(g_.at(op.inputs[i]).cols == y.cols, "bias or residual of other width"));
    }
    return need(a.rows == y.rows, "input and output differ in rows");
  }

  Status check_attention(const Op& op) {
    const int64_t heads = op.iattr(Attr::kHeads), kv = op.iattr(Attr::kKvHeads);
    const int64_t dim = op.iattr(Attr::kHeadDim);
    HR_TRY(need(heads > 0 && kv > 0 && dim > 0 && heads % kv == 0, "heads do not divide"));
    HR_TRY(need(op.iattr(Attr::kSegmentTokens) % 64 == 0, "segments are not whole tiles of 64"));
    const int64_t q_cols = heads * dim;
    HR_TRY(need(g_.at(op.outputs[0]).cols == q_cols, "output is not heads x head_dim"));
    if (op.kind == OpKind::kAttention) {
      HR_TRY(need(g_.at(op.inputs[0]).cols == q_cols, "q is not heads x head_dim"));
      return check_slots(op, std::vector<TensorId>(op.inputs.begin() + 1, op.inputs.end()));
    }
    HR_TRY(need(g_.at(op.inputs[0]).cols == q_cols + 2 * kv * dim, "qkv has the wrong width"));
    return check_slots(op, op.updates);
  }

  Status check_slots(const Op& op, const std::vector<TensorId>& slots) {
    const int64_t segments = op.iattr(Attr::kSegments);
    HR_TRY(need(segments > 0 && slots.size() % static_cast<size_t>(segments) == 0,
                "KV slots are not whole sequences"));
    for (size_t i = 0; i < slots.size(); ++i) {
      HR_TRY(check_id(slots[i], false));
      const KvSlot& s = g_.at(slots[i]).slot;
      const int64_t want = static_cast<int64_t>(i);
      HR_TRY(need(s.sequence == want / segments && s.segment == want % segments,
                  "KV slots are out of order"));
    }
    return {};
  }

  Status check_outputs() {
    for (size_t i = 0; i < g_.tensors.size(); ++i) {
      const Tensor& t = g_.tensors[i];
      if (t.role == Role::kOutput && columns_[i] != t.cols) {
        return bad("output is never fully written", t.name);
      }
    }
    return {};
  }

  const Graph& g_;
  std::vector<int64_t> columns_;  // by tensor: columns written so far
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace headrace
