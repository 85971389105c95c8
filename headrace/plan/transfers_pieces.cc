// What a state moves, in pieces.
#include <algorithm>

#include "headrace/plan/transfers.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

constexpr int32_t kNone = -1;

// A run of bytes of a value of which `tier` has had a copy since position `since`.
struct Copy {
  Range range;
  TierId tier;
  int32_t since = 0;      // valid when the last write came before it
  int32_t piece = kNone;  // the piece that stores it; kNone: there at entry
};

class PieceBuilder {
 public:
  PieceBuilder(const State& state, Bytes chunk)
      : s_(state), p_(state.problem()), chunk_(chunk), tiers_(p_.machine->tiers) {}

  std::vector<Piece> run() {
    for (int32_t v = 0; v < s_.values(); ++v) {
      bool moved = false;
      for (const Gap& g : s_.value(v).gaps) moved = moved || moves(g);
      if (moved) visit(v);
    }
    return std::move(out_);
  }

 private:
  static bool moves(const Gap& g) {
    return (g.way == Way::kMove && g.moved > 0) || g.way == Way::kMoveCompressed;
  }

  // Gaps in the order in which copies come about: from the last write on, around the cycle. A copy
  // outlives the end of the cycle when the value is away then.
  void visit(int32_t v) {
    const Value& value = p_.values[at(v)];
    const int32_t n = static_cast<int32_t>(s_.value(v).gaps.size());
    const bool cyclic = p_.cyclic && value.persistent;
    const Gap& around = s_.value(v).gaps.back();
    copies_.clear();
    if (value.home.valid()) copies_.push_back({Range{0, value.bytes}, value.home, 0, kNone});
    int32_t first = 0;
    if (cyclic && moves(around) && value.writes.empty()) {
      copies_.push_back({Range{0, value.bytes}, around.tier, 0, kNone});
    }
    if (cyclic && moves(around) && !value.writes.empty()) {
      while (first + 1 < n && s_.span(v, first).after < value.writes.back()) ++first;
    }
    for (int32_t i = first; i < n; ++i) visit(v, i);
    // Of the copies made in the cycle before, the one that stands for the value in between is left.
    std::erase_if(copies_, [&](const Copy& c) { return first > 0 && c.tier != around.tier; });
    for (Copy& c : copies_) {
      c.piece = kNone;
      c.since = 0;
    }
    for (int32_t i = 0; i < first; ++i) visit(v, i);
  }

  // First position before which the bytes that the gap takes away can be stored: after the last
  // write and after the last time that they came back.
  int32_t release(int32_t v, int32_t gap, int32_t since) const {
    const ValueState& state = s_.value(v);
    const bool cyclic = p_.cyclic && p_.values[at(v)].persistent;
    for (int32_t i = gap - 1; i >= 0; --i) {
      const int32_t touch = state.touches[at(i)].position;
      if (touch < since) return since;
      const Gap& before = i == 0 && cyclic ? state.gaps.back() : state.gaps[at(i)];
      if (before.way != Way::kKeep) return touch + 1;
    }
    return since;
  }

  void visit(int32_t v, int32_t gap) {
    const Gap& g = s_.value(v).gaps[at(gap)];
    const Span span = s_.span(v, gap);
    if (!moves(g) || !span.exists) return;
    if (g.codec != Codec::kNone) return add_encoded(v, gap, span, g);
    const Value& value = p_.values[at(v)];
    const auto next = std::upper_bound(value.writes.begin(), value.writes.end(), span.after);
    const int32_t written = next == value.writes.begin() ? kNone : *(next - 1);
    const int32_t since = written + 1;
    for (Bytes begin = 0; begin < g.moved;) {
      Bytes end = g.moved;
      if (chunk_ > 0 && !s_.moves_whole(span)) end = std::min(end, begin + chunk_);
      const Copy* copy = nullptr;
      for (const Copy& c : copies_) {
        if (c.tier != g.tier || written >= c.since) continue;
        if (c.range.begin <= begin && begin < c.range.begin + c.range.bytes) copy = &c;
        if (c.range.begin > begin) end = std::min(end, c.range.begin);
      }
      if (copy != nullptr) end = std::min(end, copy->range.begin + copy->range.bytes);
      add(v, gap, span, g.tier, begin, end, since, copy);
      begin = end;
    }
  }

  void add(int32_t v, int32_t gap, const Span& span, TierId tier, Bytes begin, Bytes end,
           int32_t since, const Copy* copy) {
    const Value& value = p_.values[at(v)];
    const TierInfo& link = tiers_[tier.index()];
    const double bytes = static_cast<double>(end - begin);
    Piece piece;
    piece.value = v;
    piece.gap = gap;
    piece.range = begin == 0 && end == value.bytes ? Range{} : Range{begin, end - begin};
    piece.bytes = end - begin;
    piece.release = release(v, gap, since);
    piece.after = span.after;
    piece.use = span.before;
    piece.wraps = span.wraps || (p_.cyclic && value.persistent && !span.loads_back);
    piece.passes = span.after >= 0 && s_.passing(v, span.after) > 0;
    piece.tier = tier;
    piece.latency_ns = link.latency_ns;
    piece.need = s_.next_over(span.lo);
    if (piece.need < 0 || piece.need > span.before) piece.need = std::max(span.before, span.lo);
    if (value.rule != nullptr) piece.priority = value.rule->prefetch_priority;
    if (copy == nullptr) {
      piece.stored_by = static_cast<int32_t>(out_.size());
      piece.out = link_stream(tiers_, tier, InstrKind::kStore).value;
      piece.out_ns = static_cast<Nanos>(bytes / link.store_bytes_per_s * 1e9);
      copies_.push_back({Range{begin, end - begin}, tier, since, piece.stored_by});
    } else {
      piece.stored_by = copy->piece;
    }
    if (span.loads_back) {
      piece.in = link_stream(tiers_, tier, InstrKind::kLoad).value;
      piece.in_ns = static_cast<Nanos>(bytes / link.load_bytes_per_s * 1e9);
    }
    out_.push_back(piece);
  }

  void add_encoded(int32_t v, int32_t gap, const Span& span, const Gap& g) {
    add(v, gap, span, g.tier, 0, s_.encoded_form(v, g.codec), span.lo, nullptr);
    copies_.pop_back();  // of the form, not of the value
    Piece& piece = out_.back();
    piece.range = Range{};
    piece.codec = g.codec;
    piece.release = span.lo;
    piece.passes = false;
  }

  const State& s_;
  const Problem& p_;
  Bytes chunk_;
  const std::vector<TierInfo>& tiers_;
  std::vector<Copy> copies_;
  std::vector<Piece> out_;
};

}  // namespace

std::vector<Piece> pieces_of(const State& state, Bytes chunk) {
  return PieceBuilder(state, chunk).run();
}

}  // namespace headrace::plan
