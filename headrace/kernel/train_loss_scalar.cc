#include "headrace/kernel/lanes_scalar.h"
#include "headrace/kernel/train_loss_inl.h"

namespace headrace {

float loss_row_scalar(const LossRow& row) { return loss_row_lanes(row); }

}  // namespace headrace
