// Attention of training: softmax(scale q k^T) v of whole sequences, causal or not, within a window
// or not, forward and backward, without ever holding a row of scores (Milakov and Gimelshein,
// arXiv 1805.02867; Dao, "FlashAttention-2", arXiv 2307.08691). One table of functions an
// instruction set.
//
// Vocabulary: a block is kTrainBlock positions of a sequence, from a multiple of it on; the last
// may be shorter. Scores of a pair of blocks are held transposed, [keys][queries], so that the
// softmax of 16 queries is 16 lanes and needs no sum across lanes.
//
// The order of sums, which depends on shapes alone (docs/decisions/0007-training.md):
//   product of two blocks   each element one chain of fused multiply-adds, ascending
//   forward                 key blocks ascending (those that a query of the block sees some of);
//                           the accumulator is rescaled by each
//   dq                      key blocks ascending, a product each
//   dk, dv                  query heads of the kv head, then query blocks, ascending
// Promises
//   1. Every instruction set gives the same bits: train_attention_inl.h is compiled for each.
//   2. Work is split over (sequence, head, query block) forward and (sequence, kv head) backward.
//   3. Masked scores take part nowhere, but for products with an exact 0 within a group of 4
//      (causal, end of a sequence) or a block (edges of a window).
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/base/types.h"
#include "headrace/ir/graph.h"

namespace headrace {

constexpr int64_t kTrainBlock = 64;

struct TrainAttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t sequence = 0;  // positions
  float scale = 1;
  bool causal = true;
  int64_t window = 0;  // a query sees positions less than this away; 0: all
  DType type = DType::kF32;  // of q, k, v, o and their gradients; statistics are f32

  int64_t padded() const { return round_up(head_dim, 16); }
  int64_t blocks() const { return (sequence + kTrainBlock - 1) / kTrainBlock; }
  int64_t group() const { return heads / kv_heads; }
  // Positions of a block.
  int64_t rows_of(int64_t block) const {
    const int64_t left = sequence - block * kTrainBlock;
    return left < kTrainBlock ? left : kTrainBlock;
  }
  // How far behind and ahead of its own position a query sees.
  int64_t behind() const { return window > 0 ? window - 1 : sequence; }
  int64_t ahead() const { return causal ? 0 : behind(); }
  // The key blocks of which the queries of a block see anything: first to last.
  int64_t first_keys(int64_t block) const {
    const int64_t first = block * kTrainBlock - behind();
    return first > 0 ? first / kTrainBlock : 0;
  }
  int64_t last_keys(int64_t block) const {
    const int64_t last = block * kTrainBlock + rows_of(block) - 1 + ahead();
    return (last < sequence ? last : sequence - 1) / kTrainBlock;
  }
  // Elements of a row of qkv: heads of q, then of k, then of v.
  int64_t qkv_cols() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t o_cols() const { return heads * head_dim; }
};

// One sequence: addresses of its first row.
struct TrainAttentionSequence {
  const std::byte* qkv = nullptr;   // [sequence, qkv_cols]
  std::byte* o = nullptr;           // [sequence, o_cols]; forward writes it
  float* lse = nullptr;             // [sequence, heads]; forward writes it
  const std::byte* d_o = nullptr;   // [sequence, o_cols]
  std::byte* dqkv = nullptr;        // [sequence, qkv_cols]; backward writes it
};

// Scratch bytes of a worker, kLine-aligned. Forward: about five blocks. Backward: nine, and dk and
// dv of one kv head and a whole sequence in f32.
Bytes train_attention_forward_bytes(const TrainAttentionShape& shape);
Bytes train_attention_backward_bytes(const TrainAttentionShape& shape);

struct TrainAttentionOps {
  // Rows of one query block of one head of o and lse.
  void (*forward)(const TrainAttentionShape& shape, const TrainAttentionSequence& sequence,
                  int64_t head, int64_t block, float* scratch);
  // dk and dv of a kv head and dq of its query heads.
  void (*backward)(const TrainAttentionShape& shape, const TrainAttentionSequence& sequence,
                   int64_t kv_head, float* scratch);
};

const TrainAttentionOps& scalar_train_attention();
// Only to be called where supported() says so.
const TrainAttentionOps& avx2_train_attention();
const TrainAttentionOps& avx512_train_attention();

// Workspace of the ops.
Bytes train_attention_workspace(const Graph& graph, const Op& op, int threads);
Bytes train_attention_grad_workspace(const Graph& graph, const Op& op, int threads);

}  // namespace headrace
