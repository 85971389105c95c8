// verify(Program): the form of every line, then extents, then values; see program_verify.h.
#include "headrace/ir/program_verify.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace headrace {
namespace verifier {
namespace {

constexpr Bytes kMostBytes = Bytes{1} << 60;
constexpr size_t kMostTiers = 64;

// What a program may name, and where.
class Form {
 public:
  explicit Form(const Program& p) : p_(p), g_(*p.graph), n_(p.exit().value) {}

  Status run() const {
    HR_TRY(check_tiers());
    for (int32_t s = 0; s < n_; ++s) {
      Status status = check_instr(p_.instrs[static_cast<size_t>(s)]);
      if (!status.ok()) return status.within(text_of("step %d", s));
    }
    for (const Residency& r : p_.residencies) HR_TRY(check_residency(r));
    return {};
  }

 private:
  Status check_tiers() const {
    if (p_.tiers.empty()) return broken("a program without a device");
    if (p_.tiers.size() > kMostTiers) return broken("more tiers than a machine has");
    if (p_.arena_bytes < 0 || p_.arena_bytes > kMostBytes) return broken("an impossible arena");
    if (p_.source_tier.value < 1) return broken("files are in no tier");
    for (size_t t = 1; t < p_.tiers.size(); ++t) {
      const TierInfo& tier = p_.tiers[t];
      const bool rates = tier.load_bytes_per_s > 0 && std::isfinite(tier.load_bytes_per_s) &&
                         tier.store_bytes_per_s >= 0 && std::isfinite(tier.store_bytes_per_s);
      if (!rates || tier.latency_ns < 0) {
        return broken("tier '" + tier.name + "' has impossible rates");
      }
      if (tier.capacity < 0) return broken("tier '" + tier.name + "' has less than no capacity");
      for (size_t u = 1; u < t; ++u) {
        if (tier.group >= 0 && p_.tiers[u].group == tier.group &&
            p_.tiers[u].duplex != tier.duplex) {
          return broken("tiers '" + p_.tiers[u].name + "' and '" + tier.name +
                        "' share a link but not its kind");
        }
      }
    }
    return {};
  }

  Status check_instr(const Instr& i) const {
    if (i.kind == InstrKind::kCompute) {
      if (!i.op.valid() || i.op.index() >= g_.ops.size()) {
        return broken("an instruction names an op that does not exist");
      }
    } else if (!i.tensor.valid() || i.tensor.index() >= g_.tensors.size()) {
      return broken("an instruction names a tensor that does not exist");
    }
    if (is_transfer(i.kind)) {
      HR_TRY(check_transfer(i));
    } else if (i.stream != kComputeStream) {
      return broken("an instruction is on a stream of the wrong kind");
    }
    if (i.cost_ns < 0) return broken("an instruction takes less than no time");
    for (Step w : i.waits) {
      if (w.value < 0 || w.value >= n_) return broken("a wait names a step that does not exist");
    }
    return check_part(i);
  }

  Status check_transfer(const Instr& i) const {
    if (i.tier.value < 1 || i.tier.index() >= p_.tiers.size()) {
      return broken("a transfer names a tier that does not exist");
    }
    if (i.stream != link_stream(p_.tiers, i.tier, i.kind)) {
      return broken(text_of("a transfer is on a stream of the wrong kind: %d, not %d",
                            i.stream.value, link_stream(p_.tiers, i.tier, i.kind).value));
    }
    const Tensor& t = g_.at(i.tensor);
    if (i.kind == InstrKind::kStore && !(p_.tiers[i.tier.index()].store_bytes_per_s > 0)) {
      return broken("nothing can be stored to '" + p_.tiers[i.tier.index()].name + "'");
    }
    if (i.kind == InstrKind::kGather &&
        (t.role != Role::kGathered || i.tier != p_.source_tier)) {
      return broken("a gather of '" + t.name + "', which is no table there");
    }
    return {};
  }

  // Range and codec suit the kind of instruction.
  Status check_part(const Instr& i) const {
    const bool codes = i.kind == InstrKind::kEncode || i.kind == InstrKind::kDecode;
    const bool parts = i.kind == InstrKind::kLoad || i.kind == InstrKind::kStore ||
                       i.kind == InstrKind::kDetach;
    if (!parts && !i.range.whole()) return broken("a part of what is only done as a whole");
    if (!parts && !codes && i.codec != Codec::kNone) return broken("a codec where none works");
    if (i.kind == InstrKind::kCompute) return {};
    const Tensor& t = g_.at(i.tensor);
    if (codes && i.codec == Codec::kNone) return broken("encodes '" + t.name + "' as nothing");
    return check_range(t, i.range, i.codec);
  }

  static bool from_file(const Tensor& t) {
    return t.role == Role::kWeight || t.role == Role::kGathered;
  }

  static Status check_range(const Tensor& t, const Range& range, Codec codec) {
    if (codec != Codec::kNone && (from_file(t) || encoded_bytes(codec, t) <= 0)) {
      return broken(text_of("'%s' cannot be encoded as %s", t.name.c_str(),
                            headrace::name_of(codec)));
    }
    const Bytes total = all_of(t, codec).end;
    const Bytes unit = alignment_of(t);
    const bool inside = range.begin >= 0 && range.begin < total && range.bytes != 0 &&
                        range.bytes >= -1 && range.bytes <= total - range.begin;
    if (!inside || range.begin % unit != 0) {
      return broken(text_of("a range [%lld, +%lld) that '%s' does not have",
                            static_cast<long long>(range.begin),
                            static_cast<long long>(range.bytes), t.name.c_str()));
    }
    return {};
  }

  Status check_residency(const Residency& r) const {
    if (r.tensor.valid() ? r.tensor.index() >= g_.tensors.size()
                         : (!r.op.valid() || r.op.index() >= g_.ops.size())) {
      return broken("a residency of nothing");
    }
    if (r.begin >= r.end || r.begin < kEntry || r.end.value > n_) {
      return broken("a residency with impossible steps");
    }
    if (!r.tier.valid() || r.tier.index() >= p_.tiers.size()) {
      return broken("a residency in a tier that does not exist");
    }
    if (r.tensor.valid()) return check_range(g_.at(r.tensor), r.range, r.codec);
    if (r.tier != kDevice || !r.range.whole() || r.codec != Codec::kNone) {
      return broken(name_of(p_, r) + " is not plain bytes of the device");
    }
    return {};
  }

  const Program& p_;
  const Graph& g_;
  const int32_t n_;
};

// A part of a tensor at a place, neighbours joined.
struct Place {
  TensorId tensor;
  Codec codec = Codec::kNone;
  TierId tier;
  Bytes distance = 0;
  Span span;
  bool operator==(const Place&) const = default;
  bool operator<(const Place& o) const {
    return std::tie(tensor, codec, tier, distance, span.begin, span.end) <
           std::tie(o.tensor, o.codec, o.tier, o.distance, o.span.begin, o.span.end);
  }
};

template <typename Keep>
std::vector<Place> places_where(const Program& p, Keep keep) {
  std::vector<Place> all;
  for (const Residency& r : p.residencies) {
    if (!r.tensor.valid() || !keep(r)) continue;
    const Tensor& t = p.graph->at(r.tensor);
    if (t.role != Role::kWeight && t.role != Role::kState) continue;
    all.push_back({r.tensor, r.codec, r.tier, distance(r), span_of(t, r.range, r.codec)});
  }
  std::sort(all.begin(), all.end());
  std::vector<Place> joined;
  for (const Place& place : all) {
    if (!joined.empty()) {
      Place last = joined.back();
      last.span = place.span;
      if (last == place && joined.back().span.end == place.span.begin) {
        joined.back().span.end = place.span.end;
        continue;
      }
    }
    joined.push_back(place);
  }
  return joined;
}

}  // namespace

std::string name_of(const Program& p, const Residency& r) {
  if (!r.tensor.valid()) return "workspace of '" + p.graph->at(r.op).name + "'";
  const std::string name = "'" + p.graph->at(r.tensor).name + "'";
  return r.codec == Codec::kNone ? name : name + " as " + headrace::name_of(r.codec);
}

Span all_of(const Tensor& tensor, Codec codec) { return {0, range_bytes(tensor, {}, codec)}; }

Span span_of(const Tensor& tensor, const Range& range, Codec codec) {
  return {range.begin, range.begin + range_bytes(tensor, range, codec)};
}

Status check_form(const Program& program) { return Form(program).run(); }

Status check_cycle(const Program& p) {
  const auto at_entry = places_where(p, [](const Residency& r) { return r.begin == kEntry; });
  const auto at_exit = places_where(p, [&](const Residency& r) { return r.end == p.exit(); });
  for (size_t i = 0; i < at_entry.size() || i < at_exit.size(); ++i) {
    const bool entry_left = i < at_entry.size(), exit_left = i < at_exit.size();
    if (entry_left && exit_left && at_entry[i] == at_exit[i]) continue;
    const bool lost = entry_left && (!exit_left || at_entry[i] < at_exit[i]);
    const Place& place = lost ? at_entry[i] : at_exit[i];
    return broken(text_of("a cyclic program does not end where it began: bytes [%lld, %lld) of "
                          "'%s'%s%s at offset %lld of tier '%s' are there only at %s",
                          static_cast<long long>(place.span.begin),
                          static_cast<long long>(place.span.end),
                          p.graph->at(place.tensor).name.c_str(),
                          place.codec == Codec::kNone ? "" : " as ",
                          place.codec == Codec::kNone ? "" : headrace::name_of(place.codec),
                          static_cast<long long>(place.distance + place.span.begin),
                          p.tiers[place.tier.index()].name.c_str(), lost ? "entry" : "exit"));
  }
  return {};
}

}  // namespace verifier

Status verify(const Program& program) {
  if (program.graph == nullptr) return error(Code::kBadFile, "a program without a graph");
  HR_TRY(verify(*program.graph));
  HR_TRY(verifier::check_form(program));
  HR_TRY(verifier::check_extents(program));
  return verifier::check_values(program);
}

}  // namespace headrace
