#include "headrace/run/residency_map.h"

#include <algorithm>

namespace headrace {
namespace {

bool alive(const Residency& r, int32_t step) { return r.begin.value <= step && step < r.end.value; }

}  // namespace

ResidencyMap::ResidencyMap(const Program& program) : p_(program) {
  by_tensor_.resize(p_.graph->tensors.size());
  by_op_.resize(p_.graph->ops.size());
  for (const Residency& r : p_.residencies) {
    if (r.tensor.valid()) {
      by_tensor_[r.tensor.index()].push_back(&r);
    } else {
      by_op_[r.op.index()].push_back(&r);
    }
  }
}

// Walks from `begin` over the residencies that have the tensor's byte b at b + distance.
Piece ResidencyMap::at_distance(const std::vector<const Residency*>& list, TierId tier, Codec codec,
                                Bytes begin, Bytes bytes, int32_t step, Bytes distance) const {
  Bytes at = begin, end_of_room = begin;
  bool grew = true;
  while (grew) {
    grew = false;
    for (const Residency* r : list) {
      if (r->tier != tier || r->codec != codec || !alive(*r, step)) continue;
      if (r->offset - r->range.begin != distance || r->range.begin > at) continue;
      const Bytes end =
          r->range.begin + range_bytes(p_.graph->at(r->tensor), r->range, r->codec);
      if (end <= at) continue;
      at = end;
      end_of_room = std::max(end, r->range.begin + r->bytes);
      grew = true;
    }
  }
  if (at < begin + bytes) return {};
  return {begin + distance, end_of_room - begin};
}

Piece ResidencyMap::find(TensorId tensor, TierId tier, Codec codec, Bytes begin, Bytes bytes,
                         int32_t step) const {
  const auto& list = by_tensor_[tensor.index()];
  for (const bool fresh : {true, false}) {
    for (const Residency* r : list) {
      if (r->tier != tier || r->codec != codec || !alive(*r, step)) continue;
      if ((r->begin.value == step) != fresh) continue;
      const Piece piece = at_distance(list, tier, codec, begin, bytes, step,
                                      r->offset - r->range.begin);
      if (piece.found()) return piece;
    }
  }
  return {};
}

const Residency* ResidencyMap::workspace(OpId op, int32_t step) const {
  for (const Residency* r : by_op_[op.index()]) {
    if (alive(*r, step)) return r;
  }
  return nullptr;
}

}  // namespace headrace
