#include "headrace/kernel/kv_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace headrace {
namespace {

TEST(KvLayout, EveryRowHasAPlaceOfItsOwnInsideTheSlot) {
  for (const KvLayout kv :
       {KvLayout{3, 64, 128}, KvLayout{1, 20, 64}, KvLayout{2, 80, 192}}) {
    const int64_t padded = padded_head_dim(kv.head_dim);
    std::set<int64_t> starts;
    for (int64_t g = 0; g < kv.kv_heads; ++g) {
      for (int64_t p = 0; p < kv.segment_tokens; ++p) {
        starts.insert(kv.k_offset(g, p));
        starts.insert(kv.v_offset(g, p));
      }
    }
    EXPECT_EQ(static_cast<int64_t>(starts.size()), 2 * kv.kv_heads * kv.segment_tokens);
    EXPECT_EQ(*starts.rbegin() + padded, kv.bytes() / 2);
    int64_t expected = 0;
    for (int64_t start : starts) {
      EXPECT_EQ(start, expected);
      expected += padded;
    }
  }
}

TEST(KvLayout, ATileOfOneHeadIsOneRunAndPositionsFillASlotFromItsFront) {
  const KvLayout kv{3, 64, 256};
  EXPECT_EQ(kv.k_offset(1, 65), kv.k_offset(1, 64) + 64);
  EXPECT_EQ(kv.v_offset(1, 64), kv.k_offset(1, 64) + 64 * 64);
  EXPECT_LT(kv.v_offset(2, 63), kv.k_offset(0, 64));
  EXPECT_EQ(kv_slot_bytes(3, 64, 256), 256 * 3 * 2 * 64 * 2);
}

}  // namespace
}  // namespace headrace
