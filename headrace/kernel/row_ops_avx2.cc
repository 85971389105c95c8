#include "headrace/kernel/lanes_avx2.h"
#include "headrace/kernel/row_ops_inl.h"

namespace headrace {

const RowOps& avx2_row_ops() { return kRowOps; }

}  // namespace headrace
