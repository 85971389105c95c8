#include <algorithm>
#include <unordered_map>

#include "headrace/run/prepared.h"
#include "headrace/run/residency_map.h"
#include "headrace/run/stream_order.h"

namespace headrace {
namespace {

long long ll(Bytes n) { return static_cast<long long>(n); }

class Preparer {
 public:
  Preparer(PreparedProgram& out, const PrepareContext& context)
      : out_(out), p_(out.program), g_(*p_.graph), context_(context), where_(p_) {}

  Status run() {
    HR_TRY(check_places());
    list_masks();
    for (int32_t s = 0; s < p_.exit().value; ++s) {
      const Instr& i = p_.instrs[static_cast<size_t>(s)];
      switch (i.kind) {
        case InstrKind::kCompute: HR_TRY(add_compute(s, i)); break;
        case InstrKind::kEncode:
        case InstrKind::kDecode: add_codec(s, i); break;
        case InstrKind::kLoad:
        case InstrKind::kStore: HR_TRY(add_transfer(s, i)); break;
        case InstrKind::kGather: HR_TRY(add_gather(s, i)); break;
        case InstrKind::kDetach: {
          const Tensor& t = g_.at(i.tensor);
          out_.index.push_back(t.role == Role::kWeight ? context_.names.id_of(t.name) : -1);
          break;
        }
      }
    }
    add_stream_waits(out_);
    list_ends();
    list_state();
    if (context_.options.poison_freed) list_freed();
    return make_scratch();
  }

 private:
  Status check_places() const {
    const std::vector<Bytes> needed = copy_bytes(p_);
    for (size_t t = 1; t < needed.size(); ++t) {
      if (needed[t] == 0) continue;
      const CopyPlace place =
          t < context_.options.copies.size() ? context_.options.copies[t] : CopyPlace();
      if (place.object < 0 || place.bytes < needed[t]) {
        return error(Code::kDoesNotFit,
                     "program '%s' keeps %lld bytes of copies in tier '%s', there is room for %lld",
                     p_.name.c_str(), ll(needed[t]), p_.tiers[t].name.c_str(), ll(place.bytes));
      }
    }
    return {};
  }

  std::span<std::byte> memory(Bytes offset, Bytes bytes) const {
    return context_.arena.at(offset, bytes);
  }

  Piece device(TensorId t, Codec codec, Bytes begin, Bytes bytes, int32_t step) const {
    const Piece piece = where_.find(t, kDevice, codec, begin, bytes, step);
    HR_CHECK(piece.found(), "an operand is not resident: verify() would have said so");
    return piece;
  }

  // The address of the tensor itself: weights start `skew` bytes into their extent.
  std::byte* address(TensorId t, int32_t step) const {
    const Tensor& tensor = g_.at(t);
    const Bytes bytes = device_bytes(tensor);
    const Bytes skew = tensor.role == Role::kWeight ? load_extent(tensor.source).skew : 0;
    return memory(device(t, Codec::kNone, 0, bytes, step).offset, bytes).data() + skew;
  }

  // The transfers that `step` has to wait for, see ComputeStep.
  std::vector<int32_t> waits_of(const Instr& i) const {
    std::vector<int32_t> out, open;
    std::vector<int32_t> seen;
    for (Step w : i.waits) open.push_back(w.value);
    while (!open.empty()) {
      const int32_t w = open.back();
      open.pop_back();
      const Instr& other = p_.instrs[static_cast<size_t>(w)];
      if (is_transfer(other.kind)) out.push_back(w);
      if (other.kind != InstrKind::kDetach) continue;
      if (std::find(seen.begin(), seen.end(), w) != seen.end()) continue;
      seen.push_back(w);
      for (Step v : other.waits) open.push_back(v.value);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  Status add_compute(int32_t step, const Instr& i) {
    const Op& op = g_.at(i.op);
    ComputeStep c;
    c.op = &op;
    if (!context_.options.caller_computes) c.kernel = find_kernel(op, DeviceKind::kCpu);
    if (c.kernel == nullptr && !context_.options.caller_computes) {
      const char* kind = op.kernel.empty() ? name_of(op.kind) : op.kernel.c_str();
      return error(Code::kUnsupported, "no kernel computes %s ('%s')", kind, op.name.c_str());
    }
    for (TensorId t : op.inputs) {
      c.inputs.push_back(t.valid() ? address(t, step) : nullptr);
      if (t.valid() && g_.at(t).role == Role::kWeight) {
        c.weights.push_back(context_.names.id_of(g_.at(t).name));
      }
    }
    for (TensorId t : op.outputs) c.outputs.push_back(address(t, step));
    for (TensorId t : op.updates) c.updates.push_back(address(t, step));
    if (op.workspace > 0) {
      const Residency* w = where_.workspace(i.op, step);
      HR_CHECK(w != nullptr, "an op without its workspace");
      c.workspace = memory(w->offset, w->bytes);
    }
    c.waits = waits_of(i);
    out_.index.push_back(static_cast<int32_t>(out_.computes.size()));
    out_.computes.push_back(std::move(c));
    return {};
  }

  void add_codec(int32_t step, const Instr& i) {
    const Tensor& t = g_.at(i.tensor);
    const Bytes encoded = encoded_bytes(i.codec, t);
    CodecStep c;
    c.encodes = i.kind == InstrKind::kEncode;
    c.codec = i.codec;
    c.plain = memory(device(i.tensor, Codec::kNone, 0, device_bytes(t), step).offset, t.bytes);
    c.encoded = memory(device(i.tensor, i.codec, 0, encoded, step).offset, encoded);
    c.waits = waits_of(i);
    if (i.codec == Codec::kBytePlane) most_elements_ = std::max(most_elements_, t.bytes / 4);
    out_.index.push_back(static_cast<int32_t>(out_.codecs.size()));
    out_.codecs.push_back(std::move(c));
  }

  Result<Tier*> tier_of(const Instr& i) const {
    if (i.tier.index() < context_.tiers.size() && context_.tiers[i.tier.index()] != nullptr) {
      return context_.tiers[i.tier.index()];
    }
    return error(Code::kUsage, "program '%s' uses tier '%s', which the executor was not given",
                 p_.name.c_str(), p_.tiers[i.tier.index()].name.c_str());
  }

  Status add_gather(int32_t step, const Instr& i) {
    TransferStep t;
    t.kind = i.kind;
    HR_ASSIGN(t.tier, tier_of(i));
    t.stream = i.stream.value;
    t.tensor = &g_.at(i.tensor);
    const Bytes bytes = device_bytes(*t.tensor);
    t.near = memory(device(i.tensor, Codec::kNone, 0, bytes, step).offset, bytes);
    push(std::move(t), i);
    return {};
  }

  Status add_transfer(int32_t step, const Instr& i) {
    const Tensor& tensor = g_.at(i.tensor);
    TransferStep t;
    t.kind = i.kind;
    HR_ASSIGN(t.tier, tier_of(i));
    t.stream = i.stream.value;
    t.tensor = &tensor;
    Bytes bytes = range_bytes(tensor, i.range, i.codec);
    const Piece near = device(i.tensor, i.codec, i.range.begin, bytes, step);
    const Piece copy = where_.find(i.tensor, i.tier, i.codec, i.range.begin, bytes, step);
    if (copy.found()) {
      const CopyPlace& place = context_.options.copies[i.tier.index()];
      HR_TRY(align(*t.tier, near, copy, i, bytes));
      t.far = {place.object, place.offset + copy.offset, bytes};
      out_.stores |= i.kind == InstrKind::kStore;
    } else {
      HR_CHECK(i.kind == InstrKind::kLoad && tensor.source.valid() && i.codec == Codec::kNone,
               "a transfer without a copy: verify() would have said so");
      t.far = {tensor.source.file, load_extent(tensor.source).offset + i.range.begin, bytes};
    }
    t.near = memory(near.offset, bytes);
    t.kv = copy.found() && tensor.slot.layer >= 0 && tensor.dtype == DType::kI8 &&
           i.codec == Codec::kNone;
    t.kv_begin = i.range.begin;
    if (t.kv && i.kind == InstrKind::kLoad) t.selected = selected_by(i.tensor, step);
    if (i.kind == InstrKind::kLoad && tensor.role == Role::kWeight && i.codec == Codec::kNone) {
      t.held = context_.names.id_of(tensor.name);
    }
    push(std::move(t), i);
    return {};
  }

  // Which slots a mask speaks of, when it is made, and when they are given up.
  void list_masks() {
    std::unordered_map<TensorId, int32_t> made;  // by mask
    for (int32_t s = 0; s < p_.exit().value; ++s) {
      const Instr& i = p_.instrs[static_cast<size_t>(s)];
      if (i.kind == InstrKind::kDetach) detached_[i.tensor] = s;
      if (i.kind != InstrKind::kCompute) continue;
      const Op& op = g_.at(i.op);
      if (op.kind == OpKind::kSelectKv) made[op.outputs[0]] = s;
      if (op.kind != OpKind::kAttention || op.inputs.size() < 3) continue;
      for (TensorId t : op.updates) {
        if (g_.at(t).slot.layer >= 0) masks_[t] = {op.inputs[2], made.at(op.inputs[2]), s};
      }
    }
  }

  // See TransferStep::selected. What stays beyond its use is loaded whatever the mask says, and so is
  // what is loaded before there is one.
  const float* selected_by(TensorId slot, int32_t load) const {
    const auto mask = masks_.find(slot);
    const auto detach = detached_.find(slot);
    if (mask == masks_.end() || detach == detached_.end()) return nullptr;
    const Mask& m = mask->second;
    if (!(m.made < load && load < m.used && m.used < detach->second)) return nullptr;
    return reinterpret_cast<const float*>(address(m.tensor, load)) + g_.at(slot).slot.segment;
  }

  // Rounds `bytes` to what the tier moves; both sides must begin on its boundary and have the room.
  Status align(const Tier& tier, const Piece& near, const Piece& copy, const Instr& i,
               Bytes& bytes) const {
    const Bytes unit = tier.describe().alignment;
    const Bytes rounded = round_up(bytes, unit);
    if (near.offset % unit != 0 || copy.offset % unit != 0 || near.room < rounded ||
        copy.room < rounded) {
      return error(Code::kUnsupported,
                   "tier '%s' moves multiples of %lld bytes: '%s' has %lld bytes at %lld of the "
                   "device and %lld at %lld of the tier",
                   p_.tiers[i.tier.index()].name.c_str(), ll(unit), g_.at(i.tensor).name.c_str(),
                   ll(near.room), ll(near.offset), ll(copy.room), ll(copy.offset));
    }
    bytes = rounded;
    return {};
  }

  void push(TransferStep t, const Instr& i) {
    t.waits = waits_of(i);
    out_.index.push_back(static_cast<int32_t>(out_.transfers.size()));
    out_.transfers.push_back(std::move(t));
  }

  void list_state() {
    for (const Residency& r : p_.residencies) {
      if (!r.tensor.valid() || g_.at(r.tensor).role != Role::kState) continue;
      const Tensor& t = g_.at(r.tensor);
      const StatePlace place{context_.names.id_of(t.name),
                             r.tier,
                             r.codec,
                             r.range.begin,
                             r.range.begin + range_bytes(t, r.range, r.codec),
                             r.offset - r.range.begin};
      if (r.begin == kEntry) out_.state_entry.push_back(place);
      if (r.end == p_.exit()) out_.state_exit.push_back(place);
    }
    for (auto* list : {&out_.state_entry, &out_.state_exit}) {
      std::sort(list->begin(), list->end(),
                [](const StatePlace& a, const StatePlace& b) { return a.key() < b.key(); });
    }
  }

  void list_ends() {
    for (const Residency& r : p_.residencies) {
      if (!r.tensor.valid() || r.tier != kDevice || r.codec != Codec::kNone) continue;
      const Tensor& t = g_.at(r.tensor);
      if (t.role == Role::kWeight) {
        // Where its first byte is, or would be.
        const PreparedProgram::Place place{context_.names.id_of(t.name), r.offset - r.range.begin};
        if (r.begin == kEntry) out_.entry.push_back(place);
        if (r.end == p_.exit()) out_.exit.push_back(place);
      }
      if (t.role == Role::kOutput && r.end == p_.exit()) list_output_loads(r);
      if (t.role == Role::kConstant && r.begin == kEntry) {
        out_.constants.push_back({&t.constant, memory(r.offset, r.bytes).data()});
      }
    }
  }

  void list_output_loads(const Residency& r) {
    const Bytes end = r.range.begin + r.bytes;
    for (int32_t s = std::max(0, r.begin.value); s < r.end.value; ++s) {
      const Instr& i = p_.instrs[static_cast<size_t>(s)];
      if (i.kind != InstrKind::kLoad || i.tensor != r.tensor || i.codec != Codec::kNone) continue;
      const Bytes last = i.range.begin + range_bytes(g_.at(r.tensor), i.range, i.codec);
      if (i.range.begin < end && r.range.begin < last) out_.output_loads.push_back(s);
    }
  }

  // Bytes of residencies that end at a step, less those that another still holds. For tests: slow.
  void list_freed() {
    out_.freed.resize(p_.instrs.size());
    for (const Residency& r : p_.residencies) {
      if (r.tier != kDevice || r.end.value >= p_.exit().value) continue;
      std::vector<std::pair<Bytes, Bytes>> kept;
      for (const Residency& o : p_.residencies) {
        if (o.tier == kDevice && o.begin <= r.end && r.end < o.end) {
          kept.push_back({o.offset, o.offset + o.bytes});
        }
      }
      std::sort(kept.begin(), kept.end());
      Bytes at = r.offset;
      const Bytes end = r.offset + r.bytes;
      auto& freed = out_.freed[r.end.index()];
      for (const auto& [from, to] : kept) {
        if (to <= at || from >= end) continue;
        if (from > at) freed.push_back(memory(at, from - at));
        at = std::max(at, to);
      }
      if (at < end) freed.push_back(memory(at, end - at));
    }
  }

  Status make_scratch() {
    if (most_elements_ == 0) return {};
    HR_ASSIGN(out_.scratch, CodecScratch::create(most_elements_));
    return {};
  }

  PreparedProgram& out_;
  const Program& p_;
  const Graph& g_;
  const PrepareContext& context_;
  const ResidencyMap where_;
  int64_t most_elements_ = 0;
  struct Mask {
    TensorId tensor;
    int32_t made = 0, used = 0;  // steps
  };
  std::unordered_map<TensorId, Mask> masks_;         // by slot
  std::unordered_map<TensorId, int32_t> detached_;   // step
};

}  // namespace

bool covers(const std::vector<StatePlace>& places, const StatePlace& place) {
  const auto of = [](const StatePlace& p) { return std::tuple(p.held, p.tier.value, p.codec); };
  auto at = std::lower_bound(
      places.begin(), places.end(), place,
      [&](const StatePlace& a, const StatePlace& b) { return of(a) < of(b); });
  Bytes begin = place.begin;
  for (; at != places.end() && of(*at) == of(place) && at->begin <= begin; ++at) {
    if (at->distance == place.distance) begin = std::max(begin, at->end);
  }
  return begin >= place.end;
}

void PreparedDeleter::operator()(Prepared* p) const { delete p; }

std::vector<Bytes> copy_bytes(const Program& program) {
  std::vector<Bytes> out(program.tiers.size(), 0);
  for (const Residency& r : program.residencies) {
    if (r.tier == kDevice) continue;
    Bytes& most = out[r.tier.index()];
    most = std::max(most, r.offset + r.bytes);
  }
  return out;
}

Result<PreparedPtr> prepare_program(Program program, const PrepareContext& context) {
  if (program.arena_bytes > context.arena.bytes()) {
    return error(Code::kDoesNotFit, "program '%s' needs an arena of %lld bytes, this one has %lld",
                 program.name.c_str(), ll(program.arena_bytes), ll(context.arena.bytes()));
  }
  PreparedPtr prepared(new Prepared);
  prepared->body = std::make_shared<PreparedProgram>();
  prepared->body->program = std::move(program);
  HR_TRY(Preparer(*prepared->body, context).run());
  return prepared;
}

}  // namespace headrace
