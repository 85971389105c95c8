// Predicting how long a kernel takes where nobody has measured it: by a roofline, or by what was
// learned from measured ones.
//
// Method: for each kernel name a linear model with weights that are not negative (so that more
// bytes never take less time) over kKernelFeatures features:
//   1, traffic, output bytes, FLOPs, volume (KernelWork)
// fitted by ridge regression to the relative error, (predicted - measured) / measured: a kernel of
// 10 us counts as much as one of 10 ms. (Hoerl and Kennard, "Ridge regression", Technometrics 1970;
// with the sign constraint it is solved by coordinate descent.) Workspace bytes the same way.
#pragma once

#include <vector>

#include "headrace/cost/machine.h"

namespace headrace {

// max(FLOPs / rate of the type, traffic / memory_bytes_per_s) + op_overhead_ns.
double roofline_seconds(const Machine& machine, const KernelWork& work);
// By the model; at least 0.
double predicted_seconds(const KernelModel& model, const KernelWork& work);

struct KernelSample {
  std::string kernel;
  KernelWork work;
  double seconds = 0;    // not above zero: not measured
  Bytes workspace = -1;  // below zero: not known
};
// The kKernel ops of `graph` that have been measured.
std::vector<KernelSample> samples_of(const Graph& graph);

constexpr double kDefaultRidge = 1e-6;
// The models of the kernels that `samples` name, for Machine::kernels. Deterministic.
std::map<std::string, KernelModel> train_kernels(const std::vector<KernelSample>& samples,
                                                 double ridge = kDefaultRidge);

// Workspace bytes of `op` by the machine's model; 0 when it has none. For graphs that do not state
// workspaces.
Bytes predicted_workspace(const Machine& machine, const Graph& graph, const Op& op);
// Sets the workspace of every kKernel op that has none and whose kernel the machine has a model of;
// returns how many were set.
int64_t fill_workspaces(const Machine& machine, Graph* graph);

// How good predictions are on kernels that were not trained with.
struct PredictorScore {
  int64_t kernels = 0;        // that were predicted
  double roofline_error = 0;  // mean of |predicted - measured| / measured
  double learned_error = 0;
  double roofline_total = 0;  // predicted seconds of all of them, over the measured ones
  double learned_total = 0;
};
// Leaves out one shape at a time: all samples of a kernel with the same work are predicted by a
// model trained with the others of that kernel. Kernels of a single shape are predicted by the
// roofline in both columns.
PredictorScore cross_validate(const Machine& machine, const std::vector<KernelSample>& samples,
                              double ridge = kDefaultRidge);
// Trains with `known`, predicts `unseen`.
PredictorScore score_on(const Machine& machine, const std::vector<KernelSample>& known,
                        const std::vector<KernelSample>& unseen, double ridge = kDefaultRidge);

}  // namespace headrace
