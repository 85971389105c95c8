#include "tests/conformance/allocation_counter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<int64_t> g_allocations{0};
}  // namespace

// Not inline: the compiler would see malloc and free where it expects new and delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace headrace {

int64_t allocations_so_far() { return g_allocations.load(); }

TEST(AllocationCounter, CountsWhatTheSuiteBelievesItCounts) {
  const int64_t before = allocations_so_far();
  auto one = std::make_unique<int>(1);
  EXPECT_EQ(allocations_so_far() - before, 1);
  auto many = std::make_unique<int[]>(1000);
  EXPECT_EQ(allocations_so_far() - before, 2);
}

}  // namespace headrace
