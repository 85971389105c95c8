// What a step finds at entry and leaves at exit; what a cycle carries over.
#include <algorithm>

#include "headrace/plan/emit_step_walker.h"

namespace headrace::plan::walk {

void Walker::enter(int32_t v) {
  if (tensor(v).role == Role::kGathered) return;  // gathered before its first use
  if (!at_entry(v)) return;
  Form& f = form(life(v).forms, kDevice, Codec::kNone);
  f.from_entry = true;
  add_piece(v, f, 0, value(v).bytes, kEntry.value, kNone);
  life(v).entry_block = f.block;
}

// A cycle finds copies where the last one left them; which, its first load says.
Form* Walker::entry_copy(int32_t v, TierId tier, Codec codec) {
  Life& l = life(v);
  const bool possible = p_.cyclic && value(v).persistent && !l.written &&
                        !l.entry_copy_tier.valid() && l.copies.empty();
  if (!possible) return nullptr;
  Form& f = form(l.copies, tier, codec);
  f.from_entry = true;
  add_piece(v, f, 0, form_bytes(v, codec), kEntry.value, kNone);
  l.entry_copy_block = f.block;
  l.entry_copy_tier = tier;
  l.entry_copy_codec = codec;
  return &f;
}

Status Walker::leave(int32_t v) {
  Life& l = life(v);
  const bool output = tensor(v).role == Role::kOutput;
  if (!value(v).persistent && !output) {
    for (Form& f : l.forms) close(f, steps());
    for (Form& f : l.copies) close_copy(f);
    return {};
  }
  Form* plain = find(l.forms, kDevice, Codec::kNone);
  if (output && !whole(v, plain)) return fault("an output that is not there at the end", v);
  if (p_.cyclic && at_entry(v) && !whole(v, plain)) {
    return fault("a value that is there at entry and not at exit", v);
  }
  const bool home = value(v).home.valid();
  if (p_.cyclic && value(v).persistent && !at_entry(v)) {
    // Untouched all cycle long: it stays in the first tier that has the room.
    if (l.copies.empty() && !home && plain == nullptr && l.forms.empty() &&
        !l.entry_copy_tier.valid()) {
      entry_copy(v, resting_tier(v), Codec::kNone);
    }
    if (plain != nullptr) {
      Instr detach;
      detach.kind = InstrKind::kDetach;
      detach.tensor = value(v).tensor;
      close(*plain, push(detach));
      forget_empty(l.forms);
    }
    plain = nullptr;
  }
  // The copy that the next cycle begins with; else what the device does not hold.
  const bool promised = l.entry_copy_tier.valid();
  std::vector<std::pair<Bytes, Bytes>> kept;
  if (!promised && plain != nullptr) {
    for (const Piece& q : plain->pieces) kept.push_back({q.begin, q.end});
  }
  bool safe = !promised && (home || missing(v, kept) == 0);
  for (Form& f : l.copies) {
    const bool same = f.tier == l.entry_copy_tier && f.codec == l.entry_copy_codec;
    const bool partly = f.codec == Codec::kNone && !promised;
    if (safe || (!partly && !whole(v, &f)) || (promised && !same)) {
      close_copy(f);
      continue;
    }
    for (const Piece& q : f.pieces) {
      kept.push_back({q.begin, q.end});
      held_.push_back(q.residency);
    }
    safe = !partly || missing(v, kept) == 0;
    if (l.entry_copy_block != kNone && l.entry_copy_block != f.block) {
      unions_.push_back({l.entry_copy_block, f.block});
      wait_across(f, l.entry_copy_users);
    }
    f.pieces.clear();
  }
  if (!safe) return fault("a value that must outlive the step and does not", v);
  for (Form& f : l.forms) {
    for (const Piece& q : f.pieces) held_.push_back(q.residency);
  }
  if (plain != nullptr && l.entry_block != kNone && p_.cyclic) {
    wait_across(*plain, l.entry_users);
    if (plain->block != l.entry_block) unions_.push_back({l.entry_block, plain->block});
  }
  return {};
}

// Bytes of the plain form that none of the parts covers.
Bytes Walker::missing(int32_t v, std::vector<std::pair<Bytes, Bytes>> parts) const {
  std::sort(parts.begin(), parts.end());
  Bytes bytes = 0, at = 0;
  for (const auto& [begin, end] : parts) {
    bytes += std::max<Bytes>(0, begin - at);
    at = std::max(at, end);
  }
  return bytes + value(v).bytes - at;
}

// What is there at exit is what the next cycle finds: its users wait for what brought it.
void Walker::wait_across(const Form& exit, const std::vector<int32_t>& users) {
  for (const Piece& q : exit.pieces) {
    for (int32_t step : users) {
      if (q.arrival == kNone || step > q.arrival) continue;
      program().instrs[static_cast<size_t>(step)].waits.push_back(Step(q.arrival));
    }
  }
}

TierId Walker::resting_tier(int32_t v) {
  for (size_t t = 1; t < p_.machine->tiers.size(); ++t) {
    const TierInfo& tier = p_.machine->tiers[t];
    const bool forbidden = !may_store(p_, value(v), TierId(static_cast<int64_t>(t)));
    if (resting_.size() <= t) resting_.resize(t + 1, 0);
    const Bytes bytes = form_bytes(v, Codec::kNone);
    if (forbidden || (tier.capacity > 0 && resting_[t] + bytes > tier.capacity)) continue;
    resting_[t] += bytes;
    return TierId(static_cast<int64_t>(t));
  }
  return TierId(1);
}

Result<Draft> Walker::finish() {
  for (int32_t r : held_) residency(r).end = Step(steps());
  for (const Residency& r : program().residencies) {
    HR_CHECK(r.end.valid(), "every residency ends");
  }
  carry_over();
  join_blocks();
  match_boundary();
  return std::move(d_);
}

// A copy that the last instruction reads is there at exit, and so at entry; nobody reads it then.
void Walker::carry_over() {
  const size_t count = program().residencies.size();
  std::vector<bool> held(count, false);
  for (int32_t r : held_) held[static_cast<size_t>(r)] = true;
  for (size_t i = 0; p_.cyclic && i < count; ++i) {
    Residency r = program().residencies[i];
    if (r.tier == kDevice || held[i] || r.begin == kEntry || r.end.value != steps()) continue;
    r.begin = kEntry;
    r.end = Step(0);
    program().residencies.push_back(r);
    d_.block.push_back(d_.block[i]);
  }
}

void Walker::join_blocks() {
  std::vector<int32_t> parent(static_cast<size_t>(d_.blocks));
  for (int32_t b = 0; b < d_.blocks; ++b) parent[static_cast<size_t>(b)] = b;
  const auto root = [&](int32_t b) {
    while (parent[static_cast<size_t>(b)] != b) b = parent[static_cast<size_t>(b)];
    return b;
  };
  for (const auto& [a, b] : unions_) parent[static_cast<size_t>(root(b))] = root(a);
  for (int32_t& b : d_.block) b = root(b);
  for (ByteUse& u : d_.uses) u.block = root(u.block);
}

// A cyclic Program: the parts at entry are cut where those at exit are, and the other way round.
void Walker::match_boundary() {
  if (!p_.cyclic) return;
  std::vector<std::vector<Bytes>> cuts(static_cast<size_t>(d_.blocks));
  const auto boundary = [&](const Residency& r) {
    return r.tensor.valid() && (r.begin == kEntry) != (r.end.value == steps());
  };
  for (size_t i = 0; i < d_.block.size(); ++i) {
    const Residency& r = program().residencies[i];
    if (!boundary(r)) continue;
    auto& list = cuts[static_cast<size_t>(d_.block[i])];
    list.push_back(r.range.begin);
    list.push_back(r.range.begin + r.bytes);
  }
  for (auto& list : cuts) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  const size_t count = d_.block.size();
  for (size_t i = 0; i < count; ++i) {
    if (!boundary(program().residencies[i])) continue;
    for (Bytes at : cuts[static_cast<size_t>(d_.block[i])]) {
      Residency& left = program().residencies[i];
      const Bytes end = left.range.begin + left.bytes;
      if (at <= left.range.begin || at >= end) continue;
      // `left` keeps the part after the cut, so that ascending cuts all find it.
      Residency before = left;
      before.range = {left.range.begin, at - left.range.begin};
      before.bytes = before.range.bytes;
      left.range = {at, end - at};
      left.bytes = end - at;
      program().residencies.push_back(before);
      d_.block.push_back(d_.block[i]);
    }
  }
}

}  // namespace headrace::plan::walk
