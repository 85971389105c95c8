#include "headrace/kernel/kv_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace headrace {
namespace {

TEST(KvLayout, EveryRowHasAPlaceOfItsOwnInsideTheTile) {
  for (const KvLayout kv : {KvLayout{3, 64}, KvLayout{1, 20}, KvLayout{2, 80}}) {
    const int64_t padded = padded_head_dim(kv.head_dim);
    std::set<int64_t> starts;
    for (int64_t g = 0; g < kv.kv_heads; ++g) {
      for (int64_t row = 0; row < kKvTile; ++row) {
        starts.insert(kv.k_offset(g, row));
        starts.insert(kv.v_offset(g, row));
      }
    }
    EXPECT_EQ(static_cast<int64_t>(starts.size()), 2 * kv.kv_heads * kKvTile);
    EXPECT_EQ(*starts.rbegin() + padded, kv.tile_elements());
    EXPECT_EQ(kv.tile_elements() * 2, kv_tail_bytes(kv.kv_heads, kv.head_dim));
    int64_t expected = 0;
    for (int64_t start : starts) {
      EXPECT_EQ(start, expected);
      expected += padded;
    }
  }
}

TEST(KvLayout, ATileOfOneHeadIsOneRunOfKThenV) {
  const KvLayout kv{3, 64};
  EXPECT_EQ(kv.k_offset(1, 2), kv.k_offset(1, 1) + 64);
  EXPECT_EQ(kv.v_offset(1, 0), kv.k_offset(1, 0) + 64 * 64);
  EXPECT_EQ(kv.k_offset(2, 0), kv.v_offset(1, 63) + 64);
}

}  // namespace
}  // namespace headrace
