#include "headrace/ir/kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace headrace {
namespace {

TEST(KvFormats, AreFoundByTheirNames) {
  for (int i = 0; i < kKvFormatCount; ++i) {
    const auto format = static_cast<KvFormat>(i);
    const Result<KvFormat> found = kv_format_from_name(name_of(format));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found.value(), format);
  }
  const Result<KvFormat> none = kv_format_from_name("q5");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kUsage);
  EXPECT_NE(none.status().message().find("q5"), std::string::npos);
}

TEST(KvTileBytes, AreThoseOfTheDecisionPage) {
  // 64 positions x K and V x heads x bytes of a row.
  EXPECT_EQ(kv_tile_bytes(KvFormat::kF16, 3, 64), 64 * 2 * 3 * 128);
  EXPECT_EQ(kv_tile_bytes(KvFormat::kBF16, 3, 64), 64 * 2 * 3 * 128);
  EXPECT_EQ(kv_tile_bytes(KvFormat::kQ8, 3, 64), 64 * 2 * 3 * (64 + 2 * 2));
  EXPECT_EQ(kv_tile_bytes(KvFormat::kQ4, 3, 64), 64 * 2 * 3 * (32 + 2 * 4));
  // A last group of 16: padded to 16 elements, not to 32.
  EXPECT_EQ(kv_tile_bytes(KvFormat::kQ8, 1, 80), 64 * 2 * (80 + 3 * 2));
  EXPECT_EQ(kv_tile_bytes(KvFormat::kQ4, 1, 80), 64 * 2 * (40 + 3 * 4));
}

TEST(KvTileBytes, AreWholeLinesForEveryHeadDim) {
  for (int i = 0; i < kKvFormatCount; ++i) {
    for (int64_t head_dim = 1; head_dim <= 512; ++head_dim) {
      const Bytes part = kv_tile_bytes(static_cast<KvFormat>(i), 1, head_dim) / 2;
      EXPECT_EQ(part % kLine, 0) << name_of(static_cast<KvFormat>(i)) << ' ' << head_dim;
    }
  }
}

TEST(KvTileBytes, OfQ8AreAQuarterOfFloatsAndItsScalesASixteenthMore) {
  const auto share = [](KvFormat format) {
    return static_cast<double>(kv_tile_bytes(format, 8, 128)) / (64 * 2 * 8 * 128 * 4);
  };
  EXPECT_DOUBLE_EQ(share(KvFormat::kF16), 0.5);
  EXPECT_DOUBLE_EQ(share(KvFormat::kQ8), 0.265625);  // 8.5 bits an element
  EXPECT_DOUBLE_EQ(share(KvFormat::kQ4), 0.15625);   // 5 bits an element
}

TEST(KvTailBytes, AreThoseOfAnF16Tile) {
  EXPECT_EQ(kv_tail_bytes(2, 80), kv_tile_bytes(KvFormat::kF16, 2, 80));
}

StepRows rows_of(std::vector<std::pair<int32_t, std::pair<int32_t, int32_t>>> runs) {
  StepRows rows;
  for (const auto& [sequence, range] : runs) {
    for (int32_t p = range.first; p < range.second; ++p) {
      rows.tokens.push_back(0);
      rows.sequences.push_back(sequence);
      rows.positions.push_back(p);
    }
  }
  return rows;
}

TEST(KvOpenTiles, AreNeverMoreThanSaid) {
  for (int64_t rows = 1; rows <= 300; ++rows) {
    int64_t most = 0;
    for (int64_t first = 0; first < kKvTile; ++first) {
      most = std::max(most, (first + rows - 1) / kKvTile - first / kKvTile);
    }
    EXPECT_EQ(kv_open_tiles(rows, 1), most) << rows;
  }
  // Two runs of 66 rows from positions 63 on: tiles 1 and 2 of both.
  EXPECT_GE(kv_open_tiles(132, 2), 4);
}

TEST(KvRuns, AreTheAdjacentRowsOfASequence) {
  const StepRows rows = rows_of({{1, {60, 70}}, {0, {5, 6}}});
  const KvRun first = kv_run_at(rows, 0, 0);
  EXPECT_EQ(first.sequence, 1);
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.end, 10);
  EXPECT_EQ(first.first, 60);
  EXPECT_EQ(first.last(), 69);
  EXPECT_EQ(first.first_tile(), 0);
  EXPECT_EQ(first.sealed_end(), 1);
  const KvRun second = kv_run_at(rows, first.end, 1);
  EXPECT_EQ(second.sequence, 0);
  EXPECT_EQ(second.open, 1);
  EXPECT_EQ(second.end, 11);
  EXPECT_EQ(second.sealed_end(), 0);
}

Tensor slot_of(int32_t sequence, int32_t segment, int64_t tiles, Bytes tile_bytes) {
  Tensor slot;
  slot.rows = tiles;
  slot.cols = tile_bytes;
  slot.bytes = tiles * tile_bytes;
  slot.slot.sequence = sequence;
  slot.slot.segment = segment;
  return slot;
}

TEST(KvParts, ALoadBringsWhatWasSealedAndAStoreSavesWhatTheStepSeals) {
  const Tensor slot = slot_of(0, 1, 4, kPage);  // positions 256 .. 511
  const StepRows rows = rows_of({{0, {320, 460}}});
  const KvPart load = kv_part(slot, false, rows);
  EXPECT_EQ(load.begin, 0);
  EXPECT_EQ(load.end, kPage);
  const KvPart store = kv_part(slot, true, rows);
  EXPECT_EQ(store.begin, kPage);
  EXPECT_EQ(store.end, 3 * kPage);
}

TEST(KvParts, AreEmptyBeforeTheSequenceGetsThere) {
  const Tensor slot = slot_of(0, 1, 4, kPage);
  const StepRows rows = rows_of({{0, {10, 20}}});
  EXPECT_TRUE(kv_part(slot, false, rows).empty());
  EXPECT_TRUE(kv_part(slot, true, rows).empty());
}

TEST(KvParts, OfASequenceWithoutRowsAreAllOfTheSlotOrNothing) {
  const Tensor slot = slot_of(1, 0, 4, kPage);
  const StepRows rows = rows_of({{0, {10, 20}}});
  const KvPart load = kv_part(slot, false, rows);
  EXPECT_EQ(load.begin, 0);
  EXPECT_EQ(load.end, 4 * kPage);
  EXPECT_TRUE(kv_part(slot, true, rows).empty());
}

TEST(KvParts, AreWholePagesOfTheSlot) {
  const Tensor slot = slot_of(0, 0, 4, 2112);  // 8448 bytes: two pages and a bit
  const KvPart store = kv_part(slot, true, rows_of({{0, {128, 192}}}));  // tile 2: 4224 .. 6336
  EXPECT_EQ(store.begin, kPage);
  EXPECT_EQ(store.end, 2 * kPage);
  const KvPart last = kv_part(slot, true, rows_of({{0, {192, 256}}}));  // 6336 .. 8448
  EXPECT_EQ(last.begin, kPage);
  EXPECT_EQ(last.end, 3 * kPage);
}

}  // namespace
}  // namespace headrace
