// Dataset: tokens of text or shards, packed into sequences and shuffled by seed.
//
// Vocabulary
//   sample   `sequence` + 1 consecutive tokens of the packed stream (all files one after the other,
//            documents joined by the end token): inputs, and targets one further on. Samples do not
//            overlap but for that token; what is left over at the end is not used.
//   epoch    every sample once, in an order that is a permutation by (seed, epoch): computed, not
//            stored (a Feistel network on the index, cycle-walking: Black and Rogaway, CT-RSA
//            2002).
//
// Promises
//   1. Sample number i of a run is a function of (seed, i) alone: to resume is to go on counting.
//   2. Memory does not grow with the data: text is tokenized once into a shard in the RUN folder
//      (atomically; made again when the files' sizes, times or the tokenizer have changed), and
//      read from there by pread.
// Not thread-safe.
#pragma once

#include <memory>
#include <span>

#include "headrace/train/train_config.h"

namespace headrace {

class Tokenizer;

class Dataset {
 public:
  // Tokenizes when needed. `tokenizer` (may be null with token shards or "bytes") is borrowed
  // during the call. kBadFile: a file that is empty, binary (a NUL byte in text), or holds fewer
  // tokens than one sample; a token outside `vocab` (with file and position); kIo.
  // Which of config.data's lists is read is `files`; the shard is RUN/data/<what>.tokens.
  static Result<std::unique_ptr<Dataset>> open(const TrainConfig& config,
                                               const std::vector<std::string>& files,
                                               const std::string& what, const Tokenizer* tokenizer,
                                               int64_t vocab);
  ~Dataset();

  int64_t samples() const;
  int64_t tokens() const;
  // Sample number `index` of the run (may be any number of epochs on): inputs and targets, each
  // `sequence` long. kIo.
  Status read(int64_t index, std::span<int32_t> inputs, std::span<int32_t> targets) const;

 private:
  struct State;
  explicit Dataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headrace
