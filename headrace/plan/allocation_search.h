// Exact search for a packing within a capacity. Internal to allocation*.cc.
//
// The method is that of MiniMalloc (M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
// Hardware-Accelerated Machine Learning", ASPLOS 2023), written anew: blocks are placed by rising
// offset, each as low as what lies below it allows.
//   section    a time at which no further block could be alive: a maximal clique.
//   floor      of a section: nothing that is still to come can begin below it.
//   lowest     of a block: the highest end of the placed blocks alive together with it.
// Pruned are: orders of placement other than the canonical one (by offset, then rank); a block put
// where another would fit below it; sections whose floor and remaining bytes exceed the capacity;
// alternatives to a block that touches nothing still to come. What falls into parts that no
// remaining block connects is solved part by part, each with its own ranks.
//
// Deterministic; effort is counted in nodes (and part nodes, by blocks looked at).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/plan/allocation_instance.h"

namespace headrace::plan {

enum class SearchEnd : uint8_t { kFound, kImpossible, kOutOfNodes };

class ExactSearch {
 public:
  // Lists every pair of blocks alive together: at most kMostBlocks, no composite ones.
  static constexpr size_t kMostBlocks = 4000;
  static bool can_search(const AllocInstance& instance);
  explicit ExactSearch(const AllocInstance& instance);

  // Looks for a packing whose rounded ends stay within `capacity`. `ranks` says which blocks come
  // first, by letters: T the fullest section it lives in, W lifetime, A bytes x lifetime.
  // kImpossible is a proof.
  SearchEnd run(Bytes capacity, std::string_view ranks, int64_t nodes);
  int64_t nodes() const { return nodes_; }  // of the last run
  // By block; of the last run that found a packing.
  const std::vector<Bytes>& offsets() const { return solution_; }

 private:
  struct Section {
    Bytes floor = 0;
    Bytes total = 0;  // of the blocks still to be placed
  };
  struct Candidate {
    Bytes offset = 0;
    int32_t rank = 0;
    int32_t block = 0;
  };
  struct Part {
    std::vector<int32_t> blocks;  // still to be placed
    int32_t first = 0, last = 0;  // sections
  };
  struct Undo {
    int32_t index = 0;
    Bytes value = 0;
  };

  void find_sections();
  void reset();
  std::vector<int32_t> ranked(const std::vector<int32_t>& blocks) const;
  SearchEnd solve(const Part& part);
  SearchEnd search(const Part& part, Bytes from, int32_t from_rank);
  SearchEnd below(const Part& part, const Candidate& placed);
  std::vector<Part> parts_of(const Part& part, const std::vector<int32_t>& cut) const;
  std::vector<Candidate> candidates(const Part& part, Bytes from, int32_t from_rank) const;
  void raise_neighbours(int32_t block, Bytes top);
  bool raise_floors();
  bool place(const Part& part, int32_t block, Bytes at);
  void take_back(int32_t block, size_t lowest_undos, size_t floor_undos);
  bool placed(int32_t block) const { return at_[static_cast<size_t>(block)] >= 0; }

  const AllocInstance& in_;
  std::vector<int32_t> begin_, end_;          // sections [begin, end) of blocks
  std::vector<std::vector<int32_t>> near_;    // blocks alive together with a block
  std::vector<std::vector<int32_t>> alive_;   // blocks of a section
  Bytes capacity_ = 0;
  std::string_view ranks_;
  int64_t nodes_ = 0, limit_ = 0;
  std::vector<Section> sections_;
  std::vector<int32_t> cuts_;                 // blocks still to come in sections s and s + 1
  std::vector<Bytes> lowest_, at_, solution_;
  std::vector<int32_t> rank_;
  std::vector<Undo> lowest_undos_, floor_undos_;
  std::vector<int32_t> touched_;              // sections in which some block was raised
  std::vector<int64_t> touched_when_;
  int64_t placements_ = 0;
  bool any_near_ = false;                     // the last block placed has blocks above it to come
  bool fits_ = false;
};

}  // namespace headrace::plan
