// Parameters and moments of a captured step, as the caller has them: in its own shape and type,
// whatever tiles, transposes and masters the engine has them in.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/train/captured_forward.h"
#include "headrace/train/engine.h"
#include "headrace/train/step.h"

namespace headrace {

// What of a parameter is read or written.
enum class ParameterState : uint8_t {
  kValue,   // of the parameter's dtype
  kFirst,   // f32: AdamW's exp_avg, SGD's momentum buffer
  kSecond,  // f32: AdamW's exp_avg_sq
  kMaster,  // f32: what kValue is rounded from, where products read bf16
};
const char* name_of(ParameterState state);

class CapturedState {
 public:
  // Both borrowed.
  CapturedState(const CapturedForward& forward, const TrainStep& step);

  // See CapturedStep.
  Result<Bytes> bytes_of(std::string_view name, ParameterState state) const;
  Status write(TrainEngine* engine, std::string_view name, ParameterState state, Bytes begin,
               std::span<const std::byte> bytes);
  Status read(TrainEngine* engine, std::string_view name, ParameterState state, Bytes begin,
              std::span<std::byte> out);

 private:
  struct Part;  // elements [begin, end) of a parameter's state, in the caller's order
  struct Entry {
    const CapturedParameter* parameter;
    std::vector<const Parameter*> tiles;
  };

  Result<Part> part_of(std::string_view name, ParameterState state, Bytes begin, Bytes size) const;
  // Values of a tile's tensor from element `at` on.
  Status load(TrainEngine* engine, const Tensor& tensor, int64_t at, std::span<float> values);
  Status store(TrainEngine* engine, const Parameter& tile, ParameterState state, int64_t at,
               std::span<const float> values);
  Status transposed(TrainEngine* engine, const Part& part, const std::byte* from, std::byte* to);
  const Tensor* tensor_of(const Parameter& tile, ParameterState state) const;

  const TrainStep& step_;
  std::map<std::string, Entry, std::less<>> entries_;  // by name and by alias
  std::vector<float> values_;     // a block
  std::vector<std::byte> bytes_;  // the same in a tensor's type
};

}  // namespace headrace
