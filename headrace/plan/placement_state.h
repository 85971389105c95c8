// State: a way for each idle gap, with what follows from it: the touches that running ops again
// adds to what they read, the bytes at each position, the seconds added. Internal to placement.
//
// Vocabulary
//   demand   a touch that is there only because an op runs again just before that position.
//   reruns   by position: the values whose ops run again right before it.
//   planned  bytes by position when every moved byte is away in the whole of its gap.
//
// Promises
//   1. try_* change nothing when they return false; rollback() takes back all since begin().
//   2. what an op that runs again reads is on the device then, in the version of its first run.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "headrace/plan/placement.h"
#include "headrace/plan/placement_profile.h"

namespace headrace::plan {

// How a gap is spent. kMove: `moved` bytes from the begin of the value are away in `tier`.
// kCompress: the encoded form stays; kMoveCompressed: it is moved as well (all of it). Encoded
// before the first position of the gap, decoded before the touch that ends it
// (placement_codecs.cc).
struct Gap {
  Way way = Way::kKeep;
  Codec codec = Codec::kNone;
  TierId tier;
  Bytes moved = 0;
  bool operator==(const Gap&) const = default;
};

struct Touch {
  int32_t position = 0;
  int32_t demands = 0;  // ops that run again before `position` and read the value
  bool own = false;     // touched by the op at `position`
};

// A value is encoded or decoded before a position.
struct Coding {
  int32_t value = 0;
  Codec codec = Codec::kNone;
  bool encodes = false;
  auto operator<=>(const Coding&) const = default;
};

// gaps[i] lies before touches[i], gaps[touches.size()] after the last.
struct ValueState {
  std::vector<Touch> touches;
  std::vector<Gap> gaps;
};

// Positions [lo, hi] inside a gap, and those of its second part when it wraps around a cycle.
struct Span {
  bool exists = false;
  int32_t lo = 0, hi = -1;
  int32_t lo2 = 0, hi2 = -1;
  int32_t after = -1;   // the touches around it: -1 the step's begin; Problem::size() its end
  int32_t before = 0;
  bool wraps = false;
  bool loads_back = true;  // false: nothing touches the value again in this step
};

// What is away over the begin or the end of the step is away as a whole: one copy must be complete.
inline bool moves_whole(const Span& span) { return span.wraps || !span.loads_back; }

class State {
 public:
  State(const Problem& problem, const PlaceOptions& options);

  const Problem& problem() const { return *p_; }
  const ValueState& value(int32_t v) const { return values_[static_cast<size_t>(v)]; }
  int32_t values() const { return static_cast<int32_t>(values_.size()); }
  const Profile& planned() const { return planned_; }
  bool fits() const { return planned_.max() <= p_->budget; }
  // First position at or after k that is over budget when everything stays; -1: none.
  int32_t next_over(int32_t k) const {
    return k < p_->size() ? next_over_[static_cast<size_t>(k)] : -1;
  }
  Bytes over(int32_t k) const { return planned_.at_position(k) - p_->budget; }

  Span span(int32_t v, int32_t gap) const;
  // The gap of `v` that covers position k; -1: touched there, or not alive.
  int32_t gap_at(int32_t v, int32_t k) const;
  // Bytes of the gap that are on the device at its positions.
  Bytes kept_bytes(int32_t v, const Gap& gap) const;
  // Bytes of `v` that are there at position k only for ops that run again before it, and are given
  // up before the op of k runs. `passing_bytes`: by how much that op can do with less than planned
  // sums.
  Bytes passing(int32_t v, int32_t k) const;
  Bytes passing_bytes(int32_t k) const {
    return std::max<Bytes>(0, -extra_bytes_[static_cast<size_t>(k)]);
  }
  // False: pinned by a rule.
  bool parts() const { return parts_; }
  // True: the gap cannot be moved in part.
  bool moves_whole(const Span& span) const { return !parts_ || plan::moves_whole(span); }
  bool movable(int32_t v) const { return !pinned_[static_cast<size_t>(v)]; }
  bool allowed_tier(int32_t v, TierId tier) const;

  // Replaces the way of a gap by keeping, moving or compressing.
  void set(int32_t v, int32_t gap, const Gap& way);
  // Runs the op of `v` again before the touch that ends the gap. Inputs that are dead by then are
  // run again as well where that costs at most `ns_per_byte` of theirs, else kept until then.
  // False: not possible, nothing changed.
  bool try_rerun(int32_t v, int32_t gap, double ns_per_byte);
  // False: try_rerun() would say so as well, whatever it costs.
  bool may_rerun(int32_t v, int32_t gap) const { return rerunnable(v, gap, 0); }

  // Time that the ops that run again, and codecs, add before position k; and in all.
  Nanos extra_ns(int32_t k) const { return extra_ns_[static_cast<size_t>(k)]; }
  Nanos extra_ns() const { return extra_total_; }
  const std::vector<int32_t>& reruns(int32_t k) const { return reruns_[static_cast<size_t>(k)]; }

  // What is encoded or decoded before position k, by value; encodes come before loads, decodes
  // after.
  const std::vector<Coding>& codings(int32_t k) const;
  // The ways of a gap that its rule's codecs allow, lossless ones first; none unless touches of
  // the step lie on both sides. A value is encoded by one codec throughout.
  std::vector<Gap> codec_ways(int32_t v, int32_t gap) const;
  // Bytes of the encoded form on the device or in a tier.
  Bytes encoded_form(int32_t v, Codec codec) const;

  // Transactions nest: rollback() takes back all since the matching begin(), commit() hands it to
  // the one around.
  void begin();
  void rollback();
  void commit();

  // Bytes at position k that only its op needs: what it writes first, and its workspace.
  Bytes op_bytes(int32_t k) const {
    return birth_bytes_[static_cast<size_t>(k)] + p_->workspace[static_cast<size_t>(k)];
  }

  // Tier bytes: whether `bytes` more fit in `tier` over the whole of a gap.
  bool tier_has_room(int32_t v, int32_t gap, TierId tier, Bytes bytes) const;

 private:
  struct Saved {
    int32_t value = 0;
    ValueState state;
  };
  // A stack whose slots keep their vectors, so that saving a value asks for no memory most of the
  // time. Copies are empty: a State is copied outside of transactions.
  class SavedStack {
   public:
    SavedStack() = default;
    SavedStack(const SavedStack& other) { HR_CHECK(other.size_ == 0, "a transaction is open"); }
    SavedStack(SavedStack&&) = default;
    SavedStack& operator=(const SavedStack& other) {
      HR_CHECK(size_ == 0 && other.size_ == 0, "a transaction is open");
      return *this;
    }
    SavedStack& operator=(SavedStack&&) = default;
    void push(int32_t value, const ValueState& state) {
      if (size_ == slots_.size()) slots_.emplace_back();
      slots_[size_].value = value;
      slots_[size_++].state = state;
    }
    Saved& pop() { return slots_[--size_]; }
    size_t size() const { return size_; }
    void clear() { size_ = 0; }

   private:
    std::vector<Saved> slots_;
    size_t size_ = 0;
  };
  struct Added {
    int32_t lo, hi;
    Bytes bytes;
    int32_t tier;  // 0: the device
  };
  struct Rerun {
    int32_t position;
    int32_t value;
    bool added;
  };

  struct Recounted {  // a position's counts before
    int32_t position;
    Nanos extra_ns;
    Bytes extra_bytes;
  };

  struct Coded {
    int32_t position;
    Coding coding;
    bool added;
  };

  void save(int32_t v);
  void add(int32_t lo, int32_t hi, Bytes bytes, int32_t tier = 0);
  void flush();
  void drop_changes();
  void charge(int32_t v, int32_t gap, int sign);
  void charge_codec(int32_t v, const Gap& gap, const Span& span, int sign);
  void put_coding(int32_t position, const Coding& coding, bool add);
  Bytes coding_pulse(int32_t position, Nanos* ns) const;
  void uncode(size_t mark);
  void add_rerun(int32_t v, int32_t position);
  void remove_rerun(int32_t v, int32_t position);
  void recount(int32_t position);
  void settle();
  void count(int32_t position);
  void put_extra(int32_t position, Nanos ns, Bytes bytes);
  void unrerun(int32_t v, int32_t gap);
  void split(int32_t v, int32_t gap, int32_t position);
  void remove_demand(int32_t v, int32_t position);
  bool need(int32_t v, int32_t position, double ns_per_byte, int depth);
  bool rerunnable(int32_t v, int32_t gap, int depth) const;
  bool rerun(int32_t v, int32_t gap, double ns_per_byte, int depth);
  bool same_version(int32_t v, int32_t from, int32_t to) const;
  int32_t index_of(int32_t v, int32_t position) const;

  const Problem* p_;
  std::vector<ValueState> values_;
  std::vector<bool> pinned_;
  std::vector<std::vector<bool>> forbidden_;  // by value: by tier; empty: none
  std::vector<std::vector<int32_t>> reruns_;  // by position
  std::vector<Nanos> extra_ns_;
  std::vector<Bytes> extra_bytes_;            // what ops that run again need beyond the touches
  std::vector<Bytes> birth_bytes_;
  std::vector<int32_t> next_over_;
  Nanos extra_total_ = 0;
  Profile planned_;
  std::vector<Profile> tiers_;                // by tier; [0] unused
  std::vector<std::pair<int32_t, Bytes>> changes_;  // of the device's bytes, from a position on
  SavedStack saved_;
  std::vector<Added> added_;
  std::vector<Rerun> rerun_log_;
  std::vector<Recounted> recounted_;
  std::map<int32_t, std::vector<Coding>> codings_;  // by position
  std::vector<Coded> coded_;
  std::vector<int32_t> to_count_;             // positions whose count is no longer right
  std::vector<bool> dirty_;                   // by position: it is among them
  std::vector<int32_t> value_stamp_, op_stamp_;  // scratch of count()
  int32_t stamp_ = 0;
  std::vector<int32_t> save_mark_;            // by value: the transaction that saved it
  struct Mark {
    size_t saved, added, reruns, recounted, coded;
    int32_t transaction;
  };
  std::vector<Mark> open_;
  int32_t transactions_ = 0;
  int32_t chain_left_ = 0;                    // ops that may still run again for one gap
  bool recompute_ = true;
  bool parts_ = true;
};

}  // namespace headrace::plan
