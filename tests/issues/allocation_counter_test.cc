// Counts every operator new of this program, the nothrow one of std::stable_sort
// included.
#include "tests/conformance/allocation_counter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(bytes);
}
void* operator new(size_t bytes) {
  if (void* p = operator new(bytes, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace headrace {

int64_t allocations_so_far() { return g_allocations.load(); }

TEST(AllocationCounter, CountsVectorsAndTheBuffersOfSorts) {
  const int64_t before = allocations_so_far();
  std::vector<int> v(1000, 1);
  EXPECT_EQ(allocations_so_far() - before, 1);
  std::stable_sort(v.begin(), v.end());
  EXPECT_EQ(allocations_so_far() - before, 2);
}

}  // namespace headrace
