// One instruction for each action and op, and what it does to the forms.
#include <algorithm>

#include "headrace/plan/emit_step_walker.h"

namespace headrace::plan::walk {

int32_t Walker::push(Instr instr) {
  program().instrs.push_back(std::move(instr));
  return steps() - 1;
}

void Walker::use(int32_t instr, TierId tier, int32_t block, Bytes begin, Bytes end) {
  d_.uses.push_back({instr, tier, block, begin, end});
}

// `instr` reads [begin, end) of the form: it waits for what brings them.
void Walker::await(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step) {
  auto& waits = program().instrs[static_cast<size_t>(step)].waits;
  for (const Piece& q : f.pieces) {
    if (q.arrival == kNone || q.end <= begin || q.begin >= end) continue;
    waits.push_back(Step(q.arrival));
  }
  if (!p_.cyclic || !f.from_entry) return;
  (f.tier == kDevice ? life(v).entry_users : life(v).entry_copy_users).push_back(step);
}

Status Walker::act(size_t a, size_t end) {
  const Action& action = s_.actions[a];
  if (action.value < 0 || static_cast<size_t>(action.value) >= p_.values.size()) {
    return fault("an action on no value", kNone);
  }
  const Bytes all = form_bytes(action.value, action.codec);
  const Bytes from = action.range.begin;
  const Bytes to = action.range.bytes < 0 ? all : from + action.range.bytes;
  if (from < 0 || to > all || from >= to) return fault("a range outside the value", action.value);
  switch (action.kind) {
    case ActionKind::kStore: return store(action, from, to);
    case ActionKind::kLoad: return load(action, from, to);
    case ActionKind::kDrop: return drop(action, from, to);
    case ActionKind::kRecompute: return recompute(a, end);
    case ActionKind::kEncode:
    case ActionKind::kDecode: return convert(action);
  }
  return {};
}

Instr Walker::transfer(InstrKind kind, const Action& action, Bytes from, Bytes to) const {
  Instr i;
  i.kind = kind;
  i.tensor = value(action.value).tensor;
  i.tier = action.tier;
  i.stream = link_stream(d_.program.tiers, action.tier, kind);
  i.range = range_of(action.value, action.codec, from, to);
  i.codec = action.codec;
  return i;
}

Status Walker::store(const Action& action, Bytes from, Bytes to) {
  const int32_t v = action.value;
  Life& l = life(v);
  if (Form* have = find(l.copies, action.tier, action.codec)) {
    const Bytes there = covered(*have, from, to);
    if (there == to - from) return {};  // the copy is there and valid: nothing to do
    if (there > 0) return fault("a store that is half done already", v);
  }
  Form* source = find(l.forms, kDevice, action.codec);
  if (source == nullptr || covered(*source, from, to) != to - from) {
    return fault("a store of what is not on the device", v);
  }
  const int32_t step = push(transfer(InstrKind::kStore, action, from, to));
  await(v, *source, from, to, step);
  use(step, kDevice, source->block, from, to);
  Form& copy = form(l.copies, action.tier, action.codec);
  add_piece(v, copy, from, to, step, step);
  use(step, action.tier, copy.block, from, to);
  return {};
}

Status Walker::load(const Action& action, Bytes from, Bytes to) {
  const int32_t v = action.value;
  Life& l = life(v);
  if (Form* there = find(l.forms, kDevice, action.codec)) {
    if (covered(*there, from, to) > 0) return fault("a load of what is there", v);
  }
  const bool home = value(v).home == action.tier && action.codec == Codec::kNone;
  Form* copy = find(l.copies, action.tier, action.codec);
  if (copy == nullptr && !home) copy = entry_copy(v, action.tier, action.codec);
  if (!home && (copy == nullptr || covered(*copy, from, to) != to - from)) {
    return fault("a load from where no copy is", v);
  }
  const int32_t step = push(transfer(InstrKind::kLoad, action, from, to));
  if (copy != nullptr) {
    await(v, *copy, from, to, step);
    for (Piece& q : copy->pieces) {
      if (q.begin < to && from < q.end) q.last_use = step;
    }
    use(step, action.tier, copy->block, from, to);
  }
  Form& f = form(l.forms, kDevice, action.codec);
  add_piece(v, f, from, to, step, step);
  use(step, kDevice, f.block, from, to);
  return {};
}

Status Walker::drop(const Action& action, Bytes from, Bytes to) {
  const int32_t v = action.value;
  Life& l = life(v);
  Form* f = find(l.forms, kDevice, action.codec);
  if (f == nullptr || covered(*f, from, to) == 0) return {};  // dead and gone already
  cut(v, *f, from);
  cut(v, *f, to);
  Instr detach;
  detach.kind = InstrKind::kDetach;
  detach.tensor = value(v).tensor;
  detach.range = range_of(v, action.codec, from, to);
  detach.codec = action.codec;
  // The copies that stand in for it must be complete.
  for (const Form& copy : l.copies) {
    for (const Piece& q : copy.pieces) {
      const bool same = copy.codec != action.codec || (q.begin < to && from < q.end);
      if (q.arrival != kNone && same) detach.waits.push_back(Step(q.arrival));
    }
  }
  const int32_t step = push(std::move(detach));
  for (const Piece& q : f->pieces) {
    if (q.begin >= from && q.end <= to) residency(q.residency).end = Step(step);
  }
  use(step, kDevice, f->block, from, to);
  std::erase_if(f->pieces, [&](const Piece& q) { return q.begin >= from && q.end <= to; });
  forget_empty(l.forms);
  return {};
}

Status Walker::recompute(size_t a, size_t end) {
  const Action& action = s_.actions[a];
  const int32_t v = action.value;
  if (std::find(done_.begin(), done_.end(), v) != done_.end()) return {};  // with a sibling
  if (!value(v).can_recompute) return fault("a recompute of what must not run again", v);
  const int32_t producer = value(v).producer;
  return compute(producer, p_.order[static_cast<size_t>(producer)],
                 {action.before, static_cast<int32_t>(a)}, v, a, end);
}

Status Walker::convert(const Action& action) {
  const int32_t v = action.value;
  Life& l = life(v);
  const bool encode = action.kind == ActionKind::kEncode;
  const Codec from = encode ? Codec::kNone : action.codec;
  const Codec to = encode ? action.codec : Codec::kNone;
  Form* source = find(l.forms, kDevice, from);
  if (!whole(v, source)) return fault("a conversion of what is not on the device", v);
  if (find(l.forms, kDevice, to) != nullptr) return fault("a conversion into what is there", v);
  Instr i;
  i.kind = encode ? InstrKind::kEncode : InstrKind::kDecode;
  i.tensor = value(v).tensor;
  i.codec = action.codec;
  i.cost_ns = codec_cost(p_, v, action.codec);
  const int32_t step = push(i);
  await(v, *source, 0, form_bytes(v, from), step);
  add_piece(v, form(l.forms, kDevice, to), 0, form_bytes(v, to), step, kNone);
  return {};
}

// Was `v` asked for by a recompute between the actions a and end?
bool Walker::wanted(int32_t v, int32_t target, size_t a, size_t end) const {
  if (v == target) return true;
  for (size_t i = a; i < end; ++i) {
    if (s_.actions[i].kind == ActionKind::kRecompute && s_.actions[i].value == v) return true;
  }
  return false;
}

// The op of `position`, in turn (target kNone) or again for `target`.
Status Walker::compute(int32_t position, OpId id, Moment now, int32_t target, size_t a,
                       size_t end) {
  const Op& op = g_.at(id);
  HR_TRY(gather(op));
  Instr instr;
  instr.op = id;
  instr.cost_ns = p_.cost[static_cast<size_t>(position)];
  const int32_t step = push(std::move(instr));
  const bool again = target != kNone;
  for (int32_t v : p_.reads[static_cast<size_t>(position)]) {
    Form* f = find(life(v).forms, kDevice, Codec::kNone);
    if (!whole(v, f)) return fault("an op that reads what is not on the device", v);
    await(v, *f, 0, value(v).bytes, step);
  }
  std::vector<int32_t> passing;  // outputs of an op that runs again, which nobody wanted
  for (TensorId t : op.outputs) {
    const int32_t v = p_.value_of[t.index()];
    if (v == kNone) continue;
    Form& f = form(life(v).forms, kDevice, Codec::kNone);
    if (again && wanted(v, target, a, end)) done_.push_back(v);
    if (again && !wanted(v, target, a, end) && f.pieces.empty()) passing.push_back(v);
    if (!f.pieces.empty()) {
      if (!whole(v, &f)) return fault("an op that writes what is half there", v);
      await(v, f, 0, value(v).bytes, step);
      use(step, kDevice, f.block, 0, value(v).bytes);
      if (!again) spoil(v);
      continue;
    }
    add_piece(v, f, 0, value(v).bytes, step, kNone);
    if (!again) spoil(v);
  }
  for (TensorId t : op.updates) {
    const int32_t v = p_.value_of[t.index()];
    use(step, kDevice, find(life(v).forms, kDevice, Codec::kNone)->block, 0, value(v).bytes);
    spoil(v);
  }
  if (op.workspace > 0) add_workspace(id, op.workspace, step);
  release(position, op, now, step);
  for (int32_t v : passing) pass(v, now, step);
  return {};
}

void Walker::add_workspace(OpId id, Bytes bytes, int32_t step) {
  const int32_t r = open(TensorId(), kDevice, Codec::kNone, {}, round_up(bytes, kLine), step,
                         d_.blocks++);
  residency(r).op = id;
  residency(r).end = Step(step + 1);
}

// What the op wrote makes copies stale.
void Walker::spoil(int32_t v) {
  Life& l = life(v);
  l.written = true;
  for (Form& f : l.copies) close_copy(f);
  l.copies.clear();
  for (Form& f : l.forms) {
    if (f.codec != Codec::kNone) close(f, steps());
  }
  forget_empty(l.forms);
}

bool Walker::outlives(int32_t v) const {
  return value(v).persistent || tensor(v).role == Role::kOutput;
}

// Ends the lives that end with this use.
void Walker::release(int32_t position, const Op& op, Moment now, int32_t step) {
  const auto end_if_dead = [&](int32_t v) {
    Life& l = life(v);
    if (outlives(v) || l.last_use > now) return;
    for (Form& f : l.forms) close(f, step + 1);
    for (Form& f : l.copies) close_copy(f);
    l.forms.clear();
    l.copies.clear();
  };
  for (int32_t v : p_.reads[static_cast<size_t>(position)]) end_if_dead(v);
  for (TensorId t : op.outputs) {
    if (p_.value_of[t.index()] != kNone) end_if_dead(p_.value_of[t.index()]);
  }
}

// An output that came along with a wanted one: gone at once.
void Walker::pass(int32_t v, Moment now, int32_t step) {
  Life& l = life(v);
  Form* f = find(l.forms, kDevice, Codec::kNone);
  if (f == nullptr) return;
  if (l.last_use > now) {
    Instr detach;
    detach.kind = InstrKind::kDetach;
    detach.tensor = value(v).tensor;
    close(*f, push(detach));
  } else {
    close(*f, step + 1);
  }
  forget_empty(l.forms);
}

// Rows that the step's tokens name come just before the first op.
Status Walker::gather(const Op& op) {
  if (gathered_) return {};
  gathered_ = true;
  (void)op;
  for (size_t v = 0; v < p_.values.size(); ++v) {
    const int32_t i = static_cast<int32_t>(v);
    if (tensor(i).role != Role::kGathered || value(i).touches.empty()) continue;
    Instr instr;
    instr.kind = InstrKind::kGather;
    instr.tensor = value(i).tensor;
    instr.tier = value(i).home;
    instr.stream = link_stream(program().tiers, instr.tier, InstrKind::kGather);
    const int32_t step = push(instr);
    Form& f = form(life(i).forms, kDevice, Codec::kNone);
    add_piece(i, f, 0, value(i).bytes, step, step);
    use(step, kDevice, f.block, 0, value(i).bytes);
  }
  return {};
}

}  // namespace headrace::plan::walk
