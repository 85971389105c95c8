// ForwardBuilder: the forward ops of a step, a stage and a micro-batch at a time, in any order that
// has the stages of each micro-batch one after the other.
//
// Stages: 0 is the embedding, 1 .. layers the layers, the last one the final norm and the loss
// (whose gradients the backward pass turns on). Fused: q, k, v are one hr.linear, gate and up
// another; the residual is added by the product before it, unless dropout stands between.
//
// Activations are called "layers.3.qkv", with "mb2." before it where micro-batches are several.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "headrace/train/step_model.h"

namespace headrace {

// Which of two orders micro-batches have. Both sum gradients of weights in the order of micro-
// batches, so that the results are the same bits.
enum class MicroOrder : uint8_t {
  kBatchMajor,  // all of a micro-batch before the next one: activations of one are held
  kLayerMajor,  // all micro-batches of a stage before the next stage: weights pass through once
};
const char* name_of(MicroOrder order);

struct StepShape {
  int64_t sequences = 1;      // of the whole step
  int64_t sequence = 0;       // tokens of one
  int64_t micro_batches = 1;  // that the sequences are dealt to evenly, the first ones more
  MicroOrder order = MicroOrder::kBatchMajor;
};

// Adds the tensor of each tile to the graph and sets its `param`: kWeight where it has a place in a
// file, else kState.
void add_parameters(std::vector<Parameter>* parameters, Graph* graph);

class ForwardBuilder {
 public:
  // Adds the parameters to the graph and sets `param` of each. All borrowed. Precondition: the
  // model has been checked; 1 <= micro_batches <= sequences.
  ForwardBuilder(const StepModel& model, const StepShape& shape,
                 std::vector<Parameter>* parameters, Graph* graph);

  int64_t stages() const { return m_.layers + 2; }
  // Appends the ops of one stage of micro-batch `micro`.
  void add(int64_t stage, int64_t micro);
  // Of the micro-batches that have all their stages: their losses, [rows, 1] each.
  std::vector<TensorId> losses() const;

 private:
  struct Micro {
    int64_t row_begin = 0, rows = 0;
    std::string prefix;
    TensorId x;     // what the next stage reads
    TensorId loss;  // [rows, 1]
  };
  // The products that read one x: names of modules whose outputs follow one another in columns.
  struct Product {
    std::string name;                  // of the output
    std::vector<std::string> modules;  // "self_attn.q_proj"
    int64_t stream = 0;                // of the dropout of LoRA's input
  };

  void embed();
  void layer(int64_t layer);
  void head();
  TensorId norm(const std::string& name, TensorId x, const std::string& parameter);
  TensorId linear(const Product& product, TensorId x, TensorId residual);
  TensorId lora(const Product& product, TensorId x, TensorId y);
  // x + dropout(product(in)).
  TensorId project(const Product& product, TensorId in, TensorId x, int64_t stream);
  TensorId dropout(const std::string& name, TensorId x, double p, int64_t stream);
  TensorId attention(const std::string& at, TensorId qkv);

  TensorId activation(const std::string& name, int64_t cols);
  TensorId activation(const std::string& name, int64_t cols, DType dtype);
  Op& op(const char* kernel, const std::string& name, std::vector<TensorId> inputs,
         std::vector<TensorId> outputs);
  bool has(const std::string& parameter) const { return tiles_.contains(parameter); }
  const std::vector<TensorId>& tiles(const std::string& parameter) const;
  TensorId only(const std::string& parameter) const { return tiles(parameter)[0]; }

  const StepModel& m_;
  const StepShape& shape_;
  Graph& g_;
  std::map<std::string, std::vector<TensorId>> tiles_;  // by parameter
  TensorId inv_freq_;
  std::vector<Micro> micros_;
  Micro* at_ = nullptr;  // the micro-batch that ops are being added for
  int64_t layer_ = 0;
};

}  // namespace headrace
