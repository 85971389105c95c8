// Values: plays the steps with a table of which bytes of which form are where and in which version,
// and asks ByteOrder whether each instruction may touch what it touches.
#include <algorithm>
#include <tuple>
#include <utility>

#include "headrace/ir/program_verify.h"

namespace headrace::verifier {
namespace {

// The versions that the order of the graph gives to each op: an op may run at another place, or
// again, as long as it finds the same.
struct Expected {
  std::vector<std::vector<int32_t>> inputs, updates;  // by op, then operand
  std::vector<int32_t> writers;                       // by tensor: ops that have it as an output

  explicit Expected(const Graph& g) : writers(g.tensors.size(), 0) {
    std::vector<int32_t> version(g.tensors.size(), 0);
    for (const Op& op : g.ops) {
      auto& in = inputs.emplace_back();
      for (TensorId t : op.inputs) in.push_back(t.valid() ? version[t.index()] : 0);
      auto& up = updates.emplace_back();
      for (TensorId t : op.updates) up.push_back(version[t.index()]++);
      for (TensorId t : op.outputs) {
        version[t.index()] = 1;
        ++writers[t.index()];
      }
    }
    final = std::move(version);
  }

  std::vector<int32_t> final;  // by tensor: after all ops
};

class Player {
 public:
  explicit Player(const Program& p)
      : p_(p), g_(*p.graph), n_(p.exit().value), expected_(g_), order_(p), holdings_(p),
        begins_(p.instrs.size() + 1), ends_(p.instrs.size() + 1) {
    for (const Residency& r : p.residencies) {
      begins_[static_cast<size_t>(r.begin.value + 1)].push_back(&r);
      ends_[r.end.index()].push_back(&r);
    }
  }

  Status run() {
    HR_TRY(check_lives());
    HR_TRY(play(0));
    if (!p_.cyclic) return {};
    HR_TRY(check_cycle(p_));
    return play(1);
  }

 private:
  std::string name(TensorId t) const { return "'" + g_.at(t).name + "'"; }

  // What roles ask of residencies, whatever happens in between.
  Status check_lives() const {
    for (const Residency& r : p_.residencies) {
      if (!r.tensor.valid()) continue;
      const Role role = g_.at(r.tensor).role;
      const bool persistent = role == Role::kWeight || role == Role::kState;
      const bool throughout = r.begin == kEntry && r.end.value == n_ && r.tier == kDevice;
      if (role == Role::kConstant && !throughout) {
        return broken("constant " + name(r.tensor) + " is not resident throughout");
      }
      if (r.begin == kEntry && !persistent && role != Role::kConstant) {
        return broken("residency of " + name_of(p_, r) + " begins without a load or an op");
      }
      if (persistent && r.tier == kDevice && r.end.value < n_ && !detached_at(r)) {
        return broken("residency of " + name_of(p_, r) + " ends without a detach");
      }
    }
    return {};
  }

  bool detached_at(const Residency& r) const {
    const Instr& i = p_.instrs[r.end.index()];
    return i.kind == InstrKind::kDetach && i.tensor == r.tensor && i.codec == r.codec;
  }

  Status play(int32_t cycle) {
    HR_TRY(enter(cycle));
    ran_.assign(g_.ops.size(), false);
    for (int32_t s = 0; s < n_; ++s) {
      Status status = step(cycle, s);
      if (!status.ok()) return status.within(describe(s));
    }
    return leave();
  }

  std::string describe(int32_t step) const {
    const Instr& i = p_.instrs[static_cast<size_t>(step)];
    const std::string& what =
        i.kind == InstrKind::kCompute ? g_.at(i.op).name : g_.at(i.tensor).name;
    return text_of("step %d (%s '%s')", step, headrace::name_of(i.kind), what.c_str());
  }

  Status enter(int32_t cycle) {
    const Holdings before = std::exchange(holdings_, Holdings(p_));
    const std::vector<int32_t> versions = std::exchange(
        version_, std::vector<int32_t>(g_.tensors.size(), 0));
    for (const Residency* r : begins_[0]) {
      HR_TRY(holdings_.begin(*r));
      if (!r->tensor.valid()) continue;
      // check_cycle() has seen to it that the residencies at exit cover those at entry.
      const bool present = cycle == 0 || before.covers(*r, versions[r->tensor.index()]);
      holdings_.held(*r).version = present ? 0 : kStale;
    }
    return {};
  }

  Result<Piece> find(TensorId t, TierId tier, Codec codec, const Span& span) {
    return holdings_.find(t, tier, codec, span);
  }
  Result<Piece> plain(TensorId t) {
    return find(t, kDevice, Codec::kNone, all_of(g_.at(t), Codec::kNone));
  }

  template <typename Touch>
  Status touch(const Piece& piece, Touch touch_bytes) {
    for (const Held* held : piece.parts) {
      const Residency& r = *held->residency;
      const Bytes from = std::max(piece.span.begin, r.range.begin);
      const Bytes to = std::min(piece.span.end, held->end);
      HR_TRY(touch_bytes(piece.tier, r.offset + from - r.range.begin, to - from, r));
    }
    return {};
  }
  Status read(const Piece& piece) {
    return touch(piece, [this](auto&&... a) { return order_.read(a...); });
  }
  Status write(const Piece& piece) {
    return touch(piece, [this](auto&&... a) { return order_.write(a...); });
  }

  Status is_version(const Piece& piece, int32_t want) const {
    for (const Held* held : piece.parts) {
      if (held->version == want) continue;
      const std::string what = name_of(p_, *held->residency);
      if (held->version == kEmpty) return broken(what + " is not fully written");
      return broken(text_of("%s is stale: version %d, not %d", what.c_str(), held->version,
                            want));
    }
    return {};
  }

  // The residencies that begin at `step` in this place are what it fills: exactly `span`.
  Result<Piece> filled(int32_t step, TensorId t, TierId tier, Codec codec, const Span& span) {
    Bytes bytes = 0;
    for (const Residency* r : begins_[static_cast<size_t>(step + 1)]) {
      if (std::tie(r->tensor, r->tier, r->codec) == std::tie(t, tier, codec)) {
        bytes += span_of(g_.at(t), r->range, codec).size();
      }
    }
    const char* kind = headrace::name_of(p_.instrs[static_cast<size_t>(step)].kind);
    if (bytes == 0) return broken(std::string(kind) + " without a residency");
    HR_ASSIGN(Piece piece, find(t, tier, codec, span));
    const bool begins_here =
        std::all_of(piece.parts.begin(), piece.parts.end(),
                    [&](const Held* held) { return held->residency->begin.value == step; });
    if (bytes != span.size() || !begins_here) {
      return broken(std::string(kind) + " of other bytes than its residency has");
    }
    return piece;
  }

  // ---- instructions ---------------------------------------------------------------------------

  Status step(int32_t cycle, int32_t s) {
    order_.start(cycle, s);
    const Instr& i = p_.instrs[static_cast<size_t>(s)];
    for (const Residency* r : ends_[static_cast<size_t>(s)]) holdings_.end(*r);
    for (const Residency* r : begins_[static_cast<size_t>(s + 1)]) {
      HR_TRY(check_filler(i, *r));
      HR_TRY(holdings_.begin(*r));
    }
    switch (i.kind) {
      case InstrKind::kCompute: return compute(i);
      case InstrKind::kLoad: return load(s, i);
      case InstrKind::kStore: return store(s, i);
      case InstrKind::kGather: return gather(s, i);
      case InstrKind::kDetach: return detach(s, i);
      case InstrKind::kEncode: return encode(s, i);
      case InstrKind::kDecode: return decode(s, i);
    }
    return {};
  }

  // A residency begins at the instruction that fills it.
  Status check_filler(const Instr& i, const Residency& r) const {
    if (!r.tensor.valid()) return {};
    bool fills = false;
    if (r.tier != kDevice) {
      fills = i.kind == InstrKind::kStore && i.tier == r.tier && i.codec == r.codec;
      if (!fills || i.tensor != r.tensor) {
        return broken("copy of " + name_of(p_, r) + " begins without a store");
      }
      return {};
    }
    if (i.kind == InstrKind::kCompute) {
      const auto& out = g_.at(i.op).outputs;
      fills = r.codec == Codec::kNone && std::find(out.begin(), out.end(), r.tensor) != out.end();
    } else if (i.tensor == r.tensor) {
      const bool plain = r.codec == Codec::kNone;
      fills = (i.kind == InstrKind::kLoad && i.codec == r.codec) ||
              (i.kind == InstrKind::kGather && plain) ||
              (i.kind == InstrKind::kDecode && plain) ||
              (i.kind == InstrKind::kEncode && i.codec == r.codec);
    }
    if (fills) return {};
    return broken("residency of " + name_of(p_, r) + " begins without a load or an op");
  }

  Status compute(const Instr& i) {
    const Op& op = g_.at(i.op);
    const auto& want = expected_;
    HR_TRY(check_again(i.op, op));
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const TensorId t = op.inputs[k];
      if (!t.valid()) continue;
      HR_ASSIGN(const Piece piece, plain(t));
      HR_TRY(is_version(piece, version_wanted(t, want.inputs[i.op.index()][k])));
      HR_TRY(read(piece));
    }
    for (size_t k = 0; k < op.updates.size(); ++k) {
      HR_TRY(update(op.updates[k], want.updates[i.op.index()][k]));
    }
    if (op.workspace > 0) {
      const Residency* w = holdings_.workspace_of(i.op);
      if (w == nullptr) return broken("no workspace");
      HR_TRY(order_.write(kDevice, w->offset, op.workspace, *w));
    }
    for (TensorId t : op.outputs) HR_TRY(output(i.op, t));
    ran_[i.op.index()] = true;
    return {};
  }

  // Gathered rows are new in every cycle, so that they cannot be those of the last.
  int32_t version_wanted(TensorId t, int32_t in_graph) const {
    return g_.at(t).role == Role::kGathered ? 1 : in_graph;
  }

  // An op that has run may run again when that brings back the same.
  Status check_again(OpId id, const Op& op) const {
    if (!ran_[id.index()]) return {};
    if (!op.updates.empty() || op.attr(Attr::kRecompute, 1) == 0) {
      return broken("'" + op.name + "' runs twice");
    }
    for (TensorId t : op.outputs) {
      if (version_[t.index()] <= 1) continue;
      return broken(name(t) + " has been changed since: to write it again would undo that");
    }
    return {};
  }

  Status update(TensorId t, int32_t want) {
    HR_ASSIGN(const Piece piece, plain(t));
    HR_TRY(is_version(piece, want));
    HR_TRY(read(piece));
    HR_TRY(write(piece));
    ++version_[t.index()];
    for (Held* held : piece.parts) held->version = version_[t.index()];
    return {};
  }

  Status output(OpId op, TensorId t) {
    HR_ASSIGN(const Piece piece, plain(t));
    HR_TRY(write(piece));
    const int32_t writers = expected_.writers[t.index()];
    for (Held* held : piece.parts) {
      if (writers > 1) {
        auto& done = held->writers;
        if (std::find(done.begin(), done.end(), op) == done.end()) done.push_back(op);
        if (static_cast<int32_t>(done.size()) < writers) continue;
      }
      held->version = 1;
      version_[t.index()] = 1;
    }
    return {};
  }

  Status load(int32_t s, const Instr& i) {
    const Tensor& t = g_.at(i.tensor);
    const Span span = span_of(t, i.range, i.codec);
    if (t.role == Role::kConstant || t.role == Role::kGathered) {
      return broken("a load of " + name(i.tensor) + ", which is no weight");
    }
    const bool file = t.role == Role::kWeight && i.tier == p_.source_tier;
    if (!file) {
      HR_ASSIGN(const Piece from, find(i.tensor, i.tier, i.codec, span));
      HR_TRY(is_version(from, version_[i.tensor.index()]));
      HR_TRY(read(from));
    }
    HR_ASSIGN(const Piece to, filled(s, i.tensor, kDevice, i.codec, span));
    return fill(to, i.tensor);
  }

  Status fill(const Piece& piece, TensorId t) {
    HR_TRY(write(piece));
    for (Held* held : piece.parts) held->version = version_[t.index()];
    return {};
  }

  Status store(int32_t s, const Instr& i) {
    const Span span = span_of(g_.at(i.tensor), i.range, i.codec);
    HR_ASSIGN(const Piece from, find(i.tensor, kDevice, i.codec, span));
    HR_TRY(is_version(from, version_[i.tensor.index()]));
    HR_TRY(read(from));
    HR_ASSIGN(const Piece to, filled(s, i.tensor, i.tier, i.codec, span));
    return fill(to, i.tensor);
  }

  Status gather(int32_t s, const Instr& i) {
    HR_ASSIGN(const Piece to, filled(s, i.tensor, kDevice, Codec::kNone,
                                     all_of(g_.at(i.tensor), Codec::kNone)));
    version_[i.tensor.index()] = 1;
    return fill(to, i.tensor);
  }

  Status detach(int32_t s, const Instr& i) {
    const Span span = span_of(g_.at(i.tensor), i.range, i.codec);
    Bytes given_up = 0;
    for (const Residency* r : ends_[static_cast<size_t>(s)]) {
      if (std::tie(r->tensor, r->tier, r->codec) != std::tie(i.tensor, kDevice, i.codec)) continue;
      const Span part = span_of(g_.at(i.tensor), r->range, r->codec);
      if (part.begin < span.begin || part.end > span.end) {
        return broken("residency of " + name_of(p_, *r) + " ends, but is not detached");
      }
      given_up += part.size();
    }
    if (given_up == span.size()) return {};
    if (find(i.tensor, kDevice, i.codec, span).ok()) {
      return broken("residency goes on after the detach");
    }
    return broken("detach of what is not resident");
  }

  Status encode(int32_t s, const Instr& i) {
    const Tensor& t = g_.at(i.tensor);
    HR_ASSIGN(const Piece from, plain(i.tensor));
    HR_TRY(is_version(from, version_[i.tensor.index()]));
    HR_TRY(read(from));
    HR_ASSIGN(const Piece to, filled(s, i.tensor, kDevice, i.codec, all_of(t, i.codec)));
    return fill(to, i.tensor);
  }

  Status decode(int32_t s, const Instr& i) {
    const Tensor& t = g_.at(i.tensor);
    HR_ASSIGN(const Piece from, find(i.tensor, kDevice, i.codec, all_of(t, i.codec)));
    HR_TRY(is_version(from, version_[i.tensor.index()]));
    HR_TRY(read(from));
    HR_ASSIGN(const Piece to, filled(s, i.tensor, kDevice, Codec::kNone,
                                     all_of(t, Codec::kNone)));
    return fill(to, i.tensor);
  }

  // ---- the end --------------------------------------------------------------------------------

  Status leave() {
    for (size_t o = 0; o < ran_.size(); ++o) {
      if (!ran_[o]) return broken("'" + g_.ops[o].name + "' never runs");
    }
    for (size_t i = 0; i < g_.tensors.size(); ++i) {
      const TensorId t(static_cast<int64_t>(i));
      const Tensor& tensor = g_.tensors[i];
      if (tensor.role == Role::kOutput) {
        auto piece = plain(t);
        if (!piece.ok()) return broken("output " + name(t) + " is gone before the end");
        HR_TRY(is_version(*piece, expected_.final[i]));
      }
      if (tensor.role == Role::kState && !holdings_.survives(t, version_[i])) {
        return broken("state " + name(t) + " has no valid copy at the end");
      }
    }
    return {};
  }

  const Program& p_;
  const Graph& g_;
  const int32_t n_;
  const Expected expected_;
  ByteOrder order_;
  Holdings holdings_;
  std::vector<std::vector<const Residency*>> begins_;  // by step + 1
  std::vector<std::vector<const Residency*>> ends_;    // by step
  std::vector<int32_t> version_;  // by tensor, in this cycle
  std::vector<bool> ran_;         // by op, in this cycle
};

}  // namespace

Status check_values(const Program& program) { return Player(program).run(); }

}  // namespace headrace::verifier
