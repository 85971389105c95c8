// What tells two models apart without reading all of them.
#pragma once

#include <cstdint>

#include "headrace/base/status.h"
#include "headrace/model/model_file.h"

namespace headrace {

// 64 bits over the numbers and texts of the metadata, the name, type and shape of every weight, and the
// first page of up to 64 weights spread over the model: whatever changes how tokens become KV, but for
// changes of single values inside a weight that those pages miss. The same for copies of a model,
// wherever they lie. kIo, naming file and offset.
Result<uint64_t> model_fingerprint(const ModelFile& model);

}  // namespace headrace
