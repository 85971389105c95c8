#include "headrace/kernel/lanes_avx2.h"
#include "headrace/kernel/train_loss_inl.h"

namespace headrace {

float loss_row_avx2(const LossRow& row) { return loss_row_lanes(row); }

}  // namespace headrace
