// Random steps and random Programs of them, made without the planner: at each op every tensor that
// is not needed at once is kept, moved whole or in parts to any tier, encoded, or dropped to be
// computed again. Offsets are first fit; an instruction waits for everything that could matter.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "headrace/ir/program.h"

namespace headrace::test {

struct RandomStep {
  std::shared_ptr<const Graph> graph;
  Bytes file_bytes = 0;  // of the weights, object 0 of tier 1
};

inline TensorId add_tensor(Graph& g, const std::string& name, Role role, Bytes bytes,
                           DType dtype = DType::kF32) {
  Tensor t;
  t.name = name;
  t.role = role;
  t.dtype = dtype;
  t.cols = bytes / info(dtype).block_bytes;
  t.bytes = bytes;
  return g.add(t);
}

// Forward ops that read what came before, then as many that read the early tensors again, in
// reverse order, as a training step does. `states` tensors are updated in the second half.
inline RandomStep random_step(uint64_t seed, int ops, int states, int weights,
                              Bytes most = 24 * kKiB) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto size = [&] {
    return 4 * (1 + static_cast<Bytes>(below(static_cast<size_t>(most / 4))));
  };
  RandomStep out;
  Graph g;
  g.name = "random" + std::to_string(seed);
  std::vector<TensorId> state, weight, made;
  for (int i = 0; i < states; ++i) {
    state.push_back(add_tensor(g, "state" + std::to_string(i), Role::kState, size()));
  }
  for (int i = 0; i < weights; ++i) {
    const Bytes bytes = size();
    weight.push_back(add_tensor(g, "weight" + std::to_string(i), Role::kWeight, bytes));
    g.tensors.back().source = {0, out.file_bytes + 64, bytes};
    out.file_bytes = round_up(out.file_bytes + 64 + bytes, kPage);
  }
  for (int k = 0; k < ops; ++k) {
    Op op;
    op.kind = OpKind::kKernel;
    op.kernel = "mix";
    op.name = "op" + std::to_string(k);
    op.workspace = below(3) == 0 ? kLine * static_cast<Bytes>(1 + below(40)) : 0;
    const auto read = [&](TensorId t) {
      if (std::find(op.inputs.begin(), op.inputs.end(), t) == op.inputs.end())
        op.inputs.push_back(t);
    };
    if (!made.empty()) read(made.back());
    const bool second_half = 2 * k >= ops;
    if (second_half && static_cast<size_t>(ops - 1 - k) < made.size()) {
      read(made[static_cast<size_t>(ops - 1 - k)]);
    }
    if (!weight.empty() && below(2) == 0) read(weight[below(weight.size())]);
    if (!state.empty() && k + 1 < ops) {
      const TensorId s = state[below(state.size())];
      if (second_half && below(2) == 0) {
        op.updates.push_back(s);
      } else if (below(3) == 0) {
        read(s);
      }
    }
    op.attrs[Attr::kSeconds] = 1e-4 * static_cast<double>(1 + below(20));
    const bool last = k + 1 == ops;
    const TensorId t =
        add_tensor(g, last ? "out" : "t" + std::to_string(k),
                   last ? Role::kOutput : Role::kActivation, size(),
                   !last && below(4) == 0 ? DType::kI32 : DType::kF32);
    op.outputs.push_back(t);
    made.push_back(t);
    g.ops.push_back(std::move(op));
  }
  out.graph = std::make_shared<const Graph>(std::move(g));
  return out;
}

// How likely each way is (0: never); what is left is kept.
struct Ways {
  int move = 40, parts = 20, encode = 0, encode_and_move = 0, recompute = 10, keep = 30;
  bool cyclic = false;
  Bytes unit = kLine;  // extents and parts are multiples of this
  int only_tier = 0;   // moves go to this tier alone; 0: to any
};

class RandomProgram {
 public:
  RandomProgram(std::shared_ptr<const Graph> graph, std::vector<TierInfo> tiers, const Ways& ways,
                uint64_t seed)
      : g_(*graph), ways_(ways), random_(seed) {
    p_.name = "random";
    p_.graph = std::move(graph);
    p_.tiers = std::move(tiers);
    p_.cyclic = ways.cyclic;
    lives_.resize(g_.tensors.size());
    last_touch_.assign(g_.tensors.size(), -1);
    producer_.assign(g_.tensors.size(), -1);
    changed_.assign(g_.tensors.size(), false);
    for (int32_t k = 0; k < static_cast<int32_t>(g_.ops.size()); ++k) {
      const Op& op = g_.ops[static_cast<size_t>(k)];
      for (TensorId t : op.inputs) last_touch_[t.index()] = k;
      for (TensorId t : op.outputs) last_touch_[t.index()] = producer_[t.index()] = k;
      for (TensorId t : op.updates) {
        last_touch_[t.index()] = k;
        changed_[t.index()] = true;
      }
    }
  }

  Program make() {
    begin_states();
    for (int32_t k = 0; k < static_cast<int32_t>(g_.ops.size()); ++k) {
      const bool last = k + 1 == static_cast<int32_t>(g_.ops.size());
      // The last op touches no state, and what brings it back must have ended before the exit.
      if (last) end_states();
      bring_operands(k);
      run_op(k);
      for (size_t t = 0; t < g_.tensors.size(); ++t) {
        if (!last || g_.tensors[t].role != Role::kState) settle(id(t), k);
      }
    }
    for (Held& h : held_) {
      if (h.r.end.value < 0) h.r.end = p_.exit();
    }
    place();
    wait();
    for (Held& h : held_) p_.residencies.push_back(h.r);
    std::stable_sort(p_.residencies.begin(), p_.residencies.end(), [](auto& a, auto& b) {
      return std::pair(a.begin.value, a.offset) < std::pair(b.begin.value, b.offset);
    });
    return std::move(p_);
  }

  int transfers(InstrKind kind) const { return made_[static_cast<size_t>(kind)]; }

 private:
  struct Held {
    Residency r;
    std::vector<int32_t> reads, writes;  // steps
    Bytes alignment = kLine;
    int32_t same_place = -1;  // begins where this one (of the entry) is
  };
  struct Life {
    std::vector<int32_t> plain, encoded;                  // on the device, by part
    std::vector<int32_t> copies, encoded_copies;          // in other tiers
    Codec codec = Codec::kNone;
    bool dropped = false;                                 // must be computed again
    std::vector<int32_t> entry;                           // what it has at entry
  };

  static TensorId id(size_t t) { return TensorId(static_cast<int64_t>(t)); }
  int32_t now() const { return static_cast<int32_t>(p_.instrs.size()); }
  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  Life& life(TensorId t) { return lives_[t.index()]; }

  int32_t open(TensorId t, TierId tier, Range range, Codec codec, int32_t begin) {
    Held h;
    h.r.tensor = t;
    h.r.tier = tier;
    h.r.range = range;
    h.r.codec = codec;
    h.r.bytes = round_up(range_bytes(g_.at(t), range, codec), ways_.unit);
    h.r.begin = Step(begin);
    h.r.end = Step(-1);
    const bool pages = tier == kDevice && g_.at(t).role == Role::kWeight;
    h.alignment = pages ? kPage : ways_.unit;
    held_.push_back(h);
    return static_cast<int32_t>(held_.size()) - 1;
  }
  Held& at(int32_t i) { return held_[static_cast<size_t>(i)]; }
  void close(int32_t i, int32_t step) { at(i).r.end = Step(step); }
  void close_all(std::vector<int32_t>& list) {
    for (int32_t i : list) close(i, now());
    list.clear();
  }

  int32_t emit(Instr i) {
    ++made_[static_cast<size_t>(i.kind)];
    if (is_transfer(i.kind)) i.stream = link_stream(p_.tiers, i.tier, i.kind);
    p_.instrs.push_back(std::move(i));
    return now() - 1;
  }
  Instr instr(InstrKind kind, TensorId t, TierId tier, Range range, Codec codec) {
    Instr i;
    i.kind = kind;
    i.tensor = t;
    i.tier = tier;
    i.range = range;
    i.codec = codec;
    return i;
  }

  TierId some_tier() {
    if (ways_.only_tier > 0) return TierId(ways_.only_tier);
    return TierId(static_cast<int64_t>(1 + below(p_.tiers.size() - 1)));
  }
  std::vector<Range> ranges(TensorId t, bool parts) {
    const Bytes all = round_up(device_bytes(g_.at(t)), ways_.unit);
    const Bytes unit = g_.at(t).role == Role::kWeight ? kPage : ways_.unit;
    if (!parts || all < 2 * unit) return {Range{}};
    const Bytes cut = unit * (1 + static_cast<Bytes>(below(static_cast<size_t>(all / unit - 1))));
    if (cut >= device_bytes(g_.at(t))) return {Range{}};
    return {Range{0, cut}, Range{cut, -1}};
  }

  void begin_states() {
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      if (g_.tensors[t].role != Role::kState) continue;
      Life& l = lives_[t];
      const bool away = ways_.cyclic && below(2) == 0;
      if (away) {
        const TierId tier = some_tier();
        for (const Range& range : ranges(id(t), below(2) == 0)) {
          l.copies.push_back(open(id(t), tier, range, Codec::kNone, -1));
        }
      } else {
        l.plain.push_back(open(id(t), kDevice, {}, Codec::kNone, -1));
      }
      l.entry = away ? l.copies : l.plain;
    }
  }

  // Cyclic: everything back to where it was at entry.
  void end_states() {
    for (size_t t = 0; ways_.cyclic && t < g_.tensors.size(); ++t) {
      if (g_.tensors[t].role != Role::kState) continue;
      Life& l = lives_[t];
      const std::vector<int32_t> entry = l.entry;
      const Residency first = at(entry[0]).r;
      if (first.tier == kDevice) {
        if (l.plain.size() == 1 && l.plain[0] == entry[0]) {
          close_all(l.copies);
          continue;  // it never left
        }
        bring(id(t));
        close_all(l.copies);
        move(id(t), some_tier(), {Range{}});
        bring(id(t));
        at(l.plain[0]).same_place = entry[0];
        close_all(l.copies);
        continue;
      }
      const bool untouched = l.copies == entry;
      if (untouched) {
        if (!l.plain.empty()) detach(id(t), {}, Codec::kNone, l.plain);
        continue;
      }
      bring(id(t));
      close_all(l.copies);
      std::vector<Range> list;
      for (int32_t e : entry) list.push_back(at(e).r.range);
      move(id(t), first.tier, list);
      for (size_t e = 0; e < entry.size(); ++e) at(l.copies[e]).same_place = entry[e];
    }
  }

  void detach(TensorId t, Range range, Codec codec, std::vector<int32_t>& pieces) {
    const int32_t s = emit(instr(InstrKind::kDetach, t, kDevice, range, codec));
    for (int32_t i : pieces) {
      // It ends when everything that uses it has.
      for (const auto* list : {&at(i).reads, &at(i).writes}) {
        for (int32_t w : *list) extra_waits(s).push_back(w);
      }
      close(i, s);
    }
    pieces.clear();
  }
  std::vector<int32_t>& extra_waits(int32_t s) {
    waits_.resize(std::max(waits_.size(), static_cast<size_t>(s) + 1));
    return waits_[static_cast<size_t>(s)];
  }

  void move(TensorId t, TierId tier, const std::vector<Range>& list, Codec codec = Codec::kNone) {
    Life& l = life(t);
    auto& from = codec == Codec::kNone ? l.plain : l.encoded;
    auto& to = codec == Codec::kNone ? l.copies : l.encoded_copies;
    const bool weight = g_.at(t).role == Role::kWeight;
    for (const Range& range : weight ? std::vector<Range>() : list) {
      const int32_t s = emit(instr(InstrKind::kStore, t, tier, range, codec));
      for (int32_t i : from) at(i).reads.push_back(s);
      to.push_back(open(t, tier, range, codec, s));
      at(to.back()).writes.push_back(s);
    }
    detach(t, {}, codec, from);
  }

  // Makes `t` resident in one piece.
  void bring(TensorId t) {
    Life& l = life(t);
    if (!l.plain.empty()) return;
    if (l.dropped) {
      l.dropped = false;
      const int32_t k = producer_[t.index()];
      bring_operands(k);
      run_op(k);
      return;
    }
    if (g_.at(t).role == Role::kWeight) {
      load(t, TierId(1), ranges(t, below(2) == 0), {}, Codec::kNone);
      return;
    }
    if (l.codec != Codec::kNone && l.encoded.empty()) {
      load(t, kDevice, {}, l.encoded_copies, l.codec);
    }
    if (l.codec != Codec::kNone) {
      const int32_t s = emit(instr(InstrKind::kDecode, t, kDevice, {}, l.codec));
      at(l.encoded[0]).reads.push_back(s);
      l.plain.push_back(open(t, kDevice, {}, Codec::kNone, s));
      at(l.plain[0]).writes.push_back(s);
      detach(t, {}, l.codec, l.encoded);
      close_all(l.encoded_copies);
      l.codec = Codec::kNone;
      return;
    }
    load(t, kDevice, {}, l.copies, Codec::kNone);
  }

  // From the copies given, or from the file by ranges. The parts lie side by side: see place().
  void load(TensorId t, TierId tier, std::vector<Range> list, const std::vector<int32_t>& copies,
            Codec codec) {
    Life& l = life(t);
    auto& to = codec == Codec::kNone ? l.plain : l.encoded;
    for (int32_t c : copies) list.push_back(at(c).r.range);
    for (size_t i = 0; i < list.size(); ++i) {
      const TierId from = copies.empty() ? tier : at(copies[i]).r.tier;
      const int32_t s = emit(instr(InstrKind::kLoad, t, from, list[i], codec));
      if (!copies.empty()) at(copies[i]).reads.push_back(s);
      to.push_back(open(t, kDevice, list[i], codec, s));
      at(to.back()).writes.push_back(s);
    }
  }

  void bring_operands(int32_t k) {
    const Op& op = g_.ops[static_cast<size_t>(k)];
    for (TensorId t : op.inputs) bring(t);
    for (TensorId t : op.updates) bring(t);
  }

  void run_op(int32_t k) {
    const Op& op = g_.ops[static_cast<size_t>(k)];
    Instr i;
    i.op = OpId(k);
    i.cost_ns = static_cast<Nanos>(op.attr(Attr::kSeconds) * 1e9);
    const int32_t s = emit(i);
    for (TensorId t : op.inputs) {
      for (int32_t h : life(t).plain) at(h).reads.push_back(s);
    }
    for (TensorId t : op.updates) {
      for (int32_t h : life(t).plain) at(h).writes.push_back(s);
      for (int32_t c : life(t).copies) close(c, s);  // out of date
      life(t).copies.clear();
    }
    for (TensorId t : op.outputs) {
      life(t).plain.push_back(open(t, kDevice, {}, Codec::kNone, s));
      at(life(t).plain.back()).writes.push_back(s);
    }
    if (op.workspace > 0) {
      Held h;
      h.r.op = OpId(k);
      h.r.bytes = round_up(op.workspace, ways_.unit);
      h.r.begin = Step(s);
      h.r.end = Step(s + 1);
      h.alignment = ways_.unit;
      h.writes.push_back(s);
      held_.push_back(h);
    }
  }

  bool can_recompute(TensorId t) const {
    const int32_t k = producer_[t.index()];
    if (k < 0 || !g_.ops[static_cast<size_t>(k)].updates.empty() || changed_[t.index()])
      return false;
    for (TensorId in : g_.ops[static_cast<size_t>(k)].inputs) {
      const Role role = g_.at(in).role;
      if (changed_[in.index()] || role == Role::kState) return false;
      // Its inputs must still be known somewhere at the last time that it may be wanted.
      if (role == Role::kActivation && last_touch_[in.index()] < last_touch_[t.index()])
        return false;
    }
    return true;
  }

  // After op k: what happens to `t` until its next use.
  void settle(TensorId t, int32_t k) {
    Life& l = life(t);
    const Role role = g_.at(t).role;
    if (l.plain.empty() || role == Role::kOutput) return;
    if (last_touch_[t.index()] <= k && role != Role::kState) {
      if (role == Role::kWeight) {
        detach(t, {}, Codec::kNone, l.plain);
      } else {
        close_all(l.plain);
      }
      close_all(l.copies);
      return;
    }
    if (below(3) != 0) return;  // often nothing changes
    int choice = static_cast<int>(
        below(static_cast<size_t>(ways_.move + ways_.parts + ways_.encode + ways_.encode_and_move +
                                  ways_.recompute + ways_.keep)));
    const auto chosen = [&](int weight) { return (choice -= weight) < 0; };
    if (chosen(ways_.move) || chosen(ways_.parts)) {
      const bool parts = below(2) == 0 && ways_.parts > 0;
      if (!l.copies.empty()) {
        detach(t, {}, Codec::kNone, l.plain);  // the copies are still good
      } else {
        move(t, some_tier(), ranges(t, parts));
      }
    } else if (chosen(ways_.encode) || chosen(ways_.encode_and_move)) {
      const bool away = ways_.encode == 0 || below(2) == 0;
      if (role != Role::kActivation || g_.at(t).dtype != DType::kF32 || !l.copies.empty()) return;
      l.codec = Codec::kBytePlane;
      const int32_t s = emit(instr(InstrKind::kEncode, t, kDevice, {}, l.codec));
      for (int32_t h : l.plain) at(h).reads.push_back(s);
      l.encoded.push_back(open(t, kDevice, {}, l.codec, s));
      at(l.encoded[0]).writes.push_back(s);
      detach(t, {}, Codec::kNone, l.plain);
      if (away && ways_.encode_and_move > 0) move(t, some_tier(), {Range{}}, l.codec);
    } else if (chosen(ways_.recompute) && can_recompute(t) && l.copies.empty()) {
      close_all(l.plain);
      l.dropped = true;
    }
  }

  bool meet(const Residency& a, const Residency& b) const {
    return a.tier == b.tier && a.begin < b.end && b.begin < a.end;
  }

  // First fit by begin; parts that are loaded together lie side by side.
  void place() {
    std::vector<bool> done(held_.size(), false);
    const auto free_at = [&](size_t i, Bytes offset, Bytes bytes) -> Bytes {
      // The end of something in the way, or -1.
      for (size_t j = 0; j < held_.size(); ++j) {
        const Residency& o = held_[j].r;
        if (!done[j] || !meet(o, held_[i].r)) continue;
        if (offset < o.offset + o.bytes && o.offset < offset + bytes) return o.offset + o.bytes;
      }
      return -1;
    };
    // What a cycle must find again has its place all the time.
    std::vector<Bytes> reserved(p_.tiers.size(), 0);
    for (size_t i = 0; i < held_.size(); ++i) {
      Residency& r = held_[i].r;
      if (!ways_.cyclic || r.begin != kEntry) continue;
      Bytes& at = reserved[r.tier.index()];
      r.offset = at = round_up(at, held_[i].alignment);
      at += r.bytes;
      done[i] = true;
    }
    for (size_t i = 0; i < held_.size(); ++i) {
      if (held_[i].same_place < 0) continue;
      held_[i].r.offset = at(held_[i].same_place).r.offset;
      done[i] = true;
    }
    for (size_t i = 0; i < held_.size(); ++i) {
      if (done[i]) continue;
      Residency& r = held_[i].r;
      size_t parts = 1;
      Bytes bytes = r.bytes;
      if (r.tier == kDevice && r.range.begin == 0 && r.range.bytes >= 0 && i + 1 < held_.size()) {
        parts = 2;
        bytes = r.range.bytes + held_[i + 1].r.bytes;
        // Both as long as the longer, so that one search serves.
        r.end = std::max(r.end, held_[i + 1].r.end);
      }
      Bytes offset = reserved[r.tier.index()];
      for (;;) {
        offset = round_up(offset, held_[i].alignment);
        const Bytes after = free_at(i, offset, bytes);
        if (after < 0) break;
        offset = after;
      }
      r.offset = offset;
      done[i] = true;
      if (parts == 2) {
        r.bytes = r.range.bytes;
        held_[i + 1].r.offset = offset + r.range.bytes;
        done[i + 1] = true;
      }
    }
    for (const Held& h : held_) {
      if (h.r.tier == kDevice) p_.arena_bytes = std::max(p_.arena_bytes, h.r.offset + h.r.bytes);
    }
    p_.arena_bytes = round_up(p_.arena_bytes, kPage);
    p_.tiers[0].capacity = p_.arena_bytes;
  }

  void wait_for(int32_t step, const std::vector<int32_t>& others) {
    for (int32_t o : others) {
      const bool last_cycle = o >= step;
      if (last_cycle && !ways_.cyclic) continue;
      p_.instrs[static_cast<size_t>(step)].waits.push_back(Step(o));
    }
  }

  void wait() {
    for (size_t i = 0; i < held_.size(); ++i) {
      const Held& h = held_[i];
      for (size_t j = 0; j < held_.size(); ++j) {
        const Held& o = held_[j];
        const bool apart = h.r.tier != o.r.tier || h.r.offset + h.r.bytes <= o.r.offset ||
                           o.r.offset + o.r.bytes <= h.r.offset;
        if (apart) continue;
        for (int32_t w : h.writes) {
          wait_for(w, o.writes);
          wait_for(w, o.reads);
        }
        for (int32_t w : h.reads) wait_for(w, o.writes);
      }
    }
    waits_.resize(p_.instrs.size());
    for (int32_t s = 0; s < now(); ++s) {
      auto& waits = p_.instrs[static_cast<size_t>(s)].waits;
      wait_for(s, waits_[static_cast<size_t>(s)]);
      std::sort(waits.begin(), waits.end());
      waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    }
  }

  const Graph& g_;
  const Ways ways_;
  std::mt19937_64 random_;
  Program p_;
  std::vector<Life> lives_;
  std::vector<Held> held_;
  std::vector<std::vector<int32_t>> waits_;
  std::vector<int32_t> last_touch_, producer_;
  std::vector<bool> changed_;
  std::array<int, kInstrKindCount> made_{};
};

}  // namespace headrace::test
