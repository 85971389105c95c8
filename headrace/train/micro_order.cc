#include "headrace/train/micro_order.h"

#include <algorithm>

namespace headrace {
namespace {

struct OpRange {
  size_t begin = 0, end = 0;
};

class Passes {
 public:
  Passes(const MicroBatches& batches, Graph* graph, Backward* backward)
      : b_(batches), g_(*graph), backward_(*backward) {}

  // Of a first stage that waits, the gradients of all micro-batches wait for the last loss, as they
  // do in the other order.
  Status batch_major() {
    std::vector<OpRange> waiting;
    for (int64_t m = 0; m < b_.micro_batches; ++m) {
      const OpRange first = add(0, m);
      OpRange others{first.end, first.end};
      for (int64_t stage = 1; stage < b_.stages; ++stage) others.end = add(stage, m).end;
      HR_TRY(reverse(others));
      if (b_.first_waits) {
        waiting.push_back(first);
      } else {
        HR_TRY(reverse(first));
      }
    }
    for (const OpRange& first : waiting) HR_TRY(reverse(first));
    return {};
  }

  Status layer_major() {
    const int64_t last = b_.stages - 1;
    std::vector<std::vector<OpRange>> ops(static_cast<size_t>(last));  // by stage, micro-batch
    for (size_t stage = 0; stage < ops.size(); ++stage) {
      for (int64_t m = 0; m < b_.micro_batches; ++m) {
        ops[stage].push_back(add(static_cast<int64_t>(stage), m));
      }
    }
    for (int64_t m = 0; m < b_.micro_batches; ++m) HR_TRY(reverse(add(last, m)));
    for (size_t stage = ops.size(); stage-- > 0;) {
      for (const OpRange& range : ops[stage]) HR_TRY(reverse(range));
    }
    return {};
  }

 private:
  OpRange add(int64_t stage, int64_t m) {
    const size_t begin = g_.ops.size();
    b_.add(stage, m);
    return {begin, g_.ops.size()};
  }
  Status reverse(const OpRange& ops) { return backward_.run(ops.begin, ops.end); }

  const MicroBatches& b_;
  Graph& g_;
  Backward& backward_;
};

}  // namespace

Status add_passes(const MicroBatches& batches, Graph* graph, Backward* backward) {
  Passes passes(batches, graph, backward);
  return batches.order == MicroOrder::kBatchMajor ? passes.batch_major() : passes.layer_major();
}

TensorId add_mean_loss(const std::string& name, const std::vector<TensorId>& losses,
                       Graph* graph) {
  Tensor t;
  t.name = name;
  t.role = Role::kOutput;
  t.cols = 1;
  t.bytes = 4;
  t.data_class = DataClass::kOther;
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = "hr.mean_loss";
  op.name = name;
  op.inputs = losses;
  op.outputs = {graph->add(std::move(t))};
  const auto last_loss = std::find_if(graph->ops.rbegin(), graph->ops.rend(),
                                      [](const Op& o) { return o.kernel == "hr.loss"; });
  HR_CHECK(last_loss != graph->ops.rend(), "a step has a loss");
  const TensorId mean = op.outputs[0];
  graph->ops.insert(last_loss.base(), std::move(op));
  return mean;
}

}  // namespace headrace
