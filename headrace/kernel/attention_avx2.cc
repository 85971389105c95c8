#include "headrace/kernel/lanes_avx2.h"
#include "headrace/kernel/attention_inl.h"

namespace headrace {

void attention_block_avx2(const AttentionShape& shape, const AttentionBlock& block) {
  attend(shape, block);
}

}  // namespace headrace
