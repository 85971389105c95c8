// Codecs in a State: what encoding and decoding cost in time and bytes.
//
// Memory. The form is made beside the plain value before the first position of the gap, when the op
// there has not got its bytes yet, and the plain value is given up at once. What moves encoded
// holds that position too: its store cannot have ended earlier. Decoding is the same the other way
// round.
#include <algorithm>

#include "headrace/plan/placement_state.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

}  // namespace

Bytes State::encoded_form(int32_t v, Codec codec) const {
  return range_bytes(p_->graph->at(p_->values[at(v)].tensor), {}, codec);
}

const std::vector<Coding>& State::codings(int32_t k) const {
  static const std::vector<Coding> kNothing;
  const auto found = codings_.find(k);
  return found == codings_.end() ? kNothing : found->second;
}

std::vector<Gap> State::codec_ways(int32_t v, int32_t gap) const {
  std::vector<Gap> ways;
  const Value& value = p_->values[at(v)];
  const bool inside = gap > 0 && gap < static_cast<int32_t>(values_[at(v)].touches.size());
  if (value.rule == nullptr || value.rule->codecs.empty() || value.home.valid() || !inside) {
    return ways;
  }
  const Span s = span(v, gap);
  if (s.lo > s.hi) return ways;
  Codec used = Codec::kNone;  // errors of several codecs would add up
  for (int32_t i = 0; i < static_cast<int32_t>(values_[at(v)].gaps.size()); ++i) {
    if (i != gap) used = std::max(used, values_[at(v)].gaps[at(i)].codec);
  }
  std::vector<Codec> codecs = value.rule->codecs;
  std::sort(codecs.begin(), codecs.end(), [](Codec a, Codec b) {
    return std::pair(!is_lossless(a), a) < std::pair(!is_lossless(b), b);
  });
  for (Codec c : codecs) {
    const bool smaller = c != Codec::kNone && encoded_form(v, c) < value.bytes;
    if (!smaller || (used != Codec::kNone && c != used)) continue;
    ways.push_back({Way::kCompress, c, TierId(), 0});
    for (size_t t = 1; t < p_->machine->tiers.size() && s.lo < s.hi; ++t) {
      const TierId tier(static_cast<int64_t>(t));
      if (p_->machine->tiers[t].store_bytes_per_s <= 0 || !allowed_tier(v, tier)) continue;
      ways.push_back({Way::kMoveCompressed, c, tier, 0});
    }
  }
  return ways;
}

void State::charge_codec(int32_t v, const Gap& g, const Span& s, int sign) {
  if (g.way == Way::kMoveCompressed) add(s.lo, s.lo, sign * encoded_form(v, g.codec));
  put_coding(s.lo, {v, g.codec, true}, sign > 0);
  put_coding(s.before, {v, g.codec, false}, sign > 0);
}

void State::put_coding(int32_t position, const Coding& coding, bool add) {
  std::vector<Coding>& list = codings_[position];
  const auto place = std::lower_bound(list.begin(), list.end(), coding);
  if (add) {
    list.insert(place, coding);
  } else {
    HR_CHECK(place != list.end() && *place == coding, "what is taken back was there");
    list.erase(place);
    if (list.empty()) codings_.erase(position);
  }
  if (!open_.empty()) coded_.push_back({position, coding, add});
  recount(position);
}

// Takes back what was put since. The counts of its positions are restored with those of all others.
void State::uncode(size_t mark) {
  for (; coded_.size() > mark; coded_.pop_back()) {
    const Coded c = coded_.back();
    std::vector<Coding>& list = codings_[c.position];
    const auto place = std::lower_bound(list.begin(), list.end(), c.coding);
    if (c.added) {
      list.erase(place);
    } else {
      list.insert(place, c.coding);
    }
    if (list.empty()) codings_.erase(c.position);
  }
}

// Bytes beyond the planned ones that codecs need before the op of position k has its own; adds
// their time to `ns`. While one is encoded, all others may still be plain; decoded values are
// counted, so that the largest form beside them is all that is more.
Bytes State::coding_pulse(int32_t k, Nanos* ns) const {
  Bytes plain = 0, made = 0, read = 0;
  for (const Coding& c : codings(k)) {
    const Bytes form = encoded_form(c.value, c.codec);
    *ns += codec_cost(*p_, c.value, c.codec);
    if (!c.encodes) {
      read = std::max(read, form);
      continue;
    }
    made = std::max(made, form);
    plain += p_->values[at(c.value)].bytes - form;
  }
  return std::max(plain + made, read);
}

}  // namespace headrace::plan
