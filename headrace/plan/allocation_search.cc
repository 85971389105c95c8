#include "headrace/plan/allocation_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace headrace::plan {
namespace {

// A node costs 0.5 to 5 us, whatever the shape of the problem.
constexpr int64_t kBlocksANode = 64;
constexpr int64_t kRankedANode = 8;
constexpr int64_t kMostPairs = 4'000'000;

size_t at(int32_t i) { return static_cast<size_t>(i); }

struct Edge {
  int32_t time = 0;
  bool begins = false;
  int32_t block = 0;
};

std::vector<Edge> edges_of(const AllocInstance& in) {
  std::vector<Edge> edges;
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    edges.push_back({in.blocks[i].lower, true, static_cast<int32_t>(i)});
    edges.push_back({in.blocks[i].upper, false, static_cast<int32_t>(i)});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.begins != b.begins) return b.begins;  // ends first: lifetimes are half-open
    return a.block < b.block;
  });
  return edges;
}

}  // namespace

bool ExactSearch::can_search(const AllocInstance& in) {
  if (in.composite || in.blocks.empty() || in.blocks.size() > kMostBlocks) return false;
  int64_t alive = 0, pairs = 0;
  for (const Edge& e : edges_of(in)) {
    if (e.begins) pairs += alive;
    alive += e.begins ? 1 : -1;
  }
  const AllocRect& first = in.rects[0];
  return pairs <= kMostPairs && first.distance == 0 &&
         std::all_of(in.rects.begin(), in.rects.end(),
                     [](const AllocRect& r) { return r.distance == 0; });
}

ExactSearch::ExactSearch(const AllocInstance& instance) : in_(instance) { find_sections(); }

void ExactSearch::find_sections() {
  const size_t n = in_.blocks.size();
  begin_.resize(n);
  end_.resize(n);
  near_.resize(n);
  std::vector<int32_t> alive;
  bool fresh = false;  // a block began since the last section
  for (const Edge& e : edges_of(in_)) {
    if (e.begins) {
      for (const int32_t other : alive) {
        near_[at(other)].push_back(e.block);
        near_[at(e.block)].push_back(other);
      }
      alive.push_back(e.block);
      begin_[at(e.block)] = static_cast<int32_t>(alive_.size());
      fresh = true;
      continue;
    }
    if (fresh) alive_.push_back(alive);
    fresh = false;
    std::erase(alive, e.block);
    end_[at(e.block)] = static_cast<int32_t>(alive_.size());
  }
}

void ExactSearch::reset() {
  const size_t n = in_.blocks.size();
  sections_.assign(alive_.size(), {});
  cuts_.assign(alive_.size(), 0);
  for (size_t b = 0; b < n; ++b) {
    for (int32_t s = begin_[b]; s < end_[b]; ++s) {
      sections_[at(s)].total += in_.blocks[b].size;
      if (s + 1 < end_[b]) ++cuts_[at(s)];
    }
  }
  lowest_.assign(n, 0);
  at_.assign(n, -1);
  rank_.assign(n, 0);
  touched_when_.assign(alive_.size(), 0);
  lowest_undos_.clear();
  floor_undos_.clear();
  placements_ = nodes_ = 0;
}

SearchEnd ExactSearch::run(Bytes capacity, std::string_view ranks, int64_t nodes) {
  capacity_ = capacity;
  ranks_ = ranks;
  limit_ = nodes;
  reset();
  solution_.assign(in_.blocks.size(), -1);
  for (const Section& s : sections_) {
    if (s.total > capacity) return SearchEnd::kImpossible;
  }
  Part all;
  all.last = static_cast<int32_t>(sections_.size());
  all.blocks.resize(in_.blocks.size());
  std::iota(all.blocks.begin(), all.blocks.end(), 0);
  std::vector<int32_t> cut;
  for (int32_t s = 0; s + 1 < all.last; ++s) {
    if (cuts_[at(s)] == 0) cut.push_back(s + 1);
  }
  for (const Part& part : parts_of(all, cut)) {
    const SearchEnd end = solve(part);
    if (end != SearchEnd::kFound) return end;
  }
  return SearchEnd::kFound;
}

// `part` between the sections in `cut`, without what is placed.
std::vector<ExactSearch::Part> ExactSearch::parts_of(const Part& part,
                                                     const std::vector<int32_t>& cut) const {
  std::vector<Part> parts;
  int32_t first = part.first;
  for (size_t c = 0; c <= cut.size(); ++c) {
    const int32_t last = c < cut.size() ? cut[c] : part.last;
    Part p{{}, first, last};
    for (const int32_t b : part.blocks) {
      if (!placed(b) && begin_[at(b)] >= first && end_[at(b)] <= last) p.blocks.push_back(b);
    }
    if (!p.blocks.empty()) parts.push_back(std::move(p));
    first = last;
  }
  return parts;
}

// The totals of sections shrink while the search goes on, so every part is ranked when it is met:
// with ranks from the start G, H and I of the MiniMalloc set take over 16 times the nodes.
std::vector<int32_t> ExactSearch::ranked(const std::vector<int32_t>& blocks) const {
  struct Ranked {
    double keys[3];
    int32_t block;
  };
  std::vector<Ranked> all;
  all.reserve(blocks.size());
  for (const int32_t b : blocks) {
    const AllocBlock& block = in_.blocks[at(b)];
    Bytes total = 0;
    for (int32_t s = begin_[at(b)]; s < end_[at(b)]; ++s) {
      total = std::max(total, sections_[at(s)].total);
    }
    Ranked r{{0, 0, 0}, b};
    for (size_t k = 0; k < ranks_.size() && k < 3; ++k) {
      if (ranks_[k] == 'T') r.keys[k] = static_cast<double>(total);
      if (ranks_[k] == 'A') r.keys[k] = block.area;
      if (ranks_[k] == 'W') r.keys[k] = static_cast<double>(block.upper) - block.lower;
    }
    all.push_back(r);
  }
  std::sort(all.begin(), all.end(), [](const Ranked& a, const Ranked& b) {
    for (size_t k = 0; k < 3; ++k) {
      if (a.keys[k] != b.keys[k]) return a.keys[k] > b.keys[k];
    }
    return a.block < b.block;
  });
  std::vector<int32_t> order;
  order.reserve(all.size());
  for (const Ranked& r : all) order.push_back(r.block);
  return order;
}

SearchEnd ExactSearch::solve(const Part& part) {
  nodes_ += static_cast<int64_t>(part.blocks.size()) / kRankedANode;
  Part mine{ranked(part.blocks), part.first, part.last};
  std::vector<int32_t> ranks_before;
  ranks_before.reserve(mine.blocks.size());
  for (size_t i = 0; i < mine.blocks.size(); ++i) {
    int32_t& rank = rank_[at(mine.blocks[i])];
    ranks_before.push_back(rank);
    rank = static_cast<int32_t>(i);
  }
  const SearchEnd end = search(mine, 0, 0);
  for (size_t i = 0; i < mine.blocks.size(); ++i) rank_[at(mine.blocks[i])] = ranks_before[i];
  return end;
}

// What may be placed next, by offset and rank: not before the last one placed, and not where
// another block would fit below.
std::vector<ExactSearch::Candidate> ExactSearch::candidates(const Part& part, Bytes from,
                                                            int32_t from_rank) const {
  Bytes fits_below = std::numeric_limits<Bytes>::max();
  for (const int32_t b : part.blocks) {
    fits_below = std::min(fits_below, lowest_[at(b)] + in_.blocks[at(b)].size);
  }
  std::vector<Candidate> found;
  for (const int32_t b : part.blocks) {
    const Candidate c{lowest_[at(b)], rank_[at(b)], b};
    const bool later = c.offset > from || (c.offset == from && c.rank >= from_rank);
    if (later && c.offset < fits_below) found.push_back(c);
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.rank < b.rank;
  });
  return found;
}

SearchEnd ExactSearch::search(const Part& part, Bytes from, int32_t from_rank) {
  if (nodes_ >= limit_) return SearchEnd::kOutOfNodes;
  Part rest{{}, part.first, part.last};
  rest.blocks.reserve(part.blocks.size());
  for (const int32_t b : part.blocks) {
    if (!placed(b)) rest.blocks.push_back(b);
  }
  if (rest.blocks.empty()) return SearchEnd::kFound;
  nodes_ += 1 + static_cast<int64_t>(rest.blocks.size()) / kBlocksANode;
  for (const Candidate& c : candidates(rest, from, from_rank)) {
    const size_t lowest_undos = lowest_undos_.size(), floor_undos = floor_undos_.size();
    SearchEnd end = SearchEnd::kImpossible;
    const bool fits = place(rest, c.block, c.offset);
    const bool alone = !any_near_;
    if (fits) end = below(rest, c);
    if (end == SearchEnd::kFound) solution_[at(c.block)] = c.offset;
    take_back(c.block, lowest_undos, floor_undos);
    if (end != SearchEnd::kImpossible || alone) return end;
  }
  return SearchEnd::kImpossible;
}

// The search goes on beneath a placement, part by part where it has cut the part in pieces.
SearchEnd ExactSearch::below(const Part& part, const Candidate& placed) {
  const int32_t begin = begin_[at(placed.block)], end = end_[at(placed.block)];
  std::vector<int32_t> cut;
  for (int32_t s = begin; s + 1 < end; ++s) {
    if (--cuts_[at(s)] == 0) cut.push_back(s + 1);
  }
  SearchEnd result = SearchEnd::kFound;
  if (cut.empty()) {
    result = search(part, placed.offset, placed.rank);
  } else {
    for (const Part& p : parts_of(part, cut)) {
      result = solve(p);
      if (result != SearchEnd::kFound) break;
    }
  }
  for (int32_t s = begin; s + 1 < end; ++s) ++cuts_[at(s)];
  return result;
}

void ExactSearch::raise_neighbours(int32_t block, Bytes top) {
  ++placements_;
  touched_.clear();
  any_near_ = false;
  fits_ = true;
  for (const int32_t other : near_[at(block)]) {
    if (placed(other)) continue;
    any_near_ = true;
    Bytes& lowest = lowest_[at(other)];
    if (lowest >= top) continue;
    lowest_undos_.push_back({other, lowest});
    lowest = top;
    if (top + in_.blocks[at(other)].size > capacity_) fits_ = false;
    for (int32_t s = begin_[at(other)]; s < end_[at(other)]; ++s) {
      if (touched_when_[at(s)] == placements_) continue;
      touched_when_[at(s)] = placements_;
      touched_.push_back(s);
    }
  }
}

// A section's floor is not below the lowest of what is still to come there.
bool ExactSearch::raise_floors() {
  for (const int32_t s : touched_) {
    Section& section = sections_[at(s)];
    Bytes least = std::numeric_limits<Bytes>::max();
    for (const int32_t b : alive_[at(s)]) {
      if (!placed(b)) least = std::min(least, lowest_[at(b)]);
      if (least <= section.floor) break;
    }
    if (section.total == 0 || least <= section.floor) continue;
    floor_undos_.push_back({s, section.floor});
    section.floor = least;
    if (least + section.total > capacity_) return false;
  }
  return true;
}

// False when the capacity can no longer be kept.
bool ExactSearch::place(const Part& part, int32_t block, Bytes offset) {
  const Bytes size = in_.blocks[at(block)].size;
  at_[at(block)] = offset;
  raise_neighbours(block, offset + size);
  for (int32_t s = begin_[at(block)]; s < end_[at(block)]; ++s) {
    floor_undos_.push_back({s, sections_[at(s)].floor});
    sections_[at(s)].floor = offset + size;
    sections_[at(s)].total -= size;
  }
  if (!fits_ || offset + size > capacity_ || !raise_floors()) return false;
  bool fits = true;
  for (int32_t s = part.first; s < part.last; ++s) {
    const Section& section = sections_[at(s)];
    // Nothing comes below `offset` any more; a section that is done does not mind.
    fits &= std::max(section.total > 0 ? offset : 0, section.floor) + section.total <= capacity_;
  }
  return fits;
}

void ExactSearch::take_back(int32_t block, size_t lowest_undos, size_t floor_undos) {
  for (; floor_undos_.size() > floor_undos; floor_undos_.pop_back()) {
    sections_[at(floor_undos_.back().index)].floor = floor_undos_.back().value;
  }
  for (; lowest_undos_.size() > lowest_undos; lowest_undos_.pop_back()) {
    lowest_[at(lowest_undos_.back().index)] = lowest_undos_.back().value;
  }
  for (int32_t s = begin_[at(block)]; s < end_[at(block)]; ++s) {
    sections_[at(s)].total += in_.blocks[at(block)].size;
  }
  at_[at(block)] = -1;
}

}  // namespace headrace::plan
