// Export: the newest checkpoint of a run as a model that other programs, and `headrace run`, read.
//
// Formats, by the name of what is written
//   NAME.safetensors   the parameters under their Hugging Face names
//   NAME.gguf          parameters, metadata and tokenizer in one file
//   any other name     a folder with config.json, model.safetensors and the tokenizer's files
// LoRA's products are added to the weights that they adapt: w + alpha / rank * B A, in f32, in the
// order of the ranks. With `adapter` they alone are written, under the names that PEFT reads.
//
// Promises
//   1. Parameters that were not trained are those of the config's "from", bit for bit where the
//   type
//      allows it; a new model's are drawn again.
//   2. Each file appears whole or not at all; of a folder, model.safetensors last.
//   3. Streams: memory does not grow with the model but for one row and a 16 MiB window.
#pragma once

#include <functional>
#include <string>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/dtype.h"

namespace headrace {

struct ExportOptions {
  std::string run;  // RUN folder
  std::string out;
  DType dtype = DType::kF32;  // or kF16, kBF16; GGUF's vectors are f32 in any case
  bool adapter = false;
  // Called with bytes written so far and in all; false stops: kCancelled, nothing is left.
  std::function<bool(Bytes done, Bytes total)> progress;
};

struct ExportResult {
  std::string checkpoint;  // its folder
  int64_t step = 0;
  int64_t parameters = 0;  // elements written
  Bytes bytes = 0;         // of the file of parameters
};

// kUsage: no checkpoint, an adapter of a run without one, another type; kUnsupported: a format that
// cannot say what the model does, or a tokenizer in it, named; kIo, kBadFile as the checkpoint's
// and the model's readers.
Result<ExportResult> export_run(const ExportOptions& options);

}  // namespace headrace
