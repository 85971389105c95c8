#include "headrace/kernel/lanes_avx512.h"
#include "headrace/kernel/row_ops_inl.h"

namespace headrace {

const RowOps& avx512_row_ops() { return kRowOps; }

}  // namespace headrace
