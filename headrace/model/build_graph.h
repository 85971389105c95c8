// build_graph: turns a model's config and weights into the Graph of one step.
//
// Vocabulary: a tile is a run of rows of a matrix, one Tensor named "WEIGHT:i" (":0" also
// when there is only one); vectors (norms) are never cut and keep their plain names. The
// tiles of a matrix are in row order, differ by at most 16 rows, and start at multiples
// of 16 rows.
//
// Promises
//   1. The Graph passes verify(). Its output is one kOutput tensor "logits"
//      [max_output_rows, vocab], its KV slots are named "kv.LAYER.SEQUENCE.SEGMENT", its tails
//      "kv.tail.LAYER.SEQUENCE"; of pools "kv.pool.LAYER" and "kv.tails.LAYER".
//   2. Every weight of the file is used, or the build is refused with the weight's name:
//   a
//      model that has more than its family computes is not run as if it had not.
//   3. The same model and options give the same Graph, byte for byte.
#pragma once

#include <string>
#include <vector>

#include "headrace/ir/graph.h"
#include "headrace/ir/kv.h"
#include "headrace/model/model_config.h"

namespace headrace {

struct GraphOptions {
  int64_t max_rows = 1;         // the most rows a step can have
  int64_t max_output_rows = 1;  // of which logits are wanted; at most max_rows
  int64_t context = 0;          // positions a sequence
  int64_t sequences = 1;
  int64_t segment_tokens = 256;  // positions a KV slot; a multiple of 64
  KvFormat kv_format = KvFormat::kF16;
  // One attention op for each segment instead of one for all, so that slots can pass through a ring.
  // Layers with a window have one op in either case.
  bool split_attention = false;
  // Positions of the past that a step of one row attends in layers without a window: whole segments,
  // at least three (kSelectKv); 0: all. For one sequence, with split_attention. Steps of several rows
  // attend all of them in any case.
  int64_t sparse_tokens = 0;
  // Positions that the slots of layers with a window have room for, used over and over; at least
  // window + max_rows + 128. 0: the whole context.
  int64_t window_positions = 0;
  // Blocks of a pool for each layer, in place of slots (see kAttention); 0: slots.
  int64_t pool_blocks = 0;
  Bytes tile_bytes = 1 * kMiB;   // about the size of a tile; smaller matrices stay whole
  // Read only the step's rows of the token-embedding table (one kGathered tensor
  // "token_embd.rows"); otherwise its tiles are inputs of the embed op, the same tensors
  // as those of the output head when the two are tied.
  bool embedding_by_rows = true;
  int threads = 1;  // workers that kernels will have, for their workspace
};

// kUsage: an option out of range; kBadFile: a tensor is missing or has another shape than
// the config says; kUnsupported: a tensor of a type or name that the family's graph has
// no use for. Reads the values of Q, K and V biases from the file (they become one
// constant a layer).
Result<Graph> build_graph(const ModelFile& model, const ModelConfig& config,
                          const GraphOptions& options);

// Bytes of the KV that the Graph of these options has as state: exactly those of its tensors. Of the
// options: context, sequences, segment_tokens, kv_format, window_positions and pool_blocks.
struct KvBytes {
  Bytes slots = 0;    // of layers that see all positions; they can be kept elsewhere than in memory
  Bytes windows = 0;  // slots of layers with a window
  Bytes tails = 0;
  int64_t slot_count = 0;  // of `slots`
  Bytes total() const { return slots + windows + tails; }
  // Of copies of `slots` elsewhere: each in whole pages.
  Bytes on_disk() const { return slot_count == 0 ? 0 : slot_count * round_up(slots / slot_count, kPage); }
};
KvBytes kv_bytes(const ModelConfig& config, const GraphOptions& options);

// Totals of a model's weights, for people.
struct WeightTotal {
  std::string name;  // of the type or the role
  int64_t tensors = 0;
  int64_t parameters = 0;
  Bytes bytes = 0;
};
struct ModelSummary {
  ModelFormat format = ModelFormat::kGguf;
  int64_t files = 0;
  WeightTotal total;
  std::vector<WeightTotal> by_type;  // in the order of DType
  std::vector<WeightTotal>
      by_role;  // embedding, output, attention, feed_forward, norm, other
};
ModelSummary summarize(const ModelFile& model);

}  // namespace headrace
