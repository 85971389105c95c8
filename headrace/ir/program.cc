#include "headrace/ir/program.h"

#include <algorithm>
#include <array>

#include "headrace/ir/text.h"

namespace headrace {
namespace {

constexpr std::array<const char*, kInstrKindCount> kKinds = {
    "compute", "load", "store", "gather", "detach", "encode", "decode"};

bool persistent(const Program& p, const Residency& r) {
  if (!r.tensor.valid() || r.tier != kDevice) return false;
  const Role role = p.graph->at(r.tensor).role;
  return role == Role::kWeight || role == Role::kState;
}

template <typename Keep>
std::vector<Placed> placed_where(const Program& p, Keep keep) {
  std::vector<Placed> out;
  for (const Residency& r : p.residencies) {
    if (persistent(p, r) && keep(r)) {
      out.push_back({p.graph->at(r.tensor).name, r.offset, r.bytes});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Placed& a, const Placed& b) { return a.offset < b.offset; });
  return out;
}

}  // namespace

const char* name_of(InstrKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::vector<Placed> entry_state(const Program& p) {
  return placed_where(p, [](const Residency& r) { return r.begin == kEntry; });
}

std::vector<Placed> exit_state(const Program& p) {
  return placed_where(p, [&](const Residency& r) { return r.end == p.exit(); });
}

LoadExtent load_extent(const FileExtent& source) {
  const Bytes begin = round_down(source.offset, kPage);
  return {begin, round_up(source.offset + source.bytes, kPage) - begin, source.offset - begin};
}

Bytes device_bytes(const Tensor& tensor) {
  if (tensor.role == Role::kWeight) return load_extent(tensor.source).bytes;
  if (tensor.role == Role::kGathered) return round_up(tensor.bytes, kPage);
  return round_up(tensor.bytes, tensor.alignment);
}

Bytes alignment_of(const Tensor& tensor) {
  const bool from_file = tensor.role == Role::kWeight || tensor.role == Role::kGathered;
  return from_file ? kPage : tensor.alignment;
}

Bytes range_bytes(const Tensor& tensor, const Range& range, Codec codec) {
  const Bytes all = codec == Codec::kNone ? device_bytes(tensor)
                                          : round_up(encoded_bytes(codec, tensor), tensor.alignment);
  return range.bytes < 0 ? all - range.begin : range.bytes;
}

namespace {

// The tier whose link `tier` uses: the first of its group.
size_t link_owner(const std::vector<TierInfo>& tiers, size_t tier) {
  for (size_t u = 1; u < tier; ++u) {
    if (tiers[u].group >= 0 && tiers[u].group == tiers[tier].group) return u;
  }
  return tier;
}

}  // namespace

StreamId link_stream(const std::vector<TierInfo>& tiers, TierId tier, InstrKind kind) {
  const size_t owner = link_owner(tiers, tier.index());
  int32_t stream = 1;
  for (size_t u = 1; u < owner; ++u) {
    if (link_owner(tiers, u) == u) stream += tiers[u].duplex ? 2 : 1;
  }
  return StreamId(stream + (kind == InstrKind::kStore && tiers[owner].duplex ? 1 : 0));
}

// ---- text -------------------------------------------------------------------------------------
//
//   program "decode" cyclic 1 arena 67108864 [source 2] [machine "H200"]
//   tier "file" capacity 0 load 1e9 store 1e9 latency 200000 [duplex] [group 0]
//   load t4 tier 1 stream 1 [range 0 4096] [codec bf16] waits 7
//   compute op3 cost 1200 waits 0 2
//   encode t5 codec bf16 cost 900 waits 4
//   detach t4 [range 0 4096] [codec bf16]
//   resident t4 offset 4096 bytes 212992 steps 0 3 [tier 1] [range 0 4096] [codec bf16]
//   workspace op3 offset 8192 bytes 4096 steps 1 2
//   graph ...
//
// What stands in brackets is left out where it is the default. A range is its begin and its bytes,
// -1 for "to the end".

namespace {

void append_part(std::string& out, const Range& range, Codec codec) {
  if (!range.whole()) {
    out += text_of(" range %lld %lld", static_cast<long long>(range.begin),
                   static_cast<long long>(range.bytes));
  }
  if (codec != Codec::kNone) out += text_of(" codec %s", name_of(codec));
}

void append_tier(std::string& out, const TierInfo& t) {
  out += "tier " + text::quoted(t.name) +
         text_of(" capacity %lld load ", static_cast<long long>(t.capacity)) +
         text::number(t.load_bytes_per_s) + " store " + text::number(t.store_bytes_per_s) +
         text_of(" latency %lld", static_cast<long long>(t.latency_ns));
  if (t.duplex) out += " duplex";
  if (t.group != -1) out += text_of(" group %d", t.group);
  if (t.alignment != 1) out += text_of(" align %lld", static_cast<long long>(t.alignment));
  out += '\n';
}

void append_instr(std::string& out, const Instr& i) {
  out += name_of(i.kind);
  if (i.kind == InstrKind::kCompute) {
    out += text_of(" op%d cost %lld", i.op.value, static_cast<long long>(i.cost_ns));
  } else {
    out += text_of(" t%d", i.tensor.value);
    if (is_transfer(i.kind)) out += text_of(" tier %d stream %d", i.tier.value, i.stream.value);
    append_part(out, i.range, i.codec);
    if (i.kind == InstrKind::kEncode || i.kind == InstrKind::kDecode) {
      out += text_of(" cost %lld", static_cast<long long>(i.cost_ns));
    }
  }
  if (!i.waits.empty()) out += " waits";
  for (Step w : i.waits) out += text_of(" %d", w.value);
  out += '\n';
}

void append_residency(std::string& out, const Residency& r) {
  out += r.tensor.valid() ? text_of("resident t%d", r.tensor.value)
                          : text_of("workspace op%d", r.op.value);
  out += text_of(" offset %lld bytes %lld steps %d %d", static_cast<long long>(r.offset),
                 static_cast<long long>(r.bytes), r.begin.value, r.end.value);
  if (r.tier != kDevice) out += text_of(" tier %d", r.tier.value);
  append_part(out, r.range, r.codec);
  out += '\n';
}

}  // namespace

std::string to_text(const Program& p) {
  std::string out = "program " + text::quoted(p.name) +
                    text_of(" cyclic %d arena %lld", p.cyclic ? 1 : 0,
                            static_cast<long long>(p.arena_bytes));
  if (p.source_tier != TierId(1)) out += text_of(" source %d", p.source_tier.value);
  if (!p.machine.empty()) out += " machine " + text::quoted(p.machine);
  out += '\n';
  for (const TierInfo& t : p.tiers) append_tier(out, t);
  for (const Instr& i : p.instrs) append_instr(out, i);
  for (const Residency& r : p.residencies) append_residency(out, r);
  return out + to_text(*p.graph);
}

namespace {

Result<int64_t> numbered(text::Reader& in, const std::string& prefix) {
  HR_ASSIGN(const std::string w, in.word());
  if (w.rfind(prefix, 0) != 0 || w.size() > prefix.size() + 9 || w.size() == prefix.size() ||
      w.find_first_not_of("0123456789", prefix.size()) != std::string::npos) {
    return in.fail("expected " + prefix + "NUMBER, found '" + w + "'");
  }
  return static_cast<int64_t>(std::stoll(w.substr(prefix.size())));
}

Result<int64_t> keyed(text::Reader& in, const char* key) {
  HR_TRY(in.expect(key));
  return in.integer();
}

Result<TierInfo> parse_tier(text::Reader& in) {
  TierInfo t;
  HR_ASSIGN(t.name, in.word());
  HR_ASSIGN(t.capacity, keyed(in, "capacity"));
  HR_TRY(in.expect("load"));
  HR_ASSIGN(t.load_bytes_per_s, in.real());
  HR_TRY(in.expect("store"));
  HR_ASSIGN(t.store_bytes_per_s, in.real());
  HR_ASSIGN(t.latency_ns, keyed(in, "latency"));
  t.duplex = in.take("duplex");
  if (in.take("group")) {
    HR_ASSIGN(t.group, in.small_integer());
  }
  if (in.take("align")) {
    HR_ASSIGN(t.alignment, in.integer());
  }
  return t;
}

Status parse_part(text::Reader& in, Range* range, Codec* codec) {
  if (in.take("range")) {
    HR_ASSIGN(range->begin, in.integer());
    HR_ASSIGN(range->bytes, in.integer());
  }
  if (in.take("codec")) {
    HR_ASSIGN(const std::string name, in.word());
    const Result<Codec> found = codec_from_name(name);
    if (!found.ok()) return in.fail(found.status().message());
    *codec = *found;
  }
  return {};
}

Result<Instr> parse_instr(text::Reader& in, InstrKind kind) {
  Instr i;
  i.kind = kind;
  if (kind == InstrKind::kCompute) {
    HR_ASSIGN(const int64_t op, numbered(in, "op"));
    i.op = OpId(op);
    HR_ASSIGN(i.cost_ns, keyed(in, "cost"));
  } else {
    HR_ASSIGN(const int64_t tensor, numbered(in, "t"));
    i.tensor = TensorId(tensor);
    if (is_transfer(kind)) {
      HR_TRY(in.expect("tier"));
      HR_ASSIGN(i.tier.value, in.small_integer());
      HR_TRY(in.expect("stream"));
      HR_ASSIGN(i.stream.value, in.small_integer());
    }
    HR_TRY(parse_part(in, &i.range, &i.codec));
    if (kind == InstrKind::kEncode || kind == InstrKind::kDecode) {
      HR_ASSIGN(i.cost_ns, keyed(in, "cost"));
    }
  }
  if (in.more()) HR_TRY(in.expect("waits"));
  while (in.more()) {
    HR_ASSIGN(const int32_t step, in.small_integer());
    i.waits.push_back(Step(step));
  }
  return i;
}

Result<Residency> parse_residency(text::Reader& in, bool tensor) {
  Residency r;
  HR_ASSIGN(const int64_t id, numbered(in, tensor ? "t" : "op"));
  if (tensor) {
    r.tensor = TensorId(id);
  } else {
    r.op = OpId(id);
  }
  HR_ASSIGN(r.offset, keyed(in, "offset"));
  HR_ASSIGN(r.bytes, keyed(in, "bytes"));
  HR_TRY(in.expect("steps"));
  HR_ASSIGN(r.begin.value, in.small_integer());
  HR_ASSIGN(r.end.value, in.small_integer());
  if (in.take("tier")) {
    HR_ASSIGN(r.tier.value, in.small_integer());
  }
  HR_TRY(parse_part(in, &r.range, &r.codec));
  return r;
}

}  // namespace

Result<Program> parse_program(std::string_view source) {
  const size_t graph_at = source.find("\ngraph ");
  if (graph_at == std::string_view::npos) {
    return error(Code::kBadFile, "the program holds no graph");
  }
  const std::string_view head_text = source.substr(0, graph_at);
  const auto lines = 1 + std::count(head_text.begin(), head_text.end(), '\n');
  text::Reader tail(source.substr(graph_at + 1), static_cast<int>(lines));
  HR_ASSIGN(Graph graph, text::read_graph(tail));
  Program p;
  p.graph = std::make_shared<const Graph>(std::move(graph));
  text::Reader in(head_text);
  if (!in.next_line()) return in.fail("an empty text is not a program");
  HR_TRY(in.expect("program"));
  HR_ASSIGN(p.name, in.word());
  HR_ASSIGN(const int64_t cyclic, keyed(in, "cyclic"));
  p.cyclic = cyclic != 0;
  HR_ASSIGN(p.arena_bytes, keyed(in, "arena"));
  if (in.take("source")) {
    HR_ASSIGN(p.source_tier.value, in.small_integer());
  }
  if (in.take("machine")) {
    HR_ASSIGN(p.machine, in.word());
  }
  while (in.next_line()) {
    HR_ASSIGN(const std::string head, in.word());
    if (head == "tier") {
      HR_ASSIGN(TierInfo t, parse_tier(in));
      p.tiers.push_back(std::move(t));
    } else if (head == "resident" || head == "workspace") {
      HR_ASSIGN(const Residency r, parse_residency(in, head == "resident"));
      p.residencies.push_back(r);
    } else {
      const auto kind = std::find(kKinds.begin(), kKinds.end(), head);
      if (kind == kKinds.end()) return in.fail("unknown instruction '" + head + "'");
      HR_ASSIGN(Instr i,
                parse_instr(in, static_cast<InstrKind>(kind - kKinds.begin())));
      p.instrs.push_back(std::move(i));
    }
    if (in.more()) return in.fail("'" + in.peek() + "' is left over");
  }
  return p;
}

}  // namespace headrace
