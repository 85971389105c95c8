// That a workload's ops can run in the order in which they are listed.
#include <algorithm>

#include "headrace/model/file_reader.h"
#include "headrace/model/workload_parts.h"

namespace headrace::workload {

namespace {

constexpr Bytes kMostTotalBytes = Bytes{1} << 60;

class OrderCheck {
 public:
  explicit OrderCheck(const Graph& graph) : g_(graph), writer_(graph.tensors.size(), -1) {}

  Status run() {
    HR_TRY(check_total());
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      for (const TensorId id : g_.ops[o].outputs) HR_TRY(write(id, static_cast<int32_t>(o)));
    }
    for (size_t o = 0; o < g_.ops.size(); ++o) {
      for (const TensorId id : g_.ops[o].inputs) HR_TRY(read(id, static_cast<int32_t>(o)));
      for (const TensorId id : g_.ops[o].updates) HR_TRY(read(id, static_cast<int32_t>(o)));
    }
    return {};
  }

 private:
  Status check_total() const {
    Bytes total = 0;
    for (const Tensor& t : g_.tensors) {
      total += t.bytes;
      if (total > kMostTotalBytes) {
        return error(Code::kBadFile, "the tensors up to '%s' are more than 2^60 bytes",
                     printable(t.name).c_str());
      }
    }
    for (const Op& op : g_.ops) {
      total += op.workspace;
      if (total > kMostTotalBytes) {
        return error(Code::kBadFile,
                     "tensors and workspaces up to op '%s' are more than 2^60 bytes",
                     printable(op.name).c_str());
      }
    }
    return {};
  }

  bool there_at_entry(TensorId id) const {
    return g_.at(id).role == Role::kState || g_.at(id).role == Role::kWeight;
  }

  Status write(TensorId id, int32_t op) {
    int32_t& writer = writer_[id.index()];
    if (there_at_entry(id)) {
      return op_error(op,
                      "writes tensor '%s', which is there before the step: list it under "
                      "'updates'",
                      id);
    }
    if (writer >= 0) {
      return error(
          Code::kBadFile,
          "tensor '%s' is written by op '%s' and again by op '%s': give the second a tensor "
          "of its own, or list it under 'updates'",
          printable(g_.at(id).name).c_str(), op_name(writer).c_str(), op_name(op).c_str());
    }
    writer = op;
    return {};
  }

  Status read(TensorId id, int32_t op) {
    if (there_at_entry(id)) return {};
    const int32_t writer = writer_[id.index()];
    if (writer >= 0 && writer < op) return {};
    if (writer < 0) {
      return op_error(op,
                      "reads tensor '%s', which no op writes: mark it persistent, or add an op "
                      "that writes it",
                      id);
    }
    if (writer == op) {
      return op_error(op, "both reads and writes tensor '%s': list it under 'updates' alone", id);
    }
    const std::string cycle = find_cycle();
    if (!cycle.empty()) return error(Code::kBadFile, "the ops form a cycle: %s", cycle.c_str());
    return op_error(op,
                    ("reads tensor '%s', which op '" + op_name(writer) +
                     "' writes only later: list ops in an order in which they can run")
                        .c_str(),
                    id);
  }

  std::string op_name(int32_t op) const { return printable(g_.ops[static_cast<size_t>(op)].name); }

  // `what` holds one %s, for the tensor's name.
  Status op_error(int32_t op, const char* what, TensorId id) const {
    std::string text = what;
    text.replace(text.find("%s"), 2, printable(g_.at(id).name));
    return error(Code::kBadFile, "op '%s' %s", op_name(op).c_str(), text.c_str());
  }

  // Writers of what `op` reads.
  std::vector<int32_t> needs(int32_t op) const {
    std::vector<int32_t> out;
    const Op& o = g_.ops[static_cast<size_t>(op)];
    for (const auto* list : {&o.inputs, &o.updates}) {
      for (const TensorId id : *list) {
        if (!there_at_entry(id) && writer_[id.index()] >= 0) out.push_back(writer_[id.index()]);
      }
    }
    return out;
  }

  // A cycle in words; empty when some order of the ops works. (Kahn, 1962: ops whose needs are
  // done are done; what is left has a cycle, found by walking from need to need.)
  std::string find_cycle() const {
    const size_t n = g_.ops.size();
    std::vector<int32_t> missing(n, 0);
    std::vector<std::vector<int32_t>> users(n);
    for (size_t o = 0; o < n; ++o) {
      for (const int32_t need : needs(static_cast<int32_t>(o))) {
        ++missing[o];
        users[static_cast<size_t>(need)].push_back(static_cast<int32_t>(o));
      }
    }
    std::vector<int32_t> ready;
    for (size_t o = 0; o < n; ++o) {
      if (missing[o] == 0) ready.push_back(static_cast<int32_t>(o));
    }
    while (!ready.empty()) {
      const int32_t op = ready.back();
      ready.pop_back();
      for (const int32_t user : users[static_cast<size_t>(op)]) {
        if (--missing[static_cast<size_t>(user)] == 0) ready.push_back(user);
      }
    }
    const auto left = std::find_if(missing.begin(), missing.end(), [](int32_t m) { return m > 0; });
    if (left == missing.end()) return "";
    return walk(static_cast<int32_t>(left - missing.begin()), missing);
  }

  std::string walk(int32_t op, const std::vector<int32_t>& missing) const {
    std::vector<int32_t> path;
    std::vector<bool> seen(missing.size(), false);
    while (!seen[static_cast<size_t>(op)]) {
      seen[static_cast<size_t>(op)] = true;
      path.push_back(op);
      for (const int32_t need : needs(op)) {
        if (missing[static_cast<size_t>(need)] > 0) {
          op = need;
          break;
        }
      }
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), op));
    std::string text;
    for (size_t i = 0; i < path.size() && i < 4; ++i) text += "'" + op_name(path[i]) + "' needs ";
    if (path.size() > 4) text += text_of("%zu more ops, the last of which needs ", path.size() - 4);
    return text + "'" + op_name(path[0]) + "'";
  }

  const Graph& g_;
  std::vector<int32_t> writer_;
};

}  // namespace

Status check_order(const Graph& graph) { return OrderCheck(graph).run(); }

}  // namespace headrace::workload
