// verify(Graph): every promise of graph.h, op by op, without sharing code with the builders.
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "headrace/ir/graph.h"
#include "headrace/ir/kv.h"
#include "headrace/ir/train_ops.h"

namespace headrace {
namespace {

// Sizes beyond this are refused before they are multiplied: a graph may come from a file.
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr double kMostAttr = 9007199254740992.0;  // 2^53: an integer that a double still holds
constexpr size_t kAnyNumber = SIZE_MAX;
constexpr int64_t kMostHeads = 1 << 20;  // of heads and of their dimensions
// Sums over a graph of any length stay far from the end of 64 bits, in bytes and in nanoseconds.
constexpr Bytes kMostBytes = Bytes{1} << 60;
constexpr double kMostSeconds = 1e9;
constexpr double kMostWork = 1e24;  // FLOPs or bytes of one op

bool is_vector(const Tensor& t, int64_t cols) { return t.rows == 1 && t.cols == cols; }

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : g_(graph), columns_(graph.tensors.size()) {}

  Status run() {
    HR_TRY(check_tensors());
    for (const Op& op : g_.ops) {
      Status s = op.kind == OpKind::kKernel ? check_kernel(op) : check_op(op);
      if (!s.ok()) return s.within(std::string("op ") + name_of(op.kind) + " '" + op.name + "'");
    }
    return check_outputs();
  }

 private:
  Status bad(const char* what, const std::string& name) {
    return error(Code::kBadFile, "%s: '%s'", what, name.c_str());
  }

  Status check_tensors() {
    if (g_.max_rows < 1 || g_.max_output_rows < 0 || g_.max_output_rows > g_.max_rows) {
      return bad("a graph with impossible row counts", g_.name);
    }
    std::unordered_set<std::string_view> names;
    Bytes total = 0;
    for (const Tensor& t : g_.tensors) {
      if (!names.insert(t.name).second) return bad("two tensors have the same name", t.name);
      HR_TRY(check_sizes(t));
      HR_TRY(check_slot(t));
      if (t.role == Role::kWeight) {
        if (!t.source.valid()) return bad("weight without a file extent", t.name);
        if (t.source.bytes != t.bytes) return bad("weight and file extent differ", t.name);
      }
      if (t.role == Role::kGathered) {
        if (!t.source.valid()) return bad("gathered rows without a table", t.name);
        if (t.bytes != t.rows * gathered_row_stride(t)) {
          return bad("gathered rows with the wrong size", t.name);
        }
      } else if (t.bytes != t.rows * row_bytes(t.dtype, t.cols)) {
        return bad("bytes do not match shape and type", t.name);
      }
      if (t.role == Role::kConstant &&
          (t.dtype != DType::kF32 ||
           t.constant.size() != static_cast<size_t>(t.rows * t.cols))) {
        return bad("constant without its values", t.name);
      }
      if (t.bytes > kMostBytes - total) return bad("tensors of absurd size together", t.name);
      total += t.bytes;
    }
    return {};
  }

  Status check_sizes(const Tensor& t) {
    if (t.rows <= 0 || t.cols <= 0) return bad("tensor without elements", t.name);
    if (t.rows > kMostElements || t.cols > kMostElements / t.rows) {
      return bad("tensor of absurd size", t.name);
    }
    if (t.cols % info(t.dtype).block_elements != 0 && t.dtype != DType::kActQ8) {
      return bad("a row is not whole blocks", t.name);
    }
    if (t.source.valid() && (t.source.offset < 0 || t.source.bytes <= 0 ||
                             t.source.offset > kMostElements || t.source.bytes > kMostElements)) {
      return bad("impossible file extent", t.name);
    }
    if (t.alignment != kLine && t.alignment != kPage) {
      return bad("an alignment that is neither a line nor a page", t.name);
    }
    if (t.role == Role::kGathered && t.rows != g_.max_rows) {
      return bad("gathered rows are not those of a step", t.name);
    }
    return {};
  }

  // State that is not KV has no slot at all.
  Status check_slot(const Tensor& t) {
    const KvSlot& s = t.slot;
    if (s.layer < 0 ? s != KvSlot() : (s.sequence < 0 || s.segment < 0)) {
      return bad("half a slot", t.name);
    }
    return {};
  }

  bool is_source(const Tensor& t) const {
    return t.role == Role::kWeight || t.role == Role::kConstant || t.role == Role::kGathered ||
           t.role == Role::kState;
  }

  Status check_id(TensorId id, bool optional) {
    if (!id.valid() && optional) return {};
    if (!id.valid() || id.index() >= g_.tensors.size()) {
      return error(Code::kBadFile, "operand t%d does not exist", id.value);
    }
    return {};
  }

  Status check_input(TensorId id) {
    const Tensor& t = g_.at(id);
    if (is_source(t)) return {};
    if (columns_[id.index()] != t.cols) return bad("input is not fully written yet", t.name);
    return {};
  }

  Status write_columns(TensorId id, int64_t begin, int64_t count) {
    const Tensor& t = g_.at(id);
    if (is_source(t)) return bad("a source cannot be written", t.name);
    // Column ranges come in ascending order, so that "disjoint and complete" is one counter.
    if (columns_[id.index()] != begin) return bad("columns written twice or out of order", t.name);
    columns_[id.index()] += count;
    if (columns_[id.index()] > t.cols) return bad("columns past the end", t.name);
    return {};
  }

  Status check_op(const Op& op) {
    const auto [required, most] = input_count(op);
    if (op.inputs.size() < required) return error(Code::kBadFile, "too few inputs");
    if (op.inputs.size() > most) return error(Code::kBadFile, "too many inputs");
    HR_TRY(check_output_count(op));
    HR_TRY(check_workspace(op));
    if (!op.kernel.empty()) return bad("a kernel's name on an op that is none", op.kernel);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      HR_TRY(check_id(op.inputs[i], i >= required));
      if (op.inputs[i].valid()) HR_TRY(check_input(op.inputs[i]));
    }
    for (TensorId id : op.updates) {
      HR_TRY(check_id(id, false));
      // Parts of attention hand on the softmax's state in an activation.
      if (g_.at(id).role == Role::kActivation && op.kind == OpKind::kAttention) {
        HR_TRY(check_input(id));
      } else if (g_.at(id).role != Role::kState) {
        return bad("an update of no state", g_.at(id).name);
      }
    }
    for (TensorId id : op.outputs) HR_TRY(check_id(id, false));
    for (const auto& [attr, value] : op.attrs) {
      if (!(std::abs(value) <= kMostAttr)) return bad("impossible attribute", name_of(attr));
    }
    if (op.kind == OpKind::kAttention) {
      HR_TRY(check_attention(op));
    } else {
      HR_TRY(check_types(op));
      HR_TRY(check_rows(op));
      HR_TRY(check_shapes(op));
    }
    if (op.kind == OpKind::kMatMul) {
      return write_columns(op.outputs[0], op.iattr(Attr::kColBegin), g_.at(op.inputs[1]).rows);
    }
    for (TensorId id : op.outputs) HR_TRY(write_columns(id, 0, g_.at(id).cols));
    return {};
  }

  // rope_kv may have open tiles besides, a part of attention nothing at all.
  Status check_output_count(const Op& op) {
    const size_t n = op.outputs.size();
    const bool ok = n == 1 || (n == 2 && op.kind == OpKind::kRopeKv) ||
                    (n == 0 && op.kind == OpKind::kAttention);
    return need(ok, "not exactly one output");
  }

  Status check_workspace(const Op& op) {
    if (op.workspace < 0) return error(Code::kBadFile, "negative workspace");
    if (op.workspace > kMostBytes) return error(Code::kBadFile, "absurd workspace");
    return {};
  }

  // Any number of operands; what is changed must be there before, and something must come of it.
  Status check_kernel(const Op& op) {
    HR_TRY(need(!op.outputs.empty() || !op.updates.empty(), "neither outputs nor updates"));
    HR_TRY(check_workspace(op));
    HR_TRY(check_kernel_attrs(op));
    for (TensorId id : op.inputs) {
      HR_TRY(check_id(id, false));
      HR_TRY(check_input(id));
    }
    for (TensorId id : op.updates) {
      HR_TRY(check_id(id, false));
      const Role role = g_.at(id).role;
      if (role != Role::kState && role != Role::kActivation && role != Role::kOutput) {
        return bad("an update of what cannot change", g_.at(id).name);
      }
      HR_TRY(check_input(id));
    }
    for (TensorId id : op.outputs) {
      HR_TRY(check_id(id, false));
      HR_TRY(write_columns(id, 0, g_.at(id).cols));
    }
    return is_train_op(op) ? verify_train_op(g_, op) : Status();
  }

  Status check_kernel_attrs(const Op& op) {
    for (const auto& [attr, value] : op.attrs) {
      const bool seconds = attr == Attr::kSeconds;
      const bool work = attr == Attr::kFlops || attr == Attr::kTraffic;
      const bool known = seconds || work || attr == Attr::kRecompute;
      if (!known && is_train_op(op)) continue;  // verify_train_op() knows them
      const double most = seconds ? kMostSeconds : work ? kMostWork : 1;
      if (!known) return bad("an attribute that a kernel does not have", name_of(attr));
      // Written so that NaN fails.
      if (!(value >= 0 && value <= most)) return bad("impossible attribute", name_of(attr));
      if (attr == Attr::kRecompute && value != 0 && value != 1) {
        return bad("impossible attribute", name_of(attr));
      }
      if (seconds) seconds_ += value;
    }
    return need(seconds_ <= kMostSeconds, "ops of absurd duration together");
  }

  // The least and the most inputs of an op of this kind.
  static std::pair<size_t, size_t> input_count(const Op& op) {
    switch (op.kind) {
      case OpKind::kEmbed: return {1, kAnyNumber};
      case OpKind::kRmsNorm: return {2, 3};
      case OpKind::kMatMul:
      case OpKind::kRopeKv: return {2, 4};
      case OpKind::kAttention: return {1, 3};
      case OpKind::kSelectKv:
      case OpKind::kAdd: return {2, 2};
      default: return {1, 1};
    }
  }

  Status need(bool holds, const char* what) {
    return holds ? Status() : error(Code::kBadFile, "%s", what);
  }

  // Activations are f32; where quantisation is fused into an op, its output may be act_q8.
  Status check_types(const Op& op) {
    const DType out = g_.at(op.outputs[0]).dtype;
    const bool fused = op.kind == OpKind::kRmsNorm || op.kind == OpKind::kGatedAct;
    if (op.kind == OpKind::kQuantize) {
      HR_TRY(need(out == DType::kActQ8, "output is not act_q8"));
    } else {
      HR_TRY(need(out == DType::kF32 || (fused && out == DType::kActQ8),
                  "output of a type that this op does not write"));
    }
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid() || (op.kind == OpKind::kMatMul && i == 0)) continue;
      const Tensor& t = g_.at(op.inputs[i]);
      HR_TRY(need(is_source(t) || t.dtype == DType::kF32, "an activation input is not f32"));
    }
    return {};
  }

  Status check_rows(const Op& op) {
    const int64_t rows = g_.at(op.outputs[0]).rows;
    switch (op.kind) {
      case OpKind::kEmbed:
      case OpKind::kRopeTable:
        return need(rows == g_.max_rows, "output does not have the rows of a step");
      case OpKind::kSelectRows:
        return need(rows == g_.max_output_rows, "output does not have the rows that are asked for");
      default:
        return need(rows == g_.at(op.inputs[0]).rows, "input and output differ in rows");
    }
  }

  Status check_shapes(const Op& op) {
    const Tensor& in = g_.at(op.inputs[0]);
    const Tensor& out = g_.at(op.outputs[0]);
    switch (op.kind) {
      case OpKind::kEmbed: return check_embed(op);
      case OpKind::kRopeTable:
        HR_TRY(need(in.rows == 1 && in.dtype == DType::kF32, "inv_freq is not a vector of f32"));
        return need(2 * in.cols == out.cols, "rope table is not twice inv_freq");
      case OpKind::kMatMul: return check_matmul(op);
      case OpKind::kRopeKv: return check_rope_kv(op);
      case OpKind::kSelectKv: return check_select_kv(op);
      case OpKind::kGatedAct:
        return need(in.cols == 2 * out.cols, "gate_up is not twice the output");
      case OpKind::kRmsNorm:
        HR_TRY(need(is_vector(g_.at(op.inputs[1]), in.cols), "weight of another width"));
        if (op.inputs.size() > 2 && op.inputs[2].valid()) {
          HR_TRY(need(same_shape(g_.at(op.inputs[2]), out), "residual of other shape"));
        }
        break;
      case OpKind::kAdd:
        HR_TRY(need(same_shape(in, g_.at(op.inputs[1])), "the two inputs differ in shape"));
        break;
      default: break;
    }
    return need(in.cols == out.cols, "input and output differ in columns");
  }

  static bool same_shape(const Tensor& a, const Tensor& b) {
    return a.rows == b.rows && a.cols == b.cols;
  }

  Status check_embed(const Op& op) {
    const Tensor& out = g_.at(op.outputs[0]);
    for (TensorId id : op.inputs) {
      HR_TRY(check_id(id, false));
      const Tensor& table = g_.at(id);
      HR_TRY(need(table.cols == out.cols, "table and output differ in columns"));
      HR_TRY(need(table.role == Role::kWeight ||
                      (table.role == Role::kGathered && op.inputs.size() == 1),
                  "the table is neither tiles of a weight nor gathered rows"));
    }
    return {};
  }

  Status check_matmul(const Op& op) {
    const Tensor& a = g_.at(op.inputs[0]);
    const Tensor& w = g_.at(op.inputs[1]);
    const Tensor& y = g_.at(op.outputs[0]);
    HR_TRY(need(a.cols == w.cols, "inner dimensions differ"));
    HR_TRY(need(info(w.dtype).quantised == (a.dtype == DType::kActQ8),
                "activation type does not suit the weight type"));
    HR_TRY(need(op.iattr(Attr::kColBegin) >= 0, "columns before the first"));
    if (op.inputs.size() > 2 && op.inputs[2].valid()) {
      HR_TRY(need(is_vector(g_.at(op.inputs[2]), y.cols), "bias of other width"));
    }
    if (op.inputs.size() > 3 && op.inputs[3].valid()) {
      HR_TRY(need(same_shape(g_.at(op.inputs[3]), y), "residual of other shape"));
    }
    return {};
  }

  // What rope_kv and attention have in common.
  struct Kv {
    int64_t heads = 0, kv_heads = 0, dim = 0;
    Bytes tile = 0;         // of a sealed tile
    Bytes tail = 0;         // of a tail or an open tile
    int64_t tail_rows = 0;  // of f16 [padded head_dim]
  };
  Result<Kv> check_heads(const Op& op) {
    Kv kv;
    kv.heads = op.iattr(Attr::kHeads);
    kv.kv_heads = op.iattr(Attr::kKvHeads);
    kv.dim = op.iattr(Attr::kHeadDim);
    HR_TRY(need(kv.heads > 0 && kv.kv_heads > 0 && kv.dim > 0 && kv.heads % kv.kv_heads == 0,
                "heads do not divide"));
    HR_TRY(need(kv.heads < kMostHeads && kv.dim < kMostHeads, "heads beyond all measure"));
    const int64_t format = op.iattr(Attr::kKvFormat);
    HR_TRY(need(format >= 0 && format < kKvFormatCount, "a KV format that does not exist"));
    kv.tile = kv_tile_bytes(static_cast<KvFormat>(format), kv.kv_heads, kv.dim);
    kv.tail = kv_tail_bytes(kv.kv_heads, kv.dim);
    kv.tail_rows = 2 * kKvTile * kv.kv_heads;
    return kv;
  }

  // Tiles in 16 bits, any number of them.
  Status check_tiles(TensorId id, const Kv& kv, const char* what) {
    const Tensor& t = g_.at(id);
    return need(t.dtype == DType::kF16 && t.rows % kv.tail_rows == 0 &&
                    t.cols == round_up(kv.dim, 16),
                what);
  }

  Status check_tails(const Op& op, size_t count, const Kv& kv) {
    for (size_t i = 0; i < count; ++i) {
      HR_TRY(check_id(op.updates[i], false));
      const Tensor& t = g_.at(op.updates[i]);
      HR_TRY(need(t.role == Role::kState && t.slot.layer < 0, "a tail is no state of its own"));
      HR_TRY(check_tiles(op.updates[i], kv, "a tail is not tiles of 16 bits"));
      HR_TRY(need(count == 1 || t.bytes == kv.tail, "a tail of the wrong size"));
    }
    return {};
  }

  Status check_rope_kv(const Op& op) {
    HR_ASSIGN(const Kv kv, check_heads(op));
    HR_TRY(need(g_.at(op.outputs[0]).cols == kv.heads * kv.dim, "output is not heads x head_dim"));
    HR_TRY(need(g_.at(op.inputs[0]).cols == (kv.heads + 2 * kv.kv_heads) * kv.dim,
                "qkv has the wrong width"));
    HR_TRY(need(g_.at(op.inputs[1]).cols == kv.dim, "rope table is not as wide as a head"));
    for (size_t i = 2; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid()) continue;
      HR_TRY(need(is_vector(g_.at(op.inputs[i]), kv.dim),
                  "q_norm or k_norm is not as wide as a head"));
    }
    HR_TRY(need(!op.updates.empty(), "rope_kv without tails"));
    HR_TRY(check_tails(op, op.updates.size(), kv));
    if (op.outputs.size() < 2) return {};
    return check_tiles(op.outputs[1], kv, "open tiles are not tiles of 16 bits");
  }

  Status check_attention(const Op& op) {
    HR_ASSIGN(const Kv kv, check_heads(op));
    const Tensor& q = g_.at(op.inputs[0]);
    HR_TRY(need(q.dtype == DType::kF32 && q.cols == kv.heads * kv.dim,
                "q is not heads x head_dim of f32"));
    if (op.inputs.size() > 1 && op.inputs[1].valid()) {
      HR_TRY(check_tiles(op.inputs[1], kv, "open tiles are not tiles of 16 bits"));
    }
    const int64_t segment = op.iattr(Attr::kSegmentTokens);
    HR_TRY(need(segment > 0 && segment % kKvTile == 0, "segments are not whole tiles of 64"));
    const int64_t segments = op.iattr(Attr::kSegments), begin = op.iattr(Attr::kSegmentBegin);
    const int64_t count = op.iattr(Attr::kSegmentCount);
    HR_TRY(need(segments > 0 && begin >= 0 && count > 0 && begin <= segments - count,
                "segments that the sequences do not have"));
    const bool first = begin == 0, last = begin + count == segments;
    HR_TRY(check_attention_output(op, kv, first, last));
    std::vector<TensorId> rest = op.updates;
    if (!first) {
      HR_TRY(need(!rest.empty() && is_softmax_state(op, rest.back(), q, kv),
                  "a later part of attention without the softmax's state"));
      rest.pop_back();
    }
    HR_TRY(check_sparse(op, rest, kv));
    const int64_t blocks = op.iattr(Attr::kPoolBlocks);
    HR_TRY(need(blocks >= 0, "a pool of less than nothing"));
    return blocks > 0 ? check_pool(op, rest, kv, blocks) : check_slots(op, rest, kv);
  }

  // Takes the bounds of keys off `updates`.
  Status check_sparse(const Op& op, std::vector<TensorId>& updates, const Kv& kv) {
    const int64_t sparse = op.iattr(Attr::kSparseTokens);
    HR_TRY(need(sparse >= 0, "fewer than no positions to be selected"));
    HR_TRY(need(sparse > 0 || op.inputs.size() < 3, "a mask where nothing is selected"));
    if (sparse == 0) return {};
    HR_TRY(need(!updates.empty() && is_key_bounds(updates.back(), op, kv),
                "no bounds of the segments' keys"));
    updates.pop_back();
    HR_TRY(need(op.iattr(Attr::kWindow) == 0 && op.iattr(Attr::kPoolBlocks) == 0,
                "segments of a window or a pool are not selected"));
    if (op.inputs.size() < 3) return {};
    HR_TRY(check_id(op.inputs[2], false));
    const int64_t segments = op.iattr(Attr::kSegments);
    HR_TRY(need(op.iattr(Attr::kSegmentCount) == 1 && segments > 1,
                "segments are selected where each is an op"));
    const Tensor& mask = g_.at(op.inputs[2]);
    return need(g_.max_rows == 1 && mask.dtype == DType::kF32 && mask.rows == 1 &&
                    mask.cols == segments,
                "the mask is not one float for each segment");
  }

  bool is_key_bounds(TensorId id, const Op& op, const Kv& kv) const {
    const Tensor& t = g_.at(id);
    return t.role == Role::kState && t.dtype == DType::kF32 && t.slot.layer < 0 &&
           t.rows == op.iattr(Attr::kSegments) + 1 &&
           t.cols == 2 * kv.kv_heads * round_up(kv.dim, 16);
  }

  Status check_select_kv(const Op& op) {
    HR_ASSIGN(const Kv kv, check_heads(op));
    const Tensor& mask = g_.at(op.outputs[0]);
    HR_TRY(need(g_.at(op.inputs[0]).cols == kv.heads * kv.dim, "q is not heads x head_dim"));
    const int64_t segment = op.iattr(Attr::kSegmentTokens), segments = op.iattr(Attr::kSegments);
    HR_TRY(need(segment > 0 && segment % kKvTile == 0, "segments are not whole tiles of 64"));
    HR_TRY(need(segments > 0 && segments < kMostElements, "segments beyond all measure"));
    HR_TRY(need(op.iattr(Attr::kSparseTokens) > 0, "nothing is to be selected"));
    HR_TRY(need(is_key_bounds(op.inputs[1], op, kv), "no bounds of the segments' keys"));
    return need(g_.max_rows == 1 && mask.rows == 1 && mask.cols == segments,
                "the mask is not one float for each segment of one row");
  }

  bool is_softmax_state(const Op& op, TensorId id, const Tensor& q, const Kv& kv) const {
    const Tensor& t = g_.at(id);
    return t.role == Role::kActivation && t.dtype == DType::kF32 && t.rows == q.rows &&
           t.cols == kv.heads * (round_up(kv.dim, 16) + (op.inputs.size() > 2 ? 3 : 2));
  }

  Status check_attention_output(const Op& op, const Kv& kv, bool first, bool last) {
    const Tensor& q = g_.at(op.inputs[0]);
    if (!first && !last) return need(op.outputs.empty(), "a middle part of attention has an output");
    HR_TRY(need(op.outputs.size() == 1, "not exactly one output"));
    if (!last) {
      return need(is_softmax_state(op, op.outputs[0], q, kv),
                  "the first part of attention does not give the softmax's state");
    }
    const Tensor& out = g_.at(op.outputs[0]);
    HR_TRY(need(out.dtype == DType::kF32 || out.dtype == DType::kActQ8,
                "output of a type that this op does not write"));
    return need(out.rows == q.rows && out.cols == q.cols, "output is not heads x head_dim");
  }

  Status check_pool(const Op& op, const std::vector<TensorId>& state, const Kv& kv,
                    int64_t blocks) {
    HR_TRY(need(state.size() == 2, "not exactly tails and a pool"));
    HR_TRY(check_tails(op, 1, kv));
    const Tensor& t = g_.at(state[1]);
    return need(t.role == Role::kState && t.dtype == DType::kI8 && t.cols == kv.tile &&
                    t.rows % blocks == 0 &&
                    t.rows / blocks == op.iattr(Attr::kSegmentTokens) / kKvTile,
                "a pool of the wrong size");
  }

  // A tail and segment_count slots of each sequence.
  Status check_slots(const Op& op, const std::vector<TensorId>& state, const Kv& kv) {
    const auto count = static_cast<size_t>(op.iattr(Attr::kSegmentCount));
    HR_TRY(need(!state.empty() && count < state.size() && state.size() % (count + 1) == 0,
                "KV slots are not whole sequences"));
    const size_t sequences = state.size() / (count + 1);
    HR_TRY(check_tails(op, sequences, kv));
    const int64_t begin = op.iattr(Attr::kSegmentBegin);
    for (size_t i = 0; i < sequences * count; ++i) {
      const Tensor& t = g_.at(state[sequences + i]);
      const KvSlot& s = t.slot;
      HR_TRY(need(t.role == Role::kState, "a KV slot is no state"));
      HR_TRY(need(s.layer >= 0, "state without a slot"));
      HR_TRY(need(t.dtype == DType::kI8 && t.cols == kv.tile &&
                      t.rows == op.iattr(Attr::kSegmentTokens) / kKvTile,
                  "a KV slot of the wrong size"));
      HR_TRY(need(s.layer == g_.at(state[sequences]).slot.layer, "KV slots of several layers"));
      HR_TRY(need(s.sequence == static_cast<int64_t>(i / count) &&
                      s.segment == begin + static_cast<int64_t>(i % count),
                  "KV slots are out of order"));
    }
    return {};
  }

  Status check_outputs() {
    for (size_t i = 0; i < g_.tensors.size(); ++i) {
      const Tensor& t = g_.tensors[i];
      if (t.role == Role::kOutput && columns_[i] != t.cols) {
        return bad("output is never fully written", t.name);
      }
    }
    return {};
  }

  const Graph& g_;
  std::vector<int64_t> columns_;  // by tensor: columns written so far
  double seconds_ = 0;            // of the kernels so far
};

}  // namespace

Status verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace headrace
