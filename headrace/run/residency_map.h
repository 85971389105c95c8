// Internal to run/: which bytes a tensor has at a step.
#pragma once

#include <vector>

#include "headrace/ir/program.h"

namespace headrace {

// Bytes of a tensor in one tier: byte b of the form asked for is at begin + b - range.begin.
struct Piece {
  Bytes offset = -1;     // of the range's first byte
  Bytes room = 0;        // bytes from there to the end of the last residency
  bool found() const { return offset >= 0; }
};

class ResidencyMap {
 public:
  explicit ResidencyMap(const Program& program);

  // Where bytes [begin, begin + bytes) of `tensor` in the form `codec` are in `tier` at `step`, in
  // one piece; what begins at that step comes first. Not found: they are not.
  Piece find(TensorId tensor, TierId tier, Codec codec, Bytes begin, Bytes bytes,
             int32_t step) const;
  // The workspace of `op` at `step`; null: none.
  const Residency* workspace(OpId op, int32_t step) const;

 private:
  Piece at_distance(const std::vector<const Residency*>& list, TierId tier, Codec codec,
                    Bytes begin, Bytes bytes, int32_t step, Bytes distance) const;

  const Program& p_;
  std::vector<std::vector<const Residency*>> by_tensor_;
  std::vector<std::vector<const Residency*>> by_op_;
};

}  // namespace headrace
