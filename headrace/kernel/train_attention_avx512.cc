#include "headrace/kernel/lanes_avx512.h"
#include "headrace/kernel/train_attention_inl.h"

namespace headrace {

const TrainAttentionOps& avx512_train_attention() { return kTrainAttention; }

}  // namespace headrace
