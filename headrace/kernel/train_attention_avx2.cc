#include "headrace/kernel/lanes_avx2.h"
#include "headrace/kernel/train_attention_inl.h"

namespace headrace {

const TrainAttentionOps& avx2_train_attention() { return kTrainAttention; }

}  // namespace headrace
