#include "headrace/kv/chain_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace headrace {
namespace {

std::vector<int32_t> tokens(int32_t count) {
  std::vector<int32_t> t(static_cast<size_t>(count));
  std::iota(t.begin(), t.end(), 7);
  return t;
}

TEST(ChainHash, IsWrittenDownAndStaysWhatItIs) {  // files are named by it
  const ChainHash start = chain_start(0x1234, KvFormat::kQ8);
  EXPECT_EQ(to_text(start), "1000e7d7be523138774142dafb906fc1");
  EXPECT_EQ(to_text(chain_next(start, tokens(256))), "be677ef338be0dcecefe992e2c23ff2d");
}

TEST(ChainHash, DependsOnModelFormatSaltOrderAndWhatCameBefore) {
  std::set<ChainHash> all;
  for (uint64_t model : {1u, 2u})
    for (int format = 0; format < kKvFormatCount; ++format)
      for (uint64_t salt : {0u, 1u})
        all.insert(chain_start(model, static_cast<KvFormat>(format), salt));
  EXPECT_EQ(all.size(), 16u);
  const ChainHash start = chain_start(1, KvFormat::kF16);
  const std::vector<int32_t> ab = {1, 2}, ba = {2, 1}, a = {1};
  EXPECT_NE(chain_next(start, ab), chain_next(start, ba));
  EXPECT_NE(chain_next(start, ab), chain_next(chain_next(start, a), ab));
  EXPECT_NE(chain_next(start, {}), start);
}

TEST(ChainHash, OfARunIsThatOfItsEntriesWhereverItIsCut) {
  const std::vector<int32_t> run = tokens(3 * 256 + 17);
  const std::span<const int32_t> all(run);
  const ChainHash start = chain_start(9, KvFormat::kQ4);
  EXPECT_EQ(chain_over(start, {}), start);
  for (size_t cut : {256u, 512u, 768u}) {
    EXPECT_EQ(chain_over(chain_over(start, all.first(cut)), all.subspan(cut)),
              chain_over(start, all));
  }
  EXPECT_EQ(chain_next(chain_next(start, all.first(256)), all.subspan(256, 256)),
            chain_over(start, all.first(512)));
}

}  // namespace
}  // namespace headrace
