// Lives of a state, and which steps are planned in addresses.
#include <algorithm>

#include "headrace/plan/address_parts.h"

namespace headrace::plan {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

void add_gaps(Life& life, int32_t until) {
  for (int32_t t : life.touches) life.touched.add(t);
  for (size_t i = 0; i < life.touches.size(); ++i) {
    const bool last = i + 1 == life.touches.size();
    const int32_t lo = life.touches[i] + 1;
    const int32_t hi = (last ? until : life.touches[i + 1]) - 1;
    life.gaps.emplace_back();
    life.gaps.back().add(lo, hi);
    life.open.push_back(lo <= hi);
  }
}

// The lives of one value.
void add_lives(const State& state, int32_t v, std::vector<Life>& out) {
  const Problem& p = state.problem();
  const Value& value = p.values[at(v)];
  const ValueState& s = state.value(v);
  Life fresh;
  fresh.value = v;
  fresh.bytes = value.bytes;
  Life life = fresh;
  const auto end = [&](LifeEnd how, int32_t until) {
    life.end = how;
    add_gaps(life, until);
    out.push_back(std::move(life));
    life = fresh;
  };
  if (value.producer < 0) life.touches.push_back(0);
  for (size_t i = 0; i < s.touches.size(); ++i) {
    const Touch& t = s.touches[i];
    const std::vector<int32_t>& list = state.reruns(t.position);
    const bool reborn = std::find(list.begin(), list.end(), v) != list.end();
    const int32_t slot = reborn || t.demands > 0 ? rerun_slot(t.position) : op_slot(t.position);
    if (!life.touches.empty()) {
      const Gap& g = s.gaps[i];
      if (reborn) {
        end(LifeEnd::kRerun, life.touches.back() + 1);
      } else if (g.way == Way::kMove && g.moved == value.bytes && slot > life.touches.back() + 1) {
        end(LifeEnd::kMoves, slot);
      }
    }
    if (life.touches.empty()) life.reborn = reborn;
    life.touches.push_back(slot);
    if (t.own && slot != op_slot(t.position)) life.touches.push_back(op_slot(t.position));
  }
  if (life.touches.empty()) return;
  const int32_t exit = 2 * p.size() + 1;
  if (value.persistent) {
    end(LifeEnd::kStays, exit);
  } else {
    end(LifeEnd::kDead, life.touches.back() + 1);
  }
}

}  // namespace

bool can_plan_in_addresses(const Problem& p) {
  const std::vector<TierInfo>& tiers = p.machine->tiers;
  if (p.size() > kMostAddressPositions || p.cyclic || tiers.size() != 2 || p.fixed_bytes > 0 ||
      !p.request->workload->rules.empty() || tiers[1].store_bytes_per_s <= 0) {
    return false;
  }
  Bytes all = 0;
  for (const Value& v : p.values) {
    all += v.bytes;
    if (v.home.valid() || v.rule != nullptr) return false;
    if (p.graph->at(v.tensor).alignment != kLine) return false;
    const bool there = v.persistent || v.on_device_at_entry;
    if (v.producer < 0 && !there) return false;
  }
  return tiers[1].capacity <= 0 || tiers[1].capacity >= 2 * all;
}

std::vector<Life> lives_of(const State& state) {
  const Problem& p = state.problem();
  std::vector<Life> lives;
  for (int32_t v = 0; v < state.values(); ++v) add_lives(state, v, lives);
  const auto add_workspace = [&](int32_t position, int32_t slot) {
    if (p.workspace[at(position)] <= 0) return;
    Life life;
    life.position = position;
    life.bytes = round_up(p.workspace[at(position)], kLine);
    life.touches.push_back(slot);
    add_gaps(life, slot + 1);
    lives.push_back(std::move(life));
  };
  for (int32_t k = 0; k < p.size(); ++k) {
    for (int32_t v : state.reruns(k)) {
      const int32_t producer = p.values[at(v)].producer;
      if (p.graph->at(p.order[at(producer)]).outputs.size() > 1) return {};
      add_workspace(producer, rerun_slot(k));
    }
    add_workspace(k, op_slot(k));
  }
  return lives;
}

std::vector<Extent> extents_of(const std::vector<Life>& lives) {
  std::vector<Extent> extents;
  for (const Life& x : lives) {
    Extent e;
    e.value = x.value;
    e.op_position = x.position;
    e.last_position = (x.touches.back() - 1) / 2;
    e.among_reruns = x.touches.back() % 2 == 1;
    if (x.touches.back() == 0) e.last_position = -1;
    e.offset = x.offset;
    extents.push_back(e);
  }
  return extents;
}

}  // namespace headrace::plan
