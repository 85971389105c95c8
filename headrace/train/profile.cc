#include "headrace/train/profile.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "headrace/base/system.h"
#include "headrace/ir/train_ops.h"
#include "headrace/kernel/half.h"
#include "headrace/kernel/train.h"
#include "headrace/tier/arena.h"

namespace headrace {
namespace {

// Ops shorter than this are run again, and the shorter time counts: the first run of a kernel meets
// cold code.
constexpr Nanos kShort = 20'000'000;
constexpr int kRuns = 3;

// What tells ops apart that take different times. Which rows, streams and groups they are about
// does not.
std::string signature(const Graph& g, const Op& op) {
  std::string out = op.kernel;
  for (const auto& [attr, value] : op.attrs) {
    const bool position = attr == Attr::kRowBegin || attr == Attr::kStream || attr == Attr::kGroup;
    if (!position && attr != Attr::kSeconds) out += text_of(" %s %g", name_of(attr), value);
  }
  for (const auto* ids : {&op.inputs, &op.outputs, &op.updates}) {
    out += " |";
    for (TensorId id : *ids) {
      const Tensor& t = g.at(id);
      out += text_of(" %s %lld %lld", name_of(t.dtype), static_cast<long long>(t.rows),
                     static_cast<long long>(t.cols));
    }
  }
  return out;
}

// Small numbers of both signs: no kernel is faster or slower for them than for real ones.
void fill(const Tensor& t, std::byte* at) {
  uint32_t x = 12345;
  const auto next = [&x] {
    x = x * 1664525u + 1013904223u;  // Numerical Recipes' generator: any will do here
    return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-36f;
  };
  const int64_t n = t.rows * t.cols;
  if (t.dtype == DType::kF32) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<float*>(at)[i] = next();
  } else if (t.dtype == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<uint16_t*>(at)[i] = f32_to_bf16(next());
  } else if (t.dtype == DType::kF16) {
    for (int64_t i = 0; i < n; ++i) reinterpret_cast<uint16_t*>(at)[i] = f32_to_f16(next());
  }
}

class Profiler {
 public:
  Profiler(const Graph& graph, Arena& arena, int threads)
      : g_(graph), arena_(arena), pool_(threads) {
    rows_.tokens.resize(static_cast<size_t>(graph.max_rows));
    // Spread over the vocabulary, which is as large as the output table.
    int64_t vocab = 1;
    for (const Op& op : graph.ops) {
      if (op.kernel == "hr.loss") {
        vocab = 0;
        for (size_t i = 1; i <= loss_tiles(op); ++i) vocab += graph.at(op.inputs[i]).rows;
      }
    }
    for (size_t i = 0; i < rows_.tokens.size(); ++i) {
      rows_.tokens[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 7919 % vocab);
    }
    rows_.targets = rows_.tokens;
    rows_.step = 1;
    rows_.rates.assign(kMostGroups, 1e-3);
  }

  // Below zero: it does not fit.
  Result<Nanos> time(const Op& op) {
    const TrainKernel* kernel = find_train_kernel(op.kernel);
    if (kernel == nullptr) {
      return error(Code::kUnsupported, "no kernel computes %s ('%s')", op.kernel.c_str(),
                   op.name.c_str());
    }
    at_ = 0;
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs, updates;
    for (TensorId t : op.inputs) inputs.push_back(place(t));
    for (TensorId t : op.outputs) outputs.push_back(place(t));
    for (TensorId t : op.updates) updates.push_back(place(t));
    const Bytes workspace = at_;
    if (round_up(workspace, kLine) + op.workspace > arena_.bytes()) return Nanos{-1};
    const OpContext context{g_, op, inputs, outputs, updates,
                            arena_.at(round_up(workspace, kLine), op.workspace), rows_, pool_};
    Nanos best = 0;
    for (int run = 0; run < kRuns; ++run) {
      const Nanos begin = monotonic_ns();
      kernel->run(context);
      const Nanos took = std::max<Nanos>(1, monotonic_ns() - begin);
      best = run == 0 ? took : std::min(best, took);
      if (took > kShort) break;
    }
    return best;
  }

 private:
  static constexpr size_t kMostGroups = 64;

  std::byte* place(TensorId id) {
    const Tensor& t = g_.at(id);
    const Bytes at = round_up(at_, kLine);
    at_ = at + t.bytes;
    if (at_ > arena_.bytes()) return nullptr;  // time() refuses then
    std::byte* memory = arena_.at(at, t.bytes).data();
    fill(t, memory);
    return memory;
  }

  const Graph& g_;
  Arena& arena_;
  ThreadPool pool_;
  StepRows rows_;
  Bytes at_ = 0;
};

// What has been measured in this process, by number of threads and signature: steps that are
// planned again (another budget, other shapes) have many of their ops in common.
class Measured {
 public:
  std::optional<Nanos> find(const std::string& what) const {
    const std::lock_guard lock(lock_);
    const auto at = known_.find(what);
    return at == known_.end() ? std::nullopt : std::optional<Nanos>(at->second);
  }
  void add(const std::string& what, Nanos took) {
    const std::lock_guard lock(lock_);
    if (known_.size() >= kMost) known_.clear();  // a process that plans ever new shapes
    known_[what] = took;
  }

 private:
  static constexpr size_t kMost = 4096;
  mutable std::mutex lock_;
  std::map<std::string, Nanos> known_;
};

Measured& measured() {
  static Measured all;
  return all;
}

}  // namespace

Status measure_ops(const std::vector<Graph*>& graphs, Bytes memory, int threads) {
  std::optional<Arena> arena;  // taken when there is something to measure
  std::set<std::string> too_large;
  for (Graph* graph : graphs) {
    std::optional<Profiler> profiler;
    for (Op& op : graph->ops) {
      if (!is_train_op(op)) continue;
      const std::string what = text_of("%d ", threads) + signature(*graph, op);
      if (too_large.contains(what)) continue;
      std::optional<Nanos> took = measured().find(what);
      if (!took) {
        if (!arena) {
          HR_ASSIGN(arena, Arena::create(memory));
        }
        if (!profiler) profiler.emplace(*graph, *arena, threads);
        HR_ASSIGN(took, profiler->time(op));
        if (*took < 0) {
          too_large.insert(what);
          continue;
        }
        measured().add(what, *took);
      }
      op.attrs[Attr::kSeconds] = static_cast<double>(*took) * 1e-9;
    }
  }
  return {};
}

}  // namespace headrace
