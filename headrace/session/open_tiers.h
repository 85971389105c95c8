// The files that a session works with, opened within what its plan has reserved for them.
#pragma once

#include <memory>
#include <string>

#include "headrace/session/model.h"
#include "headrace/tier/file_tier.h"

namespace headrace {

// The model's files, to be read into `arena`, which must outlive the tier. Errors as
// open_file_tier; kDoesNotFit when its buffers are more than kTransferMemory.
Result<std::unique_ptr<FileTier>> open_weights(const Model& model, Arena* arena);

// A file of `bytes` in `folder`, that no name leads to, for KV. Errors as open_weights; kIo names
// the folder when the disk refuses the room.
Result<std::unique_ptr<Tier>> open_kv_file(const std::string& folder, Bytes bytes, int tickets,
                                           Arena* arena);

}  // namespace headrace
