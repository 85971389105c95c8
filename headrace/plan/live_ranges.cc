#include <algorithm>

#include "headrace/plan/passes.h"

namespace headrace::plan {
namespace {

bool in_activation_region(Role role) {
  return role != Role::kWeight && role != Role::kState;
}

Buffer buffer_of(const Graph& graph, TensorId id) {
  const Tensor& t = graph.at(id);
  Buffer b;
  b.tensor = id;
  b.bytes = device_bytes(t);
  if (t.role == Role::kGathered) b.alignment = kPage;
  return b;
}

// A matmul that adds a residual may write over it, when from its first tile on nobody else reads
// the residual: no other op, nor a tile as its left operand.
void share_residuals(const Graph& graph, const std::vector<int32_t>& index,
                     std::vector<Buffer>& buffers) {
  for (const Op& op : graph.ops) {
    if (op.kind != OpKind::kMatMul || op.inputs.size() < 4 || !op.inputs[3].valid()) continue;
    Buffer& y = buffers[static_cast<size_t>(index[op.outputs[0].index()])];
    const int32_t r = index[op.inputs[3].index()];
    if (r < 0 || y.shares >= 0) continue;
    const Buffer& residual = buffers[static_cast<size_t>(r)];
    const Role role = graph.at(residual.tensor).role;
    if (residual.bytes != y.bytes || role != Role::kActivation) continue;
    bool safe = true;
    for (int32_t o = y.first; o <= residual.last; ++o) {
      const Op& reader = graph.ops[static_cast<size_t>(o)];
      for (size_t i = 0; i < reader.inputs.size(); ++i) {
        if (reader.inputs[i] != residual.tensor) continue;
        if (reader.outputs.empty() || reader.outputs[0] != y.tensor || i != 3) safe = false;
      }
    }
    if (safe) y.shares = r;
  }
}

}  // namespace

std::vector<Buffer> live_ranges(const Graph& graph) {
  std::vector<int32_t> index(graph.tensors.size(), -1);
  std::vector<Buffer> buffers;
  const int32_t ops = static_cast<int32_t>(graph.ops.size());
  for (int32_t o = 0; o < ops; ++o) {
    const Op& op = graph.ops[static_cast<size_t>(o)];
    for (const auto* list : {&op.inputs, &op.outputs, &op.updates}) {
      for (TensorId id : *list) {
        if (!id.valid() || !in_activation_region(graph.at(id).role)) continue;
        int32_t& at = index[id.index()];
        if (at < 0) {
          at = static_cast<int32_t>(buffers.size());
          buffers.push_back(buffer_of(graph, id));
          // Constants are written when the Program is entered, gathered rows from the start on.
          const Role role = graph.at(id).role;
          buffers.back().first =
              role == Role::kConstant || role == Role::kGathered ? 0 : o;
        }
        Buffer& b = buffers[static_cast<size_t>(at)];
        const Role role = graph.at(id).role;
        b.last = role == Role::kConstant || role == Role::kOutput ? ops - 1 : o;
      }
    }
    if (op.workspace > 0) {
      Buffer b;
      b.op = OpId(o);
      b.bytes = round_up(op.workspace, kLine);
      b.first = b.last = o;
      buffers.push_back(b);
    }
  }
  share_residuals(graph, index, buffers);
  return buffers;
}

}  // namespace headrace::plan
