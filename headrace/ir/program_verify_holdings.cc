// Which bytes of which form are where.
#include <algorithm>

#include "headrace/ir/program_verify.h"

namespace headrace::verifier {
namespace {

bool same_form(const Residency& a, const Residency& b) {
  return std::tie(a.tensor, a.tier, a.codec) == std::tie(b.tensor, b.tier, b.codec);
}

}  // namespace

Holdings::Holdings(const Program& p) : p_(&p), workspaces_(p.graph->ops.size(), nullptr) {}

Status Holdings::begin(const Residency& r) {
  if (!r.tensor.valid()) {
    workspaces_[r.op.index()] = &r;
    return {};
  }
  const Bytes end = span_of(p_->graph->at(r.tensor), r.range, r.codec).end;
  const auto next = held_.lower_bound(key_of(r));
  bool twice = next != held_.end() && same_form(*next->second.residency, r) &&
               next->second.residency->range.begin < end;
  if (next != held_.begin()) {
    const Held& last = std::prev(next)->second;
    twice |= same_form(*last.residency, r) && last.end > r.range.begin;
  }
  if (twice) return broken(name_of(*p_, r) + " is in two places");
  held_.emplace_hint(next, key_of(r), Held{&r, end, kEmpty, {}});
  return {};
}

void Holdings::end(const Residency& r) {
  if (r.tensor.valid()) {
    held_.erase(key_of(r));
  } else if (workspaces_[r.op.index()] == &r) {
    workspaces_[r.op.index()] = nullptr;
  }
}

Result<Piece> Holdings::find(TensorId t, TierId tier, Codec codec, const Span& span) {
  Residency wanted;
  wanted.tensor = t;
  wanted.tier = tier;
  wanted.codec = codec;
  const auto refused = [&](const std::string& why) {
    return broken(name_of(*p_, wanted) + why);
  };
  const std::string missing = tier == kDevice
                                  ? " is not resident"
                                  : " has no copy in tier '" + p_->tiers[tier.index()].name + "'";
  Piece piece{{}, span, tier};
  auto at = held_.upper_bound({t, tier, codec, span.begin});
  if (at == held_.begin()) return refused(missing);
  Bytes reached = span.begin;
  for (--at; reached < span.end; ++at) {
    if (at == held_.end()) return refused(missing);
    Held& held = at->second;
    const Residency& r = *held.residency;
    if (!same_form(r, wanted) || r.range.begin > reached || held.end <= reached) {
      return refused(missing);
    }
    if (!piece.parts.empty() && distance(r) != distance(*piece.parts[0]->residency)) {
      return refused(" is not in one piece");
    }
    piece.parts.push_back(&held);
    reached = held.end;
  }
  return piece;
}

bool Holdings::covers(const Residency& r, int32_t version) const {
  const Span want = span_of(p_->graph->at(r.tensor), r.range, r.codec);
  Bytes reached = want.begin;
  auto at = held_.upper_bound({r.tensor, r.tier, r.codec, want.begin});
  if (at == held_.begin()) return false;
  for (--at; reached < want.end; ++at) {
    if (at == held_.end()) return false;
    const Held& held = at->second;
    if (!same_form(*held.residency, r) || held.residency->range.begin > reached ||
        held.end <= reached || held.version != version) {
      return false;
    }
    reached = held.end;
  }
  return true;
}

bool Holdings::survives(TensorId t, int32_t version) const {
  std::map<Codec, std::vector<Span>> forms;
  auto at = held_.lower_bound({t, kDevice, Codec::kNone, 0});
  for (; at != held_.end() && at->second.residency->tensor == t; ++at) {
    const Held& held = at->second;
    if (held.version != version) continue;
    forms[held.residency->codec].push_back({held.residency->range.begin, held.end});
  }
  for (auto& [codec, spans] : forms) {
    std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    Bytes reached = 0;
    for (const Span& s : spans) {
      if (s.begin <= reached) reached = std::max(reached, s.end);
    }
    if (reached == all_of(p_->graph->at(t), codec).end) return true;
  }
  return false;
}

}  // namespace headrace::verifier
