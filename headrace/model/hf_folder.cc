#include "headrace/model/hf_folder.h"

namespace headrace {

Result<ModelFile> open_hf_folder(const std::string& folder) {
  return error(Code::kUnsupported, "%s: Hugging Face folders are not supported yet",
               folder.c_str());
}

}  // namespace headrace
