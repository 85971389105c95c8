#include "headrace/kernel/train_rows.h"

#include "headrace/kernel/kernel.h"
#include "headrace/kernel/lanes_scalar.h"
#include "headrace/kernel/train_rows_inl.h"

namespace headrace {

const TrainRows& scalar_train_rows() { return kTrainRows; }

const TrainRows& train_rows() {
  switch (current_isa()) {
    case Isa::kAvx512Vnni: return avx512_train_rows();
    case Isa::kAvx2: return avx2_train_rows();
    case Isa::kScalar: break;
  }
  return scalar_train_rows();
}

}  // namespace headrace
