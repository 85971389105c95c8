#include "headrace/kernel/lanes_avx512.h"
#include "headrace/kernel/train_rows_inl.h"

namespace headrace {

const TrainRows& avx512_train_rows() { return kTrainRows; }

}  // namespace headrace
