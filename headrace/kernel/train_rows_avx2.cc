#include "headrace/kernel/lanes_avx2.h"
#include "headrace/kernel/train_rows_inl.h"

namespace headrace {

const TrainRows& avx2_train_rows() { return kTrainRows; }

}  // namespace headrace
