// The parts of verify(Program). Internal to ir/; shares no code with plan/, sim/ or run/.
//
// Vocabulary
//   form      a tensor plain (Codec::kNone) or encoded by one codec.
//   span      bytes [begin, end) of a form.
//   distance  offset - range.begin of a residency: equal for parts of a form that lie in one piece.
//   version   0 for what is there at the start of a cycle; an activation is 1 once written; each
//             update in place adds one.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "headrace/ir/program.h"

namespace headrace::verifier {

struct Span {
  Bytes begin = 0;
  Bytes end = 0;
  Bytes size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

inline Status broken(const std::string& what) {
  return error(Code::kBadFile, "%s", what.c_str());
}
// "'x'", "'x' as bf16", "workspace of 'conv'".
std::string name_of(const Program& program, const Residency& residency);
// All of a form.
Span all_of(const Tensor& tensor, Codec codec);
// The bytes that `range` names. Precondition: check_form() passed.
Span span_of(const Tensor& tensor, const Range& range, Codec codec);
inline Bytes distance(const Residency& r) { return r.offset - r.range.begin; }

// Tiers, indices, streams, ranges: everything that can be said of one line of the text.
Status check_form(const Program& program);
// Sizes, alignment, capacity, and that no two residencies of a tier share a byte at a step.
Status check_extents(const Program& program);
// Promise 5: the same residencies at exit as at entry.
Status check_cycle(const Program& program);
// Promises 1, 2 (the second half), 3 and 6, by playing the steps.
Status check_values(const Program& program);

constexpr int32_t kEmpty = -1;  // a residency whose bytes nobody has filled yet
constexpr int32_t kStale = -2;  // carried over from a cycle in which it was not the present version

// One residency while it lasts.
struct Held {
  const Residency* residency = nullptr;
  Bytes end = 0;               // of its span
  int32_t version = kEmpty;
  std::vector<OpId> writers;   // that have run, of a tensor with several
};
// A form's span in one piece.
struct Piece {
  std::vector<Held*> parts;    // by begin; together they cover `span`
  Span span;
  TierId tier;
};

// The residencies that last now, in all tiers.
class Holdings {
 public:
  explicit Holdings(const Program& program);
  // An error when part of it is held in its tier already.
  Status begin(const Residency& residency);
  void end(const Residency& residency);
  // Precondition: it is held.
  Held& held(const Residency& residency) { return held_.at(key_of(residency)); }
  const Residency* workspace_of(OpId op) const { return workspaces_[op.index()]; }
  // `span` of a form in one piece; an error when it is not there, or in several.
  Result<Piece> find(TensorId t, TierId tier, Codec codec, const Span& span);
  // Is all of `residency`, which is of another cycle, held in `version` here?
  bool covers(const Residency& residency, int32_t version) const;
  // Does one form of `version` exist as a whole, its parts in whichever tiers?
  bool survives(TensorId t, int32_t version) const;

 private:
  // All parts of a form in a tier follow one another.
  using Key = std::tuple<TensorId, TierId, Codec, Bytes>;
  static Key key_of(const Residency& r) { return {r.tensor, r.tier, r.codec, r.range.begin}; }

  const Program* p_;
  std::map<Key, Held> held_;
  std::vector<const Residency*> workspaces_;  // by op
};

// Which instruction may still be using which bytes: vector clocks over streams (Fidge 1988; Mattern
// 1989) and, for each tier, a map from bytes to their last writer and the readers since.
class ByteOrder {
 public:
  explicit ByteOrder(const Program& program);
  // All that follows, until the next start(), is done by the instruction at `step`.
  void start(int32_t cycle, int32_t step);
  // It reads / writes `bytes` bytes at `offset` of `tier`, which are part of `residency`. An error
  // when an earlier instruction may still be at work there.
  Status read(TierId tier, Bytes offset, Bytes bytes, const Residency& residency);
  Status write(TierId tier, Bytes offset, Bytes bytes, const Residency& residency);

 private:
  struct Access {
    int32_t time = 0;    // of the instruction, see now_; 0: none
    int32_t stream = 0;
    const Residency* residency = nullptr;
  };
  struct Segment {
    Bytes end = 0;
    Access writer;
    std::vector<Access> readers;  // since, at most one a stream: the latest
  };
  using Segments = std::map<Bytes, Segment>;  // by begin, disjoint

  bool before(const Access& access) const;
  int32_t step_of(const Access& access) const;
  Status check_read(const Access& writer) const;
  Status check_write(const Access& user) const;
  static void split(Segments& segments, Bytes at);

  const Program& p_;
  const size_t streams_;
  std::vector<int32_t> done_;    // [step, stream]: clock at the end of its latest execution
  std::vector<int32_t> last_;    // [stream, stream]: the same for the last instruction of a stream
  std::vector<int32_t> clock_;   // [stream]: what is complete when the current one starts
  int32_t now_ = 0;              // cycle * n + step + 1
  int32_t stream_ = 0;
  std::vector<Segments> tiers_;
};

}  // namespace headrace::verifier
