// The stage `walk` of emit: instructions in order, and who is resident from which step to which.
// Internal to emit_step*.cc.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "headrace/plan/emit_step.h"

namespace headrace::plan::walk {

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

// One walk over one schedule.
class Walker {
 public:
  Walker(const Problem& problem, const Schedule& schedule)
      : p_(problem), s_(schedule), g_(*problem.graph), lives_(problem.values.size()) {}
  Result<Draft> run();

 private:
  Program& program() { return d_.program; }
  Life& life(int32_t v) { return lives_[static_cast<size_t>(v)]; }
  const Value& value(int32_t v) const { return p_.values[static_cast<size_t>(v)]; }
  const Tensor& tensor(int32_t v) const { return g_.at(value(v).tensor); }
  int32_t steps() const { return static_cast<int32_t>(d_.program.instrs.size()); }
  bool at_entry(int32_t v) const { return s_.at_entry[static_cast<size_t>(v)]; }
  Status fault(const std::string& what, int32_t v) const;
  void begin();
  void find_last_uses();

  // Forms and pieces: emit_step_forms.cc.
  int32_t open(TensorId t, TierId tier, Codec codec, Range range, Bytes bytes, int32_t begin,
               int32_t block);
  Residency& residency(int32_t r) { return program().residencies[static_cast<size_t>(r)]; }
  Bytes form_bytes(int32_t v, Codec codec) const { return range_bytes(tensor(v), {}, codec); }
  Range range_of(int32_t v, Codec codec, Bytes begin, Bytes end) const;
  Form* find(std::vector<Form>& forms, TierId tier, Codec codec);
  Form& form(std::vector<Form>& forms, TierId tier, Codec codec);
  void add_piece(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step, int32_t arrival);
  static Bytes covered(const Form& f, Bytes begin, Bytes end);
  bool whole(int32_t v, const Form* f) const;
  void cut(int32_t v, Form& f, Bytes at);
  void close(Form& f, int32_t end);
  static void forget_empty(std::vector<Form>& forms);
  void close_copy(Form& f);

  // Entry, exit and the end: emit_step_boundary.cc.
  void enter(int32_t v);
  Form* entry_copy(int32_t v, TierId tier, Codec codec);
  Status leave(int32_t v);
  Bytes missing(int32_t v, std::vector<std::pair<Bytes, Bytes>> parts) const;
  void wait_across(const Form& exit, const std::vector<int32_t>& users);
  TierId resting_tier(int32_t v);
  Result<Draft> finish();
  void carry_over();
  void join_blocks();
  void match_boundary();

  // Instructions: emit_step_actions.cc.
  int32_t push(Instr instr);
  void use(int32_t instr, TierId tier, int32_t block, Bytes begin, Bytes end);
  void await(int32_t v, Form& f, Bytes begin, Bytes end, int32_t step);
  Status act(size_t a, size_t end);
  Instr transfer(InstrKind kind, const Action& action, Bytes from, Bytes to) const;
  Status store(const Action& action, Bytes from, Bytes to);
  Status load(const Action& action, Bytes from, Bytes to);
  Status drop(const Action& action, Bytes from, Bytes to);
  Status recompute(size_t a, size_t end);
  Status convert(const Action& action);
  bool wanted(int32_t v, int32_t target, size_t a, size_t end) const;
  Status compute(int32_t position, OpId id, Moment now, int32_t target, size_t a, size_t end);
  void add_workspace(OpId id, Bytes bytes, int32_t step);
  void spoil(int32_t v);
  bool outlives(int32_t v) const;
  void release(int32_t position, const Op& op, Moment now, int32_t step);
  void pass(int32_t v, Moment now, int32_t step);
  Status gather(const Op& op);

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

}  // namespace headrace::plan::walk
