// InitialWeights: what parameters are before the first step, and what model they are of.
//
// A new model's: matrices are normal with mean 0 and deviation init_std, those whose product is
// added to the residual stream divided by sqrt(2 layers) (Radford et al., "Language Models are
// Unsupervised Multitask Learners", 2019, section 2.3); weights of norms are 1, biases 0. A model
// file's: its values, whatever their type, as f32. LoRA's A is uniform within 1 / sqrt(in), its B
// zero (Hu et al., arXiv 2106.09685, with the bounds that PEFT uses).
//
// Promises
//   1. A number drawn depends on the seed, the parameter's name and the element alone
//   (Philox4x32-10;
//      Salmon et al., SC 2011): not on order, on tiles, or on what else the model has.
//   2. Values are in the order in which we hold them: products as [outputs, inputs], heads rotated
//   by
//      halves. GGUF files of llama pair neighbours, so their rows of q and k are put back; GPT-2's
//      files hold [inputs, outputs].
//   3. Reads parts: memory does not grow with the model.
// Not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "headrace/model/model_file.h"
#include "headrace/model/rope.h"
#include "headrace/train/step_model.h"
#include "headrace/train/train_config.h"

namespace headrace {

class Tokenizer;

class InitialWeights {
 public:
  // Opens what config.model.from and config.data.tokenizer name, and checks every parameter's shape
  // against the file. kIo; kBadFile with the tensor or key; kUnsupported, by name, for families and
  // features that cannot be trained; kUsage and kUnsupported as check(StepModel).
  static Result<std::unique_ptr<InitialWeights>> open(const TrainConfig& config);
  ~InitialWeights();

  // The model that the config or the file describes, with the config's precision, LoRA and dropout.
  const StepModel& model() const;
  // The config's, with everything that the file says in its place.
  const TrainModelConfig& shape() const;
  const RopeConfig& rope() const;
  // The file that parameters come from; null: a new model.
  const ModelFile* file() const;

  // Of the data's text: null when it is "bytes" or tokens. Gone after drop_tokenizer().
  const Tokenizer* tokenizer() const;
  void drop_tokenizer();

  // Elements [begin, begin + out.size()) of the tile, as f32. kIo; kBadFile.
  Status read(const Parameter& tile, int64_t begin, std::span<float> out);

 private:
  struct State;
  explicit InitialWeights(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
