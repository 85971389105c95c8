// Graph: what to compute. Tensors and ops in one order of execution; says nothing of where bytes
// live or when they move (that is a Program).
//
// Vocabulary
//   tensor   a value: dtype, shape [rows, cols], role. A weight names the file extent it lives in.
//   role     what the planner may do with it, see Role.
//   tile     a run of rows of a large weight, a tensor of its own, so that no fraction of a tensor
//            is ever planned.
//   row      one token of one step. How many rows a step has is a run-time integer (StepRows);
//            shapes give the most there can be, and no extent depends on the actual number.
//   KV slot  (layer, sequence, segment): `segment_tokens` positions of K and V of one layer, see kv.h.
//
// Promises
//   1. SSA up to two stated exceptions: (a) a tensor may be written by several matmuls, each a
//      disjoint range of columns; it is readable after all of them. (b) state (KV, weights in
//      training, optimizer moments) and accumulating activations (a gradient summed over several
//      ops) are updated in place by the ops that list them under `updates`.
//   2. ops are in a valid order: every input is written, or is a source role, before its use.
//   3. verify() checks 1 and 2, shapes and attributes included; to_text / parse_graph round-trip.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/base/status.h"
#include "headrace/base/types.h"
#include "headrace/ir/dtype.h"

namespace headrace {

enum class Role : uint8_t {
  kWeight,      // read-only, lives in a file; the device copy can be dropped and loaded again
  kConstant,    // small, computed when the graph is built; values are in the graph itself
  kActivation,  // written by an op, dead after its last use
  kGathered,    // rows of a weight picked by the step's tokens; filled by a gather before its use
  kState,       // persistent and updated in place (KV); must survive every step
  kOutput,      // an activation that the caller reads after the step (logits)
};
constexpr int kRoleCount = 6;
const char* name_of(Role role);

// What a tensor's bytes are, for people: memory is reported by class.
enum class DataClass : uint8_t {
  kWeight, kOptimizer, kGradient, kActivation, kKv, kInput, kOther,
};
constexpr int kDataClassCount = 7;
const char* name_of(DataClass data_class);

// Where a weight's bytes are: `bytes` bytes at `offset` of file number `file` of the model.
struct FileExtent {
  int32_t file = -1;  // -1: not in a file
  Bytes offset = 0;
  Bytes bytes = 0;
  bool valid() const { return file >= 0; }
  bool operator==(const FileExtent&) const = default;
};

struct KvSlot {
  int32_t layer = -1;  // -1: not a KV tensor
  int32_t sequence = 0;
  int32_t segment = 0;
  bool operator==(const KvSlot&) const = default;
};

struct Tensor {
  std::string name;  // unique in the graph, e.g. "blk.3.ffn_up.weight:1"
  DType dtype = DType::kF32;
  Role role = Role::kActivation;
  int64_t rows = 1;  // [rows, cols]; vectors are [1, cols]
  int64_t cols = 0;
  Bytes bytes = 0;   // device bytes when resident, without page rounding
  FileExtent source;               // kWeight, kGathered (the whole table)
  KvSlot slot;                     // kState that is KV
  DataClass data_class = DataClass::kActivation;
  // Extents of it, on the device and elsewhere, start on a multiple and are whole multiples: kPage
  // for what tiers that move pages (TierInfo::alignment) shall take. Of what comes from files: kPage.
  Bytes alignment = kLine;
  std::vector<float> constant;     // kConstant, f32 [rows, cols]
  bool operator==(const Tensor&) const = default;
};
// The class that a tensor is reported under: its own, or what its role says where the builder left
// the default.
DataClass shown_class(const Tensor& tensor);

// Inputs and outputs are given in the order listed. "x?" may be absent (an invalid TensorId).
// All activations are f32 unless said otherwise; `out` of norm, attention and gated_act may be
// act_q8 instead, which is quantisation fused into the op (identical to a quantize op after it).
enum class OpKind : uint8_t {
  // in: table tiles in row order [vocab, n] (all device-resident), or one kGathered tensor.
  // out: x [rows, n] = dequantised table row of each token * scale.            attrs: scale
  kEmbed,
  // in: inv_freq [1, d/2]; out: table [rows, d]: d/2 cosines then d/2 sines of
  // position * inv_freq, each times mscale.                                    attrs: mscale
  kRopeTable,
  // in: x [rows, n], weight [1, n], residual? [rows, n];  out: [rows, n]
  // = residual + x / sqrt(mean(x^2) + eps) * (weight + add_one).               attrs: eps, add_one
  kRmsNorm,
  // in: x f32 [rows, n]; out: act_q8 [rows, n].
  kQuantize,
  // in: a [rows, k] (act_q8 when the weight is quantised, else f32), weight tile [n, k],
  //     bias? [1, N], residual? [rows, N];
  // out: y f32 [rows, N], columns [col_begin, col_begin + n) only
  // = a . weight^T + bias + residual.  y may share the extent of residual.     attrs: col_begin
  kMatMul,
  // in: qkv [rows, (heads + 2 kv_heads) d], rope table [rows, d], q_norm? [1, d], k_norm? [1, d];
  // out: q [rows, heads d], normalised and rotated; open? (f16 [open tiles * 128 * kv_heads, padded
  // d], where kv_open_tiles() is not 0). updates: tails. Each row's rotated k and its v are written to
  // the tail of its sequence, or to an open tile (kv.h).
  // attrs: heads, kv_heads, head_dim, eps, add_one, rope_half_split (0: pairs (2i, 2i+1);
  //        1: pairs (i, i + d/2)), kv_format
  kRopeKv,
  // Causal softmax(scale q k^T, soft-capped when softcap > 0) v over positions (position - window,
  // position], all of them when window is 0; for the segments [segment_begin, segment_begin +
  // segment_count) of each sequence. One op does all segments, or several do them in ascending order
  // and hand on the softmax's state, f32 [rows, heads (padded d + 2)], which the first of them gives as
  // its output.
  // in: q [rows, heads d], open?;
  // updates: tails, one a sequence (or one tensor of all); the slots of these segments,
  // sequence-major; state? (all parts but the first). Tiles that the step seals are put into slots
  // first; the last part leaves each sequence's new tail.
  // out: the last part: [rows, heads d]; the first part of several: state; others: none.
  // With pool_blocks > 0 there is one slot tensor, a pool of so many blocks of segment_tokens, and
  // StepRows::blocks says which block is which segment.
  // With fewer segments than positions need (window > 0), segment s is slot s modulo segments.
  // With sparse_tokens > 0 `updates` has, before the state, keys f32 [segments + 1, 2 kv_heads padded
  // d]: of the sealed K of each segment the least and the largest of each element, a kv head after the
  // other; and there may be a third input, mask (see select_kv), of a step of one row: only segments
  // with mask 1 are attended, and the row's own tile. In a step with StepRows::dense all are, and the
  // last part writes keys[segments][0]: the share of the softmax's sum that segments with mask 1
  // had, averaged over heads. The state has one float more for each head then.
  // attrs: heads, kv_heads, head_dim, scale, window, softcap, segment_tokens, segments (a sequence),
  //        segment_begin, segment_count, kv_format, pool_blocks, sparse_tokens
  kAttention,
  // in: gate_up [rows, 2n]; out: [rows, n] = act(gate) * up.    attrs: act (0 silu, 1 gelu_tanh)
  kGatedAct,
  // in: a, b [rows, n]; out: a + b.
  kAdd,
  // in: x [rows, n]; out: [output_rows, n]: the rows that the step asks logits of, in order.
  kSelectRows,
  // in: x [rows, n]; out: cap * tanh(x / cap).                                 attrs: softcap
  kSoftcap,
  // Which segments of the past one row attends: those whose keys may score highest (an upper bound of
  // q k^T from the least and largest elements; Tang et al., "Quest", arXiv 2406.10774), together
  // sparse_tokens positions; among them always the first one (Xiao et al., attention sinks, arXiv
  // 2309.17453), the row's own and the one before that.
  // in: q [1, heads d], keys (see kAttention);  out: mask f32 [1, segments], 1: attended, else 0.
  // attrs: heads, kv_heads, head_dim, scale, softcap, segment_tokens, segments, kv_format,
  //        sparse_tokens
  kSelectKv,
  // A kernel known from outside: a workload's op. Reads inputs, writes outputs (there may be none),
  // changes updates. `Op::kernel` says which kernel it is.
  // attrs: seconds (measured; absent: predicted from the two below), flops (multiply-adds count
  //        two), traffic (device bytes read and written; absent: those of its operands),
  //        recompute (0: must run exactly once, e.g. it draws random numbers; 1 when absent).
  // Kernels called "hr.*" are the ops of training, see train_ops.h. All others are known by their
  // costs alone and have a stated meaning, so that executed plans can be compared bit for bit: see
  // kernel/synthetic.h.
  kKernel,
};
constexpr int kOpKindCount = 13;
const char* name_of(OpKind kind);

enum class Attr : uint8_t {
  kScale, kMscale, kEps, kAddOne, kColBegin, kHeads, kKvHeads, kHeadDim, kRopeHalfSplit,
  kSegmentTokens, kSegments, kWindow, kSoftcap, kAct,
  kSegmentBegin, kSegmentCount, kKvFormat, kPoolBlocks, kSparseTokens,
  kSeconds, kFlops, kTraffic, kRecompute,
  // Of training ops (train_ops.h).
  kRowBegin, kSequence, kPositions, kWeights, kBias, kInverse, kProbability, kStream, kGrad,
  kMaxNorm, kBeta1, kBeta2, kWeightDecay, kMomentum, kGroup,
  kCausal, kFirst, kChannels, kHeight, kPatch, kOwnMean, kSmoothing,
};
constexpr int kAttrCount = 45;
const char* name_of(Attr attr);

struct Op {
  OpKind kind = OpKind::kAdd;
  std::string name;                // for people: "blk.3.attn_q:0"
  std::vector<TensorId> inputs;    // an absent optional input is an invalid id
  std::vector<TensorId> outputs;
  std::vector<TensorId> updates;   // kState or kActivation tensors changed in place
  std::map<Attr, double> attrs;
  Bytes workspace = 0;             // device bytes needed while it runs, set by the builder
  std::string kernel;              // kKernel: "Conv2d_Forward"; costs are learned by this name
  bool operator==(const Op&) const = default;

  // The attribute, or `otherwise` where the op does not have it.
  double attr(Attr key, double otherwise = 0) const {
    auto it = attrs.find(key);
    return it == attrs.end() ? otherwise : it->second;
  }
  int64_t iattr(Attr key, int64_t otherwise = 0) const {
    return static_cast<int64_t>(attr(key, static_cast<double>(otherwise)));
  }
};

struct Graph {
  std::string name;
  int64_t max_rows = 1;         // the most rows a step can have
  int64_t max_output_rows = 1;  // the most rows whose logits a step can give
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  bool operator==(const Graph&) const = default;

  const Tensor& at(TensorId id) const { return tensors[id.index()]; }
  const Op& at(OpId id) const { return ops[id.index()]; }
  TensorId add(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return TensorId(static_cast<int64_t>(tensors.size()) - 1);
  }
};

// The run-time integers of one step: for each row its token, sequence and position. Ragged by
// construction: the rows of several sequences may follow one another in any order, those of one are
// adjacent and have ascending, consecutive positions.
struct StepRows {
  std::vector<int32_t> tokens;
  std::vector<int32_t> sequences;
  std::vector<int32_t> positions;
  std::vector<int32_t> output_rows;  // indices of rows whose logits are wanted
  // Of a step whose KV is in pools: the block of each (sequence, segment), -1 where there is none.
  std::vector<int32_t> blocks;
  // Where segments are selected (kSelectKv): attend all of them, and measure what is missed else.
  bool dense = false;
  // Of a training step (train_ops.h); `sequences`, `positions` and `output_rows` are empty then.
  std::vector<int32_t> targets;      // by row: the token to be predicted, -1: none
  int64_t step = 0;                  // optimizer steps, from 1
  uint64_t seed = 0;                 // of this step's dropout and stochastic rounding
  double loss_scale = 1;
  // False: an evaluation. Optimizer ops change nothing and dropout passes everything.
  bool update = true;
  std::vector<double> rates;         // learning rate of each parameter group
  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
};

// A kGathered tensor holds, for each row of the step, the page-rounded superset of one table row.
// Bytes between the supersets of two rows; Tensor::cols and dtype are those of the table.
inline Bytes gathered_row_stride(const Tensor& gathered) {
  return round_up(row_bytes(gathered.dtype, gathered.cols) + kPage - 1, kPage);
}
// Where in its superset the table row of `token` starts.
inline Bytes gathered_skew(const Tensor& gathered, int32_t token) {
  return (gathered.source.offset + token * row_bytes(gathered.dtype, gathered.cols)) % kPage;
}

// The same step for its state updates alone: ops that lead to no update are dropped, outputs become
// plain activations. All tensors stay, so ids and weights are those of `graph`.
Graph without_outputs(Graph graph);

// Ok, or the first broken promise, with the op's and tensor's names.
Status verify(const Graph& graph);

std::string to_text(const Graph& graph);  // one tensor or op a line
Result<Graph> parse_graph(std::string_view text);
// 64-bit hash of the text form: a Program names the Graph it was made for.
uint64_t fingerprint(const Graph& graph);

}  // namespace headrace
