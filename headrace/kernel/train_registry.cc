// The table of training kernels, in the order of ir/train_ops.h.
#include <array>

#include "headrace/base/status.h"
#include "headrace/kernel/train.h"

namespace headrace {
namespace {

constexpr std::array<TrainKernel, 0> kTrainKernels{};

}  // namespace

const TrainKernel* find_train_kernel(std::string_view name) {
  for (const TrainKernel& kernel : kTrainKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

Bytes train_workspace(const Graph& graph, const Op& op, int threads) {
  const TrainKernel* kernel = find_train_kernel(op.kernel);
  HR_CHECK(kernel != nullptr, "no training kernel of this name");
  return kernel->workspace == nullptr ? 0 : kernel->workspace(graph, op, threads);
}

}  // namespace headrace
