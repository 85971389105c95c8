#include "headrace/kernel/lanes_avx512.h"
#include "headrace/kernel/attention_inl.h"

namespace headrace {

void attention_block_avx512(const AttentionShape& shape, const AttentionBlock& block) {
  attend(shape, block);
}

}  // namespace headrace
