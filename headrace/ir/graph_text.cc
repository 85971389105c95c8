// The text form of a Graph.
//
//   graph "smollm2 decode" max_rows 1 max_output_rows 1
//   t0 weight q4_1 [576 576] bytes 207360 file 0 offset 1795776 "blk.0.attn_q.weight:0"
//   t1 state f16 [64 384] bytes 49152 slot 0 0 0 "kv.0.0.0"
//   t2 constant f32 [1 2] bytes 8 values 1 0.5 "rope"
//   t3 activation f32 [1 64] bytes 256 class gradient "d_x"
//   op matmul "blk.0.attn_q:0" in t5 t0 - - out t6 updates attrs col_begin 0 workspace 0
//   op kernel "conv1" in t1 out t2 updates attrs seconds 1e-3 workspace 0 kernel "Conv2d_Forward"
//
// `class` stands only where it is not that of an activation, `kernel` only where there is one.
#include <charconv>

#include "headrace/ir/graph.h"
#include "headrace/ir/text.h"

namespace headrace {
namespace {

std::string ref(TensorId id) { return id.valid() ? "t" + std::to_string(id.value) : "-"; }

void append_ids(std::string& out, const char* title, const std::vector<TensorId>& ids) {
  out += ' ';
  out += title;
  for (TensorId id : ids) out += ' ' + ref(id);
}

template <typename Enum>
Result<Enum> enum_of(text::Reader& in, int count) {
  HR_ASSIGN(const std::string w, in.word());
  for (int i = 0; i < count; ++i) {
    if (w == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return in.fail("unknown word '" + w + "'");
}

Result<TensorId> tensor_ref(text::Reader& in) {
  HR_ASSIGN(const std::string w, in.word());
  if (w == "-") return TensorId();
  int32_t value = 0;
  const char* end = w.data() + w.size();
  const auto r = std::from_chars(w.data() + 1, end, value);
  if (w[0] != 't' || r.ec != std::errc() || r.ptr != end || value < 0) {
    return in.fail("'" + w + "' is not a tensor");
  }
  return TensorId(value);
}

Result<Tensor> parse_tensor(text::Reader& in) {
  Tensor t;
  HR_ASSIGN(t.role, enum_of<Role>(in, kRoleCount));
  HR_ASSIGN(const std::string dtype, in.word());
  const Result<DType> type = dtype_from_name(dtype);
  if (!type.ok()) return in.fail(type.status().message());
  t.dtype = *type;
  HR_TRY(in.expect("["));
  HR_ASSIGN(t.rows, in.integer());
  HR_ASSIGN(t.cols, in.integer());
  HR_TRY(in.expect("]"));
  HR_TRY(in.expect("bytes"));
  HR_ASSIGN(t.bytes, in.integer());
  if (in.take("file")) {
    HR_ASSIGN(t.source.file, in.small_integer());
    HR_TRY(in.expect("offset"));
    HR_ASSIGN(t.source.offset, in.integer());
    HR_ASSIGN(t.source.bytes, in.integer());
  }
  if (in.take("slot")) {
    HR_ASSIGN(t.slot.layer, in.small_integer());
    HR_ASSIGN(t.slot.sequence, in.small_integer());
    HR_ASSIGN(t.slot.segment, in.small_integer());
  }
  if (in.take("class")) {
    HR_ASSIGN(t.data_class, enum_of<DataClass>(in, kDataClassCount));
  }
  if (in.take("align")) {
    HR_ASSIGN(t.alignment, in.integer());
  }
  if (in.take("values")) {
    if (t.rows < 1 || t.cols < 1 || t.rows > INT32_MAX / t.cols) {
      return in.fail("a constant of impossible shape");
    }
    for (int64_t i = 0; i < t.rows * t.cols; ++i) {
      HR_ASSIGN(const double v, in.real());
      t.constant.push_back(static_cast<float>(v));
    }
  }
  HR_ASSIGN(t.name, in.word());
  return t;
}

Result<Op> parse_op(text::Reader& in) {
  Op op;
  HR_ASSIGN(op.kind, enum_of<OpKind>(in, kOpKindCount));
  HR_ASSIGN(op.name, in.word());
  HR_TRY(in.expect("in"));
  while (in.more() && in.peek() != "out") {
    HR_ASSIGN(const TensorId id, tensor_ref(in));
    op.inputs.push_back(id);
  }
  HR_TRY(in.expect("out"));
  while (in.more() && in.peek() != "updates") {
    HR_ASSIGN(const TensorId id, tensor_ref(in));
    op.outputs.push_back(id);
  }
  HR_TRY(in.expect("updates"));
  while (in.more() && in.peek() != "attrs") {
    HR_ASSIGN(const TensorId id, tensor_ref(in));
    op.updates.push_back(id);
  }
  HR_TRY(in.expect("attrs"));
  while (in.more() && in.peek() != "workspace") {
    HR_ASSIGN(const Attr attr, enum_of<Attr>(in, kAttrCount));
    HR_ASSIGN(op.attrs[attr], in.real());
  }
  HR_TRY(in.expect("workspace"));
  HR_ASSIGN(op.workspace, in.integer());
  if (in.take("kernel")) {
    HR_ASSIGN(op.kernel, in.word());
  }
  return op;
}

}  // namespace

std::string to_text(const Graph& graph) {
  std::string out = "graph " + text::quoted(graph.name) +
                    text_of(" max_rows %lld max_output_rows %lld\n",
                            static_cast<long long>(graph.max_rows),
                            static_cast<long long>(graph.max_output_rows));
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& t = graph.tensors[i];
    out += text_of("t%zu %s %s [ %lld %lld ] bytes %lld", i, name_of(t.role), name_of(t.dtype),
                   static_cast<long long>(t.rows), static_cast<long long>(t.cols),
                   static_cast<long long>(t.bytes));
    if (t.source.valid()) {
      out += text_of(" file %d offset %lld %lld", t.source.file,
                     static_cast<long long>(t.source.offset),
                     static_cast<long long>(t.source.bytes));
    }
    if (t.slot.layer >= 0) {
      out += text_of(" slot %d %d %d", t.slot.layer, t.slot.sequence, t.slot.segment);
    }
    if (t.data_class != DataClass::kActivation) out += text_of(" class %s", name_of(t.data_class));
    if (t.alignment != kLine) out += text_of(" align %lld", static_cast<long long>(t.alignment));
    if (!t.constant.empty()) {
      out += " values";
      for (float v : t.constant) out += ' ' + text::number(static_cast<double>(v));
    }
    out += ' ' + text::quoted(t.name) + '\n';
  }
  for (const Op& op : graph.ops) {
    out += text_of("op %s ", name_of(op.kind)) + text::quoted(op.name);
    append_ids(out, "in", op.inputs);
    append_ids(out, "out", op.outputs);
    append_ids(out, "updates", op.updates);
    out += " attrs";
    for (const auto& [attr, value] : op.attrs) {
      out += text_of(" %s ", name_of(attr)) + text::number(value);
    }
    out += text_of(" workspace %lld", static_cast<long long>(op.workspace));
    if (!op.kernel.empty()) out += " kernel " + text::quoted(op.kernel);
    out += '\n';
  }
  return out;
}

Result<Graph> text::read_graph(Reader& in) {
  if (!in.next_line()) return in.fail("an empty text is not a graph");
  Graph graph;
  HR_TRY(in.expect("graph"));
  HR_ASSIGN(graph.name, in.word());
  HR_TRY(in.expect("max_rows"));
  HR_ASSIGN(graph.max_rows, in.integer());
  HR_TRY(in.expect("max_output_rows"));
  HR_ASSIGN(graph.max_output_rows, in.integer());
  while (in.next_line()) {
    HR_ASSIGN(const std::string head, in.word());
    if (head == "op") {
      HR_ASSIGN(Op op, parse_op(in));
      graph.ops.push_back(std::move(op));
    } else if (head == "t" + std::to_string(graph.tensors.size())) {
      HR_ASSIGN(Tensor t, parse_tensor(in));
      graph.tensors.push_back(std::move(t));
    } else {
      return in.fail("expected t" + std::to_string(graph.tensors.size()) + " or op, found '" +
                     head + "'");
    }
    if (in.more()) return in.fail("'" + in.peek() + "' is left over");
  }
  return graph;
}

Result<Graph> parse_graph(std::string_view source) {
  text::Reader in(source);
  return text::read_graph(in);
}

uint64_t fingerprint(const Graph& graph) {
  // FNV-1a (Fowler, Noll, Vo): a name for a text, not a defence.
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : to_text(graph)) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

}  // namespace headrace
