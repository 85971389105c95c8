// Backward: reverse-mode automatic differentiation of training ops (ir/train_ops.h) on a Graph.
// (Linnainmaa 1976; Griewank and Walther, "Evaluating Derivatives", 2008.)
//
// Vocabulary
//   contribution  what one op adds to the gradient of a tensor. The first is the gradient; later
//                 ones are added by the op that makes them where it can (+add of hr.linear_dx and
//                 hr.norm_dx), else by hr.add. A residual's gradient is that of the sum: no op.
//   target        the gradient of a weight: written by the first op that has a part of it
//                 (outputs), added to by all others (updates), in the order of the graph.
//
// Promises
//   1. Nothing is computed for frozen weights, nor for what lies before the first trainable one.
//      (Exceptions: one op computes the gradients of a weight and of its bias, of the output table
//      and its biases, and of the two weights of hr.qk_norm, if one of them is trained.)
//   2. Gradients of weights are f32, of activations of their own type.
//   3. What a gradient needs are tensors of the graph: inputs and outputs of the forward op. Which
//      of them are kept, moved or computed again is the planner's choice.
#pragma once

#include <map>
#include <vector>

#include "headrace/train/step_model.h"

namespace headrace {

class Backward {
 public:
  // Both borrowed. Sets `gradient` of trainable parameters as they get one.
  Backward(Graph* graph, std::vector<Parameter>* parameters);

  // Appends the gradients of ops [begin, end), the last op first. Runs over the ops of one forward
  // pass must follow one another in reverse. kUnsupported: an op that has no gradient here; weights
  // whose gradients one op would have to write and add to.
  Status run(size_t begin, size_t end);

 private:
  struct Rule {
    std::string_view kernel;
    void (Backward::*emit)(const Op&);
  };
  static const std::vector<Rule>& rules();

  void embed(const Op& op);
  void prefix(const Op& op);
  void select(const Op& op);
  void columns(const Op& op);
  void scale(const Op& op);
  void linear(const Op& op);
  void norm(const Op& op);
  void qk_norm(const Op& op);
  void rope(const Op& op);
  void attention(const Op& op);
  void act(const Op& op);
  void dropout(const Op& op);
  void add(const Op& op);
  void loss(const Op& op);

  void find_needs();
  bool needs(TensorId t) const { return needs_[t.index()]; }
  bool trained(TensorId weight) const;
  TensorId gradient(TensorId t) const;
  // A new tensor for a contribution to the gradient of t.
  TensorId contribution(TensorId t);
  void contribute(TensorId t, TensorId d);
  // Makes `op` write the gradient of t: adds what is there as its last input if it `fuses`.
  void emit_dx(Op op, TensorId t, bool fuses);
  // Gives `op` its targets, the gradients of `weights`: as outputs after those it has, or updates.
  void set_targets(Op* op, const std::vector<TensorId>& weights);
  Op like(const Op& forward, const char* kernel, const char* suffix) const;

  Graph& g_;
  std::vector<Parameter>& parameters_;
  std::map<TensorId, size_t> trainable_;   // tensor of a weight -> its parameter
  std::map<TensorId, TensorId> targets_;   // tensor of a weight -> its gradient
  std::vector<bool> needs_;                // by tensor: whether its gradient leads to a target
  std::vector<TensorId> gradients_;        // by tensor
  std::vector<int> parts_;                 // by tensor: contributions so far, for names
  size_t seen_ = 0;                        // ops that needs_ knows of
  size_t at_ = 0;                          // the op whose gradient is being made
  Status failed_;
};

}  // namespace headrace
