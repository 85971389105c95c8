#include "headrace/plan/emit_step.h"

#include <algorithm>
#include <limits>

namespace headrace::plan {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kCompute = std::numeric_limits<int32_t>::max();

// When a value is used: at the op of a position (kCompute), or by an action before it.
struct Moment {
  int32_t position = kNone;
  int32_t action = kNone;
  auto operator<=>(const Moment&) const = default;
};

// A part of a form on some tier, and the residency that says so.
struct Piece {
  Bytes begin = 0, end = 0;
  int32_t residency = 0;
  int32_t arrival = kNone;   // the transfer that brings it; kNone: made by an op, or there at entry
  int32_t last_use = kNone;  // copies: the last transfer that reads it
};

struct Form {
  Codec codec = Codec::kNone;
  TierId tier = kDevice;
  int32_t block = kNone;
  std::vector<Piece> pieces;  // by begin
  bool from_entry = false;
};

struct Life {
  std::vector<Form> forms;    // on the device, with at least one piece
  std::vector<Form> copies;   // in other tiers, valid
  int32_t entry_block = kNone;       // cyclic: of what was there at entry, on the device
  int32_t entry_copy_block = kNone;  // and in another tier
  TierId entry_copy_tier;
  Codec entry_copy_codec = Codec::kNone;
  bool written = false;              // in this step
  Moment last_use;
  // Cyclic: steps that use what came in over the entry, on the device and in another tier.
  std::vector<int32_t> entry_users, entry_copy_users;
};

class Walker {
 public:
  Walker(const Problem& problem, const Schedule& schedule)
      : p_(problem), s_(schedule), g_(*problem.graph), lives_(problem.values.size()) {}

  Result<Draft> run() {
    begin();
    find_last_uses();
    for (size_t v = 0; v < p_.values.size(); ++v) enter(static_cast<int32_t>(v));
    size_t a = 0;
    for (int32_t k = 0; k <= p_.size(); ++k) {
      const size_t first = a;
      while (a < s_.actions.size() && s_.actions[a].before == k) ++a;
      done_.clear();
      for (size_t i = first; i < a; ++i) HR_TRY(act(i, a));
      if (k < p_.size()) {
        HR_TRY(compute(k, p_.order[static_cast<size_t>(k)], {k, kCompute}, kNone, first, first));
      }
    }
    if (a != s_.actions.size()) return fault("actions that are not by position", kNone);
    for (size_t v = 0; v < p_.values.size(); ++v) HR_TRY(leave(static_cast<int32_t>(v)));
    return finish();
  }

 private:
  Program& program() { return d_.program; }
  Life& life(int32_t v) { return lives_[static_cast<size_t>(v)]; }
  const Value& value(int32_t v) const { return p_.values[static_cast<size_t>(v)]; }
  const Tensor& tensor(int32_t v) const { return g_.at(value(v).tensor); }
  int32_t steps() const { return static_cast<int32_t>(d_.program.instrs.size()); }
  bool at_entry(int32_t v) const { return s_.at_entry[static_cast<size_t>(v)]; }

  Status fault(const std::string& what, int32_t v) const {
    return error(Code::kUnsupported, "a schedule of '%s' with %s%s%s", g_.name.c_str(), what.c_str(),
                 v == kNone ? "" : ": ", v == kNone ? "" : tensor(v).name.c_str());
  }

  void begin() {
    Program& p = program();
    p.name = p_.request->name;
    p.graph = std::shared_ptr<const Graph>(p_.request->workload, &p_.request->workload->graph);
    p.cyclic = p_.cyclic;
    p.tiers = p_.machine->tiers;
    p.tiers[0].capacity = p_.request->budget;
    if (p_.source_tier.valid()) p.source_tier = p_.source_tier;
    p.machine = p_.machine->name;
    p.instrs.reserve(p_.order.size() + s_.actions.size());
    for (size_t t = 0; t < g_.tensors.size(); ++t) {
      if (g_.tensors[t].role != Role::kConstant) continue;
      const int32_t r = open(TensorId(static_cast<int64_t>(t)), kDevice, Codec::kNone, {},
                             device_bytes(g_.tensors[t]), kEntry.value, d_.blocks++);
      held_.push_back(r);
    }
  }

  // Recomputation may read a value after its last touch: it then lives that long.
  void find_last_uses() {
    for (size_t v = 0; v < p_.values.size(); ++v) {
      const auto& touches = p_.values[v].touches;
      if (!touches.empty()) lives_[v].last_use = {touches.back(), kCompute};
    }
    for (size_t a = 0; a < s_.actions.size(); ++a) {
      const Action& action = s_.actions[a];
      if (action.kind != ActionKind::kRecompute || action.value < 0) continue;
      const int32_t producer = value(action.value).producer;
      if (producer < 0) continue;
      const Moment now{action.before, static_cast<int32_t>(a)};
      for (int32_t v : p_.reads[static_cast<size_t>(producer)]) {
        life(v).last_use = std::max(life(v).last_use, now);
      }
    }
  }

  int32_t open(TensorId t, TierId tier, Codec codec, Range range, Bytes bytes, int32_t begin,
               int32_t block) {
    Residency r;
    r.tensor = t;
    r.tier = tier;
    r.codec = codec;
    r.range = range;
    r.bytes = bytes;
    r.begin = Step(begin);
    r.end = Step(kNone);  // open
    program().residencies.push_back(r);
    d_.block.push_back(block);
    return static_cast<int32_t>(program().residencies.size()) - 1;
  }
  Residency& residency(int32_t r) { return program().residencies[static_cast<size_t>(r)]; }

  Bytes form_bytes(int32_t v, Codec codec) const { return range_bytes(tensor(v), {}, codec); }

  Range range_of(int32_t v, Codec codec, Bytes begin, Bytes end) const {
    if (begin == 0 && end == form_bytes(v, codec)) return {};
    return {begin, end - begin};
  }

  // ---- forms and pieces ----

  Form* find(std::vector<Form>& forms, TierId tier, Codec codec) {
    for (Form& f : forms) {
      if (f.tier == tier && f.codec == codec) return &f;
    }
    return nullptr;
  }
  Form& form(std::vector<Form>& forms, TierId tier, Codec codec) {
    if (Form* f = find(forms, tier, codec)) return *f;
    Form f;
    f.tier = tier;
    f.codec = codec;
    f.block = d_.blocks++;
    forms.push_back(f);
    return forms.back();
  }

  void add_piece(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step, int32_t arrival) {
    Piece piece{begin, end, 0, arrival, kNone};
    piece.residency = open(value(v).tensor, f.tier, f.codec, range_of(v, f.codec, begin, end),
                           end - begin, step, f.block);
    const auto at = std::lower_bound(f.pieces.begin(), f.pieces.end(), begin,
                                     [](const Piece& q, Bytes b) { return q.begin < b; });
    f.pieces.insert(at, piece);
  }

  static Bytes covered(const Form& f, Bytes begin, Bytes end) {
    Bytes sum = 0;
    for (const Piece& q : f.pieces) {
      sum += std::max<Bytes>(0, std::min(end, q.end) - std::max(begin, q.begin));
    }
    return sum;
  }
  bool whole(int32_t v, const Form* f) const {
    return f != nullptr && covered(*f, 0, form_bytes(v, f->codec)) == form_bytes(v, f->codec);
  }

  // Cuts the piece that has `at` in its inside, and its residency, in two.
  void cut(int32_t v, Form& f, Bytes at) {
    for (size_t i = 0; i < f.pieces.size(); ++i) {
      Piece& q = f.pieces[i];
      if (at <= q.begin || at >= q.end) continue;
      Piece right = q;
      right.begin = at;
      Residency copy = residency(q.residency);
      copy.range = range_of(v, f.codec, at, q.end);
      copy.bytes = q.end - at;
      Residency& left = residency(q.residency);
      left.range = range_of(v, f.codec, q.begin, at);
      left.bytes = at - q.begin;
      q.end = at;
      program().residencies.push_back(copy);
      d_.block.push_back(f.block);
      right.residency = static_cast<int32_t>(program().residencies.size()) - 1;
      f.pieces.insert(f.pieces.begin() + static_cast<std::ptrdiff_t>(i) + 1, right);
      return;
    }
  }

  void close(Form& f, int32_t end) {
    for (Piece& q : f.pieces) residency(q.residency).end = Step(end);
    f.pieces.clear();
  }

  static void forget_empty(std::vector<Form>& forms) {
    std::erase_if(forms, [](const Form& f) { return f.pieces.empty(); });
  }

  // A copy ends with its last reader, or with the store that nobody read.
  void close_copy(Form& f) {
    for (Piece& q : f.pieces) {
      const int32_t last = std::max({q.arrival, q.last_use, kNone});
      Residency& r = residency(q.residency);
      r.end = Step(std::max(last + 1, r.begin.value + 1));
    }
    f.pieces.clear();
  }

  // ---- entry and exit ----

  void enter(int32_t v) {
    if (tensor(v).role == Role::kGathered) return;  // gathered before its first use
    if (!at_entry(v)) return;
    Form& f = form(life(v).forms, kDevice, Codec::kNone);
    f.from_entry = true;
    add_piece(v, f, 0, value(v).bytes, kEntry.value, kNone);
    life(v).entry_block = f.block;
  }

  // A cycle finds copies where the last one left them; which, its first load says.
  Form* entry_copy(int32_t v, TierId tier, Codec codec) {
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

  Status leave(int32_t v) {
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
  Bytes missing(int32_t v, std::vector<std::pair<Bytes, Bytes>> parts) const {
    std::sort(parts.begin(), parts.end());
    Bytes bytes = 0, at = 0;
    for (const auto& [begin, end] : parts) {
      bytes += std::max<Bytes>(0, begin - at);
      at = std::max(at, end);
    }
    return bytes + value(v).bytes - at;
  }

  // What is there at exit is what the next cycle finds: its users wait for what brought it.
  void wait_across(const Form& exit, const std::vector<int32_t>& users) {
    for (const Piece& q : exit.pieces) {
      for (int32_t step : users) {
        if (q.arrival == kNone || step > q.arrival) continue;
        program().instrs[static_cast<size_t>(step)].waits.push_back(Step(q.arrival));
      }
    }
  }

  TierId resting_tier(int32_t v) {
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

  // ---- instructions ----

  int32_t push(Instr instr) {
    program().instrs.push_back(std::move(instr));
    return steps() - 1;
  }

  void use(int32_t instr, TierId tier, int32_t block, Bytes begin, Bytes end) {
    d_.uses.push_back({instr, tier, block, begin, end});
  }

  // `instr` reads [begin, end) of the form: it waits for what brings them.
  void await(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step) {
    auto& waits = program().instrs[static_cast<size_t>(step)].waits;
    for (const Piece& q : f.pieces) {
      if (q.arrival == kNone || q.end <= begin || q.begin >= end) continue;
      waits.push_back(Step(q.arrival));
    }
    if (!p_.cyclic || !f.from_entry) return;
    (f.tier == kDevice ? life(v).entry_users : life(v).entry_copy_users).push_back(step);
  }

  Status act(size_t a, size_t end) {
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

  Instr transfer(InstrKind kind, const Action& action, Bytes from, Bytes to) const {
    Instr i;
    i.kind = kind;
    i.tensor = value(action.value).tensor;
    i.tier = action.tier;
    i.stream = link_stream(d_.program.tiers, action.tier, kind);
    i.range = range_of(action.value, action.codec, from, to);
    i.codec = action.codec;
    return i;
  }

  Status store(const Action& action, Bytes from, Bytes to) {
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

  Status load(const Action& action, Bytes from, Bytes to) {
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

  Status drop(const Action& action, Bytes from, Bytes to) {
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

  Status recompute(size_t a, size_t end) {
    const Action& action = s_.actions[a];
    const int32_t v = action.value;
    if (std::find(done_.begin(), done_.end(), v) != done_.end()) return {};  // with a sibling
    if (!value(v).can_recompute) return fault("a recompute of what must not run again", v);
    const int32_t producer = value(v).producer;
    return compute(producer, p_.order[static_cast<size_t>(producer)],
                   {action.before, static_cast<int32_t>(a)}, v, a, end);
  }

  Status convert(const Action& action) {
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
  bool wanted(int32_t v, int32_t target, size_t a, size_t end) const {
    if (v == target) return true;
    for (size_t i = a; i < end; ++i) {
      if (s_.actions[i].kind == ActionKind::kRecompute && s_.actions[i].value == v) return true;
    }
    return false;
  }

  // The op of `position`, in turn (target kNone) or again for `target`.
  Status compute(int32_t position, OpId id, Moment now, int32_t target, size_t a, size_t end) {
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

  void add_workspace(OpId id, Bytes bytes, int32_t step) {
    const int32_t r = open(TensorId(), kDevice, Codec::kNone, {}, round_up(bytes, kLine), step,
                           d_.blocks++);
    residency(r).op = id;
    residency(r).end = Step(step + 1);
  }

  // What the op wrote makes copies stale.
  void spoil(int32_t v) {
    Life& l = life(v);
    l.written = true;
    for (Form& f : l.copies) close_copy(f);
    l.copies.clear();
    for (Form& f : l.forms) {
      if (f.codec != Codec::kNone) close(f, steps());
    }
    forget_empty(l.forms);
  }

  bool outlives(int32_t v) const {
    return value(v).persistent || tensor(v).role == Role::kOutput;
  }

  // Ends the lives that end with this use.
  void release(int32_t position, const Op& op, Moment now, int32_t step) {
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
  void pass(int32_t v, Moment now, int32_t step) {
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
  Status gather(const Op& op) {
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

  // ---- the end ----

  Result<Draft> finish() {
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
  void carry_over() {
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

  void join_blocks() {
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
  void match_boundary() {
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

  const Problem& p_;
  const Schedule& s_;
  const Graph& g_;
  Draft d_;
  std::vector<Life> lives_;
  std::vector<int32_t> done_;     // values that a recompute before this position has brought back
  std::vector<int32_t> held_;     // residencies that go on at exit
  std::vector<std::pair<int32_t, int32_t>> unions_;  // blocks that are one across the boundary
  std::vector<Bytes> resting_;    // by tier: bytes of values that nobody touches
  bool gathered_ = false;
};

}  // namespace

Result<Draft> walk_schedule(const Problem& problem, const Schedule& schedule) {
  if (schedule.at_entry.size() != problem.values.size()) {
    return error(Code::kUnsupported, "a schedule of '%s' for another problem",
                 problem.graph->name.c_str());
  }
  return Walker(problem, schedule).run();
}

Result<Emitted> emit_step(const Problem& problem, const Schedule& schedule,
                          const EmitOptions& options) {
  HR_ASSIGN(Draft draft, walk_schedule(problem, schedule));
  Emitted result;
  HR_TRY(assign_extents(problem, options, draft, result));
  add_byte_waits(draft);
  result.program = std::move(draft.program);
  return result;
}

}  // namespace headrace::plan
